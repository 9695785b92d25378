"""The kernels of each node, from torch.profiler: those of an accelerator that it knows, otherwise the operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from .accelerator import accelerator_of
from .meter import Meter
from .nodes import Kernel

MARK = "fxflops node "


class KernelMeter(Meter):
    """A meter that marks each node for torch.profiler; after ``finish``, ``kernels`` has the kernels by node.

    Times are torch.profiler's: a kernel's time on an accelerator that it knows, otherwise an operator's self time.
    """

    def __init__(self, device: torch.device) -> None:
        self.kernels: dict[str, tuple[Kernel, ...]] = {}
        self._names: list[str] = []
        accelerator = accelerator_of(device)
        activity = None if accelerator is None else accelerator.activity
        self._sees_kernels = activity is not None
        activities = {ProfilerActivity.CPU, activity or ProfilerActivity.CPU}
        self._open = ExitStack()
        self._profile = self._open.enter_context(profile(activities=activities, acc_events=True))

    def before(self, name: str) -> None:
        self._names.append(name)
        self._mark = record_function(f"{MARK}{len(self._names) - 1}")
        self._mark.__enter__()

    def after(self, name: str, value: Any) -> None:
        self._mark.__exit__(None, None, None)

    def finish(self) -> None:
        self.close()
        ran: dict[str, list[tuple[str, float]]] = {name: [] for name in self._names}
        for event in self._profile.events() or ():
            if event.name.startswith(MARK) and event.device_type.name == "CPU":
                ran[self._names[int(event.name.removeprefix(MARK))]] += self._kernels_in(event.cpu_children)
        self.kernels = {name: summed(found) for name, found in ran.items()}

    def close(self) -> None:
        """Stop the profiler; may be called twice."""
        self._open.close()

    def _kernels_in(self, events: Iterable[Any]) -> Iterator[tuple[str, float]]:
        for event in events:
            if self._sees_kernels:
                yield from ((kernel.name, kernel.duration / 1e6) for kernel in event.kernels)
            elif event.self_cpu_time_total > 0:
                yield event.name, event.self_cpu_time_total / 1e6
            yield from self._kernels_in(event.cpu_children)


def summed(ran: Iterable[tuple[str, float]]) -> tuple[Kernel, ...]:
    """Return one Kernel for each name, longest first."""
    sums: dict[str, Kernel] = {}
    for name, seconds in ran:
        _, calls, before = sums.get(name, Kernel(name, 0, 0.0))
        sums[name] = Kernel(name, calls + 1, before + seconds)
    return tuple(sorted(sums.values(), key=lambda kernel: -kernel.seconds))

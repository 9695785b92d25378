"""List the kernels that each node runs, as torch.profiler sees them. If torch.profiler does not see the accelerator's kernels, list
operators instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ..records import grouped
from .accelerator import accelerator_of
from .meter import Meter
from .nodes import Kernel

MARK = "fxflops node "


class KernelMeter(Meter):
    """A meter that marks each node for torch.profiler. Its ``profile`` must be on while the nodes run.

    The times are measured by torch.profiler. A time is the time of a kernel or, if torch.profiler does not see the accelerator's kernels,
    the self time of an operator.
    """

    def __init__(self, device: torch.device) -> None:
        self._names: list[str] = []
        accelerator = accelerator_of(device)
        activity = None if accelerator is None else accelerator.activity
        self._sees_kernels = activity is not None
        self.profile = profile(activities={ProfilerActivity.CPU, activity or ProfilerActivity.CPU}, acc_events=True)

    def before(self, name: str) -> None:
        self._names.append(name)
        self._mark = record_function(f"{MARK}{len(self._names) - 1}")
        self._mark.__enter__()

    def after(self, name: str, value: Any) -> None:
        self._mark.__exit__(None, None, None)

    @property
    def kernels(self) -> dict[str, tuple[Kernel, ...]]:
        """The kernels by node, once ``profile`` has ended."""
        kernels_by_node: dict[str, list[tuple[str, float]]] = {name: [] for name in self._names}
        for event in self.profile.events() or ():
            if event.name.startswith(MARK) and event.device_type.name == "CPU":
                kernels_by_node[self._names[int(event.name.removeprefix(MARK))]] += self._kernels_in(event.cpu_children)
        return {name: summed(kernels) for name, kernels in kernels_by_node.items()}

    def _kernels_in(self, events: Iterable[Any]) -> Iterator[tuple[str, float]]:
        for event in events:
            if self._sees_kernels:
                yield from ((kernel.name, kernel.duration / 1e6) for kernel in event.kernels)
            elif event.self_cpu_time_total > 0:
                yield event.name, event.self_cpu_time_total / 1e6
            yield from self._kernels_in(event.cpu_children)


def summed(names_and_seconds: Iterable[tuple[str, float]]) -> tuple[Kernel, ...]:
    """Return one Kernel for each name, longest first."""
    kernels = [Kernel(name, len(seconds), sum(seconds)) for name, seconds in grouped(names_and_seconds).items()]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.seconds))

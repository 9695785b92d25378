"""Record every allocation of a run with ``torch.profiler``, and the operator that made it.

A workspace is memory that is allocated and freed within one call of an operator with its own kernel. Nothing outside the kernel
sees it. Operators that only call other operators (``aten::linear``, ``aten::lstm``) have no workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

FACTORIES = frozenset(
    f"aten::{name}" for name in "empty empty_strided empty_like empty_permuted resize_ new_empty".split()
)


class Allocated(NamedTuple):
    """The peak of a run in bytes, with workspaces and without, and the operator whose workspace was live at the peak."""

    peak: int
    held: int
    workspace_of: str

    @property
    def workspace(self) -> int:
        """The bytes that workspaces add to the peak."""
        return self.peak - self.held


class Event(NamedTuple):
    """An allocation of ``nbytes`` at an address; a free if negative. ``kernels`` are the enclosing operator calls, outermost first."""

    address: int
    nbytes: int
    kernels: tuple[int, ...]
    operator: str = ""


def allocated(run: Callable[[], Any], before: int = 0) -> Allocated:
    """Return the peaks of a single-threaded run on the CPU; ``before`` is the number of bytes live before it."""
    return account(events_of(run), before)


def events_of(run: Callable[[], Any], device: str = "cpu") -> list[Event]:
    """Return the allocations and frees of a run on one type of device, in order of time.

    The order cannot be taken from one thread: on an accelerator the backward pass runs in its own thread. The host does the
    allocating, so the device's activity is not recorded.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run()
    timed: list[tuple[int, Event]] = []
    for root in profiler.profiler.kineto_results.experimental_event_tree():
        timed += _events(root, device, ())
    timed.sort(key=lambda entry: entry[0])
    return [event for _, event in timed]


def account(events: list[Event], before: int = 0) -> Allocated:
    """Return the peaks of a sequence of allocations and frees."""
    workspaces = workspaces_in(events)
    live = held = peak = held_peak = before
    operator = ""
    for number, event in enumerate(events):
        live += event.nbytes
        held += 0 if number in workspaces else event.nbytes
        if live > peak:
            peak, operator = live, event.operator if number in workspaces else ""
        held_peak = max(held_peak, held)
    return Allocated(peak, held_peak, operator)


def workspaces_in(events: list[Event]) -> set[int]:
    """Return the indices of the events that allocate or free workspaces."""
    workspaces, open_at = set[int](), dict[int, int]()
    for number, event in enumerate(events):
        if event.nbytes > 0:
            open_at[event.address] = number
        elif event.address in open_at:
            made = open_at.pop(event.address)
            if set(events[made].kernels) & set(event.kernels):
                workspaces |= {made, number}
    return workspaces


def _events(node: Any, device: str, kernels: tuple[int, ...], operator: str = "") -> Iterator[tuple[int, Event]]:
    """Yield the allocations and frees below a node of the profiler's tree, each with its time."""
    fields = node.extra_fields
    if hasattr(fields, "alloc_size"):
        if fields.alloc_size and fields.device.type == device:
            yield node.start_time_ns, Event(fields.ptr, fields.alloc_size, kernels, operator)
        return
    name = node.name
    if (
        "::" in name
        and name not in FACTORIES | _composites(device.upper())
        and not name.startswith(("autograd::", "torch::autograd::"))
    ):
        kernels, operator = (*kernels, node.start_time_ns), operator or name
    for child in node.children:
        yield from _events(child, device, kernels, operator)


@cache
def _composites(key: str) -> frozenset[str]:
    """Return the composite operators that have no kernel for a dispatch key in any overload."""
    composite, kernels = (
        {name.partition(".")[0] for name in torch._C._dispatch_get_registrations_for_dispatch_key(each)}
        for each in ("CompositeImplicitAutograd", key)
    )
    return frozenset(composite - kernels)

"""The CPU allocator's own account of a run, as ``torch.profiler`` gives it: every allocation, in the operator that made it.

A workspace is what is allocated and freed within one call of an operator that has a kernel of its own: nobody outside the
kernel ever sees it. Operators that torch writes as compositions of others (``aten::linear``, ``aten::lstm``) have none.
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
    """The peak of a run, the same without workspaces, in bytes; and the operator in whose workspace most was live."""

    peak: int
    held: int
    workspace_of: str

    @property
    def workspace(self) -> int:
        """What workspaces add to the peak."""
        return self.peak - self.held


class Event(NamedTuple):
    """A change of ``nbytes`` at an address, within these calls of operators that have kernels, the outermost first."""

    address: int
    nbytes: int
    kernels: tuple[int, ...]
    operator: str = ""


def allocated(run: Callable[[], Any], before: int = 0) -> Allocated:
    """What the allocator does in a run, of one thread, before which so many bytes are live."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    return account([event for root in roots for event in _events(root, ())], before)


def account(events: list[Event], before: int = 0) -> Allocated:
    """The peaks of a sequence of allocations and frees."""
    workspaces, open_at = set[int](), dict[int, int]()
    for number, event in enumerate(events):
        if event.nbytes > 0:
            open_at[event.address] = number
        elif event.address in open_at:
            made = open_at.pop(event.address)
            if set(events[made].kernels) & set(event.kernels):
                workspaces |= {made, number}
    live = held = peak = held_peak = before
    operator = ""
    for number, event in enumerate(events):
        live += event.nbytes
        held += 0 if number in workspaces else event.nbytes
        if live > peak:
            peak, operator = live, event.operator if number in workspaces else ""
        held_peak = max(held_peak, held)
    return Allocated(peak, held_peak, operator)


def _events(node: Any, kernels: tuple[int, ...], operator: str = "") -> Iterator[Event]:
    """The allocations below a node of the profiler's tree, in order."""
    fields = node.extra_fields
    if hasattr(fields, "alloc_size"):
        if fields.alloc_size:
            yield Event(fields.ptr, fields.alloc_size, kernels, operator)
        return
    name = node.name
    if (
        "::" in name
        and name not in FACTORIES | _composites()
        and not name.startswith(("autograd::", "torch::autograd::"))
    ):
        kernels, operator = (*kernels, node.start_time_ns), operator or name
    for child in node.children:
        yield from _events(child, kernels, operator)


@cache
def _composites() -> frozenset[str]:
    """The operators that are compositions of others, in all their overloads."""
    composite, kernels = (
        {name.partition(".")[0] for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)}
        for key in ("CompositeImplicitAutograd", "CPU")
    )
    return frozenset(composite - kernels)

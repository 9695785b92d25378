"""Describe what a device's memory is used for: the live tensors, and all other memory that the device's allocator reports."""

from __future__ import annotations

from collections.abc import Sequence

from ..units import size
from .accelerator import Accelerator
from .history import CATEGORIES, LiveTensor

SHOWN = 3
"""The number of tensors made by the run that are named, largest first."""
GIVEN = "params", "buffers", "inputs", "optimizer"
"""The categories of tensors that existed before the run."""


def memory_text(accelerator: Accelerator, live: Sequence[LiveTensor], is_observed: bool = True, before: int = 0) -> str:
    """Describe what a device's memory is used for: the live tensors by category, and the largest tensors that the run made.

    ``before`` is the number of bytes allocated before the run. Bytes that were allocated before the run but are not in live tensors belong
    to the rest of the program. "other" is all memory that the allocator reports besides live tensors, including the bytes of the rest of
    the program.
    """
    sums = {category: sum(tensor.bytes for tensor in live if tensor.category == category) for category in CATEGORIES}
    other = accelerator.live - sum(sums.values())
    parts = [f"{category} {size(nbytes)}" for category, nbytes in sums.items() if nbytes]
    if other > 0:
        # If the run is not observed, activations cannot be distinguished from memory of the kernels and the program.
        parts.append(f"{'other' if is_observed else 'activations and other'} {size(other)}")
    text = f"{accelerator.held}: {' + '.join(parts) or 'nothing known'}"
    foreign = min(other, before - sum(tensor.bytes for tensor in live if tensor.category in GIVEN))
    if foreign > 0:
        text += f", of which {size(foreign)} were allocated before fxflops ran"
    made_by_run = [tensor for tensor in live if tensor.category not in GIVEN][:SHOWN]
    if made_by_run:
        text += f"\n  largest made by the run: {', '.join(map(_described, made_by_run))}"
    return text


def _described(tensor: LiveTensor) -> str:
    maker = f" by {tensor.op}" if tensor.op else ""
    place = f" in {tensor.path!r}" if tensor.path else ""
    return f"{tensor.category} {tensor.spec!r} {size(tensor.bytes)}{maker}{place}"

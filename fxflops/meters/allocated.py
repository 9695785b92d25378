"""What holds a device's memory, in words: the live tensors, and the rest that its allocator knows of."""

from __future__ import annotations

from collections.abc import Sequence

from ..units import size
from .accelerator import Accelerator
from .history import CATEGORIES, LiveTensor

SHOWN = 3
"""So many of the largest tensors that the run made are named."""
GIVEN = "params", "buffers", "inputs", "optimizer"
"""The categories of tensors that were there before the run."""


def memory_text(accelerator: Accelerator, live: Sequence[LiveTensor], is_observed: bool = True, before: int = 0) -> str:
    """Return in words what holds the memory of a device: the live tensors by category, and the largest that the run made.

    ``before`` are the bytes that were allocated before the run. Those that are not among the live tensors belong to the rest
    of the program; whatever else the allocator has is "other", together with these.
    """
    sums = {category: sum(tensor.bytes for tensor in live if tensor.category == category) for category in CATEGORIES}
    other = accelerator.live - sum(sums.values())
    parts = [f"{category} {size(nbytes)}" for category, nbytes in sums.items() if nbytes]
    if other > 0:
        # What is not observed cannot be told apart from what the kernels and the program hold.
        parts.append(f"{'other' if is_observed else 'activations and other'} {size(other)}")
    text = f"{accelerator.held}: {' + '.join(parts) or 'nothing known'}"
    foreign = min(other, before - sum(tensor.bytes for tensor in live if tensor.category in GIVEN))
    if foreign > 0:
        text += f", of which {size(foreign)} were there before fxflops ran"
    made = [tensor for tensor in live if tensor.category not in GIVEN][:SHOWN]
    if made:
        text += f"\n  largest of those that the run made: {', '.join(map(_described, made))}"
    return text


def _described(tensor: LiveTensor) -> str:
    maker = f" by {tensor.op}" if tensor.op else ""
    place = f" in {tensor.path!r}" if tensor.path else ""
    return f"{tensor.category} {tensor.spec!r} {size(tensor.bytes)}{maker}{place}"

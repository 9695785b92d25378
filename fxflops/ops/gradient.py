"""Gradients of what moves values: they go back to where they came from, and add up where several come from one place.

A backward operator is counted by the textbook formula of its gradient, each operation once, given what the forward
saved: https://github.com/pytorch/pytorch/blob/main/tools/autograd/derivatives.yaml tells what calls it. What a kernel
computes again, to save memory, is not counted. Other families have files of their own, gradient_*.py.
"""

from __future__ import annotations

from typing import Any

from ..records import Cost, Spec
from ._registry import formula, zero
from ._spellings import named
from .elementwise import pointwise

for _name in ("select", "slice", "diagonal", "masked_scatter", "_nested_select", "_nested_sum"):
    zero("move", *named(f"{_name}_backward"), op=f"{_name.lstrip('_')}_backward")
zero("query", "aten::get_gradients", op="get_gradients")

for _name in ("standard_gamma", "dirichlet"):  # special functions of the sample and of what it is drawn by
    formula(*named(f"_{_name}_grad"), op=f"{_name}_backward")(pointwise)


@formula(*named("unfold_backward"), op="unfold_backward")
@formula(
    *named("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
    *named("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"),
    op="pad_backward",
)
def added_back(grad_output: Spec, *, out: Spec) -> Cost:
    """grad[n] -> out[m]: n - m adds: each element of grad to the one it was copied from, the first on each is none."""
    return Cost(adds=max(grad_output.numel() - out.numel(), 0))


@formula(*named("_segment_reduce_backward"))
def segment_reduce_backward(grad: Spec, output: Spec, data: Spec, reduce: str, *, out: Any) -> Cost:
    """grad[s, *], y[s, *], x[n, *] -> out[n, *]: sum: nothing; mean: 1 divide per element of grad.

    Maximum and minimum: 1 compare of each x with its y, and grad divided among equals; product: grad * y / x.
    """
    if reduce == "prod":
        return Cost(muls=grad.numel(), others=data.numel())
    compared = data.numel() if reduce in ("max", "min") else 0
    return Cost(others=compared + (0 if reduce == "sum" else grad.numel()))

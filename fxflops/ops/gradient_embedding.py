"""Gradients of embeddings: each row of the gradient is added to the row that was looked up."""

from __future__ import annotations

from ..records import Cost, Spec
from ._cost import contraction
from ._registry import formula
from ._spellings import named
from .embedding import MODES


@formula(*named("embedding_dense_backward"))
def embedding_backward(
    grad_output: Spec,
    indices: Spec,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    *,
    out: Spec,
) -> Cost:
    """grad[n, d], indices[n] -> out[v, d]: 1 add per element looked up, and 1 divide if scaled by its row's frequency."""
    return Cost(adds=grad_output.numel(), others=grad_output.numel() if scale_grad_by_freq else 0)


@formula(*named("_embedding_bag_dense_backward"), op="embedding_bag_backward")
def embedding_bag_dense_backward(
    grad: Spec,
    indices: Spec,
    offset2bag: Spec,
    bag_size: Spec,
    maximum_indices: Spec,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Spec | None,
    *,
    out: Spec,
) -> Cost:
    """grad[bags, d], indices[n] -> out[v, d]: 1 add per element looked up; mean: 1 divide per element of grad; max: 1 add each.

    Sample weights are 1 multiply per element looked up, the frequencies of rows 1 divide.
    """
    picked = grad.numel() if MODES[mode] == "max" else indices.numel() * grad[-1]
    return Cost(
        muls=0 if per_sample_weights is None else picked,
        adds=picked,
        others=(grad.numel() if MODES[mode] == "mean" else 0) + (picked if scale_grad_by_freq else 0),
    )


@formula(*named("_embedding_bag_backward"))
def embedding_bag_backward(
    grad: Spec,
    indices: Spec,
    offsets: Spec,
    offset2bag: Spec,
    bag_size: Spec,
    maximum_indices: Spec,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Spec | None,
    *,
    out: Spec,
) -> Cost:
    """grad[bags, d], indices[n] -> out[v, d]: as _embedding_bag_dense_backward; a sparse gradient adds nothing up."""
    given = offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights
    cost = embedding_bag_dense_backward(grad, indices, *given, out=out)
    return cost._replace(adds=0) if sparse else cost


@formula(*named("_embedding_bag_per_sample_weights_backward"), op="embedding_bag_backward")
def sample_weights_backward(grad: Spec, weight: Spec, indices: Spec, *, out: Spec) -> Cost:
    """grad[bags, d], weight[v, d], indices[n] -> out[n]: d multiplies and d-1 adds per output."""
    return contraction(weight[-1], out.numel())

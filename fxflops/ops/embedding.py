"""Embeddings: a lookup moves data and computes nothing; a bag sums the rows that it looks up.

In the backward, each row of the gradient is added to the row that was looked up.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ._extend import ANY, Cost, Spec, contraction, first, formula, named, stores, zero
from ._traits import LOOKUPS
from .reduce import norm

MODES = ("sum", "mean", "max")

zero("move", torch.embedding, "aten::embedding", op="embedding")


@formula(nn.Embedding, F.embedding, traits=[LOOKUPS])
def embedding(input: Spec, weight: Spec, *, max_norm: float | None = None, norm_type: float = 2.0, out: Spec) -> Cost:
    """input[*], weight[v, d] -> out[*, d]: nothing; with max_norm, counted like embedding_renorm."""
    return Cost() if max_norm is None else embedding_renorm(weight, input, max_norm, norm_type, out=weight)


@embedding.shape(nn.Embedding, F.embedding, layout=ANY)
def embedding_shape(
    input: Spec, weight: Spec, padding_idx: int | None = None, max_norm: float | None = None
) -> Spec | None:
    """input[*] of integers, weight[v, d] -> out[*, d]."""
    if input.dtype not in (torch.int32, torch.int64) or weight.ndim != 2 or max_norm is not None:
        return None
    if padding_idx is not None and not -weight[0] <= padding_idx < weight[0]:
        return None
    return Spec((*input, weight[1]), weight.dtype)


@embedding.backward(*named("embedding_dense_backward"))
def embedding_backward(grad_output: Spec, *, scale_grad_by_freq: bool, out: Spec) -> Cost:
    """grad[n, d], indices[n] -> out[v, d]: 1 add per element looked up, plus 1 divide if gradients are scaled by the frequency of their row."""
    return Cost(adds=grad_output.numel(), others=grad_output.numel() if scale_grad_by_freq else 0)


@formula(*named("embedding_renorm"))
def embedding_renorm(weight: Spec, indices: Spec, max_norm: float, norm_type: float = 2.0, *, out: Spec) -> Cost:
    """weight[v, d], indices[n] -> weight[v, d]: for each row that is looked up: its norm, 1 compare, 1 divide and d multiplies.

    The count is an upper bound: all rows looked up are assumed to be distinct, and their norms to exceed max_norm.
    """
    rows = Spec((indices.numel(), weight[-1]))
    return norm(rows, norm_type, out=Spec(rows[:1])).plus(Cost(muls=rows.numel(), others=2 * rows[0]))


@formula(nn.EmbeddingBag, F.embedding_bag, traits=[LOOKUPS])
def embedding_bag(
    input: Spec,
    weight: Spec,
    *,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    mode: str = "mean",
    per_sample_weights: Any = None,
    out: Spec,
) -> Cost:
    """input[n], weight[v, d] -> out[bags, d]: n - bags adds (max: compares) per column; mean: 1 divide per output.

    Sample weights take 1 multiply per element looked up. max_norm costs as much as in embedding. All bags are assumed to have elements.
    """
    looked_up = input.numel() * weight[-1]
    joined = max(looked_up - out.numel(), 0)
    cost = Cost(
        muls=looked_up if isinstance(per_sample_weights, Spec) else 0,
        adds=0 if mode == "max" else joined,
        others=(joined if mode == "max" else 0) + (out.numel() if mode == "mean" else 0),
    )
    return cost.plus(embedding(input, weight, max_norm=max_norm, norm_type=norm_type, out=out))


@formula(
    *(torch.embedding_bag, "aten::embedding_bag"),
    *named("_embedding_bag", "_embedding_bag_forward_only"),
    op="embedding_bag",
)
def embedding_bag_native(
    weight: Spec, indices: Spec, *, mode: int = 0, per_sample_weights: Any = None, out: Any
) -> Cost:
    """weight[v, d], indices[n] -> out[bags, d]: counted like embedding_bag."""
    return embedding_bag(indices, weight, mode=MODES[mode], per_sample_weights=per_sample_weights, out=first(out))


@stores("aten::_embedding_bag_forward_only", device="cpu")
def bags_of_cpu(
    weight: Spec,
    indices: Spec,
    offsets: Spec,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Spec | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    needs_grad: bool = False,
) -> tuple[int, ...]:
    """Return the bytes of three results: the bag of each index, the size of each bag, and the index of each maximum.

    In modes other than max, the third result has the sizes of the bags again. The fast path of a sum does not store the bag of each
    index (aten/src/ATen/native/EmbeddingBag.cpp, ``make_offset2bag_out``).
    """
    itemsize: int = offsets.dtype.itemsize
    bags, is_sum = offsets.numel(), MODES[mode] == "sum"
    is_fast = is_sum and padding_idx < 0 and weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
    last = 0 if not include_last_offset or (is_sum and not needs_grad) else 1
    of_index = 0 if is_fast else (indices.numel() + 1) * itemsize
    nbytes: tuple[int, ...] = (
        of_index,
        bags * itemsize,
        (bags - last) * itemsize * (weight[-1] if MODES[mode] == "max" else 1),
    )
    return nbytes


@stores("aten::_embedding_bag", device="cpu")
def bags_of_cpu_with_backward(*args: Any) -> tuple[int, ...]:
    """Return the same bytes as :func:`bags_of_cpu`, for a call that autograd records."""
    nbytes: tuple[int, ...] = bags_of_cpu(*args, needs_grad=True)
    return nbytes


@embedding_bag.backward(*named("_embedding_bag_backward", "_embedding_bag_dense_backward"))
def embedding_bag_backward(
    grad: Spec,
    indices: Spec,
    *,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Spec | None,
    sparse: bool = False,
    out: Spec,
) -> Cost:
    """grad[bags, d], indices[n] -> out[v, d]: 1 add per element looked up (max: per element of grad); mean: 1 divide per element of grad.

    Sample weights take 1 multiply per element looked up, and scaling by a row's frequency takes 1 divide. A sparse gradient needs
    no adds.
    """
    picked = grad.numel() if MODES[mode] == "max" else indices.numel() * grad[-1]
    return Cost(
        muls=0 if per_sample_weights is None else picked,
        adds=0 if sparse else picked,
        others=(grad.numel() if MODES[mode] == "mean" else 0) + (picked if scale_grad_by_freq else 0),
    )


@embedding_bag.backward(*named("_embedding_bag_per_sample_weights_backward"), op="embedding_bag_backward")
def sample_weights_backward(grad: Spec, weight: Spec, indices: Spec, *, out: Spec) -> Cost:
    """grad[bags, d], weight[v, d], indices[n] -> out[n]: d multiplies and d-1 adds per output."""
    return contraction(weight[-1], out.numel())

"""Margin and ranking losses cost the operations in their definition for each element, plus the reduction, as in loss.py.

Where a loss branches on the target, the more expensive branch is counted, plus 1 for the choice.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ._extend import Cost, Spec, formula, named, times, when
from .loss import Reduction, elements_backward, pointwise_loss, reduced_loss
from .reduce import cosine_similarity, pairwise_distance


@formula(nn.SoftMarginLoss, *named("soft_margin_loss"))
def soft_margin_loss(input: Spec, target: Spec, *, reduction: Reduction = "mean", out: Spec) -> Cost:
    """input[*], target[*] -> out[]: log(1 + exp(-y * x)): 5 per element."""
    return pointwise_loss(Cost(muls=1, adds=1, others=3), input, target, reduction)


@soft_margin_loss.backward(*named("soft_margin_loss_backward"))
def soft_margin_loss_backward(*, reduction: int, out: Spec) -> Cost:
    """grad[], x[*], y[*] -> out[*]: -y * z / (z + 1) * grad, z = exp(-y * x): 7 per element."""
    return elements_backward(Cost(muls=3, adds=1, others=3), out, reduction)


@formula(nn.MarginRankingLoss, *named("margin_ranking_loss"))
def margin_ranking_loss(input1: Spec, input2: Spec, target: Spec, *, reduction: Reduction = "mean", out: Spec) -> Cost:
    """x1[*], x2[*], target[*] -> out[]: max(0, -y * (x1 - x2) + margin): 5 per element."""
    pairs = Spec(torch.broadcast_shapes(input1, input2))
    return pointwise_loss(Cost(muls=1, adds=2, others=2), pairs, target, reduction)


@formula(nn.HingeEmbeddingLoss, *named("hinge_embedding_loss"))
def hinge_embedding_loss(input: Spec, target: Spec, *, reduction: Reduction = "mean", out: Spec) -> Cost:
    """input[*], target[*] -> out[]: x or max(0, margin - x): 3 per element."""
    return pointwise_loss(Cost(adds=1, others=2), input, target, reduction)


@formula(nn.CosineEmbeddingLoss, *named("cosine_embedding_loss"))
def cosine_embedding_loss(
    input1: Spec, input2: Spec, target: Spec, *, reduction: Reduction = "mean", out: Spec
) -> Cost:
    """x1[n, d], x2[n, d], target[n] -> out[]: the cost of cosine_similarity, plus 3 per row for 1 - cos or max(0, cos - margin)."""
    similar = cosine_similarity(input1, input2, -1, out=target)
    return similar.plus(pointwise_loss(Cost(adds=1, others=2), target, target, reduction))


@formula(nn.TripletMarginLoss, *named("triplet_margin_loss"))
def triplet_margin_loss(
    anchor: Spec,
    positive: Spec,
    negative: Spec,
    *,
    p: float = 2.0,
    swap: bool = False,
    reduction: Reduction = "mean",
    out: Spec,
) -> Cost:
    """a[n, d], p[n, d], n[n, d] -> out[]: per row, 2 distances, and 3 for max(0, ap - an + margin); swap takes 1 more distance and 1 min."""
    rows = Spec(torch.broadcast_shapes(anchor, positive, negative)[:-1])
    distance = pairwise_distance(anchor, positive, p, out=rows)
    compared = pointwise_loss(Cost(adds=2, others=1 + swap), rows, rows, reduction)
    return times(2 + swap, distance).plus(compared)


@formula(*named("poisson_nll_loss"))
def poisson_nll_loss(
    input: Spec, target: Spec, *, log_input: bool = True, full: bool = False, reduction: Reduction = "mean", out: Spec
) -> Cost:
    """input[*], target[*] -> out[]: per element, 3 for exp(x) - y * x, or 4 for x - y * log(x + eps) without log_input.

    The full loss adds y * log(y) - y + 0.5 * log(2 pi y) where y > 1: 9 more.
    """
    element = Cost(muls=1, adds=1, others=1) if log_input else Cost(muls=1, adds=2, others=1)
    whole = element.plus(when(full, Cost(muls=3, adds=3, others=3)))
    return pointwise_loss(whole, input, target, reduction)


@formula(nn.PoissonNLLLoss, op="poisson_nll_loss")
def poisson_nll_loss_module(module: nn.PoissonNLLLoss, input: Spec, target: Spec, *, out: Spec) -> Cost:
    """input[*], target[*] -> out[]: counted like F.poisson_nll_loss; the module's forward names its input ``log_input``."""
    return poisson_nll_loss(
        input, target, log_input=module.log_input, full=module.full, reduction=module.reduction, out=out
    )


@formula(nn.MultiMarginLoss, *named("multi_margin_loss"))
def multi_margin_loss(
    input: Spec, target: Spec, *, p: float = 1, weight: Spec | None = None, reduction: Reduction = "mean", out: Spec
) -> Cost:
    """input[n, c], target[n] -> out[]: per class other than y, 3 for max(0, margin - x[y] + x), plus 1 for p = 2 and 1 with a weight.

    Each row also costs one sum over the classes and 1 divide.
    """
    c, rows = input[-1] if input.ndim else 1, math.prod(input[:-1])
    each = Cost(muls=(p == 2) + (weight is not None), adds=2, others=1)
    row = times(c - 1, each).plus(Cost(adds=max(c - 2, 0), others=1))
    return times(rows, row).plus(reduced_loss(rows, reduction))


@multi_margin_loss.backward(*named("multi_margin_loss_backward"))
def multi_margin_loss_backward(*, p: float, weight: Spec | None = None, reduction: int = 1, out: Spec) -> Cost:
    """grad[], x[n, c], target[n] -> out[n, c]: per class other than y, 4: z = margin - x[y] + x; if z > 0, grad is added to the class and subtracted from y.

    For p = 2, grad is multiplied by 2 * z. A weight takes 1 multiply. The gradient of each row is divided by c.
    """
    c, rows = out[-1] if out.ndim else 1, math.prod(out[:-1])
    each = Cost(muls=2 * (p == 2) + (weight is not None), adds=3, others=1)
    return elements_backward(times(c - 1, each).plus(Cost(others=1)), Spec((rows,)), reduction)


@formula(nn.MultiLabelMarginLoss, *named("multilabel_margin_loss", "multilabel_margin_loss_forward"))
def multilabel_margin_loss(input: Spec, target: Spec, *, reduction: Reduction = "mean", out: Any) -> Cost:
    """input[n, c], target[n, c] -> out[]: 3 for max(0, 1 - (x[y] - x)) per pair of a target and another class; per row, the sum of the pairs and 1 divide.

    The count is an upper bound: half of the classes are assumed to be targets, which gives c^2/4 pairs per row.
    """
    c, rows = input[-1] if input.ndim else 1, math.prod(input[:-1])
    pairs = c * c // 4
    row = Cost(adds=2 * pairs + max(pairs - 1, 0), others=pairs + 1)
    return times(rows, row).plus(reduced_loss(rows, reduction))


@multilabel_margin_loss.backward(*named("multilabel_margin_loss_backward"))
def multilabel_margin_loss_backward(*, reduction: int, out: Spec) -> Cost:
    """grad[], x[n, c], target[n, c] -> out[n, c]: per pair of a target and another class, 5: z = 1 - (x[y] - x); if z > 0, grad is added to both classes.

    The count is an upper bound with c^2/4 pairs per row, like in the forward. The gradient of each row is divided by c.
    """
    c, rows = out[-1] if out.ndim else 1, math.prod(out[:-1])
    return elements_backward(times(c * c // 4, Cost(adds=4, others=1)).plus(Cost(others=1)), Spec((rows,)), reduction)

"""Margin and ranking losses: their definitions on counting numbers, for the module, the function and aten; and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.ops.test_loss import CLASSES, DOUBLES, given, shared
from tests.ops.textbook import above, agrees, computes, pick, tally_of
from tests.oracle import Number, cost_of, numbers, tallying

aten = torch.ops.aten
N, C = 4, 3
X, SIGN = torch.rand(N, C), torch.ones(N, C)
ROWS = torch.ones(N)
other = np.frompyfunc(Number._other, 1, 1)
REDUCTIONS = [("none", 0), ("mean", 1), ("sum", 2)]


def soft_margin() -> Any:
    return np.log(1 + np.exp(-numbers(N, C) * numbers(N, C)))


def margin_ranking() -> Any:
    return other(-numbers(N, C) * (numbers(N, C) - numbers(N, C)) + 1)


def hinge_embedding() -> Any:
    """max(0, margin - x), selected by the target."""
    return other(other(1 - numbers(N, C)))


def cosine_embedding() -> Any:
    a, b = numbers(N, C), numbers(N, C)
    square = (a * a).sum(1), (b * b).sum(1)
    length = other(np.sqrt(square[0]) * np.sqrt(square[1]))
    return other(other((a * b).sum(1) / length - 0.5))


def distance(a: Any, b: Any) -> Any:
    d = a - b + 1e-6
    return np.sqrt((d * d).sum(1))


def triplet_margin(swap: bool = False) -> Any:
    a, p, n = numbers(N, C), numbers(N, C), numbers(N, C)
    negative = distance(a, n)
    if swap:
        distance(p, n)
        negative = other(negative)
    return other(distance(a, p) - negative + 1)


def multi_margin(square: bool = False, weight: bool = False) -> Any:
    rows = numbers(N)
    for row in range(N):
        losses = other(1 - numbers(C - 1) + numbers(C - 1))
        losses = losses * losses if square else losses
        losses = losses * numbers(C - 1) if weight else losses
        rows[row] = losses.sum() / C
    return rows


def multilabel_margin() -> Any:
    """With 3 classes, 1 target and 2 others give the most pairs."""
    rows = numbers(N)
    for row in range(N):
        rows[row] = other(1 - (numbers(2) - numbers(2))).sum() / C
    return rows


LOSSES: list[tuple[Any, Any, Any, Any, Any]] = [
    (nn.SoftMarginLoss, F.soft_margin_loss, aten.soft_margin_loss.default, (X, SIGN), soft_margin),
    (nn.MarginRankingLoss, F.margin_ranking_loss, None, (X, X, SIGN), margin_ranking),
    (nn.HingeEmbeddingLoss, F.hinge_embedding_loss, None, (X, SIGN), hinge_embedding),
    (nn.CosineEmbeddingLoss, F.cosine_embedding_loss, None, (X, X, ROWS), cosine_embedding),
    (nn.TripletMarginLoss, F.triplet_margin_loss, None, (X, X, X), triplet_margin),
    (nn.MultiMarginLoss, F.multi_margin_loss, None, (X, ROWS.long()), multi_margin),
    (nn.MultiLabelMarginLoss, F.multilabel_margin_loss, None, (X, SIGN.long()), multilabel_margin),
]


@pytest.mark.parametrize(("cls", "function", "overload", "args", "definition"), LOSSES)
@pytest.mark.parametrize(("reduction", "number"), REDUCTIONS)
def test_each_element_then_the_reduction(
    cls: Any, function: Any, overload: Any, args: Any, definition: Any, reduction: str, number: int
) -> None:
    with tallying() as tally:
        losses = definition()
        total = losses.sum() if reduction != "none" else losses
        if reduction == "mean":
            total / 2
    assert tally == cost_of(cls(reduction=reduction), *args)
    assert tally == cost_of(function, *args, reduction=reduction)
    native = getattr(torch, function.__name__, None)
    if native is not None:
        assert tally == cost_of(native, *args, reduction=number)
    if overload is not None:
        assert tally == cost_of(overload, *args, number)


def test_triplets_with_swap() -> None:
    with tallying() as tally:
        triplet_margin(swap=True)
    assert tally == cost_of(torch.triplet_margin_loss, X, X, X, 1.0, 2.0, 1e-6, True, 0)
    assert tally == cost_of(nn.TripletMarginLoss(swap=True, reduction="none"), X, X, X)
    row, rows = X[0], X[:1]
    assert cost_of(F.triplet_margin_loss, row, row, row) == cost_of(F.triplet_margin_loss, rows, rows, rows)


def test_multi_margin_with_squares_and_weights() -> None:
    with tallying() as tally:
        multi_margin(square=True, weight=True)
    target = ROWS.long()
    assert tally == cost_of(F.multi_margin_loss, X, target, 2, 1.0, torch.ones(C), reduction="none")
    assert tally == cost_of(aten.multi_margin_loss.default, X, target, 2, 1.0, torch.ones(C), 0)
    assert tally == cost_of(nn.MultiMarginLoss(2, weight=torch.ones(C), reduction="none"), X, target)


def test_multilabel_margin_forward() -> None:
    with tallying() as tally:
        multilabel_margin()
    assert tally == cost_of(aten.multilabel_margin_loss_forward.default, X, SIGN.long(), 0)


@pytest.mark.parametrize("log_input", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_poisson_nll(log_input: bool, full: bool) -> None:
    with tallying() as tally:
        x, y = numbers(N, C), numbers(N, C)
        loss = np.exp(x) - y * x if log_input else x - y * np.log(x + 1e-8)
        if full:
            loss = loss + other(y * np.log(y) - y + 0.5 * np.log(6.28 * y))
        loss.sum() / (N * C)
    assert tally == cost_of(F.poisson_nll_loss, X, X, log_input, full)
    assert tally == cost_of(nn.PoissonNLLLoss(log_input, full), X, X)
    assert tally == cost_of(torch.poisson_nll_loss, X, X, log_input, full, 1e-8, 1)


def test_multi_margin_of_one_score() -> None:
    one = cost_of(F.multi_margin_loss, X[:1, :1], torch.zeros(1, dtype=torch.long))
    assert cost_of(F.multi_margin_loss, X[0, 0], torch.tensor(0)) == one


INPUT, TARGET, WEIGHT = DOUBLES


def soft_margin_gradient(g, x, y, reduction):
    opposite = -y
    z = np.exp(opposite * x)
    return opposite * z / (z + 1) * shared(g, reduction, x.size)


@pytest.mark.parametrize("reduction", range(3))
def test_the_gradient_of_soft_margin_loss(reduction: int) -> None:
    signs = TARGET.round() * 2 - 1
    agrees(aten.soft_margin_loss_backward.default, soft_margin_gradient, given(reduction), INPUT, signs, reduction)


@pytest.mark.parametrize("reduction", range(3))
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weight", [None, WEIGHT[0]])
def test_the_gradient_of_multi_margin_loss(weight: Any, p: int, reduction: int) -> None:
    def multi_margin(g, x, target, p, margin, weight, reduction):
        out = np.full(x.shape, 0.0, dtype=object)
        each = shared(g, reduction, len(x))
        for row, label in enumerate(target):
            share = (each if reduction else each[row]) / x.shape[1]
            for other in range(x.shape[1]):
                if other != label:
                    z = margin - x[row, label] + x[row, other]
                    part = share if p == 1 else 2 * z * share
                    part = part if weight is None else part * weight[label]
                    out[row, other] = pick(above(z, 0), part, 0)
                    out[row, label] = out[row, label] - out[row, other]
        return out

    args = INPUT, CLASSES, p, 0.5, weight, reduction
    agrees(aten.multi_margin_loss_backward.default, multi_margin, given(reduction, (3,)), *args)


@pytest.mark.parametrize("reduction", range(3))
def test_the_gradient_of_multilabel_margin_loss(reduction: int) -> None:
    """Two targets of four classes in each row, as the formula assumes."""

    def multilabel_margin(g, x, target, reduction, is_target):
        out = np.full(x.shape, 0.0, dtype=object)
        each = shared(g, reduction, len(x))
        for row, labels in enumerate(target):
            share = (each if reduction else each[row]) / x.shape[1]
            for label in labels[:2]:
                for other in set(range(4)) - set(labels[:2]):
                    part = pick(above(1 - (x[row, label] - x[row, other]), 0), share, 0)
                    out[row, label] = out[row, label] - part
                    out[row, other] = out[row, other] + part
        return out

    target = torch.tensor([[1, 3, -1, 0], [0, 2, -1, 0], [2, 1, -1, 0]])
    _, is_target = aten.multilabel_margin_loss_forward(INPUT, target, reduction)
    args = INPUT, target, reduction, is_target.long()
    real = INPUT, target, reduction, is_target
    g = given(reduction, (3,))
    computes(multilabel_margin, aten.multilabel_margin_loss_backward(g, *real), g, *args)
    assert tally_of(multilabel_margin, g, *args) == cost_of(aten.multilabel_margin_loss_backward.default, g, *real)

"""Gradients of losses, written out, against torch's values and on arrays of counting numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fxflops.records import Cost
from tests.ops.textbook import above, agrees, between, computes, is_counting, pick, tally_of
from tests.oracle import cost_of

aten = torch.ops.aten
X, Y = torch.rand(3, 4, dtype=torch.double), torch.rand(3, 4, dtype=torch.double)
W = torch.rand(3, 4, dtype=torch.double)
CLASSES = torch.tensor([1, 3, 0])
SIGNS = Y.round() * 2 - 1
REDUCTIONS = [0, 1, 2]


def shared(g, reduction, n):
    """The gradient of each element; a mean's is divided once."""
    return g / n if reduction == 1 else g


def of(reduction: int, shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    return torch.randn(shape if reduction == 0 else (), dtype=torch.double)


def mse(g, x, y, reduction):
    return 2 * (x - y) * shared(g, reduction, x.size)


def smooth_l1(g, x, y, reduction, beta):
    slope = (x - y) / beta
    return between(slope, -1, 1, slope, lambda: np.clip(slope, -1, 1)) * shared(g, reduction, x.size)


def huber(g, x, y, reduction, delta):
    slope = x - y
    return between(slope, -delta, delta, slope, lambda: np.clip(slope, -delta, delta)) * shared(g, reduction, x.size)


def binary_cross_entropy(g, x, y, weight, reduction):
    slope = (x - y) / (x * (1 - x)) * shared(g, reduction, x.size)
    return slope if weight is None else slope * weight


def soft_margin(g, x, y, reduction):
    opposite = -y
    z = np.exp(opposite * x)
    return opposite * z / (z + 1) * shared(g, reduction, x.size)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("name", "textbook", "args", "settings"),
    [
        ("mse_loss_backward", mse, (X, Y), ()),
        ("smooth_l1_loss_backward", smooth_l1, (X, Y), (0.3,)),
        ("huber_loss_backward", huber, (X, Y), (0.3,)),
        ("binary_cross_entropy_backward", binary_cross_entropy, (X, Y, W), ()),
        ("binary_cross_entropy_backward", binary_cross_entropy, (X, Y, None), ()),
        ("soft_margin_loss_backward", soft_margin, (X, SIGNS), ()),
    ],
)
def test_of_elements(name: str, textbook: Any, args: Any, settings: Any, reduction: int) -> None:
    agrees(getattr(aten, name).default, textbook, of(reduction), *args, reduction, *settings)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight", [None, W[0]])
def test_nll_loss(weight: Any, reduction: int) -> None:
    def nll(g, x, target, weight, reduction, ignored, total):
        out = np.full(x.shape, 0.0, dtype=object)
        each = shared(g, reduction, total) if reduction == 1 else g
        for row, label in enumerate(target):
            picked = -(each if reduction else each[row])
            out[row, label] = picked if weight is None else picked * weight[label]
        return out

    total = torch.tensor(3.0, dtype=torch.double) if weight is None else weight[CLASSES].sum()
    args = X, CLASSES, weight, reduction, -100, total
    agrees(aten.nll_loss_backward.default, nll, of(reduction, (3,)), *args)


def test_nll_loss_of_pixels() -> None:
    """2x5x5 targets, and 1 divide for the mean."""
    x, target = torch.randn(2, 3, 5, 5), torch.zeros(2, 5, 5, dtype=torch.long)
    args = torch.ones(()), x, target, None, 1, -100, torch.tensor(50.0)
    assert cost_of(aten.nll_loss2d_backward.default, *args) == Cost(others=50 + 1)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weight", [None, W[0]])
def test_multi_margin_loss(weight: Any, p: int, reduction: int) -> None:
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

    args = X, CLASSES, p, 0.5, weight, reduction
    agrees(aten.multi_margin_loss_backward.default, multi_margin, of(reduction, (3,)), *args)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin_loss(reduction: int) -> None:
    """Two targets of four classes in each row, as the count supposes."""

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
    _, is_target = aten.multilabel_margin_loss_forward(X, target, reduction)
    args = X, target, reduction, is_target.long()
    real = X, target, reduction, is_target
    g = of(reduction, (3,))
    computes(multilabel_margin, aten.multilabel_margin_loss_backward(g, *real), g, *args)
    assert tally_of(multilabel_margin, g, *args) == cost_of(aten.multilabel_margin_loss_backward.default, g, *real)


def log_sum(*terms: Any) -> Any:
    """The logarithm of the sum of exponentials, relative to the largest."""
    if not is_counting(terms[0]):
        return np.logaddexp.reduce(terms)
    largest, total = terms[0], (terms[0] - terms[0]).exp()
    for term in terms[1:]:
        largest, total = largest.maximum(term), total + (term - largest).exp()
    return total.log() + largest


def ctc(g, log_probs, targets, steps, labels, loss, log_alpha, blank):
    """From the end, as the forward from the beginning; then what goes through each state, gathered by its class."""
    times, rows, classes = log_probs.shape
    never = log_probs.flat[0] if is_counting(log_probs) else -1e30
    out = np.full(log_probs.shape, 0.0, dtype=object)
    for n in range(rows):
        path = [label for target in targets[n] for label in (blank, target)] + [blank]
        beta = [never] * (len(path) - 1) + [0.0 if never == -1e30 else never]
        for t in reversed(range(times)):
            skips = [s + 2 < len(path) and path[s + 2] not in (blank, path[s]) for s in range(len(path))]
            later = [*beta, never, never]
            beta = [
                log_sum(later[s], later[s + 1], later[s + 2] if skips[s] else never) + log_probs[t, n, path[s]]
                for s in range(len(path))
            ]
            through = [never] * classes
            for s, label in enumerate(path):
                through[label] = log_sum(through[label], log_alpha[n, t, s] + beta[s])
            for c in range(classes):
                log_prob = log_probs[t, n, c]
                out[t, n, c] = (np.exp(log_prob) - np.exp(through[c] + loss[n] - log_prob)) * g[n]
    return out


def test_ctc_loss() -> None:
    log_probs = torch.randn(6, 2, 5, dtype=torch.double).log_softmax(2)
    targets, lengths = torch.tensor([[1, 3], [2, 2]]), ([6, 6], [2, 2])
    loss, log_alpha = aten._ctc_loss(log_probs, targets, *lengths)
    g = torch.randn(2, dtype=torch.double)
    agrees(aten._ctc_loss_backward.default, ctc, g, log_probs, targets, *lengths, loss, log_alpha, 0)

"""Losses and their gradients against their definitions on arrays of counting numbers. The gradients also give torch's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops.records import Cost
from tests.ops.textbook import agrees, between
from tests.oracle import Number, cost_of, numbers, tallying

aten = torch.ops.aten
compare = np.frompyfunc(Number.compare, 1, 1)
SHAPE = (4, 3)
X, Y, W = torch.full(SHAPE, 0.5), torch.full(SHAPE, 0.5), torch.ones(SHAPE)


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def square(d):
    return d * d


def smooth(d):
    compare(abs(d))
    return 0.5 * d * d / 1.0


def huber(d):
    compare(abs(d))
    return 0.5 * d * d


def cross_entropy(x, y):
    return -(y * np.log(x) + (1 - y) * np.log(1 - x))


def with_logits(x, y):
    return compare(x) - x * y + np.log(1 + np.exp(-abs(x)))


LOSSES = [
    (nn.MSELoss, F.mse_loss, aten.mse_loss.default, lambda x, y: square(x - y)),
    (nn.L1Loss, F.l1_loss, None, lambda x, y: abs(x - y)),
    (nn.SmoothL1Loss, F.smooth_l1_loss, aten.smooth_l1_loss.default, lambda x, y: smooth(x - y)),
    (nn.HuberLoss, F.huber_loss, aten.huber_loss.default, lambda x, y: huber(x - y)),
    (nn.KLDivLoss, F.kl_div, aten.kl_div.default, lambda x, y: y * (np.log(y) - x)),
    (nn.BCELoss, F.binary_cross_entropy, None, cross_entropy),
    (nn.BCEWithLogitsLoss, F.binary_cross_entropy_with_logits, None, with_logits),
]


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize(("cls", "function", "overload", "definition"), LOSSES)
@pytest.mark.parametrize(("reduction", "number"), [("none", 0), ("mean", 1), ("sum", 2)])
def test_each_element_then_the_reduction(cls, function, overload, definition, reduction, number):
    with tallying() as tally:
        losses = definition(numbers(*SHAPE), numbers(*SHAPE))
        if reduction != "none":
            total = losses.sum()
        if reduction == "mean":
            total / losses.size
    assert tally == cost_of(cls(reduction=reduction), X, Y) == cost_of(function, X, Y, reduction=reduction)
    if overload is not None:
        assert tally == cost_of(overload, X, Y, number)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_target_broadcasts():
    with tallying() as tally:
        losses = square(numbers(4, 3) - numbers(3))
        losses.sum() / losses.size
    assert tally == cost_of(F.mse_loss, X, Y[0])


def test_weights():
    with tallying() as tally:
        losses = cross_entropy(numbers(*SHAPE), numbers(*SHAPE)) * numbers(*SHAPE)
        losses.sum() / losses.size
    assert tally == cost_of(F.binary_cross_entropy, X, Y, W) == cost_of(nn.BCELoss(W), X, Y)
    assert tally == cost_of(aten.binary_cross_entropy.default, X, Y, W, 1)
    with tallying() as tally:
        losses = with_logits(numbers(*SHAPE), numbers(*SHAPE)) * numbers(*SHAPE)
        losses.sum() / losses.size
    assert tally == cost_of(F.binary_cross_entropy_with_logits, X, Y, W)
    assert tally == cost_of(torch.binary_cross_entropy_with_logits, X, Y, W)


def test_weight_of_the_positives():
    """The last terms are multiplied by (1 + (p-1) * y): 2 more adds and 2 more multiplies for each of 4*3 elements."""
    plain = cost_of(F.binary_cross_entropy_with_logits, X, Y)
    weighted = cost_of(F.binary_cross_entropy_with_logits, X, Y, pos_weight=W)
    assert (weighted.muls - plain.muls, weighted.adds - plain.adds) == (4 * 3 * 2, 4 * 3 * 2)
    assert weighted == cost_of(nn.BCEWithLogitsLoss(pos_weight=W), X, Y)
    assert weighted == cost_of(torch.binary_cross_entropy_with_logits, X, Y, None, W, 1)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("weighted", [False, True])
def test_nll_of_picked_classes(weighted):
    x, y, weight = torch.zeros(4, 3, 5), torch.zeros(4, 5, dtype=torch.int64), torch.ones(3) if weighted else None
    with tallying() as tally:
        losses = -numbers(4, 5)
        if weighted:
            losses = losses * numbers(4, 5)
            losses.sum() / numbers(4, 5).sum()
        else:
            losses.sum() / losses.size
    assert tally == cost_of(F.nll_loss, x, y, weight) == cost_of(nn.NLLLoss(weight), x, y)
    assert tally == cost_of(aten.nll_loss_nd.default, x, y, weight, 1)
    with tallying() as both:
        log_softmax(numbers(4, 3, 5))
    both.muls, both.adds, both.others = both.muls + tally.muls, both.adds + tally.adds, both.others + tally.others
    assert both == cost_of(F.cross_entropy, x, y, weight) == cost_of(nn.CrossEntropyLoss(weight), x, y)
    assert both == cost_of(aten.cross_entropy_loss.default, x, y, weight, 1)


def test_cross_entropy_with_probabilities():
    with tallying() as tally:
        losses = -(log_softmax(numbers(*SHAPE)) * numbers(*SHAPE)).sum(axis=1)
        losses.sum() / losses.size
    assert tally == cost_of(F.cross_entropy, X, Y) == cost_of(nn.CrossEntropyLoss(), X, Y)
    with tallying() as tally:
        target = numbers(*SHAPE) * (1 - 0.1) + 0.1 / 3
        losses = -(log_softmax(numbers(*SHAPE)) * target).sum(axis=1)
        losses.sum() / losses.size
    assert tally == cost_of(F.cross_entropy, X, Y, label_smoothing=0.1)


def test_cross_entropy_with_smoothed_labels():
    with tallying() as tally:
        logs = log_softmax(numbers(*SHAPE))
        losses = (1 - 0.1) * -numbers(4) + 0.1 / 3 * -logs.sum(axis=1)
        losses.sum() / losses.size
    target = torch.zeros(4, dtype=torch.int64)
    assert tally == cost_of(F.cross_entropy, X, target, label_smoothing=0.1)
    assert tally == cost_of(nn.CrossEntropyLoss(label_smoothing=0.1), X, target)


def test_cross_entropy_of_one_row():
    assert cost_of(F.cross_entropy, X[0], torch.tensor(1)) == cost_of(F.cross_entropy, X[:1], torch.tensor([1]))


def test_the_kernels_take_the_reduction_where_functions_take_the_average() -> None:
    for kernel, function in ((aten.binary_cross_entropy, F.binary_cross_entropy), (aten.nll_loss, F.nll_loss)):
        y = Y if kernel is aten.binary_cross_entropy else torch.zeros(len(X), dtype=torch.long)
        for number, reduction in enumerate(("none", "mean", "sum")):
            assert cost_of(kernel.default, X, y, None, number) == cost_of(function, X, y, reduction=reduction)


DOUBLES = INPUT, TARGET, WEIGHT = torch.rand(3, 3, 4, dtype=torch.double)
CLASSES = torch.tensor([1, 3, 0])
REDUCTIONS = [0, 1, 2]


def shared(g, reduction, n):
    """Each element's gradient; a mean divides the loss's gradient once."""
    return g / n if reduction == 1 else g


def given(reduction: int, shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    return torch.randn(shape if reduction == 0 else (), dtype=torch.double)


def mse_gradient(g, x, y, reduction):
    return 2 * (x - y) * shared(g, reduction, x.size)


def smooth_l1(g, x, y, reduction, beta):
    slope = (x - y) / beta
    return between(slope, -1, 1, slope, lambda: np.clip(slope, -1, 1)) * shared(g, reduction, x.size)


def huber_gradient(g, x, y, reduction, delta):
    slope = x - y
    return between(slope, -delta, delta, slope, lambda: np.clip(slope, -delta, delta)) * shared(g, reduction, x.size)


def binary_cross_entropy(g, x, y, weight, reduction):
    slope = (x - y) / (x * (1 - x)) * shared(g, reduction, x.size)
    return slope if weight is None else slope * weight


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("name", "textbook", "args", "settings"),
    [
        ("mse_loss_backward", mse_gradient, (INPUT, TARGET), ()),
        ("smooth_l1_loss_backward", smooth_l1, (INPUT, TARGET), (0.3,)),
        ("huber_loss_backward", huber_gradient, (INPUT, TARGET), (0.3,)),
        ("binary_cross_entropy_backward", binary_cross_entropy, (INPUT, TARGET, WEIGHT), ()),
        ("binary_cross_entropy_backward", binary_cross_entropy, (INPUT, TARGET, None), ()),
    ],
)
def test_the_gradient_of_each_element(name: str, textbook: Any, args: Any, settings: Any, reduction: int) -> None:
    agrees(getattr(aten, name).default, textbook, given(reduction), *args, reduction, *settings)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight", [None, WEIGHT[0]])
def test_the_gradient_of_nll_loss(weight: Any, reduction: int) -> None:
    def nll(g, x, target, weight, reduction, ignored, total):
        out = np.full(x.shape, 0.0, dtype=object)
        each = shared(g, reduction, total) if reduction == 1 else g
        for row, label in enumerate(target):
            picked = -(each if reduction else each[row])
            out[row, label] = picked if weight is None else picked * weight[label]
        return out

    total = torch.tensor(3.0, dtype=torch.double) if weight is None else weight[CLASSES].sum()
    args = INPUT, CLASSES, weight, reduction, -100, total
    agrees(aten.nll_loss_backward.default, nll, given(reduction, (3,)), *args)


def test_the_gradient_of_nll_loss_of_pixels() -> None:
    """2x5x5 targets, and 1 divide for the mean."""
    x, target = torch.randn(2, 3, 5, 5), torch.zeros(2, 5, 5, dtype=torch.long)
    args = torch.ones(()), x, target, None, 1, -100, torch.tensor(50.0)
    assert cost_of(aten.nll_loss2d_backward.default, *args) == Cost(others=50 + 1)


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="torch before 2.14")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_chunked_linear_cross_entropy_is_the_whole_one(reduction: str, bias: bool) -> None:
    """Chunking costs nothing extra, but a reduced loss computes its gradients ahead, and the backward pass scales them."""
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    chunked = LinearCrossEntropyOptions(batch_chunk_size=4)
    tensors = [torch.rand(10, 6), torch.rand(7, 6), torch.rand(7)][: 2 + bias]
    targets = torch.arange(10) % 7

    def counted(options: Any, needs_grad: bool) -> tuple[int, int]:
        def loss(x: torch.Tensor, weight: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
            return F.linear_cross_entropy(x, weight, targets, linear_bias=b, reduction=reduction, options=options)

        given = tuple(tensor.clone().requires_grad_(needs_grad) for tensor in tensors)
        report = fxflops.count(Calls(loss), given, backward=needs_grad)
        assert report.complete
        backward = (report.total_backward_flops, report.total_backward_macs) if needs_grad else (0, 0)
        return report.total_flops + backward[0], report.total_macs + backward[1]

    assert counted(chunked, False) == counted(None, False)
    whole, pieces = counted(None, True), counted(chunked, True)
    if reduction != "none":  # otherwise the backward pass recomputes the logits, operator by operator
        assert pieces == (whole[0] + sum(tensor.numel() for tensor in tensors), whole[1])

"""Batch and instance norm on arrays of counting numbers. The gradient follows the paper's equations and also gives torch's values."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops.ops import BASE
from fxflops.records import Cost, Spec
from tests.ops.test_norm import textbook
from tests.ops.textbook import agrees, computes, rsqrt, tally_of
from tests.oracle import cost_by_name, cost_of

aten = torch.ops.aten
N, C, H = 3, 4, 6
G, X = torch.randn(N, C, H, dtype=torch.double), torch.randn(N, C, H, dtype=torch.double)
W = torch.rand(C, dtype=torch.double)
MASKS = [mask for mask in itertools.product([True, False], repeat=3) if any(mask)]


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.BatchNorm1d(4), (3, 4)),
        (nn.BatchNorm2d(4), (2, 4, 3, 3)),
        (nn.BatchNorm2d(4).eval(), (2, 4, 3, 3)),
        (nn.BatchNorm3d(4, track_running_stats=False), (2, 4, 3, 2, 2)),
        (nn.InstanceNorm1d(4, affine=True), (2, 4, 5)),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 5, 5)),
        (nn.InstanceNorm3d(4, affine=True), (2, 4, 5, 2, 2)),
        (nn.SyncBatchNorm(4).eval(), (2, 4, 3, 3)),
    ],
)
def test_normalizing_with_weight_and_bias(module, shape):
    assert textbook(*shape) == cost_of(module, torch.zeros(shape))
    assert textbook(*shape).flops == 4 * torch.zeros(shape).numel()


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.BatchNorm2d(4, affine=False), (2, 4, 3, 3)),
        (nn.InstanceNorm2d(4), (2, 4, 3, 3)),
    ],
)
def test_normalizing_only(module, shape):
    assert textbook(*shape, weight=False, bias=False) == cost_of(module, torch.zeros(shape))


def test_batch_norm_in_every_spelling():
    x, mean, var, weight, bias = torch.zeros(2, 4, 3, 3), *(torch.zeros(4) for _ in range(4))
    native = aten._native_batch_norm_legit_no_training.default
    assert textbook(2, 4, 3, 3) == cost_of(F.batch_norm, x, mean, var, weight, bias)
    assert textbook(2, 4, 3, 3, weight=False, bias=False) == cost_of(F.batch_norm, x, mean, var)
    assert textbook(2, 4, 3, 3) == cost_of(torch.batch_norm, x, weight, bias, mean, var, False, 0.1, 1e-5, False)
    assert textbook(2, 4, 3, 3) == cost_of(native, x, weight, bias, mean, var, 0.1, 1e-5)
    assert textbook(2, 4, 3, 3) == cost_of(aten.native_batch_norm.default, x, weight, bias, mean, var, True, 0.1, 1e-5)


def test_instance_norm_in_every_spelling():
    x, weight, bias = torch.zeros(2, 4, 3, 3), torch.zeros(4), torch.zeros(4)
    assert textbook(2, 4, 3, 3) == cost_of(F.instance_norm, x, weight=weight, bias=bias)
    assert textbook(2, 4, 3, 3) == cost_of(torch.instance_norm, x, weight, bias, None, None, True, 0.1, 1e-5, False)


def test_statistics_of_batch_norm_are_part_of_it() -> None:
    for name in ("batch_norm_stats", "batch_norm_update_stats", "batch_norm_gather_stats"):
        entry = BASE.get(f"aten::{name}")
        assert entry is not None
        assert "batch_norm" in entry.reason


def batch_norm_gradient(g, x, weight, running_mean, running_var, mean, deviation, train, eps, mask):
    """The weight is constant within a channel, so the sums for the weight's and bias's gradients also give the means."""
    to_input, to_weight, to_bias = mask
    if not train and (to_input or to_weight):
        mean, deviation = running_mean, rsqrt(running_var + eps)
    if (train and to_input) or to_weight:
        x = (x - mean[:, None]) * deviation[:, None]
        with_x = (g * x).sum(axis=(0, 2))
    if (train and to_input) or to_bias:
        alone = g.sum(axis=(0, 2))
    out = None
    if to_input:
        if train:
            g = g - (alone / (N * H))[:, None] - x * (with_x / (N * H))[:, None]
        out = g * (deviation * weight if weight is not None else deviation)[:, None]
    return out, with_x if to_weight else None, alone if to_bias else None


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_the_gradient_of_batch_norm(train: bool, mask: tuple[bool, ...]) -> None:
    running = torch.randn(C, dtype=torch.double), torch.rand(C, dtype=torch.double) + 1
    _, *saved = aten.native_batch_norm(X, W, W, *running, train, 0.0, 1e-5)
    agrees(aten.native_batch_norm_backward.default, batch_norm_gradient, G, X, W, *running, *saved, train, 1e-5, mask)
    if not mask[1]:
        agrees(
            aten.native_batch_norm_backward.default,
            batch_norm_gradient,
            G,
            X,
            None,
            *running,
            *saved,
            train,
            1e-5,
            mask,
        )


def test_the_gradient_of_other_libraries() -> None:
    mean = torch.zeros(C, dtype=torch.double)
    expected = tally_of(batch_norm_gradient, G, X, W, mean, mean, mean, mean, True, 1e-5, (True, True, True))
    x, c = Spec((N, C, H)), Spec((C,))
    for name in ("cudnn_batch_norm_backward", "miopen_batch_norm_backward"):
        assert expected == cost_by_name(f"aten::{name}", x, x, c, c, c, c, c, 1e-5, out=(x, c, c))
    settings = True, 1e-5, (True, True, True)
    assert expected == cost_by_name("aten::batch_norm_backward", x, x, c, c, c, c, c, *settings, x, out=(x, c, c))


def test_the_gradient_over_processes() -> None:
    """Two steps: each process sums over its own elements, then every element uses the sums over all processes."""

    def reduced(g, x, mean, deviation):
        with_x = (g * (x - mean[:, None])).sum(axis=(0, 2))
        return g.sum(axis=(0, 2)), with_x, with_x * deviation

    def elements(g, x, mean, deviation, weight, alone, with_x):
        slope = deviation * deviation * (with_x / (N * H))
        centered = g - (alone / (N * H))[:, None] - (x - mean[:, None]) * slope[:, None]
        return centered * (deviation * weight)[:, None]

    running = torch.zeros(C, dtype=torch.double), torch.ones(C, dtype=torch.double)
    _, mean, deviation = aten.native_batch_norm(X, W, W, *running, True, 0.0, 1e-5)
    settings = *running, mean, deviation, True, 1e-5, (True, True, True)
    out, to_weight, to_bias = aten.native_batch_norm_backward(G, X, W, *settings)
    sums = to_bias, to_weight / deviation
    computes(reduced, (*sums, to_weight), G, X, mean, deviation)
    computes(elements, out, G, X, mean, deviation, W, *sums)
    x, c = Spec((N, C, H)), Spec((C,))
    tally = tally_of(reduced, G, X, mean, deviation)
    name = "aten::batch_norm_backward_reduce"
    assert tally == cost_by_name(name, x, x, c, c, c, True, True, True, out=(c, c, c, c))
    tally = tally_of(elements, G, X, mean, deviation, W, *sums)
    assert tally == cost_by_name("aten::batch_norm_backward_elemt", x, x, c, c, c, c, c, c, out=x)


def test_a_gradient_not_asked_for_costs_nothing() -> None:
    x, c = Spec((N, C, H)), Spec((C,))
    nothing = False, False, False
    args = x, x, c, c, c, c, c, True, 1e-5, nothing
    assert cost_by_name("aten::native_batch_norm_backward", *args, out=(None, None, None)) == Cost()

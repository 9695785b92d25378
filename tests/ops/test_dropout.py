"""Dropout on counting numbers: multiplications by the mask and the scale, in training and in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

import fxflops
from fxflops.records import Cost, Spec
from tests.ops.draws import DTYPES, Draw, Made, dims, draws, tensor
from tests.ops.textbook import agrees
from tests.oracle import cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten


def test_dropout_multiplies_by_mask_and_scale_in_training() -> None:
    x = torch.rand(2, 3, 4)
    with tallying() as tally:
        _ = numbers(24) * numbers(24) * 2
    for module in (nn.Dropout(), nn.Dropout1d(), nn.AlphaDropout(), nn.FeatureAlphaDropout()):
        assert cost_of(module.train(), x) == tally
        assert cost_of(module.eval(), x) == Cost()
    assert cost_of(nn.functional.dropout, x) == tally
    assert cost_of(nn.functional.dropout, x, 0.5, False) == Cost()
    assert cost_of(nn.functional.dropout, x, 0.0) == Cost()
    assert cost_of(nn.functional.dropout, x, 0.5, True, False) == tally
    assert cost_of(torch.dropout, x, 0.5, True) == cost_of(torch.dropout, x, p=0.5, train=True) == tally
    assert cost_of(torch.dropout, x, p=0.5, train=False) == cost_of(torch.native_dropout, x, 0.5, False) == Cost()
    assert cost_of(torch.native_dropout, x, 0.5, None) == tally
    assert cost_of(torch.ops.aten.native_dropout.default, x, 0.5, True) == tally


def test_masks_of_dropout() -> None:
    with tallying() as tally:
        numbers(2, 5, 8) * numbers(2, 5, 8) * 2
    mask = torch.ones(2, 5, 8, dtype=torch.uint8)
    spec = Spec((2, 5, 8))
    assert tally == cost_by_name("aten::_fused_dropout", spec, 0.5, out=(spec, spec))
    assert tally == cost_by_name("aten::_masked_scale", spec, Spec(mask.shape), 2.0, out=spec)


def test_the_gradient() -> None:
    mask = torch.rand(3, 4) > 0.5
    given = torch.randn(3, 4, dtype=torch.double), mask, 2.0
    noise = (mask * 2.0).double().numpy()
    agrees(aten.native_dropout_backward.default, lambda g, mask, scale: g * noise, *given)


def test_the_gradient_is_the_cpus() -> None:
    """On a CPU, autograd makes the noise in the forward and multiplies by it in the backward. The kernel must cost as much."""
    x = torch.randn(3, 4, requires_grad=True)
    report = fxflops.count(nn.Dropout(), x, backward=True, mode="train")
    spec = Spec((3, 4))
    kernel = cost_by_name("aten::native_dropout_backward", spec, spec, 2.0, out=spec)
    assert kernel.flops == report.total_backward_flops == 12


@draws("dropout")
def dropped(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw), draw(st.sampled_from(DTYPES)))
    return (x, draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])), draw(st.booleans()), draw(st.booleans())), {}

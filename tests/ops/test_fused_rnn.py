"""Fused recurrent kernels cost the same as the layers and cells whose equations test_rnn.py runs.

Their gradients through time also give autograd's values.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.records import Cost, Spec
from fxflops.records.tensors import spec_of
from tests.ops import through_time
from tests.ops.test_rnn import gru, lstm
from tests.ops.textbook import computes, tally_of
from tests.ops.through_time import H
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

T, B, D = 3, 2, 5
X = torch.rand(T, B, D)
STATE = Spec((B, H))
STATES = Spec((1, B, H))
KINDS = [("lstm", nn.LSTM, 2), ("gru", nn.GRU, 3), ("rnn", nn.RNN, 1)]
BACKWARD_KINDS: list[Any] = [
    ("lstm", nn.LSTM, {}, 2),
    ("gru", nn.GRU, {}, 3),
    ("tanh", nn.RNN, {}, 1),
    ("relu", nn.RNN, {"nonlinearity": "relu"}, 0),
]
OPTIONS = [{}, {"bidirectional": True}, {"num_layers": 2}, {"bidirectional": True, "num_layers": 2}, {"bias": False}]


def weights(module: nn.RNNBase) -> Any:
    return spec_of(tuple(module._flat_weights))


@pytest.mark.parametrize(("kind", "cls", "mode"), KINDS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}], ids=str)
def test_layers_of_cudnn_and_miopen(kind: str, cls: Any, mode: int, options: dict[str, Any]) -> None:
    module = cls(D, H, **options)
    states = Spec((options.get("num_layers", 1) * (1 + options.get("bidirectional", 0)), B, H))
    expected = cost_of(module, X)
    params = weights(module)
    args = Spec((T, B, D)), params, 4 if module.bias else 2
    assert cost_by_name("aten::_cudnn_rnn", *args, None, states, states, mode, H, 0, out=None) == expected
    assert cost_by_name("aten::miopen_rnn", *args, states, states, mode, H, out=None) == expected
    if kind == "lstm":
        assert cost_by_name("aten::_lstm_mps", args[0], (states, states), params, out=None) == expected
        assert expected.macs > 0


@pytest.mark.parametrize(
    ("step", "gates", "name"), [(lstm, 4, "_thnn_fused_lstm_cell"), (gru, 3, "_thnn_fused_gru_cell")]
)
def test_gates_of_products_made_before(step: Any, gates: int, name: str) -> None:
    """A cell without its two matrix products."""
    with tallying() as tally:
        step(numbers(B, D), numbers(B, H), H, True)
        products = B * gates * H * (D + H), B * gates * H * (D + H - 2)
    given = Spec((B, gates * H))
    bias = Spec((gates * H,))
    cost = cost_by_name(f"aten::{name}", given, given, STATE, bias, bias, out=None)
    assert cost == Cost(muls=tally.muls - products[0], adds=tally.adds - products[1], others=tally.others)
    plain = cost_by_name(f"aten::{name}", given, given, STATE, out=None)
    assert cost.adds - plain.adds == 2 * B * gates * H


def example(cls: Any, options: dict[str, Any]) -> Any:
    module = cls(D, H, **options).double()
    x = torch.randn(T, B, D, dtype=torch.double, requires_grad=True)
    out, _ = module(x)
    return module, x, out, torch.randn_like(out)


@pytest.mark.parametrize(("kind", "cls", "settings", "mode"), BACKWARD_KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_of_layers_of_cudnn_and_miopen(
    kind: str, cls: Any, settings: Any, mode: int, options: dict[str, Any]
) -> None:
    module, x, out, g = example(cls, {**settings, **options})
    weights, directions = module._flat_weights, 1 + module.bidirectional
    out.backward(g)
    both = [x.grad, [weight.grad for weight in weights]]
    computes(lambda *args: through_time.layers(kind, *args, directions), both, x, g, [w.detach() for w in weights])
    given = x.detach(), g, [w.detach() for w in weights]
    expected = tally_of(lambda *args: through_time.layers(kind, *args, directions), *given)
    stride = 4 if module.bias else 2
    packed = spec_of(tuple(weights))
    start = Spec(x.shape), packed, stride, None, STATES, STATES, Spec(out.shape), Spec(g.shape), None, None, mode, H
    rest = module.num_layers, False, 0.0, True, module.bidirectional, (), None, None
    for mask in [(True,) * 4, (False, True, True, True)]:
        cudnn = cost_by_name("aten::_cudnn_rnn_backward", *start, 0, *rest, mask, out=None)
        assert cudnn == cost_by_name("aten::miopen_rnn_backward", *start, *rest, mask, out=None)
        if mask[0]:
            assert cudnn == expected
        else:
            kept = tally_of(lambda *args: through_time.layers(kind, *args, directions, (False, True)), *given)
            assert cudnn == kept
    if kind == "lstm":
        specs = *spec_of((g, None, None, out, out, x, out)), (STATES, STATES), packed
        rest = module.bias, module.num_layers, 0.0, True, module.bidirectional, False
        assert expected == cost_by_name("aten::lstm_mps_backward", *specs, *rest, out=None)


@pytest.mark.parametrize("each", [2, 3, 4, 5])
def test_copies_with_one_column_count_as_the_weights(each: int) -> None:
    """Under autocast, cuDNN gets copies of its weights and biases that have a single column."""
    matrices = [Spec((4 * H, D)), Spec((4 * H, H))]
    weights = [*matrices, *[Spec((4 * H,))] * 2 * (each >= 4), *[Spec((3, H))] * (each % 2)]
    columns = tuple(Spec((weight.numel(), 1)) for weight in weights)
    y = Spec((T, B, 3 if each % 2 else H))

    def costs(given: tuple[Spec, ...]) -> list[Cost]:
        start, rest = (Spec((T, B, D)), given, each, None, STATES, STATES), (1, False, 0.0, True, False, (), None)
        kind = 2, H, 3 if each % 2 else 0
        forward = cost_by_name("aten::_cudnn_rnn", *start, *kind, *rest, out=None)
        masks = [(False, False, False, True), (True,) * 4]
        grads = y, y, None, None, *kind, *rest, None
        return [forward, *(cost_by_name("aten::_cudnn_rnn_backward", *start, *grads, m, out=None) for m in masks)]

    assert costs(columns) == costs(tuple(weights))


@pytest.mark.parametrize(("cls", "mode"), [(nn.LSTM, 2), (nn.GRU, 3), (nn.RNN, 1)])
def test_gradients_without_those_of_the_first_state(cls: Any, mode: int) -> None:
    """The same FLOPs as autograd, which on meta goes through the steps one by one."""
    with torch.device("meta"):
        module, x = cls(D, H, num_layers=2), torch.empty(T, B, D)
    by_step = fxflops.count(module, x, backward=True)
    packed, y = spec_of(tuple(module._flat_weights)), Spec((T, B, H))
    start = Spec((T, B, D)), packed, 4, None, STATES, STATES, y, y, None, None, mode, H, 0
    rest = 2, False, 0.0, True, False, (), None, None, (False, False, False, True)
    found = cost_by_name("aten::_cudnn_rnn_backward", *start, *rest, out=None)
    assert found.flops == by_step.total_backward_flops


@pytest.mark.parametrize("has_bias", [True, False])
def test_gradients_of_gates_of_one_step(has_bias: bool) -> None:
    """One step alone, plus the sums over the batch that are the biases' gradients."""

    def step_back(kind: str, biases: int) -> Tally:
        _, function, kept = through_time.STEPS[kind]
        with tallying() as tally:
            of_input, of_hidden, *_ = function(*numbers(2, B, H), *numbers(kept, B, H))
            for gates in (of_input, of_hidden)[: biases * has_bias]:
                gates.sum(axis=0)
        return tally

    lstm_args = STATE, STATE, STATE, STATE, Spec((B, 4 * H)), has_bias
    for name in ("_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_lstm_cell_backward"):
        assert step_back("lstm", 1) == cost_by_name(f"aten::{name}", *lstm_args, out=None)
    gru_args = STATE, Spec((B, 5 * H)), has_bias
    assert step_back("gru", 2) == cost_by_name("aten::_thnn_fused_gru_cell_backward", *gru_args, out=None)


def test_gradients_of_a_projection_are_those_of_a_matrix_like_the_others() -> None:
    """One layer of H to P: 2 products each with 4H x D, 4H x P and P x H."""
    proj = 3
    weights = Spec((4 * H, D)), Spec((4 * H, proj)), Spec((4 * H,)), Spec((4 * H,)), Spec((proj, H))
    y = Spec((T, B, proj))
    start = Spec((T, B, D)), weights, 5, None, STATES, STATES, y, y, None, None, 2, H, proj
    rest = 1, False, 0.0, True, False, (), None, None, (True,) * 4
    found = cost_by_name("aten::_cudnn_rnn_backward", *start, *rest, out=None)
    assert found.macs == 2 * T * B * (4 * H * D + 4 * H * proj + proj * H)
    assert found.muls == found.macs + 16 * T * B * H

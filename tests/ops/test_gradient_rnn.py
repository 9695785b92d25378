"""Recurrent layers back through time, step by step: against autograd's values, and on arrays of counting numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fxflops
from fxflops.records import Cost, Spec, spec_of
from tests.ops.textbook import above, computes, is_counting, pick, tally_of
from tests.oracle import Tally, cost_by_name, numbers, tallying

T, B, D, H = 3, 2, 5, 4
KINDS: list[Any] = [
    ("lstm", nn.LSTM, {}, 2),
    ("gru", nn.GRU, {}, 3),
    ("tanh", nn.RNN, {}, 1),
    ("relu", nn.RNN, {"nonlinearity": "relu"}, 0),
]
STATE, STATES = Spec((B, H)), Spec((1, B, H))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# What the forward saves of a step, and its new state


def lstm(x, state, w_ih, w_hh, b_ih, b_hh):
    h, c = state
    i, f, g, o = np.split(x @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, axis=-1)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    new = f * c + i * g
    return (i, f, g, o, c, new), (o * np.tanh(new), new)


def gru(x, state, w_ih, w_hh, b_ih, b_hh):
    h, c = state
    x, y = np.split(x @ w_ih.T + b_ih, 3, axis=-1), np.split(h @ w_hh.T + b_hh, 3, axis=-1)
    r, z = sigmoid(x[0] + y[0]), sigmoid(x[1] + y[1])
    n = np.tanh(x[2] + r * y[2])
    return (r, z, n, y[2], h), ((1 - z) * n + z * h, c)


def rnn(x, state, w_ih, w_hh, b_ih, b_hh, activation=np.tanh):
    h = activation(x @ w_ih.T + b_ih + state[0] @ w_hh.T + b_hh)
    return (h,), (h, state[1])


# From the gradient of the state after a step to those of the sums of both products, and of the state before


def lstm_back(dh, dc, i, f, g, o, before, c):
    t = np.tanh(c)
    do = dh * t
    dc = dc + dh * o * (1 - t * t)
    parts = dc * g * (i * (1 - i)), dc * before * (f * (1 - f)), dc * i * (1 - g * g), do * (o * (1 - o))
    gates = np.concatenate(parts, axis=-1)
    return gates, gates, None, dc * f


def gru_back(dh, dc, r, z, n, hidden, before):
    kept = 1 - z
    dn = dh * kept * (1 - n * n)
    both = [dn * hidden * (r * (1 - r)), dh * (before - n) * (z * kept)]
    of_input, of_hidden = (np.concatenate([*both, last], axis=-1) for last in (dn, dn * r))
    return of_input, of_hidden, dh * z, dc


def tanh_back(dh, dc, h):
    gates = dh * (1 - h * h)
    return gates, gates, None, dc


def relu_back(dh, dc, h):
    gates = pick(above(h, 0), dh, 0)
    return gates, gates, None, dc


STEPS = {
    "lstm": (lstm, lstm_back, 6),
    "gru": (gru, gru_back, 5),
    "tanh": (rnn, tanh_back, 1),
    "relu": (lambda *args: rnn(*args, activation=lambda x: np.maximum(x, 0)), relu_back, 1),
}


def forward(kind, x, weights):
    """The results of one layer in one direction, what its steps saved, and the states before them."""
    state = np.zeros((2, x.shape[1], H))
    saved, before, out = [], [], []
    for step in x:
        before.append(state[0])
        kept, state = STEPS[kind][0](step, state, *weights)
        saved.append(kept)
        out.append(state[0])
    return np.stack(out), saved, np.stack(before)


def back(kind, x, weights, saved, before, g, mask):
    """The gradients of one layer in one direction: of its input and its weights."""
    w_ih, w_hh = weights[:2]
    carried = numbers(2, *g.shape[1:]) if is_counting(g) else np.zeros((2, *g.shape[1:]))
    dh, dc = carried
    of_input, of_hidden, to_input = [], [], []
    for t in reversed(range(len(g))):
        gx, gh, direct, dc = STEPS[kind][1](g[t] + dh, dc, *saved[t])
        dh = gh @ w_hh if direct is None else gh @ w_hh + direct
        of_input.insert(0, gx)
        of_hidden.insert(0, gh)
        if mask[0]:
            to_input.insert(0, gx @ w_ih)
    gx, gh = (np.concatenate(parts) for parts in (of_input, of_hidden))
    parts = gx.T @ np.concatenate(x), gh.T @ np.concatenate(before) if mask[1] else None
    biases = (gx.sum(axis=0), gh.sum(axis=0)) if len(weights) > 2 else ()
    return np.stack(to_input) if mask[0] else None, [*parts, *biases]


def layers(kind, x, g, weights, directions=1, mask=(True, True)):
    """All gradients of stacked layers: of the input, and of the weights in torch's order."""
    runs, size = [], 4 if any(weight.ndim == 1 for weight in weights) else 2
    inputs = x
    for at in range(0, len(weights), size * directions):
        ways, results = [], []
        for way in range(directions):
            given = weights[at + way * size :][:size]
            order = slice(None, None, -1 if way else 1)
            if is_counting(x):
                saved = [[numbers(*g.shape[1:-1], H) for _ in range(STEPS[kind][2])] for _ in x]
                out, before = numbers(*g.shape[:-1], H), numbers(*g.shape[:-1], H)
            else:
                padded = given if size == 4 else [*given, 0, 0]
                out, saved, before = forward(kind, inputs[order], padded)
            ways.append((inputs[order], given, saved, before, order))
            results.append(out[order])
        runs.append(ways)
        inputs = np.concatenate(results, axis=-1)
    gradients: list[Any] = []
    for at, ways in reversed(list(enumerate(runs))):
        found, needed = [], at > 0 or mask[0]
        parts: list[Any] = []
        for way, (given_x, given, saved, before, order) in enumerate(ways):
            mine = g[..., way * H : (way + 1) * H][order]
            to_x, to_weights = back(kind, given_x, given, saved, before, mine, (needed, mask[1]))
            found.append(to_x[order] if needed else None)
            parts += to_weights
        gradients = parts + gradients
        if needed:
            g = found[0] + found[1] if directions == 2 else found[0]
    return (g if mask[0] else None), gradients


OPTIONS = [{}, {"bidirectional": True}, {"num_layers": 2}, {"bidirectional": True, "num_layers": 2}, {"bias": False}]


def example(cls: Any, options: dict[str, Any]) -> Any:
    module = cls(D, H, **options).double()
    x = torch.randn(T, B, D, dtype=torch.double, requires_grad=True)
    out, _ = module(x)
    return module, x, out, torch.randn_like(out)


@pytest.mark.parametrize(("kind", "cls", "settings", "mode"), KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_layers_of_cudnn_and_miopen(kind: str, cls: Any, settings: Any, mode: int, options: dict[str, Any]) -> None:
    module, x, out, g = example(cls, {**settings, **options})
    weights, directions = module._flat_weights, 1 + module.bidirectional
    out.backward(g)
    both = [x.grad, [weight.grad for weight in weights]]
    computes(lambda *args: layers(kind, *args, directions), both, x, g, [w.detach() for w in weights])
    given = x.detach(), g, [w.detach() for w in weights]
    expected = tally_of(lambda *args: layers(kind, *args, directions), *given)
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
            kept = tally_of(lambda *args: layers(kind, *args, directions, (False, True)), *given)
            assert cudnn == kept
    if kind == "lstm":
        specs = *spec_of((g, None, None, out, out, x, out)), (STATES, STATES), packed
        rest = module.bias, module.num_layers, 0.0, True, module.bidirectional, False
        assert expected == cost_by_name("aten::lstm_mps_backward", *specs, *rest, out=None)


@pytest.mark.parametrize(("kind", "cls", "settings", "mode"), KINDS[:2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_of_mkldnn(kind: str, cls: Any, settings: Any, mode: int, bias: bool) -> None:
    module, x, out, g = example(cls, {"bias": bias})
    given = x.detach(), g, [w.detach() for w in module._flat_weights]
    expected = tally_of(lambda *args: layers(kind, *args), *given)
    packed, y = [Spec((100,))] * 4, Spec(out.shape)
    saved = STATES, STATES, y, STATES, STATES, y, None, None
    args = Spec(x.shape), *packed, *saved, False, mode, H, 1, bias, True, False, (), False, None
    assert expected == cost_by_name("aten::mkldnn_rnn_layer_backward", *args, out=None)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize(("cls", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_one_number_whatever_the_kernel(cls: Any, gates: int, learns: bool) -> None:
    """oneDNN's kernel computes also what nobody asked for; counted is what the steps need, as where there is no such kernel.

    T*B*gates*H*(D + H) for the weights; back through the state all steps but the first, whose state is zeros; x if it learns.
    """
    module, x = cls(D, H), torch.randn(T, B, D, requires_grad=learns)
    expected = T * B * gates * H * (D + H) + (T - 1) * B * gates * H * H + learns * T * B * gates * H * D
    on_cpu, on_meta = fxflops.analyze(module, x, backward=True, repeats=0), fxflops.count(module, x, backward=True)
    assert on_cpu.total_backward_macs == on_meta.total_backward_macs == expected


@pytest.mark.parametrize("has_bias", [True, False])
def test_gates_of_one_step(has_bias: bool) -> None:
    """The step alone, and the sums over the batch that the biases are."""

    def step(kind: str, biases: int) -> Tally:
        _, function, kept = STEPS[kind]
        with tallying() as tally:
            of_input, of_hidden, *_ = function(*numbers(2, B, H), *numbers(kept, B, H))
            for gates in (of_input, of_hidden)[: biases * has_bias]:
                gates.sum(axis=0)
        return tally

    lstm_args = STATE, STATE, STATE, STATE, Spec((B, 4 * H)), has_bias
    for name in ("_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_lstm_cell_backward"):
        assert step("lstm", 1) == cost_by_name(f"aten::{name}", *lstm_args, out=None)
    gru_args = STATE, Spec((B, 5 * H)), has_bias
    assert step("gru", 2) == cost_by_name("aten::_thnn_fused_gru_cell_backward", *gru_args, out=None)


def test_a_projection_is_a_matrix_like_the_others() -> None:
    """One layer of H to P: 2 products each with 4H x D, 4H x P and P x H."""
    proj = 3
    weights = Spec((4 * H, D)), Spec((4 * H, proj)), Spec((4 * H,)), Spec((4 * H,)), Spec((proj, H))
    y = Spec((T, B, proj))
    start = Spec((T, B, D)), weights, 5, None, STATES, STATES, y, y, None, None, 2, H, proj
    rest = 1, False, 0.0, True, False, (), None, None, (True,) * 4
    found = cost_by_name("aten::_cudnn_rnn_backward", *start, *rest, out=None)
    assert found.macs == 2 * T * B * (4 * H * D + 4 * H * proj + proj * H)
    assert found.others == Cost(others=T * B * H).others

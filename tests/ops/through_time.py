"""Textbook backpropagation through time for recurrent layers, step by step: for values and for counting numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.textbook import above, is_counting, pick
from tests.oracle import numbers

H = 4
"""The number of hidden units in every layer."""


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# Each step returns what the forward saves of it, and the new state.


def lstm(x, state, w_ih, w_hh, b_ih, b_hh):
    h, c = state
    i, f, g, o = np.split(x @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, axis=-1)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    new = f * c + i * g
    t = np.tanh(new)
    return (i, f, g, o, c, t), (o * t, new)


def gru(x, state, w_ih, w_hh, b_ih, b_hh):
    h, c = state
    x, y = np.split(x @ w_ih.T + b_ih, 3, axis=-1), np.split(h @ w_hh.T + b_hh, 3, axis=-1)
    r, z = sigmoid(x[0] + y[0]), sigmoid(x[1] + y[1])
    n = np.tanh(x[2] + r * y[2])
    return (r, z, n, y[2], h), ((1 - z) * n + z * h, c)


def rnn(x, state, w_ih, w_hh, b_ih, b_hh, activation=np.tanh):
    h = activation(x @ w_ih.T + b_ih + state[0] @ w_hh.T + b_hh)
    return (h,), (h, state[1])


# Each turns the gradient of the state after a step into the gradients of both products' sums, and of the state before.


def lstm_back(dh, dc, i, f, g, o, before, t):
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
    """Return the results of one layer in one direction, what its steps saved, and the states before the steps."""
    state = np.zeros((2, x.shape[1], H))
    saved, before, out = [], [], []
    for step in x:
        before.append(state[0])
        kept, state = STEPS[kind][0](step, state, *weights)
        saved.append(kept)
        out.append(state[0])
    return np.stack(out), saved, np.stack(before)


def back(kind, x, weights, saved, before, g, mask):
    """Return the gradients of one layer in one direction: of its input and of its weights."""
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
    """Return all gradients of stacked layers: of the input, and of the weights in torch's order."""
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

"""Reports of recurrent layers and cells, with every option: layers, directions, projections, packed and unbatched input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from tests.test_reports import Case, check, every_way, f, of

b, t, i, h, p = 3, 4, 5, 11, 2  # batch, steps, widths of the input, the hidden state and its projection
LSTM, GRU, RNN = 4, 3, 1  # gates, each with one matrix for the input and one for the state


def step(gates: int, width: int) -> int:
    """One step of one layer in one direction: a product with the input and one with the state, for every gate."""
    return gates * (width * h + h * h)


def projected(width: int) -> int:
    """One step of an LSTM whose state is projected from h to p."""
    return LSTM * (width * h + p * h) + h * p


def packed(m: Any, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    out, _ = m.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(out, batch_first=True)[0]


def looped(m: Any, x: torch.Tensor) -> torch.Tensor:
    state = m.cell(x[0])
    for rows in x[1:]:
        state = m.cell(rows, state)
    return state[0] if isinstance(state, tuple) else state


def by_function(m: Any, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return torch.gru(x, state, m.rnn._flat_weights, True, 1, 0.0, False, False, False)[0]


x, lengths = f(t, b, i), torch.tensor([2, 4, 1])
PACKED = 2 + 4 + 1  # steps that exist
# i, f, g, o and tanh(c) are 5 functions; f*c + i*g and o*tanh(c) are 3 products and 1 sum. Each of the 4 gates adds its two
# products and two biases.
LSTM_FLOPS = LSTM * h * ((2 * i - 1) + (2 * h - 1) + 1 + 2) + h * (5 + 3 + 1)

CASES = [
    # torchtnt#624, DeepSpeed#3816, ultralytics/thop PR#160, ptflops#100, torchutils#11: every gate, step, layer, direction.
    Case("lstm", nn.LSTM(i, h), x, macs=t * b * step(LSTM, i), flops=t * b * LSTM_FLOPS),
    Case(
        "lstm-batch-first",
        nn.LSTM(i, h, batch_first=True),
        f(b, t, i),
        macs=t * b * step(LSTM, i),
        flops=t * b * LSTM_FLOPS,
    ),
    Case("lstm-unbatched", nn.LSTM(i, h), f(t, i), macs=t * step(LSTM, i), flops=t * LSTM_FLOPS),
    Case(
        "lstm-no-bias",
        nn.LSTM(i, h, bias=False),
        x,
        macs=t * b * step(LSTM, i),
        flops=t * b * (LSTM_FLOPS - LSTM * h * 2),
    ),
    Case("lstm-with-state", nn.LSTM(i, h), (x, (f(1, b, h), f(1, b, h))), macs=t * b * step(LSTM, i)),
    Case("lstm-layers", nn.LSTM(i, h, 3, dropout=0.5), x, macs=t * b * (step(LSTM, i) + 2 * step(LSTM, h))),
    Case("lstm-bidirectional", nn.LSTM(i, h, bidirectional=True), x, macs=t * b * 2 * step(LSTM, i)),
    # The second layer's input is the state of both directions.
    Case(
        "lstm-layers-bidirectional",
        nn.LSTM(i, h, 2, bidirectional=True),
        x,
        macs=t * b * 2 * (step(LSTM, i) + step(LSTM, 2 * h)),
    ),
    Case("lstm-projected", nn.LSTM(i, h, proj_size=p), x, macs=t * b * projected(i)),
    Case(
        "lstm-projected-layers-bidirectional",
        nn.LSTM(i, h, 2, bidirectional=True, proj_size=p),
        x,
        macs=t * b * 2 * (projected(i) + projected(2 * p)),
    ),
    Case("gru", nn.GRU(i, h), x, macs=t * b * step(GRU, i)),
    Case(
        "gru-layers-bidirectional",
        nn.GRU(i, h, 2, bidirectional=True, batch_first=True),
        f(b, t, i),
        macs=t * b * 2 * (step(GRU, i) + step(GRU, 2 * h)),
    ),
    Case("gru-unbatched-with-state", nn.GRU(i, h), (f(t, i), f(1, h)), macs=t * step(GRU, i)),
    Case("gru-function", of(by_function, rnn=nn.GRU(i, h)), (x, f(1, b, h)), macs=t * b * step(GRU, i)),
    # Per step and unit: both products, their sum, two biases, tanh.
    Case("rnn", nn.RNN(i, h), x, macs=t * b * step(RNN, i), flops=t * b * h * ((2 * i - 1) + (2 * h - 1) + 1 + 2 + 1)),
    Case(
        "rnn-relu-layers",
        nn.RNN(i, h, 2, nonlinearity="relu", bias=False),
        x,
        macs=t * b * (step(RNN, i) + step(RNN, h)),
    ),
    # A packed sequence has as many steps as rows.
    Case(
        "lstm-packed-input",
        of(lambda m, packed: m.rnn(packed)[1], rnn=nn.LSTM(i, h)),
        pack_sequence([f(3, i), f(2, i)]),
        macs=(3 + 2) * step(LSTM, i),
        without=("meta",),
    ),
    Case(
        "lstm-packed",
        of(packed, rnn=nn.LSTM(i, h, batch_first=True)),
        (f(b, t, i), lengths),
        macs=PACKED * step(LSTM, i),
        without=("meta",),
    ),
    Case(
        "gru-packed-bidirectional",
        of(packed, rnn=nn.GRU(i, h, 2, bidirectional=True, batch_first=True)),
        (f(b, t, i), lengths),
        macs=PACKED * 2 * (step(GRU, i) + step(GRU, 2 * h)),
        without=("meta",),
    ),
    Case(
        "rnn-packed",
        of(packed, rnn=nn.RNN(i, h, batch_first=True)),
        (f(b, t, i), lengths),
        macs=PACKED * step(RNN, i),
        without=("meta",),
    ),
    Case(
        "lstm-packed-projected",
        of(packed, rnn=nn.LSTM(i, h, batch_first=True, proj_size=p)),
        (f(b, t, i), lengths),
        macs=PACKED * projected(i),
        without=("meta",),
    ),
    # A cell is one step.
    Case("lstm-cell", of(looped, cell=nn.LSTMCell(i, h)), x, macs=t * b * step(LSTM, i), flops=t * b * LSTM_FLOPS),
    Case("gru-cell", of(looped, cell=nn.GRUCell(i, h)), x, macs=t * b * step(GRU, i)),
    Case("rnn-cell", of(looped, cell=nn.RNNCell(i, h, nonlinearity="relu")), x, macs=t * b * step(RNN, i)),
    Case("lstm-cell-unbatched", nn.LSTMCell(i, h), f(i), macs=step(LSTM, i), flops=LSTM_FLOPS),
]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@every_way(CASES)
def test_rnn(case: Case, way: str) -> None:
    check(case, way)

"""Quantized recurrent kernels cost the same as the layers and cells whose equations test_rnn.py runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxflops.records import Spec
from tests.ops.test_rnn import gru, lstm, rnn
from tests.oracle import cost_by_name, cost_of, numbers, tallying

T, B, D, H = 3, 2, 5, 4
X = torch.rand(T, B, D)
STATE = Spec((B, H))


@pytest.mark.parametrize(("kind", "cls"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}], ids=str)
def test_layers_with_packed_weights(kind: str, cls: Any, options: dict[str, Any]) -> None:
    layers, both = options.get("num_layers", 1), options.get("bidirectional", False)
    states = Spec((layers * (1 + both), B, H))
    out = Spec((T, B, H * (1 + both))), states, states
    rest = ("<CellParams>",), True, layers, 0.0, False, both
    hx = (states, states) if kind == "lstm" else states
    expected = cost_of(cls(D, H, **options), X)
    assert cost_by_name(f"aten::quantized_{kind}", Spec((T, B, D)), hx, *rest, False, out=out) == expected
    data = Spec((T * B, D)), Spec((T,), torch.int64), hx
    assert cost_by_name(f"aten::quantized_{kind}", *data, *rest, out=out) == expected


CELLS = [
    ("quantized_lstm_cell", "quantized_lstm_cell_dynamic", lstm, 4),
    ("quantized_gru_cell", "quantized_gru_cell_dynamic", gru, 3),
    ("quantized_rnn_tanh_cell", "quantized_rnn_tanh_cell_dynamic", rnn, 1),
    ("quantized_rnn_relu_cell", "quantized_rnn_relu_cell_dynamic", rnn, 1),
]


@pytest.mark.parametrize(("name", "dynamic", "step", "gates"), CELLS)
def test_quantized_cells(name: str, dynamic: str, step: Any, gates: int) -> None:
    with tallying() as tally:
        step(numbers(B, D), numbers(B, H), H, True)
    w_ih, w_hh, bias = Spec((gates * H, D)), Spec((gates * H, H)), Spec((gates * H,))
    hx = (STATE, STATE) if step is lstm else STATE
    x = Spec((B, D))
    assert tally == cost_by_name(f"aten::{name}", x, hx, w_ih, w_hh, bias, bias, out=None)
    packed = (w_ih, None), (w_hh, None)
    assert tally == cost_by_name(f"quantized::{dynamic}", x, hx, *packed, bias, bias, out=None)

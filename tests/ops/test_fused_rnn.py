"""Fused and quantized recurrent kernels: the same as the layers and cells whose equations test_rnn.py runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxflops.ops.fused_rnn import mkldnn_rnn_workspace
from fxflops.records import Cost, Spec, spec_of
from tests.ops.test_rnn import gru, lstm, rnn
from tests.oracle import cost_by_name, cost_of, numbers, tallying

T, B, D, H = 3, 2, 5, 4
X = torch.rand(T, B, D)
STATE = Spec((B, H))
KINDS = [("lstm", nn.LSTM, 2), ("gru", nn.GRU, 3), ("rnn", nn.RNN, 1)]


def weights(module: nn.RNNBase) -> Any:
    return spec_of(tuple(module._flat_weights))


@pytest.mark.parametrize(("kind", "cls", "mode"), KINDS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False}], ids=str)
def test_layers_of_cudnn_and_miopen(kind: str, cls: Any, mode: int, options: dict[str, Any]) -> None:
    module = cls(D, H, **options)
    states = Spec((options.get("num_layers", 1) * (1 + options.get("bidirectional", 0)), B, H))
    expected = cost_of(module, X)
    params = weights(module)
    args = Spec((T, B, D)), params, 4
    assert cost_by_name("aten::_cudnn_rnn", *args, None, states, states, mode, H, 0, out=None) == expected
    assert cost_by_name("aten::miopen_rnn", *args, states, states, mode, H, out=None) == expected
    if kind == "lstm":
        assert cost_by_name("aten::_lstm_mps", args[0], (states, states), params, out=None) == expected
        assert expected.macs > 0


@pytest.mark.parametrize(("kind", "cls", "mode"), KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_of_mkldnn(kind: str, cls: Any, mode: int, bias: bool) -> None:
    expected = cost_of(cls(D, H, bias=bias), X)
    packed = [Spec((100,))] * 4
    states = Spec((1, B, H))
    args = Spec((T, B, D)), *packed, states, states, False, (), mode, H, 1, bias, False, False, False
    assert cost_by_name("aten::mkldnn_rnn_layer", *args, out=None) == expected


@pytest.mark.parametrize(
    ("step", "gates", "name"), [(lstm, 4, "_thnn_fused_lstm_cell"), (gru, 3, "_thnn_fused_gru_cell")]
)
def test_gates_of_products_made_before(step: Any, gates: int, name: str) -> None:
    """A cell less its two matrix products."""
    with tallying() as tally:
        step(numbers(B, D), numbers(B, H), H, True)
        products = B * gates * H * (D + H), B * gates * H * (D + H - 2)
    given = Spec((B, gates * H))
    bias = Spec((gates * H,))
    cost = cost_by_name(f"aten::{name}", given, given, STATE, bias, bias, out=None)
    assert cost == Cost(muls=tally.muls - products[0], adds=tally.adds - products[1], others=tally.others)
    plain = cost_by_name(f"aten::{name}", given, given, STATE, out=None)
    assert cost.adds - plain.adds == 2 * B * gates * H


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(10, 3, 100, 64), (7, 2, 30, 50), (5, 1, 3, 256), (3, 130, 17, 33)])
def test_the_workspace_is_what_the_kernel_keeps(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    steps, batch, width, hidden = sizes
    shapes = (
        (steps, batch, width), (4 * hidden, width), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,),
        (1, batch, hidden), (1, batch, hidden),
    )  # fmt: skip
    tensors = [torch.randn(shape).to(dtype) for shape in shapes]
    settings = (False, [], 2, hidden, 1, True, False, False, True)
    try:
        *_, kept = torch.ops.aten.mkldnn_rnn_layer(*tensors, *settings)
    except RuntimeError as error:
        pytest.skip(f"this processor has no such kernel: {error}")
    assert mkldnn_rnn_workspace(*spec_of(tensors), *settings) == kept.nbytes

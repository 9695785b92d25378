"""oneDNN's recurrent kernel costs the same as the layers whose equations test_rnn.py and test_fused_rnn.py run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.ops.mkldnn_rnn import mkldnn_rnn_workspace
from fxflops.records import Spec
from fxflops.records.tensors import spec_of
from tests.ops import through_time
from tests.ops.test_fused_rnn import BACKWARD_KINDS, KINDS, STATES, B, D, T, X, example
from tests.ops.textbook import tally_of
from tests.ops.through_time import H
from tests.oracle import cost_by_name, cost_of


@pytest.mark.parametrize(("kind", "cls", "mode"), KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer(kind: str, cls: Any, mode: int, bias: bool) -> None:
    expected = cost_of(cls(D, H, bias=bias), X)
    packed = [Spec((100,))] * 4
    states = Spec((1, B, H))
    args = Spec((T, B, D)), *packed, states, states, False, (), mode, H, 1, bias, False, False, False
    assert cost_by_name("aten::mkldnn_rnn_layer", *args, out=None) == expected


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


@pytest.mark.parametrize(("kind", "cls", "settings", "mode"), BACKWARD_KINDS[:2])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_a_layer(kind: str, cls: Any, settings: Any, mode: int, bias: bool) -> None:
    module, x, out, g = example(cls, {"bias": bias})
    given = x.detach(), g, [w.detach() for w in module._flat_weights]
    expected = tally_of(lambda *args: through_time.layers(kind, *args), *given)
    packed, y = [Spec((100,))] * 4, Spec(out.shape)
    saved = STATES, STATES, y, STATES, STATES, y, None, None
    args = Spec(x.shape), *packed, *saved, False, mode, H, 1, bias, True, False, (), False, None
    assert expected == cost_by_name("aten::mkldnn_rnn_layer_backward", *args, out=None)


@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize(("cls", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_one_number_whatever_the_kernel(cls: Any, gates: int, needs_grad: bool) -> None:
    """oneDNN's kernel also computes gradients that nobody asked for. They are not counted, so the count does not depend on the kernel.

    MACs: T*B*gates*H*(D + H) for the weights; the state in all steps but the first, whose state is zeros; x if it needs a gradient.
    """
    module, x = cls(D, H), torch.randn(T, B, D, requires_grad=needs_grad)
    expected = T * B * gates * H * (D + H) + (T - 1) * B * gates * H * H + needs_grad * T * B * gates * H * D
    on_cpu, on_meta = fxflops.analyze(module, x, backward=True, repeats=0), fxflops.count(module, x, backward=True)
    assert on_cpu.total_backward_macs == on_meta.total_backward_macs == expected

"""convention="ptflops_aten": the number of ptflops 0.7.5's backend "aten", on the models of the pool and op by op."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ptflops import get_model_complexity_info
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from fxflops import Report, count
from tests.conventions.pool import Runs, copied, lent

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")


def theirs(model: nn.Module, args: Any, kwargs: Any = None) -> int:
    """ptflops's number for a run."""
    names = list(inspect.signature(model.forward).parameters)
    inputs = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
    settings: dict[str, Any] = {"backend": "aten", "print_per_layer_stat": False, "as_strings": False}
    with redirect_stdout(io.StringIO()) as printed:
        macs, _ = get_model_complexity_info(copied(model)[0], (1,), input_constructor=lambda _: inputs, **settings)
    assert macs is not None, printed.getvalue()
    return int(macs)


def ours(model: nn.Module, args: Any, kwargs: Any = None) -> Report:
    report = count(model, args, kwargs)
    recounted = report.recount("ptflops_aten")
    assert recounted.total_macs == report.total_macs
    assert recounted.total_int_ops == 0
    return recounted


QUICK = (
    *("convnext", "mobilenetv3", "vit", "vit unfused", "unet", "gru", "rnn", "cells"),
    *("bert sdpa", "gpt2", "llama", "nn.Transformer", "products"),
)
"""Some models of the pool. The numbers agree on all models except where they depend on kernels: linear layers on transposed
inputs (mixers, pvt, cait), LSTMs in float, and attention that uses the plain products (t5)."""


@pytest.mark.parametrize("name", QUICK)
def test_the_number_is_ptflopss(name: str) -> None:
    assert ours(*lent(name)).total_flops == theirs(*lent(name))


ONES = torch.ones
# x is [2, 5, 4].
CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "matmul": lambda x: x @ x.transpose(1, 2),
    "broadcast": lambda x: x[0] @ ONES(3, 4, 2),
    "folded": lambda x: x @ ONES(4, 2),
    "mm": lambda x: torch.mm(x[0], x[1].t()),
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "aten.mm": lambda x: torch.ops.aten.mm(x[0], x[1].t()),
    "by a vector": lambda x: (x @ x[0, 0], x[0] @ x[0, 0], torch.dot(x[0, 0], x[0, 1])),
    "of a vector": lambda x: x[0, :, 0] @ x[0],
    "addmm": lambda x: torch.addmm(ONES(2), x[0], ONES(4, 2)),
    "addmm with beta 0": lambda x: torch.addmm(ONES(2), x[0], ONES(4, 2), beta=0),
    "addmm in place": lambda x: (
        x[0].clone().addmm_(x[0], ONES(4, 4)),
        torch.ops.aten.addmm_(ONES(5, 2), x[0], ONES(4, 2)),
    ),
    "matrix_power": lambda x: (torch.matrix_power(x[0, :4], 3), torch.linalg.matrix_power(x[:, :4], 6)),
    "baddbmm": lambda x: (torch.baddbmm(ONES(2), x, ONES(2, 4, 2)), torch.addbmm(ONES(2), x, ONES(2, 4, 2))),
    "addmv, addr": lambda x: (torch.addmv(ONES(5), x[0], x[0, 0]), torch.addr(ONES(5, 4), x[0, :, 0], x[0, 0])),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "einsum of three": lambda x: torch.einsum("bij,jk,kl->bil", x, ONES(4, 3), ONES(3, 2)),
    "outer product": lambda x: torch.einsum("i,j->ij", x[0, 0], x[0, 1]),
    "tensordot": lambda x: torch.tensordot(x, ONES(4, 2), 1),
    "inner": lambda x: torch.inner(x, x[0]),
    "multi_dot": lambda x: torch.linalg.multi_dot([x[0], ONES(4, 3), ONES(3, 2)]),
    "F.linear": lambda x: (F.linear(x, ONES(3, 4)), F.linear(x, ONES(3, 4), ONES(3)), F.linear(x[0, 0], ONES(3, 4))),
    "F.conv1d": lambda x: F.conv1d(x, ONES(2, 5, 3), ONES(2)),
    "F.conv_transpose1d": lambda x: F.conv_transpose1d(x, ONES(5, 2, 3), stride=2),
    "aten.convolution": lambda x: torch.ops.aten.convolution(x, ONES(2, 5, 3), ONES(2), [1], [0], [1], False, [0], 1),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "pointwise": lambda x: F.gelu(x + 1).softmax(-1),
}


@pytest.mark.parametrize("name", CASES)
def test_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # opt_einsum would choose another order than the one we count.
    monkeypatch.setattr(torch.backends.opt_einsum.m, "enabled", False)
    model, x = Runs(CASES[name]), torch.randn(2, 5, 4)
    assert ours(model, (x,)).total_flops == theirs(model, (x,))


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(4, 3), (2, 3, 5, 4)),
    "Linear without bias": (lambda: nn.Linear(4, 3, bias=False), (5, 4)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 8, 8)),
    "Conv2d without batch": (lambda: nn.Conv2d(4, 6, 3, padding="same"), (4, 8, 8)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 8, 8)),
    "GRU": (lambda: nn.GRU(4, 3, 2, bidirectional=True), (5, 2, 4)),
    "GRU without biases": (lambda: nn.GRU(4, 3, bias=False), (5, 2, 4)),
    "RNN": (lambda: nn.RNN(4, 3), (5, 2, 4)),
    "LSTM in double": (lambda: nn.LSTM(4, 3, 2).double(), (5, 2, 4)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), (2, 4)),
    "GRUCell": (lambda: nn.GRUCell(4, 3), (2, 4)),
    "RNNCell": (lambda: nn.RNNCell(4, 3), (2, 4)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8), (5, 2, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    make, shape = MODULES[name]
    model = make()
    x = torch.randn(shape, dtype=next(model.parameters()).dtype)
    assert ours(model, (x,)).total_flops == theirs(model, (x,))


SEQUENCE, STATE = (5, 2, 4), (1, 2, 3)


class OfFunctions(nn.Module):
    """Recurrent layers and cells called as torch functions with their modules' weights."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.GRU(4, 3, bias=bias), nn.RNN(4, 3, bias=bias)])
        self.cells = nn.ModuleList([nn.GRUCell(4, 3, bias), nn.RNNCell(4, 3, bias), nn.LSTMCell(4, 3, bias)])

    def forward(self, x: torch.Tensor) -> Any:
        state, settings = torch.zeros(STATE), (0.0, False, False, False)
        outs: list[Any] = []
        for function, layer in zip((torch.gru, torch.rnn_tanh), self.layers, strict=True):
            weights: Any = layer._flat_weights
            outs.append(function(x, state, weights, layer.bias, 1, *settings))  # type: ignore[operator]
        for name, cell in zip(("gru_cell", "rnn_tanh_cell", "lstm_cell"), self.cells, strict=True):
            given: Any = (state[0], state[0]) if name == "lstm_cell" else state[0]
            weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
            outs.append(getattr(torch, name)(x[0], given, *weights))
        return outs


@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_functions_count_their_biases(bias: bool) -> None:
    model, x = OfFunctions(bias), torch.randn(SEQUENCE)
    assert ours(model, (x,)).total_flops == theirs(model, (x,))


def of_program(program: Any, x: torch.Tensor) -> int:
    """ptflops's number for a run of a program. It calls eval(), which an exported program refuses."""
    program.eval = lambda: program
    settings: dict[str, Any] = {"backend": "aten", "print_per_layer_stat": False, "as_strings": False}
    with redirect_stdout(io.StringIO()) as printed:
        macs, _ = get_model_complexity_info(program, (1,), input_constructor=lambda _: x, **settings)
    assert macs is not None, printed.getvalue()
    return int(macs)


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
@pytest.mark.parametrize("name", [*MODULES, "LSTM", "functions"])
@pytest.mark.parametrize("kind", ["exported", "decomposed", "make_fx"])
def test_programs(name: str, kind: str) -> None:
    """A program calls operators by name: those that ptflops sees, and also the kernels of layers that it leaves out."""
    others = {"LSTM": (lambda: nn.LSTM(4, 3, 2), (5, 2, 4)), "functions": (lambda: OfFunctions(True), SEQUENCE)}
    make, shape = {**MODULES, **others}[name]
    model = make().eval()
    x = torch.randn(shape, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        if kind == "make_fx":
            program: Any = make_fx(model)(x)
        else:
            exported = torch.export.export(model, (x,))
            program = (exported.run_decompositions() if kind == "decomposed" else exported).module()
    # aten.lstm, which torch runs as one CPU kernel.
    if name == "LSTM" and kind == "exported":
        assert of_program(program, x) == 0
        assert ours(program, (x,)).total_flops == theirs(nn.LSTM(4, 3, 2).double(), (x.double(),))
        return
    assert ours(program, (x,)).total_flops == of_program(program, x)


def test_what_depends_on_kernels() -> None:
    """ptflops leaves out an LSTM's single CPU kernel; we count it as in double. We count a bias as if the input were contiguous."""
    x = torch.randn(5, 2, 4)
    assert theirs(nn.LSTM(4, 3), (x,)) == 0
    assert ours(nn.LSTM(4, 3), (x,)).total_flops == theirs(nn.LSTM(4, 3).double(), (x.double(),))
    apart = Runs(lambda x, fc: fc(x.transpose(0, 1)), fc=nn.Linear(4, 3))
    assert theirs(apart, (x,)) == 5 * 2 * 4 * 3
    assert ours(apart, (x,)).total_flops == theirs(nn.Linear(4, 3), (x,)) == 5 * 2 * (4 + 1) * 3

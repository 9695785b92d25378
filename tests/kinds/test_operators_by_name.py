"""An operator called by its name, e.g. ``torch.ops.aten.softmax(...)``, must have the same count and memory as the function with
that name.

The oracle is a dispatch mode that tracks the storages of the model's own run. For a GPU, which may be absent, the oracle is the
function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops

from .live_bytes import Live

aten = torch.ops.aten


class Layer(nn.Module):
    """An LSTM's weights, and a function that is called with an input and this module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 16, batch_first=True)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self).sum()


def attention(call: Any) -> Callable[..., Any]:
    return lambda x, m: call(x[:, None], x[:, None], x[:, None], is_causal=True)


def recurrent(call: Any) -> Callable[..., Any]:
    def run(x: torch.Tensor, m: Any) -> torch.Tensor:
        state = x.new_zeros(1, x.shape[0], 16)
        return call(x, (state, state), list(m.lstm._parameters.values()), True, 1, 0.0, m.training, False, True)[0]

    return run


def lower(call: Any) -> Callable[..., Any]:
    return lambda x, m: call(x.bfloat16(), -1, torch.float32)


def alone(call: Any, *more: Any) -> Callable[..., Any]:
    return lambda x, m: call(x, *more)


CASES: dict[str, tuple[Callable[..., Any], list[Callable[..., Any]]]] = {
    "attention": (
        attention(F.scaled_dot_product_attention),
        [attention(aten.scaled_dot_product_attention), attention(aten.scaled_dot_product_attention.default)],
    ),
    "lstm": (recurrent(torch.lstm), [recurrent(aten.lstm), recurrent(aten.lstm.input)]),
    "softmax": (alone(torch.softmax, -1), [alone(aten.softmax, -1), alone(aten.softmax.int, -1)]),
    "softmax in float32": (lower(torch.softmax), [lower(aten.softmax), lower(aten.softmax.int)]),
    "log_softmax": (lower(torch.log_softmax), [lower(aten.log_softmax), lower(aten.log_softmax.int)]),
    "dropout": (
        alone(torch.dropout, 0.5, True),
        [alone(aten.dropout, 0.5, True), alone(aten.dropout.default, 0.5, True)],
    ),
    "mish": (alone(F.mish), [alone(aten.mish), alone(aten.mish.default)]),
    "rms_norm": (alone(F.rms_norm, [32]), [alone(aten.rms_norm, [32]), alone(aten.rms_norm.default, [32])]),
}


def figures(function: Any, backward: bool, device: str, on_meta: bool) -> tuple[Any, ...]:
    with torch.device("meta" if on_meta else "cpu"), torch.set_grad_enabled(backward):
        x = torch.randn(4, 128, 32, requires_grad=backward)
        report = fxflops.count(Layer(function), x, mode="train", backward=backward, device=device)
    return report.total_macs, report.total_flops, report.max_memory, report.missing


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_the_function_of_its_name(name: str, backward: bool) -> None:
    function, operators = CASES[name]
    for operator in operators:
        model, x = Layer(operator), torch.randn(4, 128, 32, requires_grad=backward)
        live = Live([*model.parameters(), x])
        with live, torch.set_grad_enabled(backward):
            out = model(x)
            if backward:
                out.backward()
        for on_meta in (False, True):
            own = figures(operator, backward, "cpu", on_meta)
            assert own == figures(function, backward, "cpu", on_meta)
            assert own[2] == pytest.approx(live.peak, rel=5e-4)
            assert figures(operator, backward, "cuda", on_meta) == figures(function, backward, "cuda", on_meta)

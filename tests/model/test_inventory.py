"""The contents of a model: quantized weights count with the bytes that they take."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing

import fxflops
from fxflops.model import inventory
from fxflops.model.inventory import Inventory

OUT, IN = 24, 40


class Int8Tensor(torch.Tensor):
    """A weight that reports f32 but holds int8 values and a scale per row, like torchao's."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor) -> None:
        self.data8, self.scale = data, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data8", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return return_and_correct_aliasing(func, args, kwargs, Int8Tensor(args[0].data8, args[0].scale))
        plain = [arg.data8 * arg.scale if isinstance(arg, Int8Tensor) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


def wrapped() -> nn.Linear:
    layer = nn.Linear(IN, OUT)
    weight = Int8Tensor(torch.ones(OUT, IN, dtype=torch.int8), torch.ones(OUT, 1))
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


@pytest.mark.parametrize("watch", [fxflops.count, lambda *args: fxflops.analyze(*args, repeats=0, progress=False)])
def test_a_weight_that_wraps_others_takes_their_bytes(watch: Any) -> None:
    report = watch(wrapped(), torch.randn(2, IN))
    taken = OUT * IN + OUT * 4 + OUT * 4  # int8 weights, f32 scales, f32 bias
    assert report.params.bytes == report.memory["params"] == taken
    assert report.params.total == OUT * IN + OUT


@pytest.mark.filterwarnings("ignore")
def test_weights_packed_for_a_kernel_are_parameters() -> None:
    plain = nn.Sequential(nn.Linear(IN, OUT), nn.Linear(OUT, 8), nn.LSTM(8, 4))
    quantized = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear, nn.LSTM})
    weights, biases = OUT * IN + 8 * OUT + 16 * 8 + 16 * 4, OUT + 8 + 16 + 16
    _, found = Inventory(quantized).contents
    assert (found.total, found.trainable) == (weights + biases, 0)
    assert found.bytes == weights + 4 * biases


@pytest.mark.filterwarnings("ignore")
def test_packed_weights_are_in_the_peak() -> None:
    quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(IN, OUT)), {nn.Linear})
    x = torch.randn(2, IN)
    with fxflops.profile(quantized) as p:
        quantized(x)
    for report in (fxflops.count(quantized, x), fxflops.analyze(quantized, x, repeats=0, progress=False), p.report):
        assert report.memory["params"] == report.params.bytes == OUT * IN + 4 * OUT


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layer", "batch", "weights", "biases"),
    [
        (lambda: nn.Linear(IN, OUT), (2,), OUT * IN, OUT),
        (lambda: nn.LSTM(IN, OUT), (3, 2), 4 * OUT * (IN + OUT), 8 * OUT),
        (lambda: nn.GRU(IN, OUT, bidirectional=True), (3, 2), 2 * 3 * OUT * (IN + OUT), 2 * 6 * OUT),
        (lambda: nn.LSTMCell(IN, OUT), (2,), 4 * OUT * (IN + OUT), 8 * OUT),
    ],
)
def test_weights_packed_in_half_precision_have_two_bytes(
    layer: Any, batch: tuple[int, ...], weights: int, biases: int
) -> None:
    kinds = {nn.Linear, nn.LSTM, nn.GRU, nn.LSTMCell}
    quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer()), kinds, torch.float16)
    report = fxflops.count(quantized, torch.randn(*batch, IN))
    assert report.params.total == weights + biases
    assert report.memory["params"] == report.params.bytes == 2 * weights + 4 * biases


def test_another_thread_may_count_the_model_meanwhile() -> None:
    """Between any two instructions, an observer in another thread may set a module's forward or remove it again."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    expected = Inventory(model).contents

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != inventory.__file__:
            return None
        frame.f_trace_opcodes = True
        for module in model:
            if vars(module).pop("forward", None) is None:
                vars(module)["forward"] = object()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = Inventory(model).contents
    finally:
        sys.settrace(before)
    assert found == expected

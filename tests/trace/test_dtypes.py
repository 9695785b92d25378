"""A call that mixes dtypes is counted if and only if it runs. torch's own kernels decide, on small tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops.distributed.rank_mode import Rank
from fxflops.errors import RunError
from fxflops.torch_internals import fake_tensors
from fxflops.trace.dtypes import MixedDtypesError

DTYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64
INDEX = torch.zeros(2, dtype=torch.long)
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
CASES: dict[str, Case] = {  # the first tensor has one dtype, the others another
    "linear": (F.linear, ((2, 3), (4, 3), (4,))),
    "linear on 3 dims": (F.linear, ((2, 2, 3), (4, 3))),
    "matmul": (torch.matmul, ((2, 3), (3, 4))),
    "batched": (torch.matmul, ((5, 2, 3), (3, 4))),
    "mv": (torch.mv, ((2, 3), (3,))),
    "bias": (torch.addmm, ((4,), (2, 3), (3, 4))),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ik", x, y), ((2, 3), (3, 4))),
    "conv": (F.conv2d, ((1, 3, 8, 8), (4, 3, 3, 3), (4,))),
    "conv bias": (lambda b, x, w: F.conv1d(x, w, b), ((4,), (1, 3, 8), (4, 3, 3))),
    "conv transpose": (F.conv_transpose2d, ((1, 3, 8, 8), (3, 4, 3, 3))),
    "batch norm": (lambda x, m, v, w: F.batch_norm(x, m, v, w, w), ((2, 3, 4), (3,), (3,), (3,))),
    "layer norm": (lambda x, w: F.layer_norm(x, (3,), w, w), ((2, 3), (3,))),
    "group norm": (lambda x, w: F.group_norm(x, 2, w, w), ((2, 4, 3), (4,))),
    "rms norm": (lambda x, w: F.rms_norm(x, (3,), w), ((2, 3), (3,))),
    "prelu": (F.prelu, ((2, 3), (3,))),
    "attention": (F.scaled_dot_product_attention, ((1, 2, 4, 8),) * 3),
    "mask": (lambda m, x: F.scaled_dot_product_attention(x, x, x, m), ((4, 4), (1, 2, 4, 8))),
    "grid sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), ((1, 3, 4, 4), (1, 4, 4, 2))),
    "cell": (lambda x, h, w, v: torch.lstm_cell(x, (h, h), w, v), ((2, 3), (2, 4), (16, 3), (16, 4))),
    "loss": (F.binary_cross_entropy, ((2,), (2,))),
    "mean": (F.mse_loss, ((2,), (2,))),
    "cat": (lambda x, y: torch.cat([x, y]), ((2,), (2,))),
    "sum": (torch.add, ((2,), (2,))),
    "put": (lambda x, y: x.clone().index_put_((INDEX,), y), ((4,), (2,))),
    "index add": (lambda x, y: x.index_add(0, INDEX, y), ((4,), (2,))),
    "slice": (lambda x, y: x.clone()[:2].copy_(y), ((4,), (2,))),
}


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("name", CASES)
def test_what_runs_is_counted_and_nothing_else(name: str, device: str) -> None:
    function, (first, *others) = CASES[name]
    for a, b in itertools.product(DTYPES, DTYPES):
        inputs = torch.rand(first).to(device, a), *(torch.rand(shape).to(device, b) for shape in others)
        try:
            function(*inputs)
            runs = True
        except RuntimeError:
            runs = False
        # A model on meta follows the CPU's rules.
        for given in (inputs, tuple(tensor.to("meta") for tensor in inputs))[: 2 if device == "cpu" else 1]:
            if runs:
                assert fxflops.count(Calls(function), given).trace == "counted on the meta device", (a, b)
            else:
                with pytest.raises(RunError) as found:
                    fxflops.count(Calls(function), given)
                assert isinstance(found.value, RuntimeError), (a, b)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("name", CASES)
def test_what_runs_is_simulated_and_nothing_else(name: str) -> None:
    function, (first, *others) = CASES[name]
    for a, b in itertools.product(DTYPES, DTYPES):
        inputs = torch.rand(first).to(a), *(torch.rand(shape).to(b) for shape in others)
        try:
            function(*inputs)
            runs = True
        except RuntimeError:
            runs = False
        with fake_tensors()[1](allow_non_fake_inputs=True) as mode, Rank(mode):
            fakes = [mode.from_tensor(tensor) for tensor in inputs]
            with nullcontext() if runs else pytest.raises(RuntimeError):
                function(*fakes)


@pytest.mark.parametrize("name", ["layer norm", "group norm", "batch norm"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_norms_weights_are_refused_as_the_device_refuses_them(name: str, device: str) -> None:
    """On a GPU, only batch norm takes float32 weights with an input of half the width. Fake tensors need no GPU."""
    function, (first, *others) = CASES[name]
    fake, mode_of = fake_tensors()
    with mode_of() as mode, Rank(mode), torch.no_grad():
        tensors = [torch.empty(first, dtype=torch.bfloat16, device="meta")]
        tensors += [torch.empty(shape, device="meta") for shape in others]
        fakes = [fake(mode, tensor, torch.device(device)) for tensor in tensors]
        refused = device == "cuda" and name != "batch norm"
        with pytest.raises(MixedDtypesError) if refused else nullcontext():
            function(*fakes)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_layer_of_another_dtype(device: str, backward: bool) -> None:
    model, x = nn.Sequential(nn.Linear(3, 4).half()).to(device), torch.ones(2, 3)
    with pytest.raises(RunError, match=r"module '0'\n  given f32\[2,3\]\n.*the same dtype") as found:
        fxflops.count(model, x, backward=backward)
    assert str(found.value).endswith(
        "\n  cast the inputs or the model with .to(dtype), or run the model under torch.autocast"
    )
    assert fxflops.count(model, x.half(), backward=backward).complete


def test_integers_are_no_input_of_a_layer() -> None:
    with pytest.raises(RunError, match="the same dtype"):
        fxflops.count(nn.Linear(3, 4, device="meta"), torch.ones(2, 3, dtype=torch.long))
    for bias in (False, True):  # torch has a message for each
        with pytest.raises(RunError, match=r"type.*\n  cast the inputs"):
            fxflops.count(nn.Conv2d(3, 4, 3, bias=bias), torch.ones(1, 3, 4, 4, dtype=torch.uint8))


def test_autocast_makes_them_alike() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3).bfloat16(), nn.Flatten(), nn.Linear(16, 2)), torch.ones(1, 3, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        report = fxflops.count(model, x)
    assert report.complete
    assert report.trace == "counted on the meta device"


@pytest.mark.filterwarnings("ignore:.*Disabling")  # torch warns that it turns autocast off
def test_a_model_on_meta_may_be_for_another_machine() -> None:
    """Without a GPU torch turns its autocast off, so it is unknown what it would cast."""

    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4, device="meta", dtype=torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return self.layer(x)

    assert fxflops.count(Casts(), torch.ones(2, 3, device="meta")).complete
    with pytest.raises(RunError, match="the same dtype"):
        fxflops.count(Casts().layer, torch.ones(2, 3, device="meta"))

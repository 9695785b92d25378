"""count() on meta: the model sees its own device, keeps the values it computes, and leaves nothing on meta."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import analyze, count
from fxflops.trace.device_answers import DeviceAnswers

SEEN: list[Any] = []


class Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append((x.device, x.is_cuda, x.is_meta, x.get_device()))
        y = x.to("cpu").cpu() + torch.zeros(3, device=x.device)
        mask = torch.ones(3, 3, dtype=torch.bool, device=y.device).tril()
        return y * 2 if bool(mask.all()) else y * mask.sum().item()


@functools.cache
def table(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32).mul(0.5).cos()


class Cached(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.linspace(0, 1, 3)
        return x * table(3) if steps[1].item() == 0.5 else x


class Scheduled(nn.Module):
    class Schedule:
        def __init__(self) -> None:
            self.steps: Any = [0.0]

    def __init__(self) -> None:
        super().__init__()
        self.schedule = self.Schedule()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.schedule.steps = x.exp()
        return self.schedule.steps + 1


def test_the_model_sees_its_own_device() -> None:
    report = count(Asks(), torch.ones(2, 3))
    assert SEEN[-1] == (torch.device("cpu"), False, False, -1)
    assert report.trace == "counted on the meta device"
    assert report.total_flops == analyze(Asks(), torch.ones(2, 3), repeats=0).total_flops


def test_what_a_model_computes_by_itself_keeps_its_values() -> None:
    report = count(Cached(), torch.ones(2, 3))
    assert report.trace == "counted on the meta device"
    assert report.total_flops == 3 + 3 + 6
    assert table(3).device.type == "cpu"


def test_an_object_of_the_models_is_as_it_was() -> None:
    model = Scheduled()
    count(model, torch.ones(2, 3))
    assert model.schedule.steps == [0.0]


def test_large_masks_are_made_on_meta() -> None:
    class Masks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(10**6, 10**6, dtype=torch.bool, device=x.device)
            return x.new_zeros(10**7, 3) + x[:1] + mask[:1, :3]

    assert count(Masks(), torch.ones(2, 3)).total_flops == 2 * 3 * 10**7


class WrittenInPieces(nn.Module):
    """Fills a buffer, which begins with values, from a tensor without values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = x.new_empty(1, 8, 4)
        held[:, 0:8] = self.fc(x)
        return held + 1


class MaskOfBools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).masked_fill(torch.ones(8, 4, dtype=bool, device=x.device), 0.0)


@pytest.mark.parametrize("cls", [WrittenInPieces, MaskOfBools])
def test_what_transformers_models_do(cls: type[nn.Module]) -> None:
    model, x = cls(), torch.randn(1, 8, 4)
    report = count(model, x)
    assert report.trace == "counted on the meta device"
    assert report.complete
    assert report.total_flops == analyze(model, x, repeats=0, progress=False).total_flops


class Moves(nn.Module):
    """Formats the number of tokens in a check, as vision-language models do, and moves its results back to the CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x > 0).sum()
        assert f"{tokens} of {torch.arange(3).max()}"
        return x.cpu() * torch.arange(3).cpu()


def test_moves_are_calls_and_saying_a_number_is_none() -> None:
    x = torch.ones(2, 3)
    made, ran = (
        [(call.op, repr(call.out)) for call in report.calls] for report in (count(Moves(), x), analyze(Moves(), x))
    )
    assert sorted(made) == sorted(ran)
    assert [op for op, _ in made].count("cpu") == 2
    assert "detach" not in dict(made)


def test_a_tensor_tells_the_type_that_it_has_on_its_own_device() -> None:
    """``x.type()`` returns its name, and ``x.type(torch.DoubleTensor)`` converts it."""
    told = list[str]()

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.layer(x)
            told.append(hidden.type())
            return hidden.type(torch.DoubleTensor) * 2 if told[-1] == "torch.FloatTensor" else hidden

    model, x = Asks(), torch.randn(2, 4)
    counted = count(model, x)
    analyzed = analyze(model, x, trace="record", repeats=0)
    assert {*told} == {"torch.FloatTensor"}
    assert counted.trace == "counted on the meta device"
    assert [(call.op, call.out) for call in counted.calls] == [(call.op, call.out) for call in analyzed.calls]
    assert counted.calls[-1].out.dtype is torch.float64
    assert counted.total_flops == 2 * 4 * 4 * 2 + 2 * 4


MANY = 2**21
"""Too many floats to make them with values, but not too many integers."""


@pytest.mark.parametrize(
    ("func", "args", "device"),
    [
        *((getattr(torch, name), (0, MANY), "cpu") for name in ("arange", "range", "linspace", "logspace")),
        (torch.randperm, (MANY,), "cpu"),
        (torch.full, ((MANY,), 1), "cpu"),
        (torch.full, ((MANY,), True), "cpu"),
        (torch.full, ((MANY,), 1.0), "meta"),
        (torch.full, ((2, 3), 1.0), "cpu"),
        (torch.zeros, (MANY,), "meta"),
        (torch.zeros, ((2, MANY),), "meta"),
        (torch.zeros, ([2, 3],), "cpu"),
        (torch.zeros, (2, MANY), "meta"),
        (torch.randint, (50000, (2, 512)), "cpu"),
        (torch.full, ((2, 512), 50256), "cpu"),
        (torch.empty_strided, ((2**10, 2**9), (2**9, 1)), "cpu"),
        (torch.Tensor.new_full, (torch.ones(1), (MANY,), 1), "meta"),
        (torch.zeros_like, (torch.empty(MANY, device="meta"),), "meta"),
        (torch.zeros_like, (torch.empty(MANY, device="meta", dtype=torch.bool),), "cpu"),
    ],
)
def test_where_a_new_tensor_is_made(func: Any, args: tuple[Any, ...], device: str) -> None:
    assert DeviceAnswers(torch.device("cpu")).redirect(func, args, {}) == (args, {"device": device})


def test_a_size_given_by_name_is_one() -> None:
    for size, device in (((2, MANY), "meta"), ((2, 3), "cpu")):
        kwargs = {"size": size, "fill_value": 1.0}
        assert DeviceAnswers(torch.device("cpu")).redirect(torch.full, (), kwargs) == ((), {**kwargs, "device": device})


def test_asking_where_a_tensor_is_is_no_call() -> None:
    class Where(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.get_device() == -1 and x.device.type == "cpu" and x.is_cpu else x

    for backward in (False, True):
        report = count(Where(), torch.ones(2, 3, requires_grad=True), backward=backward)
        assert [call.op for call in report.calls if call.phase == "forward"] == ["mul"]

"""Layers that know which one they are: made again as one another unless their number is read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from anew import assert_same
from torch import nn

import fxflops
from fxflops.records import Cost
from fxflops.trace.attributes import is_heard, telling_of_reads
from fxflops.trace.plans import forget

RAN: list[int] = []
X = torch.randn(2, 8)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    forget()
    RAN.clear()
    yield
    for cls in Numbered.__subclasses__():
        assert "layer_idx" not in vars(cls)


class Numbered(nn.Module):
    def __init__(self, number: Any, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.layer_idx = number
        self.inner = inner
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RAN.append(0)
        return x + self.linear(x)


class Unread(Numbered):
    """Its number is of no matter."""


def width_of(module: Any) -> int:
    return int(module.layer_idx) + 1


class Read(Numbered):
    """Does what its number says, in other code than its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RAN.append(0)
        return x + self.linear(x.repeat(width_of(self), 1))[: len(x)]


class Around(Numbered):
    """Holds one that may read its number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RAN.append(0)
        assert self.inner is not None
        return self.inner(x) * 2


class Past(Numbered):
    """Reads it so that nobody hears."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RAN.append(0)
        return x + self.linear(x.repeat(vars(self)["layer_idx"] + 1, 1))[: len(x)]


class Owning(Numbered):
    """Says itself what its number is."""

    @property
    def layer_id(self) -> int:
        return 5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x.repeat(self.layer_id + self.layer_idx, 1))[: len(x)]


class Counting(Numbered):
    """Counts itself up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer_idx += 1
        return x + self.linear(x.repeat(self.layer_idx, 1))[: len(x)]


class Stack(nn.Sequential):
    """One after another: no leaf, as ``nn.Sequential`` is none."""


def stack(make: Any) -> nn.Module:
    return Stack(*(make(number) for number in range(4)))


def test_equal_layers_run_once() -> None:
    model = stack(Unread)
    report = fxflops.count(model, X)
    assert len(RAN) == 1
    assert [s.settings["layer_idx"] for s in report.scopes if s.cls is Unread] == [0, 1, 2, 3]
    assert_same(model, X)


@pytest.mark.parametrize("first", [0, 7])
def test_another_model_has_numbers_of_its_own(first: int) -> None:
    fxflops.count(stack(Unread), X)
    model = stack(lambda number: Unread(number + first))
    report = fxflops.count(model, X)
    assert len(RAN) == 1
    assert [s.settings["layer_idx"] for s in report.scopes if s.cls is Unread] == [*range(first, first + 4)]


def test_a_number_that_is_read_tells_layers_apart() -> None:
    model = stack(Read)
    assert fxflops.count(model, X).total_macs == (1 + 2 + 3 + 4) * 2 * 8 * 8
    assert len(RAN) == 4
    assert_same(model, X, first=False)
    assert fxflops.count(stack(lambda number: Read(2)), X).total_macs == 4 * 3 * 2 * 8 * 8


@pytest.mark.parametrize("inner", [Unread, Read])
def test_what_is_around_a_layer_depends_on_what_that_reads(inner: Any) -> None:
    model = stack(lambda number: Around(9, inner(number % 2)))
    assert_same(model, X)
    other = stack(lambda number: Around(number, inner(number)))
    for _ in range(2):
        assert_same(other, X, first=False)
    forget()
    RAN.clear()
    fxflops.count(other, X)
    assert len(RAN) == (8 if inner is Read else 2)


CASES = {
    "past us": lambda: stack(Past),
    "a property": lambda: stack(Owning),
    "counts itself": lambda: stack(Counting),
    "no number": lambda: stack(lambda number: Read(float(number))),
    "one of some": lambda: Stack(Read(1), Unread(2), nn.Linear(8, 8), Read(3), Read(1), Unread(1)),
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_what_numbers_do(make: Any) -> None:
    assert_same(make(), X)


def test_a_formula_of_a_layer_reads_its_number() -> None:
    def formula(module: Any, input: Any, *, out: Any) -> Cost:
        return Cost(others=module.layer_idx)

    model = stack(Unread)
    for _ in range(2):
        report = fxflops.count(model, X, formulas={Unread: formula})
        assert report.total_flops == 0 + 1 + 2 + 3
        assert [call.settings["layer_idx"] for call in report.calls] == [0, 1, 2, 3]


def test_a_count_within_a_count_hears_for_both() -> None:
    class Counted(Numbered):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            width = fxflops.count(Read(self.layer_idx), X).total_macs // (2 * 8 * 8)
            return x + self.linear(x.repeat(width, 1))[: len(x)]

    assert_same(stack(Counted), X)
    assert "layer_idx" not in vars(Read)
    assert "layer_idx" not in vars(Counted)


def test_classes_are_left_as_they_were() -> None:
    class Raising(Numbered):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.layer_idx < 0
            return x

    before = {name: inspect.getattr_static(Raising, name) for name in dir(Raising)}
    with pytest.raises(fxflops.FxflopsError):
        fxflops.count(Raising(1), X)
    assert {name: inspect.getattr_static(Raising, name) for name in dir(Raising)} == before


def test_what_is_told_and_by_whom() -> None:
    told: list[int] = []
    module, other = Read(3), Numbered(4)
    with telling_of_reads([module], lambda: told.append(1)):
        assert (module.layer_idx, other.layer_idx, len(told)) == (3, 4, 1)
        assert not hasattr(module, "layer_id")
        module.layer_idx = 5
        assert vars(module)["layer_idx"] == 5
        del module.layer_idx
        with pytest.raises(AttributeError, match="no attribute 'layer_idx'"):
            _ = module.layer_idx
        assert len(told) == 1
    assert [*map(is_heard, (Read, Unread, Past, Owning, nn.Linear))] == [True, True, False, False, False]


@pytest.mark.parametrize("cache", [False, True])
def test_a_decoder_of_transformers(cache: bool) -> None:
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, use_cache=cache
    )
    assert_same(transformers.LlamaModel(config).eval(), torch.ones(1, 5, dtype=torch.long))

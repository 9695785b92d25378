"""Values with tensors inside: found, taken apart and put together again."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import torch
from torch import nn

from fxflops.structure import Hole, fill, template_of, tensors_in, walk

Pair = namedtuple("Pair", "left right")
A, B = torch.ones(1), torch.ones(2)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    name: str = "n"


class Cache:
    def __init__(self, *keys: torch.Tensor) -> None:
        self.keys = list(keys)
        self.itself = self


def test_tensors_are_found_in_order_wherever_they_are() -> None:
    value = [A, {"k": (B, Pair(A, Frozen(B)))}, Cache(A, B), nn.Linear(2, 2), "text", None]
    assert [id(t) for t in tensors_in(value)] == [id(A), id(B)]
    assert (("item", 1), ("item", "k"), ("item", 0)) in [path for path, part in walk(value) if part is B]


def test_a_template_is_filled_with_other_tensors() -> None:
    value = {"a": [A, 7], "pair": Pair(B, None), "frozen": Frozen(A), "ordered": OrderedDict(x=B), "cache": Cache(A)}
    template, tensors = template_of(value)
    assert tensors == [A, B]
    assert template["a"] == [Hole(0), 7]
    other = fill(template, B, A)
    assert other["a"][0] is B
    assert isinstance(other["pair"], Pair)
    assert other["pair"].left is A
    assert isinstance(other["frozen"], Frozen)
    assert other["frozen"].x is B
    assert other["frozen"].name == "n"
    assert isinstance(other["ordered"], OrderedDict)
    assert other["cache"].keys[0] is B
    assert value["a"][0] is A
    assert value["cache"].keys[0] is A

"""Nested values with tensors inside are searched, taken apart and put together again."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import analyze, count
from fxflops.model.pytree import Hole, caches_in, fill, template_of, tensors_in, walk

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


class Tensors(MutableMapping[str, Any]):
    """Accepts only tensors and its own kind, as a TensorDict does, and has no truth value."""

    def __init__(self, **items: Any) -> None:
        self._held: dict[str, Any] = {}
        self.update(items)

    def __copy__(self) -> Tensors:
        return Tensors(**self._held)

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(value, (torch.Tensor, Tensors)):
            raise TypeError(key)
        self._held[key] = value

    def __delitem__(self, key: str) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def test_a_mapping_that_takes_tensors_alone() -> None:
    value = [Tensors(a=A, inner=Tensors(b=B)), deque([B])]
    template, tensors = template_of(value)
    assert tensors == [A, B]
    other = fill(template, B, A)
    assert other[0]["a"] is B
    assert other[0]["inner"]["b"] is A
    assert other[1][0] is A
    assert value[0]["a"] is A
    assert value[0]["inner"]["b"] is B


def test_torchs_own_tuples() -> None:
    value = torch.ones(3, 4).topk(2)
    template, tensors = template_of(value)
    other = fill(template, *reversed(tensors))
    assert type(other) is type(value)
    assert other.values is value.indices


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 5)

    def forward(self, batch: Any) -> Any:
        batch["out"] = self.fc(batch["a"])
        return batch


@pytest.mark.parametrize("kind", ["ours", "tensordict"])
def test_a_model_that_writes_into_its_input(kind: str) -> None:
    x = torch.randn(3, 4)
    if kind == "ours":
        batch: Any = Tensors(a=x, inner=Tensors(b=x))
    else:
        batch = pytest.importorskip("tensordict").TensorDict({"a": x, "inner": {"b": x}}, batch_size=[3])
    for report in (
        count(Writing(), batch),
        *(analyze(Writing(), batch, trace=trace, repeats=1, progress=False) for trace in ("auto", "record")),
    ):
        assert report.total_macs == 3 * 4 * 5
        assert set(batch.keys()) == {"a", "inner"}
        assert batch["a"].device.type == "cpu"
        assert torch.equal(batch["a"], x)


def test_the_tensors_of_a_cache_have_their_places_in_it() -> None:
    class Layer:
        def __init__(self) -> None:
            self.keys, self.values = torch.ones(1), torch.ones(2)

    class DynamicCache:
        def __init__(self) -> None:
            self.layers = [Layer(), Layer()]

    out = {"logits": torch.ones(3), "past_key_values": DynamicCache()}
    assert [(name, tensor.numel()) for name, tensor in caches_in(out)] == [
        ("layers.0.keys", 1), ("layers.0.values", 2), ("layers.1.keys", 1), ("layers.1.values", 2),
    ]  # fmt: skip
    assert caches_in((torch.ones(1), [torch.ones(1)])) == []

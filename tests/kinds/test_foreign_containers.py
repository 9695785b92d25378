"""Kind: a module, an input or an output holds an object of a foreign class. fxflops must not run that class's code, which may load
data or raise.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

import fxflops

X = torch.randn(4, 8)


class Touched(Exception):
    """Raised by code that the model's own run does not call."""


class Lazy(Mapping[str, torch.Tensor]):
    """A mapping of 1,000 tensors, each created when it is read."""

    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}
        self.reads = 0

    def __getitem__(self, key: str) -> torch.Tensor:
        self.reads += 1
        return self.loaded.setdefault(key, torch.full((8,), float(key)))

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return map(str, range(1000))

    def __len__(self) -> int:
        self.reads += 1
        return 1000


def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise Touched


ANY = (
    "__iter__",
    "__len__",
    "__bool__",
    "__contains__",
    "__getitem__",
    "__eq__",
    "__copy__",
    "__deepcopy__",
    "__reduce_ex__",
)
ANY += (
    "__repr__",
    "__getattr__",
    "items",
    "keys",
    "values",
    "copy",
    "get",
    "update",
    "clear",
    "append",
    "pop",
    "__hash__",
)


def refusing(base: type, *names: str) -> type:
    return type("Refusing", (base,), dict.fromkeys((*ANY, *names), refuse))


def made_of(cls: type, **attributes: Any) -> Any:
    made = cls.__new__(cls)
    object.__getattribute__(made, "__dict__").update(attributes)
    return made


class Proxy:
    """An object that reports another class, and must load data to do so, like a wrapt proxy."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise Touched

    def __getattr__(self, name: str) -> Any:
        raise Touched


class Undict:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise Touched


class Slots(Mapping[str, Any]):
    __slots__ = ("held",)
    __getitem__ = __iter__ = __len__ = refuse  # type: ignore[assignment]


class Items(Sequence[Any]):
    __getitem__ = __len__ = refuse  # type: ignore[assignment]


class Writes(MutableMapping[str, Any]):
    __getitem__ = __setitem__ = __delitem__ = __iter__ = __len__ = refuse  # type: ignore[assignment]


HELD: dict[str, Callable[[], Any]] = {
    "a mapping that loads": Lazy,
    "a mapping that raises": lambda: refusing(Lazy)(),
    "a mapping with slots": Slots,
    "a mutable mapping": Writes,
    "a sequence": Items,
    "a dict of a subclass": lambda: refusing(dict)({"a": torch.ones(2)}),
    "an ordered dict of a subclass": lambda: refusing(OrderedDict)(a=torch.ones(2)),
    "a list of a subclass": lambda: refusing(list)([torch.ones(2), [1]]),
    "a tuple of a subclass": lambda: refusing(tuple)([torch.ones(2), [1]]),
    "a set of a subclass": lambda: refusing(set)([1, 2]),
    "a deque of a subclass": lambda: refusing(deque)([1, 2]),
    "a UserDict": lambda: made_of(refusing(UserDict), data={"a": [1]}),
    "a UserList": lambda: made_of(refusing(UserList), data=[[1]]),
    "an object": lambda: refusing(object)(),
    "an exception": lambda: refusing(ValueError)("x"),
    "a proxy": Proxy,
    "an object with its own __dict__": Undict,
    "a generator": lambda: (refuse(None) for _ in range(3)),
    "a mappingproxy": lambda: MappingProxyType({"a": Lazy()}),
    "a container in containers": lambda: {"a": [(Lazy(), refusing(object)())]},
    "a function with an attribute": lambda: refuse,
    "a logger": lambda: logging.getLogger("somewhere"),
}


class Model(nn.Module):
    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        vars(self)["held"] = held  # torch's own __setattr__ would ask for its class

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


def held_bytes(name: str) -> int:
    """Return the bytes of the tensor in a container that subclasses a built-in one. The model holds this tensor all the time."""
    kinds = "a dict of a subclass", "an ordered dict of a subclass", "a list of a subclass", "a tuple of a subclass"
    return 8 if name in kinds else 0


def figures(model: nn.Module, *args: Any) -> list[Any]:
    counted = fxflops.count(model, args, backward=True, optimizer=torch.optim.SGD)
    analysed = fxflops.analyze(model, args, repeats=0, progress=False)
    recorded = fxflops.analyze(model, args, repeats=0, progress=False, trace="record")
    with fxflops.profile(model) as p:
        model(*args)
    reports = counted, analysed, recorded, p.report
    return [
        (each.total_flops, each.total_macs, each.complete, each.max_memory if i != 3 else 0)
        for i, each in enumerate(reports)
    ]


@pytest.fixture(scope="module")
def plain() -> list[Any]:
    return figures(Model(), X)


@pytest.mark.parametrize("name", HELD)
def test_a_module_holds_it(name: str, plain: list[Any]) -> None:
    held = HELD[name]()
    model = Model(held)
    assert figures(model, X) == [
        (flops, macs, complete, peak and peak + held_bytes(name)) for flops, macs, complete, peak in plain
    ]
    assert vars(model)["held"] is held
    if type(held) is Lazy:
        assert (held.reads, held.loaded) == (0, {})


class Given(nn.Module):
    """Reads one item of its second input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, held: Any) -> torch.Tensor:
        return self.layer(x) * (held["3"] if type(held) is Lazy else 2.0)


@pytest.mark.parametrize("name", [name for name in HELD if "generator" not in name])
def test_an_input_is_read_by_the_model_alone(name: str) -> None:
    model, held = Given(), HELD[name]()
    with fxflops.profile(model) as p:
        model(X, held)
    if type(held) is Lazy:
        assert (held.reads, [*held.loaded]) == (1, ["3"])
    assert p.report.total_macs == fxflops.count(model, (X, held)).total_macs == 4 * 8 * 8
    if type(held) is Lazy:
        assert (held.reads, [*held.loaded]) == (1, ["3"])  # the count changed nothing


class Returning(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        vars(self)["held"] = held

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x), self.held


@pytest.mark.parametrize("name", HELD)
def test_an_output_is_not_read(name: str) -> None:
    held = HELD[name]()
    model = Returning(held)
    expected = fxflops.count(Returning(None), X, backward=True)
    counted = fxflops.count(model, X, backward=True)
    assert counted.total_flops == expected.total_flops
    assert counted.max_memory == expected.max_memory + held_bytes(name)
    with fxflops.profile(model) as p:
        model(X)
    assert p.report.total_macs == 4 * 8 * 8
    if type(held) is Lazy:
        assert held.reads == 0


class Counting(nn.Module):
    """Changes its containers. A count must restore them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.lazy, self.user, self.listed = Lazy(), UserDict(a=[0]), UserList([0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.user["a"].append(1)
        self.user["b"] = 2
        self.listed.append(3)
        return self.layer(x) * self.lazy["7"]


def test_what_the_model_changes_in_them_is_restored() -> None:
    model = Counting()
    fxflops.count(model, X)
    fxflops.analyze(model, X, repeats=0, progress=False)
    assert (model.lazy.reads, model.lazy.loaded, model.user.data, model.listed.data) == (0, {}, {"a": [0]}, [0])


def offloaded(where: str, folder: Path) -> tuple[nn.Module, Any]:
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 4), nn.LayerNorm(4)))
    if where == "cpu":
        return accelerate.cpu_offload(model, torch.device("cpu"), offload_buffers=True), model
    if where == "disk":
        return accelerate.disk_offload(model, str(folder), torch.device("cpu"), offload_buffers=True), model
    placed = {"0": "cpu", "2": "disk"}
    return accelerate.dispatch_model(model, placed, main_device="cpu", offload_dir=str(folder)), model


@pytest.mark.parametrize("where", ["cpu", "disk", "some on disk"])
def test_models_that_accelerate_has_offloaded(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 4), nn.LayerNorm(4))).eval()
    model, _ = offloaded(where, tmp_path)
    model.eval()
    before = model(X)
    assert torch.equal(before, plain(X))
    from accelerate.utils import offload

    reads: list[str] = []
    read = offload.OffloadedWeightsLoader.__getitem__
    monkeypatch.setattr(
        offload.OffloadedWeightsLoader, "__getitem__", lambda own, key: reads.append(key) or read(own, key)
    )
    model(X)
    once = len(reads)
    places = {name: (p.device.type, tuple(p.shape)) for name, p in model.named_parameters()}
    reads.clear()
    counted = fxflops.count(model, X)
    assert len(reads) <= 2 * once  # a second run finds out where the weights come from
    assert (counted.total_flops, counted.complete) == (fxflops.count(plain, X).total_flops, True)
    analysed = fxflops.analyze(model, X, repeats=0, progress=False)
    assert analysed.total_flops == counted.total_flops
    with fxflops.profile(model) as p:
        model(X)
    assert p.report.total_flops == counted.total_flops
    assert {name: (p.device.type, tuple(p.shape)) for name, p in model.named_parameters()} == places
    assert torch.equal(model(X), before)

"""Tensors that a model does not hold as attributes, but in slots, closures, default arguments, partial functions, callable objects,
classes and globals. They must be in the peak, and a count must leave them unchanged.

The oracles are a dispatch mode that tracks storages, and the values before and after.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import random
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import compile_compatible_method_lru_cache

import fxflops

from .live_bytes import Live

ROWS, WIDTH = 64, 32
SHARED = torch.zeros(ROWS, WIDTH)


class Slotted:
    __slots__ = ("items", "mean")

    def __init__(self, mean: torch.Tensor) -> None:
        self.mean, self.items = mean, list[Any]()


@dataclasses.dataclass(slots=True)
class SlottedData:
    mean: torch.Tensor


class Callable_:
    def __init__(self, mean: torch.Tensor) -> None:
        self.mean = mean

    def __call__(self, y: torch.Tensor) -> torch.Tensor:
        return y + self.mean

    def add(self, y: torch.Tensor) -> torch.Tensor:
        return y + self.mean


class Net(nn.Module):
    """A layer, and ``use``, which may be a closure. No attribute shows the tensors in the closure."""

    mean: Any = None

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(16, WIDTH)
        if held is not None:
            self.held = held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.layer(x)).square().sum()

    def use(self, y: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


Write = Callable[[torch.Tensor, torch.Tensor], None]


def with_use(use: Callable[[Any, torch.Tensor], torch.Tensor], held: Any = None, **attributes: Any) -> nn.Module:
    return type("Model", (Net,), {"use": use, **attributes})(held)


def in_a_slot(mean: torch.Tensor, write: Write) -> nn.Module:
    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        write(self.held.mean, y)
        return y + self.held.mean

    return with_use(use, Slotted(mean))


def in_a_slot_of_data(mean: torch.Tensor, write: Write) -> nn.Module:
    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        write(self.held[0].mean, y)
        return y + self.held[0].mean

    return with_use(use, [SlottedData(mean)])


def in_a_closure(mean: torch.Tensor, write: Write) -> nn.Module:
    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        write(mean, y)
        return y + mean

    return with_use(use)


def in_a_decorated_closure(mean: torch.Tensor, write: Write) -> nn.Module:
    def inner(self: Any, y: torch.Tensor) -> torch.Tensor:
        write(mean, y)
        return y + mean

    return with_use(lambda self, y: inner(self, y))


def in_a_closures_object(mean: torch.Tensor, write: Write) -> nn.Module:
    box = SimpleNamespace(mean=mean)

    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        write(box.mean, y)
        return y + box.mean

    return with_use(use)


def in_a_default(mean: torch.Tensor, write: Write) -> nn.Module:
    def use(self: Any, y: torch.Tensor, table: torch.Tensor = mean) -> torch.Tensor:
        write(table, y)
        return y + table

    return with_use(use)


def in_a_partial(mean: torch.Tensor, write: Write) -> nn.Module:
    def add(table: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        write(table, y)
        return y + table

    return with_use(lambda self, y: self.held(y), functools.partial(add, mean))


def in_a_callable(mean: torch.Tensor, write: Write) -> nn.Module:
    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        write(self.held.mean, y)
        return self.held(y)  # type: ignore[no-any-return]

    return with_use(use, Callable_(mean))


def in_a_methods_object(mean: torch.Tensor, write: Write) -> nn.Module:
    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        write(self.held.__self__.mean, y)
        return self.held(y)  # type: ignore[no-any-return]

    return with_use(use, Callable_(mean).add)


def in_the_class(mean: torch.Tensor, write: Write) -> nn.Module:
    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        write(self.mean, y)
        return y + self.mean

    return with_use(use, mean=mean)


def in_a_function(mean: torch.Tensor, write: Write) -> nn.Module:
    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        write(use.mean, y)  # type: ignore[attr-defined]
        return y + use.mean  # type: ignore[attr-defined, no-any-return]

    use.mean = mean  # type: ignore[attr-defined]
    return with_use(use)


def in_a_hook(mean: torch.Tensor, write: Write) -> nn.Module:
    model = with_use(lambda self, y: y)

    def hook(module: nn.Module, args: Any, y: torch.Tensor) -> torch.Tensor:
        write(mean, y)
        return y + mean

    model.layer.register_forward_hook(hook)
    return model


def in_a_partial_hook(mean: torch.Tensor, write: Write) -> nn.Module:
    model = with_use(lambda self, y: y)

    def hook(table: torch.Tensor, module: nn.Module, args: Any, y: torch.Tensor) -> torch.Tensor:
        write(table, y)
        return y + table

    model.layer.register_forward_hook(functools.partial(hook, mean))
    return model


PLACES = [
    in_a_slot, in_a_slot_of_data, in_a_closure, in_a_decorated_closure, in_a_closures_object, in_a_default, in_a_partial,
    in_a_callable, in_a_methods_object, in_the_class, in_a_function, in_a_hook, in_a_partial_hook,
]  # fmt: skip


def nothing(mean: torch.Tensor, y: torch.Tensor) -> None:
    """Only read."""


def average(mean: torch.Tensor, y: torch.Tensor) -> None:
    with torch.no_grad():
        mean.mul_(0.9).add_(y.detach(), alpha=0.1)


def increment(mean: torch.Tensor, y: torch.Tensor) -> None:
    with torch.no_grad():
        mean.add_(1)


def fill_a_row(mean: torch.Tensor, y: torch.Tensor) -> None:
    with torch.no_grad():
        mean[0] = 7


def runs(model: nn.Module, x: torch.Tensor) -> None:
    for _ in range(2):
        fxflops.count(model, x, mode="as_is")
        fxflops.count(model, x, mode="as_is", backward=True)
        fxflops.analyze(model, x, mode="as_is", repeats=2)
        fxflops.analyze(model, x, mode="as_is", backward=True, trace="record", repeats=1)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_the_peak_has_what_is_held_there(place: Any, backward: bool) -> None:
    x, mean = torch.randn(ROWS, 16), torch.randn(ROWS, WIDTH)
    model = place(mean, nothing)
    live = Live([*model.parameters(), x, mean])
    with live, torch.set_grad_enabled(backward):
        out = model(x)
        if backward:
            out.backward()
    del out
    with torch.set_grad_enabled(backward):
        count = fxflops.count(model, x, mode="as_is", backward=backward)
        analyzed = fxflops.analyze(model, x, mode="as_is", backward=backward, repeats=0)
        with torch.device("meta"):
            on_meta = place(torch.empty(ROWS, WIDTH), nothing)
            there = fxflops.count(on_meta, torch.empty(ROWS, 16), mode="as_is", backward=backward)
    for report in (count, analyzed, there):
        assert report.max_memory == pytest.approx(live.peak, abs=16)


@pytest.mark.parametrize("write", [average, increment, fill_a_row])
@pytest.mark.parametrize("place", PLACES)
def test_what_is_written_there_is_as_before(place: Any, write: Write) -> None:
    x, mean = torch.randn(ROWS, 16), torch.randn(ROWS, WIDTH)
    values, version, model = mean.clone(), mean._version, place(mean, write)
    runs(model, x)
    assert torch.equal(mean, values)
    assert mean._version == version
    expected = place(values, write)
    expected.load_state_dict(model.state_dict())
    assert torch.equal(model(x), expected(x))  # the model still uses the same tensor


def test_a_global_is_as_before() -> None:
    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        increment(SHARED, y)
        return y + SHARED

    runs(with_use(use), torch.randn(ROWS, 16))
    assert not SHARED.any()


@pytest.mark.parametrize("slotted", [True, False])
def test_what_is_replaced_or_appended_there(slotted: bool) -> None:
    box: Any = (
        Slotted(torch.randn(ROWS, WIDTH)) if slotted else SimpleNamespace(mean=torch.randn(ROWS, WIDTH), items=[])
    )
    outside = Slotted(torch.randn(ROWS, WIDTH))
    nested: list[Any] = [torch.randn(ROWS, WIDTH)]

    def wrapped(y: torch.Tensor) -> torch.Tensor:
        outside.mean = outside.mean * 0.9 + y.detach()
        outside.items.append(y)
        nested[0] = nested[0] * 0.9 + y.detach()
        return y + outside.mean + nested[0]

    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        self.held.mean = self.held.mean * 0.9 + y.detach()
        self.held.items.append(y.detach())
        return wrapped(y) + self.held.mean

    model = with_use(use, box)
    means = box.mean, outside.mean, nested[0]
    values = [mean.clone() for mean in means]
    runs(model, torch.randn(ROWS, 16))
    now = box.mean, outside.mean, nested[0]
    assert all(a is b and torch.equal(a, c) for a, b, c in zip(now, means, values, strict=True))
    assert not box.items
    assert not outside.items


def test_generators_in_a_closure_are_as_before() -> None:
    of_torch, of_python = torch.Generator().manual_seed(0), random.Random(0)
    before = of_torch.get_state(), of_python.getstate()

    def use(self: Any, y: torch.Tensor) -> torch.Tensor:
        return y + torch.rand(WIDTH, generator=of_torch) * of_python.random()

    runs(with_use(use), torch.randn(ROWS, 16))
    assert torch.equal(of_torch.get_state(), before[0])
    assert of_python.getstate() == before[1]


@pytest.mark.parametrize("had", [True, False])
def test_gradients_of_leaves_in_a_closure_are_as_before(had: bool) -> None:
    scale = torch.randn(ROWS, WIDTH, requires_grad=True)
    gradient = torch.ones(ROWS, WIDTH) if had else None
    scale.grad = gradient
    runs(with_use(lambda self, y: y * scale), torch.randn(ROWS, 16))
    assert scale.grad is gradient
    assert gradient is None or bool((gradient == 1).all())


def test_an_object_with_slots_is_an_input() -> None:
    x, mean = torch.randn(ROWS, 16), torch.randn(ROWS, WIDTH)

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, WIDTH)

        def forward(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
            return self.layer(x) * batch.mean

    report = fxflops.count(Takes(), (x, Slotted(mean)))
    assert report.memory["inputs"] == 4 * (ROWS * 16 + ROWS * WIDTH)


def table(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(rows, device=device).float(), torch.ones(WIDTH, device=device))
    return angles.cos(), angles.sin()


cached_table = functools.lru_cache(maxsize=4)(table)


class CachedMethod(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def table(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return table(self.rows, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.table(x.device)
        return x * cos[: len(x)] + sin[: len(x)]


class CachedGlobal(CachedMethod):
    def table(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return cached_table(self.rows, device)


class CachedInClosure(CachedMethod):
    @staticmethod
    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        cached = functools.cache(function)
        return functools.wraps(function)(lambda *args: cached(*args))

    build = staticmethod(wrapped(table))

    def table(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        result: tuple[torch.Tensor, torch.Tensor] = self.build(self.rows, device)
        return result


@compile_compatible_method_lru_cache(maxsize=8)  # the cache is in the library's own file, as in transformers' DINOv3
def table_by_library(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return table(rows, device)


class CachedByLibrary(CachedMethod):
    def table(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        result: tuple[torch.Tensor, torch.Tensor] = table_by_library(self.rows, device)
        return result


class CachedInAttribute(CachedMethod):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.build = functools.lru_cache(typed=True)(table)

    def table(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return self.build(self.rows, device)


@pytest.mark.parametrize("rows", [ROWS, 200_000], ids=["with values", "on meta"])
@pytest.mark.parametrize("cls", [CachedMethod, CachedGlobal, CachedInClosure, CachedByLibrary, CachedInAttribute])
def test_a_cached_function_works_after_a_count(cls: Callable[[int], nn.Module], rows: int) -> None:
    model, x = cls(rows), torch.randn(8, WIDTH)
    counts = [fxflops.count(model, x) for _ in range(2)]
    assert [(call.op, call.out) for call in counts[0].calls] == [(call.op, call.out) for call in counts[1].calls]
    assert counts[0].max_memory == counts[1].max_memory == fxflops.analyze(model, x, repeats=0).max_memory
    cos, sin = table(rows, x.device)
    assert torch.equal(model(x), x * cos[:8] + sin[:8])


def test_a_cache_without_new_tensors_keeps_its_items() -> None:
    model, x = CachedGlobal(ROWS), torch.randn(8, WIDTH)
    cached_table.cache_clear()
    before = model.table(x.device)  # type: ignore[operator]
    assert fxflops.count(model, x).by_operator().keys().isdisjoint({"cos", "outer"})
    assert cached_table(ROWS, x.device) is before


class Store(type):
    """A metaclass that makes its class subscriptable: the class is a cache."""

    tables: dict[Any, Any]

    def __getitem__(cls, key: Any) -> Any:
        return cls.tables[key]


class Tables(metaclass=Store):
    tables: ClassVar[dict[Any, Any]] = {}


def attribute_of_function() -> None:
    """A forward sets an attribute on this function."""


DICT: dict[Any, Any] = {}
NESTED: dict[str, Any] = {"tables": {}}
IN_LIST: list[Any] = [SimpleNamespace()]
ORDERED: Any = collections.OrderedDict()
DEFAULT: Any = collections.defaultdict(list)
LATEST: Any = collections.deque(maxlen=2)
WEAK: Any = weakref.WeakKeyDictionary()
NAMESPACE: Any = SimpleNamespace()
OWN: Any = threading.local()
CHAIN: Any = collections.ChainMap({})
USERS: Any = collections.UserDict()


def kept_in_items(cache: Any, key: Any, make: Callable[[], torch.Tensor]) -> Any:
    if key not in cache:
        cache[key] = make()
    return cache[key]


def kept_in_list(cache: Any, make: Callable[[], torch.Tensor]) -> Any:
    if not cache:
        cache.append(make())
    return cache[0]


def kept_in_attribute(cache: Any, make: Callable[[], torch.Tensor]) -> Any:
    if not hasattr(cache, "table"):
        cache.table = make()
    return cache.table


KEPT: dict[str, Callable[[nn.Module, Callable[[], torch.Tensor]], Any]] = {
    "dict": lambda m, make: kept_in_items(DICT, 1, make),
    "dict in a dict": lambda m, make: kept_in_items(NESTED["tables"], 1, make),
    "object in a list": lambda m, make: kept_in_attribute(IN_LIST[0], make),
    "ordered dict": lambda m, make: kept_in_items(ORDERED, 1, make),
    "default dict": lambda m, make: kept_in_list(DEFAULT[1], make),
    "deque": lambda m, make: kept_in_list(LATEST, make),
    "weak keys": lambda m, make: kept_in_items(WEAK, m, make),
    "namespace": lambda m, make: kept_in_attribute(NAMESPACE, make),
    "thread's own": lambda m, make: kept_in_attribute(OWN, make),
    "chain": lambda m, make: kept_in_items(CHAIN, 1, make),
    "user's dict": lambda m, make: kept_in_items(USERS, 1, make),
    "function": lambda m, make: kept_in_attribute(attribute_of_function, make),
    "class with a metaclass": lambda m, make: kept_in_items(Tables.tables, 1, make),
}


class Keeping(nn.Module):
    def __init__(self, keep: Callable[[nn.Module, Callable[[], torch.Tensor]], Any]) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: torch.Tensor = self.keep(self, lambda: table(200_000, x.device)[0])
        return x * kept[: len(x)]


@pytest.mark.parametrize("name", KEPT)
def test_a_cache_of_any_kind_works_after_a_count(name: str) -> None:
    model, x = Keeping(KEPT[name]), torch.randn(8, WIDTH)
    counts = [fxflops.count(model, x) for _ in range(2)]
    assert counts[0].max_memory == counts[1].max_memory
    assert torch.equal(model(x), x * table(200_000, x.device)[0][:8])


class Tabled:
    """An object that a forward creates. Its constructor keeps a tensor in a global."""

    def __init__(self, device: torch.device) -> None:
        if "angles" not in RENEWED:
            RENEWED["angles"] = table(200_000, device)[0]
        self.angles: torch.Tensor = RENEWED["angles"]


RENEWED: dict[str, Any] = {}
BY_STRING: dict[str, Any] = {}
BY_PROPERTY: dict[str, Any] = {}


class Indirect(nn.Module):
    """Reaches its caches in ways that only a run can follow."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def kept_by_string(self, device: torch.device) -> Any:
        return kept_in_items(BY_STRING, 1, lambda: table(200_000, device)[0])

    @property
    def kept(self) -> Any:
        return kept_in_items(BY_PROPERTY, 1, lambda: table(200_000, torch.device("cpu"))[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "constructor":
            kept = Tabled(x.device).angles
        else:
            kept = getattr(self, "kept_by_string")(x.device) if self.way == "string" else self.kept  # noqa: B009
        return x * kept[: len(x)]


@pytest.mark.parametrize("way", ["constructor", "string", "property"])
def test_a_cache_is_found_however_the_forward_reaches_it(way: str) -> None:
    model, x = Indirect(way), torch.randn(8, WIDTH)
    fxflops.count(model, x)
    assert torch.equal(model(x), x * table(200_000, x.device)[0][:8])


TABLES_FILE = """
import functools, torch
CACHE, CURRENT, STORED = {}, None, None

def made(device):
    rows = torch.arange(200_000.0, device=device)
    return torch.outer(rows, torch.ones(16, device=device))  # too large to be computed in a count

def by_dict(device):
    if "angles" not in CACHE:
        CACHE["angles"] = made(device)
    return CACHE["angles"]

def by_global(device):
    global CURRENT
    if CURRENT is None:
        CURRENT = made(device)
    return CURRENT

@functools.lru_cache
def by_lru_cache(device):
    return made(device)

class Tables:
    cache = {}
    def by_class(self, device):
        return self.cache.setdefault("angles", made(device))
"""
MODEL_FILE = """
import torch
import beside_the_model as tables
from beside_the_model import Tables, by_dict

def by_assignment(device):
    if tables.STORED is None:
        tables.STORED = tables.made(device)
    return tables.STORED

class Model(torch.nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, x):
        if self.way == "name":
            kept = by_dict(x.device)
        elif self.way == "class":
            kept = Tables().by_class(x.device)
        elif self.way == "assignment":
            kept = by_assignment(x.device)
        elif self.way == "global":
            kept = tables.by_global(x.device)
        else:
            kept = tables.by_lru_cache(x.device)
        return x * kept[:64, 0]
"""


@pytest.mark.parametrize("way", ["name", "class", "assignment", "global", "lru_cache"])
def test_a_cache_in_another_file_of_the_user_works_after_a_count(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_model.py").write_text(TABLES_FILE)
    (tmp_path / "file_of_the_model.py").write_text(MODEL_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("beside_the_model", "file_of_the_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    model, x = importlib.import_module("file_of_the_model").Model(way), torch.ones(64)
    counts = [fxflops.count(model, x) for _ in range(2)]
    assert counts[0].max_memory == counts[1].max_memory
    assert torch.equal(model(x), torch.arange(64.0))

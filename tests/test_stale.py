"""Nothing is carried over from one count to the next. Something that a forward depends on is changed between two counts, and
the second count must equal one in a process where it was like that from the start.

Each case builds a model of its own class, yields it, changes something, and yields it again. Each time it says how often the
linear layer runs. ``python tests/test_stale.py 0`` (or 1) counts only the state before (or after) the change.
"""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import functools
import itertools
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
import types
import weakref
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrizations, parametrize

import fxflops
from tests.facts import facts_of
from tests.fresh import Fresh

ROOT = Path(__file__).parents[1]
WIDTH, BATCH = 4, 2
MACS = BATCH * WIDTH * WIDTH
"""MACs of the linear layer."""


class Step(NamedTuple):
    """A model to count, how often its linear layer runs, its inputs, the count's settings, and the MACs of everything else."""

    model: nn.Module
    times: int
    args: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = types.MappingProxyType({})
    more: int = 0


Case = Callable[[], Iterator[Step]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def times(module: Any, x: torch.Tensor, number: Any) -> torch.Tensor:
    """Apply the linear layer this many times."""
    for _ in range(number):
        x = module.linear(x)
    return x


def net(forward: Callable[..., Any], **held: Any) -> Any:
    """A model of its own class with this forward; it has a linear layer and these attributes."""
    cls: Any = type("Net", (nn.Module,), {"forward": forward})
    model = cls()
    for name, value in {"linear": nn.Linear(WIDTH, WIDTH), **held}.items():
        setattr(model, name, value)
    return model


def changing(model: Any, before: int, change: Callable[[], Any], after: int, **settings: Any) -> Iterator[Step]:
    yield Step(model, before, settings=settings)
    change()
    yield Step(model, after, settings=settings)


def undone(undo: Callable[..., Any], *args: Any) -> ExitStack:
    """A context manager that undoes something when it exits."""
    stack = ExitStack()
    stack.callback(undo, *args)
    return stack


# The class


@case
def a_class_attribute() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, self.n))
    type(model).n = 1
    return changing(model, 1, lambda: setattr(type(model), "n", 3), 3)


@case
def an_attribute_of_a_base_class() -> Iterator[Step]:
    base = type("Base", (), {"n": 1})
    model = net(lambda self, x: times(self, x, self.n))
    model.__class__ = type("Net", (base, type(model)), {})
    return changing(model, 1, lambda: setattr(base, "n", 3), 3)


@case
def an_attribute_of_a_metaclass() -> Iterator[Step]:
    meta = type("Meta", (type,), {"n": 1})
    model = net(lambda self, x: times(self, x, type(self).n))
    model.__class__ = meta("Net", (type(model),), {})
    return changing(model, 1, lambda: setattr(meta, "n", 3), 3)


@case
def a_class_attribute_that_an_instance_hides() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, self.n), n=1)
    type(model).n = 3
    return changing(model, 1, lambda: delattr(model, "n"), 3)


@case
def forward_of_the_class() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 1, lambda: setattr(type(model), "forward", lambda self, x: times(self, x, 2)), 2)


@case
def forward_of_a_submodules_class() -> Iterator[Step]:
    inner = net(lambda self, x: times(self, x, 1))
    model = net(lambda self, x: self.inner(self.inner(x)), inner=inner)
    return changing(model, 2, lambda: setattr(type(inner), "forward", lambda self, x: times(self, x, 3)), 6)


@case
def forward_of_an_instance() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 1, lambda: setattr(model, "forward", lambda x: times(model, x, 2)), 2)


@case
def forward_of_a_layer() -> Iterator[Step]:
    """Bound to one module, the way libraries patch layers."""
    model = net(lambda self, x: times(self, x, 1))
    change = types.MethodType(lambda self, x: F.linear(F.linear(x, self.weight), self.weight), model.linear)
    return changing(model, 1, lambda: setattr(model.linear, "forward", change), 2)


@case
def code_of_the_forward() -> Iterator[Step]:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return times(self, x, 1)

    def other(self: Any, x: torch.Tensor) -> torch.Tensor:
        return times(self, x, 2)

    return changing(net(forward), 1, lambda: setattr(forward, "__code__", other.__code__), 2)


@case
def defaults_of_the_forward() -> Iterator[Step]:
    def forward(self: Any, x: torch.Tensor, n: int = 1) -> torch.Tensor:
        return times(self, x, n)

    return changing(net(forward), 1, lambda: setattr(forward, "__defaults__", (2,)), 2)


@case
def an_attribute_of_the_forward() -> Iterator[Step]:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return times(self, x, forward.n)  # type: ignore[attr-defined]

    forward.n = 1  # type: ignore[attr-defined]
    return changing(net(forward), 1, lambda: setattr(forward, "n", 2), 2)


@case
def a_method() -> Iterator[Step]:
    model = net(lambda self, x: self.helper(x))
    type(model).helper = lambda self, x: times(self, x, 1)
    return changing(model, 1, lambda: setattr(type(model), "helper", lambda self, x: times(self, x, 2)), 2)


@case
def a_static_method() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, self.number()))
    type(model).number = staticmethod(lambda: 1)
    return changing(model, 1, lambda: setattr(type(model), "number", staticmethod(lambda: 2)), 2)


@case
def a_property() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, self.n))
    type(model).n = property(lambda self: 1)
    return changing(model, 1, lambda: setattr(type(model), "n", property(lambda self: 2)), 2)


@case
def what_a_property_reads() -> Iterator[Step]:
    held = [1]
    model = net(lambda self, x: times(self, x, self.n))
    type(model).n = property(lambda self: held[0])
    return changing(model, 1, lambda: held.__setitem__(0, 2), 2)


@case
def getattr_of_the_class() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, self.n))

    def answer(number: int) -> Any:
        return lambda self, name: number if name == "n" else nn.Module.__getattr__(self, name)

    type(model).__getattr__ = answer(1)
    return changing(model, 1, lambda: setattr(type(model), "__getattr__", answer(2)), 2)


@case
def call_of_the_class() -> Iterator[Step]:
    inner = net(lambda self, x: times(self, x, 1))
    model = net(lambda self, x: self.inner(x), inner=inner)
    twice = lambda self, x: nn.Module.__call__(self, nn.Module.__call__(self, x))  # noqa: E731
    return changing(model, 1, lambda: setattr(type(inner), "__call__", twice), 2)


@case
def the_class_itself() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    other = type(net(lambda self, x: times(self, x, 2)))
    return changing(model, 1, lambda: setattr(model, "__class__", other), 2)


# Things that code reads outside the model

SWITCH = 1
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE", default=1)
LOCAL = threading.local()


def number_of_switch() -> int:
    return SWITCH


def set_switch(value: int) -> None:
    global SWITCH
    SWITCH = value


@case
def a_global() -> Iterator[Step]:
    set_switch(1)
    return changing(net(lambda self, x: times(self, x, SWITCH)), 1, lambda: set_switch(2), 2)


@case
def a_global_of_a_helper() -> Iterator[Step]:
    set_switch(1)
    return changing(net(lambda self, x: times(self, x, number_of_switch())), 1, lambda: set_switch(2), 2)


@case
def a_helper() -> Iterator[Step]:
    set_switch(1)
    model = net(lambda self, x: times(self, x, number_of_switch()))
    yield Step(model, 1)
    with mock.patch.dict(globals(), number_of_switch=lambda: 2):
        yield Step(model, 2)


@case
def an_attribute_of_a_module() -> Iterator[Step]:
    settings = types.ModuleType("settings")
    settings.n = 1  # type: ignore[attr-defined]
    return changing(net(lambda self, x: times(self, x, settings.n)), 1, lambda: setattr(settings, "n", 2), 2)


@case
def a_list_in_a_closure() -> Iterator[Step]:
    held = [1]
    return changing(net(lambda self, x: times(self, x, held[0])), 1, lambda: held.__setitem__(0, 2), 2)


@case
def a_variable_of_a_closure() -> Iterator[Step]:
    number = 1

    def change() -> None:
        nonlocal number
        number = 2

    return changing(net(lambda self, x: times(self, x, number)), 1, change, 2)


@case
def an_environment_variable() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, int(os.environ.get("FXFLOPS_TESTS_N", 1))))
    yield Step(model, 1)
    with mock.patch.dict(os.environ, FXFLOPS_TESTS_N="2"):
        yield Step(model, 2)


@case
def a_context_variable() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, VARIABLE.get()))
    yield Step(model, 1)
    with undone(VARIABLE.reset, VARIABLE.set(2)):
        yield Step(model, 2)


@case
def a_variable_of_the_thread() -> Iterator[Step]:
    LOCAL.n = 1
    return changing(net(lambda self, x: times(self, x, LOCAL.n)), 1, lambda: setattr(LOCAL, "n", 2), 2)


@case
def a_file() -> Iterator[Step]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "n")
        file.write_text("1")
        yield from changing(
            net(lambda self, x: times(self, x, int(file.read_text()))), 1, lambda: file.write_text("2"), 2
        )


@case
def the_time() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1 + (time.time() < 0)))
    yield Step(model, 1)
    with mock.patch.object(time, "time", return_value=-1.0):
        yield Step(model, 2)


@case
def the_level_of_a_logger() -> Iterator[Step]:
    logger = logging.getLogger("fxflops_tests.stale")
    logger.setLevel(logging.WARNING)
    model = net(lambda self, x: times(self, x, 1 + logger.isEnabledFor(logging.INFO)))
    return changing(model, 1, lambda: logger.setLevel(logging.INFO), 2)


@case
def a_counter() -> Iterator[Step]:
    """Every forward increments it. It does not belong to a module."""
    counter = [0]

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        counter[0] += 1
        return times(self, x, 1 + (counter[0] > 100))

    return changing(net(forward), 1, lambda: counter.__setitem__(0, 100), 2)


@case
def a_generator() -> Iterator[Step]:
    held: dict[str, Iterator[int]] = {"numbers": itertools.repeat(1)}
    model = net(lambda self, x: times(self, x, next(held["numbers"])))
    return changing(model, 1, lambda: held.update(numbers=(2 for _ in itertools.count())), 2)


@case
def a_cached_helper() -> Iterator[Step]:
    set_switch(1)
    helper = functools.lru_cache(number_of_switch)
    model = net(lambda self, x: times(self, x, helper()))

    def change() -> None:
        set_switch(2)
        helper.cache_clear()

    return changing(model, 1, change, 2)


@case
def pythons_random_numbers() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, random.randint(1, 100)))
    numbers = [random.Random(seed).randint(1, 100) for seed in (0, 1)]
    random.seed(0)
    return changing(model, numbers[0], lambda: random.seed(1), numbers[1])


@case
def torchs_random_numbers() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, int(torch.randint(1, 100, ()))))
    numbers = [int(torch.randint(1, 100, (), generator=torch.Generator().manual_seed(seed))) for seed in (0, 1)]
    torch.manual_seed(0)
    return changing(model, numbers[0], lambda: torch.manual_seed(1), numbers[1])


@case
def numpys_random_numbers() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, int(np.random.randint(1, 100))))
    numbers = [int(np.random.RandomState(seed).randint(1, 100)) for seed in (0, 1)]
    np.random.seed(0)
    return changing(model, numbers[0], lambda: np.random.seed(1), numbers[1])


# Things that a module holds


@dataclasses.dataclass
class Plain:
    n: int = 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int = 1


@dataclasses.dataclass
class Slotted:
    __slots__ = ("n",)
    n: int


class Level(enum.Enum):
    LOW, HIGH = 1, 2


Pair = namedtuple("Pair", "n other")


class Config:
    """Can be weakly referenced, and defines its own equality and hash."""

    def __init__(self) -> None:
        self.inner = Plain()

    @property
    def n(self) -> int:
        return self.inner.n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config)

    def __hash__(self) -> int:
        return 0


def holding(config: Any, number: Callable[[Any], int], change: Callable[[Any], Any]) -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, number(self.config)), config=config)
    return changing(model, 1, lambda: change(model), 2)


HELD: dict[str, tuple[Callable[[], Any], Callable[[Any], int], Callable[[Any], Any]]] = {
    "a number": (lambda: 1, lambda n: n, lambda model: setattr(model, "config", 2)),
    "a flag for a number": (lambda: True, lambda n: n if n is True else 2, lambda model: setattr(model, "config", 1)),
    "an object": (Plain, lambda c: c.n, lambda model: setattr(model.config, "n", 2)),
    "an equal object": (Config, lambda c: c.n, lambda model: setattr(model.config.inner, "n", 2)),
    "a frozen object": (Frozen, lambda c: c.n, lambda model: object.__setattr__(model.config, "n", 2)),
    "a slotted object": (lambda: Slotted(1), lambda c: c.n, lambda model: setattr(model.config, "n", 2)),
    "a member of an enumeration": (lambda: Level.LOW, lambda c: c.value, lambda model: setattr(model, "config", Level.HIGH)),
    "a named tuple": (lambda: Pair(1, 0), lambda c: c.n, lambda model: setattr(model, "config", Pair(2, 0))),
    "a list": (lambda: [1], lambda c: c[0], lambda model: model.config.__setitem__(0, 2)),
    "the length of a list": (lambda: [0], len, lambda model: model.config.append(0)),
    "a list in a list": (lambda: [[1]], lambda c: c[0][0], lambda model: model.config[0].__setitem__(0, 2)),
    "a list in a tuple": (lambda: ([1],), lambda c: c[0][0], lambda model: model.config[0].__setitem__(0, 2)),
    "a dictionary": (lambda: {"n": 1}, lambda c: c["n"], lambda model: model.config.update(n=2)),
    "the order of a dictionary": (
        lambda: OrderedDict(a=1, b=2), lambda c: next(iter(c.values())), lambda model: model.config.move_to_end("a"),
    ),
    "a set": (lambda: {0}, len, lambda model: model.config.add(1)),
    "a deque": (lambda: deque([1]), lambda c: c[0], lambda model: model.config.appendleft(2)),
    "an array": (lambda: np.array([1]), lambda c: int(c[0]), lambda model: model.config.__setitem__(0, 2)),
    "a function": (lambda: lambda: 1, lambda c: c(), lambda model: setattr(model, "config", lambda: 2)),
    "a partial": (
        lambda: functools.partial(int, 1), lambda c: c(), lambda model: setattr(model, "config", functools.partial(int, 2)),
    ),
    "the keywords of a partial": (
        lambda: functools.partial(lambda n: n, n=1), lambda c: c(), lambda model: model.config.keywords.update(n=2),
    ),
    "a bound method": (
        lambda: [1].copy, lambda c: c()[0], lambda model: model.config.__self__.__setitem__(0, 2),
    ),
    "a class": (lambda: type("C", (), {"n": 1}), lambda c: c.n, lambda model: setattr(model.config, "n", 2)),
    "an iterator": (lambda: itertools.repeat(1), next, lambda model: setattr(model, "config", itertools.repeat(2))),
    "a tensor": (lambda: torch.tensor(1), int, lambda model: model.config.fill_(2)),
    "a tensor of reals": (lambda: torch.tensor(1.0), int, lambda model: model.config.fill_(2)),
}  # fmt: skip
for _name, _held in HELD.items():
    CASES[_name] = functools.partial(lambda build, number, change: holding(build(), number, change), *_held)


@case
def an_object_held_weakly() -> Iterator[Step]:
    config = Config()
    model = net(lambda self, x: times(self, x, self.config().n), config=weakref.ref(config))
    yield from changing(model, 1, lambda: setattr(config.inner, "n", 2), 2)


@case
def an_object_held_weakly_that_is_gone() -> Iterator[Step]:
    held = [Config()]
    model = net(lambda self, x: times(self, x, 1 if self.config() is not None else 2), config=weakref.ref(held[0]))
    yield from changing(model, 1, held.clear, 2)


@case
def a_buffer_of_integers() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, int(self.n)))
    model.register_buffer("n", torch.tensor(1))
    return changing(model, 1, lambda: model.n.fill_(2), 2)


@case
def a_buffer_of_reals() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, int(self.n.item())))
    model.register_buffer("n", torch.tensor(1.0))
    return changing(model, 1, lambda: model.n.fill_(2), 2)


@case
def a_parameters_values() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1 + int((self.gate > 0).item())), gate=nn.Parameter(torch.tensor(-1.0)))
    return changing(model, 1, lambda: model.gate.data.fill_(1), 2)


@case
def training() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1 + self.training)).eval()
    return changing(model, 1, model.train, 2, mode="as_is")


@case
def training_of_a_layer() -> Iterator[Step]:
    model = net(lambda self, x: self.drop(times(self, x, 1)), drop=nn.Dropout(0.5)).eval()
    return changing(model, 1, model.drop.train, 1, mode="as_is", backward=True)


@case
def what_requires_gradients() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 1, lambda: model.linear.weight.requires_grad_(False), 1, backward=True)


@case
def a_layers_setting() -> Iterator[Step]:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.conv(times(self, x, 1)[:, None])

    model = net(forward, conv=nn.Conv1d(1, 5, 2))
    yield Step(model, 1, more=BATCH * 5 * 3 * 2)  # three positions for a kernel of two
    model.conv.stride = (2,)
    yield Step(model, 1, more=BATCH * 5 * 2 * 2)


@case
def a_layers_bias() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 1, lambda: setattr(model.linear, "bias", None), 1)


@case
def a_weight_by_another() -> Iterator[Step]:
    model = net(lambda self, x: self.last(times(self, x, 1)), last=nn.Linear(WIDTH, 1, bias=False))
    yield Step(model, 1, more=BATCH * WIDTH)
    model.last.weight = nn.Parameter(torch.ones(3, WIDTH))
    yield Step(model, 1, more=BATCH * WIDTH * 3)


@case
def the_data_of_a_weight() -> Iterator[Step]:
    model = net(lambda self, x: F.linear(times(self, x, 1), self.last), last=nn.Parameter(torch.ones(1, WIDTH)))
    yield Step(model, 1, more=BATCH * WIDTH)
    model.last.data = torch.ones(3, WIDTH)
    yield Step(model, 1, more=BATCH * WIDTH * 3)


@case
def how_a_weight_lies() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1) @ self.last.contiguous(), last=nn.Parameter(torch.ones(WIDTH, 3)))
    yield Step(model, 1, more=BATCH * WIDTH * 3)
    model.last.data = torch.ones(3, WIDTH).t()
    yield Step(model, 1, more=BATCH * WIDTH * 3)


@case
def the_dtype_of_a_model() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x.to(self.linear.weight.dtype), 1))
    return changing(model, 1, model.double, 1)


@case
def a_submodule() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 1, lambda: setattr(model, "linear", nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())), 1)


@case
def a_submodule_of_the_same_class() -> Iterator[Step]:
    inner = net(lambda self, x: times(self, x, self.n), n=1)
    model = net(lambda self, x: self.inner(x), inner=inner)
    other = type(inner)()
    other.linear, other.n = nn.Linear(WIDTH, WIDTH), 3
    return changing(model, 1, lambda: setattr(model, "inner", other), 3)


@case
def one_submodule_more() -> Iterator[Step]:
    model = net(lambda self, x: functools.reduce(lambda x, layer: layer(x), self.layers, x))
    model.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
    return changing(model, 1, lambda: model.layers.append(nn.Linear(WIDTH, WIDTH)), 2)


# Hooks and parametrizations


def twice(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
    return F.linear(out, module.weight)


def wider(module: Any, args: Any) -> Any:
    return (torch.cat([args[0], args[0]]),)


@case
def a_forward_hook() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 1, lambda: model.linear.register_forward_hook(twice), 2)


@case
def a_forward_pre_hook() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 1, lambda: model.linear.register_forward_pre_hook(wider), 2)  # a batch twice as large


@case
def a_hook_that_is_gone() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 2, model.linear.register_forward_hook(twice).remove, 1)


@case
def what_a_hook_reads() -> Iterator[Step]:
    held: list[int] = []
    model = net(lambda self, x: times(self, x, 1))
    model.register_forward_hook(lambda module, args, out: twice(module.linear, args, out) if held else out)
    return changing(model, 1, lambda: held.append(0), 2)


@case
def a_hook_of_all_modules() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    yield Step(model, 1)
    hook = register_module_forward_hook(lambda m, args, out: twice(m, args, out) if m is model.linear else None)
    with undone(hook.remove):
        yield Step(model, 2)


@case
def a_pre_hook_of_all_modules() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    yield Step(model, 1)
    hook = register_module_forward_pre_hook(lambda m, args: wider(m, args) if m is model.linear else None)
    with undone(hook.remove):
        yield Step(model, 2)


class Squared(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight @ weight  # a product of 4 x 4 matrices: twice the multiplications of the layer on a batch of 2


@case
def a_parametrization() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 1, lambda: parametrize.register_parametrization(model.linear, "weight", Squared()), 3)


@case
def a_parametrization_that_is_gone() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    parametrize.register_parametrization(model.linear, "weight", Squared())
    return changing(model, 3, lambda: parametrize.remove_parametrizations(model.linear, "weight"), 1)


@case
def a_weight_norm() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1))
    return changing(model, 1, lambda: parametrizations.weight_norm(model.linear), 1)


# Torch's own settings and functions


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[None, None]
        return F.scaled_dot_product_attention(x, x, x)[0, 0]


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).softmax(-1) @ v @ torch.ones(WIDTH, WIDTH, device=v.device)  # and one more layer


ATTENTION = 2 * BATCH * BATCH * WIDTH
"""MACs of the scores and of the weighted values."""


@case
def a_patched_function_of_torch() -> Iterator[Step]:
    model = net(lambda self, x: self.attend(times(self, x, 1)), attend=Attention())
    yield Step(model, 1, more=ATTENTION)
    with mock.patch.object(F, "scaled_dot_product_attention", written_out):
        yield Step(model, 2, more=ATTENTION)


@case
def a_patched_method_of_torch() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1).relu())
    yield Step(model, 1)
    with mock.patch.object(torch.Tensor, "relu", lambda x: x.abs().sqrt()):
        yield Step(model, 1)


@case
def the_kernels_of_attention() -> Iterator[Step]:
    model = net(lambda self, x: self.attend(times(self, x, 1)), attend=Attention())
    yield Step(model, 1, settings={"backward": True}, more=ATTENTION)
    with sdpa_kernel(SDPBackend.MATH):
        yield Step(model, 1, settings={"backward": True}, more=ATTENTION)


@case
def a_setting_of_torch() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1 + torch.backends.mha.get_fastpath_enabled()))
    yield Step(model, 2)
    with undone(torch.backends.mha.set_fastpath_enabled, True):
        torch.backends.mha.set_fastpath_enabled(False)
        yield Step(model, 1)


@case
def autocast() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 2))
    yield Step(model, 2)
    with torch.autocast("cpu", torch.bfloat16):
        yield Step(model, 2)


@case
def the_dtype_of_autocast() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 2).sum(dtype=torch.get_autocast_dtype("cpu")))
    with torch.autocast("cpu", torch.bfloat16):
        yield Step(model, 2)
    with torch.autocast("cpu", torch.float16):
        yield Step(model, 2)


@case
def the_default_dtype() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1) + torch.ones(1000, 1, WIDTH))
    yield Step(model, 1, (torch.ones(BATCH, WIDTH),))
    with undone(torch.set_default_dtype, torch.get_default_dtype()):
        torch.set_default_dtype(torch.float64)
        yield Step(model, 1, (torch.ones(BATCH, WIDTH, dtype=torch.float32),))


@case
def inference_mode() -> Iterator[Step]:
    model = net(lambda self, x: times(self, x, 1 + torch.is_inference_mode_enabled()))
    yield Step(model, 1)
    with torch.inference_mode():
        yield Step(model, 2)


# The inputs


@case
def an_input_that_has_grown() -> Iterator[Step]:
    x = torch.ones(BATCH, WIDTH)
    model = net(lambda self, x: times(self, x, 1))
    yield Step(model, 1, (x,))
    x.resize_(3 * BATCH, WIDTH)
    yield Step(model, 3, (x,))


@case
def the_values_of_an_input() -> Iterator[Step]:
    x, n = torch.ones(BATCH, WIDTH), torch.tensor(1)
    model = net(lambda self, x, n: times(self, x, int(n)))
    yield Step(model, 1, (x, n))
    n.fill_(2)
    yield Step(model, 2, (x, n))


@case
def a_list_given() -> Iterator[Step]:
    x, given = torch.ones(BATCH, WIDTH), [0]
    model = net(lambda self, x, given: times(self, x, len(given)))
    yield Step(model, 1, (x, given))
    given.append(0)
    yield Step(model, 2, (x, given))


@case
def an_object_given() -> Iterator[Step]:
    x, given = torch.ones(BATCH, WIDTH), Config()
    model = net(lambda self, x, given: times(self, x, given.n))
    yield Step(model, 1, (x, given))
    given.inner.n = 2
    yield Step(model, 2, (x, given))


@case
def whether_an_input_requires_gradients() -> Iterator[Step]:
    x = torch.ones(BATCH, WIDTH)
    model = net(lambda self, x: times(self, x, 1))
    yield Step(model, 1, (x,), {"backward": True})
    yield Step(model, 1, (x.requires_grad_(),), {"backward": True})


def counted(step: Step) -> Any:
    """The facts of a count, as plain data."""
    args = step.args or (torch.ones(BATCH, WIDTH),)
    return json.loads(json.dumps(facts_of(fxflops.count(step.model, args, **step.settings))))


def counted_alone(which: int) -> dict[str, Any]:
    """Count each case before the change (0) or after it (1), but not both."""
    found = {}
    for name, build in CASES.items():
        with closing(build()) as steps:  # type: ignore[type-var]
            found[name] = counted(next(itertools.islice(steps, which, None)))
    return found


@pytest.fixture(scope="module")
def alone(fresh: Fresh) -> list[dict[str, Any]]:
    """The facts from processes that each count only one state of the cases."""
    found = [fresh.run(__file__, which, cwd=ROOT) for which in "01"]
    assert [each.returncode for each in found] == [0, 0]
    return [json.loads(each.stdout) for each in found]


@pytest.mark.parametrize("name", CASES)
def test_a_change_between_two_counts(name: str, alone: list[dict[str, Any]]) -> None:
    with closing(CASES[name]()) as steps:  # type: ignore[type-var]
        (before, macs_before), (after, macs_after) = [(counted(s), s.times * MACS + s.more) for s in steps]
    assert (before["macs"], after["macs"]) == (macs_before, macs_after)
    assert before == alone[0][name]
    assert after == alone[1][name]
    assert before != after


@pytest.mark.parametrize("name", CASES)
def test_the_change_undone(name: str) -> None:
    """Each case runs twice in one process, so the change is undone in between. Both runs must have the same counts."""
    found = []
    for _ in range(2):
        with closing(CASES[name]()) as steps:  # type: ignore[type-var]
            found.append([*map(counted, steps)])
    assert found[0] == found[1]


def test_every_count_runs_every_forward_once() -> None:
    ran: list[str] = []
    inner = net(lambda self, x: (ran.append("inner"), times(self, x, 1))[1])
    model = net(lambda self, x: (ran.append("outer"), self.inner(self.inner(x)))[1], inner=inner)
    for number in (1, 2, 3):
        fxflops.count(model, torch.ones(BATCH, WIDTH))
        assert ran == ["outer", "inner", "inner"] * number


def test_a_forward_that_does_more_each_time() -> None:
    counter = itertools.count(1)
    model = net(lambda self, x: times(self, x, next(counter)))
    found = [fxflops.count(model, torch.ones(BATCH, WIDTH)).total_macs for _ in range(4)]
    assert found == [MACS, 2 * MACS, 3 * MACS, 4 * MACS]


if __name__ == "__main__":
    print(json.dumps(counted_alone(int(sys.argv[1]))))

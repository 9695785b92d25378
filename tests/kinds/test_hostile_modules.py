"""Kind: a module's class overrides methods that fxflops might rely on. fxflops may call only the module's ``forward``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxflops


class Block(nn.Module):
    """A model with a leaf, a container, a shared module and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.again = self.first
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.rest(self.first(x))) * self.scale


class Refused(Exception):
    """Raised by a method that fxflops need not call."""


def refusing(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise Refused(name)

    method.__name__ = name
    return method


NEEDED = {
    "__dict__",
    "__init__",
    "__call__",
    "__class__",
    "__new__",
    "__getattribute__",
    "__init_subclass__",
    "__subclasshook__",
}
"""Methods that Python itself calls before fxflops gets the module."""
OF_ALL = {"__len__", "__bool__", "__eq__", "__hash__", "__iter__", "__contains__", "__getitem__", "__next__", "__str__"}
METHODS = {name for name in dir(nn.Module) if callable(getattr(nn.Module, name))}
NAMES = sorted((METHODS | OF_ALL) - NEEDED)


def runs(model: nn.Module, x: torch.Tensor) -> bool:
    try:
        model(x).sum().backward()
    except Refused:
        return False
    finally:
        for module in (model.__dict__["_modules"]["first"], model.__dict__["_modules"]["rest"]._modules["1"]):
            for parameter in module.__dict__["_parameters"].values():
                parameter.grad = None
    return True


def hostile(plain: nn.Module, overridden: dict[str, Any], where: str) -> nn.Module:
    """Return a copy of a model in which the root, or every module, has overridden methods."""
    model = copy.deepcopy(plain)
    for module in [model] if where == "root" else [*model.modules()]:
        module.__class__ = type(type(module).__name__, (type(module),), dict(overridden))
    return model


def figures(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Return the results of each public function for a model."""
    count = fxflops.count(model, x, backward=True, mode="train", optimizer=torch.optim.AdamW)
    analysis = fxflops.analyze(model, x, repeats=0, progress=False)
    with fxflops.profile(model) as p:
        model(x).sum().backward()
    said = {
        name: (report.total_flops, report.total_macs, [*report.by_module()], report.params.total, len(report.missing))
        for name, report in (("count", count), ("analyze", analysis), ("profile", p.report))
    }
    said["peak"] = count.max_memory
    said["summary"] = str(fxflops.summary(model, input_data=x))
    return said


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, torch.Tensor, dict[str, Any]]:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 8)
    said = figures(model, x)
    assert said["count"][1] > 0
    return model, x, said


@pytest.mark.parametrize("where", ["root", "all"])
def test_no_method_is_called_that_the_model_does_not_call_itself(where: str, plain: Any) -> None:
    model, x, said = plain
    unneeded = {name: refusing(name) for name in NAMES if runs(hostile(model, {name: refusing(name)}, where), x)}
    assert len(unneeded) > 60
    assert {"modules", "parameters", "train", "state_dict", "__repr__", "__hash__", "__len__"} <= unneeded.keys()
    made = hostile(model, unneeded, where)
    with pytest.raises(Refused):
        made.modules()
    assert figures(made, x) == said


class Unlike:
    """A possible result of a comparison by value: it is neither true nor false."""

    def __bool__(self) -> bool:
        raise Refused("a truth value")


def state_of(self: nn.Module) -> int:
    return hash(
        tuple(
            float(value.sum()) for value in [*self._parameters.values(), *self._buffers.values()] if value is not None
        )
    )


CALLS = itertools.count()
ODD: dict[str, dict[str, Any]] = {
    "equal to everything": {"__eq__": lambda self, other: True, "__hash__": lambda self: 1},
    "equal to nothing": {"__eq__": lambda self, other: False, "__hash__": lambda self: id(self)},
    "compared elementwise": {"__eq__": lambda self, other: Unlike(), "__hash__": lambda self: 1},
    "no hash": {"__eq__": lambda self, other: self is other, "__hash__": None},
    "a hash of the state": {"__hash__": state_of},
    "a hash that changes": {"__hash__": lambda self: next(CALLS)},
    "empty": {"__len__": lambda self: 0},
    "false": {"__bool__": lambda self: False},
    "modules are a list": {"modules": []},
    "children are a list": {"children": [], "named_children": {}},
    "parameters return a list": {"parameters": lambda self: [*nn.Module.parameters(self)]},
    "parameters are a property": {"parameters": property(lambda self: 1 / 0)},
    "named_parameters of one group": {"named_parameters": lambda self, group: iter(())},
    "named_modules hide": {"named_modules": lambda self, *args, **kwargs: iter(())},
    "parameters hide": {"parameters": lambda self, recurse=True: iter(()), "buffers": lambda self: []},
    "train takes no mode": {"train": lambda self: 1 / 0, "eval": None},
    "state_dict is a field": {"state_dict": {}},
    "attributes on demand": {"__getattr__": lambda self, name: nn.Module.__getattr__(self, name)},
    "any attribute": {"apply": None, "to": None, "_apply": None, "get_submodule": None, "add_module": None, "half": 2},
    "a call of its own": {"__contains__": lambda self, item: True},
}


@pytest.mark.parametrize("where", ["root", "all"])
@pytest.mark.parametrize("odd", ODD)
def test_modules_are_told_apart_by_identity_and_read_by_torchs_record(odd: str, where: str, plain: Any) -> None:
    model, x, said = plain
    made = hostile(model, ODD[odd], where)
    assert figures(made, x) == said


def test_names_of_torchs_methods_as_attributes(plain: Any) -> None:
    model, x, said = plain
    made = hostile(model, {}, "root")
    for name in ("modules", "children", "parameters", "named_modules", "named_parameters", "buffers", "train", "apply"):
        vars(made)[name] = [1, 2, 3]
    assert figures(made, x) == said


class CopiesInForward(nn.Module):
    """A fast-weights model: its forward runs a copy of a layer, and the copy has the layer's hooks."""

    def __init__(self, how: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 8), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.how(self.layer)
        layer.weight, layer.bias = nn.Parameter(torch.zeros(16, 4)), None
        return layer(x)  # type: ignore[no-any-return]


def by_attributes(module: nn.Module) -> nn.Module:
    """Copy a module as the library higher does: attribute by attribute."""
    made = nn.Linear.__new__(nn.Linear)
    for name, value in vars(module).items():
        object.__setattr__(made, name, value.copy() if isinstance(value, dict) else value)
    return made


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, by_attributes])
def test_a_copy_of_a_layer_made_in_the_forward_runs_and_is_counted(how: Callable[[Any], Any]) -> None:
    model, x = CopiesInForward(how), torch.randn(6, 4)
    with fxflops.profile(model) as profiled:
        out = model(x)
    reports = fxflops.count(model, x), fxflops.analyze(model, x), profiled.report
    assert out.shape == (6, 16)
    assert [report.total_macs for report in reports] == [6 * 4 * 16] * 3

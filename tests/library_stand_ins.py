"""Stand-ins for libraries that do not install here: modules with functions of the same names and parameters."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import fxflops
from fxflops.records import Cost


def refuses_meta(*args: Any, **kwargs: Any) -> Any:
    """Like a kernel on meta: it must not be called there."""
    raise RuntimeError("a kernel was called")


@contextmanager
def library(functions: dict[str, str], body: Callable[..., Any] = refuses_meta) -> Iterator[Callable[[str], Any]]:
    """Make modules with functions, from ``{"package.module:function": "its, parameters=None"}``.

    Each function calls the body with its arguments by name. Yields a lookup of the functions by their names.
    """
    made: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, parameters in functions.items():
            module, _, function = name.partition(":")
            for end in [i for i, letter in enumerate(f"{module}.") if letter == "."]:
                package = module[:end]
                if package not in sys.modules:
                    patch.setitem(sys.modules, package, types.ModuleType(package))
            holder, _, last = function.rpartition(".")
            names: dict[str, Any] = {"_body": body, "inf": float("inf"), "__name__": module}
            exec(f"def {last}({parameters}):\n    given = dict(locals())\n    return _body(**given)", names)
            value: Any = names[last]
            value.__qualname__ = function
            # An autograd.Function: its forward takes these parameters after ctx.
            if last == "apply":
                exec(f"def forward(ctx, {parameters}):\n    raise RuntimeError('a kernel was called')", names)
                value = type(
                    holder,
                    (torch.autograd.Function,),
                    {"forward": staticmethod(names["forward"]), "__module__": module},
                )
                patch.setattr(sys.modules[module], holder, value, raising=False)
                made[name] = value
            elif holder:
                cls = getattr(sys.modules[module], holder, None) or type(holder, (nn.Module,), {"__module__": module})
                setattr(cls, last, value)
                patch.setattr(sys.modules[module], holder, cls, raising=False)
                made[name] = cls
            else:
                patch.setattr(sys.modules[module], function, value, raising=False)
                made[name] = value
        yield made.__getitem__


class Counts(NamedTuple):
    """The cost of a call, forward and backward, and the specs of its result."""

    forward: Cost
    backward: Cost
    out: Any


class Calls(nn.Module):
    """A module that passes its parameters to a function."""

    def __init__(self, call: Callable[..., Any], tensors: dict[str, torch.Tensor], others: dict[str, Any]) -> None:
        super().__init__()
        self.call, self.others = call, others
        self.names = list(tensors)
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                self.register_parameter(f"p_{name}", nn.Parameter(tensor))
            else:
                self.register_buffer(f"p_{name}", tensor)

    def forward(self) -> Any:
        return self.call(**{name: getattr(self, f"p_{name}") for name in self.names}, **self.others)


def counts(call: Callable[..., Any], tensors: dict[str, torch.Tensor], backward: bool = True, **others: Any) -> Counts:
    """Count a call and its backward on meta, where the kernel must not run. Every floating-point tensor requires a gradient."""
    attention = others.pop("count_attention", "dense")
    model = Calls(call, tensors, others)
    report = fxflops.count(model, backward=backward, attention=attention)
    assert report.complete, report.missing
    calls = [each for each in report.counted if not isinstance(each.rule, str)]
    forward = [each for each in calls if each.call.phase == "forward"]
    assert len(forward) == 1, forward
    gradients = [each for each in calls if each.call.phase == "backward"]
    assert len(gradients) == backward, gradients
    made = [each.cost for each in (*forward, *gradients)]
    if backward:
        for parameter in model.parameters():
            assert parameter.grad is None  # counting leaves nothing on the model
    return Counts(made[0], made[1] if backward else Cost(), forward[0].call.out)


def tensors(shapes: dict[str, tuple[int, ...] | None]) -> dict[str, torch.Tensor]:
    """Random tensors of these shapes; None leaves one out."""
    return {name: torch.randn(shape) for name, shape in shapes.items() if shape is not None}

"""Names that a forward binds, and items that it collects, outside the model must be as before: class attributes, globals, closures,
lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import fxflops

X = torch.ones(2, 4)
LAST: Any = None
SEEN: list[Any] = []
BY_NAME: dict[str, Any] = {"first": None}


class Settings:
    latest: Any = None


class Base(nn.Module):
    shared: Any = None
    cache: ClassVar[dict[str, Any]] = {}
    outputs: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class OfClass(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        type(self).shared = y
        Base.shared = y
        OfClass.added = y  # type: ignore[attr-defined]
        self.cache["y"] = y
        self.outputs.append(y)
        return y


class OfFile(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global LAST, NEW
        y: torch.Tensor = self.layer(x)
        LAST = NEW = y  # type: ignore[name-defined]
        SEEN.append(y)
        BY_NAME["first"] = y
        return keep(y)


def keep(y: torch.Tensor) -> torch.Tensor:
    global KEPT
    KEPT = y  # type: ignore[name-defined]
    Settings.latest = y
    return y


class Raising(OfFile):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        super().forward(x)
        raise ValueError("no")


def closure() -> tuple[nn.Module, Callable[[], Any]]:
    last, seen = None, list[Any]()

    class OfClosure(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal last
            last = self.layer(x)
            return last

    model = OfClosure()
    model.layer.register_forward_hook(lambda module, args, out: seen.append(out))
    return model, lambda: (last, [*seen])


def bound() -> Any:
    names = {name: globals().get(name) for name in ("LAST", "NEW", "KEPT")}
    lists = [*SEEN], dict(BY_NAME), dict(Base.cache), [*Base.outputs]
    return names, lists, Settings.latest, Base.shared, "shared" in vars(OfClass), hasattr(OfClass, "added")


RUNS = [
    fxflops.count,
    lambda model, x: fxflops.count(model, x, backward=True),
    lambda model, x: fxflops.count(model.to("meta"), x.to("meta")),
    lambda model, x: fxflops.analyze(model, x, repeats=1),
    lambda model, x: fxflops.analyze(model, x, repeats=0, trace="record"),
    lambda model, x: fxflops.TorchFLOPsByFX(model).propagate(x),
]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("cls", [OfClass, OfFile])
def test_names_are_bound_as_before(cls: Any, run: Any) -> None:
    before = bound()
    run(cls(), X)
    assert bound() == before


@pytest.mark.parametrize("run", RUNS[:5])
def test_also_after_an_error(run: Any) -> None:
    before = bound()
    with pytest.raises(fxflops.FxflopsError):
        run(Raising(), X)
    assert bound() == before


@pytest.mark.parametrize("run", RUNS[:5])
def test_variables_of_closures_and_hooks(run: Any) -> None:
    model, content = closure()
    before = content()
    run(model, X)
    assert content() == before == (None, [])

"""Functions and classes by name, for files: ``torch.nn.functional:gelu``, ``torch:Tensor.add``, ``aten::add.Tensor``.

Names are looked up only in modules that this process has imported. Nothing is imported, called or evaluated because a file names it. If a
name is not found, a placeholder object takes its place. The same rule holds for torch: ``of_torch.py`` has its functions, and is imported
only if torch is loaded.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass
from typing import Any


@dataclass(unsafe_hash=True, repr=False)
class Absent:
    """A stand-in for a function that a file names and this process lacks; ``doc`` is its docstring, if known."""

    name: str
    doc: InitVar[str] = ""

    def __post_init__(self, doc: str) -> None:
        self.__module__, _, self.__qualname__ = self.name.partition("::" if "::" in self.name else ":")
        self.__name__ = self.__qualname__.rpartition(".")[2]
        self.__doc__ = doc

    def __repr__(self) -> str:
        return f"<{self.name}, by name alone>"


def name_of(target: Any) -> str:
    """Return the name of a function or class. If possible, :func:`target_of` finds the function or class again by this name."""
    if isinstance(target, Absent):
        return target.name
    if is_torch_loaded():
        from .of_torch import name_in_torch

        if found := name_in_torch(target):
            return found
    named = target if getattr(target, "__qualname__", None) else type(target)
    return f"{named.__module__}:{named.__qualname__}"


def target_of(name: str) -> Any:
    """Return the function of this name. If there is no such function, or if torch is not loaded, return an :class:`Absent`."""
    if not is_torch_loaded():
        return Absent(name)
    from .of_torch import found_in_torch

    found = found_in_torch(name)
    if found is None and "::" not in name:
        found = looked_up(name)
        found = found if callable(found) and not isinstance(found, type) else None
    return Absent(name) if found is None else found


def is_torch_loaded() -> bool:
    """Return whether this process has imported torch. Reading a report from a file and showing the report do not need torch."""
    return "torch" in sys.modules


class Classes(dict[str, type]):
    """Classes by name. A class that this process lacks gets a stand-in made from its description.

    A description, from :func:`described`, has the class's bases and the parameters of its ``forward``.
    """

    def __init__(self, descriptions: Mapping[str, Any]) -> None:
        super().__init__()
        self._descriptions = descriptions

    def __missing__(self, name: str) -> type:
        there = looked_up(name)
        self[name] = there if isinstance(there, type) else self._stand_in(name)
        return self[name]

    def _stand_in(self, name: str) -> type:
        about = self._descriptions.get(name, {"bases": [], "forward": None})
        # Only torch's classes may be bases of the class made here. With a user's class as a base, the user's __init_subclass__ would run.
        bases = tuple(looked_up(base) if _is_torchs(base) else self._stand_in(base) for base in about["bases"])
        module, _, qualname = name.partition(":")
        body: dict[str, Any] = {"__module__": module, "__qualname__": qualname}
        if about["forward"] is not None:
            body["forward"] = _forward_of(about["forward"])
        return types.new_class(qualname.rpartition(".")[2], bases, {}, lambda names: names.update(body))


def described(classes: Iterable[type]) -> dict[str, Any]:
    """Return descriptions, by name, of the classes and their bases, except for torch's own."""
    found: dict[str, Any] = {}
    waiting = sorted(classes, key=name_of)
    while waiting:
        cls = waiting.pop()
        name = name_of(cls)
        if name not in found and not _is_torchs(name):
            found[name] = {"bases": [name_of(base) for base in _bases(cls)], "forward": _forward(cls)}
            waiting.extend(_bases(cls))
    return dict(sorted(found.items()))


def _forward(cls: type) -> list[str] | None:
    """Return the positional parameters of the ``forward`` that a class defines itself; None if it inherits it."""
    if "forward" not in vars(cls):
        return None
    try:
        parameters = inspect.signature(vars(cls)["forward"]).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _forward_of(names: list[str]) -> Any:
    def forward(*args: Any) -> Any:
        raise NotImplementedError(
            "this module cannot run: its class was not imported when the report was read; import the class, then read the report again"
        )

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return forward


def _bases(cls: type) -> list[type]:
    from torch import nn  # loaded already: described classes are torch modules

    return [base for base in cls.__bases__ if issubclass(base, nn.Module)]


def _is_torchs(name: str) -> bool:
    """Return whether a class is a builtin or torch's own, and exists in this process."""
    return name.startswith(("torch.", "torch:", "builtins:")) and looked_up(name) is not None


def looked_up(name: str) -> Any:
    """Return the object of this name in an imported module, or None if there is none. No ``__getattr__`` or property runs."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if not isinstance(found, (types.ModuleType, type)):
            return None
        scopes = found.__mro__ if isinstance(found, type) else (found,)
        found = next((vars(scope)[part] for scope in scopes if part in vars(scope)), None)
    return found

"""Rules for the package's classes: few levels of inheritance, and a class sets every attribute it declares."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import fxflops

PACKAGE = Path(fxflops.__file__).parent
MOST_LEVELS = 3
RECORDS = {"NamedTuple", "TypedDict", "Protocol"}
"""Bases whose classes declare fields instead of setting them."""


def module_names() -> Iterator[str]:
    for module in pkgutil.walk_packages(fxflops.__path__, "fxflops."):
        if module.name.split(".")[1] != "__main__":
            yield module.name


def own_classes() -> set[type]:
    classes: set[type] = set()
    for name in module_names():
        try:
            module = importlib.import_module(name)
        except ImportError:  # an integration or adapter whose library is not installed
            continue
        classes |= {value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == name}
    return classes


def levels(cls: type) -> int:
    """The number of our own classes on the longest inheritance path to this one; Python's and torch's do not count."""
    own_bases = [base for base in cls.__bases__ if base.__module__.startswith("fxflops")]
    return 1 + max(map(levels, own_bases), default=0)


def test_levels_are_counted() -> None:
    assert levels(fxflops.Report) == 2
    assert levels(fxflops.FxflopsError) == 1


def test_inheritance_is_shallow() -> None:
    classes = own_classes()
    assert fxflops.Report in classes
    deep = {f"{cls.__module__}.{cls.__qualname__}": levels(cls) for cls in classes if levels(cls) > MOST_LEVELS}
    assert not deep


def unset_attributes(source: str) -> list[str]:
    """The attributes that classes annotate but never set, as ``Class.attribute``."""
    lacking = []
    for cls in ast.walk(ast.parse(source)):
        if not isinstance(cls, ast.ClassDef) or is_record(cls):
            continue
        declared = {
            line.target.id
            for line in cls.body
            if isinstance(line, ast.AnnAssign) and line.value is None and isinstance(line.target, ast.Name)
        }
        assigned = {
            node.attr for node in ast.walk(cls) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }  # of any variable: __new__ names its object freely
        lacking += [f"{cls.name}.{name}" for name in sorted(declared - assigned)]
    return lacking


def is_record(cls: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).rpartition(".")[2] for base in cls.bases}
    return bool(bases & RECORDS) or any("dataclass" in ast.unparse(each) for each in cls.decorator_list)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class A:\n    x: int", ["A.x"]),
        ("class A:\n    x: int\n    def f(self): self.x = 1", []),
        ("class A:\n    x: int\n    def f(self): return self.x", ["A.x"]),
        ("class A(NamedTuple):\n    x: int", []),
        ("@dataclass(frozen=True)\nclass A:\n    x: int", []),
    ],
)
def test_attributes_that_are_never_set_are_found(source: str, expected: list[str]) -> None:
    assert unset_attributes(source) == expected


def test_a_class_sets_what_it_declares() -> None:
    lacking = {
        str(file.relative_to(PACKAGE)): names
        for file in sorted(PACKAGE.rglob("*.py"))
        if (names := unset_attributes(file.read_text(encoding="utf8")))
    }
    assert not lacking

"""Imports only point down a list of rooms. A room is a folder of the package or a module at its root."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import fxflops

PACKAGE = Path(fxflops.__file__).parent

# From top to bottom. Rooms on the same floor do not import each other.
FLOORS = [
    ["__main__"],
    ["cli"],
    ["_public"],
    ["adapters", "integrations", "trainers"],
    ["symbolic"],
    ["notebook", "distributed", "what_fits"],
    ["calibrating", "testing"],
    ["profiled_script"],
    ["api", "profiling"],
    ["report"],
    ["prediction"],
    ["roofline"],
    ["render"],
    ["counting", "trace_files"],
    ["run", "conventions"],
    ["trace"],
    ["ops"],
    ["meters"],
    ["model"],
    ["names", "records"],
    ["units", "errors"],
    ["advice"],
    ["torch_internals", "_version"],
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.partition(".")[0]


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


@cache
def imported(file: Path) -> tuple[tuple[int, str], ...]:
    return tuple(imports_in(file))


def imports_in(file: Path) -> Iterator[tuple[int, str]]:
    """The line and the dotted name within the package of every import of our own code, anywhere in a file."""
    package = ["fxflops", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            within = base.partition(".")[2]
            names = [
                f"{base}.{alias.name}" if is_module(f"{within}.{alias.name}".strip(".")) else base
                for alias in node.names
                if alias.name != "__version__"  # a string: the import only needs _version
            ]
        else:
            continue
        for name in names:
            root, _, rest = name.partition(".")
            if root == "fxflops":
                yield node.lineno, rest


FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if module_of(file)]


def test_every_room_has_a_floor() -> None:
    assert {room_of(module_of(file)) for file in FILES} == set(FLOOR_OF)


def test_imports_point_down() -> None:
    upward = []
    for file in FILES:
        room = room_of(module_of(file))
        for line, name in imported(file):
            if room_of(name) != room and FLOOR_OF.get(room_of(name), -1) <= FLOOR_OF[room]:
                upward.append(f"{file.relative_to(PACKAGE)}:{line} imports {name or 'fxflops'}")
    assert upward == []


def test_no_modules_import_each_other() -> None:
    graph = {module_of(file): {name for _, name in imported(file)} - {module_of(file)} for file in FILES}
    assert list(TopologicalSorter(graph).static_order())


def test_imports_are_found() -> None:
    found = {name for file in FILES for _, name in imported(file)}
    assert {"records", "ops._registry", "trace.symbolic", "units"} <= found

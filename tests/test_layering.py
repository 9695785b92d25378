"""Imports point down one list: a module imports only from levels below its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fxflops"

# From top to bottom; those of one level do not import each other. A package stands for all of its files, but for those
# that have a level of their own.
LEVELS = [
    ["__main__"],
    ["cli"],
    ["cli_shown", "cli_runs", "cli_options"],
    ["cli_models"],
    ["cli_inputs", "budget", "_public"],
    ["adapters"],
    ["notebook"],
    ["api", "profiling"],
    ["report"],
    ["views", "roofline", "diff", "chrome", "html_report"],
    ["totals"],
    ["listings", "saved"],
    ["explain", "bounds", "executed"],
    ["tables"],
    ["measure", "counting", "render", "rollup", "traffic", "ceilings"],
    ["per_node", "charges", "own_run", "lazy", "ops.catalogue"],
    ["conventions", "missing"],
    ["run"],
    ["trace"],
    ["ops"],
    ["meter", "kernels", "state", "progress", "optimizing", "outcome"],
    ["ledger", "inventory", "tensor_state"],
    ["records", "nodes", "inputs", "devices"],
    ["units", "errors", "structure", "targets", "generators"],
    ["torch_internals"],
]
LEVEL_OF = {unit: level for level, units in enumerate(LEVELS) for unit in units}


def unit_of(module: str) -> str:
    """What a module (its dotted name within the package) stands for in the list."""
    return next((unit for unit in (module, module.partition(".")[0]) if unit in LEVEL_OF), module)


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def imported(file: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name within the package of everything of ours that a file imports, wherever in it."""
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
            ]
        else:
            continue
        for name in names:
            root, _, rest = name.partition(".")
            if root == "fxflops":
                yield node.lineno, rest


FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if module_of(file)]


def test_every_module_has_a_level() -> None:
    assert {unit_of(module_of(file)) for file in FILES} - set(LEVEL_OF) == set()
    assert set(LEVEL_OF) - {unit_of(module_of(file)) for file in FILES} == set()


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_imports_point_down(file: Path) -> None:
    unit = unit_of(module_of(file))
    upward = [
        f"{file.name}:{line} imports {name or 'fxflops'}"
        for line, name in imported(file)
        if unit_of(name) != unit and LEVEL_OF.get(unit_of(name), -1) <= LEVEL_OF[unit]
    ]
    assert not upward


def test_imports_are_found() -> None:
    found = {name for file in FILES for _, name in imported(file)}
    assert {"records", "ops._registry", "trace.symbolic", "units"} <= found

"""fvcore's tables: a model's parameters, flops and activations by module, as a table or as part of the model's repr."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from ..model.modules import named_modules, named_parameters
from ..records import prefixes
from ._fvcore_analysis import JitModelAnalysis
from ._module_text import printed

Cells = dict[str, dict[str, Any]]
"""The cells of a table: for the name of each module or parameter, a dict from columns to cells."""
UNITS = ((1e14, 1e15, "P"), (1e11, 1e12, "T"), (1e8, 1e9, "G"), (1e5, 1e6, "M"), (1e2, 1e3, "K"))
UNCALLED = (
    "N/A indicates a possibly missing statistic due to how the module was called. Missing values are still included in the "
    "parent's total.\n"
)


def parameter_count(model: nn.Module) -> defaultdict[str, int]:
    """Return the number of elements in each parameter and in each module, by name; the name of the model is ``""``.

    A shared parameter is counted only under its first name.
    """
    counts: defaultdict[str, int] = defaultdict(int)
    for name, parameter in named_parameters(model):
        for prefix in prefixes(name):
            counts[prefix] += parameter.numel()
    return counts


def parameter_count_table(model: nn.Module, max_depth: int = 3) -> str:
    """Return a table with ``max_depth`` levels: modules with their number of elements, and parameters with their shapes."""
    counts, shapes = parameter_count(model), _shapes(model)
    rows = [("model", _in_thousands(counts.pop("", 0)))]
    for name, number in counts.items():
        if name.count(".") < max_depth:
            indent = " " * (name.count(".") + 1)
            rows.append((indent + name, indent + shapes.get(name, _in_thousands(number))))
    return _piped(("name", "#elements or shape"), rows)


def flop_count_table(
    flops: JitModelAnalysis,
    max_depth: int = 3,
    activations: JitModelAnalysis | None = None,
    show_param_shapes: bool = True,
) -> str:
    """Return a table with ``max_depth`` levels: the parameters, flops and (optionally) activations of each module.

    A module and its child share one row if the module has no other child and both have the same counts. Rows are indented by depth. In
    fvcore, the indentation is lost with tabulate 0.10.
    """
    params = "#parameters or shape" if show_param_shapes else "#parameters"
    analyses = {"#flops": flops} if activations is None else {"#flops": flops, "#activations": activations}
    counts = {params: parameter_count(flops._model), **{name: _counted(one) for name, one in analyses.items()}}
    cells = _cells(counts, 3, trivial_children=True)
    for name, analysis in analyses.items():
        for path in analysis.uncalled_modules() & cells.keys():
            cells[path][name] = ""
    for path, shape in _shapes(flops._model).items():
        if show_param_shapes and path in cells:
            cells[path][params] = shape
        else:
            cells.pop(path, None)
    return _table(cells, max_depth, [params, *analyses])


def flop_count_str(flops: JitModelAnalysis, activations: JitModelAnalysis | None = None) -> str:
    """Return the model's repr. After the settings of each module, it shows the module's parameters, flops and (optionally) activations."""
    analyses = {"#flops": flops} if activations is None else {"#flops": flops, "#acts": activations}
    zeros = dict.fromkeys((path for path, _ in named_modules(flops._model)), 0)
    counts = {"#params": parameter_count(flops._model), **{name: _counted(one) for name, one in analyses.items()}}
    uncalled = {name: analysis.uncalled_modules() for name, analysis in analyses.items()}
    anywhere = set().union(*uncalled.values())
    cells = _cells({name: {**zeros, **column} for name, column in counts.items()}, 2, keep=anywhere)
    for name, paths in uncalled.items():
        for path in paths:
            cells.setdefault(path, {})[name] = "N/A"

    def lines_of(module: nn.Module, path: str) -> list[str]:
        own = ", ".join(f"{name}: {value}" for name, value in cells.get(path, {}).items())
        said = module.extra_repr()
        return [*(said.split("\n") if said else []), *([own] if own else [])]

    return (UNCALLED if anywhere else "") + printed(flops._model, lines_of)


# Cells


def _counted(analysis: JitModelAnalysis) -> dict[str, Any]:
    """Turn off the warnings of an analysis, and return the analysis's sums by module."""
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    return dict(analysis.by_module())


def _cells(
    counts: Mapping[str, Mapping[str, Any]], digits: int, keep: Collection[str] = (), trivial_children: bool = False
) -> Cells:
    """Convert columns of counts into cells, children first. Leave out modules whose counts are all zero.

    Modules in ``keep`` are never left out. If ``keep`` is empty, the row of the whole model is never left out. With ``trivial_children``, a
    module stays if one of its children stays.
    """
    cells: Cells = {}
    for column, values in counts.items():
        for path, value in values.items():
            cells.setdefault(path, {})[column] = value
    left: Cells = {}

    def visit(path: str) -> None:
        children = list(_children(cells, f"{path}." if path else ""))
        for child in children:
            visit(child)
        needed = trivial_children and any(child in left for child in children)
        if any(cells[path].values()) or needed or path in (keep or ("",)):
            left[path] = {name: _size(value, digits) for name, value in cells[path].items()}

    visit("")
    return left


def _size(number: float, digits: int) -> str:
    """Return a number with its unit: ``145600 -> "0.146M"``."""
    _, scale, unit = next((each for each in UNITS if abs(number) > each[0]), (0, 1, ""))
    return f"{number / scale:.{digits}f}".rstrip("0").rstrip(".") + unit if unit else str(number)


def _in_thousands(number: int) -> str:
    """Return a number of elements with one decimal: ``37900000 -> "37.9M"``."""
    _, scale, unit = next((each for each in UNITS[2:] if number > each[0]), (0, 1, ""))
    return f"{number / scale:.1f}{unit}" if unit else str(number)


def _shapes(model: nn.Module) -> dict[str, str]:
    return {name: str(tuple(parameter.shape)) for name, parameter in named_parameters(model)}


def _children(names: Collection[str], prefix: str) -> Iterator[str]:
    """Return the names one level below a prefix, such as "" or "layer1."."""
    depth = prefix.count(".")
    return (name for name in list(names) if name and name.count(".") == depth and name.startswith(prefix))


# Tables


def _table(cells: Cells, max_depth: int, columns: Sequence[str]) -> str:
    root, values = _merged("", cells)
    shared = f"{root}." if root else ""
    rows = [[root or "model", *(values.get(column, "") for column in columns)]]

    def fill(prefix: str, depth: int) -> None:
        for child in _children(cells, prefix) if depth <= max_depth else ():
            name, values = _merged(child, cells)
            texts = [name.removeprefix(shared), *(values.get(column) for column in columns)]
            rows.append(["" if text is None else " " * depth + text for text in texts])
            fill(f"{name}.", depth + 1)

    fill(shared, 1)
    return _piped(("module", *columns), rows)


def _merged(path: str, cells: Cells) -> tuple[str, dict[str, str]]:
    """Merge a module with its only child as long as their cells are equal; return the name of the innermost merged module, and the cells."""
    children = list(_children(cells, f"{path}." if path else ""))
    if len(children) != 1 or cells[path].keys() != cells[children[0]].keys():
        return path, cells[path]
    pairs = [(name, value, cells[children[0]][name]) for name, value in cells[path].items()]
    if any(mine != its and mine and its for _, mine, its in pairs):
        return path, cells[path]
    cells[children[0]] = {name: mine or its for name, mine, its in pairs}
    return _merged(children[0], cells)


def _piped(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. Leading spaces in cells are kept, and columns of numbers are aligned to the right."""
    columns = []
    for header, *body in zip(headers, *rows, strict=True):
        to_the_right = any(body) and all(_is_number(cell) for cell in body if cell)
        width = max(len(header) + 2, *map(len, body))
        rule = "-" * (width + 1) + ":" if to_the_right else ":" + "-" * (width + 1)
        columns.append([rule, *(f" {cell:{'>' if to_the_right else '<'}{width}} " for cell in (header, *body))])
    rule, header, *lines = [f"|{'|'.join(line)}|" for line in zip(*columns, strict=True)]
    return "\n".join([header, rule, *lines])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

"""Text about a model that several tools print: the model's repr with counts, the classes with the largest sums, and numbers with units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from ..model.modules import children_of, parameters_of


def params_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in parameters_of(module))


def trainable(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in parameters_of(module) if parameter.requires_grad)


def innermost_first(module: nn.Module) -> Iterator[nn.Module]:
    """Yield every module after the module's children. A module with two parents is yielded twice."""
    for child in children_of(module):
        yield from innermost_first(child)
    yield module


def levels_of(model: nn.Module) -> list[list[nn.Module]]:
    """Return the modules at each depth, from the model itself to the innermost modules."""
    levels = [[model]]
    while children := [child for module in levels[-1] for child in children_of(module)]:
        levels.append(children)
    return levels


def largest_sums(
    modules: Iterable[nn.Module], value: Callable[[nn.Module], float], text: Callable[[Any], str], most: int
) -> dict[str, str]:
    """Sum a value over the modules of each class; return the ``most`` classes with the largest sums, and the sums as text."""
    sums: dict[str, Any] = {}
    for module in modules:
        sums[type(module).__name__] = sums.get(type(module).__name__, 0) + value(module)
    return {name: text(number) for name, number in sorted(sums.items(), key=lambda item: -item[1])[:most]}


def annotated_copy(module: nn.Module, line: Callable[[nn.Module], str]) -> nn.Module:
    """Return a shallow copy of a module and its children, in which ``extra_repr`` returns ``line(module)`` for the original module."""
    other = type(module).__new__(type(module))
    parts = {name: None if child is None else annotated_copy(child, line) for name, child in module._modules.items()}
    vars(other).update(vars(module), _modules=parts, extra_repr=lambda: line(module))
    return other


def printed(module: nn.Module, lines_of: Callable[[nn.Module, str], list[str]], path: str = "") -> str:
    """Return the module's repr. For each module inside it, the lines ``lines_of(module, path)`` replace the module's settings."""
    children = [
        f"({name}): " + printed(child, lines_of, f"{path}.{name}" if path else name).replace("\n", "\n  ")
        for name, child in module._modules.items()
        if child is not None
    ]
    lines = [*lines_of(module, path), *children]
    if len(lines) > 1 or children:
        return "\n  ".join([f"{module._get_name()}(", *lines]) + "\n)"
    return f"{module._get_name()}({''.join(lines)})"


def scaled(number: float, sizes: Mapping[str, int], unit: str | None, precision: int, plain: str) -> str:
    """Return a number in ``unit``, or by default in the first unit that is not larger than the number. If there is no such unit,
    return the unscaled number followed by ``plain``."""
    if unit is None:
        unit = next((name for name, size in sizes.items() if number >= size), "")
    return f"{round(number / sizes[unit], precision)} {unit}" if unit in sizes else f"{number}{plain}"

"""The Convention: a table of the rules by which a tool counts, over the base formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..records import Cost, FormulaFunction, Operation, Scope, Spec, specs_in

ModuleRule = Callable[[Scope], "int | None"]
"""A function that returns the charge of one call of a module; None if the tool ignores the module."""


@dataclass(frozen=True, slots=True)
class Convention:
    """The rules of a tool: a name, a line on what it counts, and its differences from the base, "fxflops".

    ``rows`` are the tool's own formulas, by exact spelling (a module class, a function, an operator such as
    ``operator.add``) or by op. They are called as formulas in ``formulas=`` are: for a module class with the module, then
    the arguments of its forward; otherwise with the op's parameters by name. A call that no base formula counts stays
    uncounted, with a row too.

    ``of`` gives the cost of an operation without a row, from its base cost (in real operations, of complex numbers too) and
    the operation. The default is the base cost; :func:`nothing` is for tools that count only what they name.

    ``modules`` is for tools that hook modules: it returns the rule of a class, None for a class that the tool does not know.
    The charge of a rule is added to the row's cost of a leaf's call, and stands for all modules inside the charged one.

    ``registered`` returns the formula that the tool's own users registered for an operation. It precedes everything but
    formulas of fxflops's users, and counts operations without a base formula too. MACs are those of the base formulas under
    every convention. Three flags say what the tool sees:

    - ``integers``: it counts operations on integers like those on real numbers;
    - ``childless``: rows hold only for calls made in a module without children;
    - ``by_name``: it replaces functions by name, and misses those that a module keeps (``self.act = F.gelu``).

    >>> Convention("products", "2 per multiply-accumulate", of=lambda cost, ran: Cost(others=2 * cost.macs)).name
    'products'
    """

    name: str
    summary: str
    rows: Mapping[Any, FormulaFunction] = field(default_factory=dict)
    of: Callable[[Cost, Operation], Cost] | None = None
    modules: Callable[[type], ModuleRule | None] | None = None
    registered: Callable[[Operation], FormulaFunction | None] | None = None
    integers: bool = False
    childless: bool = False
    by_name: bool = False


def given(scope: Scope) -> Spec:
    """Return the first tensor among a module call's arguments."""
    return next(specs_in((scope.args, dict(scope.kwargs))))


def flops_of_einsum(equation: str, operands: Iterable[Spec]) -> float:
    """Return the flops that numpy prints for its best order of products, rounded by it to four digits."""
    import numpy as np

    zeros = [np.broadcast_to(np.zeros(()), tuple(operand)) for operand in operands]
    lines = str(np.einsum_path(equation, *zeros, optimize="optimal")[1]).lower().split("\n")
    return float(next(line for line in lines if "optimized flop" in line).rpartition(":")[2])


def nothing(cost: Cost, ran: Operation) -> Cost:
    """Count nothing; keep the MACs."""
    return Cost(macs=cost.macs)


def macs_alone(cost: Cost, ran: Operation) -> Cost:
    """1 per multiply-accumulate, nothing for anything else."""
    return Cost(macs=cost.macs, others=cost.macs)

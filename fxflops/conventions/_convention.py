"""What a convention is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..records import Cost, FormulaFunction, Operation, Scope, Spec, specs_in

ModuleRule = Callable[[Scope], "int | None"]
"""What one call of a module is charged; None for one that the tool passes over."""


@dataclass(frozen=True, slots=True)
class Convention:
    """A name, a line that says what it counts, and how it differs from the base, "fxflops".

    ``rows`` are formulas of its own, by exact spelling (a module class, a function, an operator such as
    ``operator.add``) or by op; they take what ``formulas=`` takes (under a module class the module first, then what its
    forward is given; otherwise the op's own parameters by their names), and what no formula counts they do not count
    either. What has none is valued by ``of`` from the base cost, in real operations of complex
    numbers too, and the operation (default: the base cost itself; :func:`nothing` for tools that count only what they name).
    ``modules`` is for tools that hook modules: it gives a class's rule, None for a class that the tool does not know.
    What a rule charges comes on top of what the rows give a leaf's call, and stands for all modules inside the charged
    one. ``registered`` gives the formula that the tool's own users told it for an operation, which comes before all but
    fxflops's users', for what has no formula here too. MACs stay the base formulas', under every convention. What the tool sees:

    - ``integers``: no difference between integers and real numbers;
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
    """The first tensor that a module was called with."""
    return next(specs_in((scope.args, dict(scope.kwargs))))


def flops_of_einsum(equation: str, operands: Iterable[Spec]) -> float:
    """What numpy says of its best order of products, in its four digits."""
    import numpy as np

    zeros = [np.broadcast_to(np.zeros(()), tuple(operand)) for operand in operands]
    lines = str(np.einsum_path(equation, *zeros, optimize="optimal")[1]).lower().split("\n")
    return float(next(line for line in lines if "optimized flop" in line).rpartition(":")[2])


def nothing(cost: Cost, ran: Operation) -> Cost:
    """Not counted by this tool."""
    return Cost(macs=cost.macs)


def macs_alone(cost: Cost, ran: Operation) -> Cost:
    """1 per multiply-accumulate, nothing for anything else."""
    return Cost(macs=cost.macs, others=cost.macs)

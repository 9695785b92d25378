"""The Convention: a table of the rules by which a tool counts, over the base formulas; and rules that several tools share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..ops._cost import first
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


# Rules of hooked modules


def each_input(scope: Scope) -> int:
    """x[*] -> out: 1 per input."""
    return given(scope).numel()


def each_output(scope: Scope) -> int:
    """x -> out[*]: 1 per output."""
    return first(scope.out).numel()


POINTWISE = {nn.RNN: 1, nn.GRU: 7, nn.LSTM: 10, nn.RNNCell: 1, nn.GRUCell: 7, nn.LSTMCell: 10}
"""Operations for each hidden unit in a step of an RNN, beside its products."""


def recurrent(scope: Scope, product: Callable[[Spec], int] = Spec.numel) -> int:
    """x[a, b, i] -> out[a, b, h]: the step of an RNN for each of a*b, twice in both directions.

    A step is, layer by layer, ``product`` of each weight, 1 per bias, and 1 (RNN), 7 (GRU) or 10 (LSTM) per hidden unit.
    """
    x, settings = given(scope), scope.settings
    layers = [f"_l{layer}" for layer in range(settings["num_layers"])] if "num_layers" in settings else [""]
    step: int = len(layers) * POINTWISE[scope.cls] * settings["hidden_size"]
    for name in (f"{side}{layer}" for layer in layers for side in ("_ih", "_hh")):
        step += product(scope.params[f"weight{name}"])
        step += scope.params[f"bias{name}"].numel() if settings["bias"] else 0
    if "num_layers" not in settings:
        return step * math.prod(x[:-1])
    return step * math.prod(x[:2]) * (2 if settings["bidirectional"] else 1)


def recurrent_with_sums(scope: Scope) -> int:
    """x[a, b, i] -> out[a, b, h]: the step of an RNN for each of a*b, its products of a weight[g, i] 2gi - g each."""
    return recurrent(scope, lambda weight: 2 * weight.numel() - weight[0])

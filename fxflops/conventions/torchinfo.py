"""torchinfo 1.8.0 (https://github.com/TylerYep/torchinfo): its total mult-adds.

Each call of a module without children is charged for its own parameters, by their names and the sizes of its output. Those
named weight and bias are multiplied by the output's first size: the batch alone, so a linear layer on a sequence is charged
for one position. In a class named Conv* they are multiplied by all sizes but the second, the channels. Other weights and
biases, e.g. all of RNNs (weight_ih_l0), are multiplied by the first two sizes; other parameters are free. Functions,
operators and modules with children (also nn.MultiheadAttention) are free.

Where the tool raises (a parameter named weight or bias, and an output without sizes), the count is what its rules intend.
Three things differ from torchinfo: it counts only the unmasked part of a pruned weight, which shapes do not show; it treats
a module whose children are empty containers as one without children; and it counts a parameter with two names in one
module once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ..records import Scope, Spec
from ._convention import CONVENTIONS, NONE, Convention, ModuleRule, nothing


def by_parameters(scope: Scope) -> int | None:
    """Return the mult-adds of one call of a module; None if it has children or no parameters."""
    if scope.has_children or not scope.params:
        return None
    named = ((in_use(name, scope.settings), spec.numel()) for name, spec in scope.params.items())
    return mult_adds(scope.cls.__name__, named, size_of(scope.out))


def dense(scope: Scope) -> int | None:
    """params -> out: (weight + bias) times the batch size; any other parameter times the first two sizes of the output."""
    return by_parameters(scope)


def convolution(scope: Scope) -> int | None:
    """params -> out: its weight and bias times all sizes of its output but the second, others times the first two."""
    return by_parameters(scope)


def recurrent(scope: Scope) -> int | None:
    """params -> out: its weights and biases times the first two sizes of its output."""
    return by_parameters(scope)


def rule_of(cls: type) -> ModuleRule:
    """Return the rule whose docstring describes modules of a class."""
    if "Conv" in cls.__name__:
        return convolution
    return recurrent if issubclass(cls, (nn.RNNBase, nn.RNNCellBase)) else dense


def in_use(name: str, attributes: Mapping[str, Any]) -> str:
    """Return the name that a parameter is used by: ``weight`` for the ``weight_orig`` of a pruned module."""
    pruned = name.removesuffix("_orig")
    return pruned if f"{pruned}_mask" in attributes else name


def mult_adds(cls: str, params: Iterable[tuple[str, int]], size: Sequence[int]) -> int:
    """params -> out[n, c, *s]: n per element of ``weight`` and ``bias``, in Conv* n prod(s); n c per element of other weights and biases."""
    total = 0
    for name, numel in params:
        if name in ("weight", "bias"):
            total += numel * math.prod((*size[:1], *size[2:]) if "Conv" in cls else size[:1])
        elif "weight" in name or "bias" in name:
            total += numel * math.prod(size[:2])
    return total


def size_of(value: Any) -> tuple[int, ...]:
    """Return the sizes of the tensor that represents the output: the first of a sequence, the last of a mapping; () for none."""
    if isinstance(value, Mapping) and value:
        value = list(value.values())[-1]
    while not isinstance(value, Spec):
        parts = list(value.values()) if isinstance(value, Mapping) else value
        if not isinstance(parts, (tuple, list)) or not parts:
            return ()
        value = parts[0]
    return value


CONVENTION = Convention(
    "torchinfo",
    CONVENTIONS["torchinfo"],
    of=nothing,
    modules=rule_of,
    operators=NONE,
    integers=True,
)

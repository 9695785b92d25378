"""torchinfo 1.8.0 (https://github.com/TylerYep/torchinfo): its total mult-adds.

Each call of a module without children is charged for its own parameters, by their names and the sizes of its output. Those
named weight and bias are times the first size of the output: the batch alone, so that a linear layer on a sequence is charged
for one position. In a class named Conv* they are times all sizes but the second, the channels. Other weights and biases, all
those of RNNs (weight_ih_l0), are times the first two sizes, and those by any other name nothing. Functions, operators and
modules with children (also nn.MultiheadAttention) are free.

Where the tool raises (a parameter named weight or bias, and an output without sizes), the count is what its rules intend.
Three things are not as in torchinfo: of a pruned weight it counts only what the mask leaves, which shapes do not tell; it takes
a module whose children are empty containers for one without children; and it counts a parameter with two names in one module
once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ..records import Scope, Spec
from ._convention import CONVENTIONS, NONE, Convention, ModuleRule, nothing


def by_parameters(scope: Scope) -> int | None:
    """Return the mult-adds of one call of a module; None with children, and without parameters."""
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
    """Return the rule whose words hold for modules of a class."""
    if "Conv" in cls.__name__:
        return convolution
    return recurrent if issubclass(cls, (nn.RNNBase, nn.RNNCellBase)) else dense


def in_use(name: str, attributes: Mapping[str, Any]) -> str:
    """Return the name of the tensor that a parameter stands for: ``weight`` for ``weight_orig`` if it is pruned."""
    pruned = name.removesuffix("_orig")
    return pruned if f"{pruned}_mask" in attributes else name


def mult_adds(cls: str, params: Iterable[tuple[str, int]], size: Sequence[int]) -> int:
    """params -> out[n, c, *s]: each element of ``weight`` and ``bias`` n, of Conv* n prod(s); of other weights, biases n c."""
    total = 0
    for name, numel in params:
        if name in ("weight", "bias"):
            total += numel * math.prod((*size[:1], *size[2:]) if "Conv" in cls else size[:1])
        elif "weight" in name or "bias" in name:
            total += numel * math.prod(size[:2])
    return total


def size_of(value: Any) -> tuple[int, ...]:
    """Return the sizes of the tensor that stands for the output: the first of a sequence, the last of a mapping; () for none."""
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

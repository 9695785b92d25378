"""The total mult-adds of torchinfo 1.8.0 (https://github.com/TylerYep/torchinfo).

torchinfo charges each call of a module without children for the module's own parameters. The charge depends on the
names of the parameters and on the shape of the output. The elements of ``weight`` and ``bias`` are multiplied by the
first size of the output, the batch size. So a linear layer on a sequence is charged for one position only. In a class with "Conv" in its
name, the elements of ``weight`` and ``bias`` are multiplied by all sizes of the output but the second, which is the number of channels.
Parameters whose names contain "weight" or "bias" and more, e.g. an RNN's weight_ih_l0, are multiplied by the first two sizes of the output.
Other parameters are free. Functions, operators and modules with children are free too, even nn.MultiheadAttention.

If the tool raises an error (for a module whose output has no sizes, with a parameter named weight or bias), the count here is what the
tool's rules intend. Three differences remain. torchinfo counts only the unmasked part of a pruned weight; here the whole weight counts,
because shapes do not show the mask. torchinfo treats a module whose children are all empty containers as a module without children.
torchinfo counts a parameter that has two names in one module only once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ..records import Scope, Spec
from ._convention import CONVENTIONS, NONE, Convention, ModuleRule, nothing


def by_parameters(scope: Scope) -> int | None:
    """Return the mult-adds of one call of a module; None if the module has children or no parameters."""
    if scope.has_children or not scope.params:
        return None
    named = ((in_use(name, scope.settings), spec.numel()) for name, spec in scope.params.items())
    return mult_adds(scope.cls.__name__, named, size_of(scope.out))


def dense(scope: Scope) -> int | None:
    """params -> out: (weight + bias) times the batch size; other weights and biases times the first two sizes of the output."""
    return by_parameters(scope)


def convolution(scope: Scope) -> int | None:
    """params -> out: (weight + bias) times all output sizes but the second; other weights and biases times the first two output sizes."""
    return by_parameters(scope)


def recurrent(scope: Scope) -> int | None:
    """params -> out: all weights and biases times the first two sizes of the output."""
    return by_parameters(scope)


def rule_of(cls: type) -> ModuleRule:
    """Return the rule for a module class. All rules charge alike; the docstring of each describes the charge for such modules."""
    if "Conv" in cls.__name__:
        return convolution
    return recurrent if issubclass(cls, (nn.RNNBase, nn.RNNCellBase)) else dense


def in_use(name: str, attributes: Mapping[str, Any]) -> str:
    """Return the name by which the module uses a parameter: ``weight`` for the parameter ``weight_orig`` of a pruned module."""
    pruned = name.removesuffix("_orig")
    return pruned if f"{pruned}_mask" in attributes else name


def mult_adds(cls: str, params: Iterable[tuple[str, int]], size: Sequence[int]) -> int:
    """params -> out[n, c, *s]: n per element of ``weight`` and ``bias``, n prod(s) in Conv* classes; n c per element of other weights and biases."""
    total = 0
    for name, numel in params:
        if name in ("weight", "bias"):
            total += numel * math.prod((*size[:1], *size[2:]) if "Conv" in cls else size[:1])
        elif "weight" in name or "bias" in name:
            total += numel * math.prod(size[:2])
    return total


def size_of(value: Any) -> tuple[int, ...]:
    """Return the shape of one tensor of the output. The tensor is the first item of a sequence or the last value of a mapping. Return () if
    there is no tensor."""
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

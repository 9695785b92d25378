"""Rules of hooked modules that several tools share."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from ..ops._cost import first
from ..records import Scope, Spec, specs_in


def given(scope: Scope) -> Spec:
    """Return the first tensor among a module call's arguments."""
    return next(specs_in((scope.args, dict(scope.kwargs))))


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

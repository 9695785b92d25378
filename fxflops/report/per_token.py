"""Compute the cost per token. The cost per token is the sum over a language model's run, divided by the number of input tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..counting import totals
from ..counting.counted_run import CountedRun
from ..errors import InputError, of_kind
from ..records import FORWARD, Scope, Spec

TOKENS = "input_ids", "decoder_input_ids"
"""The names of the arguments that contain the tokens of a transformers model."""
EXPERTS_PATH = re.compile(r"(^|\.)experts(\.|$)")
"""Matches the path of a module that contains experts."""


class PerToken(NamedTuple):
    """The cost per token, averaged over ``tokens``.

    ``training_flops`` are FLOPs of forward and backward; None if no backward was counted. ``seconds`` is None if nothing was timed.
    """

    tokens: int
    flops: float
    macs: float
    training_flops: float | None
    seconds: float | None


def per_token(counted_run: CountedRun, tokens: int | None) -> PerToken:
    """Return the sums of a run divided by ``tokens``. The default is the number of tokens passed to the model's calls.

    Raises InputError if ``tokens`` is not an int above 0. The function also raises InputError if ``tokens`` is not passed and the model got
    no integers.
    """
    run = counted_run.run
    if tokens is None:
        tokens = sum(_tokens(scope) for scope in run.scopes if not scope.path)
        if not tokens:
            raise InputError(
                f"{run.model} got no tokens (integers) as input: pass the number of tokens, report.per_token(tokens=...)"
            )
    elif not isinstance(tokens, int) or tokens < 1:
        raise of_kind(InputError(f"tokens must be an int of at least 1, got {tokens!r}"), TypeError, ValueError)
    training = totals.training_flops(counted_run)
    seconds = totals.block_seconds(counted_run) or totals.latency(run)
    return PerToken(
        tokens,
        counted_run.forward.flops / tokens,
        counted_run.forward.macs / tokens,
        None if training is None else training / tokens,
        None if seconds is None else seconds / tokens,
    )


def active_params(counted_run: CountedRun, tokens: int | None = None) -> float | None:
    """Return the number of parameters that a mixture of experts uses per token.

    The number of active parameters is the number of parameters outside the experts, plus the experts' MACs per token. Return None for a
    model without experts, or if the number of tokens in the run is unknown.
    """
    experts = {
        module.path: module.params
        for module in counted_run.run.modules
        if module.params and EXPERTS_PATH.search(module.path)
    }
    params = totals.params(counted_run)
    if not experts or params is None:
        return None
    try:
        tokens = per_token(counted_run, tokens).tokens
    except InputError:
        return None
    macs = sum(each.macs for each in counted_run.counted if each.call.phase == FORWARD and each.call.path in experts)
    return params - sum(experts.values()) + macs / tokens


def _tokens(scope: Scope) -> int:
    """Return the number of elements in the first integer tensor that was passed to the model. Return 0 if there was no integer tensor."""
    named = [scope.kwargs[name] for name in TOKENS if scope.kwargs.get(name) is not None]
    specs: list[Spec] = [*named, *scope.inputs()]
    for spec in specs:
        is_integer = not spec.dtype.is_floating_point and not spec.dtype.is_complex
        if is_integer and spec.dtype_name != "bool":  # bool: a mask, not tokens
            return spec.numel()
    return 0

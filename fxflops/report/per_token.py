"""The cost of a token: the sums of a run of a language model, divided by the tokens that it was given."""

from __future__ import annotations

from typing import NamedTuple

from ..counting.counted_run import CountedRun
from ..errors import InputError, of_kind
from ..records import Scope

TOKENS = "input_ids", "decoder_input_ids"
"""The names under which models of transformers take tokens."""


class PerToken(NamedTuple):
    """The cost of a token, on average over ``tokens``. ``training_flops`` are those of forward and backward; they and
    ``seconds`` are None if they were not counted or timed."""

    tokens: int
    flops: float
    macs: float
    training_flops: float | None
    seconds: float | None


def per_token(report: CountedRun, tokens: int | None) -> PerToken:
    """Return the sums of ``report`` over ``tokens``; by default those that the calls of the model were given.

    Raises InputError if that is no number above 0, or the model was given no integers.
    """
    if tokens is None:
        tokens = sum(_tokens(scope) for scope in report.scopes if not scope.path)
        if not tokens:
            raise InputError(
                f"{report.model} was given no tokens (integers): report.per_token(tokens=...) takes their number"
            )
    elif not isinstance(tokens, int) or tokens < 1:
        raise of_kind(InputError(f"tokens={tokens!r}: an int of at least 1"), TypeError, ValueError)
    seconds = report.block_time or report.latency
    totals = (report.total_flops, report.total_macs, report.total_training_flops, seconds)
    return PerToken(tokens, *(None if total is None else total / tokens for total in totals))  # type: ignore[arg-type]


def _tokens(scope: Scope) -> int:
    """Return the elements of the first integer tensor that the model was called with; 0 if there is none."""
    named = [scope.kwargs[name] for name in TOKENS if scope.kwargs.get(name) is not None]
    given = [
        spec for spec in (*named, *scope.inputs()) if not spec.dtype.is_floating_point and not spec.dtype.is_complex
    ]
    return next((spec.numel() for spec in given if spec.dtype_name != "bool"), 0)

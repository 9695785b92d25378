"""6ND: 6 FLOPs for each parameter and token (Kaplan et al. 2020, https://arxiv.org/abs/2001.08361, section 2.1)."""

from __future__ import annotations

from ._source import Source
from ._terms import TERMS, Terms, Trainer


def terms(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return 6 x parameters x tokens. Experts that a token is not sent to are left out."""
    return {name: 6 * n * sum(lengths) for name, n in source.active_parameters.items()}


HOW = dict.fromkeys(TERMS, "6 x parameters x tokens") | {
    "input table": "6 x parameters x tokens (a lookup does no multiplications)",
    "experts": "6 x parameters (of the experts that a token is sent to) x tokens",
}
TRAINER = Trainer("6nd", "6ND: 6 x active parameters x tokens, including both embedding tables", terms, HOW)

"""PaLM's model FLOPs (https://arxiv.org/abs/2204.02311, appendix B): 6N + 12 L H Q T per token. PaLM's paper introduced MFU."""

from __future__ import annotations

from . import six_nd
from ._source import Source
from ._terms import Terms, Trainer


def terms(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return 6ND, plus 12 x heads x head size x tokens squared per layer for the attention scores."""
    squares = sum(length**2 for length in lengths)
    return {**six_nd.terms(source, lengths), "attention scores": 6 * source.width_of_scores("palm") * squares}


HOW = six_nd.HOW | {
    "attention scores": "12 x layers x heads x head size x sum of squared lengths: every pair of tokens"
}
TRAINER = Trainer("palm", "PaLM, appendix B: 6N + 12 L H Q T per token", terms, HOW)

"""``total_flos`` of transformers' Trainer: 6 x parameters (without embeddings) x tokens.

Trainer.floating_point_ops of transformers 5: https://github.com/huggingface/transformers/blob/main/src/transformers/trainer.py
"""

from __future__ import annotations

from . import six_nd
from ._source import Source
from ._terms import Terms, Trainer


def terms(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return 6 x parameters x tokens, without embedding tables and with all experts.

    An output layer that shares the weight of the input table is left out too.
    """
    skipped = {"input table", "output layer"} if source.is_tied else {"input table"}
    return {name: 6 * n * sum(lengths) for name, n in source.parameters.items() if name not in skipped}


HOW = six_nd.HOW | {"experts": "6 x parameters of all experts x tokens"}
TRAINER = Trainer("total_flos", "transformers' Trainer: 6 x parameters (without embeddings) x tokens", terms, HOW)

"""How long the backward pass of fused attention takes: as the forward pass, with five products per tile instead of two.

It recomputes the scores, and then computes the gradients of queries, keys, values and scores.
"""

from __future__ import annotations

from torch import Tensor

from . import attention
from .hardware import Card

FEATURES = attention.FEATURES
NUMBERS = attention.NUMBERS
"""The numbers of a card, as for the forward pass."""
PRODUCTS = 5 / 2


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of backward passes: ``features[calls, 8] -> seconds[calls]``."""
    return PRODUCTS * attention.seconds(numbers, card, dtype, features)

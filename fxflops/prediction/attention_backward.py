"""A formula for the time of fused attention's backward pass. The formula is the forward's formula with five matrix products per tile instead of two.

The backward pass recomputes the scores, and then computes the gradients of queries, keys, values and scores.
"""

from __future__ import annotations

from torch import Tensor

from . import attention
from .hardware import Card

FEATURES = attention.FEATURES
NUMBERS = attention.NUMBERS
"""The formula's numbers, which are fitted for each card; the forward pass has the same numbers."""
PRODUCTS = 5 / 2


def seconds(numbers: dict[str, Tensor], card: Card, dtype: str, features: Tensor) -> Tensor:
    """Return the seconds of backward passes: ``features[calls, 8] -> seconds[calls]``."""
    return PRODUCTS * attention.seconds(numbers, card, dtype, features)

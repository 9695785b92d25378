"""Dropout. In training, the forward multiplies each output by the mask and by the scale, and the backward by their product.

In eval mode, dropout computes nothing.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from ._extend import POINTWISE, Cost, Spec, first, formula, named
from ._traits import MAYBE_NOTHING


@formula(
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
    *named("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout"),
    traits=[MAYBE_NOTHING],
)  # fmt: skip
def dropout(
    input: Spec, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool = True, out: Spec
) -> Cost:
    """x[*] -> out[*]: 2 multiplies per output in training (by the mask and by the scale), nothing in eval mode."""
    return Cost(muls=2 * out.numel() if training and train and p > 0 else 0)


@dropout.shape(nn.Dropout, F.dropout, layout=POINTWISE)
def dropout_shape(input: Spec, p: float = 0.5, training: bool = True, inplace: bool = False) -> Spec | None:
    """x[*] -> x[*] itself in eval mode, or None in training, where dropout also makes a mask."""
    return None if training else input


@formula(*named("native_dropout"), op="dropout")
def native_dropout(input: Spec, p: float, train: bool | None = True, *, out: tuple[Spec, Spec]) -> Cost:
    """x[*] -> out[*], mask[*]: counted like dropout; ``train=None`` means training."""
    return dropout(input, p, train is not False, out=out[0])


@native_dropout.backward(*named("native_dropout_backward"), op="dropout_backward")
def native_dropout_backward(*, out: Spec) -> Cost:
    """grad[*], mask[*] -> out[*]: grad * noise, where noise is the scaled mask of the forward pass: 1 per output.

    On CPU, autograd saves the noise. A GPU kernel scales the mask again; this is not counted, so that CPU and GPU counts are equal.
    """
    return Cost(muls=out.numel())


@formula(*named("_fused_dropout", "_masked_scale"), op="dropout")
def masked_and_scaled(*, out: Any) -> Cost:
    """x[*], mask[*] -> out[*]: x * mask * scale: 2 per output."""
    return Cost(muls=2 * first(out).numel())

"""Corrections to a formula for kernel times. The corrections depend on the kernel's shape. The corrections form a grid over the logarithms
of the shape's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Residuals:
    """A grid of corrections. Each value is log(measured / predicted seconds) at a knot of the grid, in thousandths.

    ``axes`` has an entry for each feature in the grid: the base-2 logarithms of the feature's values at the knots, ascending. Between
    knots, values are interpolated linearly. Outside the grid, the value of the nearest knot is used.
    """

    axes: Mapping[str, tuple[float, ...]]
    thousandths: tuple[int, ...]

    def factor(self, names: Sequence[str], features: Tensor) -> Tensor:
        """Return the factors by which predicted seconds are multiplied: ``features[kernels, names] -> factor[kernels]``."""
        shares = features.new_ones(len(features), 1)
        for name, knots in self.axes.items():
            weights = knot_weights(features[:, names.index(name)], features.new_tensor(knots))
            shares = (shares[:, :, None] * weights[:, None, :]).flatten(1)
        return torch.exp(shares @ features.new_tensor(self.thousandths) / 1000)

    def as_data(self) -> dict[str, Any]:
        return {"axes": {name: list(knots) for name, knots in self.axes.items()}, "thousandths": list(self.thousandths)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Residuals:
        return cls({name: tuple(knots) for name, knots in data["axes"].items()}, tuple(data["thousandths"]))


def knot_weights(feature: Tensor, knots: Tensor) -> Tensor:
    """Return the weight of each knot in a linear interpolation: ``weights[kernels, knots]``. In each row, at most two neighbors are not 0."""
    at = torch.log2(torch.clamp(feature, min=1)).clamp(knots[0], knots[-1])
    below = (torch.searchsorted(knots, at, right=True) - 1).clamp(0, len(knots) - 2)
    share = (at - knots[below]) / (knots[below + 1] - knots[below])
    weights = torch.zeros(len(at), len(knots), dtype=knots.dtype)
    weights.scatter_(1, below[:, None], (1 - share)[:, None])
    weights.scatter_(1, below[:, None] + 1, share[:, None])
    return weights

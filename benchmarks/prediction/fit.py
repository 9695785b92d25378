"""Fit the numbers of a family of kernels to measured times, and a grid to the residuals of the formula.

The numbers minimise the mean error of the logarithm, by Adam from the formula's own start. The residuals are smoothed by a
Gaussian process (Rasmussen and Williams 2006, chapter 2) over the logarithms of the features, and evaluated at the knots.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fxflops.prediction import collectives
from fxflops.prediction.calibration import FORMULAS, Family
from fxflops.prediction.hardware import Card
from fxflops.prediction.numbers import fitted_numbers
from fxflops.prediction.residuals import Residuals

HELD_OUT = 3
"""One of this many rows is held out, chosen by a hash of the row's identity."""
NOISE = 0.1
"""The variance of the noise in a measurement, relative to the variance of the residuals."""
LENGTH, LENGTHS = 1.5, {"length": 0.3}
"""The length scale of the Gaussian process, in doublings of a feature. It is short for the length of reduced rows: kernels are tuned to
powers of two, and lengths in between waste threads, so neighbors say little."""


class Measured(NamedTuple):
    """Measured kernels of a family: ``features[rows, ...]``, ``seconds[rows]``, and ``held_out[rows]``, the rows that no fit may use."""

    features: Tensor
    seconds: Tensor
    held_out: Tensor
    kernels: str
    source: str
    eager: bool = False
    """Whether the host launched each kernel. The launch is then part of the shortest times, so the measurements do not show a kernel's
    least time, the constant time of a wave, or the slowdown of rows shorter than the measured ones."""


def is_held_out(*identity: object) -> bool:
    """Return whether the row with this identity is held out. A third of all rows is."""
    return int(hashlib.sha256(",".join(map(str, identity)).encode()).hexdigest(), 16) % HELD_OUT == 0


def fit(name: str, card: Card, dtype: str, measured: Measured, knots: Mapping[str, tuple[float, ...]]) -> Family:
    """Return the fitted family. ``knots`` are the knots of its residuals; an empty mapping for a family without residuals."""
    numbers = _fit_numbers(name, card, dtype, measured)
    family = Family(
        numbers, None, len(measured.seconds), int(measured.held_out.sum()), 0.0, measured.kernels, measured.source
    )
    predicted = _predicted(family, name, card, dtype, measured.features)
    if knots:
        family = replace(family, residuals=_fit_residuals(name, measured, predicted, knots))
        predicted = _predicted(family, name, card, dtype, measured.features)
    errors = (predicted / measured.seconds - 1).abs()[measured.held_out]
    if not len(errors):
        errors = torch.cat([_left_out(name, card, dtype, measured, row) for row in range(len(predicted))])
    return replace(family, held_out=len(errors), error=round(errors.mean().item(), 4))


def _left_out(name: str, card: Card, dtype: str, measured: Measured, row: int) -> Tensor:
    """Return the error of one row in a fit to all other rows. This is used where there are too few rows to hold out a third."""
    at = torch.arange(len(measured.seconds)) == row
    family = fit(name, card, dtype, measured._replace(held_out=at), {})
    return family.seconds(name, card, dtype, measured.features[at]).div(measured.seconds[at]).sub(1).abs()


def _fit_numbers(name: str, card: Card, dtype: str, measured: Measured) -> dict[str, float]:
    rows = ~measured.held_out
    fixed = ("floor_us", "start_us", "short_rows") if measured.eager else ()
    known = fitted_numbers(FORMULAS[name], card, dtype, measured.features[rows], measured.seconds[rows], fixed)
    if FORMULAS[name] is collectives:  # drop numbers for more GPUs than were measured
        known = {key: value for key, value in known.items() if int(key.split("_")[-1]) <= measured.features[:, 0].max()}
    return known


def _predicted(family: Family, name: str, card: Card, dtype: str, features: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([family.seconds(name, card, dtype, part) for part in features.split(1000)])


def _fit_residuals(
    name: str, measured: Measured, predicted: Tensor, knots: Mapping[str, tuple[float, ...]]
) -> Residuals:
    names = FORMULAS[name].FEATURES
    columns = [names.index(feature) for feature in knots]
    rows = ~measured.held_out
    at = torch.log2(measured.features[rows][:, columns])
    left = torch.log(measured.seconds[rows] / predicted[rows])
    lengths = torch.tensor([LENGTHS.get(feature, LENGTH) for feature in knots], dtype=at.dtype)
    at = at / lengths
    weights = torch.linalg.solve(_kernel(at, at) + NOISE * torch.eye(len(at), dtype=at.dtype), left)
    grid = torch.cartesian_prod(*[torch.tensor(values, dtype=at.dtype) for values in knots.values()]).reshape(
        -1, len(columns)
    )
    grid = grid / lengths
    values = torch.cat([_kernel(part, at) @ weights for part in grid.split(500)])
    return Residuals(dict(knots), tuple((1000 * values).round().int().tolist()))


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    """Return the covariance of the residuals of shapes: ``a[rows, features], b[columns, features] -> [rows, columns]``."""
    return torch.exp(-0.5 * torch.cdist(a, b) ** 2)

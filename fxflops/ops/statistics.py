"""Statistics of samples, histograms, integrals and differences of sampled functions."""

from __future__ import annotations

import math
from typing import Any

from ._extend import Cost, Spec, contraction, first, formula, named, rows_of, specs_in, times
from .reduce import histc


@formula(*named("cov"))
def cov(input: Spec, *, fweights: Any = None, aweights: Any = None, out: Spec) -> Cost:
    """x[v, n] -> out[v, v]: computing and subtracting the mean of each row, then n multiply-adds and 1 divide per output.

    Weights take 2 multiplies per element, plus the sum of the weights and the product of fweights and aweights.
    """
    n = input[-1] if input.ndim else 1
    v = rows_of(input.numel(), n)
    centered = Cost(adds=v * (n - 1) + v * n, others=v)
    given = sum(weights is not None for weights in (fweights, aweights))
    weighted = Cost(muls=2 * v * n + n * (given - 1), adds=n - 1) if given else Cost()
    return centered.plus(weighted).plus(contraction(n, v * v)).plus(Cost(others=v * v))


@formula(*named("corrcoef"))
def corrcoef(input: Spec, *, out: Spec) -> Cost:
    """x[v, n] -> out[v, v]: counted like cov, plus v roots, and 2 divides and 1 clamp per output."""
    v = input.numel() // input[-1] if input.numel() else 0
    return cov(input, out=out).plus(Cost(others=v + 3 * v * v))


@formula(*named("trapezoid", "trapz"))
def trapezoid(y: Spec, x: Any = None, *, dim: int = -1, out: Spec) -> Cost:
    """y[*, k], x[k] -> out[*]: per output, k - 1 sums of neighbours, k - 1 multiplies by differences of x, k - 2 adds and 1 divide.

    Evenly spaced points take k - 1 adds, plus 2 adds and 2 multiplies for the ends and the step.
    """
    k = y[dim]
    if not k:
        return Cost()
    if not isinstance(x, Spec):
        return times(out.numel(), Cost(muls=2, adds=k + 1))
    return times(out.numel(), Cost(muls=k - 1, adds=(k - 1) + max(k - 2, 0), others=1)).plus(_differences(x, dim))


@formula(*named("cumulative_trapezoid"))
def cumulative_trapezoid(y: Spec, x: Any = None, *, dim: int = -1, out: Spec) -> Cost:
    """y[*, k], x[k] -> out[*, k - 1]: per output, 1 sum of neighbours, 1 multiply by half the step, and 1 add to the running sum."""
    each = Cost(muls=out.numel(), adds=out.numel() + out.numel() - rows_of(out.numel(), out[dim]))
    differences = _differences(x, dim) if isinstance(x, Spec) else Cost()
    return each.plus(differences).plus(Cost(others=differences.adds))


@formula(*named("gradient"))
def gradient(input: Spec, *, spacing: Any = None, out: Any) -> Cost:
    """x[*] -> out[d][*]: 1 subtraction and 1 divide per output, or 3 multiplies and 2 adds with coordinates.

    Computing the coefficients from the coordinates is not counted, nor are the longer sums at the ends.
    """
    outputs = sum(spec.numel() for spec in specs_in(out))
    if any(True for _ in specs_in(spacing)):
        return Cost(muls=3 * outputs, adds=2 * outputs)
    return Cost(adds=outputs, others=outputs)


@formula(*named("histogram"))
def histogram(
    input: Spec, bins: Any = 100, *, range: Any = None, weight: Any = None, density: bool = False, out: Any
) -> Cost:
    """x[n] -> out[k], edges[k + 1]: counted like histc; if ``bins`` are edges, ceil(log2(k + 1)) compares and 1 add per element.

    ``density`` takes the sum of all bins, the width of each bin, and 2 divides per output.
    """
    n, k = input.numel(), first(out).numel()
    if isinstance(bins, Spec):
        counted = Cost(adds=n, others=n * math.ceil(math.log2(bins[-1])))
    else:
        counted = histc(input, k, 0, 0 if range is None else 1, out=first(out))
    return counted.plus(Cost(adds=(k - 1) + k, others=2 * k) if density else Cost())


@formula(*named("histogramdd", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors"))
def histogramdd(
    input: Spec, bins: Any, range: Any = None, weight: Any = None, density: bool = False, *, out: Any
) -> Cost:
    """x[n, d] -> out[*k], edges[d][k + 1]: finding bins counts like in histogram, for each dim; plus 1 add per sample."""
    n, d = input.numel() // input[-1] if input.numel() else 0, input[-1]
    edges = [spec[-1] for spec in specs_in(bins)]
    compared = Cost(others=n * sum(math.ceil(math.log2(k)) for k in edges))
    found = compared if edges else Cost(adds=n * d, others=n * d).plus(_histogramdd_ends(input, range))
    k = first(out).numel()
    return found.plus(Cost(adds=n)).plus(Cost(adds=k - 1, others=(1 + d) * k) if density else Cost())


@formula(*named("_histogramdd_bin_edges"), op="histogramdd")
def histogramdd_bin_edges(input: Spec, bins: Any, *, range: Any = None, out: Any) -> Cost:
    """x[n, d] -> edges[d][k + 1]: 2(n - 1) compares per dim to find a range that is not passed."""
    return _histogramdd_ends(input, range)


def _differences(x: Spec, dim: int) -> Cost:
    return Cost(adds=x.numel() // x[dim] * (x[dim] - 1) if x.numel() else 0)


def _histogramdd_ends(input: Spec, range: Any) -> Cost:
    return Cost(others=2 * max(input.numel() - input[-1], 0) if range is None else 0)

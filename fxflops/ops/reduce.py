"""Reductions of k elements to one (sums, extrema, moments, norms), and scans."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ._cost import is_complex, real_ones
from ._extend import ANY, Cost, Spec, first, formula, named, reduced, rows_of, shape, spelled
from .linalg import svdvals


@formula(*named("sum", "nansum", "sum_to_size", "_sparse_sum"))
def sum(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 adds per output; for a sparse input, only its stored elements are added."""
    return Cost(adds=max(input.facts.get("nnz", input.numel()) - out.numel(), 0))


@formula(*named("mean", "nanmean"))
def mean(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 adds and 1 divide per output; complex: 1 divide per part."""
    return Cost(adds=max(input.numel() - out.numel(), 0), others=(2 if is_complex(out) else 1) * out.numel())


@mean.shape(*spelled("mean", torch, torch.Tensor), layout=ANY)
@sum.shape(*spelled("sum", torch, torch.Tensor), layout=ANY)
def mean_shape(input: Spec, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Spec | None:
    """x[*] -> out[*], without the reduced dims."""
    dtype, sizes = dtype or input.dtype, sizes_left(input, dim, keepdim)
    if sizes is None or not input.dtype.is_floating_point or not dtype.is_floating_point:
        return None
    return Spec(sizes, dtype)


@formula(*named("prod"))
def prod(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 multiplies per output."""
    return Cost(muls=max(input.numel() - out.numel(), 0))


def extremum(input: Spec, other: Any = None, *, out: Any) -> Cost:
    """x[*, k] -> out[*]: k - 1 compares per output; for two tensors, 1 compare per output."""
    values = first(out)
    return Cost(others=values.numel() if isinstance(other, Spec) else max(input.numel() - values.numel(), 0))


for _name in ("max", "min", "amax", "amin", "argmax", "argmin", "any", "all"):
    formula(*named(_name), op=_name)(extremum)
formula("aten::_is_any_true", "aten::_is_all_true", op="any")(extremum)


@shape(*spelled("amax amin", torch, torch.Tensor), layout=ANY)
def amax_shape(input: Spec, dim: Any = (), keepdim: bool = False) -> Spec | None:
    """x[*] -> out[*], without the reduced dims."""
    return None if dim is None else mean_shape(input, dim, keepdim)


@formula(*named("aminmax"))
def aminmax(input: Spec, *, out: Any) -> Cost:
    """x[*, k] -> smallest[*], largest[*]: 2 (k - 1) compares per output."""
    return Cost(others=2 * max(input.numel() - out[0].numel(), 0))


@formula(*named("hash_tensor"))
def hash_tensor(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k - 1 exclusive ors per output."""
    return Cost(others=max(input.numel() - out.numel(), 0))


@formula(*named("count_nonzero"))
def count_nonzero(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k compares and k - 1 adds per output."""
    return Cost(adds=max(input.numel() - out.numel(), 0), others=input.numel())


@formula(*named("var", "var_mean"))
def var(input: Spec, *, out: Any) -> Cost:
    """x[*, k] -> out[*]: per output, the mean (k - 1 adds, 1 divide), k subtractions, k squares, k - 1 adds and 1 divide.

    Complex: the variances of the real and the imaginary parts, plus 1 add per output.
    """
    n, outputs = input.numel(), first(out).numel()
    if is_complex(input):
        parts = var(Spec((2, *input), torch.float32), out=Spec((2 * outputs,)))
        return real_ones(parts.plus(Cost(adds=outputs)))
    return Cost(muls=n, adds=n + 2 * max(n - outputs, 0), others=2 * outputs)


@formula(*named("std", "std_mean"))
def std(input: Spec, *, out: Any) -> Cost:
    """x[*, k] -> out[*]: the variance and 1 square root per output."""
    return var(input, out=out).plus(Cost(others=first(out).numel()))


@formula(
    *(target for target in named("norm") if target is not torch.linalg.norm),
    *named("linalg_vector_norm", "vector_norm", "frobenius_norm"),
)
def norm(input: Spec, p: Any = 2, *, ord: Any = None, out: Spec) -> Cost:
    """x[*, k] -> out[*]: per output, k powers, k-1 adds and 1 root. p = 0, 1 and inf need no powers and no root.

    p = 0 takes k compares and k-1 adds, p = 1 k absolute values and k-1 adds, and p = inf k absolute values and k-1 compares.
    For complex numbers, p = 2 squares both parts, and p = 0 only compares. Other norms first take absolute values, like abs.
    """
    p = p if ord is None else ord
    return matrix_norm(input, p, out=out) if p == "nuc" else norm_of(p, input, out.numel())


@norm.shape(torch.Tensor.norm, layout=ANY)
def norm_shape(input: Spec, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Spec | None:
    """x[*] -> out[*], without the reduced dims."""
    if type(p) not in (int, float) or dim is None or dtype is not None:
        return None
    return mean_shape(input, dim, keepdim)


@formula(torch.linalg.norm, "aten::linalg_norm", op="norm")
def linalg_norm(A: Spec, ord: Any = None, dim: Any = None, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: counted like norm for vectors or without ``ord``, else like matrix_norm."""
    if ord is None or (A.ndim != 2 if dim is None else isinstance(dim, int) or len(dim) == 1):
        return norm_of(ord, A, out.numel())
    return matrix_norm(A, ord, (0, 1) if dim is None else dim, out=out)


@formula(*named("linalg_matrix_norm", "matrix_norm"), op="norm")
def matrix_norm(A: Spec, ord: Any = "fro", dim: Any = (-2, -1), *, out: Spec) -> Cost:
    """x[*, m, n] -> out[*]: "fro" counts like norm; 1 takes mn absolute values, (m - 1)n adds and n - 1 compares per output.

    inf counts like 1 with m and n swapped. Absolute values of complex numbers count like abs. 2 is the largest of k singular
    values, and "nuc" is their sum: the cost of svdvals, plus k - 1 compares or adds.
    """
    if ord == "fro":
        return norm_of(2, A, out.numel())
    if not isinstance(ord, (int, float)) or abs(ord) == 2:
        matrices = Spec((out.numel(), A[dim[0]], A[dim[1]]), A.dtype)
        joined = max(min(matrices[1:]) - 1, 0) * out.numel()
        return svdvals(matrices, out=out).plus(Cost(adds=joined) if ord == "nuc" else Cost(others=joined))
    sums = out.numel() * A[dim[1] if abs(ord) == 1 else dim[0]]
    cost = Cost(adds=max(A.numel() - sums, 0), others=A.numel() + max(sums - out.numel(), 0))
    return real_ones(cost.plus(Cost(others=3 * A.numel()))) if is_complex(A) else cost


@formula(*named("renorm"))
def renorm(input: Spec, p: float, dim: int, maxnorm: float, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k]: for each of k slices, the norm, 1 compare, 1 add and 1 divide; plus 1 multiply per output.

    The count is an upper bound: the norm of every slice is assumed to exceed maxnorm.
    """
    k = input[dim]
    return norm(input, p, out=Spec((k,))).plus(Cost(muls=out.numel(), adds=k, others=2 * k))


@formula(*named("norm_except_dim"), op="norm")
def norm_except_dim(v: Spec, pow: float = 2, dim: int = 0, *, out: Spec) -> Cost:
    """v[*, k] -> out[k]: counted like norm, for each slice along ``dim``."""
    return norm(v, pow, out=out)


@formula(*named("linalg__powsum"))
def powsum(input: Spec, ord: Any = 2, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: counted like norm, without the root."""
    cost = norm(input, ord, out=out)
    roots = 0 if ord in (0, 1, math.inf, -math.inf) else out.numel()
    return cost._replace(others=cost.others - roots)


@formula(*named("dist"))
def dist(input: Spec, other: Spec, p: float = 2, *, out: Spec) -> Cost:
    """x[k], y[k] -> out: k subtractions, plus the cost of norm."""
    difference = Spec(torch.broadcast_shapes(input, other), (input if is_complex(input) else other).dtype)
    return norm_of(p, difference, 1).plus(Cost(adds=difference.numel()))


@formula(*named("trace"))
def trace(input: Spec, *, out: Spec) -> Cost:
    """x[n, n] -> out: n - 1 adds."""
    return Cost(adds=max(min(input) - 1, 0))


@formula(*named("logsumexp"))
def logsumexp(input: Spec, *, out: Spec) -> Cost:
    """x[*, k] -> out[*]: k exponentials, k - 1 adds and 1 logarithm per output."""
    return Cost(adds=max(input.numel() - out.numel(), 0), others=input.numel() + out.numel())


@formula(*named("cumsum"))
def cumsum(input: Spec, dim: int, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k]: k - 1 adds per row."""
    return Cost(adds=steps(input, dim))


@formula(*named("cumprod"))
def cumprod(input: Spec, dim: int, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k]: k - 1 multiplies per row."""
    return Cost(muls=steps(input, dim))


@formula(*named("cummax"), op="cummax")
@formula(*named("cummin"), op="cummin")
def cummax(input: Spec, dim: int, *, out: Any) -> Cost:
    """x[*, k] -> out[*, k], indices[*, k]: k - 1 compares per row."""
    return Cost(others=steps(input, dim))


@formula("aten::_cummax_helper", op="cummax")
@formula("aten::_cummin_helper", op="cummin")
def cummax_helper(input: Spec, values: Spec, indices: Spec, dim: int, *, out: Any) -> Cost:
    """x[*, k] -> values[*, k], indices[*, k]: counted like cummax."""
    return cummax(input, dim, out=values)


@formula(*named("logcumsumexp"))
def logcumsumexp(input: Spec, dim: int, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k]: k exponentials, k - 1 adds and k logarithms per row."""
    return Cost(adds=steps(input, dim), others=2 * input.numel())


@formula(*named("diff"))
def diff(input: Spec, n: int = 1, dim: int = -1, *, out: Spec) -> Cost:
    """x[*, k] -> out[*, k - n]: (k - 1) + (k - 2) + ... + (k - n) subtractions per row."""
    rows = out.numel() // max(out[dim], 1)
    return Cost(adds=rows * (n * out[dim] + math.comb(n, 2)))


@formula(nn.CosineSimilarity, *named("cosine_similarity"))
def cosine_similarity(x1: Spec, x2: Spec, dim: int = 1, *, out: Spec) -> Cost:
    """a[*, k], b[*, k] -> out[*]: per output, 3 dot products of length k, 2 roots, 1 multiply, 1 compare with eps and 1 divide."""
    k = reduced(torch.broadcast_shapes(x1, x2), dim)
    return Cost(muls=(3 * k + 1) * out.numel(), adds=3 * max(k - 1, 0) * out.numel(), others=4 * out.numel())


@formula(nn.PairwiseDistance, *named("pairwise_distance"))
def pairwise_distance(x1: Spec, x2: Spec, p: float = 2.0, *, norm: float | None = None, out: Spec) -> Cost:
    """a[*, k], b[*, k] -> out[*]: k subtractions and k adds of eps per output, plus the cost of norm (the module's p is named ``norm``)."""
    n = math.prod(torch.broadcast_shapes(x1, x2))
    return norm_of(p if norm is None else norm, Spec((n,), x1.dtype), out.numel()).plus(Cost(adds=2 * n))


@formula(*named("cross", "linalg_cross"))
def cross(*, out: Spec) -> Cost:
    """a[*, 3] x b[*, 3] -> out[*, 3]: 2 multiplies and 1 subtraction per output."""
    return Cost(muls=2 * out.numel(), adds=out.numel())


@formula(*named("bincount"))
def bincount(input: Spec, *, out: Spec) -> Cost:
    """x[n] -> out[k]: 1 add per element."""
    return Cost(adds=input.numel())


@formula(*named("histc"))
def histc(input: Spec, bins: int = 100, min: float = 0, max: float = 0, *, out: Spec) -> Cost:
    """x[n] -> out[k]: 2 adds and 1 divide per element to find its bin and count it; 2(n - 1) compares to find a range that is not passed."""
    n = input.numel()
    return Cost(adds=2 * n, others=n + (2 * (n - 1) if min == max and n else 0))


def norm_of(p: Any, input: Spec, outputs: int) -> Cost:
    """Return the cost of p-norms that reduce all elements of ``input`` to ``outputs`` values."""
    n = input.numel()
    more = max(n - outputs, 0)
    if is_complex(input):
        if p in (None, 2, "fro"):
            return real_ones(norm_of(2, Spec((2, *input), torch.float32), outputs))
        # The absolute value of a complex number takes 4 FLOPs. The norm with p = 0 needs no absolute values.
        # For p = 1 and inf, norm_of() below already counts 1 FLOP per element for a real absolute value, so 3 are left to count.
        lengths = 0 if p == 0 else 3 if p in (1, math.inf, -math.inf) else 4
        return real_ones(norm_of(p, Spec(input, torch.float32), outputs)).plus(Cost(others=lengths * n))
    if p in (None, 2, "fro"):
        return Cost(muls=n, adds=more, others=outputs)
    if p in (0, 1):
        return Cost(adds=more, others=n)
    if p in (math.inf, -math.inf):
        return Cost(others=n + more)
    return Cost(adds=more, others=n + outputs)


def steps(input: Spec, dim: int | None) -> int:
    """Return the number of steps from one element to the next along ``dim``: k - 1 per row of k."""
    return input.numel() - rows_of(input.numel(), reduced(input, dim))


def sizes_left(input: Spec, dim: Any, keepdim: bool) -> tuple[int, ...] | None:
    """Return the sizes of the result of a reduction over ``dim`` (None: all dims); None for invalid dims or an empty input."""
    dims = range(input.ndim) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    if not dims or not all(type(d) is int and -input.ndim <= d < input.ndim for d in dims) or not input.numel():
        return None
    gone = {d % input.ndim for d in dims}
    if len(gone) != len(dims):
        return None
    return tuple(1 if d in gone else size for d, size in enumerate(input) if keepdim or d not in gone)

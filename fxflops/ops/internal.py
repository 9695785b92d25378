"""Operators that only torch's own kernels and decompositions call. Each operator fuses other ops or computes a part of an op."""

from __future__ import annotations

import math
from typing import Any

import torch

from ._extend import Cost, Spec, contraction, formula, named
from .conv import conv
from .distance import cdist
from .elementwise import add, pointwise
from .matmul import addmm, matmul
from .reduce import aminmax, logcumsumexp, logsumexp, norm

for _name, _op, _function in (
    ("_aminmax", "aminmax", aminmax),
    ("_conj_physical", "conj_physical", pointwise),
    ("_euclidean_dist", "cdist", cdist),
    ("_logcumsumexp", "logcumsumexp", logcumsumexp),
    ("_weight_int4pack_mm_with_scales_and_zeros", "matmul", matmul),
    ("_unsafe_masked_index", "masked_index", pointwise),
    ("native_norm", "norm", norm),
    ("special_logsumexp", "logsumexp", logsumexp),
):
    formula(*named(_name), op=_op)(_function)


@formula("aten::_unsafe_masked_index_put_accumulate", op="index_put")
def masked_index_put(input: Spec, mask: Spec, indices: Any, values: Spec, *, out: Spec) -> Cost:
    """x[*], mask[n], index[n], values[n] -> out[*]: 1 selection and 1 add per value."""
    return Cost(adds=values.numel(), others=values.numel())


@formula("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu", op="conv")
def conv_relu(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> Cost:
    """input[*, g*i, *n], weight[o, i, *k] -> out[*, o, *m]: counted like conv, plus 1 relu per output."""
    return conv(input, weight, bias=bias, out=out).plus(Cost(others=out.numel()))


@formula("aten::cudnn_convolution_add_relu", "aten::miopen_convolution_add_relu", op="conv")
def conv_add_relu(
    input: Spec, weight: Spec, z: Spec, alpha: float | None = None, bias: Spec | None = None, *, out: Spec
) -> Cost:
    """input[*, g*i, *n], weight[o, i, *k], z[*, o, *m] -> out[*, o, *m]: counted like conv, plus alpha * z and 1 relu per output."""
    return conv_relu(input, weight, bias, out=out).plus(add(out, z, 1 if alpha is None else alpha, out=out))


@formula(*named("_compute_linear_combination"))
def linear_combination(input: Spec, coefficients: Spec, *, out: Spec) -> Cost:
    """input[n, *], coefficients[m, n] -> out[m, *]: n multiplies and n - 1 adds per output."""
    return contraction(coefficients[-1], out.numel())


@formula(*named("_trilinear"), op="bilinear")
def trilinear(
    i1: Spec, i2: Spec, i3: Spec, expand1: Any, expand2: Any, expand3: Any, sumdim: Any, *, out: Spec
) -> Cost:
    """i1[*, i], i2[*, i, j], i3[*, j] -> out[*]: counted like bilinear: sums over the dims that i3 does not have, then sums over the other dims."""
    full = torch.broadcast_shapes(_expanded(i1, expand1), _expanded(i2, expand2), _expanded(i3, expand3))
    inner = math.prod(full[d] for d in sumdim if d in expand3)
    outer = math.prod(full[d] for d in sumdim if d not in expand3)
    if not math.prod(full):
        return Cost()
    return contraction(inner, math.prod(full) // inner).plus(contraction(outer, out.numel()))


@formula("aten::_scaled_addmm", op="addmm")
def scaled_addmm(input: Spec, mat1: Spec, mat2: Spec, *, beta: float = 1, alpha: float = 1, out: Spec) -> Cost:
    """beta * input[m, n] + alpha * mat1[m, k] @ mat2[k, n] -> out[m, n]: counted like addmm, plus 2 multiplies by scales per output."""
    return addmm(input, mat1, mat2, beta, alpha, out=out).plus(Cost(muls=2 * out.numel()))


def _expanded(spec: Spec, expand: Any) -> list[int]:
    """Return the shape of ``spec`` with a dim of 1 inserted at each index in ``expand``."""
    shape = list(spec)
    for d in expand:
        shape.insert(d, 1)
    return shape

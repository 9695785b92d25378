"""bitsandbytes' own operators: optimizer steps with 32-bit or 8-bit states, and products with 8-bit or 4-bit weights.

Arguments: https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/_ops.py. Optimizer steps are counted
per element, like the library's plain loop:
https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/backends/default/ops.py. Work done once per
parameter, such as bias correction, is not counted, nor is searching for a value's code or looking up a code's value. The
operators are registered by name, so bitsandbytes need not be installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._extend import Cost, Spec, contraction, formula, summed, times, when
from ._libraries import Given, Values, gradients_of, library
from .optim import SCALED_ADD

QUANTIZE = Cost(muls=1, others=2)
"""Per element, an absolute value and a compare to find the block's maximum, and a multiply by the inverse of the maximum."""
DEQUANTIZE = Cost(muls=1)
"""A multiply by the block's maximum."""
MEAN = Cost(muls=2, adds=1)
"""b * m + (1 - b) * g."""
SQUARES = Cost(muls=3, adds=1)
"""b * v + (1 - b) * g * g."""
ROOT = Cost(adds=1, others=1)
"""sqrt(v) + eps."""
NORM = Cost(muls=2, adds=1)
"""Per element, the square of the update, its sum, and a multiply that limits the update's norm."""
STEPS = {
    # The costs of each optimizer: first its moving averages, then the step of the parameter.
    "adam": summed(MEAN, SQUARES, ROOT, Cost(others=1), SCALED_ADD),
    "ademamix": summed(MEAN, MEAN, SQUARES, Cost(muls=1, adds=1, others=1), ROOT, Cost(others=2), SCALED_ADD),
    "momentum": SCALED_ADD,
    "lion": summed(MEAN, Cost(others=1), SCALED_ADD, MEAN),
    "rmsprop": summed(SQUARES, ROOT, Cost(others=1), SCALED_ADD),
    "adagrad": summed(Cost(muls=1, adds=1), ROOT, Cost(others=1), SCALED_ADD),
}
SAME_AS = {"lamb": "adam", "lars": "momentum"}
DECOUPLED = frozenset({"adam", "ademamix", "lion"})
"""Optimizers whose weight decay scales the parameter. Other optimizers add the weight decay to the gradient."""


@formula("bitsandbytes::optimizer_update_32bit")
def optimizer_update_32bit(
    optimizer_name: str,
    g: Spec,
    *,
    max_unorm: float,
    weight_decay: float,
    step: int,
    gnorm_scale: float,
    out: Any,
) -> Cost:
    """p[*], g[*], state1[*], state2[*] -> p[*]: per element, by optimizer name: adam 12, ademamix 19, momentum 4, lion 9, rmsprop 9, adagrad 7.

    Weight decay costs 1 more, or 2 if it is added to the gradient. A limit on the update's norm costs 3 more, and scaling the
    gradient 1 more. In the first step of momentum, the state is the gradient itself.
    """
    return times(g.numel(), _step(optimizer_name, weight_decay, step, gnorm_scale, bool(max_unorm)))


@formula("bitsandbytes::optimizer_update_8bit_blockwise")
def optimizer_update_8bit(
    optimizer_name: str,
    g: Spec,
    *,
    state1: Spec,
    state2: Spec | None = None,
    weight_decay: float,
    step: int,
    gnorm_scale: float,
    out: Any,
) -> Cost:
    """p[*], g[*], state1[*], state2[*] -> p[*]: counted like optimizer_update_32bit, plus 4 per element of each state to dequantize and quantize."""
    states = state1.numel() + (0 if state2 is None else state2.numel())
    update = times(g.numel(), _step(optimizer_name, weight_decay, step, gnorm_scale))
    return update.plus(times(states, DEQUANTIZE.plus(QUANTIZE)))


def _step(name: str, weight_decay: float, step: int, gnorm_scale: float, bounded: bool = False) -> Cost:
    name = SAME_AS.get(name, name)
    return summed(
        STEPS[name],
        when(name == "momentum" and step != 1, Cost(muls=1, adds=1)),
        when(weight_decay, Cost(muls=1) if name in DECOUPLED else SCALED_ADD),
        when(gnorm_scale != 1, Cost(muls=1)),
        when(bounded, NORM),
    )


@formula("bitsandbytes::quantize_blockwise", "bitsandbytes::quantize_4bit", op="quantize")
def quantize(A: Spec, *, out: Any) -> Cost:
    """x[*] -> out[*], absmax[blocks]: 3 per element: its absolute value, a compare, and a multiply by the block's scale."""
    return times(A.numel(), QUANTIZE)


@formula("bitsandbytes::dequantize_blockwise", op="dequantize")
def dequantize(A: Spec, *, out: Any) -> Cost:
    """q[*], absmax[blocks] -> out[*]: 1 multiply per element."""
    return times(A.numel(), DEQUANTIZE)


@formula("bitsandbytes::dequantize_4bit", op="dequantize")
def dequantize_4bit(*, shape: Sequence[int], out: Any) -> Cost:
    """q[n / 2], absmax[blocks] -> out[n]: 1 multiply per element."""
    return times(Spec(tuple(shape)).numel(), DEQUANTIZE)


@formula("bitsandbytes::gemm_4bit", "bitsandbytes::gemv_4bit", op="linear")
def linear_4bit(A: Spec, *, shapeB: Sequence[int], bias: Spec | None = None, out: Any) -> Cost:
    """input[*, i], packed weight of shape [o, i] -> out[*, o]: 1 multiply per weight to dequantize it, plus the cost of linear."""
    outputs, inputs = shapeB
    weight = times(outputs * inputs, DEQUANTIZE)
    return weight.plus(contraction(inputs, A.numel() // inputs * outputs, bias is not None))


@formula("bitsandbytes::int8_linear_matmul", op="linear")
def int8_matmul(A: Spec, B: Spec, *, out: Any) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: i integer multiplies and i-1 integer adds per output."""
    return contraction(A[-1], A.numel() // A[-1] * B[0])


@formula("bitsandbytes::int8_mm_dequant", op="dequantize")
def int8_mm_dequant(A: Spec, *, bias: Spec | None = None, out: Any) -> Cost:
    """q[*, o], row_stats[*], col_stats[o] -> out[*, o]: 3 multiplies per output, plus 1 add with a bias."""
    return Cost(muls=3 * A.numel(), adds=0 if bias is None else A.numel())


@formula("bitsandbytes::int8_scaled_mm", op="linear")
def int8_scaled_mm(A: Spec, B: Spec, *, bias: Spec | None = None, out: Spec) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: counted like linear, plus 3 multiplies per output to dequantize it."""
    return contraction(A[-1], out.numel(), bias is not None).plus(Cost(muls=3 * out.numel()))


@formula("bitsandbytes::int8_mixed_scaled_mm", op="linear")
def int8_mixed_scaled_mm(
    A: Spec, CA: Spec, CB: Spec, *, outlier_cols: Spec | None = None, bias: Spec | None = None, out: tuple[Spec, Any]
) -> Cost:
    """input[*, i], weight[o, i] -> out[*, o]: counted like int8_scaled_mm; j outlier columns add j multiplies and j adds per output."""
    product = int8_scaled_mm(CA, CB, bias=bias, out=out[0])
    outliers = 0 if outlier_cols is None else outlier_cols.numel()
    if not outliers:
        return product
    weight = Cost(muls=2 * CB[0] * outliers)  # int8_vectorwise_dequant of those columns
    return summed(product, weight, contraction(outliers, out[0].numel(), bias=True))


@formula("bitsandbytes::int8_vectorwise_quant", op="quantize")
def int8_vectorwise_quant(A: Spec, *, threshold: float = 0.0, out: Any) -> Cost:
    """x[r, *] -> out[r, *], row_stats[r]: 4 per element: absolute value, compare, multiply, round; plus 1 compare with a threshold."""
    return times(A.numel(), Cost(muls=1, others=3 + (threshold > 0)))


@formula("bitsandbytes::int8_double_quant", op="quantize")
def int8_double_quant(A: Spec, *, threshold: float = 0.0, out: Any) -> Cost:
    """x[r, c] -> by rows, by columns: per element, 1 absolute value, and for rows and columns 3 each: compare, multiply, round."""
    return times(A.numel(), Cost(muls=2, others=5 + (threshold > 0)))


@formula("bitsandbytes::int8_vectorwise_dequant", op="dequantize")
def int8_vectorwise_dequant(A: Spec, *, out: Any) -> Cost:
    """q[r, *], stats[r] -> out[r, *]: 2 multiplies per element."""
    return times(A.numel(), Cost(muls=2))


def weight_described(values: Values) -> Values:
    """Replace the argument ``quant_state`` with the shape of the packed weight."""
    state = values.pop("quant_state")
    return {**values, "weight_shape": tuple(state.shape)}


def product_result(A: Spec, weight_shape: Sequence[int], out: Any = None) -> Any:
    """Return out[*, o], or the argument ``out`` if it is passed."""
    return Spec((*A[:-1], weight_shape[0]), A.dtype) if out is None else Given("out")


MATMUL_4BIT = "bitsandbytes.autograd._functions:matmul_4bit"


@library(MATMUL_4BIT, op="linear", described=weight_described, result=product_result)
def matmul_4bit(*, A: Spec, weight_shape: Sequence[int], bias: Spec | None = None, out: Any) -> Cost:
    """input[*, i], packed weight of shape [o, i] -> out[*, o]: 1 multiply per weight to dequantize it, plus the cost of linear."""
    return linear_4bit(A, shapeB=weight_shape, bias=bias, out=out)


@matmul_4bit.backward(*gradients_of(MATMUL_4BIT), op="linear_backward")
def matmul_4bit_backward(
    *, A: Spec, weight_shape: Sequence[int], bias: Spec | None = None, needs: Sequence[str], out: Any
) -> Cost:
    """grad[*, o], packed weight of shape [o, i] -> out[*, i], out_bias[o]: 1 multiply per weight element, o multiply-adds per element of out; the weight gets no gradient."""
    outputs, inputs = weight_shape
    rows = A.numel() // inputs
    return summed(
        when("A" in needs, times(outputs * inputs, DEQUANTIZE).plus(contraction(outputs, A.numel()))),
        when("bias" in needs, Cost(adds=max(rows - 1, 0) * outputs)),
    )

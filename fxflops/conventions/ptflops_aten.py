"""The count of ptflops 0.7.5 (https://github.com/sovrasov/flops-counter.pytorch) with its second backend, "aten".

ptflops adds up the multiply-accumulates of mm, addmm, bmm and convolution as torch dispatches these operators, and 1
for each bias that they add. This covers linear layers, matmul, einsum and RNNs. All other operators count 0, e.g.
scaled_dot_product_attention, baddbmm and a product by a vector.

ptflops's own number depends on the kernel that torch chooses; the count here does not. On a CPU, torch computes an LSTM of float32 tensors in
a single kernel, and the tool skips this kernel. Here the LSTM counts the products that torch computes for it on other devices. A program may
call this kernel by name, as programs recorded by make_fx do. The kernel then counts 0 on every device. Attention always counts 0, as with the
fused kernel. Attention counts 0 even where torch computes attention as plain matrix products. A bias is always counted. If the input of a
linear layer is not contiguous, torch adds the bias in a separate operator, and the bias is still counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ops.einsum import steps
from ..records import Cost, Operation, Spec, specs_in
from ..torch_internals import OpOverloadPacket, convolution_with_flags, cudnn_rnn
from ._convention import CONVENTIONS, Convention
from ._rows import free, windows

aten = torch.ops.aten


def product(input: Spec, other: Spec, *, out: Spec) -> int:
    """input[*, m, k] @ other[*, k, n] -> out[*, m, n]: k per output, 0 if the right operand is a vector."""
    return input[-1] * out.numel() if other.ndim > 1 else 0


def reflected_product(input: Spec, other: Spec, *, out: Spec) -> int:
    """other[*, m, k] @ input[*, k, n] -> out[*, m, n]: k per output, 0 if the right operand is a vector."""
    return product(other, input, out=out)


def product_and_sum(input: Spec, mat1: Spec, mat2: Spec, *, out: Spec) -> int:
    """input[*] + mat1[m, k] @ mat2[k, n] -> out[m, n]: k + 1 per output."""
    return (mat1[-1] + 1) * out.numel()


def linear(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> int:
    """input[*, i], weight[o, i] -> out[*, o]: i per output, plus 1 if there is a bias."""
    return (weight[-1] + (bias is not None)) * out.numel()


def conv(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> int:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m]: i*prod(k) per output, plus 1 if there is a bias."""
    return windows(input, weight, out) + (0 if bias is None else out.numel())


def conv_transpose(input: Spec, weight: Spec, bias: Spec | None = None, *, out: Spec) -> int:
    """input[n, i, *s], weight[i, o, *k] -> out[n, g*o, *m]: o*prod(k) per input, plus 1 per output if there is a bias."""
    return windows(input, weight, input) + (0 if bias is None else out.numel())


def convolution(
    input: Spec,
    weight: Spec,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *rest: Any,
    out: Spec,
) -> int:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m]: as conv, or as conv_transpose if it is transposed."""
    return (conv_transpose if transposed else conv)(input, weight, bias, out=out)


def einsum(*operands: Any, path: Sequence[int] | None = None, out: Spec) -> int:
    """a[m, k], b[k, n] -> out[m, n]: k per element of each product's result; 0 for elementwise and outer products."""
    return sum(step.macs for step in steps(operands, path, out) if step.adds)


def products(cost: Cost, ran: Operation) -> Cost:
    """1 per multiply-accumulate of RNNs, tensordot, multi_dot, inner and matrix_power, and 1 per bias that an RNN adds.

    An RNN adds each bias as often as it multiplies by each weight.
    """
    counted = cost.macs if ran.op in (*RECURRENT, *MADE_OF_PRODUCTS) else 0
    params = parameters(ran) if ran.op in RECURRENT else []
    weights, biases = (sum(spec.numel() for spec in params if spec.ndim == ndim) for ndim in (2, 1))
    return Cost(
        macs=cost.macs, others=counted + (counted // weights * biases if ran.op in RECURRENT and weights else 0)
    )


def parameters(ran: Operation) -> list[Spec]:
    """Return the weights (2-d) and biases (1-d) of a recurrent layer or cell. The layer or cell may be a module or a function.

    ``torch.gru(input, hx, params, ...)`` takes all weights and biases in one list, which is its last argument that is a list.
    ``torch.gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh)`` takes each weight and bias as a separate argument.
    """
    if ran.settings:
        named = ran.settings.items()
        return [spec for name, spec in named if name.startswith(("weight_", "bias_")) and isinstance(spec, Spec)]
    if ran.op in CELLS:
        return [*specs_in((ran.args[2:], [spec for name, spec in ran.kwargs.items() if name not in ("input", "hx")]))]
    lists = [each for each in (*ran.args, *ran.kwargs.values()) if type(each) in (tuple, list)]
    return [*specs_in(ran.kwargs.get("params", lists[-1] if lists else ()))]


CELLS = ("rnn_cell", "gru_cell", "lstm_cell")
RECURRENT = ("rnn", "gru", "lstm", *CELLS)
MADE_OF_PRODUCTS = ("tensordot", "multi_dot", "inner", "matrix_power")
OPERATORS: dict[OpOverloadPacket, Callable[..., int]] = {
    **dict.fromkeys((aten.mm, aten.bmm, aten.matmul), product),
    aten.addmm: product_and_sum,
    aten.convolution: convolution,
}
"""The formulas for the dispatched operators that the tool counts."""
KERNELS = [aten.mkldnn_rnn_layer, cudnn_rnn, aten.miopen_rnn]
"""Operators that compute a whole recurrent layer and that the tool skips."""

CONVENTION = Convention(
    "ptflops_aten",
    CONVENTIONS["ptflops_aten"],
    {
        "linear": linear,
        "matmul": product,
        torch.Tensor.__rmatmul__: reflected_product,
        "addmm": product_and_sum,
        **dict.fromkeys((torch.Tensor.addmm_, aten.addmm_, aten.addmm_.default), free),
        **dict.fromkeys([*KERNELS, *(kernel.default for kernel in KERNELS)], free),
        "einsum": einsum,
        "conv": conv,
        "conv_transpose": conv_transpose,
        **dict.fromkeys((torch.convolution, convolution_with_flags, aten.convolution.default), convolution),
    },
    of=products,
    integers=True,
)

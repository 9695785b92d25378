"""FlopCounterMode (https://docs.pytorch.org/docs/stable/utils.html, torch/utils/flop_counter.py), of the kernels that run on
the model's device.

2 per multiply-accumulate of mm, addmm, bmm, baddbmm, convolution and scaled_dot_product_attention, and of what is made of
them there (linear, RNNs, einsum); integer products too. Everything else is 0, contractions too whose aten operators have
no formula in it: in-place products, and whatever is a product with a vector (mv, dot). Complex numbers count as real ones,
but for convolutions, which torch makes of three real ones. A formula that is registered with ``register_flop_formula``
counts what it is for. What the original leaves out for want of a formula of one kernel among several is counted: CPU
attention before torch 2.15, RNNs of oneDNN, fused encoder layers; its number depends on device, grad mode and kernel there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..ops._apply import arguments, tensors
from ..ops._cost import COMPLEX, first
from ..ops.einsum import steps
from ..records import Cost, FormulaFunction, Operation, Spec, specs_in
from ..torch_internals import OpOverload, OpOverloadPacket
from ._convention import Convention

FLOP_COUNTER = "torch.utils.flop_counter"
"""Torch's module: what is registered there is known once somebody has imported it."""
COUNTED = frozenset(
    """
    addmm attention attention_backward baddbmm conv conv_transpose corrcoef cov gru gru_cell inner linear
    linear_backward lstm lstm_cell matmul matmul_backward matrix_power multi_dot multi_head_attention rnn rnn_backward
    rnn_cell scaled_mm tensordot transformer_encoder_layer
    """.split()
)
"""The ops whose kernels have formulas in it, or decompose into such."""
OMITTED = frozenset(
    "conv_tbc _addmm_activation _sparse_addmm _int_mm _dyn_quant_matmul_4bit _mixed_dtypes_linear".split()
)
"""Functions and operators of those ops that have kernels of their own, without a formula."""
OMITTED_FAMILIES = ("_weight_int", "fbgemm_", "quantized_")

REAL_PARTS = {"conv": 3, "conv_transpose": 3}
"""The real products that torch makes of one of complex numbers; 1 where it computes with them as they are."""


def doubled(cost: Cost, ran: Operation) -> Cost:
    """2 per multiply-accumulate, nothing for anything else; operators of other libraries than aten are not known.

    A fused kernel of attention's backward computes the scores again: a product more than the 4 of the gradients.
    """
    if not _is_counted(ran):
        return Cost(macs=cost.macs)
    macs, again = cost.macs, 0
    if ran.op == "matmul":
        left, _ = _operands(ran)
        return Cost(macs=macs, others=2 * left[-1] * first(ran.out).numel())
    if any(spec.dtype.is_complex for spec in (*ran.inputs(), *specs_in(ran.out))):
        macs = REAL_PARTS.get(ran.op, 1) * macs // COMPLEX.macs
    if ran.op == "attention_backward":
        *_, query, _, value = [spec for spec in ran.args if isinstance(spec, Spec)][:4]
        again = macs * query[-1] // (2 * (query[-1] + value[-1]))
    return Cost(macs=cost.macs, others=2 * (macs + again))


def _is_counted(ran: Operation) -> bool:
    """Whether the kernels of an operation have formulas: those of a product with a vector have none."""
    target, name = ran.target, _name(ran.target)
    if ran.op not in COUNTED or name in OMITTED or name.startswith(OMITTED_FAMILIES) or name.endswith("_"):
        return False
    if isinstance(target, (OpOverload, OpOverloadPacket)) and not str(target).startswith("aten."):
        return False
    if ran.op == "matmul":
        return _operands(ran)[1].ndim > 1
    if ran.op in ("inner", "tensordot"):
        return first(ran.out).numel() != 1
    return ran.op != "linear" or first(ran.out).ndim >= next(ran.inputs()).ndim


def _operands(ran: Operation) -> list[Spec]:
    """The two matrices of a product, from left to right."""
    operands = [*ran.inputs()][:2]
    return operands[::-1] if ran.target is torch.Tensor.__rmatmul__ else operands


def _name(target: Any) -> str:
    """The bare name of a function or an operator; no form in place but Python's own ends in an underscore."""
    name = str(getattr(target, "__name__", "")).partition(".")[0]
    return name.strip("_") if name.startswith("__") else name


def registered(ran: Operation) -> FormulaFunction | None:
    """The formula that somebody registered with torch for what ran: for its operator, or for the one that a function calls."""
    module = sys.modules.get(FLOP_COUNTER)
    known: dict[Any, Any] = {} if module is None else module.flop_registry
    theirs = {packet: formula for packet, formula in known.items() if formula.__module__ != FLOP_COUNTER}
    if not theirs:
        return None
    target = ran.target.overloadpacket if isinstance(ran.target, OpOverload) else ran.target
    if target in theirs:
        return _as_row(theirs[target], ran.args, dict(ran.kwargs))
    names = () if isinstance(target, OpOverloadPacket) else (_name(target), ran.op, f"_{ran.op}")
    for packet in (getattr(torch.ops.aten, name, None) for name in names):
        if packet in theirs and not _overload(packet)._can_decompose():  # what is taken apart is not seen there
            return _as_row(theirs[packet], *_bound(packet, ran))
    return None


def _overload(packet: Any) -> Any:
    return getattr(packet, packet.overloads()[0])


def _bound(packet: Any, ran: Operation) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an operation as its operator takes them, by its schema: those that have a place first."""
    known = _overload(packet)._schema.arguments
    names, keywords = (tuple(a.name for a in known if a.kwarg_only is only) for only in (False, True))
    args, kwargs = arguments((names, keywords, False, False), ran)
    placed = [kwargs.pop(name) for name in names[len(args) :] if name in kwargs]
    return (*args, *placed), kwargs


def _as_row(formula: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FormulaFunction:
    """A formula of torch's kind, with what it is to be called with: tensors, of which it takes the shapes or what it wants."""

    def row(input: Any = None, *_: Any, out: Any, **__: Any) -> Any:
        return formula(*tensors(args), **tensors(kwargs), out_val=tensors(out))

    row.__name__, row.__doc__ = getattr(formula, "__name__", row.__name__), formula.__doc__
    return row


def einsum(*operands: Any, out: Spec) -> Cost:
    """a[m, k], b[k, n] -> out[m, n]: 2k per result of each product; elementwise and outer products 0."""
    return Cost(others=sum(2 * step.macs for step in steps(operands) if step.adds))


def conv_backward(
    grad_output: Spec,
    input: Spec,
    weight: Spec,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
    *,
    out: Any,
) -> Cost:
    """grad[b, o, *m], x[b, c, *n], weight[o, i, *k] -> ...: 2 per multiply-accumulate, the weight's ``groups`` times too many.

    conv_backward_flop takes all channels of the input for the weight's gradient, those of other groups too.
    """
    positions = prod((input if transposed else grad_output)[2:])
    flops = 2 * positions * input[0] * weight.numel() if output_mask[0] else 0
    if output_mask[1]:
        flops += 2 * positions * prod(weight[2:]) * input[0] * input[1] * grad_output[1]
    return Cost(others=flops)


CONVENTION = Convention(
    "torch",
    "torch.utils.flop_counter.FlopCounterMode: 2 per multiply-accumulate of products, convolutions, attention",
    {
        "einsum": einsum,
        "conv_backward": conv_backward,
    },
    of=doubled,
    registered=registered,
    integers=True,
)

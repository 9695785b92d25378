"""The FLOPs of torch's FlopCounterMode (https://docs.pytorch.org/docs/stable/utils.html, torch/utils/flop_counter.py), for any kernel.

FlopCounterMode counts 2 FLOPs per multiply-accumulate of mm, addmm, bmm, baddbmm, convolution and
scaled_dot_product_attention, and of operations that are computed by these operators (linear, RNNs, einsum). Integer
products count too. All other operations count 0. In-place products, and products with a vector (mv, dot), count 0 too, because torch has no
formula for their aten operators. Complex numbers count like real numbers, except in convolutions. torch computes a complex convolution as
three real convolutions. Formulas that a user registers with ``register_flop_formula`` are applied.

FlopCounterMode's own number depends on the device, the grad mode and the kernel. Some kernels have no formula, although other kernels of
the same operator have one: attention on a CPU before torch 2.15, oneDNN's RNNs, fused encoder layers. This convention also counts kernels
without a formula.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ..ops._apply import arguments, tensors
from ..ops._cost import COMPLEX, first
from ..ops._libraries import is_library
from ..ops.einsum import steps
from ..records import Cost, FormulaFunction, Operation, Spec, specs_in
from ..torch_internals import OpOverload, OpOverloadPacket
from ._convention import CONVENTIONS, Convention

FLOP_COUNTER = "torch.utils.flop_counter"
"""The module that contains torch's registry of formulas. The registry is read only if the module is already imported."""
COUNTED = frozenset(
    """
    addmm attention attention_backward baddbmm conv conv_transpose corrcoef cov gru gru_cell inner linear
    linear_backward lstm lstm_cell matmul matmul_backward matrix_power multi_dot multi_head_attention rnn rnn_backward
    rnn_cell scaled_mm tensordot transformer_encoder_layer
    """.split()
)
"""The ops whose kernels have formulas in torch, or decompose into kernels with formulas."""
OMITTED = frozenset(
    "conv_tbc _addmm_activation _sparse_addmm _int_mm _dyn_quant_matmul_4bit _mixed_dtypes_linear".split()
)
"""Functions and operators that belong to the ops in :data:`COUNTED`, but whose own kernels have no formula in torch."""
OMITTED_FAMILIES = ("_weight_int", "fbgemm_", "quantized_")

REAL_PARTS = {"conv": 3, "conv_transpose": 3}
"""By op, the number of real products that torch's counter counts per complex product; 1 for all other ops."""


def doubled(cost: Cost, ran: Operation) -> Cost:
    """2 per multiply-accumulate, nothing for anything else; operators of libraries other than aten count 0.

    The fused backward kernel of attention recomputes the scores. So the fused kernel computes one matrix product more than the 4 products
    for the gradients.
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
    """Return True if torch has formulas for an operation's kernels. torch has no formula for products with a vector."""
    target, name = ran.target, _name(ran.target)
    if ran.op not in COUNTED or name in OMITTED or name.startswith(OMITTED_FAMILIES) or name.endswith("_"):
        return False
    if isinstance(target, (OpOverload, OpOverloadPacket)) and not str(target).startswith("aten."):
        return False
    if is_library(target):
        return False
    if ran.op == "matmul":
        return _operands(ran)[1].ndim > 1
    if ran.op in ("inner", "tensordot"):
        return first(ran.out).numel() != 1
    return ran.op != "linear" or first(ran.out).ndim >= next(ran.inputs()).ndim


def _operands(ran: Operation) -> list[Spec]:
    """Return the left and the right matrix of a product."""
    operands = [*ran.inputs()][:2]
    return operands[::-1] if ran.target is torch.Tensor.__rmatmul__ else operands


def _name(target: Any) -> str:
    """Return the name of a function or operator. The name of an in-place form ends in an underscore, except for Python's ``__i*__``."""
    name = str(getattr(target, "__name__", "")).partition(".")[0]
    return name.strip("_") if name.startswith("__") else name


def registered(ran: Operation) -> FormulaFunction | None:
    """Return the formula that a user registered with torch. The formula may be registered for this operator, or for the operator that this
    function calls."""
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
        if packet in theirs and not _overload(packet)._can_decompose():  # FlopCounterMode only sees a decomposition
            return _as_row(theirs[packet], *_bound(packet, ran))
    return None


def _overload(packet: Any) -> Any:
    return getattr(packet, packet.overloads()[0])


def _bound(packet: Any, ran: Operation) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an operation's arguments as the operator's schema orders them: a tuple of the positional arguments, and the keyword arguments."""
    known = _overload(packet)._schema.arguments
    names, keywords = (tuple(a.name for a in known if a.kwarg_only is only) for only in (False, True))
    args, kwargs = arguments((names, keywords, False, False), ran)
    placed = [kwargs.pop(name) for name in names[len(args) :] if name in kwargs]
    return (*args, *placed), kwargs


def _as_row(formula: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FormulaFunction:
    """Wrap a formula that is registered with torch. The wrapper calls the formula with meta tensors that have the operation's shapes."""

    def row(input: Any = None, *_: Any, out: Any, **__: Any) -> Any:
        return formula(*tensors(args), **tensors(kwargs), out_val=tensors(out))

    row.__name__, row.__doc__ = getattr(formula, "__name__", row.__name__), formula.__doc__
    return row


def einsum(*operands: Any, path: Sequence[int] | None = None, out: Spec) -> Cost:
    """a[m, k], b[k, n] -> out[m, n]: 2k per element of each product's result; 0 for elementwise and outer products."""
    return Cost(others=sum(2 * step.macs for step in steps(operands, path, out) if step.adds))


def conv_backward(
    *, grad_output: Spec, input: Spec, weight: Spec, transposed: bool, output_mask: Sequence[bool], out: Any
) -> Cost:
    """grad[b, o, *m], x[b, c, *n], weight[o, i, *k] -> ...: 2 per multiply-accumulate, times ``groups`` for the weight's gradient.

    For the weight's gradient, torch's conv_backward_flop multiplies every output channel by all input channels, even if the convolution is grouped.
    """
    positions = prod((input if transposed else grad_output)[2:])
    flops = 2 * positions * input[0] * weight.numel() if output_mask[0] else 0
    if output_mask[1]:
        flops += 2 * positions * prod(weight[2:]) * input[0] * input[1] * grad_output[1]
    return Cost(others=flops)


CONVENTION = Convention(
    "torch",
    CONVENTIONS["torch"],
    {"einsum": einsum, "conv_backward": conv_backward},
    of=doubled,
    registered=registered,
    integers=True,
)

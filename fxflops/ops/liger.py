"""Liger's kernels: norms, rotary embeddings, gated activations, and cross-entropy with or without the linear layer before it.

Arguments: https://github.com/linkedin/Liger-Kernel/tree/main/src/liger_kernel/ops. A kernel counts like the torch layers that it
replaces. Loss kernels compute gradients in the forward pass; these gradients are counted as part of the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._extend import Cost, Spec, summed, times, when
from ._libraries import gradients_of, library
from .activation import gelu_backward
from .linear import linear, linear_backward
from .loss import cross_entropy
from .norm import normalized, normalized_backward

LIGER = "liger_kernel.ops"
GATE = Cost(muls=1, others=1)
"""f(a) * b."""
SILU_BACKWARD = Cost(muls=3, adds=2, others=1)
ROTATED = Cost(muls=2, adds=1)
SOFTMAX_LESS_TARGET = Cost(muls=1, others=2)
"""Cross-entropy's gradient for one logit: exp(logit) / sum, times the loss's gradient."""


def like_x(X: Spec) -> Spec:
    return Spec(X, X.dtype)


RMS = f"{LIGER}.rms_norm:LigerRMSNormFunction.apply"


@library(RMS, op="rms_norm", result=like_x)
def liger_rms_norm(*, X: Spec, W: Spec | None = None, offset: float = 0.0, out: Any) -> Cost:
    """x[*, k], weight[k] -> out[*, k]: counted like rms_norm; an offset costs 1 add per weight."""
    return normalized(X, W, None, centered=False).plus(when(offset and W is not None, Cost(adds=X[-1])))


@liger_rms_norm.backward(*gradients_of(RMS), op="rms_norm_backward")
def liger_rms_norm_backward(*, X: Spec, W: Spec | None = None, needs: Sequence[str], out: Any) -> Cost:
    """grad[*, k], x[*, k], weight[k] -> out[*, k], out_weight[k]: counted like rms_norm_backward."""
    return normalized_backward(X, X[-1], X[-1], W, (True, "W" in needs, False), centered=False)


LAYER_NORM = f"{LIGER}.layer_norm:LigerLayerNormFunction.apply"


@library(LAYER_NORM, op="layer_norm", result=like_x)
def liger_layer_norm(*, X: Spec, W: Spec, B: Spec | None = None, out: Any) -> Cost:
    """x[*, k], weight[k], bias[k] -> out[*, k]: counted like layer_norm."""
    return normalized(X, W, B)


@liger_layer_norm.backward(*gradients_of(LAYER_NORM), op="layer_norm_backward")
def liger_layer_norm_backward(*, X: Spec, W: Spec, needs: Sequence[str], out: Any) -> Cost:
    """grad[*, k], x[*, k], weight[k] -> out[*, k], out_weight[k], out_bias[k]: counted like layer_norm_backward."""
    return normalized_backward(X, X[-1], X[-1], W, (True, "W" in needs, "B" in needs))


def like_a(a: Spec) -> Spec:
    return Spec(a, a.dtype)


SWIGLU, GEGLU = f"{LIGER}.swiglu:LigerSiLUMulFunction.apply", f"{LIGER}.geglu:LigerGELUMulFunction.apply"


@library(SWIGLU, GEGLU, op="glu", result=like_a)
def liger_glu(*, a: Spec, out: Any) -> Cost:
    """a[*], b[*] -> out[*]: f(a) * b, 1 activation and 1 multiply per output."""
    return times(a.numel(), GATE)


@liger_glu.backward(*gradients_of(SWIGLU), op="glu_backward")
def liger_swiglu_backward(*, a: Spec, out: Any) -> Cost:
    """grad[*], a[*], b[*] -> out_a[*], out_b[*]: grad * silu(a), and grad * b times silu's derivative: 8 per element."""
    return times(a.numel(), SILU_BACKWARD.plus(Cost(muls=2)))


@liger_glu.backward(*gradients_of(GEGLU), op="glu_backward")
def liger_geglu_backward(*, a: Spec, out: Any) -> Cost:
    """grad[*], a[*], b[*] -> out_a[*], out_b[*]: grad * gelu(a), and grad * b times the derivative of gelu by tanh."""
    return gelu_backward(a, a, approximate="tanh", out=a).plus(Cost(muls=2 * a.numel()))


ROPE = f"{LIGER}.rope:LigerRopeFunction.apply"


def rotated_result(q: Spec, k: Spec) -> Any:
    return Spec(q, q.dtype), Spec(k, k.dtype)


@library(ROPE, op="rotary_embedding", result=rotated_result)
def liger_rope(*, q: Spec, k: Spec, cos: Spec, rotary_dim: int | None = None, out: Any) -> Cost:
    """q[b, h, l, d], k[b, h, l, d], cos[b, l, d] -> out_q, out_k: 2 multiplies and 1 add per rotated element."""
    width = min(rotary_dim or cos[-1], q[-1])
    return times((q.numel() + k.numel()) // q[-1] * width, ROTATED)


@liger_rope.backward(*gradients_of(ROPE), op="rotary_embedding_backward")
def liger_rope_backward(*, q: Spec, k: Spec, cos: Spec, rotary_dim: int | None = None, out: Any) -> Cost:
    """grad_q[b, h, l, d], grad_k[b, h, l, d], cos[b, l, d] -> out_q, out_k: the inverse rotation, at the same cost."""
    return liger_rope(q=q, k=k, cos=cos, rotary_dim=rotary_dim, out=out)


def loss_result(_input: Spec, reduction: str = "mean", return_z_loss: bool = False, return_token_accuracy: bool = False, return_predicted_tokens: bool = False) -> Any:  # fmt: skip
    """Return loss[], or one loss per row, and the other results that are requested."""
    shape = _input[:1] if reduction == "none" else ()
    loss = Spec(shape, _input.dtype)
    return (
        loss, Spec(shape, _input.dtype) if return_z_loss else None, Spec(shape, torch.float32) if return_token_accuracy else None,
        Spec(_input[:1], torch.int64) if return_predicted_tokens else None,
    )  # fmt: skip


CROSS_ENTROPY = f"{LIGER}.cross_entropy:LigerCrossEntropyFunction.apply"


@library(CROSS_ENTROPY, op="cross_entropy", result=loss_result)
def liger_cross_entropy(*, _input: Spec, target: Spec, weight: Spec | None = None, label_smoothing: float = 0.0, reduction: Any = "mean", softcap: float | None = None, out: Any) -> Cost:  # fmt: skip
    """x[n, c], target[n] -> out[]: counted like cross_entropy; soft-capping costs 3 per logit."""
    loss = cross_entropy(
        _input, target, weight=weight, reduction=reduction, label_smoothing=label_smoothing, out=Spec(())
    )
    return loss.plus(when(softcap, times(_input.numel(), Cost(muls=1, others=2))))


@liger_cross_entropy.backward(*gradients_of(CROSS_ENTROPY), op="cross_entropy_backward")
def liger_cross_entropy_backward(*, _input: Spec, softcap: float | None = None, out: Any) -> Cost:
    """grad[], x[n, c], target[n] -> out[n, c]: (softmax - 1 at the target) * grad: 1 exp, 1 divide and 1 multiply per logit, 1 subtraction per row."""
    each = times(_input.numel(), SOFTMAX_LESS_TARGET.plus(when(softcap, Cost(muls=2, adds=1))))
    return each.plus(Cost(adds=_input[0]))


FUSED = f"{LIGER}.fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction.apply"


@library(FUSED, op="linear_cross_entropy", result=loss_result)
def liger_linear_cross_entropy(*, _input: Spec, weight: Spec, target: Spec, bias: Spec | None = None, ce_weight: Spec | None = None, label_smoothing: float = 0.0, reduction: Any = "mean", softcap: float | None = None, out: Any) -> Cost:  # fmt: skip
    """x[n, i], weight[c, i], target[n] -> out[]: the cost of linear, plus the cost of cross_entropy."""
    logits = Spec((_input[0], weight[0]))
    loss = liger_cross_entropy(
        _input=logits, target=target, weight=ce_weight, label_smoothing=label_smoothing, reduction=reduction, softcap=softcap, out=out
    )  # fmt: skip
    return linear(_input, weight, bias, out=logits).plus(loss)


@liger_linear_cross_entropy.backward(*gradients_of(FUSED), op="linear_cross_entropy_backward")
def liger_linear_cross_entropy_backward(*, _input: Spec, weight: Spec, softcap: float | None = None, needs: Sequence[str], out: Any) -> Cost:  # fmt: skip
    """grad[], x[n, i], weight[c, i], target[n] -> out[n, i], out_weight[c, i], out_bias[c]: the cost of cross_entropy's gradient, plus the cost of linear_backward."""
    logits = Spec((_input[0], weight[0]))
    mask = tuple(name in needs for name in ("_input", "weight", "bias"))
    return summed(
        liger_cross_entropy_backward(_input=logits, softcap=softcap, out=out),
        linear_backward(_input, logits, weight, mask, out=None),
    )

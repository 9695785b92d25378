"""Mamba's kernels: selective scans, their single steps, causal convolutions, and the norms and projections fused with them.

A scan counts like its recurrence for each token, h = exp(dt * A) * h + dt * x * B', y = h C:
https://arxiv.org/abs/2312.00752, algorithm 2, and https://arxiv.org/abs/2405.21060, equation 1. Each state element takes a multiply by its
decay and one multiply-accumulate that adds the input. The output is a contraction with C. The libraries' reference code does the same:
https://github.com/state-spaces/mamba/blob/main/mamba_ssm/ops/selective_scan_interface.py, ``selective_scan_ref``, and
https://github.com/state-spaces/mamba/blob/main/mamba_ssm/ops/triton/selective_state_update.py. Chunked kernels (SSD) multiply
more to use matrix units; the count does not depend on the chunk size. Python loops in transformers are counted operation by operation.

Gradients are those of the recurrence. Kernels recompute the states for them; this is not counted. Arguments:
https://github.com/state-spaces/mamba/blob/main/mamba_ssm/ops/triton/ssd_combined.py and
https://github.com/Dao-AILab/causal-conv1d/blob/main/causal_conv1d/causal_conv1d_interface.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._extend import Cost, Spec, contraction, summed, times, when
from ._libraries import Given, gradients_of, library
from .linear import linear, linear_backward
from .norm import normalized, normalized_backward

SSM = "mamba_ssm.ops"
ACTIVATION = Cost(others=1)
ACTIVATION_BACKWARD = Cost(muls=3, adds=2, others=1)
"""grad * s * (1 + x * (1 - s)), s = sigmoid(x): as silu_backward."""
SOFTPLUS_BACKWARD = Cost(muls=1, adds=1, others=3)
"""grad * z / (z + 1), z = exp(x)."""
UNLIMITED = (0.0, math.inf)


class Scan:
    """The sizes and options of a scan. Each token has ``steps`` values of dt, ``inputs`` inputs and ``states`` state elements.

    ``heads`` is the number of dt values per token, which is also the size of dt's bias. A has ``decays`` parameters.
    """

    def __init__(
        self,
        tokens: int,
        steps: int,
        inputs: int,
        states: int,
        decays: int,
        groups: int,
        sequences: int,
        **options: Any,
    ) -> None:
        self.tokens, self.steps, self.inputs, self.states = tokens, tokens * steps, tokens * inputs, tokens * states
        self.decays, self.parameters = decays * tokens, decays
        self.groups, self.first = tokens * groups, sequences * states
        self.heads = steps
        self.skip, self.gate, self.bias = (options.get(name) is not None for name in ("D", "z", "dt_bias"))
        self.skips = 0 if options.get("D") is None else options["D"].numel()
        self.softplus = bool(options.get("dt_softplus"))
        self.limited = tuple(options.get("dt_limit") or UNLIMITED) != UNLIMITED

    def forward(self) -> Cost:
        """Return the cost of dt, the decays, the recurrence, its outputs, D * x, and the gate."""
        return summed(
            when(self.bias, Cost(adds=self.steps)),
            when(self.softplus, times(self.steps, ACTIVATION)),
            when(self.limited, Cost(others=2 * self.steps)),
            Cost(muls=self.decays, others=self.decays),
            Cost(muls=self.inputs),
            Cost(macs=self.states, muls=2 * self.states, adds=self.states),
            contraction(self.states // self.inputs if self.inputs else 0, self.inputs),
            when(self.skip, Cost(muls=self.inputs, adds=self.inputs)),
            when(self.gate, times(self.inputs, ACTIVATION).plus(Cost(muls=self.inputs))),
        )

    def backward(self) -> Cost:
        """Return the cost of all gradients. The gradient of a state is the sum of the gradients from its output and from the next state."""
        later = self.states - self.first
        return summed(
            when(self.gate, times(self.inputs, ACTIVATION_BACKWARD).plus(Cost(muls=2 * self.inputs))),
            when(self.skip, Cost(muls=2 * self.inputs, adds=2 * self.inputs - self.skips)),
            Cost(macs=self.states, muls=self.states, adds=self.states - self.groups),  # C
            Cost(macs=self.states, muls=self.states + later, adds=later),  # the states
            Cost(muls=self.states, adds=self.states - self.decays),  # the decays
            Cost(muls=3 * self.decays, adds=2 * self.decays - self.steps - self.parameters),  # A, and dt through A
            Cost(macs=self.states, muls=self.states, adds=self.states - self.inputs),  # x * dt
            Cost(macs=self.states, muls=self.states, adds=self.states - self.groups),  # B
            Cost(muls=2 * self.inputs, adds=self.inputs),  # x, and dt through x
            when(self.softplus, times(self.steps, SOFTPLUS_BACKWARD)),
            when(self.limited, Cost(others=2 * self.steps)),
            when(self.bias, Cost(adds=self.steps - self.heads)),
        )


# Mamba: each channel has its own steps and decays


def scan_of(u: Spec, A: Spec, B: Spec, C: Spec, **options: Any) -> Scan:
    batch, d, length = u
    n = A[1]
    groups = (B[1] if len(B) == 4 else 1) * n
    return Scan(batch * length, d, d, d * n, d * n, groups, batch, **options)


def scan_result(u: Spec, A: Spec, return_last_state: bool = False) -> Any:
    """Return out[b, d, l], and the last state [b, d, n] if requested."""
    out = Spec(u, u.dtype)
    return (out, Spec((u[0], *A), torch.float32)) if return_last_state else out


def saved_states(u: Spec, A: Spec) -> list[Spec]:
    """Return the specs of the states between chunks of 2,048 tokens, with a decay for each state."""
    return [Spec((*u[:2], -(-u[2] // 2048), 2 * A[1]), torch.float32)]


SCAN = f"{SSM}.selective_scan_interface:selective_scan_fn"


@library(SCAN, op="selective_scan", result=scan_result, saved=saved_states)
def selective_scan(
    *, u: Spec, A: Spec, B: Spec, C: Spec, D: Spec | None = None, z: Spec | None = None, delta_bias: Spec | None = None,
    delta_softplus: bool = False, out: Any,
) -> Cost:  # fmt: skip
    """u[b, d, l], A[d, n], B[b, n, l], C[b, n, l] -> out[b, d, l]: n decays, n multiplies and 2n multiply-accumulates per output."""
    return scan_of(u, A, B, C, D=D, z=z, dt_bias=delta_bias, dt_softplus=delta_softplus).forward()


@selective_scan.backward(*gradients_of(SCAN), op="selective_scan_backward")
def selective_scan_backward(
    *, u: Spec, A: Spec, B: Spec, C: Spec, D: Spec | None = None, z: Spec | None = None, delta_bias: Spec | None = None,
    delta_softplus: bool = False, out: Any,
) -> Cost:  # fmt: skip
    """grad[b, d, l], u[b, d, l], A[d, n], B[b, n, l], C[b, n, l] -> all gradients: 4n multiply-accumulates per output."""
    return scan_of(u, A, B, C, D=D, z=z, dt_bias=delta_bias, dt_softplus=delta_softplus).backward()


# Mamba-2: a head has one step and one decay


def heads_of(x: Spec, B: Spec, A: Spec, **options: Any) -> Scan:
    batch, length, h, p = x
    groups, n = B[-2:]
    return Scan(batch * length, h, h * p, h * p * n, h, groups * n, batch, **options)


def chunks_result(
    x: Spec, B: Spec, cu_seqlens: Any = None, return_final_states: bool = False, return_varlen_states: bool = False
) -> Any:
    """Return out[b, l, h, p] and, if requested, the last states [b, h, p, n] per batch row and per packed sequence."""
    out, states = Spec(x, x.dtype), (*x[2:], B[-1])
    last = [Spec((x[0], *states), torch.float32)] if return_final_states else []
    packed = [Spec((cu_seqlens[0] - 1, *states), torch.float32)] if return_varlen_states else []
    return (out, *last, *packed) if last or packed else out


CHUNKS = f"{SSM}.triton.ssd_combined:mamba_chunk_scan_combined"
OPTIONS = ("D", "z", "dt_bias", "dt_softplus", "dt_limit")


@library(CHUNKS, op="selective_scan", result=chunks_result)
def chunk_scan(*, x: Spec, A: Spec, B: Spec, out: Any, **given: Any) -> Cost:
    """x[b, l, h, p], dt[b, l, h], A[h], B[b, l, g, n], C[b, l, g, n] -> out[b, l, h, p]: n multiplies and 2n multiply-accumulates per output."""
    return heads_of(x, B, A, **{name: given.get(name) for name in OPTIONS}).forward()


@chunk_scan.backward(*gradients_of(CHUNKS), op="selective_scan_backward")
def chunk_scan_backward(*, x: Spec, A: Spec, B: Spec, out: Any, **given: Any) -> Cost:
    """grad[b, l, h, p], x[b, l, h, p], dt[b, l, h], A[h], B[b, l, g, n], C[b, l, g, n] -> all gradients: 4n multiply-accumulates per output."""
    return heads_of(x, B, A, **{name: given.get(name) for name in OPTIONS}).backward()


def step_result(x: Spec) -> Spec:
    return Spec(x, x.dtype)


@library(
    f"{SSM}.triton.selective_state_update:selective_state_update",
    op="selective_scan",
    result=step_result,
    writes=("state",),
)
def state_update(*, state: Spec, x: Spec, A: Spec, B: Spec, out: Any, **given: Any) -> Cost:
    """state[b, d, n], x[b, d], A[d, n], B[b, n], C[b, n] -> out[b, d]: counted like one token of selective_scan, also for states with heads, [b, h, p, n]."""
    n = state[-1]
    channels = state.numel() // state[0] // n
    options = {name: given.get(name) for name in OPTIONS}
    return Scan(
        x.numel() // channels, channels, channels, channels * n, channels * n, n, x.numel() // channels, **options
    ).forward()


# Convolutions


def conv_result(x: Spec, weight: Spec, return_final_states: bool = False, final_states_out: Any = None) -> Any:
    """Return out[b, d, l], and the last w-1 inputs if requested."""
    out = Spec(x, x.dtype)
    if not return_final_states:
        return out
    last = Spec((*x[:2], weight[-1] - 1), x.dtype)
    return out, Given("final_states_out") if final_states_out is not None else last


CONV = "causal_conv1d.causal_conv1d_interface:causal_conv1d_fn"


@library(CONV, op="conv", result=conv_result, writes=("final_states_out",))
def causal_conv(*, x: Spec, weight: Spec, bias: Spec | None = None, activation: Any = None, out: Any) -> Cost:
    """x[b, d, l], weight[d, w] -> out[b, d, l]: w multiplies and w-1 adds per output, plus 1 add with a bias and 1 for the activation."""
    return convolved(x.numel(), weight[-1], bias, activation)


def convolved(outputs: int, width: int, bias: Any, activation: Any) -> Cost:
    product = contraction(width, outputs, bias is not None)
    return product.plus(when(activation, times(outputs, ACTIVATION)))


def convolved_backward(
    outputs: int, weight: Spec, bias: Any, activation: Any, needs: Sequence[str], to_input: bool
) -> Cost:
    d, width = weight[0], weight[-1]
    return summed(
        when(activation, times(outputs, ACTIVATION_BACKWARD)),
        when(to_input, contraction(width, outputs)),
        when("weight" in needs, Cost(macs=outputs * width, muls=outputs * width, adds=(outputs - d) * width)),
        when(bias is not None and "bias" in needs, Cost(adds=outputs - d)),
    )


@causal_conv.backward(*gradients_of(CONV), op="conv_backward")
def causal_conv_backward(
    *, x: Spec, weight: Spec, bias: Spec | None = None, activation: Any = None, needs: Sequence[str], out: Any
) -> Cost:
    """grad[b, d, l], x[b, d, l], weight[d, w] -> out[b, d, l], out_weight[d, w], out_bias[d]: w multiply-accumulates per input element, and as many again for the weight."""
    return convolved_backward(x.numel(), weight, bias, activation, needs, "x" in needs)


@library(
    "causal_conv1d.causal_conv1d_interface:causal_conv1d_update", op="conv", result=step_result, writes=("conv_state",)
)
def conv_update(*, x: Spec, weight: Spec, bias: Spec | None = None, activation: Any = None, out: Any) -> Cost:
    """x[b, d], conv_state[b, d, w], weight[d, w] -> out[b, d]: counted like one token of causal_conv."""
    return convolved(x.numel(), weight[-1], bias, activation)


# A whole layer in one call


def inner_of(
    xz: Spec, A: Spec, x_proj_weight: Spec, delta_proj_weight: Spec, given: Mapping[str, Any]
) -> dict[str, Any]:
    batch, both, length = xz
    d, n = both // 2, A[1]
    rank = delta_proj_weight[1]
    tokens = batch * length
    u, BC = Spec((batch, d, length)), Spec((batch, n, length))
    options = {
        "D": given.get("D"),
        "z": u,
        "dt_bias": given.get("delta_bias"),
        "dt_softplus": given.get("delta_softplus", True),
    }
    return {
        "u": u, "conv": Spec((d, given["conv1d_weight"][-1])), "scan": scan_of(u, A, BC, BC, **options),
        "projections": [
            (Spec((tokens, d)), x_proj_weight, None), (Spec((tokens, rank)), delta_proj_weight, None),
            (Spec((tokens, d)), given["out_proj_weight"], given.get("out_proj_bias")),
        ],
    }  # fmt: skip


def inner_result(xz: Spec, out_proj_weight: Spec) -> Spec:
    """Return out[b, l, o]."""
    return Spec((xz[0], xz[2], out_proj_weight[0]), xz.dtype)


def projected(x: Spec, weight: Spec, bias: Spec | None) -> Cost:
    return linear(x, weight, bias, out=Spec((x[0], weight[0])))


INNER = f"{SSM}.selective_scan_interface:mamba_inner_fn"


@library(INNER, op="mamba_inner", result=inner_result)
def mamba_inner(*, xz: Spec, A: Spec, x_proj_weight: Spec, delta_proj_weight: Spec, out: Any, **given: Any) -> Cost:
    """xz[b, 2d, l] -> out[b, l, o]: the cost of causal_conv, the projections to dt, B and C, selective_scan with its gate, and the last projection."""
    parts = inner_of(xz, A, x_proj_weight, delta_proj_weight, given)
    return summed(
        convolved(parts["u"].numel(), parts["conv"][-1], given.get("conv1d_bias"), True),
        parts["scan"].forward(),
        *(projected(*projection) for projection in parts["projections"]),
    )


@mamba_inner.backward(*gradients_of(INNER), op="mamba_inner_backward")
def mamba_inner_backward(
    *, xz: Spec, A: Spec, x_proj_weight: Spec, delta_proj_weight: Spec, needs: Sequence[str], out: Any, **given: Any
) -> Cost:
    """grad[b, l, o], xz[b, 2d, l] -> all gradients: the backward passes of the convolution, projections and scan, plus 1 add per element of x."""
    parts = inner_of(xz, A, x_proj_weight, delta_proj_weight, given)
    names = {"weight": "conv1d_weight", "bias": "conv1d_bias"}
    of_conv = [part for part, name in names.items() if name in needs]
    needs_grad = [name in needs for name in ("x_proj_weight", "delta_proj_weight", "out_proj_weight")]
    biases = [False, False, given.get("out_proj_bias") is not None and "out_proj_bias" in needs]
    u = parts["u"].numel()
    return summed(
        convolved_backward(u, parts["conv"], given.get("conv1d_bias"), True, of_conv, "xz" in needs),
        parts["scan"].backward(),
        Cost(adds=u),  # x gets gradients from the scan and from the projection to dt, B and C
        *(
            linear_backward(x, Spec((x[0], weight[0])), weight, (True, learn, bias), out=None)
            for (x, weight, _), learn, bias in zip(parts["projections"], needs_grad, biases, strict=True)
        ),
    )


def split_of(zxbcdt: Spec, A: Spec, D: Spec, given: Mapping[str, Any]) -> dict[str, Any]:
    batch, length, width = zxbcdt
    h, groups = A[0], given.get("ngroups", 1)
    p = given.get("headdim") or D[-1]
    d = h * p
    n = (width - 2 * d - h) // (2 * groups)
    gated = given.get("rmsnorm_weight") is None
    x, B = Spec((batch, length, h, p)), Spec((batch, length, groups, n))
    options = {
        "D": D,
        "z": x if gated else None,
        "dt_bias": given["dt_bias"],
        "dt_softplus": True,
        "dt_limit": given.get("dt_limit"),
    }
    return {
        "convolved": batch * length * (d + 2 * groups * n),
        "scan": heads_of(x, B, A, **options),
        "rows": Spec((batch * length, d)),
    }


def split_result(zxbcdt: Spec, A: Spec, B: Any = None, D: Any = None, headdim: int | None = None, outproj_weight: Any = None, return_final_states: bool = False, ngroups: int = 1) -> Any:  # fmt: skip
    """Return out[b, l, o], and the last states [b, h, p, n] if requested."""
    batch, length, width = zxbcdt
    h, p = A[0], headdim or D[-1]
    out = Spec((batch, length, h * p if outproj_weight is None else outproj_weight[0]), zxbcdt.dtype)
    n = (width - 2 * h * p - h) // (2 * ngroups)
    return (out, Spec((batch, h, p, n), torch.float32)) if return_final_states else out


SPLIT = f"{SSM}.triton.ssd_combined:mamba_split_conv1d_scan_combined"


@library(SPLIT, op="mamba_inner", result=split_result)
def split_conv_scan(*, zxbcdt: Spec, A: Spec, D: Spec, out: Any, **given: Any) -> Cost:
    """zxbcdt[b, l, 2hp + 2gn + h] -> out[b, l, o]: the cost of causal_conv, chunk_scan, a gated RMS norm, and the last projection."""
    parts, weight = split_of(zxbcdt, A, D, given), given.get("rmsnorm_weight")
    rows, last = parts["rows"], given.get("outproj_weight")
    return summed(
        convolved(
            parts["convolved"], given["conv1d_weight"][-1], given.get("conv1d_bias"), given.get("activation", "silu")
        ),
        parts["scan"].forward(),
        when(weight is not None, normalized(rows, weight, None, centered=False).plus(times(rows.numel(), GATE))),
        Cost() if last is None else projected(rows, last, given.get("outproj_bias")),
    )


@split_conv_scan.backward(*gradients_of(SPLIT), op="mamba_inner_backward")
def split_conv_scan_backward(*, zxbcdt: Spec, A: Spec, D: Spec, needs: Sequence[str], out: Any, **given: Any) -> Cost:
    """grad[b, l, o], zxbcdt[b, l, 2hp + 2gn + h] -> all gradients: the backward passes of the convolution, scan, norm, gate and projection."""
    parts, weight = split_of(zxbcdt, A, D, given), given.get("rmsnorm_weight")
    rows, last = parts["rows"], given.get("outproj_weight")
    of_conv = [part for part in ("weight", "bias") if f"conv1d_{part}" in needs]
    kernel, bias = given["conv1d_weight"], given.get("conv1d_bias")
    needs_grad = (True, "outproj_weight" in needs, given.get("outproj_bias") is not None and "outproj_bias" in needs)
    return summed(
        convolved_backward(
            parts["convolved"], kernel, bias, given.get("activation", "silu"), of_conv, "zxbcdt" in needs
        ),
        parts["scan"].backward(),
        when(
            weight is not None,
            times(rows.numel(), GATE_BACKWARD).plus(_of_norm(rows, weight, "rmsnorm_weight" in needs)),
        ),
        Cost() if last is None else linear_backward(rows, Spec((rows[0], last[0])), last, needs_grad, out=None),
    )


GATE, GATE_BACKWARD = Cost(muls=1, others=1), ACTIVATION_BACKWARD.plus(Cost(muls=2))
"""x * silu(z), and the gradients of both."""


def _of_norm(rows: Spec, weight: Any, needs_grad: bool, k: int = 0, bias: bool = False, centered: bool = False) -> Cost:
    weights = rows[-1]
    return normalized_backward(rows, k or weights, weights, weight, (True, needs_grad, bias), centered=centered)


# Norms


def norm_result(x: Spec, residual: Spec | None = None, prenorm: bool = False, residual_in_fp32: bool = False) -> Any:
    """Return out[*, k]; with ``prenorm``, also return the sum before the norm."""
    out = Spec(x, x.dtype)
    if not prenorm:
        return out
    kept = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x.dtype
    return out, Spec(x, kept)


NORMS = f"{SSM}.triton.layer_norm:layer_norm_fn", f"{SSM}.triton.layer_norm:rms_norm_fn"


@library(*NORMS, op="layer_norm", result=norm_result)
def add_norm(
    *,
    x: Spec,
    weight: Spec,
    bias: Spec | None = None,
    residual: Spec | None = None,
    dropout_p: float = 0.0,
    is_rms_norm: bool = True,
    out: Any,
) -> Cost:
    """x[*, k], residual[*, k], weight[k] -> out[*, k]: 1 add for the residual, plus the cost of rms_norm or layer_norm."""
    n = x.numel()
    return normalized(x, weight, bias, not is_rms_norm).plus(
        Cost(adds=n * (residual is not None), muls=n * (dropout_p > 0))
    )


@add_norm.backward(*gradients_of(*NORMS), op="layer_norm_backward")
def add_norm_backward(
    *, x: Spec, weight: Spec, bias: Spec | None = None, is_rms_norm: bool = True, prenorm: bool = False,
    dropout_p: float = 0.0, needs: Sequence[str], out: Any,
) -> Cost:  # fmt: skip
    """grad[*, k], x[*, k], weight[k] -> out[*, k], out_weight[k], out_bias[k]: counted like the norm's backward pass, plus 1 add per element if the sum is also returned."""
    of_norm = _of_norm(
        x, weight, "weight" in needs, bias=bias is not None and "bias" in needs, centered=not is_rms_norm
    )
    return of_norm.plus(Cost(adds=x.numel() * prenorm, muls=x.numel() * (dropout_p > 0)))


GATED = f"{SSM}.triton.layernorm_gated:rmsnorm_fn", f"{SSM}.triton.layernorm_gated:layernorm_fn"


@library(*GATED, op="rms_norm", result=step_result)
def gated_norm(
    *, x: Spec, weight: Spec, bias: Spec | None = None, z: Spec | None = None, is_rms_norm: bool | None = None, out: Any
) -> Cost:
    """x[*, k], z[*, k], weight[k] -> out[*, k]: counted like rms_norm, plus 2 for the gate."""
    return normalized(x, weight, bias, is_rms_norm is False).plus(when(z is not None, times(x.numel(), GATE)))


@gated_norm.backward(*gradients_of(*GATED), op="rms_norm_backward")
def gated_norm_backward(
    *, x: Spec, weight: Spec, bias: Spec | None = None, z: Spec | None = None, group_size: int | None = None,
    is_rms_norm: bool = True, needs: Sequence[str], out: Any,
) -> Cost:  # fmt: skip
    """grad[*, k], x[*, k], z[*, k], weight[k] -> out[*, k], out_z[*, k], out_weight[k]: counted like rms_norm_backward, plus 8 for the gate."""
    learns_bias = bias is not None and "bias" in needs
    of_norm = _of_norm(x, weight, "weight" in needs, group_size or 0, learns_bias, not is_rms_norm)
    return of_norm.plus(when(z is not None, times(x.numel(), GATE_BACKWARD)))

"""Mamba's kernels, by name: the recurrence, step by step, on a tape that differentiates. The library is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.records import Cost
from tests.library_stand_ins import counts, library, tensors
from tests.tape import Tape, Variable

SSM = "mamba_ssm.ops"
FUNCTIONS = {
    f"{SSM}.selective_scan_interface:selective_scan_fn": "u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False",
    f"{SSM}.selective_scan_interface:mamba_inner_fn": "xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, "
    "out_proj_bias, A, B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1, "
    "b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-06",
    f"{SSM}.triton.ssd_combined:mamba_chunk_scan_combined": "x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, "
    "seq_idx=None, cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, inf), return_final_states=False, return_varlen_states=False",
    f"{SSM}.triton.ssd_combined:mamba_split_conv1d_scan_combined": "zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, "
    "initial_states=None, seq_idx=None, dt_limit=(0.0, inf), return_final_states=False, activation='silu', rmsnorm_weight=None, "
    "rmsnorm_eps=1e-06, outproj_weight=None, outproj_bias=None, headdim=None, ngroups=1, norm_before_gate=True",
    f"{SSM}.triton.selective_state_update:selective_state_update": "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, "
    "state_batch_indices=None",
    f"{SSM}.triton.layer_norm:layer_norm_fn": "x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, dropout_p=0.0, "
    "rowscale=None, prenorm=False, residual_in_fp32=False, is_rms_norm=False, return_dropout_mask=False",
    f"{SSM}.triton.layer_norm:rms_norm_fn": "x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, dropout_p=0.0, "
    "rowscale=None, prenorm=False, residual_in_fp32=False, return_dropout_mask=False",
    f"{SSM}.triton.layernorm_gated:rmsnorm_fn": "x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True",
    "causal_conv1d.causal_conv1d_interface:causal_conv1d_fn": "x, weight, bias=None, seq_idx=None, initial_states=None, "
    "return_final_states=False, final_states_out=None, activation=None",
    "causal_conv1d.causal_conv1d_interface:causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
    "conv_state_indices=None",
}  # fmt: skip
SCAN, INNER, CHUNKS, SPLIT, UPDATE, LAYER_NORM, RMS_NORM, GATED, CONV, CONV_UPDATE = FUNCTIONS


@pytest.fixture(scope="module")
def mamba() -> Iterator[Any]:
    with library(FUNCTIONS) as find:
        yield find


# batch, channels, length, states, groups of B and C
SCANS = [(1, 2, 1, 1, 1), (2, 3, 4, 2, 1), (1, 4, 5, 3, 2), (3, 2, 3, 4, 1), (2, 6, 2, 5, 3)]


def scanned(tape: Tape, b: int, d: int, length: int, n: int, g: int, skip: bool = True, gate: bool = True, soft: bool = True, inputs: Any = None) -> list[Variable]:  # fmt: skip
    """h = exp(dt A) h + dt x B', y = h C, token by token. ``inputs`` are each token's x, dt, B, C and z if other operations make them."""
    A, D, bias = tape.leaf(1, d, n), tape.leaf(1, d), tape.leaf(1, d)
    h = tape.leaf(b, d, n, needs=False)
    outs = []
    for t in range(length):
        if inputs is None:
            x, dt, z = tape.leaf(b, d), tape.leaf(b, d), tape.leaf(b, d)
            B, C = tape.leaf(b, g, n), tape.leaf(b, g, n)
        else:
            x, dt, B, C, z = inputs[t]
        if soft:
            dt = tape.softplus(tape.add(dt, bias))
        decay = tape.exp(tape.multiply(tape.view(dt, b, d, 1), A))
        taken = tape.view(tape.multiply(x, dt), b, g, d // g)
        h = tape.add(tape.view(tape.contract("bgd,bgn->bgdn", taken, B), b, d, n), tape.multiply(decay, h))
        y = tape.view(tape.contract("bgdn,bgn->bgd", tape.view(h, b, g, d // g, n), C), b, d)
        if skip:
            y = tape.add(y, tape.multiply(x, D))
        if gate:
            y = tape.multiply(y, tape.silu(z))
        outs.append(y)
    return outs


@pytest.mark.parametrize("options", [(True, True, True), (False, False, False), (True, False, True)], ids=str)
@pytest.mark.parametrize("shape", SCANS)
def test_a_selective_scan_is_its_recurrence(mamba: Any, shape: tuple[int, ...], options: tuple[bool, ...]) -> None:
    b, d, length, n, g = shape
    skip, gate, soft = options
    tape = Tape()
    outs = scanned(tape, *shape, *options)
    letters = (b, n, length) if g == 1 else (b, g, n, length)
    given = tensors({
        "u": (b, d, length), "delta": (b, d, length), "A": (d, n), "B": letters, "C": letters, "D": (d,) if skip else None,
        "z": (b, d, length) if gate else None, "delta_bias": (d,) if soft else None,
    })  # fmt: skip
    counted = counts(mamba(SCAN), given, delta_softplus=soft)
    assert counted.out == (b, d, length)
    assert counted.forward == tape.forward
    assert counted.backward == tape.backward(*outs)
    assert counted.forward.macs == 2 * b * d * length * n
    last = counts(mamba(SCAN), given, delta_softplus=soft, backward=False, return_last_state=True)
    assert last.out == ((b, d, length), (b, d, n))


# batch, length, heads, head width, groups, states
HEADS = [(1, 1, 1, 1, 1, 1), (2, 3, 2, 3, 1, 2), (1, 4, 4, 2, 2, 3), (3, 2, 2, 5, 1, 4), (2, 5, 6, 2, 3, 2)]


def heads_scanned(tape: Tape, b: int, length: int, h: int, p: int, g: int, n: int, skip: bool, gate: bool, soft: bool, inputs: Any = None) -> list[Variable]:  # fmt: skip
    """Like ``scanned``, but with one step and one decay per head."""
    A, D, bias = tape.leaf(1, h), tape.leaf(1, h, 1), tape.leaf(1, h)
    state = tape.leaf(b, h, p, n, needs=False)
    outs = []
    for t in range(length):
        if inputs is None:
            x, dt, z, B, C = (
                tape.leaf(b, h, p),
                tape.leaf(b, h),
                tape.leaf(b, h, p),
                tape.leaf(b, g, n),
                tape.leaf(b, g, n),
            )
        else:
            x, dt, B, C, z = inputs[t]
        if soft:
            dt = tape.softplus(tape.add(dt, bias))
        decay = tape.exp(tape.multiply(dt, A))
        taken = tape.multiply(x, tape.view(dt, b, h, 1))
        added = tape.contract("bghp,bgn->bghpn", tape.view(taken, b, g, h // g, p), B)
        state = tape.add(tape.view(added, b, h, p, n), tape.multiply(tape.view(decay, b, h, 1, 1), state))
        y = tape.view(tape.contract("bghpn,bgn->bghp", tape.view(state, b, g, h // g, p, n), C), b, h, p)
        if skip:
            y = tape.add(y, tape.multiply(x, D))
        if gate:
            y = tape.multiply(y, tape.silu(z))
        outs.append(y)
    return outs


@pytest.mark.parametrize("options", [(True, True, True), (False, False, False), (True, False, True)], ids=str)
@pytest.mark.parametrize("shape", HEADS)
def test_a_scan_of_heads_is_its_recurrence_whatever_the_chunk(mamba: Any, shape: tuple[int, ...], options: tuple[bool, ...]) -> None:  # fmt: skip
    b, length, h, p, g, n = shape
    skip, gate, soft = options
    tape = Tape()
    outs = heads_scanned(tape, *shape, *options)
    given = tensors({
        "x": (b, length, h, p), "dt": (b, length, h), "A": (h,), "B": (b, length, g, n), "C": (b, length, g, n),
        "D": (h,) if skip else None, "z": (b, length, h, p) if gate else None, "dt_bias": (h,) if soft else None,
    })  # fmt: skip
    counted = counts(mamba(CHUNKS), given, chunk_size=2, dt_softplus=soft)
    assert counted.out == (b, length, h, p)
    assert counted.forward == tape.forward
    assert counted.backward == tape.backward(*outs)
    assert counted == counts(mamba(CHUNKS), given, chunk_size=256, dt_softplus=soft)
    states = counts(mamba(CHUNKS), given, chunk_size=2, backward=False, return_final_states=True)
    assert states.out == ((b, length, h, p), (b, h, p, n))


@pytest.mark.parametrize("shape", SCANS)
def test_a_step_is_a_scan_of_one_token(mamba: Any, shape: tuple[int, ...]) -> None:
    b, d, _, n, _ = shape
    given = tensors(
        {
            "state": (b, d, n),
            "x": (b, d),
            "dt": (b, d),
            "A": (d, n),
            "B": (b, n),
            "C": (b, n),
            "D": (d,),
            "z": (b, d),
            "dt_bias": (d,),
        }
    )
    step = counts(mamba(UPDATE), given, backward=False, dt_softplus=True)
    tape = Tape()
    scanned(tape, b, d, 1, n, 1)
    assert step.forward == tape.forward
    assert step.out == (b, d)


# batch, channels, length, width
CONVS = [(1, 1, 1, 2), (2, 3, 4, 4), (1, 6, 5, 3), (3, 2, 7, 4), (2, 4, 2, 2)]


def convolved(tape: Tape, b: int, d: int, length: int, w: int, bias: bool, silu: bool) -> Variable:
    """Each output has a window of w inputs, padding included. An input's gradient adds up its w windows."""
    x, weight, c = tape.leaf(b, d, length), tape.leaf(d, w), tape.leaf(1, d, 1)
    windows = tape._made((b, d, length, w), Cost(), x)
    tape._then(windows, lambda: tape._give(x, Cost(adds=windows.size - x.size)))
    y = tape.contract("bdlw,dw->bdl", windows, weight)
    y = tape.add(y, c) if bias else y
    return tape.silu(y) if silu else y


@pytest.mark.parametrize(("bias", "silu"), [(True, True), (False, False), (True, False)])
@pytest.mark.parametrize("shape", CONVS)
def test_a_causal_convolution_is_one_of_each_channel(
    mamba: Any, shape: tuple[int, ...], bias: bool, silu: bool
) -> None:
    b, d, length, w = shape
    tape = Tape()
    y = convolved(tape, *shape, bias, silu)
    given = tensors({"x": (b, d, length), "weight": (d, w), "bias": (d,) if bias else None})
    counted = counts(mamba(CONV), given, activation="silu" if silu else None)
    assert (counted.forward, counted.backward) == (tape.forward, tape.backward(y))
    conv = nn.Conv1d(d, d, w, groups=d, padding=w - 1, bias=bias)
    assert (
        counted.forward.macs == fxflops.count(conv, torch.randn(b, d, length)).total_macs // (length + w - 1) * length
    )
    one = tensors({"x": (b, d), "conv_state": (b, d, w), "weight": (d, w), "bias": (d,) if bias else None})
    step = counts(mamba(CONV_UPDATE), one, backward=False, activation="silu" if silu else None)
    assert step.forward == Cost(*(part // length for part in tape.forward))


NORMS = [(1, 1), (2, 3), (5, 4), (7, 8), (3, 16)]


@pytest.mark.parametrize("shape", NORMS)
def test_norms_are_torchs_with_a_residual_and_a_gate(mamba: Any, shape: tuple[int, ...]) -> None:
    n, k = shape
    given = tensors({"x": (n, k), "weight": (k,)})
    rms = fxflops.count(nn.RMSNorm(k), torch.randn(n, k, requires_grad=True), backward=True)
    layer = fxflops.count(nn.LayerNorm(k), torch.randn(n, k, requires_grad=True), backward=True)
    plain = counts(mamba(RMS_NORM), given, bias=None)
    assert plain.forward.flops == rms.total_flops
    summed = counts(mamba(RMS_NORM), given | tensors({"residual": (n, k)}), bias=None, prenorm=True)
    assert summed.forward == plain.forward.plus(Cost(adds=n * k))
    assert summed.backward == plain.backward.plus(Cost(adds=n * k))
    whole = counts(mamba(LAYER_NORM), given | tensors({"bias": (k,)}))
    assert whole.forward.flops == layer.total_flops
    gated = counts(mamba(GATED), given | tensors({"z": (n, k)}), bias=None)
    tape = Tape()
    y = tape.multiply(tape.leaf(n, k), tape.silu(tape.leaf(n, k)))
    assert gated.forward == plain.forward.plus(tape.forward)
    assert gated.backward == plain.backward.plus(tape.backward(y))


class Mamba2(nn.Module):
    """mamba_ssm's layer, with its call of the kernel: https://github.com/state-spaces/mamba, ``mamba_ssm/modules/mamba2.py``."""

    def __init__(self, call: Any, width: int, h: int, p: int, n: int, w: int = 4) -> None:
        super().__init__()
        d = h * p
        self.call, self.p = call, p
        self.in_proj = nn.Linear(width, 2 * d + 2 * n + h, bias=False)
        self.conv_weight, self.conv_bias = nn.Parameter(torch.randn(d + 2 * n, w)), nn.Parameter(torch.randn(d + 2 * n))
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.randn(h)) for _ in range(3))
        self.norm, self.out_proj = nn.Parameter(torch.ones(d)), nn.Parameter(torch.randn(width, d))

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return self.call(
            self.in_proj(u), self.conv_weight, self.conv_bias, self.dt_bias, -torch.exp(self.A_log), D=self.D, chunk_size=256,
            activation="silu", rmsnorm_weight=self.norm, rmsnorm_eps=1e-5, outproj_weight=self.out_proj, outproj_bias=None,
            headdim=self.p, ngroups=1, norm_before_gate=False,
        )  # fmt: skip


class Model(nn.Module):
    def __init__(self, call: Any, vocabulary: int, width: int, layers: int, **sizes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(Mamba2(call, width, **sizes) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


def test_a_model_of_mamba_2_by_hand(mamba: Any) -> None:
    """Two layers of width 16, 4 heads of 8, 6 states, windows of 4; 2 sequences of 10 tokens, a vocabulary of 50."""
    model = Model(mamba(SPLIT), 50, 16, 2, h=4, p=8, n=6)
    report = fxflops.count(model, torch.randint(50, (2, 10)), backward=True)
    assert report.complete
    tokens, width, d, h, n, w = 20, 16, 32, 4, 6, 4
    channels = d + 2 * n
    layer_macs = tokens * (width * (2 * d + 2 * n + h) + channels * w + 2 * d * n + d * width)
    assert report.total_macs == 2 * layer_macs + tokens * width * 50
    in_proj = tokens * (2 * d + 2 * n + h) * (2 * width - 1)
    conv = tokens * channels * (2 * w - 1 + 1 + 1)  # w multiplies, w - 1 adds, a bias and SiLU
    steps = tokens * h * (1 + 1 + 2)  # a bias, softplus, times A, exp
    scan = tokens * d * (1 + n * 3 + (2 * n - 1) + 2)  # x * dt; decay, input and sum of n states; n with C; D
    norm = tokens * d * (2 + 2)  # divide, multiply by the weight; SiLU, multiply
    out_proj = tokens * width * (2 * d - 1)
    layer = in_proj + conv + steps + scan + norm + out_proj + 2 * h  # -exp(A_log)
    outside = 2 * tokens * width * (2 + 1)  # RMS norms, residuals
    assert report.total_flops == 2 * layer + outside + tokens * 50 * (2 * width - 1)
    # Each product of the forward has two in the backward, because the first layer's input needs a gradient too.
    assert sum(each.macs for each in report.counted if each.call.phase == "backward") == 2 * report.total_macs


@pytest.mark.parametrize("shape", HEADS)
def test_a_whole_layer_is_its_parts(mamba: Any, shape: tuple[int, ...]) -> None:
    """The kernel of the whole layer costs what its parts cost as separate calls, forward and backward."""
    b, length, h, p, g, n = shape
    d, w, out = h * p, 4, 5
    channels = d + 2 * g * n
    given = tensors({
        "zxbcdt": (b, length, 2 * d + 2 * g * n + h), "conv1d_weight": (channels, w), "conv1d_bias": (channels,), "dt_bias": (h,), "A": (h,),
        "D": (h,), "rmsnorm_weight": (d,), "outproj_weight": (out, d),
    })  # fmt: skip
    counted = counts(mamba(SPLIT), given, chunk_size=8, headdim=p, ngroups=g)
    conv = counts(
        mamba(CONV),
        tensors({"x": (b, channels, length), "weight": (channels, w), "bias": (channels,)}),
        activation="silu",
    )
    scan = counts(
        mamba(CHUNKS),
        tensors({"x": (b, length, h, p), "dt": (b, length, h), "A": (h,), "B": (b, length, g, n), "C": (b, length, g, n), "D": (h,), "dt_bias": (h,)}),
        chunk_size=8, dt_softplus=True,
    )  # fmt: skip
    norm = counts(mamba(GATED), tensors({"x": (b * length, d), "weight": (d,), "z": (b * length, d)}), bias=None)
    last = Tape()
    y = last.contract("ti,oi->to", last.leaf(b * length, d), last.leaf(out, d))
    assert counted.out == (b, length, out)
    assert counted.forward == conv.forward.plus(scan.forward).plus(norm.forward).plus(last.forward)
    assert counted.backward == conv.backward.plus(scan.backward).plus(norm.backward).plus(last.backward(y))


@pytest.mark.parametrize("shape", SCANS)
def test_a_whole_layer_of_mamba_1_is_its_parts(mamba: Any, shape: tuple[int, ...]) -> None:
    b, d, length, n, _ = shape
    w, rank, out = 4, 2, 5
    given = tensors({
        "xz": (b, 2 * d, length), "conv1d_weight": (d, 1, w), "conv1d_bias": (d,), "x_proj_weight": (rank + 2 * n, d), "delta_proj_weight": (d, rank),
        "out_proj_weight": (out, d), "A": (d, n), "D": (d,), "delta_bias": (d,),
    })  # fmt: skip
    counted = counts(mamba(INNER), given, out_proj_bias=None)
    conv = counts(mamba(CONV), tensors({"x": (b, d, length), "weight": (d, w), "bias": (d,)}), activation="silu")
    parts = {"u": (b, d, length), "delta": (b, d, length), "A": (d, n), "B": (b, n, length), "C": (b, n, length)}
    scan = counts(
        mamba(SCAN), tensors(parts | {"D": (d,), "z": (b, d, length), "delta_bias": (d,)}), delta_softplus=True
    )
    tape = Tape()
    x = tape.leaf(b * length, d)
    x.parts = 1  # its first gradient came from the scan
    projected = [tape.contract("ti,oi->to", x, tape.leaf(rank + 2 * n, d))]
    projected.append(tape.contract("ti,oi->to", tape.leaf(b * length, rank), tape.leaf(d, rank)))
    projected.append(tape.contract("ti,oi->to", tape.leaf(b * length, d), tape.leaf(out, d)))
    assert counted.out == (b, length, out)
    assert counted.forward == conv.forward.plus(scan.forward).plus(tape.forward)
    assert counted.backward == conv.backward.plus(scan.backward).plus(tape.backward(*projected))

"""The count of ptflops 0.7.5 (https://github.com/sovrasov/flops-counter.pytorch) with its default backend, "pytorch".

ptflops hooks modules of certain classes (not their subclasses), and replaces some functions of torch and
torch.nn.functional and some methods of tensors. Hooks and replaced functions both charge. So nn.ReLU is charged twice,
because its forward calls F.relu. The charge of a hooked module covers the hooked modules inside it, e.g. the linear
layers of timm's Attention. Operators (``x + y``, ``x @ y``) are free. The tool divides the charges of hooks by the batch size, but not the
charges of functions. Here all charges are for the whole batch.

For some calls the tool raises an error (attention or pooling with an input passed by name). The count here is then what the tool's rules
intend. Two differences remain. First, the tool's number depends on how a function is looked up. The tool charges F.upsample twice: for
itself, and for the F.interpolate that F.upsample calls. The tool misses a function that was imported by name before the tool replaced it
(``from torch.nn.functional import relu``). Second, the tool counts a module with two parents once under each parent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..ops._extend import first
from ..records import FormulaFunction, Scope, Spec, specs_in
from ._convention import CONVENTIONS, NONE, Convention, nothing
from ._rows import (
    DIMS,
    POOLINGS,
    each_input,
    each_output,
    elementwise,
    given,
    local_response_norm,
    lp_pool,
    per_input,
    recurrent_step,
)

# Rules for modules that the tool hooks


def hook_of(cls: type) -> Callable[[Scope], int] | None:
    """Return the rule for a module class; None if the class has no rule. Classes of other libraries are looked up by name, without an import."""
    return HOOKS.get(cls) or HOOKS.get(f"{cls.__module__}.{cls.__qualname__}")


def convolution(scope: Scope, transposed: bool = False, extra: int = 0) -> int:
    """x[n, c, *], weight[o, c/g, k] -> out[n, o, *]: c (o // g) k per position of out, plus 1 per output if there is a bias."""
    x, out, settings = given(scope), first(scope.out), scope.settings
    per_position = settings["in_channels"] * (settings["out_channels"] // settings["groups"]) + extra
    positions = x[0] * math.prod((x if transposed else out)[2:])
    biased = x[0] * math.prod(out[1:]) if settings["bias"] is not None else 0
    return int(math.prod(settings["kernel_size"]) * per_position * positions + biased)


def transposed_convolution(scope: Scope) -> int:
    """x[n, c, *], weight[c, o/g, k] -> out[n, o, *]: c (o // g) k per position of x, plus 1 per output if there is a bias."""
    return convolution(scope, transposed=True)


def deformable(scope: Scope) -> int:
    """x[n, c, *], offset, mask -> out[n, o, *]: as a convolution, plus 24 per kernel element and position (25 with a mask)."""
    masked = len(scope.args) == 3 and scope.args[2] is not None
    return convolution(scope, extra=25 if masked else 24)


def linear(scope: Scope) -> int:
    """x[*, i], weight[o, i] -> out[*, o]: i per output, plus 1 if there is a bias."""
    return (given(scope)[-1] + (scope.settings["bias"] is not None)) * first(scope.out).numel()


def normalization(scope: Scope) -> int:
    """x[*] -> out[*]: 1 per input, 2 with ``affine``; always 1 for LayerNorm."""
    return given(scope).numel() * (2 if scope.settings.get("affine") else 1)


def upsampled(scope: Scope) -> int:
    """x[n, *] -> out[n, *]: 1 per output of the first sample only."""
    return math.prod(first(scope.out)[1:])


def recurrent(scope: Scope) -> int:
    """x[n, t, i] -> out[n, t, h]: the charge of one step of all layers, n*t times, twice that if bidirectional."""
    steps = math.prod(given(scope)[:2]) * (2 if scope.settings["bidirectional"] else 1)
    return steps * recurrent_step(scope)


def recurrent_cell(scope: Scope) -> int:
    """x[n, i] -> out[n, h]: the charge of one step, n times."""
    return given(scope)[0] * recurrent_step(scope)


def attention(scope: Scope) -> int:
    """q[n, l, e], k[n, s, k], v[n, s, v] -> out[n, l, e]: the projections and their biases, the scaling, both products and softmax.

    The tool assumes that the projection matrices are e x e, k x k and v x v.
    """
    q, k, v = list(specs_in((scope.args, dict(scope.kwargs))))[:3]
    first_is_batch, heads = scope.settings["batch_first"], scope.settings["num_heads"]
    batch = q[0 if first_is_batch else 1]
    q_len, k_len, v_len = (spec[1 if first_is_batch else 0] for spec in (q, k, v))
    q_dim, k_dim, v_dim = q[-1], k[-1], v[-1]
    projections = q_len * q_dim**2 + k_len * k_dim**2 + v_len * v_dim**2 + q_len * v_dim * (v_dim + 1)
    biases = (q_len + k_len + v_len) * q_dim if scope.settings["in_proj_bias"] is not None else 0
    per_head = q_len * k_len * (q_dim // heads + 1 + v_dim // heads)
    return int(batch * (q_len * q_dim + projections + biases + heads * per_head))


def timm_attention(scope: Scope) -> int:
    """x[n, l, c] -> out[n, l, c]: scaling, both products and softmax; the linear layers are not counted."""
    batch, length, _ = given(scope)
    dim, heads = scope.settings["head_dim"], scope.settings["num_heads"]
    return int(batch * heads * (length * dim + length * length * (2 * dim + 1)))


HOOKS: dict[Any, Callable[[Scope], int]] = {
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), convolution),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), transposed_convolution),
    "torchvision.ops.deform_conv.DeformConv2d": deformable,
    nn.Linear: linear,
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU), each_output),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), each_input),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), each_input),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), each_input),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm), normalization),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), normalization),
    nn.Upsample: upsampled,
    **dict.fromkeys((nn.RNN, nn.GRU, nn.LSTM), recurrent),
    **dict.fromkeys((nn.RNNCell, nn.GRUCell, nn.LSTMCell), recurrent_cell),
    nn.MultiheadAttention: attention,
    "timm.layers.attention.Attention": timm_attention,
    "timm.models.vision_transformer.Attention": timm_attention,
}

# Formulas for functions that the tool replaces


def interpolate(
    input: Spec,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    *,
    out: Spec,
) -> int:
    """x[n, c, *] -> out[n, c, *]: 1 per output, computed from size or scale_factor; each factor of a list is rounded down.

    With mode="area", the pooling that F.interpolate calls adds 1 per input.
    """
    dims = input.ndim - 2
    pooled = input.numel() if mode == "area" else 0
    if size is not None:
        return pooled + math.prod(input[:2]) * (size**dims if isinstance(size, int) else math.prod(size))
    if isinstance(scale_factor, Sequence):
        return pooled + input.numel() * math.prod(map(int, scale_factor))
    return pooled + int(input.numel() * (scale_factor or 1) ** dims)


def product(input: Spec, other: Spec, *, out: Spec) -> int:
    """input[*, m, k] @ other[*, k, n] -> out: n per element of input, ignoring broadcasting."""
    return input.numel() * other[-1]


def product_and_sum(input: Spec, mat1: Spec, mat2: Spec, *, beta: float = 1, out: Spec) -> int:
    """input[*] + mat1[*, m, k] @ mat2[*, k, n] -> out: n per element of mat1, plus 1 per element of input unless beta is 0."""
    return mat1.numel() * mat2[-1] + (input.numel() if beta != 0 else 0)


ROWS: dict[Any, FormulaFunction] = {
    **dict.fromkeys((F.relu, F.relu6, F.prelu, F.elu, F.gelu, F.silu, F.softmax), per_input),
    **{getattr(F, f"{name}{dims}d"): per_input for name in POOLINGS for dims in DIMS},
    **{getattr(F, f"{name}{dims}d_with_indices"): per_input for name in POOLINGS if "max" in name for dims in DIMS},
    F.interpolate: interpolate,
    **dict.fromkeys(
        (torch.matmul, torch.Tensor.matmul, torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm), product
    ),
    **dict.fromkeys((torch.addmm, torch.Tensor.addmm, torch.baddbmm), product_and_sum),
    **dict.fromkeys((torch.mul, torch.Tensor.mul, torch.add, torch.Tensor.add), elementwise),
    "lp_pool": lp_pool,
    "local_response_norm": local_response_norm,
    # Modules whose forward calls one of these functions
    **dict.fromkeys((nn.ReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softmax, nn.Softmax2d), per_input),
    **{getattr(nn, f"{name.title().replace('_', '')}{dims}d"): per_input for name in POOLINGS for dims in DIMS},
    nn.Upsample: interpolate,
}


CONVENTION = Convention(
    "ptflops",
    CONVENTIONS["ptflops"],
    ROWS,
    of=nothing,
    modules=hook_of,
    operators=NONE,
    integers=True,
    by_name=True,
)

"""Run on meta, as one operator, what the target device runs as a single kernel, although torch decomposes it on meta.

On meta, torch has no kernel for mish's gradient or a GPU's RMS norm. It calls several operators instead, and makes tensors that
the real device never makes. So these operators are called below autograd, where a dispatch mode sees the operator itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..torch_internals import below_autograd

aten = torch.ops.aten
RMS_NORM_OF_GPUS = getattr(torch.ops.aten, "_fused_rms_norm", None)
"""The operator that runs RMS norm on a GPU; None in versions of torch that decompose RMS norm on a GPU, too."""


class SingleKernel(torch.autograd.Function):
    """The base class of functions that call a single operator, and whose derivative is a single operator."""


class Mish(SingleKernel):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, inplace: bool) -> torch.Tensor:
        ctx.save_for_backward(x.clone() if inplace else x)
        if inplace:
            ctx.mark_dirty(x)
            return aten.mish_.default(x)  # type: ignore[no-any-return]
        return aten.mish.default(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative, every device decomposes the first derivative
            return aten.mish_backward.default(grad, x), None
        with below_autograd():
            return aten.mish_backward.default(grad, x), None


class RmsNorm(SingleKernel):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: list[int], weight: torch.Tensor | None, eps: float | None) -> Any:
        with below_autograd():
            assert RMS_NORM_OF_GPUS is not None
            out, rstd = RMS_NORM_OF_GPUS.default(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight, rstd = ctx.saved_tensors
        asked = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_x, of_weight = torch.ops.aten._fused_rms_norm_backward.default(grad, x, ctx.shape, rstd, weight, asked)
        return of_x, None, of_weight, None


def mish(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Replace ``F.mish``."""
    return Mish.apply(input, inplace)  # type: ignore[no-any-return]


def rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Replace ``F.rms_norm``."""
    return RmsNorm.apply(input, [*normalized_shape], weight, eps)  # type: ignore[no-any-return]


SINGLE_KERNELS: dict[Any, Any] = {F.mish: mish}
SINGLE_KERNELS_ON_GPUS: dict[Any, Any] = (
    {} if RMS_NORM_OF_GPUS is None else {F.rms_norm: rms_norm, torch.rms_norm: rms_norm}
)
"""For each torch function, its replacement in this module: SINGLE_KERNELS for all devices, SINGLE_KERNELS_ON_GPUS for GPUs."""

"""Results of operators for which meta has no kernel, has a slow kernel, or has a kernel that refuses dtypes accepted by devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch

from ..records.tensors import ORDINARY
from ..torch_internals import DispatchMode, OpOverload

ALIGNED = 16
"""Each row of a grouped product begins at a multiple of this many bytes."""


def grouped_mm(
    input: torch.Tensor, mat2: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the result of a grouped product. The kernel for meta accepts only bfloat16."""
    dtype, (rows, columns) = out_dtype or input.dtype, (input.shape[-2], mat2.shape[-1])
    groups = input.shape[:1] if input.ndim == mat2.ndim == 3 else offs.shape[:1] if input.ndim == mat2.ndim == 2 else ()
    pitch = -(-columns * dtype.itemsize // ALIGNED) * ALIGNED // dtype.itemsize
    strides = (rows * pitch, pitch, 1)[-2 - len(groups) :]
    return torch.empty_strided((*groups, rows, columns), strides, dtype=dtype, device="meta")


def recurrent_backward(*args: Any) -> tuple[Any, ...]:
    """Return the gradients of a cuDNN recurrent layer's input, states and weights."""
    input, weights, _, _, hidden, cell, *_, output_mask = args
    inputs_and_needs = zip((input, hidden, cell), output_mask, strict=False)
    gradients = [
        torch.empty_like(tensor) if is_needed and tensor is not None else None for tensor, is_needed in inputs_and_needs
    ]
    return *gradients, [torch.empty_like(weight) for weight in weights] if output_mask[3] else []


def like_the_input(grad: torch.Tensor, input: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return the gradient of a loss with respect to its input."""
    return torch.empty_like(input)


def _choosing(func: Any, at: int) -> Any:
    """Wrap ``func``, a ``where`` whose condition is argument number ``at``, so that it accepts a uint8 condition on meta, as on devices."""

    def where(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_as_bool(arg) if i == at else arg for i, arg in enumerate(args))
        return func(*args, **{name: _as_bool(arg) if name == "condition" else arg for name, arg in kwargs.items()})

    return where


def _as_bool(condition: torch.Tensor) -> torch.Tensor:
    return condition.view(torch.bool) if condition.dtype is torch.uint8 else condition


CHOOSING = {torch.where: 0, torch.Tensor.where: 1, torch.ops.aten.where.self: 0}
"""The functions and operators for ``where``, with the position of the condition among their arguments."""
RESULTS: dict[Any, Any] = {func: _choosing(func, at) for func, at in CHOOSING.items()} | {
    getattr(torch.ops.aten, name).default: result
    for name, result in {
        "_grouped_mm": grouped_mm,
        "_cudnn_rnn_backward": recurrent_backward,
        "multi_margin_loss_backward": like_the_input,
        "multilabel_margin_loss_backward": like_the_input,
    }.items()
    if hasattr(torch.ops.aten, name)
}
"""For each operator or function, the function that returns its result on meta."""


class WithoutKernels(DispatchMode):
    """A mode in which elementwise in-place operators on meta tensors run no kernel.

    Meta tensors have no memory to write to, and torch's meta kernels, which are written in Python, would take most of the time of an
    optimizer step.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = written_on_meta(func, args)
        return func(*args, **kwargs or {}) if out is NotImplemented else out


def written_on_meta(func: Any, args: tuple[Any, ...]) -> Any:
    """Return the result of an elementwise in-place operator on meta tensors; NotImplemented if its kernel must run.

    The kernel must run for all other operators, and if an operand differs in shape or dtype from the tensor that is written to:
    the kernel might then raise an error or have something to do.
    """
    if not args or not _writes_elements(func):
        return NotImplemented
    if isinstance(args[0], torch.Tensor):
        return args[0] if _may_skip_kernel(args) else NotImplemented
    lists = [arg for arg in args if isinstance(arg, (list, tuple))]
    others = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if len({*map(len, lists)}) > 1:
        return NotImplemented
    return (
        None if all(_may_skip_kernel((*operands, *others)) for operands in zip(*lists, strict=True)) else NotImplemented
    )


@cache
def _writes_elements(func: Any) -> bool:
    """Return whether an operator is elementwise and in-place on its first argument, a tensor or a list of tensors."""
    name = func.name().partition(".")[0] if isinstance(func, OpOverload) else ""
    if not name.endswith("_") or name.endswith("__"):
        return False
    return torch.Tag.pointwise in func.tags or name.startswith("aten::_foreach_")


def _may_skip_kernel(operands: Iterable[Any]) -> bool:
    """Return whether the first tensor is floating, contiguous and on meta, and every other tensor has the same dtype, and the same shape or
    no dimensions."""
    others: Iterator[torch.Tensor] = (tensor for tensor in operands if isinstance(tensor, torch.Tensor))
    target = next(others)
    dtype, shape = target.dtype, target.shape
    if not (target.is_meta and dtype.is_floating_point and target.is_contiguous() and type(target) in ORDINARY):
        return False
    return all(
        type(tensor) in ORDINARY
        and tensor.dtype is dtype
        and (not tensor.ndim or (tensor.is_meta and tensor.shape == shape))
        for tensor in others
    )

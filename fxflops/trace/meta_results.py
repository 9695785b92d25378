"""Results of operators that devices have and meta lacks, or refuses for dtypes that they take."""

from __future__ import annotations

from typing import Any

import torch

ALIGNED = 16
"""The bytes at a multiple of which each row of a grouped product begins."""


def grouped_mm(
    input: torch.Tensor, mat2: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the result of a grouped product, which meta's kernel makes of bfloat16 alone."""
    dtype, (rows, columns) = out_dtype or input.dtype, (input.shape[-2], mat2.shape[-1])
    groups = input.shape[:1] if input.ndim == mat2.ndim == 3 else offs.shape[:1] if input.ndim == mat2.ndim == 2 else ()
    pitch = -(-columns * dtype.itemsize // ALIGNED) * ALIGNED // dtype.itemsize
    strides = (rows * pitch, pitch, 1)[-2 - len(groups) :]
    return torch.empty_strided((*groups, rows, columns), strides, dtype=dtype, device="meta")


def recurrent_backward(*args: Any) -> tuple[Any, ...]:
    """Return the gradients of a recurrent layer of cuDNN: of its input, its states, and its weights."""
    input, weights, _, _, hidden, cell, *_, asked = args
    needs = zip((input, hidden, cell), asked, strict=False)
    gradients = [torch.empty_like(each) if wanted and each is not None else None for each, wanted in needs]
    return *gradients, [torch.empty_like(weight) for weight in weights] if asked[3] else []


def like_the_input(grad: torch.Tensor, input: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return the gradient of a loss with respect to its input."""
    return torch.empty_like(input)


def _choosing(func: Any, at: int) -> Any:
    """Return ``where`` by ``func``, whose condition is its argument ``at``: one of bytes, which devices take, is none for meta."""

    def where(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_as_bool(arg) if i == at else arg for i, arg in enumerate(args))
        return func(*args, **{name: _as_bool(arg) if name == "condition" else arg for name, arg in kwargs.items()})

    return where


def _as_bool(condition: torch.Tensor) -> torch.Tensor:
    return condition.view(torch.bool) if condition.dtype is torch.uint8 else condition


CHOOSING = {torch.where: 0, torch.Tensor.where: 1, torch.ops.aten.where.self: 0}
"""The spellings of ``where``, with the place of the condition."""
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
"""The functions that return results, by operator or function."""

"""The memory format of an operator's result on a device, where torch's meta kernel returns another one.

The format decides which later calls copy. For example, ``x.contiguous()`` copies an image that is channels last. The rules follow
torch's kernels (``aten/src/ATen/native``: ``Convolution.cpp``, ``ConvUtils.h`` and one file for each other operator).
``benchmarks/formats.py`` compares all operators of torch's operator database with the CPU's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from ..torch_internals import OpOverload
from ._rules import Strides
from .shapes import in_layout, is_channels_last

FormatRule = Callable[[Sequence[Any], str], bool | None]
"""Takes an operator's arguments and a device type; returns whether the result is channels last, None if meta's format is right."""
REDUCED = (torch.bfloat16, torch.float16)
SMALL = 20_480
"""The most elements of an image's first four dims, up to which the CPU may use a native kernel instead of oneDNN."""


def _is_last(tensor: torch.Tensor) -> bool:
    return is_channels_last(tensor.shape, tensor.stride())


def _as_argument(position: int, args: Sequence[Any], device: str) -> bool | None:
    """Return whether the argument at this position is channels last. GPUs have other kernels for these operators."""
    return _is_last(args[position]) if device == "cpu" else None


def _contiguous(args: Sequence[Any], device: str) -> bool | None:
    return False if device == "cpu" else None


def _convolution(args: Sequence[Any], device: str) -> bool | None:
    """Return whether input or weight is channels last, and the chosen kernel supports this format.

    The arguments are ``input, weight, bias, stride, padding, dilation, transposed, output_padding, groups``.
    """
    image, weight, _, stride, _, dilation, transposed, _, groups = args
    if image.ndim not in (4, 5) or device not in ("cpu", "cuda"):
        return None
    if not (_is_last(image) or _is_last(weight)):
        return False
    if device == "cuda":  # cuDNN has no channels-last kernels for double precision
        return image.dtype is not torch.float64
    return image.ndim == 4 or _uses_onednn(image, weight, stride, dilation, transposed, groups)


def _uses_onednn(
    image: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> bool:
    """Return whether the CPU convolves volumes by oneDNN, as ``ConvParams::use_mkldnn`` decides."""
    if not torch.backends.mkldnn.enabled or (transposed and 1 < groups == image.shape[1]):
        return False
    if image.dtype in REDUCED:
        return True
    moves = max(*stride, *dilation) > 1
    may_be_slow = image.shape[0] < 16 and weight.shape[-2:] == (1, 1) and torch.get_num_threads() == 1
    is_large = image.shape[0] > 1 or math.prod(image.shape[:4]) > SMALL
    return (
        image.dtype is torch.float32
        and (moves or not may_be_slow)
        and (groups > 1 or min(weight.shape[-2:]) > 3 or is_large)
    )


def _convolution_backward(args: Sequence[Any], device: str) -> bool | None:
    _, image, weight, bias_sizes, *settings, _ = args
    return _convolution((image, weight, bias_sizes, *settings), device)


def _elementwise(args: Sequence[Any], device: str) -> bool | None:
    """Return False for images with dims of size 1 that are all contiguous. Then so is the result, while meta keeps the strides of these dims,
    by which an image may seem to be channels last."""
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor) or first.ndim not in (4, 5) or 1 not in first.shape:
        return None
    images = [arg for arg in args if isinstance(arg, torch.Tensor)]
    is_plain = all(_is_like(image, first) for image in images)
    return False if is_plain and any(map(_is_last, images)) else None


def _is_like(image: torch.Tensor, first: torch.Tensor) -> bool:
    return image.shape == first.shape and image.is_contiguous()


FORMATS: dict[str, FormatRule] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::glu_backward": _contiguous,
    **dict.fromkeys(
        [
            "aten::native_group_norm",
            "aten::native_batch_norm",
            *(f"aten::_native_batch_norm_legit{kind}" for kind in ("", ".no_stats", "_no_training")),
            "aten::_batch_norm_with_update",
            *(f"aten::{kind}_pad{dims}d" for kind in ("reflection", "replication") for dims in (2, 3)),
            "aten::max_unpool2d",
            "aten::pixel_shuffle",
            "aten::pixel_unshuffle",
            "aten::channel_shuffle",
            "aten::native_channel_shuffle",
        ],
        partial(_as_argument, 0),
    ),
    **dict.fromkeys(
        [
            *(f"aten::{kind}_pad{dims}d_backward" for kind in ("reflection", "replication") for dims in (2, 3)),
            "aten::native_group_norm_backward",
            "aten::native_batch_norm_backward",
            "aten::batch_norm_backward",
        ],
        partial(_as_argument, 1),
    ),
}
"""Rules for the format of an operator's first result, by the operator's name."""


@cache
def _rule_of(operator: OpOverload) -> FormatRule | None:
    return FORMATS.get(operator.name()) or (_elementwise if torch.Tag.pointwise in operator.tags else None)


def strides_on(device: str, operator: OpOverload, args: Sequence[Any], result: Any) -> Strides | None:
    """Return the strides of an operator's first result on a device; None if the result on meta has the right strides."""
    rule = _rule_of(operator)
    is_last = None if rule is None or not isinstance(result, torch.Tensor) else rule(args, device)
    if is_last is None:
        return None
    strides = in_layout(result.shape, is_last)
    # A tensor that the operator writes to keeps its place in memory.
    return None if strides == result.stride() or operator._schema.is_mutable else strides

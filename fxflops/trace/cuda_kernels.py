"""The kernels that torch chooses on an NVIDIA GPU, for machines without a GPU, where torch itself cannot choose them.

The assumed GPU is an H100 (compute capability 9.0) with the cuDNN that torch is built with. Each function here takes the arguments of
a torch function, and calls the operators that the function dispatches on the GPU. The rules come from
https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend
from torch.torch_version import TorchVersion

from ..torch_internals import DisableTorchDispatch, DisableTorchFunction, fused_sdp_choice

HALVES = (torch.float16, torch.bfloat16)
LARGEST_HEAD = {"flash": 256, "cudnn": 128}
PREFERS_CUDNN = TorchVersion(torch.__version__) >= "2.10"
"""Whether torch tries cuDNN's attention first on this GPU: it does since its wheels ship a cuDNN newer than 9.15."""
EFFICIENT_TAKES_GROUPS = TorchVersion(torch.__version__) >= "2.14"
"""Whether the memory-efficient kernel accepts fewer key heads than query heads."""
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""The numbers by which cuDNN distinguishes types of recurrent layers."""


def takes_plain_products(*args: Any, **kwargs: Any) -> bool:
    """Return whether attention with these arguments runs as plain matrix products, because no fused kernel supports them."""
    return _Attention(*args, **kwargs).kernel == "math"


def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Call the fused kernel of ``scaled_dot_product_attention``."""
    call = _Attention(*args, **kwargs)
    query, key, value, mask = call.query, call.key, call.value, call.mask
    dropout, causal, scale = call.dropout_p, call.is_causal, call.scale
    if call.kernel == "flash":
        width = query.shape[-1]
        padded = [F.pad(tensor, (0, -width % 8)) if width % 8 else tensor for tensor in (query, key, value)]
        scale = 1 / math.sqrt(width) if scale is None else scale
        fused = torch.ops.aten._scaled_dot_product_flash_attention.default
        out = fused(*padded, dropout, causal, False, scale=scale)[0]
        out = out[..., :width] if width % 8 else out
    else:
        if mask is not None and mask.dtype is torch.bool:
            mask = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device))
        if call.kernel == "cudnn":
            fused = torch.ops.aten._scaled_dot_product_cudnn_attention.default
            out = fused(query, key, value, mask, call.needs_grad, dropout, causal, False, scale=scale)[0]
        else:
            mask = None if mask is None else _aligned(mask, query, key)
            fused = torch.ops.aten._scaled_dot_product_efficient_attention.default
            out = fused(query, key, value, mask, call.needs_grad, dropout, causal, scale=scale)[0]
    result: torch.Tensor = out.squeeze(0) if call.is_one_head else out
    return result


class _Attention:
    """An attention call: its arguments, and the ``kernel`` that torch chooses: "cudnn", "flash", "efficient" or "math"."""

    def __init__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        self.is_one_head = query.ndim == key.ndim == value.ndim == 3 and takes_one_head()
        if self.is_one_head:
            query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
            attn_mask = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
        self.query, self.key, self.value, self.mask = query, key, value, attn_mask
        self.dropout_p, self.is_causal, self.scale = dropout_p, is_causal, scale
        self.is_grouped = enable_gqa
        self.needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        self.kernel = self._kernel()

    def _kernel(self) -> str:
        if any(tensor.ndim != 4 or not all(tensor.shape[1:3]) for tensor in (self.query, self.key, self.value)):
            return "math"
        if len({tensor.shape[0] for tensor in (self.query, self.key, self.value)}) > 1:
            return "math"
        heads = [tensor.shape[1] for tensor in (self.query, self.key, self.value)]
        if not (self.is_grouped or len({*heads}) == 1):
            return "math"
        enabled = torch.backends.cuda
        can_share_heads = len({*heads[1:]}) == 1 and heads[0] % heads[1] == 0
        tries = {
            "cudnn": PREFERS_CUDNN and enabled.cudnn_sdp_enabled() and self._fits_cudnn(),
            "flash": enabled.flash_sdp_enabled() and can_share_heads and self._fits_flash(),
            "efficient": enabled.mem_efficient_sdp_enabled()
            and (len({*heads}) == 1 or (can_share_heads and EFFICIENT_TAKES_GROUPS))
            and self._fits_efficient(),
        }
        return next((kernel for kernel, fits in tries.items() if fits), "math")

    def _fits_flash(self) -> bool:
        widths = {tensor.shape[-1] for tensor in (self.query, self.key, self.value)}
        is_square = self.query.shape[-2] == self.key.shape[-2]
        return (
            self.query.dtype in HALVES
            and self.mask is None
            and len(widths) == 1
            and max(widths) <= LARGEST_HEAD["flash"]
            and (is_square or not self.is_causal)
            and self._is_dense_in_rows(but_single=True)
        )

    def _fits_cudnn(self) -> bool:
        widths = [tensor.shape[-1] for tensor in (self.query, self.value)]
        longest_wide = widths == [192, LARGEST_HEAD["cudnn"]]
        return (
            self.query.dtype in HALVES
            and (max(widths) <= LARGEST_HEAD["cudnn"] or longest_wide)
            and not any(width % 8 for width in widths)
            and self.key.shape[-2] != 1
            and (self.dropout_p * 16).is_integer()
            and not (self.dropout_p and self.query.shape[-2] == 1)
            and not torch.are_deterministic_algorithms_enabled()
            and self._is_dense_in_rows(but_single=True)
        )

    def _fits_efficient(self) -> bool:
        dtype = self.query.dtype
        width, key_width, value_width = (tensor.shape[-1] for tensor in (self.query, self.key, self.value))
        multiple = 8 if dtype in HALVES else 4
        return (
            dtype in (*HALVES, torch.float32)
            and width == key_width
            and width > 0
            and value_width > 0
            and not (width % multiple or value_width % multiple)
            and self._is_dense_in_rows(but_single=False)
        )

    def _is_dense_in_rows(self, but_single: bool) -> bool:
        tensors = [tensor for tensor in (self.query, self.key, self.value, self.mask) if tensor is not None]
        return all(tensor.stride()[-1] == 1 or (but_single and tensor.shape[-1] == 1) for tensor in tensors)


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return a mask as the memory-efficient kernel reads it: expanded, with each row starting at a multiple of 16 elements."""
    rows = key.shape[-2]
    mask = mask.expand(*query.shape[:-1], rows)
    if rows % 16:
        return F.pad(mask, (0, -rows % 16))[..., :rows]
    return mask.contiguous() if any(stride % 16 for stride in mask.stride()[:-1]) else mask


@cache
def takes_one_head() -> bool:
    """Return whether this torch adds a missing head dimension to attention's inputs, so that fused kernels accept them."""
    with DisableTorchDispatch():
        one = torch.zeros(1, 1, 8, device="cpu")
        return fused_sdp_choice is not None and fused_sdp_choice(one, one, one) == SDPBackend.FLASH_ATTENTION.value


# Recurrent layers


def _layer(mode: int, cells: bool) -> Any:
    """Return the GPU's version of a recurrent function such as ``torch.gru`` or, with ``cells``, ``torch.lstm``: one cuDNN kernel.

    For a packed sequence, the argument after the data is a tuple of the batch sizes (see :func:`with_batch_sizes`).
    """

    def layer(input: torch.Tensor, *rest: Any, **named: Any) -> Any:
        if _are_batch_sizes(rest[0] if rest else None):
            return packed(input, [*rest[0]], *rest[1:], **{"batch_first": False, **named})
        return packed(input, [], *rest, **named)

    def packed(
        input: torch.Tensor,
        batch_sizes: list[int],
        states: Any,
        weights: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: Any = None,
    ) -> Any:
        hidden, cell = states if cells else (states, None)
        width = hidden.shape[-1] if cell is None else cell.shape[-1]
        projected = hidden.shape[-1] if hidden.shape[-1] != width else 0
        # On a GPU, all weights are already in one buffer. So pass an empty weight buffer, which takes no extra memory.
        buffer = weights[0].new_empty(0)
        out, hidden, cell, *_ = torch.ops.aten._cudnn_rnn.default(
            input, [*weights], len(weights) // (num_layers * (2 if bidirectional else 1)), buffer,
            hidden, cell, mode, width, projected, num_layers, batch_first, dropout, train, bidirectional, batch_sizes, None,
        )  # fmt: skip
        return (out, hidden, cell) if cells else (out, hidden)

    return layer


def _are_batch_sizes(value: Any) -> bool:
    return type(value) is tuple and all(type(size) is int for size in value)  # a template's placeholder is a tuple, too


def is_packed(args: tuple[Any, ...]) -> bool:
    """Return whether a recurrent layer is called on a packed sequence: its second argument is then the batch sizes."""
    sizes = args[1] if len(args) > 1 else None
    return _are_batch_sizes(sizes) or (isinstance(sizes, torch.Tensor) and sizes.dtype is torch.int64)


def with_batch_sizes(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a recurrent layer's arguments for a packed sequence, with the batch sizes as a tuple of ints, since cuDNN takes a list."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return args[0], tuple(args[1].tolist()), *args[2:]


ON_GPU: dict[Any, Any] = {
    F.scaled_dot_product_attention: attention,
    **{getattr(torch, name): _layer(mode, name == "lstm") for name, mode in MODES.items()},
}
"""For each torch function, the function that calls the GPU's operators instead."""

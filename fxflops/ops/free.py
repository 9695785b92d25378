"""Ops that compute nothing, each with the reason: it makes a view, moves data, creates a tensor or answers a query.

The backward pass moves gradients back to the source of the data, and sums them if an element was copied more than once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..torch_internals import assertion
from ._extend import ANY, ESCAPE, FORMAT, Cost, Spec, formula, named, shape, stores, zero
from ._traits import (
    COPIES,
    FACTORIES,
    GIVEN,
    INTEGERS,
    LOOKUPS,
    MAYBE_NOTHING,
    METADATA,
    OVERWRITES,
    RESHAPING,
    SEQUENCES,
    SHARING,
    UNINITIALIZED,
    UNREAD,
    Trait,
)
from .elementwise import pointwise

CHECK = "a check: it computes nothing itself"
PADS = ("Constant", "Reflection", "Replication", "Zero", "Circular")


def free(reason: str, names: str, *traits: Trait) -> list[str]:
    """Declare that every spelling of these ops computes nothing, for this reason. Return the names."""
    for name in names.split():
        zero(reason, *named(name), op=name.rstrip("_"), traits=traits)
    return names.split()


def asked(names: str, *traits: Trait) -> list[str]:
    """Declare that these functions and methods only answer a query about a tensor. Return the names."""
    for name in names.split():
        for namespace in (torch.Tensor,) if name.startswith("__") else (torch, torch.Tensor):
            target = getattr(namespace, name, None)
            if callable(target) and not isinstance(target, type):
                zero("query", target, op=name, traits=traits)
    return names.split()


VIEW = [
    *free("view", "unsqueeze squeeze t transpose swapaxes swapdims", RESHAPING),
    *free(
        "view",
        """
        view view_as reshape reshape_as permute movedim moveaxis expand expand_as broadcast_to broadcast_tensors flatten
        unflatten ravel unbind split split_with_sizes chunk tensor_split hsplit vsplit dsplit narrow select diagonal
        as_strided detach alias adjoint mT matrix_H numpy_T atleast_1d atleast_2d atleast_3d view_as_real
        view_as_complex real imag conj resolve_conj resolve_neg positive unsafe_chunk unsafe_split
        unsafe_split_with_sizes slice linalg_diagonal _reshape_alias _unsafe_view lift
        lift_fresh refine_names rename align_to _nested_view_from_jagged _nested_view_from_buffer values indices _values
        _indices crow_indices col_indices ccol_indices row_indices
        """,
    ),
]
MOVE = [
    *free("move", "to type type_as contiguous cpu cuda xpu mtia pin_memory", COPIES, MAYBE_NOTHING),
    *free("move", "float double half bfloat16 cfloat cdouble chalf", COPIES, MAYBE_NOTHING),
    *free("move", "long int short char byte bool", COPIES, MAYBE_NOTHING),
    *free("move", "clone __deepcopy__ _to_copy _pin_memory", COPIES),
    *free("move", "copy", OVERWRITES, UNREAD),
    *free("move", "index_copy select_scatter slice_scatter diagonal_scatter as_strided_scatter masked_scatter", UNREAD),
    *free("move", "gather index_select take take_along_dim index", LOOKUPS),
    *free(
        "move",
        """
        cat concat concatenate stack hstack vstack dstack column_stack row_stack repeat
        repeat_interleave tile _unsafe_index index_fill masked_select roll flip fliplr flipud rot90 pad constant_pad_nd
        reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d tril
        triu im2col unfold pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle meshgrid block_diag
        nonzero nonzero_numpy argwhere one_hot cartesian_prod combinations resize resize_as set_ share_memory_
        nonzero_static to_dense _to_dense to_sparse to_mkldnn coalesce pad_sequence _pack_padded_sequence
        _pad_packed_sequence _chunk_cat diag diag_embed diagflat
        """,
    ),
]
CREATE = [
    *free("create", "empty empty_strided empty_permuted", FACTORIES, UNINITIALIZED),
    *free("create", "empty_like new_empty new_empty_strided", FACTORIES, UNINITIALIZED, UNREAD),
    *free("create", "zeros ones full eye rand randn", FACTORIES),
    *free("create", "zeros_like ones_like full_like rand_like randn_like", FACTORIES, UNREAD),
    *free("create", "new_zeros new_ones new_full", FACTORIES, UNREAD),
    *free("create", "randint tril_indices triu_indices", FACTORIES, INTEGERS),
    *free("create", "randint_like", FACTORIES, INTEGERS, UNREAD),
    *free("create", "arange range linspace logspace randperm", FACTORIES, SEQUENCES),
    *free("create", "tensor as_tensor asarray scalar_tensor new_tensor", FACTORIES, GIVEN),
    *free("create", "fill zero uniform random exponential log_normal cauchy geometric normal_functional", UNREAD),
    *free(
        "create",
        """
        from_numpy frombuffer normal fill_diagonal_ bernoulli binomial multinomial poisson _standard_gamma complex
        hann_window hamming_window blackman_window bartlett_window kaiser_window
        """,
    ),
]
QUERY = [
    *asked("size dim ndimension numel nelement stride is_contiguous is_floating_point is_complex __len__", METADATA),
    *asked("untyped_storage storage", SHARING),
    *asked("""
        item tolist storage_offset element_size is_nonzero is_set_to is_same_size is_tensor is_storage is_inference
        is_signed is_conj is_neg get_device has_names requires_grad_ retain_grad register_hook storage_type
        record_stream register_post_accumulate_grad_hook __bool__ __float__ __int__ __index__ __complex__ __repr__
        __format__ __hash__ __array_wrap__ __dir__ __reduce_ex__ __dlpack_device__ result_type can_cast promote_types
        is_grad_enabled _is_view is_pinned is_shared _version is_distributed is_coalesced dense_dim sparse_dim _nnz
        _dimI _dimV q_scale q_zero_point qscheme dim_order _has_compatible_shallow_copy_type broadcast_shapes sym_size
        sym_numel sym_stride sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum
        """),
]

for _name in VIEW:
    zero("move", *named(f"{_name}_copy"), op=f"{_name}_copy")
for _name in ("select", "slice", "diagonal", "masked_scatter", "_nested_select", "_nested_sum"):
    zero("move", *named(f"{_name}_backward"), op=f"{_name.lstrip('_')}_backward")
for _name in ("standard_gamma", "dirichlet"):  # special functions of the sample and the distribution's parameters
    formula(*named(f"_{_name}_grad"), op=f"{_name}_backward")(pointwise)
zero("view", torch.Tensor.__getitem__, operator.getitem, op="getitem", traits=[LOOKUPS])
zero("move", torch.Tensor.__setitem__, operator.setitem, op="setitem", traits=[OVERWRITES])
for _reason, _op, _targets in (
    ("view", "identity", [nn.Identity]),
    ("view", "flatten", [nn.Flatten, nn.Unflatten]),
    ("view", "unfold", [torch.Tensor.unfold]),
    ("move", "unfold", [nn.Unfold]),
    ("move", "pixel_shuffle", [nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle]),
    ("move", "pad", [getattr(nn, f"{kind}Pad{n}d") for kind in PADS for n in (1, 2, 3)]),
    ("query", "get_gradients", ["aten::get_gradients"]),
    (CHECK, "_assert", [assertion]),
    (CHECK, "_assert_async", named("_assert_async", "_assert_scalar", "_assert_tensor_metadata")),
):
    zero(_reason, *_targets, op=_op)
zero(
    ESCAPE,
    *(torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__, torch.Tensor.data_ptr),
    traits=[SHARING],
)
if hasattr(torch.Tensor, "const_data_ptr"):
    zero(ESCAPE, "const_data_ptr")
zero(
    "query",
    "aten::_local_scalar_dense",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_enter",
    "profiler::_record_function_exit",
)


@formula(nn.Fold, *named("fold", "col2im"))
def fold(input: Spec, *, out: Spec) -> Cost:
    """x[n, c*k, l] -> out[n, c, h, w]: 1 add per element of x, but the first element for an output needs no add."""
    return Cost(adds=max(math.prod(input) - out.numel(), 0))


@stores("aten::col2im")
def folded_storage(input: Spec, output_size: Sequence[int], kernel_size: Sequence[int], *rest: Any) -> int:
    """x[n, c*k, l] -> bytes: the kernels allocate a result as large as x, then shrink its shape, but not its storage.

    See col2im_cpu in https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/Col2Im.cpp; cuda/Col2Im.cu does the same.
    """
    return max(input.nbytes, input.nbytes * math.prod(output_size) // (input[-1] * math.prod(kernel_size)))


@formula(*named("unfold_backward"), op="unfold_backward")
@formula(
    *named("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
    *named("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"),
    op="pad_backward",
)
def added_back(grad_output: Spec, *, out: Spec) -> Cost:
    """grad[n] -> out[m]: n - m adds: each element of grad is added to its source, but the first element for a source needs no add."""
    return Cost(adds=max(grad_output.numel() - out.numel(), 0))


@shape(nn.Identity)
def identity_shape(input: Spec) -> Spec:
    """x[*] -> x[*]."""
    return input


@shape(torch.cat, torch.concat, torch.concatenate, layout=FORMAT)
def cat_shape(tensors: tuple[Spec, ...], dim: int = 0) -> Spec | None:
    """x[*, a, *], y[*, b, *] ... -> out[*, a + b ..., *]."""
    first = tensors[0] if tensors else None
    if first is None or not first.ndim or not -first.ndim <= dim < first.ndim:
        return None
    dim %= first.ndim
    for spec in tensors:
        alike = spec.ndim == first.ndim and spec.dtype is first.dtype and spec.numel()
        if not alike or spec[:dim] != first[:dim] or spec[dim + 1 :] != first[dim + 1 :]:
            return None
    return Spec((*first[:dim], sum(spec[dim] for spec in tensors), *first[dim + 1 :]), first.dtype)


@shape(torch.stack)
def stack_shape(tensors: tuple[Spec, ...], dim: int = 0) -> Spec | None:
    """x[*], y[*] ... -> out[*, 2 ..., *]."""
    first = tensors[0] if tensors else None
    if first is None or not -first.ndim - 1 <= dim <= first.ndim or not first.numel():
        return None
    if any(tuple(spec) != tuple(first) or spec.dtype is not first.dtype for spec in tensors):
        return None
    dim %= first.ndim + 1
    return Spec((*first[:dim], len(tensors), *first[dim:]), first.dtype)


@shape(torch.roll, torch.Tensor.roll, layout=ANY)
def roll_shape(input: Spec, shifts: Any, dims: Any = None) -> Spec | None:
    """x[*] -> out[*]."""
    moved, along = ((v,) if isinstance(v, int) else tuple(v or ()) for v in (shifts, dims))
    known = along and len(moved) == len(along) and all(-input.ndim <= dim < input.ndim for dim in along)
    return Spec(input, input.dtype) if known and input.numel() else None

"""Ops that compute nothing, declared with the reason: a view, a move of data, a new tensor, a question about one.

Backward, what was moved goes back to where it came from, and adds up where several come from one place.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..records import Cost, Spec
from ..torch_internals import assertion
from ._registry import ESCAPE, formula, zero
from ._rules import ANY, FORMAT, shape
from ._spellings import named
from .elementwise import pointwise

VIEW = """
    view view_as reshape reshape_as transpose permute t swapaxes swapdims movedim moveaxis expand expand_as broadcast_to
    broadcast_tensors squeeze unsqueeze flatten unflatten ravel unbind split split_with_sizes chunk tensor_split hsplit
    vsplit dsplit narrow select diagonal as_strided detach alias adjoint mT matrix_H numpy_T atleast_1d atleast_2d
    atleast_3d view_as_real view_as_complex real imag conj resolve_conj resolve_neg positive unsafe_chunk unsafe_split
    unsafe_split_with_sizes slice diag_embed diag diagflat linalg_diagonal _reshape_alias _unsafe_view lift lift_fresh
    refine_names rename align_to _nested_view_from_jagged _nested_view_from_buffer values indices _values _indices crow_indices col_indices ccol_indices row_indices
""".split()
MOVE = """
    cat concat concatenate stack hstack vstack dstack column_stack row_stack contiguous clone copy to float double half
    bfloat16 int long short char byte bool cfloat cdouble chalf type type_as cuda cpu xpu mtia repeat repeat_interleave
    tile gather index_select take take_along_dim index _unsafe_index index_copy index_fill select_scatter slice_scatter
    diagonal_scatter as_strided_scatter masked_scatter masked_select roll flip fliplr flipud rot90 pad constant_pad_nd
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d tril triu
    im2col unfold pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle meshgrid block_diag nonzero
    nonzero_numpy argwhere one_hot cartesian_prod combinations _to_copy resize resize_as set_ pin_memory _pin_memory
    share_memory_ nonzero_static to_dense _to_dense to_sparse to_mkldnn coalesce pad_sequence _pack_padded_sequence
    _pad_packed_sequence _chunk_cat __deepcopy__
""".split()
CREATE = """
    zeros ones empty full arange range linspace logspace eye rand randn randint randperm tensor as_tensor asarray
    zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full
    new_tensor new_empty_strided empty_strided empty_permuted from_numpy frombuffer normal normal_functional uniform fill
    fill_diagonal_ zero bernoulli binomial random exponential log_normal cauchy geometric multinomial poisson
    _standard_gamma scalar_tensor complex tril_indices triu_indices hann_window hamming_window blackman_window
    bartlett_window kaiser_window
""".split()
QUERY = """
    size dim ndimension numel nelement item tolist stride storage_offset is_contiguous
    element_size is_floating_point is_complex is_nonzero is_set_to is_same_size is_tensor is_storage is_inference
    is_signed is_conj is_neg get_device has_names requires_grad_ retain_grad register_hook storage_type record_stream
    register_post_accumulate_grad_hook untyped_storage storage __len__ __bool__ __float__ __int__ __index__ __complex__
    __repr__ __format__ __hash__ __array_wrap__ __dir__ __reduce_ex__
    __dlpack_device__ result_type can_cast promote_types is_grad_enabled _is_view is_pinned is_shared
    _version is_distributed is_coalesced dense_dim sparse_dim _nnz _dimI _dimV q_scale q_zero_point qscheme dim_order
    _has_compatible_shallow_copy_type broadcast_shapes sym_size sym_numel sym_stride sym_float sym_int
    sym_ite sym_max sym_min sym_not sym_sum
""".split()

for _reason, _names in (("view", VIEW), ("move", MOVE), ("create", CREATE)):
    for _name in _names:
        zero(_reason, *named(_name), op=_name.rstrip("_"))
for _name in VIEW:
    zero("move", *named(f"{_name}_copy"), op=f"{_name}_copy")
for _name in ("select", "slice", "diagonal", "masked_scatter", "_nested_select", "_nested_sum"):
    zero("move", *named(f"{_name}_backward"), op=f"{_name.lstrip('_')}_backward")
for _name in ("standard_gamma", "dirichlet"):  # special functions of the sample and of what it is drawn by
    formula(*named(f"_{_name}_grad"), op=f"{_name}_backward")(pointwise)
zero("view", torch.Tensor.__getitem__, operator.getitem, op="getitem")
zero("view", torch.Tensor.unfold, op="unfold")
zero("move", torch.Tensor.__setitem__, operator.setitem, op="setitem")
zero("move", nn.Unfold, op="unfold")
zero("move", nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, op="pixel_shuffle")
zero("view", nn.Identity, op="identity")
zero("view", nn.Flatten, nn.Unflatten, op="flatten")
zero(
    "move",
    *(
        getattr(nn, f"{kind}Pad{n}d")
        for kind in ("Constant", "Reflection", "Replication", "Zero", "Circular")
        for n in (1, 2, 3)
    ),
    op="pad",
)
for _name in QUERY:
    for _namespace in (torch.Tensor,) if _name.startswith("__") else (torch, torch.Tensor):
        _target = getattr(_namespace, _name, None)
        if callable(_target) and not isinstance(_target, type):
            zero("query", _target, op=_name)
for _name in ("numpy", "__array__", "__dlpack__", "data_ptr", "const_data_ptr"):
    if hasattr(torch.Tensor, _name):
        zero(ESCAPE, getattr(torch.Tensor, _name), op=_name)
zero(
    "query",
    "aten::_local_scalar_dense",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_enter",
    "profiler::_record_function_exit",
)
zero("query", "aten::get_gradients", op="get_gradients")
zero("a check: it computes nothing itself", assertion, op="_assert")
zero(
    "a check: it computes nothing itself",
    *named("_assert_async", "_assert_scalar", "_assert_tensor_metadata"),
    op="_assert_async",
)


@formula(nn.Fold, *named("fold", "col2im"))
def fold(input: Spec, *, out: Spec) -> Cost:
    """x[n, c*k, l] -> out[n, c, h, w]: 1 add per element of x, the first on each output is none."""
    return Cost(adds=max(math.prod(input) - out.numel(), 0))


@formula(*named("unfold_backward"), op="unfold_backward")
@formula(
    *named("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
    *named("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"),
    op="pad_backward",
)
def added_back(grad_output: Spec, *, out: Spec) -> Cost:
    """grad[n] -> out[m]: n - m adds: each element of grad to the one it was copied from, the first on each is none."""
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


@shape(F.pad, layout=FORMAT)
def pad_shape(input: Spec, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Spec | None:
    """x[*, s] -> out[*, left + s + right], the last dimension first."""
    if mode != "constant" or len(pad) % 2 or len(pad) > 2 * input.ndim or max(pad, default=0) <= 0:
        return None
    sizes = list(input)
    for at in range(len(pad) // 2):
        sizes[-1 - at] += pad[2 * at] + pad[2 * at + 1]
    return Spec(tuple(sizes), input.dtype) if min(*input, *sizes) > 0 else None

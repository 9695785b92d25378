"""Rules for overloads without their own entry, based on the overload's schema and tags.

Some operators that compute nothing exist only in aten, and their schema does not show it: they are declared here by name.
An operator that computes, but has neither an entry nor a rule, stays unknown. tests/ops/test_aten.py lists the unknown operators of aten.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ..records import COMMUNICATION, Cost, FormulaFunction, Operation, Spec
from ..torch_internals import OpOverload, OpOverloadPacket
from ._apply import apply
from ._registry import BASE, Formula, zero
from ._traits import UNINITIALIZED
from .elementwise import pointwise
from .free import CHECK, QUERY

VIEW = """
    _autocast_to_full_precision _autocast_to_reduced_precision _coalesced _mkldnn_reshape _mkldnn_transpose
    _reshape_from_tensor align_as align_tensors data unflatten_dense_tensors
""".split()
MOVE = """
    _add_batch_dim _remove_batch_dim _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long
    _cast_Short _coalesce _copy_from _copy_from_and_resize _jagged_to_padded_dense_forward
    _padded_dense_to_jagged_forward _lazy_clone _pad_circular _pad_enum _resize_output _reshape_copy _rowwise_prune
    shallow_copy_data _spdiags _stack _to_cpu _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc
    _to_sparse_csr to_sparse_bsc to_sparse_bsr to_sparse_csc to_sparse_csr copy_sparse_to_sparse
    flatten_dense_tensors lu_unpack mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight nested_to_padded_tensor
    to_padded_tensor _nested_from_padded _nested_from_padded_tensor _nested_from_padded_and_nested_example
    _nested_tensor_from_mask _nested_tensor_from_tensor_list resize_as_sparse set set_data sparse_mask sparse_resize _sparse_sum_backward
    sparse_resize_and_clear _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo
    _cudnn_rnn_flatten_weight _propagate_xla_data _to_sparse_semi_structured
    _sparse_semi_structured_apply _sparse_semi_structured_apply_dense _cslt_compress
""".split()
CREATE = """
    _cudnn_init_dropout_state _dim_arange _efficientzerotensor _empty_affine_quantized
    _empty_per_channel_affine_quantized _fill_mem_eff_dropout_mask _make_dep_token _new_zeros_with_same_feature_meta
    _nested_get_jagged_dummy _philox_key_fold_in _philox_key_split _philox_normal _philox_randint _philox_uniform
    _sample_dirichlet _shape_as_tensor _sobol_engine_draw _sobol_engine_ff _sobol_engine_initialize_state
    _sobol_engine_scramble from_file _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims
    _sparse_coo_tensor_with_dims_and_tensors _sparse_compressed_tensor_unsafe _sparse_compressed_tensor_with_dims
    _sparse_bsc_tensor_unsafe _sparse_bsr_tensor_unsafe _sparse_csc_tensor_unsafe _sparse_csr_tensor_unsafe
    sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor
""".split()
ASKED = """
    _cufft_clear_plan_cache _cufft_get_plan_cache_max_size _cufft_get_plan_cache_size _cufft_set_plan_cache_max_size
    _debug_has_internal_overlap _fused_sdp_choice _has_same_storage_numel _is_zerotensor
    _local_scalar_dense _nested_compute_contiguous_strides_offsets _nested_get_lengths _nested_get_max_seqlen
    _nested_get_min_seqlen _nested_get_offsets _nested_get_ragged_idx _nested_tensor_from_mask_left_aligned
    _nested_tensor_size _nested_tensor_storage_offsets _nested_tensor_strides _nnpack_available _use_cudnn_ctc_loss
    _use_cudnn_rnn_flatten_weight _use_miopen_ctc_loss cudnn_is_acceptable is_leaf is_vulkan_available output_nr
    q_per_channel_axis q_per_channel_scales q_per_channel_zero_points retains_grad sym_is_contiguous sym_storage_offset
""".split()
CHECKED = """
    _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _linalg_check_errors _print _validate_compressed_sparse_indices
    _validate_sparse_bsc_tensor_args _validate_sparse_bsr_tensor_args _validate_sparse_compressed_tensor_args
    _validate_sparse_coo_tensor_args _validate_sparse_csc_tensor_args _validate_sparse_csr_tensor_args
    sym_constrain_range sym_constrain_range_for_size
""".split()
BETWEEN_PROCESSES = {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
"""The namespaces of torch.distributed. Arithmetic inside its operators, e.g. the sums of an all-reduce, is not counted."""
WAITING = ("wait", "barrier", "check", "wrap")
SCALARS = ("max", "norm", "powsum")
"""Ops that reduce each tensor of a list to one number."""

for _reason, _space, _names in (
    ("move", "prims", ("convert_element_type", "device_put", "copy_to", "copy_strided", "rev")),
    ("create", "prims", ("iota", "maximum_value", "minimum_value")),
    ("query", "prim", ("device", "layout")),
    ("view", "aten", VIEW),
    ("move", "aten", MOVE),
    ("create", "aten", CREATE),
    ("query", "aten", [*ASKED, *(name for name in QUERY if not name.startswith("__"))]),
    (CHECK, "aten", CHECKED),
):
    zero(_reason, *(f"{_space}::{_name}" for _name in _names))
zero("create", "aten::empty_quantized", op="empty_quantized", traits=[UNINITIALIZED])


def aten_rule(overload: OpOverload) -> Formula | None:
    """Return the rule for an overload without its own entry, or None if no rule applies.

    The rules are tried in this order. An operator of ``prims`` (used by decompositions) counts like aten's operator with the same
    name. A view, copy, random factory or communication, recognized by schema, tags or namespace, costs nothing. An operator with
    ``Tag.pointwise`` costs 1 per output element. An in-place, ``out=`` or ``_foreach_`` form counts like the functional form.
    """
    space, _, name = overload._schema.name.partition("::")
    if space == "prims" and (entry := _of_aten(name)) is not None:
        return entry
    if reason := _reason_why_free(overload):
        return Formula(name.rstrip("_") if reason == COMMUNICATION else name, None, reason)
    if _is_pointwise(overload):
        return Formula(name, pointwise)
    functional = _functional(overload)
    if functional is None:
        return None
    entry = BASE.find(functional)
    if entry is None or entry.function is None or not name.startswith("_foreach_"):
        return entry
    return Formula(entry.op, _per_tensor(functional))


def _of_aten(name: str) -> Formula | None:
    """Return the entry of the aten operator that matches this operator of prims."""
    known = (BASE.find(getattr(torch.ops.aten, f"{prefix}{name}", None)) for prefix in ("", "special_", "linalg_", "_"))
    return next(filter(None, known), None)


@lru_cache(maxsize=4096)
def _reason_why_free(overload: OpOverload) -> str:
    schema, tags = overload._schema, overload.tags
    space, _, name = schema.name.partition("::")
    if space in BETWEEN_PROCESSES:
        return "query" if any(word in name for word in WAITING) else COMMUNICATION
    if space == "fsdp":  # copies into and out of communication buffers
        return "move"
    returned = schema.returns[0].alias_info if schema.returns else None
    if (returned is not None and not returned.is_write) or torch.Tag.inplace_view in tags:
        return "view"
    stem = schema.name.rstrip("_")
    if torch.Tag.view_copy in tags or (_is_of_torch(schema.name) and stem.endswith(("_copy", "_scatter"))):
        return "move" if "foreach" not in stem else ""
    takes_tensor = any("Tensor" in str(argument.type) for argument in schema.arguments)
    return "create" if torch.Tag.nondeterministic_seeded in tags and not takes_tensor else ""


@lru_cache(maxsize=4096)
def _is_pointwise(overload: OpOverload) -> bool:
    """Return True for torch's forward operators with the pointwise tag. Some operators with this tag are not pointwise: backward operators
    and fused operators of other libraries."""
    name = overload._schema.name
    return torch.Tag.pointwise in overload.tags and _is_of_torch(name) and "backward" not in name


def _is_of_torch(name: str) -> bool:
    return name.startswith(("aten::", "prims::"))


@lru_cache(maxsize=4096)
def _functional(overload: OpOverload) -> OpOverload | OpOverloadPacket | None:
    """Return the functional operator of an in-place, ``out=`` or list form, or None for any other operator."""
    space, _, name = overload._schema.name.partition("::")
    if name.startswith("_foreach_"):
        stem = name.removeprefix("_foreach_").rstrip("_")
        return getattr(torch.ops.aten, "linalg__powsum" if stem == "powsum" else stem, None)
    stem, form = name, overload._overloadname
    if name.endswith("_") and not name.endswith("__"):
        stem = name[:-1]
    elif form == "out" or form.endswith("_out"):
        form = form.removesuffix("out").removesuffix("_") or "default"
    else:
        return None
    return getattr(getattr(getattr(torch.ops, space), stem, None), form, None)


@lru_cache(maxsize=4096)
def _per_tensor(functional: OpOverload | OpOverloadPacket) -> FormulaFunction:
    """Return the formula of a list form: one call of ``functional`` for each tensor."""
    one_number = functional._qualified_op_name.rpartition("::")[2].endswith(SCALARS)  # type: ignore[union-attr]

    def per_tensor(*args: Any, out: Any, **kwargs: Any) -> Cost:
        """x[t][*] -> out[t][*]: the cost of the op, summed over all tensors in the list."""
        entry = BASE.find(functional)
        tensors = next(value for value in (*args, *kwargs.values()) if _is_list(value))
        total = Cost()
        for i, tensor in enumerate(tensors):
            # An operator on lists of tensors returns no tensors in its in-place and out= forms.
            result = out[i] if _is_list(out) and out else Spec((), tensor.dtype) if one_number else tensor
            given = tuple(_of(value, i) for value in args), {key: _of(value, i) for key, value in kwargs.items()}
            if entry is not None:
                total = total.plus(apply(entry, Operation(entry.op, functional, *given, result)))
        return total

    return per_tensor


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple) and not isinstance(value, Spec)


def _of(value: Any, i: int) -> Any:
    """Return the part of an argument that belongs to the i-th tensor."""
    return value[i] if _is_list(value) else value

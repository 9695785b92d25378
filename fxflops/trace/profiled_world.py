"""The world of ``profile``: calls run on real tensors, and a call like an earlier one is recorded as the same operation.

A call's record depends only on the function, its plain arguments and its tensors' metadata. The result is compared every time.
Calls that leave only their result in memory run with the dispatch mode off. Calls in a backward pass, in other threads, under
autocast and under transforms may depend on more: they are always observed like new calls.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from ..ops import ESCAPE, QUERY, VIEW, Formula
from ..ops._traits import UNINITIALIZED
from ..records import Operation
from ..records.tensors import ORDINARY
from ..torch_internals import (
    COMPILER,
    current_graph_task_id,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    saved_tensors_hooks,
)
from .attention_pairs import may_have_mask
from .compiler import is_importing_compiler
from .forwards import is_torch_module
from .functions import SAME_ON_META
from .memo import NEW, VIEWS, Memo, MemoryEffect, NewCall, Recipe, is_like
from .model_tensors import ModelTensors
from .worlds import RunTimed, World

PROPERTIES = (
    "device",
    "is_cuda",
    "is_cpu",
    "is_meta",
    "is_leaf",
    "grad_fn",
    "is_sparse",
    "is_quantized",
    "itemsize",
    "nbytes",
    "grad",
    "_version",
)


class ProfiledTensors(ModelTensors):
    """The real tensors of profiled models. Their metadata is the key of a call."""

    def form(self, tensor: torch.Tensor) -> Any:
        dtype = tensor.dtype
        if (
            tensor.layout is not torch.strided
            or tensor.is_nested
            or tensor.is_neg()
            or (dtype.is_complex and tensor.is_conj())
        ):
            return None  # sparse or nested, or negated or conjugated lazily
        return tensor.shape, dtype, tensor.stride(), tensor.requires_grad, tensor.device


class ProfiledWorld(World):
    """The world of real tensors on ``device``, the device of the profiled models.

    Tensors from before the run are tracked only if they are on this device. ``device`` is None for models whose weights are all on
    meta, e.g. because each call loads them.
    """

    # These functions compute nothing, dispatch no operator, and are cheaper to run than to time.
    unrecorded = frozenset(SAME_ON_META | {getattr(torch.Tensor, name).__get__ for name in PROPERTIES})
    is_block = True

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__(ProfiledTensors())
        self.memo: Memo = {}
        self.device = device
        self._compiler: Any = None

    def memo_of_functions_and_leaves(self, is_our_mode_popped: bool) -> Memo | None:
        """Return the memo if no modes except ours, no backward pass and no saved-tensor hooks are active, else None."""
        depends_on_more = (
            len_torch_function_stack() != (0 if is_our_mode_popped else 1)
            or len_torch_dispatch_stack() != 1
            or current_graph_task_id() != -1
            or (torch.is_grad_enabled() and saved_tensors_hooks(False) is not None)
            or (sys.modules.get(COMPILER) is not self._compiler and self._is_importing())
        )
        return None if depends_on_more else self.memo

    def _is_importing(self) -> bool:
        """Return whether torch's compiler is being imported; stop checking once it is loaded."""
        if is_importing_compiler():
            return True
        self._compiler = sys.modules[COMPILER]
        return False

    def torch_settings(self, func: Any) -> tuple[Any, ...]:
        read_settings = self.read_torch_settings.get(func)  # not super(): this runs for each call
        gradients = torch.is_grad_enabled()
        return (gradients,) if read_settings is None else (gradients, *read_settings())

    def keep_recipe(self, call: NewCall, operation: Operation, out: Any, memory_effect: MemoryEffect) -> None:
        formula, arguments = call.formula, (call.args, call.kwargs)
        if not _is_learnable(formula, operation):
            return
        # Code from outside torch may check which modes are on, or turn modes on.
        is_from_torch = formula.is_ours and (
            not isinstance(operation.target, type) or is_torch_module(operation.target)
        )
        # If the call leaves only its result in memory, the dispatch mode may be off when the call is repeated.
        leaves_only_its_result = is_from_torch and memory_effect.bytes_left == self._storages.bytes_since(
            memory_effect.storage_count, (arguments, out)
        )
        returns = (
            NEW if memory_effect.bytes_left > 0 or formula.reason != VIEW else VIEWS
        )  # a reshape that copies has memory of its own
        self.memo[call.key] = Recipe(operation, returns, memory_effect.transients if leaves_only_its_result else None)

    def repeat_call(
        self, recipe: Recipe, func: Any, args: Any, kwargs: Any, run_timed: RunTimed, module: nn.Module | None = None
    ) -> tuple[Any, Operation | None, float | None]:
        out, seconds = run_timed(recipe, func, args, kwargs)
        if not is_like(out, recipe.operation.out):
            return out, None, seconds
        self.track_repeated(recipe, out)
        return out, recipe.operation, seconds

    def track_repeated(self, recipe: Recipe, out: Any) -> None:
        """Track the tensors made by a call that has a recipe."""
        storages = self._storages
        storages.begin_next_call()
        if recipe.transients:
            storages.add_transients(recipe.transients)
        if recipe.returns is NEW:
            if type(out) in ORDINARY:
                storages.add(out, recipe.operation.out)
            else:
                storages.add_all(out)


def _is_learnable(formula: Formula, operation: Operation) -> bool:
    """Return whether a call's record depends only on metadata, and the call writes all memory that it allocates."""
    return not (may_have_mask(operation) or formula.op in UNINITIALIZED or formula.reason in (QUERY, ESCAPE))

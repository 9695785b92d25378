"""The meta world: calls get meta tensors in place of the model's, and no kernel computes.

A call like an earlier one does not run: its result is made from the memo. A call with a shape rule does not run either: the rule
gives its result. So no meta kernel and no leaf module's ``forward`` runs for these calls, except for those that return views. Any
other call runs, on meta, the kernels that the model's device would choose, and its intermediate tensors are tracked. What runs is the
first of these that applies:

=====================================================  =================================================  ==============================
what runs                                              for which calls                                    where
=====================================================  =================================================  ==============================
the function with all modes off                        functions that compute more under a mode           ``UNWATCHED``, ``CallRunner``
a library function's rule for its result               flash-attn and others, without values              ``LibraryCalls.run``
a composite operator's decomposition                   operators below autograd                           ``composed.py``
one operator for a single kernel of the device         mish; on GPUs RMS norm                             ``single_kernels.py``
the operators that the device dispatches               attention, RNNs; on GPUs dropout and softmax       ``device_kernels.py``
a replacement of the meta kernel                       operators that meta lacks or refuses               ``RESULTS``, ``meta_results.py``
nothing                                                elementwise writes                                 ``written_on_meta``
torch's meta kernel, whose results are then corrected  all other operators; storage sizes by ``STORED``,  ``_resize_stored``, ``_lay_out``
                                                       memory formats by ``ops/formats.py``
=====================================================  =================================================  ==============================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch import empty_strided, get_default_dtype, is_grad_enabled, nn

from ..errors import NeedsRealTensors
from ..meters.live_storages import LiveStorages
from ..model.pytree import tensors_given
from ..ops import ESCAPE, QUERY, VIEW, Formula, FormulaRegistry
from ..ops._rules import CONVOLVED, KEPT, STORED, UNWATCHED
from ..ops._traits import COPIES, UNINITIALIZED
from ..ops.formats import FORMATS, strides_on
from ..ops.shapes import contiguous, rule_for, shape_of
from ..records import EMPTY_MAPPING, Operation, typed
from ..records.calls import VALUE_READ
from ..records.facts import BEYOND_METADATA, EMBEDDING
from ..records.tensors import ORDINARY, spec_of
from ..torch_internals import (
    DisableTorchFunction,
    OpOverload,
    assertion,
    batch_norm_backward,
    current_graph_task_id,
    is_any_autocast_enabled,
)
from .absent_gpu import absent_gpu_answered
from .autocast import Autocast, open_regions
from .call_log import CallLog
from .composed import is_one_operator
from .device_answers import DeviceAnswers
from .device_kernels import SDPA, SPELLED_BY_OPERATOR, DeviceKernels, enabled_kernels, spellings_of
from .dtypes import check_dtypes
from .forms import META, OWN, REAL, Form
from .functions import SAME_ON_META, writes
from .lookups import with_row
from .memo import (
    FIRST_ARGUMENT,
    NEW,
    NOTHING,
    VIEWS,
    Memo,
    MemoryEffect,
    Memos,
    NewCall,
    Recipe,
    call_key,
    forms_in,
    without_strides,
)
from .meta_mirror import MetaMirror
from .meta_results import RESULTS, written_on_meta
from .model_tensors import Arguments
from .modes import transformed
from .spelling import is_meta_kernel
from .worlds import OBSERVED_EACH_TIME, RunTimed, World

META_DEVICE = torch.device("meta")
OBSERVED_IN_FULL = frozenset({*UNINITIALIZED, "type"})
"""Operations that ``run_by_shortcut`` must not run, since the observer does more for them than compute the result."""
NAMES_META = re.compile(r"meta\b", re.IGNORECASE)
"""Found in the errors that torch raises for tensors on meta: "on the meta device", "the 'SparseMeta' backend". Not found in "metadata"."""
READ_TORCH_SETTINGS = {**World.read_torch_settings, **dict.fromkeys(spellings_of(SDPA), enabled_kernels)}
"""See :class:`World`. Attention's kernel depends on the settings that ``sdpa_kernel()`` changes."""
WRITTEN_IN_C = frozenset({BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType})
SET_ITEM = torch.Tensor.__setitem__
PLAIN_INDICES = frozenset({int, slice, type(None), type(...)})
"""Types of indices without tensors: an assignment to the elements at such indices makes no tensor."""
PACK_SEQUENCE = "_pack_padded_sequence"
RETURN_TYPES = "torch.return_types"
"""The module of the named tuples that ``max``, ``sort`` and ``topk`` return."""


def is_sequence(kind: type) -> bool:
    """Return whether this class is constructed from a list of tensors."""
    return kind is tuple or kind is list or kind.__module__ == RETURN_TYPES


def writes_simply(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a call writes to its first argument by a single operator, or assigns to elements at indices without tensors."""
    if func is not SET_ITEM:
        return not kwargs and is_one_operator(func)
    indices = args[1] if type(args[1]) is tuple else (args[1],)
    return PLAIN_INDICES.issuperset(map(type, indices))


class MetaWorld(World):
    """The world of ``mirror``'s meta tensors, which report ``device`` as their device. ``memos`` is None for a world without a memo.

    With ``observe_dispatch``, functions are not skipped, since the operators inside are observed.
    """

    unrecorded = frozenset(SAME_ON_META)
    read_torch_settings = READ_TORCH_SETTINGS
    is_meta = True

    def __init__(
        self,
        mirror: MetaMirror,
        device: torch.device,
        registry: FormulaRegistry,
        memos: Memos | None,
        *,
        observe_dispatch: bool,
    ) -> None:
        # World.tensors and self.mirror are the same object; self.mirror has the type that only this world has.
        super().__init__(mirror)
        self._memos = memos
        self.memo = None if memos is None else memos.memo(observe_dispatch)
        self.setting_readers = self.setting_readers if memos is None else memos.setting_readers
        self.device = device
        self.mirror = mirror
        self._registry = registry
        self.observe_dispatch = observe_dispatch
        self._device_answers = DeviceAnswers(device)
        self.answers = self._device_answers.answers
        mirror.keeps_lengths = device.type == "cuda"
        self._kernels = DeviceKernels(device)
        self._dtype = get_default_dtype()

    def begin(self, log: CallLog, storages: LiveStorages) -> None:
        super().begin(log, storages)

        def track(tensor: torch.Tensor) -> torch.Tensor:  # not a method: a bound method would refer to self
            storages.begin_next_call()
            storages.add_all(tensor)
            return tensor

        self._track: Callable[[Any], Any] = track
        assert self.device is not None
        self._autocast = Autocast(self.device, self.mirror.is_weight, track)
        self.mirror.on_mirrored = storages.add_stand_in
        if self.observe_dispatch:
            # The observer sees all tensors that the forward makes. So an unknown tensor existed before the run, in a closure or a slot.
            # In a backward pass an unknown tensor may be new: autograd makes some tensors itself.
            def enter_stranger(tensor: torch.Tensor) -> None:
                if current_graph_task_id() == -1:
                    storages.add_given([tensor], "buffers")

            self.mirror.on_stranger = enter_stranger

    def end(self) -> None:
        self.mirror.on_mirrored = lambda *_: None
        self.mirror.on_stranger = lambda _: None

    def begin_thread(self) -> Iterable[AbstractContextManager[Any]]:
        return [absent_gpu_answered()] if self._kernels.is_absent() else []

    # Arguments and results

    def spec(self, value: Any) -> Any:
        """Return the value with a spec in place of each tensor; tensors of the same form share a spec."""
        kind, spec = type(value), self.mirror.spec
        if kind in ORDINARY:
            return spec(value)
        if kind is tuple or kind is list:
            return tuple([spec(item) if type(item) in ORDINARY else self.spec(item) for item in value])
        return EMPTY_MAPPING if kind is dict and not value else spec_of(value)  # `not tensor` would read its value

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._device_answers.answer(func, args, kwargs)

    def redirect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        return self._device_answers.redirect(func, args, kwargs)

    def cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        return self._autocast.cast(func, args, kwargs)

    def returned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if writes(func, kwargs):  # x.resize_(3), x.data = y
            self.mirror.forget((args, kwargs))
        self.mirror.register(out)
        if self.mirror.keeps_lengths and getattr(func, "__name__", "") == PACK_SEQUENCE:
            self.answers = {}  # from now on answers differ between tensors
            self._device_answers.batch_sizes.append(out[1])

    def spec_of_result(self, formula: Formula | None, arguments: Any, out: Any) -> Any:
        is_embedding = formula is not None and formula.op == EMBEDDING
        return with_row(self.spec(out), arguments) if is_embedding else self.spec(out)

    def raised(self, error: Exception) -> str:
        # A model that catches an error of the meta device takes a path that it would not take on real tensors. Torch's errors name the device.
        if isinstance(error, NeedsRealTensors) or NAMES_META.search(str(error)):
            self.mirror.note_error(str(error))
        # A model with real tensors runs again on these. A model with meta tensors of its own has no others.
        is_noted = bool(self.mirror.meta_error) and self.mirror.meta_error == str(error)
        return VALUE_READ if is_noted and self.mirror.has_meta_tensors else ""

    def called_unseen(self) -> None:
        # If a meta kernel that torch wrote in Python makes this call, the kernel's operator was dispatched unobserved.
        if not self.observe_dispatch:
            self.mirror.missed_calls |= is_meta_kernel()

    # How a call runs

    def dispatch_as_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._kernels.run(func, args, kwargs)

    def kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        dtypes = [tensor.dtype for tensor in tensors_given((args, kwargs)) if tensor.is_meta]
        if len({*dtypes}) > 1 and not self._may_cast():
            check_dtypes(func, dtypes, self._registry, self._kernels.device.type)
        out = self._kernels.run(func, args, kwargs)
        if out is not NotImplemented:
            return out
        if func in RESULTS:
            return RESULTS[func](*args, **kwargs)
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if (out := written_on_meta(func, args)) is not NotImplemented:
            return out
        out = run(func, args, kwargs)
        if func is batch_norm_backward and not args[-1][0]:  # no device's kernel makes this gradient, but meta's does
            return None, *out[1:]
        self._resize_stored(func, args, out)
        self._lay_out(func, args, out)
        return out

    def _resize_stored(self, func: OpOverload, args: tuple[Any, ...], out: Any) -> None:
        """Resize the last results of an operator to the size that the device's kernel allocates, if the meta kernel's differs."""
        rule, only_if_saved, device = STORED.get(func.name(), (None, False, ""))
        if rule is None or (only_if_saved and not is_grad_enabled()) or device not in ("", self._kernels.device.type):
            return
        sizes, results = rule(*spec_of(args)), tensors_given(out)
        for result, nbytes in zip(results[-len(sizes) :], sizes, strict=True):
            result.untyped_storage().resize_(nbytes)

    def _lay_out(self, func: OpOverload, args: tuple[Any, ...], out: Any) -> None:
        """Give the first result of an operator the memory format that the device's kernel gives it, if the meta kernel's differs."""
        result = out[0] if type(out) is tuple else out
        strides = strides_on(self._kernels.device.type, func, args, result)
        if strides is not None:
            # Set the data instead of returning a new tensor: if a model calls the operator itself, autograd has recorded the result.
            result.data = empty_strided(result.shape, strides, dtype=result.dtype, device=META_DEVICE)

    def _may_cast(self) -> bool:
        """Return whether autocast is on. For a model on meta, any open region counts: torch turns it off if the device is absent."""
        return is_any_autocast_enabled() or (self.mirror.has_meta_tensors and open_regions() > 0)

    def needs_operators(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        tensors, rule = tensors_given((args, kwargs)), rule_for(func)
        if rule is None:
            return bool(tensors)
        operation = Operation("", func, spec_of(args), spec_of(kwargs), None)
        strided = [(tensor.shape, tensor.stride()) for tensor in tensors]
        shape = shape_of(rule, operation, strided, self._kernels.device.type)
        if shape is None or shape.alive_at_peak:
            return True
        # For tensors that are not contiguous, the meta kernels of these ops may return another memory format.
        return rule.layout in (CONVOLVED, KEPT) and any(strides != contiguous(sizes) for sizes, strides in strided)

    # The memo

    def memo_of_functions_and_leaves(self, is_our_mode_popped: bool) -> Memo | None:
        if self._autocast.cast_weights:
            self._autocast.forget()
        if self._dtype is not get_default_dtype():  # factories and type promotion depend on the default dtype
            self._dtype = get_default_dtype()
            if self._memos is not None:
                self.memo = self._memos.memo(self.observe_dispatch)
        return None if self.observe_dispatch or is_grad_enabled() else self.memo

    def operator_key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        key = None if transformed() else call_key((func,), args, kwargs, self.mirror.form_of_meta)
        return key, None

    def recipe_by_rule(self, call: NewCall) -> Recipe | None:
        key, formula, target, func, args, kwargs, settings = call
        op, argument_forms = formula.op, forms_in(key)
        if func is assertion and args[0] is True:
            return self._keep(
                key, Recipe(Operation(op, func, args, kwargs, None), NOTHING, argument_forms=argument_forms)
            )
        rule = rule_for(SPELLED_BY_OPERATOR.get(func, func))  # torch.ops.aten.lstm has the rule of torch.lstm
        # If all tensors of a call have values, the call must run to compute the result's values. A shape rule cannot compute values.
        if rule is None or all(form.place is REAL for form in argument_forms):
            return None
        specs, kwspecs = call.argument_specs()
        without_result = tuple.__new__(Operation, (op, func, specs, kwspecs, None, settings))
        strided = [(form.shape, form.stride) for form in argument_forms]
        shape = shape_of(rule, without_result, strided, self._kernels.device.type)
        if shape is None:
            return None
        out, strides, alive_at_peak = shape
        forms = () if strides is None else (self.mirror.shared_form(out, strides, out.dtype, META),)
        returns = NEW if forms else FIRST_ARGUMENT  # the rule of an in-place function gives no strides
        result_key = forms[0].without_strides if forms else FIRST_ARGUMENT
        operation = self._call_log.shared(
            (without_strides(key), result_key), (op, target, specs, kwspecs, out, settings)
        )
        transients = tuple([(spec, spec.nbytes) for spec in alive_at_peak])
        return self._keep(key, Recipe(operation, returns, transients, forms=forms, argument_forms=argument_forms))

    def recipe_by_forward(self, call: NewCall, module: nn.Module) -> Recipe | None:
        argument_forms = forms_in(call.key)
        if {form.place for form in argument_forms} != {META}:
            return None
        try:
            view = self._view_of(call.args, call.target.forward(module, *call.args, **call.kwargs))
        except Exception:  # the call runs again the usual way, where its error is reported
            return None
        if view is None:
            return None
        operation = self._operation(call, *call.argument_specs(), view.spec)
        return self._keep(call.key, Recipe(operation, VIEWS, forms=(view,), argument_forms=argument_forms))

    def _operation(self, call: NewCall, specs: Any, kwspecs: Any, result: Any) -> Operation:
        """Return the operation of a call; equal operations are the same object."""
        fields = call.formula.op, call.target, specs, kwspecs, result, call.settings
        return self._call_log.shared((without_strides(call.key), typed(result)), fields)

    def _keep(self, key: Any, recipe: Recipe) -> Recipe:
        assert self.memo is not None
        self.memo[key] = recipe
        return recipe

    def run_views(self, call: NewCall) -> tuple[Any, Operation | None]:
        key, formula, args = call.key, call.formula, call.args
        argument_forms = forms_in(key)
        is_view = formula.reason == VIEW and not writes(call.func, call.kwargs)
        if not is_view or {form.place for form in argument_forms} not in ({META}, {REAL}):
            return NotImplemented, None
        try:
            out = call.func(*args, **call.kwargs)
        except Exception:  # the call runs again the usual way, where its error is reported
            return NotImplemented, None
        sequence = type(out) if type(out) in (tuple, list) else None
        outs = (out,) if sequence is None else out
        forms = tuple([form for view in outs if (form := self._view_of(args, view)) is not None])
        if not forms or len(forms) < len(outs):  # not all results are views
            return NotImplemented, None
        result = forms[0].spec if sequence is None else tuple([form.spec for form in forms])
        operation = self._operation(call, *call.argument_specs(), result)
        self._keep(key, Recipe(operation, VIEWS, forms=forms, sequence=sequence, argument_forms=argument_forms))
        self._storages.begin_next_call()
        return out, operation

    def run_by_shortcut(
        self, call: NewCall, run_with_operators_observed: Callable[..., Any]
    ) -> tuple[Any, Operation | None]:
        """If a call costs nothing and its tensors are on meta, run only its kernel. If all its tensors have values, run the call on these.

        Return (NotImplemented, None) for any other call.
        """
        formula, func, args, kwargs = call.formula, call.func, call.args, call.kwargs
        argument_forms = forms_in(call.key)
        places, dtypes = {form.place for form in argument_forms}, {form.dtype for form in argument_forms}
        if places <= {REAL}:
            return self._run_on_values(call)
        if REAL in places:
            return NotImplemented, None
        is_free = bool(formula.reason) and formula.reason not in (QUERY, ESCAPE)
        if not is_free or formula.op in OBSERVED_IN_FULL or func in UNWATCHED:
            return NotImplemented, None
        args, kwargs = self.mirror.replace(args, kwargs, func) if OWN in places else (args, kwargs)
        with DisableTorchFunction():
            specs, kwspecs = self.spec(args), self.spec(kwargs)  # with the model's own device arguments
            args, kwargs = self._device_answers.redirect(func, args, kwargs)
            self._storages.begin_next_call()
            try:
                out = func(*args, **kwargs)
                view = self._view_of(args, out)
                # A call that returns a new tensor may also make intermediate tensors, as cartesian_prod does. Run the call again to track them.
                # The second run also checks whether the device has a kernel for operands of several dtypes, and gives the result
                # the memory format of the device's kernel.
                is_new = view is None and type(out) is torch.Tensor and not (args and out is args[0])
                makes_only_its_result = (
                    len(dtypes) == 1 and is_one_operator(func) and f"aten::{func.__name__}" not in FORMATS
                )
                if is_new and not makes_only_its_result:
                    out = run_with_operators_observed(func, args, kwargs)
            except Exception:  # the call runs again the usual way, where its error is reported
                return NotImplemented, None
            if view is None:
                self._storages.add_all(out)
                self.returned(func, args, kwargs, out)
            result = self.spec(out) if view is None else view.spec
            return out, self._operation(call, specs, kwspecs, result)

    def _run_on_values(self, call: NewCall) -> tuple[Any, Operation | None]:
        """Run a call without tensors, or on tensors with values, if its result is the only tensor that it makes or writes to."""
        formula, func, args, kwargs = call.formula, call.func, call.args, call.kwargs
        is_write = writes(func, kwargs)
        if (
            formula.reason in (QUERY, ESCAPE)
            or formula.op in OBSERVED_IN_FULL
            or formula.op in BEYOND_METADATA
            or type(func) not in WRITTEN_IN_C
            or (is_write and not writes_simply(func, args, kwargs))
            or self.answer(func, args, kwargs) is not NotImplemented
        ):
            return NotImplemented, None
        is_one_kernel = func is SET_ITEM or formula.op in COPIES or is_one_operator(func)
        if not is_one_kernel and self.needs_operators(func, args, kwargs):
            return NotImplemented, None
        self.called_unseen()
        if is_write:
            self.mirror.snapshot.before_write(args, self._storages.was_made_by_call)
        with DisableTorchFunction():
            specs, kwspecs = self.spec(args), self.spec(kwargs)
        args, kwargs = self._device_answers.redirect(func, args, kwargs)
        self._storages.begin_next_call()
        try:
            out = func(*(self._with_number_as_tensor(args) if func is SET_ITEM else args), **kwargs)
        except Exception:  # the call runs again the usual way, where its error is reported
            return NotImplemented, None
        if type(out) not in ORDINARY and func is not SET_ITEM:
            return NotImplemented, None
        with DisableTorchFunction():
            self._storages.add_all(out)
            self.returned(func, args, kwargs, out)
            result = self.spec(out)
        return out, self._operation(call, specs, kwspecs, result)

    def _with_number_as_tensor(self, args: Any) -> Any:
        """Return the arguments of an assignment to elements, with a tensor in place of a number: torch makes this tensor, too."""
        target, indices, value = args
        if type(value) not in (bool, int, float):
            return args
        number = torch.scalar_tensor(value, dtype=target.dtype)
        self._storages.add_all(number)
        return target, indices, number

    def _view_of(self, args: tuple[Any, ...], out: Any) -> Form | None:
        """Return the form of a result that is a view of the first argument, which is on meta; None for any other result."""
        base: Any = args[0] if args else None
        if out is base or type(out) is not torch.Tensor or type(base) not in ORDINARY:
            return None
        form = self.mirror.read(out)
        if form is None or base.layout is not torch.strided:
            return None
        if out.untyped_storage()._cdata != base.untyped_storage()._cdata:
            return None
        self.mirror.register_form(out, form)
        return form

    def keep_recipe(self, call: NewCall, operation: Operation, out: Any, memory_effect: MemoryEffect) -> None:
        with DisableTorchFunction():
            self._add_recipe(call, operation, out, memory_effect, is_part=False)

    def keep_operator_recipe(
        self, call: NewCall, operation: Operation, out: Any, memory_effect: MemoryEffect, is_part: bool
    ) -> None:
        if call.formula.op not in OBSERVED_EACH_TIME and forms_in(call.key):
            self._add_recipe(call, operation, out, memory_effect, is_part)

    def _add_recipe(
        self, call: NewCall, operation: Operation, out: Any, memory_effect: MemoryEffect, is_part: bool
    ) -> None:
        args, kwargs, argument_forms = call.args, call.kwargs, forms_in(call.key)
        returns, forms, sequence = self._result(args, kwargs, out)
        # Do not add an in-place call to the memo if it has changed the shape of its argument, as x.unsqueeze_(0) does.
        if returns is FIRST_ARGUMENT and self.mirror.read(args[0]) is not argument_forms[0]:
            return
        # If a call leaves more memory in use than its result, it keeps other tensors alive. The memo cannot make these tensors.
        result_bytes = sum([form.nbytes for form in forms]) if returns is NEW else 0
        if not returns or memory_effect.bytes_left != result_bytes or operation.op in UNINITIALIZED:
            return
        recipe = Recipe(
            operation,
            returns,
            memory_effect.transients,
            forms=forms,
            sequence=sequence,
            argument_forms=argument_forms,
            is_part=is_part,
            names_device=operation.target is torch.Tensor.to or "device" in kwargs,
        )
        self._keep(call.key, recipe)

    def _result(self, args: Any, kwargs: Any, out: Any) -> tuple[str, tuple[Any, ...], Any]:
        """Return a result's kind (see :class:`Recipe`), forms and sequence type. The kind is "" if the memo cannot make such a result."""
        is_single = isinstance(out, torch.Tensor)
        outs = [out] if is_single else list(out) if is_sequence(type(out)) else []
        if not outs or not all(type(o) in ORDINARY and o.is_meta and o.layout is torch.strided for o in outs):
            return "", (), None
        if is_single and args and out is args[0]:
            return FIRST_ARGUMENT, (), None
        sequence = None if is_single else type(out)
        storages = [tensor.untyped_storage() for tensor in outs]
        argument_storages = {self.mirror.of(t).untyped_storage()._cdata for t in tensors_given((args, kwargs))}
        are_views = [storage._cdata in argument_storages for storage in storages]
        if all(are_views):
            return VIEWS, tuple(map(self.mirror.form, outs)), sequence
        # Results that share a storage, or start at an offset in it, cannot be created separately.
        are_separate = len({storage._cdata for storage in storages}) == len(outs)
        if any(are_views) or not are_separate or any(tensor.storage_offset() for tensor in outs):
            return "", (), None
        forms = tuple(map(self.mirror.form_of_meta, outs))  # an inner operator's results are not registered yet
        for form, storage in zip(forms, storages, strict=True):
            if form is None or form.nbytes != storage.nbytes():  # the storage is larger than the tensor
                return "", (), None
        return NEW, forms, sequence

    def repeat_call(
        self, recipe: Recipe, func: Any, args: Any, kwargs: Any, run_timed: RunTimed, module: nn.Module | None = None
    ) -> tuple[Any, Operation | None, float | None]:
        operation, original_args = recipe.operation, args
        if operation.op == EMBEDDING:
            table = () if module is None else (module.weight,)
            operation = operation._replace(out=with_row(operation.out, (*args, *table)))
        if recipe.needs_stand_ins:
            args, kwargs = self.mirror.replace(args, kwargs, func if module is None else None)
        self._storages.begin_next_call()
        if recipe.transients:
            self._storages.add_transients(recipe.transients)
        if recipe.returns is NEW:
            out = self._new_tensors(recipe)
        elif recipe.returns is FIRST_ARGUMENT:
            out = original_args[0]  # the model gets its own tensor back, not the tensor's meta stand-in
        elif recipe.returns is NOTHING:
            out = None
        else:
            if recipe.names_device:
                args, kwargs = self._device_answers.redirect(func, args, kwargs)
            out = func(*args, **kwargs) if module is None else func(module, *args, **kwargs)
            for view, form in zip((out,) if recipe.sequence is None else out, recipe.forms, strict=True):
                self.mirror.register_form(view, form)
        return out, operation, None

    def repeat_operator(self, recipe: Recipe, key: Any, func: Any, args: Any, kwargs: Any, tensors: Any) -> Any:
        if recipe.transients:
            self._storages.add_transients(recipe.transients)
        if recipe.returns is NEW:
            return self._new_tensors(recipe)
        # An unobserved call may have made the tensor, so track the tensor here.
        return self._track(args[0] if recipe.returns is FIRST_ARGUMENT else func(*args, **kwargs))

    def _new_tensors(self, recipe: Recipe) -> Any:
        """Return new meta tensors with the recipe's forms."""
        outs = []
        for form in recipe.forms:
            out = empty_strided(form.shape, form.stride, dtype=form.dtype, device=META_DEVICE)
            self.mirror.register_form(out, form)
            self._storages.add_new(out.untyped_storage(), form.nbytes, form.spec)
            if recipe.sequence is None:
                return out
            outs.append(out)
        return recipe.sequence(outs)

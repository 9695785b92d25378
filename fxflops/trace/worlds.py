"""The worlds in which a model is observed: where its tensors are, and how a call gets its result there.

The observer (:mod:`.observe`) is the same in all worlds. This module has the base class :class:`World`: real tensors, where every
call is run and observed anew. The other worlds derive from it:

============  ====================  ============  ===========  ================================================================
world         tensors               used by       has a memo   a call like an earlier one
============  ====================  ============  ===========  ================================================================
World         on a device           ``analyze``   no           is run and observed anew
ProfiledWorld on a device           ``profile``   yes          is run, and recorded as the same operation
FakeWorld     a simulated rank's    ``simulate``  yes          is not run, if it is an operator; functions are observed anew
MetaWorld     on meta, for a device ``count``     yes          is not run: its result is made from the memo
============  ====================  ============  ===========  ================================================================

``count`` also uses World, for a model that cannot run on meta, and ``analyze`` also uses MetaWorld, for the memory of each node.

In the first three worlds the observer's dispatch mode is on, and sees the operators inside functions without a formula. In a count
the dispatch mode is on only where observing functions is not enough: for a backward pass, for a callable that may run a backward
pass, for TorchScript, and for a second run if the first run missed calls (``_meta_run_that_sees_all`` in :mod:`fxflops.run.model_run`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ..meters.live_storages import LiveStorages
from ..ops import Formula
from ..ops._traits import UNINITIALIZED
from ..ops.einsum import order_now
from ..records import EMPTY_MAPPING, Operation
from ..records.facts import BEYOND_METADATA
from ..records.tensors import spec_of
from .call_log import CallLog
from .memo import Memo, MemoryEffect, NewCall, Recipe
from .model_tensors import Arguments, ModelTensors

RunTimed = Callable[[Recipe, Any, Any, Any], tuple[Any, float]]
"""A function that runs ``func(*args, **kwargs)``, a call with a recipe, and returns its result and its seconds."""
OBSERVED_EACH_TIME = frozenset({*BEYOND_METADATA, *UNINITIALIZED})
"""Operators that are never repeated from the memo: their record depends on more than metadata, or they leave memory unwritten."""


class World:
    """The world of real tensors, on the model's own device, where every call is run and observed anew.

    ``tensors`` are the model's tensors, or stand-ins for them. ``memo`` has the recipes of earlier calls; None for a world without a
    memo. ``setting_readers`` caches the settings of modules, by the names of the modules' attributes. ``unrecorded`` are functions that
    the observer runs without recording. ``answers`` has the fixed results of tensor properties. ``read_torch_settings`` has, by
    function, how to read the torch settings that change the function's record. ``observe_dispatch``: the observer's dispatch mode is on, and
    also sees operators that C++ or TorchScript calls without a torch function. ``is_block``: the observed code is a user's block, in which
    models may be counted.

    ``is_meta``: calls get meta tensors, so that no kernel computes. Then the observer also skips the forward of a leaf module if there is a
    recipe for the call. And it leaves it to the mirror to find unnamed tensors that existed before the run, such as a weight in a closure.
    """

    memo: Memo | None = None
    unrecorded: frozenset[Any] = frozenset()
    answers: Mapping[Any, Any] = EMPTY_MAPPING
    read_torch_settings: Mapping[Any, Callable[[], tuple[Any, ...]]] = {torch.einsum: order_now}
    is_meta = False
    observe_dispatch = True
    is_block = False
    device: torch.device | None = None
    """The models' device, or the device that meta tensors report; None if unknown."""

    def __init__(self, tensors: ModelTensors | None = None) -> None:
        self.tensors = tensors or ModelTensors()
        self.setting_readers: dict[Any, Any] = {}

    def begin(self, log: CallLog, storages: LiveStorages) -> None:
        """Begin a run whose calls are recorded in ``log``."""
        self._call_log = log
        self._storages = storages

    def end(self) -> None:
        """Break the reference cycles of a finished run, which otherwise only the garbage collector would free."""

    def begin_thread(self) -> Iterable[AbstractContextManager[Any]]:
        """Begin to observe the current thread, before the observer's modes are on in it; return the contexts to enter in this thread."""
        return ()

    # Arguments and results

    def spec(self, value: Any) -> Any:
        """Return the value with a spec in place of each tensor, as ``spec_of`` does. Tensors of the same form may share one spec,
        which only saves time and memory."""
        return spec_of(value)

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the answer to a query about a tensor's device; NotImplemented for all other calls."""
        return NotImplemented

    def redirect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments, with their device set to where this world really makes new tensors."""
        return args, kwargs

    def cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments, cast as autocast would cast them if torch itself does not."""
        return args, kwargs

    def returned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note which tensors a call has returned, and which it has written to."""

    def spec_of_result(self, formula: Formula | None, arguments: Any, out: Any) -> Any:
        """Return the spec of a result. ``arguments`` are read only for an embedding: its indices and its table."""
        return spec_of(out)

    def raised(self, error: Exception) -> str:
        """Note an error that a call has raised: the model may catch it.

        If real tensors would not raise it, and the run cannot be repeated on these, return :data:`VALUE_READ`. Then the call is recorded as
        this op, which has no formula.
        """
        return ""

    def called_unseen(self) -> None:
        """Check whether a function is called by an operator that this run does not observe."""

    # How a call runs

    def dispatch_as_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Under a functorch transform: run a call by the operators that the model's device dispatches; return NotImplemented if torch dispatches
        the same operators here. Without a transform, :meth:`kernel` does this."""
        return NotImplemented

    def kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        """Run a function or an operator by ``run(func, args, kwargs)``, or by this world's replacement."""
        return run(func, args, kwargs)

    def needs_operators(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether the operators of a call must be observed although the call is recorded as a whole.

        They must be if the call may make intermediate tensors, or if torch's function returns another memory format than the world.
        """
        return False

    # Methods for the memo. Except for memo_of_functions_and_leaves, they are called only if the world has a memo

    def memo_of_functions_and_leaves(self, is_our_mode_popped: bool) -> Memo | None:
        """Return the memo for torch's current settings; None if the memo of functions and leaves may not be used in this thread now.

        It may be used if a call's record depends only on the metadata of the call's tensors. ``is_our_mode_popped``: the observer's function
        mode is off because it is handling a call.
        """
        return None

    def torch_settings(self, func: Any) -> tuple[Any, ...]:
        """Return the torch settings that change the record of ``func``, as part of the call's key."""
        read_settings = self.read_torch_settings.get(func)
        return () if read_settings is None else read_settings()

    def operator_key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the key and the tensors of an operator call that a dispatch mode sees.

        If the call has no key, return None as the key, or raise Unknown.
        """
        return None, None

    def recipe_by_rule(self, call: NewCall) -> Recipe | None:
        """Make a recipe for a call by a shape rule, and add the recipe to the memo; return None if no rule applies."""
        return None

    def recipe_by_forward(self, call: NewCall, module: nn.Module) -> Recipe | None:
        """Make a recipe for a leaf whose forward only returns a view of its input, and add it to the memo; return None for other leaves."""
        return None

    def run_views(self, call: NewCall) -> tuple[Any, Operation | None]:
        """Run a call that only returns views, and add a recipe to the memo; return the call's result and its operation.

        The result is NotImplemented for any other call.
        """
        return NotImplemented, None

    def run_by_shortcut(
        self, call: NewCall, run_with_operators_observed: Callable[..., Any]
    ) -> tuple[Any, Operation | None]:
        """Run a call that costs nothing, or whose tensors all have values, by a shortcut; return its result and its operation.

        The result is NotImplemented if the call must run the usual way. ``run_with_operators_observed(func, args, kwargs)`` runs the call with its
        intermediate tensors tracked.
        """
        return NotImplemented, None

    def keep_recipe(self, call: NewCall, operation: Operation, out: Any, memory_effect: MemoryEffect) -> None:
        """Add a recipe to the memo for a call that was recorded as ``operation``, if the record depends only on metadata."""

    def keep_operator_recipe(
        self, call: NewCall, operation: Operation, out: Any, memory_effect: MemoryEffect, is_part: bool
    ) -> None:
        """Add a recipe to the memo for an operator call, if its record depends only on metadata.

        ``is_part``: the operator ran inside another call.
        """

    def repeat_call(
        self, recipe: Recipe, func: Any, args: Any, kwargs: Any, run_timed: RunTimed, module: nn.Module | None = None
    ) -> tuple[Any, Operation | None, float | None]:
        """Make the result of a call that has a recipe, and track its tensors; return the result, the operation and the seconds.

        With real tensors, ``run_timed`` runs the call to make its result, but only its result is observed. The operation is None if the result
        differs from the first call's. For a leaf ``module``, ``func`` is its class's forward.
        """
        raise NotImplementedError

    def track_repeated(self, recipe: Recipe, out: Any) -> None:
        """Track the tensors returned by a call that has a recipe."""
        raise NotImplementedError

    def repeat_operator(self, recipe: Recipe, key: Any, func: Any, args: Any, kwargs: Any, tensors: Any) -> Any:
        """Make the result of an operator call that has a recipe, track the result's tensors, and return the result.

        ``tensors`` are the tensors that :meth:`operator_key` returned with the call's key. Unlike :meth:`repeat_call`, this relies on the caller
        to call ``begin_next_call``.
        """
        raise NotImplementedError

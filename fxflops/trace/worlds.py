"""The worlds in which a model is observed: where its tensors are, and how a call gets its result there.

The observer (:mod:`.observe`) is the same in all worlds. This module has the plain world of real tensors, where every call is run and
observed anew. It is the base class of the others:

============  ====================  ============  ===========  ================================================================
world         tensors               of            has a memo   a call like an earlier one
============  ====================  ============  ===========  ================================================================
World         on a device           ``analyze``   no           is run and observed anew
RealWorld     on a device           ``profile``   yes          is run, and recorded as the same operation
FakeWorld     a simulated rank's    ``simulate``  yes          is not run, if it is an operator; functions are observed anew
MetaWorld     on meta, for a device ``count``     yes          is not run: its result is made from the memo
============  ====================  ============  ===========  ================================================================

In the first three worlds the observer's dispatch mode is on, and sees the operators inside functions without a formula. In a count it
is on only where functions are not enough: for a backward pass, for a callable that may run one, for TorchScript, and for a second run
if the first missed something (:func:`~fxflops.run.model_run.run_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ..meters.live_storages import LiveStorages
from ..ops import Formula
from ..ops.einsum import order_now
from ..records import EMPTY_MAPPING, Call, Operation
from ..records.tensors import spec_of
from .call_log import CallLog
from .leaves import forms_with_values
from .memo import Memo, MemoryEffect, Recipe

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a call."""
RunTimed = Callable[[Recipe, Any, Any, Any], tuple[Any, float]]
"""Runs ``func(*args, **kwargs)``, for whose key the memo has a recipe; returns its result and seconds."""
RNN_BACKWARD = "rnn_backward"
"""The op whose cost depends on which of its arguments require a gradient."""


class World:
    """The world of real tensors, on the model's own device, where every call is run and observed anew.

    ``memo`` has the recipes of earlier calls; None if nothing is kept. ``readers`` has the settings of modules, by their attributes.
    ``unrecorded`` are functions that the observer runs without recording, ``answers`` the fixed results of tensor properties.
    ``is_meta``: calls get meta tensors, so that no kernel computes. ``skips_forwards``: a leaf module's call need not run if the memo
    has it. ``enters_earlier_tensors``: the observer looks for unnamed tensors that existed before the run, such as a batch or a weight
    in a closure.
    ``is_block``: the code is a user's block, in which models may be counted.
    """

    memo: Memo | None = None
    unrecorded: frozenset[Any] = frozenset()
    answers: Mapping[Any, Any] = EMPTY_MAPPING
    is_meta = False
    skips_forwards = False
    enters_earlier_tensors = True
    is_block = False
    device: torch.device | None = None
    """The models' device, or the device that meta tensors report; None if unknown."""

    spec_of_tensor: Callable[[Any], Any] = staticmethod(spec_of)
    """Returns the spec of one tensor."""

    def __init__(self) -> None:
        self.readers: dict[Any, Any] = {}

    def begin(self, log: CallLog, storages: LiveStorages) -> None:
        """Begin a run whose calls are recorded in ``log``."""
        self._log = log
        self._calls: list[Call] = log.calls
        self._storages = storages

    def end(self) -> None:
        """Break the reference cycles of a run that is over: only the garbage collector would free them."""

    def contexts(self) -> Iterable[AbstractContextManager[Any]]:
        """Return the contexts to enter in each observed thread."""
        return ()

    # Arguments and results

    def spec(self, value: Any) -> Any:
        """Return the value with a spec in place of each tensor."""
        return spec_of(value)

    def forms_of_own(self, tensors: Iterable[torch.Tensor | None]) -> tuple[Any, ...]:
        """Return a key for the metadata of each of a module's own tensors; None for a tensor whose metadata cannot be compared."""
        return forms_with_values(tensors)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this world's counterpart of one of the model's tensors."""
        return tensor

    def check_origin(self, value: Any) -> None:
        """Check what a run returned: a tensor of unknown origin shows that calls were missed."""

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the answer to a query about a tensor's device; NotImplemented for all other calls."""
        return NotImplemented

    def replace(self, args: tuple[Any, ...], kwargs: dict[str, Any], func: Any) -> Arguments:
        """Return the arguments with this world's tensors in place of the model's."""
        return args, kwargs

    def holding_gradient(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a property call's arguments; if it reads or sets ``grad``, with the tensor that has the gradient."""
        return args

    def redirect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments with the device on which this world really makes a new tensor."""
        return args, kwargs

    def cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments as autocast casts them, where torch itself does not."""
        return args, kwargs

    def current(self, value: Any) -> Any:
        """Return a value; a tensor whose values are out of date is replaced by its counterpart."""
        return value

    def written(self, value: Any) -> Any:
        """Return the tensors in a value as the run left them."""
        return value

    def returned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note the tensors that a call has returned and written to."""

    def spec_of_result(self, entry: Formula | None, lookup_tensors: Any, out: Any) -> Any:
        """Return the spec of a result; ``lookup_tensors`` are the tensors of a lookup."""
        return spec_of(out)

    def raised(self, error: Exception) -> None:
        """Note an error that a call has raised: the model may catch it."""

    def called_unseen(self) -> None:
        """Check whether a function is called by an operator that this run does not observe."""

    # How a call runs

    def composite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a call for which the device uses other kernels than torch would here; NotImplemented for others."""
        return NotImplemented

    def kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        """Run a function or an operator by ``run(func, args, kwargs)``, or by this world's replacement."""
        return run(func, args, kwargs)

    def makes_more(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a call that is recorded as a whole may make intermediate tensors unseen."""
        return False

    # The memo: these methods are called only if there is one

    def may_ask_memo(self, in_handler: bool) -> bool:
        """Return whether the memo applies in this thread's current state: a call's record depends only on its tensors' metadata.

        On meta, first switch to the memo for torch's current settings. ``in_handler``: the observer's function mode is handling a
        call, so it is off.
        """
        return False

    def torch_settings(self, func: Any) -> tuple[Any, ...]:
        """Return the torch settings that change the record of ``func``, as part of the call's key."""
        return order_now() if func is torch.einsum else ()

    def form(self, tensor: torch.Tensor) -> Any:
        """Return a tensor's part of a call's key; None if its metadata is not enough."""

    def operator_key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the key of an operator call seen by a dispatch mode, None if it has none, and its tensors.

        Raises Unknown, too, if there is no key.
        """
        return None, None

    def recipe_by_rule(
        self,
        key: Any,
        op: str,
        target: Any,
        func: Any,
        args: Any,
        kwargs: Any,
        settings: Mapping[str, Any] = EMPTY_MAPPING,
    ) -> Recipe | None:
        """Return a recipe for this key made by a shape rule, and add it to the memo; None if no rule applies.

        ``target`` is recorded in place of ``func``, with ``settings`` if it is a leaf module's class.
        """
        return None

    def recipe_by_forward(
        self, key: Any, op: str, module: nn.Module, settings: Mapping[str, Any], args: Any, kwargs: Any
    ) -> Recipe | None:
        """Return a recipe for a leaf whose forward only returns a view of its input, and add it to the memo; None for other leaves."""
        return None

    def run_views(
        self, key: Any, entry: Formula, target: Any, func: Any, args: Any, kwargs: Any
    ) -> tuple[Any, Operation | None]:
        """Run a call that only returns views, and add it to the memo; return its result and its operation.

        The result is NotImplemented for any other call.
        """
        return NotImplemented, None

    def run_free(
        self, key: Any, entry: Formula, target: Any, func: Any, args: Any, kwargs: Any, run_tracked: Callable[..., Any]
    ) -> tuple[Any, Operation | None]:
        """Run a call without cost by a shortcut; return its result and its operation.

        The result is NotImplemented if the call must run the usual way. ``run_tracked(func, args, kwargs)`` runs it so that
        intermediate tensors are tracked.
        """
        return NotImplemented, None

    def learn(
        self,
        key: Any,
        entry: Formula,
        operation: Operation,
        arguments: Arguments,
        out: Any,
        memory_effect: MemoryEffect,
    ) -> None:
        """Add a call that has just ended to the memo, if metadata determines its record."""

    def learn_operator(
        self,
        key: Any,
        entry: Formula,
        operation: Operation,
        arguments: Arguments,
        out: Any,
        memory_effect: MemoryEffect,
        is_part: bool,
    ) -> None:
        """Add an operator call to the memo, if metadata determines its record; ``is_part``: it ran inside another call."""

    def repeat_call(
        self, recipe: Recipe, func: Any, args: Any, kwargs: Any, run_timed: RunTimed, module: nn.Module | None = None
    ) -> tuple[Any, Operation | None, float | None]:
        """Make a call for which the memo has a recipe, and track its tensors; return its result, operation and seconds.

        The operation is None if the result differs from the first call's. For a leaf ``module``, ``func`` is its class's forward.
        """
        raise NotImplementedError

    def track(self, recipe: Recipe, out: Any) -> None:
        """Enter the tensors returned by a call for which the memo has a recipe."""
        raise NotImplementedError

    def repeat_operator(self, recipe: Recipe, key: Any, func: Any, args: Any, kwargs: Any, tensors: Any) -> Any:
        """Make an operator call for which the memo has a recipe, and track its tensors; return its result.

        ``tensors`` are those that :meth:`operator_key` returned with its key.
        """
        raise NotImplementedError

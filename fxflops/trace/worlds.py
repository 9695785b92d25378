"""The worlds in which a model is observed: where its tensors are, and how a call gets its result there.

An observer (:mod:`.observe`) is the same in all of them. Here is the plain one, of real tensors, where every call is run and
observed anew; it is also what the others are built on:

============  ====================  ============  ===========  ================================================================
world         tensors               of            has a memo   a call like an earlier one
============  ====================  ============  ===========  ================================================================
World         on a device           ``analyze``   no           is run and observed anew
RealWorld     on a device           ``profile``   yes          is run, and recorded as the same operation
FakeWorld     a simulated rank's    ``simulate``  yes          is not run, if it is an operator; functions are observed anew
MetaWorld     on meta, for a device ``count``     yes          is not run: its result is made by what is known
============  ====================  ============  ===========  ================================================================

In the first three the dispatch mode of the observer is on, and sees the operators inside functions that have no formula. In a count it
is on where functions are not enough: for a backward pass, for a callable that may run one, for TorchScript, and in a second try after
one without it missed something (:func:`~fxflops.run.model_run.run_model`).
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
from .memo import Ended, Known, Memo

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a call."""


Timed = Callable[[Known, Any, Any, Any], tuple[Any, float]]
"""Runs ``func(*args, **kwargs)`` of a known kind, and returns its result and seconds."""
RNN_BACKWARD = "rnn_backward"
"""The op whose cost depends on which of its arguments require a gradient."""


class World:
    """The world of real tensors, on the model's own device, in which every call is run and observed anew.

    ``memo`` is what is known of earlier calls; None if nothing is kept. ``readers`` has the settings of modules, by their attributes.
    ``unrecorded`` are functions that the observer runs and does not record, ``answers`` what properties of tensors return.
    ``is_meta`` tells whether calls get meta tensors, so that no kernel computes. ``skips_forwards`` tells whether the call of a leaf module that is known
    need not run. ``meets_tensors`` tells whether to look for tensors that nobody has named and that were there before the run: a batch,
    a weight in a closure. ``is_block`` tells whether the code is a block of the user's, in which models may be counted.
    """

    memo: Memo | None = None
    unrecorded: frozenset[Any] = frozenset()
    answers: Mapping[Any, Any] = EMPTY_MAPPING
    is_meta = False
    skips_forwards = False
    meets_tensors = True
    is_block = False
    device: torch.device | None = None
    """The device that the models are on, or that meta tensors say they are on; None if nobody has said which."""

    spec_of_tensor: Callable[[Any], Any] = staticmethod(spec_of)
    """Returns the spec of one tensor."""

    def __init__(self) -> None:
        self.readers: dict[Any, Any] = {}

    def begin(self, log: CallLog, storages: LiveStorages) -> None:
        """Begin a run, whose calls are in the log."""
        self._log = log
        self._calls: list[Call] = log.calls
        self._storages = storages

    def end(self) -> None:
        """Break the reference cycles of a run that is over: only the garbage collector would free them."""

    def contexts(self) -> Iterable[AbstractContextManager[Any]]:
        """Return what is to be entered in each thread that is observed."""
        return ()

    # What a call is given, and what it returns

    def spec(self, value: Any) -> Any:
        """Return the value with a spec in place of each tensor."""
        return spec_of(value)

    def forms_of_own(self, tensors: Iterable[torch.Tensor | None]) -> tuple[Any, ...]:
        """Return a key for the metadata of each of a module's own tensors; None for one whose metadata cannot be compared."""
        return forms_with_values(tensors)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor that stands for one of the model's in this world."""
        return tensor

    def check_origin(self, value: Any) -> None:
        """Note what a run returned: tensors whose origin is not known tell that calls were missed."""

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a question about a tensor's device returns; NotImplemented for all other calls."""
        return NotImplemented

    def replace(self, args: tuple[Any, ...], kwargs: dict[str, Any], func: Any) -> Arguments:
        """Return the arguments with this world's tensors in place of the model's."""
        return args, kwargs

    def holding_gradient(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a property's call; of one that reads or sets ``grad`` with the tensor that has the gradient."""
        return args

    def redirect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments with the device on which a new tensor is really made."""
        return args, kwargs

    def cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments as autocast casts them, where torch itself does not."""
        return args, kwargs

    def current(self, value: Any) -> Any:
        """Return a value; of a tensor that no longer has the values that the run gave it, the one that stands for it."""
        return value

    def written(self, value: Any) -> Any:
        """Return the tensors in a value as the run left them."""
        return value

    def returned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note what a call has returned and written to."""

    def spec_of_result(self, entry: Formula | None, given: Any, out: Any) -> Any:
        """Return the spec of a result; ``given`` are the tensors of a lookup."""
        return spec_of(out)

    def raised(self, error: Exception) -> None:
        """Note an error that a call has raised: the model may catch it."""

    def called_unseen(self) -> None:
        """Note a function that no dispatch mode would see in this run."""

    # How a call runs

    def composite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a call that the device makes by other kernels than torch would here; NotImplemented for others."""
        return NotImplemented

    def kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        """Run a function or an operator by ``run(func, args, kwargs)``, or by what this world has in its place."""
        return run(func, args, kwargs)

    def makes_more(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a call that is recorded as a whole may make tensors that nobody would see."""
        return False

    # What is known of calls. These are asked only where there is a memo

    def may_ask_memo(self, in_handler: bool) -> bool:
        """Return whether the state of this thread lets a call's record follow from the metadata of its tensors, so that the memo has
        it; on meta the memo is first brought up to date with torch's settings.

        ``in_handler`` tells that the observer's function mode handles a call, and is off meanwhile.
        """
        return False

    def torch_settings(self, func: Any) -> tuple[Any, ...]:
        """Return what the key of a call of ``func`` has besides its arguments: the settings of torch that change its record."""
        return order_now() if func is torch.einsum else ()

    def form(self, tensor: torch.Tensor) -> Any:
        """Return what the key of a call has of a tensor; None if that does not say all."""

    def operator_key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the key of a call of an operator that a dispatch mode saw, None if there is none; and its tensors.

        Raises Unknown, too, if there is no key.
        """
        return None, None

    def by_rule(
        self,
        key: Any,
        op: str,
        target: Any,
        func: Any,
        args: Any,
        kwargs: Any,
        settings: Mapping[str, Any] = EMPTY_MAPPING,
    ) -> Known | None:
        """Return what a shape rule tells of calls with this key, and keep it; None if there is no rule that applies.

        ``target`` is recorded for ``func``, and ``settings`` if that is the class of a leaf module.
        """
        return None

    def by_forward(
        self, key: Any, op: str, module: nn.Module, settings: Mapping[str, Any], args: Any, kwargs: Any
    ) -> Known | None:
        """Return what is known of a leaf whose forward only returns a view of its input, and keep it; None for any other."""
        return None

    def run_views(
        self, key: Any, entry: Formula, target: Any, func: Any, args: Any, kwargs: Any
    ) -> tuple[Any, Operation | None]:
        """Run a call that does nothing but return views, and keep what it teaches; return its result and its operation.

        The result is NotImplemented if it is any other call.
        """
        return NotImplemented, None

    def run_free(
        self, key: Any, entry: Formula, target: Any, func: Any, args: Any, kwargs: Any, tracked: Callable[..., Any]
    ) -> tuple[Any, Operation | None]:
        """Run a call that costs nothing in a shorter way than others; return its result and its operation.

        The result is NotImplemented if the call is to be made as any other. ``tracked(func, args, kwargs)`` runs it so that
        tensors made on the way are tracked.
        """
        return NotImplemented, None

    def learn(self, key: Any, entry: Formula, operation: Operation, given: Arguments, out: Any, ended: Ended) -> None:
        """Keep what a call has taught that has just ended, if all of it follows from metadata."""

    def learn_operator(
        self, key: Any, entry: Formula, operation: Operation, given: Arguments, out: Any, ended: Ended, is_part: bool
    ) -> None:
        """Keep what a call of an operator has taught; ``is_part`` tells that it was an operator inside another call."""

    def make_known(
        self, known: Known, func: Any, args: Any, kwargs: Any, timed: Timed, module: nn.Module | None = None
    ) -> tuple[Any, Operation | None, float | None]:
        """Make a call of a known kind, and track its tensors; return its result, operation and seconds.

        The operation is None if it returned something else than the first one. Of a leaf ``module``, ``func`` is the forward of its class.
        """
        raise NotImplementedError

    def track(self, known: Known, out: Any) -> None:
        """Enter the tensors that a call of a known kind has returned."""
        raise NotImplementedError

    def make_known_operator(self, known: Known, key: Any, func: Any, args: Any, kwargs: Any, given: Any) -> Any:
        """Make a call of an operator of a known kind, and track its tensors; return its result. ``given`` are its tensors."""
        raise NotImplementedError

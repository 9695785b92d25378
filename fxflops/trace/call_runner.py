"""Run a function or an operator in the run's world, and track the tensors that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ..model.pytree import tensors_given
from ..ops._libraries import LibraryFunction
from ..ops._rules import UNWATCHED
from ..ops.shapes import unseen_temporaries
from ..records import Operation, specs_in
from ..records.tensors import spec_of
from ..torch_internals import (
    DisableTorchDispatch,
    EnableTorchFunction,
    HigherOrderOperator,
    OpOverload,
    disable_current_modes,
    dispatched,
    is_below_autograd,
    is_control_flow,
    is_tracing,
    python_kernel,
)
from .compiler import run_operator
from .composed import composing_kernel
from .device_kernels import SPELLED_BY_OPERATOR
from .functions import PYTHON_FUNCTIONS, callables_in, with_callables
from .library_calls import LibraryCalls
from .memo import Recipe
from .modes import ResultsMode, dispatch_mode_on, function_mode_on, transformed
from .observer_state import SharedState, ThreadPart, ThreadState
from .recording import Recording


class CallRunner(ThreadPart):
    """Runs the calls of one thread: with the world's kernel, operator by operator, or so that the calls inside are observed."""

    def __init__(self, shared: SharedState, state: ThreadState, recording: Recording, library: LibraryCalls) -> None:
        super().__init__(shared, state)
        self._recording = recording
        self._library = library

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function or an operator, and track the tensors that it returns."""
        # torch.ops.aten.lstm(...) is treated like the function torch.lstm, which runs several operators.
        is_operator = isinstance(func, OpOverload) and func not in SPELLED_BY_OPERATOR
        # The caller records a function as a whole, so this code is already inside the recorded call.
        is_recorded_whole = not is_operator and self._state.inside_call()
        if is_recorded_whole and self._world.needs_operators(func, args, kwargs):
            return self.run_with_operators_observed(func, args, kwargs, self._run_and_track)
        return self._run_and_track(func, args, kwargs)

    def run_timed(self, recipe: Recipe, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        """Run and time a call that has a recipe. Do not observe its operators if the call leaves only its result in memory."""
        with DisableTorchDispatch() if recipe.leaves_only_its_result else self._state.within_call():
            return self._stopwatch.timed(func, args, kwargs)

    def run_with_operators_observed(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[..., Any] | None = None
    ) -> Any:
        """Run a call; observe its operators as parts of the call, so that intermediate tensors are tracked."""
        with self._state.within_call(), dispatch_mode_on(self._state.operator_mode):
            return func(*args, **kwargs) if run is None else run(func, args, kwargs)

    def _run_and_track(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Cast the arguments as autocast does, run a function or an operator, and track the tensors that it returns."""
        args, kwargs = self._world.cast(func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            self._unwritten.clear()  # the operator's writes are not observed in detail
            with disable_current_modes():
                out = self._run_higher_order(func, args, kwargs)
        else:
            out = self._run_unwatched(func, args, kwargs) if func in UNWATCHED else NotImplemented
            if out is NotImplemented:
                out = self.run_kernel(func, args, kwargs)
        self._world.returned(func, args, kwargs, out)
        return self._recording.track(out)

    def run_kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function or an operator by the world's kernel, or by the operators that it decomposes into."""
        if type(func) is LibraryFunction:
            return self._library.run(func, args, kwargs)
        if type(func) is OpOverload and is_below_autograd():
            kernel = composing_kernel(func, args, kwargs, self._world.device if self._world.is_meta else None)
            if kernel is not None:
                return self._run_composed(kernel, func, args, kwargs)
        return self._world.kernel(func, args, kwargs, self._run_on_clock)

    def _run_composed(self, kernel: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator by its decomposition; observe the inner operators as parts of it, so that intermediate tensors are tracked."""
        operators_before = len(self._state.call_operators)
        with self._state.within_call(), dispatch_mode_on(self._state.operator_mode):
            out = self._stopwatch.run(kernel, args, kwargs, work=func)
        del self._state.call_operators[operators_before:]  # the operator itself is added instead
        return out

    def _run_on_clock(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function or an operator as torch would, with the clock running."""
        return self._stopwatch.run(run_operator, (func, args, kwargs), {}, work=func)

    def _run_unwatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function with all modes off, because it would compute more under a mode. A rule lists its temporary tensors.

        Return NotImplemented if modes make no difference for this call.
        """
        tensors = tensors_given((args, kwargs))
        if not tensors or transformed():
            return NotImplemented
        device = (self._world.device if self._world.is_meta else None) or tensors[0].device
        needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        operation = Operation("", func, spec_of(args), spec_of(kwargs), None)
        strided = [(tensor.shape, tensor.stride()) for tensor in tensors]
        temporaries = unseen_temporaries(operation, strided, device.type, needs_grad)
        if temporaries is None:
            return NotImplemented
        with disable_current_modes():
            out = self.run_kernel(func, args, kwargs)
        self._storages.begin_next_call()
        self._storages.add_transients([(spec, spec.nbytes) for spec in (*temporaries, *specs_in(spec_of(out)))])
        return out

    def _run_higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a higher-order operator so that the calls inside it are observed."""
        calls_other_callables = any(
            not isinstance(function, PYTHON_FUNCTIONS) for function in callables_in((args, kwargs))
        )
        if is_control_flow(func) or self._registry.find(func) is not None or not calls_other_callables:
            # All modes are off here. Wrap the functions among the arguments, so that each function turns fxflops's modes on while it runs.
            args, kwargs = with_callables((args, kwargs), self._observed_inside)
            # A control flow operator calls torch functions to slice rows and stack results: track the outputs of these functions.
            is_tracked = is_control_flow(func)
            with (
                EnableTorchFunction() if is_tracked else nullcontext(),
                ResultsMode(self._recording.track) if is_tracked else nullcontext(),
            ):
                return self._stopwatch.run(python_kernel(func), args, kwargs)
        # Do not wrap operators and modules, since the higher-order operator inspects them. Observe their calls by the function mode only.
        # Leave the dispatch mode off, because many higher-order operators refuse to run under a dispatch mode.
        args, kwargs = with_callables((args, kwargs), self._observed_inside, PYTHON_FUNCTIONS)
        with self._functions_observed():
            return self._stopwatch.run(dispatched, (func, args, kwargs), {}, work=func)

    @contextmanager
    def _observed_inside(self) -> Iterator[None]:
        """Observe the calls inside a function that a higher-order operator calls.

        To differentiate the function, the operator may first trace it, and then run the traced graph. Only the traced graph is observed.
        """
        if is_tracing():
            yield
            return
        with self._functions_observed(), dispatch_mode_on(self._state.operator_mode):
            yield

    @contextmanager
    def _functions_observed(self) -> Iterator[None]:
        """Observe functions and operators that Python calls inside a higher-order operator."""
        with self._state.within_higher_order(), EnableTorchFunction(), function_mode_on(self._state.function_mode):
            yield

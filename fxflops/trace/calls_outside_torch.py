"""Observe calls that no torch mode sees: functions of other libraries, Triton kernels, plain Python functions with a formula."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch.overrides import handle_torch_function

from ..names import Absent
from ..ops._libraries import LibraryFunction
from ..records import TRITON
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, is_torch_function_enabled, len_torch_function_stack
from .function_calls import FunctionCalls
from .kernel_launches import function_of, grid_of, names_of
from .library_calls import LibraryCalls
from .library_functions import has_values
from .observer_state import SharedState, ThreadPart, ThreadState
from .recording import Recording


class CallsOutsideTorch(ThreadPart):
    """The calls in one thread that no torch mode sees.

    To see them, the functions of other libraries are replaced (:mod:`.library_functions`), and so is the function by which Triton
    launches kernels (:mod:`.kernel_launches`). ``sys.setprofile`` reports calls of plain Python functions for which the user has a
    formula (:mod:`.python_functions`).
    """

    def __init__(
        self,
        shared: SharedState,
        state: ThreadState,
        recording: Recording,
        library: LibraryCalls,
        functions: FunctionCalls,
    ) -> None:
        super().__init__(shared, state)
        self._recording = recording
        self._library = library
        self._functions = functions

    def library_function(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run and record a library function called in this thread."""
        func.arguments(args, kwargs)  # raises TypeError if the function does not accept these arguments
        if is_torch_function_enabled() and len_torch_function_stack():
            return handle_torch_function(func, (), *args, **kwargs)
        if self._state.inside_call():
            with self._state.within_call():
                return self._library.run(func, args, kwargs)
        return self._functions.function(func, args, kwargs)

    def launched(
        self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], launch: Callable[[], Any]
    ) -> Any:
        """Record a Triton kernel's launch; launch the kernel if its tensors have values. All its arguments are assumed to be written to."""
        with DisableTorchFunction():
            computes = not self._world.is_meta and has_values((args, kwargs))
            if self._state.inside_call():
                return launch() if computes else None
            function = function_of(kernel)
            name = Absent(f"{TRITON}{function.__name__}")
            registered = next((own for own in (kernel, function) if self._registry.find(own) is not None), None)
            start = self._stopwatch.now()
            with self._state.within_call():
                out = launch() if computes else None
            with self._lock:
                self._unwritten.wrote((args, kwargs))
                # A formula for the kernel object gets arguments by position; a formula for the kernel's name gets them by name.
                names = () if registered is not None else names_of(kernel)[: len(args)]
                by_name = {**dict(zip(names, spec_of(args), strict=False)), **spec_of(kwargs)}
                call_specs = spec_of(args[len(names) :]), {**by_name, "grid": grid_of(kernel, grid, args, kwargs)}, None
                target = name if registered is None else kernel
                self._recording.record(
                    self._registry.find(registered or name), target, call_specs, self._stopwatch.now() - start
                )
            return out

    def begin_function(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._stack.inside_leaf() or self._state.in_call:
            return None
        with DisableTorchFunction():
            return spec_of(args), spec_of(kwargs), self._recording.graph_arguments(args, kwargs), self._stopwatch.now()

    def end_function(self, function: FunctionType, beginning: Any, value: Any) -> None:
        specs, kwspecs, node_args, start = beginning
        with DisableTorchFunction():
            call_specs = specs, kwspecs, spec_of(value)
            self._recording.record(self._registry.find(function), function, call_specs, self._stopwatch.now() - start)
            self._recording.own_nodes_behind(value)
            if node_args is not None:
                self._graph_listener.function(function, node_args, value, self._stack.keys())

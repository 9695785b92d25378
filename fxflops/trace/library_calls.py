"""Run functions of other libraries, and record the backward pass of each as one call."""

from __future__ import annotations

from typing import Any

import torch

from ..ops import Formula
from ..ops._libraries import LibraryFunction
from ..records import specs_in
from ..records.facts import ATTENTION, with_facts
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, current_graph_task_id
from .call_log import CallSpecs
from .library_functions import has_values, nodes_between, run_original, run_without_values, tensors_of
from .model_tensors import Arguments
from .observer_state import ThreadPart


class LibraryCalls(ThreadPart):
    """Runs functions of other libraries, e.g. of flash-attn, makes the specs of their arguments and results, and records their backward."""

    def run(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a library's function; if its tensors have no values, make the result by the function's rule."""
        if func.kernel.result is not None:
            named_arguments = self.described(func, args, kwargs)
            if not has_values(named_arguments):
                return run_without_values(func, named_arguments)
        return self._stopwatch.run(run_original, (func, args, kwargs), {}, work=func)

    def described(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a library's function, keyed by the names that its formula uses, with this world's tensors."""
        _, arguments = self._world.tensors.replace((), func.described(args, kwargs), func)
        return arguments

    def specs_of(self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the specs of the arguments of a library's function, by the names that its formula uses."""
        specs: dict[str, Any] = spec_of(self.described(func, args, kwargs))
        return specs

    def result_of(self, formula: Formula | None, func: LibraryFunction, arguments: Arguments, out: Any) -> Any:
        """Return the spec of the result of a library's function, with the facts that depend on its arguments' values."""
        result = spec_of(out)
        if out is None and func.kernel.writes:  # the result is the tensor that the function writes to
            result = spec_of(func.arguments(*arguments).get(func.kernel.writes[0]))
        return self.facts_of(formula, func, arguments, result)

    def facts_of(self, formula: Formula | None, func: LibraryFunction, arguments: Arguments, result: Any) -> Any:
        facts = func.kernel.facts
        if facts is None or not any(True for _ in specs_in(result)):
            return result
        try:
            return with_facts(result, **facts(func.described(*self._world.tensors.current_arguments(arguments))))
        except NotImplementedError:
            if self._shared.must_read_masks and formula is not None and formula.op == ATTENTION:
                raise
            return result

    def follow_backward(
        self, func: LibraryFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call_specs: CallSpecs, out: Any
    ) -> None:
        """Record the backward of a library's function as one call, whatever operators its autograd nodes run."""
        formula = self._registry.find(func.backward)
        if not torch.is_grad_enabled() or (formula is None and func.kernel.result is None):
            return
        named_arguments = self.described(func, args, kwargs)
        needing_grad = tuple(
            name for name, value in named_arguments.items() if any(t.requires_grad for t in tensors_of(value))
        )
        nodes = nodes_between(out, named_arguments) if needing_grad else []
        if not nodes:
            return
        _, specs, result = call_specs
        facts = next((spec.facts for spec in specs_in(result)), {})
        grads = with_facts(tuple(specs[name] for name in needing_grad), **facts)
        backward_specs = (), {"grad": result, **specs, "needs": needing_grad}, grads
        call_numbers = dict[int, int]()  # for each backward pass, by its id: the number of its recorded call
        states_before = list[tuple[bool, bool, float]]()

        def begin(*_: Any) -> None:
            backward_pass = current_graph_task_id()
            if backward_pass not in call_numbers:
                with self._lock, DisableTorchFunction():
                    call_numbers[backward_pass] = len(self._calls)
                    self._call_log.call(formula, func.backward, backward_specs, self._state.innermost_path(), 0.0)
            states_before.append((self._state.in_call, self._state.in_library_backward, self._stopwatch.now()))
            self._state.in_call = self._state.in_library_backward = True

        def end(*_: Any) -> None:
            if states_before:
                self._state.in_call, self._state.in_library_backward, start = states_before.pop()
                number = call_numbers[current_graph_task_id()]
                call = self._calls[number]
                self._calls[number] = call._replace(seconds=(call.seconds or 0.0) + self._stopwatch.now() - start)

        self._owners.own_nodes(len(self._calls) - 1, nodes)
        for node in nodes:
            self._shared.library_hooks += node.register_prehook(begin), node.register_hook(end)

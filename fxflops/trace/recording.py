"""Record calls: with the specs of their arguments and results, the owners of their autograd nodes, and their tensors."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from ..model.pytree import tensors_given
from ..ops import Formula
from ..ops._libraries import LibraryFunction
from ..ops.einsum import PATH, path_taken
from ..records import FORWARD, OPTIMIZER, Operation
from ..records.facts import ATTENTION, ATTENTIONS, with_facts
from ..records.tensors import spec_of
from ..torch_internals import STOPS_RECOMPUTING, DisableTorchFunction, current_graph_task_id, of_checkpoint
from .call_log import CallSpecs
from .library_calls import LibraryCalls
from .library_functions import result_by_rule
from .model_tensors import Arguments
from .observer_state import SharedState, ThreadPart, ThreadState
from .processes import is_between_processes


class Recording(ThreadPart):
    """Records the calls of one thread in the run's log.

    ``library`` makes the specs of calls of other libraries' functions.
    """

    def __init__(self, shared: SharedState, state: ThreadState, library: LibraryCalls) -> None:
        super().__init__(shared, state)
        self._library = library

    def record(
        self, formula: Formula | None, target: Any, call_specs: CallSpecs, seconds: float, origin: str = ""
    ) -> None:
        """Record a call that was observed, in the innermost module: make its operation, and end its list of operators."""
        if self._stack.open:
            self._stack.open[-1].inside += seconds
        self._state.call_operators.clear()
        self._call_log.call(formula, target, call_specs, self._state.innermost_path(), seconds, origin=origin)

    def add_repeated(
        self, operation: Operation, path: str, seconds: float | None, origin: str, result: Any = (), arguments: Any = ()
    ) -> None:
        """Record a call whose operation is known. It may have written to its arguments.

        Not called in a backward pass, where no world's ``memo_of_functions_and_leaves`` allows the memo, so the call's path needs no owner.
        """
        # A run without the dispatch mode is repeated with it, if the model runs a backward pass.
        phase = self._phases.now() if self._world.observe_dispatch else FORWARD
        self._call_log.add(operation, path, seconds, phase, origin)
        self.own_nodes_behind(result, arguments)

    def record_unobservable(self, op: str, module: nn.Module, arguments: Any) -> None:
        """Record a module call that could not be observed, as a call of the op ``op``, which has no formula."""
        with self._lock, DisableTorchFunction():
            self._call_log.call(
                None, op, (*spec_of(arguments), None), self._shared.observed_modules[id(module)].path, 0.0
            )

    def graph_arguments(self, args: Any, kwargs: Any) -> Any:
        """Return the arguments of a call as nodes of the recorded graph; None if the call is not a separate node.

        A gradient that the forward computes is a single node, which includes the hooks and recomputations of its backward pass.
        """
        if self._state.in_node or current_graph_task_id() != -1:
            return None
        return self._graph_listener.before(args, kwargs)

    def argument_specs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the specs of a call's positional and keyword arguments. For another library's function, all arguments are named."""
        if type(func) is LibraryFunction:
            return (), self._library.specs_of(func, args, kwargs)
        return spec_of(args), spec_of(kwargs)

    def result_spec(self, formula: Formula | None, func: Any, arguments: Arguments, out: Any) -> Any:
        """Return a result's spec, with the facts that a formula needs besides the shape."""
        if type(func) is LibraryFunction:
            return self._library.result_of(formula, func, arguments, out)
        if formula is not None and formula.op in ATTENTIONS:
            # Read a mask only for the forward: the backward pass of attention reuses the number of pairs that the forward recorded.
            must = self._shared.must_read_masks and formula.op == ATTENTION
            return self._shared.masks.with_pairs_left(
                formula, func, self._world.tensors.current_arguments(arguments), out, must
            )
        if func is torch.einsum:
            return with_facts(self._world.spec(out), **{PATH: path_taken(spec_of(arguments[0]))})
        return self._world.spec_of_result(formula, arguments[0], out)

    def with_mask_of(self, operation: Operation, func: Any, args: Any, kwargs: Any, out: Any) -> Operation:
        """Return an attention operation from the memo, with the number of pairs that this call's own mask keeps."""
        formula = self._registry.find(func)
        if formula is None:
            return operation
        return operation._replace(out=self.result_spec(formula, func, (args, kwargs), out))

    def check_reads(self, formula: Formula | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """If a function reads memory that no observed call has written, record the unseen write as a call without a formula."""
        if is_between_processes(func):  # neither its schema nor its name shows which arguments it writes to
            self._unwritten.wrote((args, kwargs))
        elif self._unwritten.take_reads(formula, func, args, kwargs):
            self._call_log.call(
                None, "unseen write to torch.empty", (*spec_of((args, kwargs)), None), self._state.innermost_path(), 0.0
            )

    def call_raised(
        self, path: str, formula: Formula | None = None, target: Any = None, arguments: Any = ((), {})
    ) -> None:
        """Handle an exception from a call in the module at this path.

        ``formula`` is the formula of the function that raised; None if the function has no formula, or a module raised.
        """
        # Checkpoint stops recomputing by raising inside a call: record the operators of the call that have already run.
        if isinstance(sys.exc_info()[1], of_checkpoint(STOPS_RECOMPUTING)):
            if type(target) is LibraryFunction and target.kernel.result is not None:
                named_specs = self._library.specs_of(target, *arguments)
                result = self._library.facts_of(formula, target, arguments, result_by_rule(target, named_specs))
                self._call_log.call(formula, target, ((), named_specs, result), path, 0.0)
                self._state.call_operators.clear()
                return
            for func, (*specs, out) in self._state.call_operators:
                part = self._registry.find(func)
                if formula is not None and part is not None and formula.op == part.op == ATTENTION:
                    out = self.result_spec(
                        formula, target, arguments, out
                    )  # the kernel may have got a mask without values
                self._call_log.call(part, func, (*specs, out), path, 0.0)
        self._state.call_operators.clear()

    def track(self, out: Any) -> Any:
        """Track tensors as made by the call that is recorded next; return them."""
        self._storages.begin_next_call()
        self._storages.add_all(out)
        return out

    def enter_earlier_tensors(self, args: Any, kwargs: Any) -> None:
        """Track the arguments of a call that are older than the run. Their memory category depends on where the call runs.

        Outside models, such tensors are inputs: loss targets, or data to be cut into batches. In a model, they are tensors that
        the model uses without registering them, and get the category of buffers. In a backward pass, they are activations of an
        earlier forward.
        """
        with DisableTorchFunction():
            if not kwargs and self._storages.has_all(args):  # most arguments are results of earlier calls
                return
            if (
                self._state.operator_mode.is_faking()
            ):  # DTensor infers the shapes of its results on its own fake tensors
                return
            with self._lock:
                phase = self._phases.now()
                if phase == FORWARD:
                    category = "buffers" if self._stack.open else "inputs"
                else:
                    category = "optimizer" if phase == OPTIMIZER else ""
                tensors = tensors_given((args, kwargs))
                self._storages.add_given(tensors, category, self._world.device)
                for tensor in tensors:
                    if tensor.requires_grad and tensor.is_leaf and not self._storages.was_made_by_call(tensor):
                        self._shared.change_listener.uses_leaf(tensor)

    def own_nodes_behind(self, result: Any, arguments: Any = ()) -> None:
        """Assign the autograd nodes behind the last recorded call's result, and behind arguments that it wrote to, to this call."""
        if torch.is_grad_enabled():
            self._owners.own(len(self._calls) - 1, result, arguments)

    def own_end_of_module(self, path: str, out: Any) -> None:
        """Assign unowned autograd nodes behind a module's result to the last call in the module.

        The module may end with an ``autograd.Function``, whose result no later call in the module takes. Or the module is a TorchScript
        module: its operators are seen below autograd, so when the last one returns, its autograd node does not exist yet.
        """
        if not self._calls or not torch.is_grad_enabled():
            return
        self._owners.own_function(len(self._calls) - 1, out)
        is_inside = not path or f"{self._calls[-1].path}.".startswith(f"{path}.")
        if is_inside:
            self.own_nodes_behind(out)

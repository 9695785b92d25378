"""The fast path of observing a simulated rank: an operator like an earlier one is recorded as the same operation, and not run."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..records import Call, Operation
from ..records.pairs import ATTENTIONS
from ..records.tensors import spec_of
from ..torch_internals import (
    DisableTorchFunction,
    current_graph_task_id,
    get_current_dispatch_mode_stack,
    len_torch_dispatch_stack,
)
from .call_log import Made
from .fake_results import FakeResults
from .live import LiveObserver
from .operators import RNN_BACKWARD
from .processes import communicates, copies_gathered

VALUED = frozenset({*ATTENTIONS, RNN_BACKWARD})
"""Operations whose record depends on more than metadata."""


class Learnt(NamedTuple):
    """The record of operators of one kind: the specs given and returned, and the operation of those that are calls."""

    made: Made
    operation: Operation | None


class SimulatedObserver(LiveObserver):
    """The observer of ``profile()`` under a mode with the ``results`` of operators, which must be the last one on.

    All that the record of an operator takes from it follows from its key there, but for its phase, place and memory.
    """

    def __init__(self, results: FakeResults, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._results = results
        self._learnt_calls: dict[Any, Learnt] = {}
        self._learnt_parts: dict[Any, Learnt] = {}

    def switch_on(self) -> None:
        self._below = len_torch_dispatch_stack()
        super().switch_on()

    def operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with DisableTorchFunction():
            given, key = list[Any](), None
            if not self._unwritten.storages and len_torch_dispatch_stack() == self._below:
                key = self._results.key_of(func, args, kwargs, given)
            if key is None:
                return super().operator(func, args, kwargs)
            is_call = not (self._in_call or self._inside_leaf())
            learnt = self._learnt_calls if is_call else self._learnt_parts
            known = learnt.get(key)
            if known is None:
                return self._learn_operator(learnt, key, is_call, func, args, kwargs)
            with self.lock:
                self.phases.on_operator(func, args)
                self._storages.call = len(self.calls)
                out = self._results.of(key, func, args, kwargs, given)
                returned = known.made[2]
                pairs = (
                    ((out, returned),)
                    if type(out) is self._results.fake
                    else zip(out or (), returned or (), strict=True)
                )
                for tensor, spec in pairs:
                    if tensor is not None:
                        self._storages.add(tensor, spec)
                if known.operation is not None:
                    self._parts.clear()
                    phase, path = self.log.placed(self._here())
                    self.calls.append(
                        tuple.__new__(Call, (known.operation, path, "", "", 0.0, phase, self._origin(func, phase)))
                    )
                    self._owns((out, args))
                elif current_graph_task_id() != -1:
                    self._parts.append((func, known.made))
                return out

    def _learn_operator(
        self,
        learnt: dict[Any, Learnt],
        key: Any,
        is_call: bool,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run and record an operator, and keep its record for those that are like it."""
        first = len(self.calls)
        out = super().operator(func, args, kwargs)
        entry = self._registry.find(func)
        valued = entry is None or entry.op in VALUED or communicates(func) or copies_gathered(func)
        if not valued and self._results.knows(key) and len(self.calls) == first + is_call:
            operation = self.calls[first].operation if is_call else None
            made = spec_of(args), spec_of(kwargs), spec_of(out)
            learnt[key] = Learnt(made, operation)
        return out


def results_on() -> FakeResults | None:
    """Return the results of operators of the dispatch mode that was turned on last; None if it has none."""
    modes = get_current_dispatch_mode_stack()
    found = getattr(modes[-1], "results", None) if modes else None
    return found if isinstance(found, FakeResults) else None

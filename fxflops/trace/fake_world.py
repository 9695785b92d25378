"""The world of a simulated rank. A repeated operator call does not run; it is recorded as the same operation as the earlier call."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..records import Operation
from ..records.calls import VALUE_READ
from ..torch_internals import get_current_dispatch_mode_stack, len_torch_dispatch_stack
from .fake_results import FakeResults
from .memo import NEW, MemoryEffect, NewCall, Recipe
from .processes import communicates
from .profiled_world import ProfiledWorld
from .worlds import OBSERVED_EACH_TIME

READS_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
"""The names of the exceptions that fake tensors raise if a result depends on a tensor's values."""


class FakeWorld(ProfiledWorld):
    """A world of fake tensors under a mode that remembers the ``results`` of operators.

    The mode that remembers the results must be the innermost mode when a run begins. The record of an operator depends only on the operator's key in
    ``results``, except for phase, module and memory.

    Functions are observed anew in each call, although a ProfiledWorld has a memo for them: the rank's mode is a second dispatch mode, and
    ``memo_of_functions_and_leaves`` allows the memo of functions only under one.
    """

    def __init__(self, device: torch.device | None, results: FakeResults) -> None:
        super().__init__(device)
        self._results = results

    def begin_thread(self) -> Iterable[AbstractContextManager[Any]]:
        self._modes_around = len_torch_dispatch_stack()
        return ()

    def raised(self, error: Exception) -> str:
        return VALUE_READ if type(error).__name__ in READS_VALUES else ""

    def operator_key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if len_torch_dispatch_stack() != self._modes_around:
            return None, None
        return self._results.key_of(func, args, kwargs)

    def keep_operator_recipe(
        self, call: NewCall, operation: Operation, out: Any, memory_effect: MemoryEffect, is_part: bool
    ) -> None:
        is_repeatable = call.formula.op not in OBSERVED_EACH_TIME and not communicates(operation.target)
        if is_repeatable and self._results.knows(call.key):
            self.memo[call.key] = Recipe(operation, NEW, is_part=is_part)

    def repeat_operator(self, recipe: Recipe, key: Any, func: Any, args: Any, kwargs: Any, tensors: Any) -> Any:
        results, specs = self._results.of(key, func, args, kwargs, tensors), recipe.operation.out
        is_single = type(results) is self._results.fake
        for tensor, spec in ((results, specs),) if is_single else zip(results or (), specs or (), strict=True):
            if tensor is not None:
                self._storages.add(tensor, spec)
        return results


def results_on() -> FakeResults | None:
    """Return the ``results`` of the innermost dispatch mode; None if that mode has no results. The mode of a simulated rank has them
    (``distributed/rank_mode.py``)."""
    modes = get_current_dispatch_mode_stack()
    results = getattr(modes[-1], "results", None) if modes else None
    return results if isinstance(results, FakeResults) else None

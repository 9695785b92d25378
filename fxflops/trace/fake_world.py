"""The world of a simulated rank: a repeated operator call is recorded as the earlier operation without running."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..ops import Formula
from ..records import Operation
from ..records.pairs import ATTENTIONS
from ..torch_internals import get_current_dispatch_mode_stack, len_torch_dispatch_stack
from .fake_results import FakeResults
from .memo import NEW, Ended, Known
from .processes import communicates
from .real_world import RealWorld
from .worlds import RNN_BACKWARD, Arguments

VALUED = frozenset({*ATTENTIONS, RNN_BACKWARD})
"""Operations whose record depends on more than metadata."""


class FakeWorld(RealWorld):
    """Fake tensors under a mode that remembers the ``results`` of operators. It must be the innermost mode when a run begins.

    An operator's record depends only on its key there, except for phase, module and memory.
    """

    def __init__(self, device: torch.device | None, results: FakeResults) -> None:
        super().__init__(device)
        self._results = results

    def contexts(self) -> Iterable[AbstractContextManager[Any]]:
        self._modes_around = len_torch_dispatch_stack()
        return ()

    def operator_key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if len_torch_dispatch_stack() != self._modes_around:
            return None, None
        return self._results.key_of(func, args, kwargs)

    def learn_operator(
        self, key: Any, entry: Formula, operation: Operation, given: Arguments, out: Any, ended: Ended, is_part: bool
    ) -> None:
        is_valued = entry.op in VALUED or communicates(operation.target)
        if not is_valued and self._results.knows(key):
            self.memo[key] = Known(operation, NEW, is_part=is_part)

    def make_known_operator(self, known: Known, key: Any, func: Any, args: Any, kwargs: Any, given: Any) -> Any:
        out, returned = self._results.of(key, func, args, kwargs, given), known.operation.out
        is_single = type(out) is self._results.fake
        for tensor, spec in ((out, returned),) if is_single else zip(out or (), returned or (), strict=True):
            if tensor is not None:
                self._storages.add(tensor, spec)
        return out


def results_on() -> FakeResults | None:
    """Return the ``results`` of the innermost dispatch mode; None if it has none."""
    modes = get_current_dispatch_mode_stack()
    results = getattr(modes[-1], "results", None) if modes else None
    return results if isinstance(results, FakeResults) else None

"""Decide when the memo may be used, and pass each new call to the world, which may remember it."""

from __future__ import annotations

from typing import Any

from ..torch_internals import is_any_autocast_enabled
from .memo import BeforeCall, Memo, MemoryEffect, NewCall
from .modes import transformed
from .observer_state import ThreadPart


class MemoUse(ThreadPart):
    """Decides when a call's record may come from the memo, and passes new calls to the world, which may add recipes for them."""

    def memo_now(self, is_our_mode_popped: bool) -> Memo | None:
        """Return the world's memo; None if the record of a function or a leaf currently depends on more than its tensors' metadata.

        The record depends on more inside another call or a higher-order operator, while uninitialized memory exists, with several
        threads, under autocast or a functorch transform, or if the world says so. ``is_our_mode_popped``: our function mode is off because
        it is handling a call.
        """
        memo = self._world.memo_of_functions_and_leaves(is_our_mode_popped)
        depends_on_more = memo is not None and (
            self._stack.leaf_depth
            or self._state.in_call
            or self._state.in_higher_order  # the function mode is on inside a higher-order operator, too
            or self._shared.threads.by_thread
            or self._state.plain_functions.current
            or self._unwritten.storages
            or is_any_autocast_enabled()
            or transformed()
        )
        return None if depends_on_more else memo

    def begin(self) -> BeforeCall:
        """Return the run's state before a call, to be passed to :meth:`end`."""
        return BeforeCall(len(self._calls), len(self._shared.scopes), self._storages.begin_call())

    def memory_effect(self, before: BeforeCall, arguments: Any) -> MemoryEffect:
        """Return the effect on memory of the call that has just ended."""
        return MemoryEffect(*self._storages.end_call(before.mark, arguments), before.mark.storage_count)

    def end(self, call: NewCall, before: BeforeCall, out: Any, scopes: int | None = None) -> None:
        """Pass a finished call to the world, which may remember it, if it was recorded as exactly one call, with the call's target.

        ``scopes`` is the number of scopes that must have been recorded in the call; None allows any number. A call with more scopes
        must not be skipped later, or the scopes of the modules inside it would be missing.
        """
        memory_effect = self.memory_effect(before, (call.args, call.kwargs))
        is_only_call = len(self._calls) == before.calls + 1
        if scopes is not None:
            is_only_call = is_only_call and len(self._shared.scopes) == before.scopes + scopes
        if is_only_call:
            operation = self._calls[before.calls].operation
            if operation.target is call.target:
                self._world.keep_recipe(call, operation, out, memory_effect)

"""What an observer has seen of a run: the calls it made, and those of its modules."""

from __future__ import annotations

from typing import Any

from ..ops import Formula
from ..records import NOTHING, Call, Operation, Scope, typed
from .autograd_owners import AutogradOwners
from .functions import qualified_name
from .leaves import ModuleSettings
from .phases import BACKWARD, Phases
from .source import author_line

Made = tuple[Any, Any, Any]
"""The specs of a call's arguments, its keyword arguments and its result."""


class Seen:
    """The calls of a run, those of its modules (``scopes``), and the outermost of these with the calls made in them
    (``steps``). With ``owners``, a call of the backward pass stands in the module whose gradient it computes."""

    def __init__(self, phases: Phases, owners: AutogradOwners | None) -> None:
        self.calls: list[Call] = []
        self.scopes: list[Scope] = []
        self.steps: list[tuple[str, range]] = []
        self._now = phases.now
        self._owners = owners
        self._operations: dict[Any, Operation] = {}

    def operation(self, op: str, target: Any, made: Made, known: ModuleSettings | None = None) -> Operation:
        """What ran: the same object for all that are equal."""
        key = op, target, known, *map(typed, made)
        settings = NOTHING if known is None else known.settings
        try:
            found = self._operations.get(key)
        except TypeError:  # no hash
            return Operation(op, target, *made, settings)
        if found is None:
            found = self._operations[key] = Operation(op, target, *made, settings)
        return found

    def call(
        self, entry: Formula | None, target: Any, made: Made, path: str, seconds: float,
        known: ModuleSettings | None = None,
    ) -> Operation:  # fmt: skip
        """Record a call that was made in the module of this path, of a leaf with its settings."""
        op = entry.op if entry is not None else qualified_name(target)
        site = author_line() if entry is None else ""
        phase, path = self.placed(path)
        operation = self.operation(op, target, made, known)
        self.calls.append(Call(operation, path, "", site, seconds, phase))
        return operation

    def placed(self, path: str) -> tuple[str, str]:
        """The phase of the next call, and the path of its module, where it is made in the one of this path."""
        phase = self._now()
        return phase, path if phase != BACKWARD or self._owners is None else self._owners.placed(path, self.calls)

    def module(
        self, path: str, operation: Operation, known: ModuleSettings, has_children: bool, begun: int | None
    ) -> None:
        """Record the call of a module that is over; of an outermost one ``begun`` is the number of its first call."""
        if begun is not None:
            self.steps.append((path, range(begun, len(self.calls))))
        self.scopes.append(Scope(path, operation, known.params, has_children))

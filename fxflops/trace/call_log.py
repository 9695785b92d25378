"""The log of an observed run: its calls, each with its operation, phase and place."""

from __future__ import annotations

from typing import Any

from ..ops import Formula
from ..records import EMPTY_MAPPING, Call, Operation, typed
from .autograd_owners import AutogradOwners
from .functions import qualified_name
from .leaves import ModuleSettings
from .phases import BACKWARD, RECOMPUTE, Phases
from .source import author_line

Made = tuple[Any, Any, Any]
"""The specs of a call's arguments, its keyword arguments and its result."""


class CallLog:
    """The calls of a run.

    With ``owners``, a call of the backward pass gets the path of the module whose gradient it computes.
    """

    def __init__(self, phases: Phases, owners: AutogradOwners | None) -> None:
        self.calls: list[Call] = []
        self._now = phases.now
        self._in_module = phases.in_module
        self._owners = owners
        self._operations: dict[Any, Operation] = {}

    def _operation(self, op: str, target: Any, made: Made, known: ModuleSettings | None) -> Operation:
        """Return the operation; equal ones are the same object."""
        key = op, target, known, *map(typed, made)
        settings = EMPTY_MAPPING if known is None else known.settings
        try:
            found = self._operations.get(key)
        except TypeError:  # no hash
            return Operation(op, target, *made, settings)
        if found is None:
            found = self._operations[key] = Operation(op, target, *made, settings)
        return found

    def call(
        self, entry: Formula | None, target: Any, made: Made, path: str, seconds: float,
        known: ModuleSettings | None = None, is_placed: bool = False, origin: str = "",
    ) -> Operation:  # fmt: skip
        """Record a call made in the module of this path; ``known`` are the settings of a leaf.

        With ``is_placed`` the path is that of its module also in the backward pass.
        """
        op = entry.op if entry is not None else qualified_name(target)
        site = author_line() if entry is None else ""
        phase, path = (self._now(), path) if is_placed else self.placed(path)
        operation = self._operation(op, target, made, known)
        self.calls.append(Call(operation, path, "", site, seconds, phase, origin))
        return operation

    def placed(self, path: str) -> tuple[str, str]:
        """Return the phase and the path of the next call, made in the module of this path.

        Outside of all modules, what a backward pass computes belongs to the module of the node that runs: gradients, and
        functions that are run again.
        """
        phase = self._now()
        if self._owners is None or phase not in (BACKWARD, RECOMPUTE) or self._in_module():
            return phase, path
        return phase, self._owners.placed(path, self.calls, phase == BACKWARD)

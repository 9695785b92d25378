"""The log of an observed run: all calls, with the operation, the phase and the module path of each."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..ops import Formula
from ..records import BACKWARD, EMPTY_MAPPING, RECOMPUTE, Call, Operation, typed
from .autograd_owners import Owners
from .functions import qualified_name
from .leaves import ModuleSettings
from .phases import Phases
from .source import author_line

CallSpecs = tuple[Any, Any, Any]
"""The specs of a call's arguments, its keyword arguments and its result."""


class FailedCall(NamedTuple):
    """A call that raised: the name of the function or the module class, the module's path, and the specs of the arguments."""

    name: str
    path: str
    arguments: tuple[Any, Any]


class CallLog:
    """The calls of a run. :meth:`call` records an observed call, :meth:`add` records a call whose operation is known already.

    ``owners`` gives a backward call the path of the module whose gradient the call computes.
    """

    def __init__(self, phases: Phases, owners: Owners) -> None:
        self.calls: list[Call] = []
        self._phase_now = phases.now
        self._in_module = phases.in_module
        self._owners = owners
        self._operations: dict[Any, Operation] = {}

    def operation(
        self, op: str, target: Any, call_specs: CallSpecs, settings: ModuleSettings | None = None
    ) -> Operation:
        """Return the operation with these fields. Of equal operations, this method returns the same object, unless a field is unhashable.
        ``settings`` are a leaf module's settings."""
        fields = op, target, *call_specs, EMPTY_MAPPING if settings is None else settings.by_name
        try:
            return self.shared((op, target, settings, *map(typed, call_specs)), fields)
        except TypeError:  # unhashable
            return Operation(*fields)

    def shared(self, key: Any, fields: tuple[Any, ...]) -> Operation:
        """Return the operation with these fields. All calls with the same key get the same object."""
        operation = self._operations.get(key)
        if operation is None:
            operation = self._operations[key] = tuple.__new__(Operation, fields)
        return operation

    def call(
        self, formula: Formula | None, target: Any, call_specs: CallSpecs, path: str, seconds: float,
        settings: ModuleSettings | None = None, phase: str = "", origin: str = "",
    ) -> Operation:  # fmt: skip
        """Record an observed call made in the module at ``path``: make its operation, phase and path, then :meth:`add` it.

        Returns the operation. ``settings`` are a leaf module's settings.

        ``formula`` only gives the operation its name: the count looks up the formula of ``target`` again.

        ``phase`` is the call's phase, if the call belongs to ``path`` in any phase; "" if both follow from what is running.
        """
        op = formula.op if formula is not None else qualified_name(target)
        site = author_line() if formula is None else ""
        if not phase:
            phase, path = self.take_phase_and_path(path)
        operation = self.operation(op, target, call_specs, settings)
        self.add(operation, path, seconds, phase, origin, site)
        return operation

    def add(
        self, operation: Operation, path: str, seconds: float | None, phase: str, origin: str = "", site: str = ""
    ) -> None:
        """Append a call whose operation, phase and path are known. No other code appends calls; the backward of a library's function adds its
        seconds later."""
        # The fields: operation, path, node, site, seconds, phase, origin. The node is set at the end of an analysis.
        self.calls.append(tuple.__new__(Call, (operation, path, "", site, seconds, phase, origin)))

    def take_phase_and_path(self, path: str) -> tuple[str, str]:
        """Return the phase and the path of the next call, which the module at ``path`` makes. Call this once for each call, right before
        :meth:`add`, while the module is open.

        Outside all modules, a call in the backward pass (a gradient or a recomputation) belongs to the module whose autograd
        node is running. A gradient is then noted as a call of that node's owner.
        """
        phase = self._phase_now()
        if phase not in (BACKWARD, RECOMPUTE) or self._in_module():
            return phase, path
        return phase, self._owners.note_owner_and_path(path, self.calls, phase == BACKWARD)

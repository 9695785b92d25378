"""What is remembered from count to count, by the formulas that it was counted with: calls, blocks, counts, whole runs."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ..ops import Table
from ..records import Call, Counted, Spec
from .blocks import Block
from .tokens import Numbers
from .whole import Whole

MOST_PLANS = 50_000
MOST_CALLS = 1_000_000


class Form(NamedTuple):
    """What an empty tensor is made of."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    spec: Spec


class Plan(NamedTuple):
    """A call to be made again: the parts of the Call before and after its path, and what comes out; of a leaf the Scope
    after its path. With ``beside`` it takes tensors that have values, of which the twins are to be made."""

    before: tuple[Any, ...]
    after: tuple[Any, ...]
    kind: str
    forms: tuple[Form, ...] = ()
    sequence: Any = None
    scope: tuple[Any, ...] = ()
    beside: bool = False

    def call(self, path: str) -> Call:
        """The Call, made in the module of this path."""
        return tuple.__new__(Call, (*self.before, path, *self.after))


class Plans:
    """Calls by all that they depend on, ``blocks`` (modules' calls as a whole) likewise, and what calls were counted as.

    ``wholes`` are whole runs. ``numbers`` are those by which modules are known. ``kept`` are the ids of what the calls put
    out or took, by which one made again is known; ``counts`` their costs, and ``runs`` whole runs as they were counted. All
    are forgotten together, for ids are known only as long as what has them is kept.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, Plan] = {}
        self.get = self._plans.get
        self.blocks: dict[Any, Block] = {}
        self.wholes: dict[Any, Whole] = {}
        self.numbers = Numbers()
        self.kept: set[int] = set()
        self.counts: dict[Any, Counted] = {}
        self.held: list[Any] = []
        self.runs: dict[Any, tuple[tuple[Call, ...], list[Counted]]] = {}
        self._calls = 0

    def keep(self, key: Any, out: Any, plan: Plan) -> None:
        """Remember a plan by its key, and that it put this out."""
        if len(self._plans) >= MOST_PLANS:
            self._forget()
        self._plans[key] = plan
        self.kept.add(id(out))

    def keep_blocks(self, blocks: Mapping[Any, Block]) -> None:
        """Remember blocks by their keys."""
        new = {key: block for key, block in blocks.items() if key not in self.blocks}
        if self._has_room(sum(len(block.calls) for block in new.values())):
            self.blocks.update(new)
            self.kept.update(id(call.args) for block in new.values() for call in block.calls if call.args)

    def keep_whole(self, key: Any, whole: Whole) -> None:
        """Remember a whole run by its key."""
        if self._has_room(len(whole.measured.calls)):
            self.wholes[key] = whole

    def _has_room(self, calls: int) -> bool:
        """Whether there is room for so many calls more; if not, all is forgotten."""
        fits = self._calls + calls <= MOST_CALLS
        if fits:
            self._calls += calls
        else:
            self._forget()
        return fits

    def _forget(self) -> None:
        for part in (self._plans, self.blocks, self.wholes, self.kept, self.counts, self.held, self.runs):
            part.clear()
        self.numbers = Numbers()
        self._calls = 0


_KNOWN: weakref.WeakKeyDictionary[Table, tuple[Any, Plans]] = weakref.WeakKeyDictionary()


def plans_of(table: Table) -> Plans:
    """What is remembered of calls counted by these formulas; forgotten when any table is changed, or torch's default dtype."""
    now = Table.changes, torch.get_default_dtype()
    then, plans = _KNOWN.get(table, (None, None))
    if plans is None or then != now:
        plans = Plans()
        _KNOWN[table] = now, plans
    return plans


def forget() -> None:
    """Remember nothing any more."""
    _KNOWN.clear()

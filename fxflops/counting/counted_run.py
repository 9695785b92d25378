"""A counted run: a run with the cost of each call. Sums that several views need are computed here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from ..conventions import title_of
from ..records import FORWARD, PARTS, PHASES, Counted
from ..records.facts import absent_row
from ..run.outcome import Run
from .rollup import Item, ModuleRow, Sums, by_module, items_of, together
from .steps import NO_OPERATION, StepTime, host_items, step_times
from .uncounted import Missing, missing_in


@dataclass(frozen=True, eq=False)
class CountedRun:
    """A run, the cost of each of its calls, and the names of the counting rules.

    All numbers of a report are computed from these four fields. Sums that several views need are properties and methods here,
    computed on first use. Other sums are computed by functions, e.g. in :mod:`fxflops.counting.totals`.
    """

    run: Run
    counted: tuple[Counted, ...]
    """The run's calls in order. If the convention charges modules (as thop does), these charges follow the calls."""
    convention: str = "fxflops"
    attention: str = "dense"
    _items_by_phase: dict[str, list[Item]] = field(default_factory=dict, init=False, repr=False)
    _modules_by_phase: dict[str, dict[str, ModuleRow]] = field(default_factory=dict, init=False, repr=False)

    def items(self, phase: str) -> list[Item]:
        """Return an item for every counted call of a phase, and items for time outside calls.

        The item ``(no op)`` is the time of a graph node without calls. The item ``(host)`` is the time between the operations
        of a profiled block.
        """
        items = self._items_by_phase.get(phase)
        if items is None:
            items = items_of([counted for counted in self.counted if counted[0].phase in PARTS[phase]])
            items += host_items(self.run, phase)
            for node in self.run.nodes if phase == FORWARD else ():
                if not node.calls and node.timing is not None:
                    items.append(Item(node.path, NO_OPERATION, "", Sums(seconds=node.timing.median)))
            self._items_by_phase[phase] = items
        return items

    def modules(self, phase: str) -> dict[str, ModuleRow]:
        """Return a row for each module in a phase, by path. If the phase has no calls, all sums are 0."""
        rows = self._modules_by_phase.get(phase)
        if rows is None:
            module_calls = Counter([scope.path for scope in self.run.scopes])
            rows = by_module(self.items(phase), self.run.modules, module_calls)
            self._modules_by_phase[phase] = rows
        return rows

    @cached_property
    def forward(self) -> Sums:
        """The sums over all calls of the forward pass."""
        return together([item.sums for item in self.items(FORWARD)])

    @cached_property
    def phases(self) -> list[str]:
        """The phases that have calls."""
        phases = {counted.call.phase for counted in self.counted}
        return [phase for phase in PHASES if phase in phases]

    @cached_property
    def missing(self) -> tuple[Missing, ...]:
        """The ops without a formula, in order of appearance."""
        return missing_in(self.counted)

    @cached_property
    def step_times(self) -> dict[str, StepTime]:
        """The times of each step of a profiled block, by the step's name."""
        return step_times(self.run, self.counted)

    @cached_property
    def remarks(self) -> dict[Counted, str]:
        """Remarks by call. The only remark so far: the index of a lookup is outside the table."""
        return {counted: text for counted in self.counted if (text := absent_row(counted.call))}

    # Names and titles

    @cached_property
    def provenance(self) -> str:
        """One line on where the numbers are from: the name by which the model was requested, versions, date and machine."""
        return self.run.environment.provenance

    @property
    def name(self) -> str:
        """The model's class name, followed by the name under which the model was requested, e.g. "ResNet (timm:resnet18)"."""
        requested = self.run.environment.asked
        return f"{self.run.model} ({requested})" if requested else self.run.model

    @property
    def title(self) -> str:
        """The title of a table column with the convention's counts, e.g. "FLOPs"."""
        return title_of(self.convention)

    @cached_property
    def has_attention(self) -> bool:
        return any("attention" in call.op for call in self.run.calls)

    @property
    def rules(self) -> str:
        """The convention and, if the model has attention, how attention is counted, e.g. "convention fxflops, attention dense"."""
        return f"convention {self.convention}" + (f", attention {self.attention}" if self.has_attention else "")

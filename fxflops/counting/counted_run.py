"""A counted run: each call with its cost under a convention, the totals, and the sums by phase, each computed once."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..conventions import BASE_CONVENTION, Convention
from ..meters.history import LiveTensor, Moment
from ..meters.nodes import Node
from ..meters.timing import Timing
from ..records import PARTS, PHASES, Call, Counted, Params
from ..records.pairs import absent_row
from ..run.outcome import Environment, Memory, Run
from .rollup import Item, ModuleRow, OperatorRow, Sums, by_module, by_operator, check_phase, items_of, together
from .saved_module import SavedModule
from .steps import StepTime, by_step, host_items, step_times, unsteady
from .uncounted import IMPORT, NO_FORMULA, Missing, missing_in, recipe_for

if TYPE_CHECKING:
    from torch import nn

    from ..ops import FormulaRegistry

NO_OPERATION = "(no op)"
"""The op of graph nodes that make no call: an input, indexing a tuple, reading a shape."""


class CountedRun:
    """A run whose calls are counted, with its totals; a Report adds tables, views and files.

    The formulas are imported where calls are counted: torch comes with them, and a run from a file has its counts.

    Counts are ints, ``latency`` and ``total_time`` are in seconds, memory is in bytes; what was not measured is None.
    """

    def __init__(
        self,
        run: Run,
        convention: Convention,
        registry: FormulaRegistry | None,
        model: weakref.ref[nn.Module] | None,
        attention: str = "dense",
        counted: tuple[Counted, ...] | None = None,
        known: Mapping[int, Counted] | None = None,
    ) -> None:
        """Count the calls of ``run``, unless ``counted`` has their counts already (as a file does).

        ``registry`` and ``model`` may be None for a run read from a file. ``known`` has the counts that formulas of the
        user's own gave, by the index of the call: a file cannot hold those formulas.
        """
        self._run = run
        self.attention = attention
        self._convention = convention
        if registry is not None:
            self._registry = registry
        self._model = model
        self._known = known or {}
        self._items_by_phase: dict[str, list[Item]] = {}
        self._rows_by_phase: dict[str, dict[str, ModuleRow]] = {}
        if counted is None:
            from .counts import count_run

            counted = count_run(run, convention, self._registry, self._module_at, attention, self._known)
        self.counted: tuple[Counted, ...] = counted

    # Totals

    @property
    def total_flops(self) -> int:
        """FLOPs of all counted calls under the convention; a lower bound if the report is not complete."""
        return self._sums.flops

    @property
    def total_macs(self) -> int:
        """Multiply-accumulates of the contractions: the same under every convention."""
        return self._sums.macs

    @property
    def total_gradient_flops(self) -> int | None:
        """FLOPs of gradients taken inside the forward (forces, derivatives), a part of ``total_flops``; None if none were."""
        return self._flops_of("gradient")

    @property
    def total_backward_flops(self) -> int | None:
        """FLOPs of the backward pass; None if none ran, or the convention has no rules for it."""
        flops = self._flops_of("backward")
        return flops if flops or not self.total_backward_macs else None

    @property
    def total_backward_macs(self) -> int | None:
        """Multiply-accumulates of the backward pass; None if none ran."""
        return self._modules_of("backward")[""].total.macs if "backward" in self._phases else None

    @property
    def total_recompute_flops(self) -> int | None:
        """FLOPs that gradient checkpointing computed again in the backward pass; None if no backward pass ran."""
        return self._flops_of("recompute") or (0 if "backward" in self._phases else None)

    @property
    def total_optimizer_flops(self) -> int | None:
        """FLOPs of the optimizer's step; None if none was seen."""
        return self._flops_of("optimizer")

    @property
    def total_training_flops(self) -> int | None:
        """FLOPs of forward and backward, without recomputation and the optimizer's step; None where those of the backward are."""
        backward = self.total_backward_flops
        return None if backward is None else self.total_flops + backward

    @property
    def total_int_ops(self) -> int:
        """Operations on integers and booleans, which are not FLOPs."""
        return self._sums.int_ops

    @property
    def total_activations(self) -> int:
        """Elements in the outputs of the contractions (fvcore's definition)."""
        return self._sums.activations

    @property
    def total_params(self) -> int | None:
        """Elements of the parameters; a shared parameter is counted once. None for a trace, which does not tell."""
        return None if self.params is None else self.params.total

    @property
    def params(self) -> Params | None:
        return self._run.params

    @property
    def latency(self) -> float | None:
        """Median seconds of the model's own bare run; None if it was not timed, as of a profiled block (``block_time``)."""
        return None if self.timing is None else self.timing.median

    @property
    def timing(self) -> Timing | None:
        """The latency with its spread and the number of repeats."""
        return self._run.latency

    @property
    def backward_timing(self) -> Timing | None:
        """Seconds of the backward pass of the model's own run, as ``timing``; None if none was timed."""
        return self._run.backward_latency

    @property
    def block_time(self) -> float | None:
        """Seconds of a block under ``profile``, without those of observing it; None if it was not timed."""
        return sum(time.seconds for time in self._step_times.values()) or None

    @property
    def device_time(self) -> float | None:
        """Seconds for which the accelerator worked in a profiled block; None elsewhere, and where they are not known.

        They are the device's own, without its waiting for the host, and so do not depend on the observer.
        """
        return self._run.device_busy

    @property
    def instrument_time(self) -> float | None:
        """Seconds that observing a block under ``profile`` took; they are in no other time."""
        return self._run.instruments

    @property
    def total_time(self) -> float | None:
        """The sum of the median seconds of the graph's nodes; None if they were not timed."""
        timings = [node.timing.median for node in self.nodes if node.timing is not None]
        return sum(timings) if timings else None

    @property
    def unsteady(self) -> str:
        """The reasons not to rely on the times, in words; "" if they are steady, or nothing was timed."""
        return unsteady(self._run, self.total_time)

    @property
    def max_memory(self) -> int | None:
        """Bytes at the peak of the model's own run, parameters, buffers and inputs included; None for a trace."""
        return self._run.peak

    @property
    def memory(self) -> Memory:
        return self._run.memory

    @property
    def live_at_peak(self) -> tuple[LiveTensor, ...]:
        """The tensor storages alive at the peak of the model's own run, largest first: the operation that made each, and
        its category."""
        return self._run.history.at_peak

    @property
    def timeline(self) -> tuple[Moment, ...]:
        """The live bytes, by category, after each call of the model's own run."""
        return self._run.history.timeline

    # The run

    @property
    def calls(self) -> tuple[Call, ...]:
        return self._run.calls

    @property
    def scopes(self) -> tuple[Any, ...]:
        """The module calls of the model's own run."""
        return self._run.scopes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The graph's nodes as they ran; none if the model ran without a graph."""
        return self._run.nodes

    @property
    def model(self) -> str:
        """The model's class name."""
        return self._run.model

    @property
    def inputs(self) -> str:
        return self._run.inputs

    @property
    def trace(self) -> str:
        """The way the calls were observed: "symbolic trace", "recorded trace", "counted on the meta device" (or "on fake tensors",
        "real tensors")."""
        return self._run.trace

    @property
    def trace_reason(self) -> str:
        """The reason for which the model was recorded instead of traced symbolically, or counted on real tensors; "" if
        neither happened."""
        return self._run.trace_reason

    @property
    def environment(self) -> Environment:
        return self._run.environment

    @property
    def convention(self) -> str:
        return self._convention.name

    @property
    def complete(self) -> bool:
        """True if every call has a formula or is declared to compute nothing."""
        return not self.missing

    @cached_property
    def missing(self) -> tuple[Missing, ...]:
        """The ops without a formula, in order of appearance."""
        return missing_in(self.counted)

    def recipe(self) -> str:
        """Return the lines to paste that count the missing ops, each as one operation per output element (a guess); ""
        if nothing is missing a formula."""
        first: dict[str, Call] = {}
        for each in self.counted:
            if each.missing.startswith(NO_FORMULA):
                first.setdefault(each.call.op, each.call)
        return "\n".join([IMPORT, *map(recipe_for, first.values())]) if first else ""

    # Sums by phase

    def _items(self, phase: str) -> list[Item]:
        """Return every counted call of a phase, and items for the time of other work: ``(no op)`` for each node without
        calls, ``(host)`` for what lies between the operations of a profiled block."""
        if phase not in self._items_by_phase:
            items = items_of([counted for counted in self.counted if counted[0].phase in PARTS[phase]])
            items += host_items(self._run, phase)
            for node in self.nodes if phase == "forward" else ():
                if not node.calls and node.timing is not None:
                    items.append(Item(node.path, NO_OPERATION, "", Sums(seconds=node.timing.median)))
            self._items_by_phase[phase] = items
        return self._items_by_phase[phase]

    @cached_property
    def _sums(self) -> Sums:
        return together([item.sums for item in self._items(PHASES[0])])

    def by_module(self, phase: str = PHASES[0]) -> Mapping[str, ModuleRow]:
        """Return each module's total and own sums in a phase, by its path."""
        return self._modules_of(check_phase(phase))

    def by_operator(self, phase: str = PHASES[0]) -> Mapping[str, OperatorRow]:
        """Return each operator's sums in a phase, by its name."""
        return by_operator(self._items(check_phase(phase)))

    def by_step(self) -> Mapping[str, OperatorRow]:
        """Return the sums of each step, in run order; work outside the model is last."""
        return by_step(self._run, self.counted)

    def step_times(self) -> Mapping[str, StepTime]:
        """Return the seconds of each step of a profiled block."""
        return self._step_times

    @cached_property
    def _step_times(self) -> dict[str, StepTime]:
        return step_times(self._run, self.counted)

    def _modules_of(self, phase: str) -> dict[str, ModuleRow]:
        if phase not in self._rows_by_phase:
            calls = Counter([scope.path for scope in self.scopes])
            self._rows_by_phase[phase] = by_module(self._items(phase), self._run.modules, calls)
        return self._rows_by_phase[phase]

    @cached_property
    def remarks(self) -> dict[Counted, str]:
        """Sentences on calls: an einsum that opt_einsum reordered, a lookup of a row that its table does not have."""
        found = {each: said for each in self.counted if (said := absent_row(each.call))}
        if self._executed is not self.counted:
            from .executed import remark

            pairs = zip(self.counted, self._executed, strict=True)
            found |= {each: said for each, run in pairs if (said := remark(each, run))}
        return found

    @cached_property
    def _executed(self) -> tuple[Counted, ...]:
        """The calls with the cost of the work that torch really ran for them."""
        if not self._run.may_reorder:
            return self.counted
        from .executed import executed

        return executed(self.counted, self.environment.einsum)

    @cached_property
    def _phases(self) -> list[str]:
        """The phases in which calls were made."""
        seen = {each.call.phase for each in self.counted}
        return [phase for phase in PHASES if phase in seen]

    def _flops_of(self, phase: str) -> int | None:
        return self._modules_of(phase)[""].total.flops if phase in self._phases else None

    def _module_at(self, path: str) -> Any:
        """Return the live module, for a formula that reads it; if the model is gone, a stand-in with what its calls
        recorded."""
        model = None if self._model is None else self._model()
        return SavedModule(path, self._settings.get(path, {})) if model is None else model.get_submodule(path)

    def _users_counts(self) -> dict[int, Counted]:
        """Return the counts that formulas of the user's own gave, by the index of the call.

        They are those under the base convention: a file keeps them, and they hold under every convention.
        """
        from .counts import users_counts

        counted = self.counted if self.convention == BASE_CONVENTION else None
        return users_counts(self.calls, counted, self._registry, self._module_at, self.attention, self._known)

    @cached_property
    def _registry(self) -> FormulaRegistry:
        from ..ops import BASE

        return BASE

    @cached_property
    def _settings(self) -> dict[str, Mapping[str, Any]]:
        return {call.path: call.settings for call in self.calls if isinstance(call.target, type)}

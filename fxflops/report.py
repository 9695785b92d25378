"""The result of a run: sums, tables and views over its counted calls. Frozen; another convention is another Report."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import Any

from torch import nn

from .bounds import Roofline
from .conventions import Convention, find_convention
from .counting import NO_FORMULA, check_attention, count_calls
from .devices import Device
from .errors import FormulaError, InputError, MissingFormulaError
from .explain import Explanation, explain
from .ledger import LiveTensor, Moment
from .missing import Missing, missing_in, recipe_for
from .ops import Table
from .outcome import Environment, Memory, Params, Run
from .records import PHASES, Call, Counted, FormulaFunction, Node, Timing
from .render.data import Summary, TreeRow
from .rollup import Item, ModuleRow, OperatorRow, Sums, by_module, by_module_and_operator, by_operator, item_of
from .roofline import mfu, roofline
from .views import Tree, summary_of, tree_row

PYTHON, OUTSIDE = "(python)", "(outside)"


class Report:
    """What a model computes, where, how long it takes and how much memory, operation by operation.

    Counts are ints; ``latency`` and ``total_time`` seconds, memory bytes; what was not measured is None.
    """

    def __init__(
        self,
        run: Run,
        convention: Convention,
        table: Table,
        model: weakref.ref[nn.Module],
        attention: str = "dense",
    ) -> None:
        self._run = run
        self.attention = attention
        self._convention = convention
        self._table = table
        self._model = model
        self._items_by_phase: dict[str, list[Item]] = {}
        self._rows_by_phase: dict[str, dict[str, ModuleRow]] = {}
        self.counted: tuple[Counted, ...] = count_calls(
            run.measured.calls,
            convention,
            table,
            self._module_at,
            attention,
            run.measured.scopes,
            {(module.path, function) for module in run.modules for function in module.keeps},
        )

    # Totals

    @property
    def total_flops(self) -> int:
        """FLOPs of all counted calls under the convention; a lower bound where the report is not complete."""
        return self._total.flops

    @property
    def total_macs(self) -> int:
        """Multiply-accumulates of the contractions: the same under every convention."""
        return self._total.macs

    @property
    def total_backward_flops(self) -> int | None:
        """FLOPs of the backward pass; None where none ran."""
        return self._flops_of("backward")

    @property
    def total_backward_macs(self) -> int | None:
        """Multiply-accumulates of the backward pass; None where none ran."""
        return self.by_module("backward")[""].total.macs if self._has("backward") else None

    @property
    def total_recompute_flops(self) -> int | None:
        """FLOPs of forward work that gradient checkpointing did again in the backward pass; None where none ran."""
        return self._flops_of("recompute") or (0 if self._has("backward") else None)

    @property
    def total_optimizer_flops(self) -> int | None:
        """FLOPs of the optimizer's step; None where none was seen."""
        return self._flops_of("optimizer")

    @property
    def total_training_flops(self) -> int | None:
        """FLOPs of forward and backward: the model's work in a training step. Recomputation, which is no work of the
        model's, and the optimizer are apart. None where no backward pass ran."""
        backward = self.total_backward_flops
        return None if backward is None else self.total_flops + backward

    @property
    def total_int_ops(self) -> int:
        """Operations on integers and booleans, which are no FLOPs."""
        return self._total.int_ops

    @property
    def total_activations(self) -> int:
        """Elements that the contractions put out."""
        return self._total.activations

    @property
    def total_params(self) -> int:
        """Elements of the parameters, shared ones once."""
        return self.params.total

    @property
    def params(self) -> Params:
        return self._run.params

    @property
    def latency(self) -> float | None:
        """Seconds of the model's own run, not instrumented: the median."""
        return None if self.timing is None else self.timing.median

    @property
    def timing(self) -> Timing | None:
        """The same with its spread."""
        return self._run.measured.latency

    @property
    def backward_timing(self) -> Timing | None:
        """Seconds of the backward pass of the model's own run; None where none was timed."""
        return self._run.measured.backward_latency

    @property
    def total_time(self) -> float | None:
        """Seconds of all nodes of the graph together: the sum of their medians."""
        timings = [node.timing.median for node in self.nodes if node.timing is not None]
        return sum(timings) if timings else None

    @property
    def max_memory(self) -> int:
        """Bytes at the peak of the model's own run, parameters, buffers and inputs included."""
        return self._run.measured.peak

    @property
    def memory(self) -> Memory:
        return self._run.memory

    @property
    def live_at_peak(self) -> tuple[LiveTensor, ...]:
        """The tensor storages alive at the peak of the model's own run, largest first, with who made them and what they
        are held for."""
        return self._run.measured.at_peak

    @property
    def timeline(self) -> tuple[Moment, ...]:
        """The live bytes, by category, after each call of the model's own run."""
        return self._run.measured.timeline

    # What there is

    @property
    def calls(self) -> tuple[Call, ...]:
        return self._run.measured.calls

    @property
    def scopes(self) -> tuple[Any, ...]:
        """The module calls of the model's own run."""
        return self._run.measured.scopes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The graph's nodes as they ran; none where the model ran without a graph."""
        return self._run.measured.nodes

    @property
    def model(self) -> str:
        """The model's class name."""
        return self._run.model

    @property
    def inputs(self) -> str:
        return self._run.inputs

    @property
    def trace(self) -> str:
        """How the calls were seen: "symbolic trace", "recorded trace", "observed on meta" or "observed on real tensors"."""
        return self._run.trace

    @property
    def trace_reason(self) -> str:
        """Why the model was recorded rather than traced symbolically, or counted on real tensors; "" where it was not."""
        return self._run.trace_reason

    @property
    def environment(self) -> Environment:
        return self._run.environment

    @property
    def convention(self) -> str:
        return self._convention.name

    @property
    def complete(self) -> bool:
        """Whether every call had a formula or is declared to compute nothing."""
        return not self.missing

    @cached_property
    def missing(self) -> tuple[Missing, ...]:
        """The ops without a formula, in order of appearance."""
        return missing_in(self.counted)

    def recipe(self) -> str:
        """The lines to paste that count the first missing op; "" for a complete report."""
        return next((recipe_for(c.call) for c in self.counted if c.missing.startswith(NO_FORMULA)), "")

    # Sums

    # ``phase`` is "forward", "backward", "recompute" or "optimizer".

    def by_module(self, phase: str = "forward") -> Mapping[str, ModuleRow]:
        """Each module's total and own sums by its path; "" is the model."""
        return self._modules_of(check_phase(phase))

    def by_operator(self, phase: str = "forward") -> Mapping[str, OperatorRow]:
        """Each operator's sums by its name, largest FLOPs first."""
        return by_operator(self._items(check_phase(phase)))

    def by_dtype(self, phase: str = "forward") -> Mapping[str, OperatorRow]:
        """The sums by dtype of the output ("f32", "bf16", ...)."""
        return by_operator(self._items(check_phase(phase)), lambda item: item.dtype)

    def by_module_and_operator(self, phase: str = "forward") -> Mapping[str, Mapping[str, OperatorRow]]:
        """For each module's path, the operators of its subtree."""
        return by_module_and_operator(self._items(check_phase(phase)), self._run.modules)

    def by_step(self) -> Mapping[str, OperatorRow]:
        """The sums of each call of the model under :func:`fxflops.profile`, in run order; what was done outside comes last.

        The steps of ``generate()`` are "prefill" and "decode 1", "decode 2" ...; any others "step 1" and so on, each
        with the name of its model where there are several.
        """
        sums = {name: Sums() for name, _ in self._run.measured.steps}
        inside = {i: name for name, calls in self._run.measured.steps for i in calls}
        for i, counted in enumerate(self.counted):
            phase = counted.call.phase
            name = inside.get(i, OUTSIDE) if phase == "forward" else f"({phase})"
            sums[name] = sums.get(name, Sums()).plus(item_of(counted).sums)
        return {name: OperatorRow(name, row.calls, row) for name, row in sums.items()}

    def __getitem__(self, path: str) -> ModuleRow:
        """The module of this path: ``report["blocks.3"]``."""
        modules = self._modules_of("forward")
        if path not in modules:
            raise InputError(f"{self.model} has no module {path!r}; report.by_module() lists them")
        return modules[path]

    def recount(
        self,
        convention: str | Convention | None = None,
        *,
        attention: str | None = None,
        formulas: Mapping[Any, FormulaFunction] | None = None,
    ) -> Report:
        """The same run counted under another convention, another ``attention``, or with formulas of one's own.

        Nothing is run again. A report of ``count()`` knows what masks leave only if it was made with
        ``attention="exact"``: from any other, attention with a mask is then missing.
        """
        found = self._convention if convention is None else find_convention(convention)
        attention = self.attention if attention is None else check_attention(attention)
        return Report(self._run, found, self._table.derive(formulas), self._model, attention)

    def explain(self, a: str | Convention, b: str | Convention) -> Explanation:
        """Why conventions ``a`` and ``b`` give different totals for this run: op by op, with what each counts.

        >>> print(report.explain("fvcore", "deepspeed"))  # doctest: +SKIP
        """
        one, other = self.recount(a), self.recount(b)
        return explain(one.convention, other.convention, one.counted, other.counted, len(self.calls))

    def roofline(self, device: str | Device = "auto", phase: str = "forward") -> Roofline:
        """The least time each call takes on a device (a name, a Device; "auto": the run's own), and how near the run came."""
        dense, exact = (self.recount("torch_flops", attention=each).counted for each in ("dense", "exact"))
        timing = {PHASES[0]: self.timing, PHASES[1]: self.backward_timing}.get(check_phase(phase))
        return roofline(self.counted, exact, dense, self.environment.device, device, phase, timing)

    def mfu(self, device: str | Device = "auto") -> float | None:
        """2 x MACs of forward and backward, of what the device does at most in their time; None where not timed on it."""
        return mfu(self.counted, self.environment.device, device, self.timing, self.backward_timing)

    def checked(self, strict: bool) -> Report:
        """This report; MissingFormulaError when it must be complete and is not."""
        if strict and not self.complete:
            raise MissingFormulaError(
                f"{sum(m.calls for m in self.missing)} calls have no formula\n{self._missing_text()}"
            )
        return self

    # Views

    def tree(
        self,
        depth: int | None = None,
        *,
        sort_by: str | None = None,
        fold: bool = True,
        columns: Sequence[str] | None = None,
        units: str | None = None,
    ) -> Tree:
        """The modules one inside the other, identical siblings folded; shown by ``print`` and in notebooks.

        ``depth`` levels; ``sort_by`` "flops", "time", "memory" or "params" (default: run order); ``columns`` to show;
        ``units`` "G", "M" ... for counts.
        """
        return Tree(self._tree_row, depth, sort_by, fold, columns, units)

    def to_html(self, path: str | PathLike[str] | None = None, *, device: str | Device = "auto") -> str | None:
        """One page that opens from disk, drawn by plotly (``pip install 'fxflops[report]'``): its text, or written to a path."""
        from .html_report import to_html

        return to_html(self, self._summary, self._tree_row, path, device)

    def __str__(self) -> str:
        from .render.summary import summary

        return summary(self._summary)

    def _repr_html_(self) -> str:
        from .html_report import notebook

        return notebook(self.counted, self._summary, self._tree_row)

    def __repr__(self) -> str:
        least = "" if self.complete else ">= "
        return (
            f"<Report {self.model}: {least}{self.total_flops:,} FLOPs ({self.convention}), {self.total_macs:,} MACs, "
            f"{self.total_params:,} params{'' if self.complete else ', INCOMPLETE'}>"
        )

    def _missing_text(self) -> str:
        lines = [f"  {m.op} x{m.calls}, first in {m.path or 'the root'}  {m.shapes}  {m.site}" for m in self.missing]
        return "\n".join([*lines, "Count one:", self.recipe()])

    @cached_property
    def _tree_row(self) -> TreeRow:
        return tree_row(self._modules_of("forward"), self._items("forward"), self.nodes)

    @cached_property
    def _summary(self) -> Summary:
        flops = {phase: self._flops_of(phase) for phase in PHASES}
        asked = {"convention": self.convention, "attention": self.attention}
        return summary_of(
            self._run, self._tree_row, self.by_operator(), self.counted, self.missing, self.recipe(), flops, asked
        )

    def _items(self, phase: str) -> list[Item]:
        """Every counted call of a phase, and as ``(python)`` the time of the graph's nodes that made none."""
        if phase not in self._items_by_phase:
            items = [item_of(counted) for counted in self.counted if counted.call.phase == phase]
            for node in self.nodes if phase == "forward" else ():
                if not node.calls and node.timing is not None:
                    items.append(Item(node.path, PYTHON, "", Sums(seconds=node.timing.median)))
            self._items_by_phase[phase] = items
        return self._items_by_phase[phase]

    def _modules_of(self, phase: str) -> dict[str, ModuleRow]:
        if phase not in self._rows_by_phase:
            calls = Counter(scope.path for scope in self.scopes)
            self._rows_by_phase[phase] = by_module(self._items(phase), self._run.modules, calls)
        return self._rows_by_phase[phase]

    @property
    def _total(self) -> Sums:
        return self._modules_of("forward")[""].total

    def _has(self, phase: str) -> bool:
        return any(call.phase == phase for call in self.calls)

    def _flops_of(self, phase: str) -> int | None:
        return self._modules_of(phase)[""].total.flops if self._has(phase) else None

    def _module_at(self, path: str) -> nn.Module:
        model = self._model()
        if model is None:
            raise FormulaError(f"the formula reads the module {path!r}, but the model is gone: keep a reference to it")
        return model.get_submodule(path)


def check_phase(phase: str) -> str:
    """The word itself; InputError where it is not one of :data:`PHASES`."""
    if phase not in PHASES:
        raise InputError(f"unknown phase {phase!r}: one of {', '.join(map(repr, PHASES))}")
    return phase

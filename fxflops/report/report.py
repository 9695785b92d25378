"""The Report: a counted run, with everything that is worked out from it. Most methods are a line over a function.

It never changes; another convention gives another Report.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from ..conventions import BASE_CONVENTION, BASE_MACS, CONVENTIONS, OF_MACS, Convention, check_attention, find_convention
from ..counting import totals
from ..counting.counted_run import CountedRun
from ..counting.rollup import ModuleRow, OperatorRow, check_phase
from ..counting.saved_module import module_finder
from ..counting.steps import OUTSIDE, StepTime, timing_of, unsteady
from ..counting.uncounted import Missing, incomplete, recipe
from ..errors import FormulaError, InputError, MissingFormulaError, did_you_mean, renamed
from ..meters.history import LiveTensor, Moment
from ..meters.nodes import Node
from ..meters.timing import Timing
from ..names import is_torch_loaded
from ..records import PARTS, PHASES, Call, Counted, FormulaFunction, Params
from ..render.data import Summary
from ..render.exports import Rows, Table, View, as_json
from ..render.files import Path, method_for, written, written_bytes
from ..render.page_data import Page
from ..render.tree import Options
from ..roofline.devices import Device, listed_at, parts_of
from ..roofline.result import Roofline
from ..run.outcome import Environment, Memory, Run
from .chrome_trace import chrome_trace
from .compiled import CompiledView, compiled_view
from .diff import Diff, diff
from .explain import Explanation, explain
from .gathered import GatheredReport, collective_table, gathered
from .html import notebook, page_of
from .model_explorer import graph, node_data
from .per_token import PerToken, per_token
from .picture import as_pdf, as_png, charted, picture
from .saved import NAME_ONLY, TOTALS, Saved, data_in, to_json_data
from .tables import (
    COUNTS,
    costs_table,
    dtype_table,
    kernel_table,
    line_table,
    module_and_operator_table,
    module_at,
    module_table,
    operation_table,
    operator_table,
    step_table,
    step_time_table,
)
from .training_run import TrainingRun, training_run
from .views import Tree, summary_of, tree_row

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from ..ops import FormulaRegistry
    from ..prediction import CachingAllocator, Calibration, Prediction, Reserved

OF_OTHER_TOOLS = {
    "uncalled_modules": ": print(report.tree()) marks modules that were not called; fvcore's method is that of fxflops.adapters.fvcore",
    "unsupported_ops": ": report.missing lists what is not counted; fvcore's method is that of fxflops.adapters.fvcore",
    "unsupported": ": report.missing lists what is not counted",
    "by_module_and_operator": ": report.by_module() and report.by_operator(); fvcore's method is that of fxflops.adapters.fvcore",
    "total": ": report.total_flops, report.total_macs",
    "from_json": ": fxflops.Report.load('report.json') reads what report.save('report.json') wrote",
    "key_averages": ": report.by_operator() sums the calls of each operator",
}
"""What to use for names that other counters have."""


class Report(View):
    """The FLOPs, time and memory of one run of a model, operation by operation.

    Counts are ints, ``latency`` and ``total_time`` are in seconds, memory is in bytes; a value that was not measured is
    None. Two reports are equal if all their data but the date are equal; a report read back from a file equals the one saved.

    A report is a :class:`~fxflops.counting.counted_run.CountedRun`, and what it takes to count the run anew: the convention,
    the formulas, and the model, if it still lives.
    """

    def __init__(
        self,
        run: Run,
        convention: Convention,
        registry: FormulaRegistry | None,
        model: Callable[[], nn.Module | None] | None,
        attention: str = "dense",
        counted: tuple[Counted, ...] | None = None,
        users: Mapping[int, Counted] | None = None,
    ) -> None:
        """Count the calls of ``run``, unless ``counted`` has their counts already (as a file does).

        ``registry`` and ``model`` may be None for a run read from a file. ``users`` has the counts that formulas of the
        user's own gave, by the index of the call: a file cannot hold those formulas.
        """
        self._run = run
        self._convention = convention
        if registry is not None:
            self._registry = registry
        self._model = model
        self._users = users or {}
        self._data: Mapping[str, Any] | None = None
        """What it was read from, if that was done in a process without torch."""
        if counted is None:
            # Formulas are imported where calls are counted: torch comes with them, and a run from a file has its counts.
            from ..counting.counts import count_run

            module_at = module_finder(model, run.calls)
            counted = count_run(run, convention, self._registry, module_at, attention, self._users)
        self._counted_run = CountedRun(run, counted, convention.name, attention)

    @cached_property
    def _registry(self) -> FormulaRegistry:
        """The formulas; of a report read from a file, those of fxflops and of installed libraries."""
        from ..ops.packages import registry_with

        return registry_with(None)

    # Totals

    @property
    def total_flops(self) -> int:
        """FLOPs of all counted calls under the convention; a lower bound if the report is not complete."""
        return self._counted_run.forward.flops

    @property
    def total_macs(self) -> int:
        """Multiply-accumulates of the contractions: the same under every convention."""
        return self._counted_run.forward.macs

    @property
    def total_gradient_flops(self) -> int | None:
        """FLOPs of gradients taken inside the forward (forces, derivatives), a part of ``total_flops``; None if none were."""
        return totals.flops_of(self._counted_run, "gradient")

    @property
    def total_backward_flops(self) -> int | None:
        """FLOPs of the backward pass; None if none ran, or the convention has no rules for it."""
        return totals.backward_flops(self._counted_run)

    @property
    def total_backward_macs(self) -> int | None:
        """Multiply-accumulates of the backward pass; None if none ran."""
        return totals.backward_macs(self._counted_run)

    @property
    def total_recompute_flops(self) -> int | None:
        """FLOPs that gradient checkpointing computed again in the backward pass; None if no backward pass ran."""
        return totals.recompute_flops(self._counted_run)

    @property
    def total_optimizer_flops(self) -> int | None:
        """FLOPs of the optimizer's step; None if none was seen."""
        return totals.flops_of(self._counted_run, "optimizer")

    @property
    def total_training_flops(self) -> int | None:
        """FLOPs of forward and backward, without recomputation and the optimizer's step; None where those of the backward are."""
        return totals.training_flops(self._counted_run)

    @property
    def total_int_ops(self) -> int:
        """Operations on integers and booleans, which are not FLOPs."""
        return self._counted_run.forward.int_ops

    @property
    def total_activations(self) -> int:
        """Elements in the outputs of the contractions (fvcore's definition)."""
        return self._counted_run.forward.activations

    @property
    def total_params(self) -> int | None:
        """Elements of the parameters; a shared parameter is counted once. None for a trace, which does not tell."""
        return totals.params(self._counted_run)

    @property
    def params(self) -> Params | None:
        """The numbers of parameters and buffers, and the bytes of parameters; None for a trace, which does not show them."""
        return self._run.params

    # Time and memory

    @property
    def latency(self) -> float | None:
        """Median seconds of the model's own bare run; None if it was not timed, as of a profiled block (``block_time``)."""
        return totals.latency(self._run)

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
        return totals.block_seconds(self._counted_run)

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
        return totals.nodes_seconds(self._run)

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
        """The bytes at the peak by category, with the place of the peak and the source of the figures."""
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
        """The calls of the model's own run, in order."""
        return self._run.calls

    @property
    def counted(self) -> tuple[Counted, ...]:
        """The calls with their costs, followed by the charges of modules under a convention that makes some."""
        return self._counted_run.counted

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
    def name(self) -> str:
        """The model's class name, with the name that was asked for: "ResNet (timm:resnet18)"."""
        return self._counted_run.name

    @property
    def inputs(self) -> str:
        """The inputs in words: "f32[1,3,224,224]"."""
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
        """The device, modes, versions and machine of the run, and its date."""
        return self._run.environment

    @property
    def provenance(self) -> str:
        """The origin of the figures on one line: the name that was asked for, versions, date and machine."""
        return self._counted_run.provenance

    @property
    def convention(self) -> str:
        """The name of the convention."""
        return self._convention.name

    @property
    def attention(self) -> str:
        """The way attention is counted: "dense" or "exact"."""
        return self._counted_run.attention

    @property
    def rules(self) -> str:
        """The convention and, of a model with attention, how that is counted: "convention fxflops, attention dense"."""
        return self._counted_run.rules

    @property
    def complete(self) -> bool:
        """True if every call has a formula or is declared to compute nothing."""
        return not self.missing

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The ops without a formula, in order of appearance."""
        return self._counted_run.missing

    @property
    def remarks(self) -> dict[Counted, str]:
        """Sentences on calls: a lookup of a row that its table does not have."""
        return self._counted_run.remarks

    def recipe(self) -> str:
        """Return the lines to paste that count the missing ops, each as one operation per output element (a guess); ""
        if nothing is missing a formula."""
        return recipe(self.counted)

    def checked(self, strict: bool) -> Report:
        """Return this report; raise MissingFormulaError if it is ``strict`` and incomplete."""
        if strict and not self.complete:
            raise MissingFormulaError(incomplete(self.missing, recipe(self.counted)))
        return self

    # Tables

    def by_module(self, phase: str = "forward") -> Rows[ModuleRow]:
        """Return each module's total and own sums by its path; "" is the model.

        ``phase`` is "forward" (which includes "gradient"), "backward", "recompute" (forward work that gradient
        checkpointing does again), "optimizer" or "gradient" (gradients taken inside the forward). InputError for one in
        which no calls were made.
        """
        return module_table(self._counted_run, phase)

    def by_operator(self, phase: str = "forward") -> Rows[OperatorRow]:
        """Return each operator's sums by its name, largest FLOPs first.

        ``(no op)`` is the time of graph nodes that compute nothing: an input, an index into a tuple, a shape.
        """
        return operator_table(self._counted_run, phase)

    def by_dtype(self, phase: str = "forward") -> Rows[OperatorRow]:
        """Return the sums by the dtype of the output ("f32", "bf16", ...)."""
        return dtype_table(self._counted_run, phase)

    def by_module_and_operator(self, phase: str = "forward") -> Rows[Rows[OperatorRow]]:
        """Return, for each module's path, the sums of each operator in its subtree."""
        return module_and_operator_table(self._counted_run, phase)

    def by_step(self) -> Rows[OperatorRow]:
        """Return the sums of each call of the model under :func:`fxflops.profile`, in run order; work outside them is last.

        The steps of ``generate()`` are "prefill", "decode 1", "decode 2" ...; other steps are "step 1", "step 2" ... If
        there are several models, each step has the name of its model. In a loop that calls ``p.step()`` the steps are its
        iterations. What follows until the next step has rows of its own: "step 1 backward", "step 1 optimizer". A report
        of one call has one step.
        """
        return step_table(self._counted_run)

    def step_times(self) -> Rows[StepTime]:
        """Return where the time of each step of a profiled block went; the steps add up to ``block_time``.

        A step lasts from the beginning of one call of the model, or iteration, to that of the next. "between" is the time
        outside the model, the backward pass and the optimizer: of loading data, computing a loss, choosing a token.
        """
        return step_time_table(self._counted_run)

    def by_line(self) -> Table:
        """Return where the time of a profiled block went in the user's own code, by file and line, the longest first.

        The time of a line includes what it calls in libraries. Raises InputError unless ``profile(..., lines=True)`` sampled it.
        """
        return line_table(self._counted_run)

    @property
    def table(self) -> Table:
        """The operations in run order, with module, shapes, MACs, FLOPs, seconds and bytes as raw values.

        ``params`` are a leaf module's own, at its first call; memory is that of the call's node; counts are None if no formula is known.
        """
        return operation_table(self._counted_run)

    @property
    def kernels(self) -> Table:
        """The kernels of each operator, the longest first, of ``analyze(kernels=True)`` and of a trace."""
        return kernel_table(self._counted_run)

    @property
    def collectives(self) -> Table:
        """The collectives of this process by module and phase: operation, group, bytes sent and received, seconds.

        The group is named after its mesh dimension. The bytes are the least that the operation needs, by a ring (see
        ``docs/distributed.md``). Seconds pass until the call returned; the bytes may then still be under way.
        """
        return collective_table(self._counted_run)

    def __getitem__(self, path: str) -> ModuleRow:
        """Return the row of the module at this path: ``report["blocks.3"]``. InputError for an unknown path."""
        return module_at(self._counted_run, path)

    def __contains__(self, path: object) -> bool:
        return path in self._counted_run.modules(PHASES[0])

    def __iter__(self) -> NoReturn:
        figures = "macs, params = report.total_macs, report.total_params"
        raise TypeError(f"a Report is one result, not a tuple: {figures}; report.table has its operations")

    # Other rules, devices and runs

    def recount(
        self,
        convention: str | Convention | None = None,
        *,
        attention: str | None = None,
        formulas: Mapping[Any, FormulaFunction] | None = None,
    ) -> Report:
        """Return this run counted under another convention, another ``attention``, or with other ``formulas``.

        Nothing is run again. ``attention="exact"`` needs to know which pairs a mask leaves; of causality it always
        does, and of masks whose values were there to read. Attention with any other mask becomes missing.
        A report read from a file keeps the counts that the user's own formulas gave, unless ``formulas`` replaces them.

        Raises InputError for a report read from a file that was counted under a convention of the user's own, if no
        ``convention`` is given.
        """
        if convention is None and self._convention.summary == NAME_ONLY:
            raise InputError(
                f"the file has the name of the convention {self.convention!r}, not its rules",
                advice="convention",
            )
        if self._data is not None:
            return self._with_torch().recount(convention, attention=attention, formulas=formulas)
        rules = self._convention if convention is None else find_convention(convention)
        return self._recounted(rules, self.attention if attention is None else check_attention(attention), formulas)

    def _recounted(
        self, rules: Convention, attention: str, formulas: Mapping[Any, FormulaFunction] | None = None
    ) -> Report:
        from ..counting.counts import is_users

        registry = self._registry.derive(formulas)
        users = {i: counted for i, counted in self._users.items() if not is_users(self.calls[i], registry)}
        return Report(self._run, rules, registry, self._model, attention, users=users)

    def explain(self, a: str | Convention, b: str | Convention | None = None, phase: str = PHASES[0]) -> Explanation:
        """Explain why conventions ``a`` and ``b`` give different totals: one row an op, with what each of them counts.

        With ``a`` alone, the report's own convention is compared with it. Where one tool counts multiply-accumulates and
        the other convention is fxflops, its MACs are compared, not its FLOPs. ``phase`` is as for :meth:`by_module`.

        >>> print(report.explain("fvcore", "deepspeed"))  # doctest: +SKIP
        """
        if phase in CONVENTIONS and phase not in PHASES:
            raise InputError(f"explain() compares two conventions, not {a!r}, {b!r} and {phase!r}: compare each pair")
        check_phase(phase)
        one, other = (self, self.recount(a)) if b is None else (self.recount(a), self.recount(b))
        if {one.convention, other.convention} & OF_MACS.keys():
            # A tool that counts multiply-accumulates is compared with our MACs.
            one, other = (
                each.recount(BASE_MACS) if each.convention == BASE_CONVENTION else each for each in (one, other)
            )
        return explain(one._counted_run, other._counted_run, phase)

    def roofline(self, device: str | Device = "auto", phase: str = "forward") -> Roofline:
        """Return the least time that a device needs for each call, beside the time that the call took.

        ``device`` is a name, a Device, or "auto" for the device of the run; ``phase`` is as for :meth:`by_module`.
        Attention takes the pairs that its arguments and its mask leave, whatever the report counts. A mask without values to read
        (computed from weights or floating inputs in a ``count``, or on meta) may leave none: then only its bytes are in the bound,
        and the result says so.
        """
        least, exact = (self._counted_as_computed(attention) for attention in ("least", "exact"))
        unread = sum(
            a.cost is not None and b.cost is None and a.call.phase in PARTS[check_phase(phase)]
            for a, b in zip(least, exact, strict=True)
        )
        return replace(self._bounds(device, phase, least), unread=unread)

    def _bounds(self, device: str | Device, phase: str, computed: Sequence[Counted]) -> Roofline:
        """Return the roofline of the calls of a phase, as ``computed`` counts them."""
        from ..roofline.utilization import roofline

        timing = timing_of(self._run, self._counted_run.step_times, check_phase(phase))
        bounds = roofline(
            self._with_torch()._counted_run.counted, computed, self.environment.device, device, phase, timing
        )
        return replace(bounds, provenance=self.provenance)

    def predict(
        self, device: str | Device, *, launch: str = "graph", calibration: Calibration | None = None
    ) -> Prediction:
        """Predict the seconds that a device takes for all counted calls, one after the other.

        ``device`` is a name or a Device. ``launch`` is "graph" for the device's own time, as in a CUDA graph, or "eager" to let each kernel
        wait until the host has launched it. ``calibration`` says how fast the kernels are, such as one of :func:`fxflops.calibrate`; by
        default those that come with fxflops are used: the card's own, or those of the cards most like it. Calls that no
        calibration has are taken to be as fast as their bound: the prediction says how much of the time that is, and its error. A report that was not counted for a GPU (``count(..., device="cuda")``) is
        predicted with the kernels of its own device, and says so.

        >>> print(report.predict("H100 SXM"))  # doctest: +SKIP
        """
        from ..prediction.predict import predict

        exact = self._counted_as_computed("exact")
        # Attention under a mask that was not read is expected to take all pairs, where a bound takes none.
        expected = [d if e.cost is None else e for e, d in zip(exact, self._counted_as_computed("dense"), strict=True)]
        phases = [phase for phase in PHASES if phase != "gradient" and any(c.call.phase in PARTS[phase] for c in exact)]
        rooflines = [self._bounds(device, phase, expected) for phase in phases]
        found = predict(exact, rooflines, device, calibration, launch)
        times = self.step_times()
        return replace(
            found,
            counted_for=self._counted_for,
            provenance=self.provenance,
            steps=sum(name != OUTSIDE for name in times),
            loading_seconds=sum(time.loading for time in times.values()),
        )

    def reserved(self, device: str | Device, *, gpus: int = 1, allocator: CachingAllocator | None = None) -> Reserved:
        """Predict the memory that CUDA's caching allocator reserves for the run on a device, in bytes, and whether it fits.

        ``device`` is a name or a Device. ``gpus`` is the number of GPUs of the job, for NCCL's buffers. ``allocator`` is an
        empty :class:`~fxflops.prediction.CachingAllocator` with settings other than torch's defaults.

        The run is that of :func:`count` with ``device="cuda"``, on any machine; of a report for another device the result says that its
        tensors are that device's. Two steps are simulated. Raises InputError for a report that was read from a file.

        >>> print(report.reserved("H100"))  # doctest: +SKIP
        """
        from ..prediction.reserved import reserved

        exact = self._counted_as_computed("exact")
        found = reserved(self._run.history, exact, device, self._counted_for, gpus=gpus, allocator=allocator)
        return replace(found, provenance=self.provenance)

    @property
    def _counted_for(self) -> str:
        """The type of device that the run was for: "cuda"."""
        return parts_of(self.environment.device)[0].partition(":")[0]

    def _counted_as_computed(self, attention: str) -> Sequence[Counted]:
        """Return the calls as a device computes them, whatever the report's convention counts.

        ``attention`` is "dense", "exact", or "least": exact, and no pairs where a mask could not be read.
        """
        if attention not in self._computed:
            of_base = self._with_torch()._recounted(find_convention(BASE_CONVENTION), attention)
            self._computed[attention] = of_base._counted_run.counted
        return self._computed[attention]

    @cached_property
    def _computed(self) -> dict[str, Sequence[Counted]]:
        return {}

    def mfu(self, device: str | Device = "auto") -> float | None:
        """Return the model FLOPs utilization: 2 x MACs of forward and backward, as a share of the most that the device
        can do in the time they took; under ``profile``, in the time of the block. None, and a warning that says why, if they
        were not timed on it, or if a peak that was measured is less than what the run reached. A value above 1 of a listed or given
        device is not cut off; a warning then says that its peak is given too low.
        """
        return self._mfu(device, asked=True)

    def hfu(self, device: str | Device = "auto") -> float | None:
        """Return the hardware FLOPs utilization: as :meth:`mfu`, with what gradient checkpointing computed again."""
        return self._mfu(device, executed=True, asked=True)

    def _mfu(self, device: str | Device, executed: bool = False, asked: bool = False) -> float | None:
        from ..roofline.utilization import mfu

        has_counts = self.complete or self.total_macs > 0
        counted = self._with_torch()._counted_run.counted if has_counts else ()
        timings, block, place = (self.timing, self.backward_timing), self.block_time, self.environment.device
        return mfu(counted, place, device, *timings, executed=executed, block=block, asked=asked)

    def training_run(
        self,
        tokens: float | str,
        device: str | Device | None = None,
        mfu: float = 0.4,
        *,
        tokens_per_step: int | None = None,
    ) -> TrainingRun:
        """Return the GPU-hours of training on so many tokens, with the formula in its text, beside those by 6ND.

        ``tokens`` is a number, or a word such as "15T" or "300B". ``device`` is the card's name, such as "H100", or a Device. ``mfu`` is the share of the device's peak that is reached, in the dtype of the largest product of the step that was
        counted. ``tokens_per_step`` is as ``tokens`` for :meth:`per_token`. Raises InputError if no backward pass was counted.
        """
        return training_run(self._counted_run, tokens, device, mfu, tokens_per_step)

    def per_token(self, tokens: int | None = None) -> PerToken:
        """Return the cost of a token: FLOPs, MACs and seconds of the run over the number of ``tokens``.

        By default they are the integers that the calls of the model were given; of ``generate()`` under
        :func:`fxflops.profile`, those of the prompt and each that was fed back. Raises InputError if there are none.
        """
        return per_token(self._counted_run, tokens)

    def diff(self, other: Report, phase: str = "forward") -> Diff:
        """Compare ``other`` with this report: in total, by module and by operator. Either may be read from a file.

        ``phase`` is as for :meth:`by_module`. Raises InputError if ``other`` is no Report.
        """
        if not isinstance(other, Report):
            raise InputError(f"diff() takes a Report, not {type(other).__name__}; Report.load(path) reads one")
        return diff(self._counted_run, other._counted_run, check_phase(phase))

    def gather(self, *, whole: Report | None = None, timeout: float = 60.0) -> GatheredReport:
        """Return one report over all processes of torch.distributed; every process calls this, with its own report.

        ``whole`` is a report of one process for the work of all, such as ``fxflops.count`` of the model on the whole batch:
        FLOPs beyond those are computed by several processes alike, and shown by module. Without torch.distributed the
        result is of one process.

        Raises DistributedError, in every process that calls this, if a process does not within ``timeout`` seconds, and InputError
        in all if one has the report of another function, such as of ``count`` among those of ``profile``.
        """
        if whole is not None and not isinstance(whole, Report):
            raise InputError(
                f"whole must be a Report, not {type(whole).__name__}: fxflops.count(model, batch) makes one"
            )
        return gathered(self._counted_run, None if whole is None else whole._counted_run, timeout)

    def named(self, name: str) -> Report:
        """Return :meth:`with_name`, the name to use. Deprecated."""
        renamed("named(name)", "use with_name(name)")
        return self.with_name(name)

    def with_name(self, name: str) -> Report:
        """Return this report with the name under which its model was asked for; it is shown, and written into files."""
        run = replace(self._run, environment=self.environment._replace(asked=name))
        return Report(run, self._convention, self._registry, self._model, self.attention, self.counted, self._users)

    @property
    def compiled(self) -> CompiledView | None:
        """The compiled model beside the eager one; None unless the model was given compiled, and timed."""
        return compiled_view(self._counted_run)

    # Views

    def tree(
        self,
        depth: int | None = None,
        *,
        sort_by: str | None = None,
        fold: bool = True,
        columns: Sequence[str] | None = None,
        units: str | None = None,
        phase: str = "forward",
    ) -> Tree:
        """Return the module tree, with identical siblings folded; ``print`` and notebooks show it, ``to_*`` export it.

        ``depth`` is the number of levels; ``sort_by`` is "flops", "time", "memory" or "params" (default: run order);
        ``columns`` are the columns to show; ``units`` is "G", "M" ... for FLOPs and MACs; ``phase`` is as for :meth:`by_module`.
        """
        return Tree(
            tree_row(self._counted_run, phase),
            Options(
                depth=depth, sort_by=sort_by, fold=fold, columns=columns, units=units, counted=self._counted_run.title
            ),
            self.provenance,
        )

    def to_html(self, path: Path | None = None, *, device: str | Device = "auto", title: str = "") -> str | None:
        """Return the report as one HTML page, or write it to ``path``. The page opens from disk and loads nothing.

        ``device`` is as for :meth:`roofline`; ``title`` heads the page in place of the model's class.
        """
        from ..render.page import page

        return written(page(self._page(device, title)), path)

    def _page(self, device: str | Device = "auto", title: str = "") -> Page:
        """Return the data of the page."""
        rooflines, why = self._rooflines(device)
        mfu = self._mfu(device) if rooflines else None
        return page_of(self._counted_run, self._summary, rooflines, mfu, why, title)

    def _rooflines(self, device: str | Device) -> tuple[dict[str, Roofline], str]:
        """Return the roofline of each phase, or none and the reason. With ``device="auto"`` the run must have been timed."""
        if device == "auto" and not any(call.seconds for call in self.calls):
            return {}, "nothing was timed"
        try:
            return {phase: self.roofline(device, phase) for phase in self._counted_run.phases}, "nothing was timed"
        except (InputError, FormulaError) as error:
            if device != "auto":
                raise
            return {}, str(error).partition("\n")[0]

    def _text(self) -> str:
        from ..render.summary import summary

        return summary(self._summary)

    def _repr_html_(self) -> str:
        return notebook(self.counted, self._summary)

    def __repr__(self) -> str:
        least = "" if self.complete else ">= "
        return (
            f"<Report {self.name}: {least}{self.total_flops:,} FLOPs ({self.convention}), {self.total_macs:,} MACs, "
            f"{'?' if self.params is None else f'{self.params.total:,}'} params{'' if self.complete else ', INCOMPLETE'}>"
        )

    def _as_paper(self, columns: Sequence[str] | str | None = None) -> Table:
        """Return the table for papers: the parts that cost most, in all columns that hold something or in those named."""
        table = costs_table(self._summary)
        return table.without_empty_columns(COUNTS) if columns is None else table.select(columns)

    @cached_property
    def _summary(self) -> Summary:
        root = tree_row(self._counted_run, PHASES[0], with_shapes=False)
        return summary_of(self._counted_run, root, self._utilization)

    @cached_property
    def _utilization(self) -> float | None:
        """The MFU on the device of the run; None if that is not listed, since its peak would have to be measured."""
        if self._data is not None and "mfu" in (saved := self._data["totals"]):
            return saved["mfu"]  # type: ignore[no-any-return]
        device = listed_at(self.environment.device)
        return self._mfu(device) if device and (self.timing or self.backward_timing or self.block_time) else None

    # Files

    def save(self, path: Path) -> None:
        """Write the report in the format that the suffix of ``path`` names; raise InputError for an unknown suffix, and for a
        folder that does not exist (it is a FileNotFoundError, too).

        ``.json`` holds the whole report, for :meth:`load`; ``.csv`` the table of operations; ``.md``
        and ``.tex`` that of the modules that cost most; ``.html`` the page of :meth:`to_html`; ``.trace.json`` and ``.perfetto`` a Chrome trace, ``.pickle`` a memory
        snapshot, ``.svg``, ``.png`` and ``.pdf`` a picture of the modules.
        """
        getattr(self, method_for(path))(path)

    @classmethod
    def load(cls, path: Path, model: Callable[..., Any] | None = None) -> Report:
        """Return the report that ``save("....json")`` wrote. It equals the one saved and has all of its views.

        ``model`` is only needed to recount with formulas that read more of a module than its plain attributes. Nothing
        is imported because the file names it: a class or function that is not imported yet is known by its name only.

        Raises InputError for a file that holds no report, or one of a schema that this version does not know; OSError
        if the file cannot be read.
        """
        data = data_in(path)
        try:
            return cls.from_dict(data, model)
        except InputError as error:
            error.args = (f"{os.fspath(path)}: {error.problem}",)
            raise

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as data that JSON can hold; :mod:`fxflops.report.saved` documents its schema."""
        if self._data is not None:
            return dict(self._data)
        figures = {**{name: getattr(self, name) for name in TOTALS}, "mfu": self._utilization}
        return to_json_data(self._counted_run, self._users_counts(), figures)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], model: Callable[..., Any] | None = None) -> Report:
        """Return the report that :meth:`to_dict` was called on; arguments and errors are as for :meth:`load`."""
        saved = Saved(data)
        reference: Callable[[], nn.Module | None] | None = None
        if model is not None:
            from ..model.callables import as_model, reference_to

            reference = reference_to(as_model(model))
        report = cls(saved.run, saved.convention, None, reference, saved.attention, saved.counted, saved.users)
        report._data = None if is_torch_loaded() else data
        return report

    def _with_torch(self) -> Report:
        """Return this report; if it was read without torch, whose functions it then knows by name alone, read it again."""
        if self._data is None:
            return self
        import torch  # noqa: F401

        return Report.from_dict(self._data)

    def _users_counts(self) -> dict[int, Counted]:
        """Return the counts that formulas of the user's own gave, by the index of the call.

        They are those under the base convention: a file keeps them, and they hold under every convention.
        """
        from ..counting.counts import users_counts

        counted = self.counted if self.convention == BASE_CONVENTION else None
        module_at = module_finder(self._model, self.calls)
        return users_counts(self.calls, counted, self._registry, module_at, self.attention, self._users)

    def to_json(self, path: Path | None = None) -> str | None:
        """Return the whole report as JSON, as :meth:`save` writes it, or write it to ``path``."""
        return written(as_json(self.to_dict()), path)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a ``pandas.DataFrame`` of the operations' raw values; its columns are the keys (``flops``, ``seconds``).

        Raises InputError if pandas is not installed.
        """
        return self.table.to_dataframe()

    def to_pandas(self) -> pandas.DataFrame:
        """Return :meth:`to_dataframe`, the name to use. Deprecated."""
        renamed("to_pandas()", "use to_dataframe()")
        return self.to_dataframe()

    def to_csv(self, path: Path | None = None) -> str | None:
        """Return CSV of the operations' raw values under their keys, or write it to ``path``; the last column is the
        provenance, and before it, of a timed report, are the model's own latency and the reasons not to rely on the times.

        Text that a spreadsheet would take for a formula (it begins with ``= + - @``, a tab or a line break) gets an
        apostrophe before it.
        """
        return self.table.to_csv(path)

    def to_markdown(self, path: Path | None = None, *, columns: Sequence[str] | str | None = None) -> str | None:
        """Return a table in GitHub's Markdown of the parts that cost most, or write it to ``path``: each column in one unit, with two
        digits. Below it are the report's notes, such as its latency and that its times are unsteady.

        ``columns`` are some of module, class, modules, params, macs, flops, flops%, seconds and time%, in this order.
        """
        return self._as_paper(columns).to_markdown(path)

    def to_latex(self, path: Path | None = None, *, columns: Sequence[str] | str | None = None) -> str | None:
        """Return a ``tabular`` environment for LaTeX's booktabs, or write it to ``path``. Rows and ``columns`` are as for
        :meth:`to_markdown`; its notes are comments here."""
        return self._as_paper(columns).to_latex(path)

    def to_chrome_trace(self, path: Path | None = None) -> str | None:
        """Return a trace for Perfetto (ui.perfetto.dev) and chrome://tracing, or write it to ``path``.

        It shows the modules with their operations inside, laid end to end in run order, and the memory. If nothing was
        timed, 1 us stands for 1 MFLOP, and the trace says so.
        """
        return written(as_json(chrome_trace(self._counted_run)), path)

    def to_memory_snapshot(self, path: Path | None = None) -> dict[str, Any] | None:
        """Return the run's allocations as :func:`torch.cuda.memory._snapshot` returns those of a device, or pickle them to
        ``path``, for pytorch.org/memory_viz and ``python -m torch.cuda._memory_viz``.

        No device is needed: those of :func:`~fxflops.count` are predicted. Raises InputError for a report read from a
        file, which does not hold single allocations.
        """
        from .memory_snapshot import memory_snapshot

        snapshot = memory_snapshot(self._counted_run)
        if path is None:
            return snapshot
        written_bytes(pickle.dumps(snapshot, protocol=4), path)  # the viewer reads no later protocol
        return None

    def to_model_explorer(self, path: Path | None = None, *, by: str | None = None) -> str | None:
        """Return the graph as JSON for Google's Model Explorer, or write it to ``path``: its layers are the modules.

        With ``by`` "flops", "macs", "time" or "memory" it is the node data for that graph instead, which colour it.
        Raises InputError for the report of a run without a graph, as that of :func:`~fxflops.count` is.
        """
        data = graph(self._counted_run) if by is None else node_data(self._counted_run, by)
        return written(as_json(data), path)

    def to_svg(
        self,
        path: Path | None = None,
        *,
        chart: str = "modules",
        by: str = "flops",
        depth: int | None = None,
        device: str | Device = "auto",
    ) -> str | None:
        """Return a picture as SVG, or write it to ``path``.

        ``chart`` is "modules": an icicle, with each module as wide as its share; "graph": modules with the tensors between them,
        coloured by cost; "memory": the bytes over the run by category; or "roofline": the calls under the ceilings of a ``device``.

        ``by`` is "flops", "macs", "time" or, in the graph, "memory". In the graph, identical modules that follow each other stand in
        one box, and ``depth`` is the number of levels of modules, by default as many as give a picture that can be looked at. Raises
        InputError for the graph of a run without one (only :func:`~fxflops.analyze` makes it), and for a chart of what is not known.
        """
        return written(self._picture(chart, by, depth, device), path)

    def to_png(
        self,
        path: Path | None = None,
        *,
        chart: str = "modules",
        by: str = "flops",
        depth: int | None = None,
        device: str | Device = "auto",
    ) -> bytes | None:
        """Return the picture of :meth:`to_svg` as PNG, in twice its size, or write it to ``path``: ``pip install resvg-py``."""
        return written_bytes(as_png(self._picture(chart, by, depth, device)), path)

    def to_pdf(
        self,
        path: Path | None = None,
        *,
        chart: str = "modules",
        by: str = "flops",
        depth: int | None = None,
        device: str | Device = "auto",
    ) -> bytes | None:
        """Return the picture of :meth:`to_svg` as PDF, or write it to ``path``: ``pip install cairosvg``."""
        return written_bytes(as_pdf(self._picture(chart, by, depth, device)), path)

    def _picture(self, chart: str, by: str, depth: int | None, device: str | Device) -> str:
        if chart == "graph":
            return picture(self._counted_run, self._summary.root, by, depth)
        return charted(self._page(device), chart, by)

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):  # a property that raised AttributeError: here it raises it again
                return object.__getattribute__(self, name)
            public = [each for each in dir(self) if not each.startswith("_")]
            told = OF_OTHER_TOOLS.get(name) or f"{did_you_mean(name, public)}; print(report) shows its summary"
            advice = f"a Report has no {name!r}{told}"
            raise AttributeError(advice, name=name, obj=self)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Report) and self._undated() == other._undated())

    def _undated(self) -> dict[str, Any]:
        data = self.to_dict()
        return {**data, "environment": {**data["environment"], "date": ""}}

    def __hash__(self) -> int:
        return hash((self.model, self.inputs, self.convention, self.total_flops))

    def __reduce__(self) -> tuple[Any, ...]:
        return Report.from_dict, (self.to_dict(),)

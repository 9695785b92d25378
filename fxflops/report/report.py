"""The Report: a counted run and everything computed from the run. Most methods only call a function of another module.

A Report is immutable: recounting under another convention returns a new Report.
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
from ..counting.steps import StepTime, timing_of, unsteady
from ..counting.uncounted import Missing, incomplete, recipe
from ..errors import FormulaError, InputError, MissingFormulaError, did_you_mean, renamed
from ..meters.history import LiveTensor, Moment
from ..meters.nodes import Node
from ..meters.timing import Timing
from ..names import is_torch_loaded
from ..records import ALL_PHASES, FORWARD, OUTSIDE, PARTS, PHASES, Call, Counted, FormulaFunction, Params
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
    convention_table,
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
    "uncalled_modules": ": print(report.tree()) marks modules that were not called. For fvcore's method, use fxflops.adapters.fvcore",
    "unsupported_ops": ": report.missing lists the ops that are not counted. For fvcore's method, use fxflops.adapters.fvcore",
    "unsupported": ": report.missing lists the ops that are not counted",
    "by_module_and_operator": ": use report.by_module() or report.by_operator(). For fvcore's method, use fxflops.adapters.fvcore",
    "total": ": use report.total_flops or report.total_macs",
    "from_json": ": fxflops.Report.load('report.json') reads a report that report.save('report.json') wrote",
    "key_averages": ": report.by_operator() sums the calls of each operator",
}
"""Advice for attributes that only the results of other counters have, by the attribute's name."""


class Report(View):
    """The FLOPs, time and memory of one run of a model, operation by operation.

    Counts are ints, times are in seconds, and memory is in bytes. A value that was not measured is None. Two reports are equal
    if all their data except the date are equal. A report loaded from a file equals the report that was saved.

    A report stores a :class:`~fxflops.counting.counted_run.CountedRun`. To be able to recount the run, a report also stores the convention,
    the formulas and a weak reference to the model.
    """

    def __init__(
        self,
        run: Run,
        convention: Convention,
        registry: FormulaRegistry | None,
        model: Callable[[], nn.Module | None] | None,
        attention: str = "dense",
        counted: tuple[Counted, ...] | None = None,
        user_counts: Mapping[int, Counted] | None = None,
    ) -> None:
        """Count the calls of ``run``. If the run was read from a file, ``counted`` already has the counts.

        ``registry`` and ``model`` may be None for a run read from a file. ``user_counts`` maps the index of a call to a count of this call that a
        formula of the user gave. A file stores these counts, because a file cannot store formulas.
        """
        self._run = run
        self._convention = convention
        if registry is not None:
            self._registry = registry
        self._model = model
        self._user_counts = user_counts or {}
        self._data: Mapping[str, Any] | None = None
        """The JSON data from which this report was read; None if torch was loaded at that time."""
        if counted is None:
            # Not imported at the top of the file: formulas import torch, and a report from a file needs no torch.
            from ..counting.counts import counts_of_run

            module_at = module_finder(model, run.calls)
            counted = counts_of_run(run, convention, self._registry, module_at, attention, self._user_counts)
        self._counted_run = CountedRun(run, counted, convention.name, attention)

    @cached_property
    def _registry(self) -> FormulaRegistry:
        """The formulas. A report read from a file uses the formulas of fxflops and of installed libraries."""
        from ..ops.packages import registry_with

        return registry_with(None)

    # Totals

    @property
    def total_flops(self) -> int:
        """FLOPs of the forward pass under the report's convention. If the report is not complete, this is a lower bound."""
        return self._counted_run.forward.flops

    @property
    def total_macs(self) -> int:
        """Multiply-accumulates in the forward pass's matrix products, convolutions and attention; the same under every convention."""
        return self._counted_run.forward.macs

    @property
    def total_gradient_flops(self) -> int | None:
        """FLOPs of gradients computed inside the forward pass, e.g. the forces in a molecular model. ``total_flops`` includes
        these FLOPs. None if the forward computes no gradients."""
        return totals.flops_of(self._counted_run, "gradient")

    @property
    def total_backward_flops(self) -> int | None:
        """FLOPs of the backward pass. None if no backward pass ran, or if the convention does not say how to count the backward."""
        return totals.backward_flops(self._counted_run)

    @property
    def total_backward_macs(self) -> int | None:
        """Multiply-accumulates of the backward pass; None if no backward pass ran."""
        return totals.backward_macs(self._counted_run)

    @property
    def total_recompute_flops(self) -> int | None:
        """FLOPs that gradient checkpointing recomputed in the backward pass; None if no backward pass ran."""
        return totals.recompute_flops(self._counted_run)

    @property
    def total_optimizer_flops(self) -> int | None:
        """FLOPs of the optimizer's steps; None if no optimizer step was recorded."""
        return totals.flops_of(self._counted_run, "optimizer")

    @property
    def total_training_flops(self) -> int | None:
        """FLOPs of forward and backward, without recomputation and optimizer steps; None if ``total_backward_flops`` is None."""
        return totals.training_flops(self._counted_run)

    @property
    def total_int_ops(self) -> int:
        """Number of operations on integers and booleans in the forward pass. Operations on integers and booleans are not FLOPs."""
        return self._counted_run.forward.int_ops

    @property
    def total_activations(self) -> int:
        """Number of elements in the outputs of matrix products, convolutions and attention, which is fvcore's definition of activations."""
        return self._counted_run.forward.activations

    @property
    def total_params(self) -> int | None:
        """Number of parameters. A shared parameter is counted once. None for a profiler trace, which does not contain parameters."""
        return totals.params(self._counted_run)

    @property
    def params(self) -> Params | None:
        """The numbers of parameters and buffers, and the parameters' size in bytes. None for a profiler trace, which has no parameters."""
        return self._run.params

    # Time and memory

    @property
    def latency(self) -> float | None:
        """Median time of a forward run without any observer, in seconds. None if no run was timed; use ``block_time`` for ``profile``."""
        return totals.latency(self._run)

    @property
    def timing(self) -> Timing | None:
        """The latency, its spread, and the number of timed runs; None if no run was timed."""
        return self._run.latency

    @property
    def backward_timing(self) -> Timing | None:
        """The time of the backward pass, its spread, and the number of timed runs; None if the backward was not timed."""
        return self._run.backward_latency

    @property
    def block_time(self) -> float | None:
        """Duration of a block under ``profile`` in seconds, without the overhead of observing the block. None if no block was timed."""
        return totals.block_seconds(self._counted_run)

    @property
    def device_time(self) -> float | None:
        """Seconds for which the accelerator was busy in a profiled block. None if this time is unknown, or if no block was profiled.

        The time in which the device waited for the host is not included. So the overhead of observing the block does not change the value.
        """
        return self._run.block.device_seconds

    @property
    def instrument_time(self) -> float | None:
        """Overhead of observing a block under ``profile``, in seconds. All other times exclude this overhead."""
        return self._run.block.instrument_seconds

    @property
    def total_time(self) -> float | None:
        """Sum of the median times of all graph nodes, in seconds; None if the nodes were not timed."""
        return totals.nodes_seconds(self._run)

    @property
    def unsteady(self) -> str:
        """A text that says why the times are unreliable. The text is "" if the times are steady, or if nothing was timed."""
        return unsteady(self._run, self.total_time)

    @property
    def max_memory(self) -> int | None:
        """Peak memory of the run in bytes, including parameters, buffers and inputs; None for a profiler trace."""
        return self._run.memory.peak

    @property
    def memory(self) -> Memory:
        """The memory at the peak: the bytes by category, the place in the run where the peak occurs, and the source of these numbers."""
        return self._run.memory.by_category

    @property
    def live_at_peak(self) -> tuple[LiveTensor, ...]:
        """The tensor storages alive at peak memory, largest first. Each storage has a category and the operation that allocated the storage."""
        return self._run.memory.history.at_peak

    @property
    def timeline(self) -> tuple[Moment, ...]:
        """The live bytes by category after each call of the run."""
        return self._run.memory.history.timeline

    # The run

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of the run, in order."""
        return self._run.calls

    @property
    def counted(self) -> tuple[Counted, ...]:
        """The calls with their costs. If the convention charges whole modules (as thop does), these charges come last."""
        return self._counted_run.counted

    @property
    def scopes(self) -> tuple[Any, ...]:
        """The module calls of the run."""
        return self._run.scopes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The graph's nodes in run order; empty if the model ran without a graph."""
        return self._run.nodes

    @property
    def model(self) -> str:
        """The model's class name."""
        return self._run.model

    @property
    def name(self) -> str:
        """The model's class name, followed by the name under which the model was requested, e.g. "ResNet (timm:resnet18)"."""
        return self._counted_run.name

    @property
    def inputs(self) -> str:
        """The inputs as text, e.g. "f32[1,3,224,224]"."""
        return self._run.inputs

    @property
    def trace(self) -> str:
        """How the calls were observed, in words, e.g. "symbolic trace", "recorded trace", "no trace", "counted on the meta device",
        "counted on real tensors", "profiled as it ran", "simulated", or "steps profiled, no operations"."""
        return self._run.recorded_as

    @property
    def trace_reason(self) -> str:
        """The reason why the model was not traced symbolically, or not counted on the meta device. "" if there is no such reason."""
        return self._run.recorded_why

    @property
    def environment(self) -> Environment:
        """The device, modes, versions and machine of the run, and its date."""
        return self._run.environment

    @property
    def provenance(self) -> str:
        """One line about the origin of the numbers: the name under which the model was requested, the versions, the date and the machine."""
        return self._counted_run.provenance

    @property
    def convention(self) -> str:
        """The name of the convention."""
        return self._convention.name

    @property
    def attention(self) -> str:
        """How attention is counted: "dense" or "exact"."""
        return self._counted_run.attention

    @property
    def rules(self) -> str:
        """The convention and, if the model has attention, how attention is counted, e.g. "convention fxflops, attention dense"."""
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
        """Remarks by call, e.g. that an index is outside the embedding table."""
        return self._counted_run.remarks

    def recipe(self) -> str:
        """Return code that registers a guess for each missing op: one operation per output element. Return "" if no formula is missing."""
        return recipe(self.counted)

    def checked(self, strict: bool) -> Report:
        """Return this report. Raise MissingFormulaError if ``strict`` is True and the report is incomplete."""
        if strict and not self.complete:
            raise MissingFormulaError(incomplete(self.missing, recipe(self.counted)))
        return self

    # Tables

    def by_module(self, phase: str = "forward") -> Rows[ModuleRow]:
        """Return a row of sums for each module, by the module's path. The path "" is the model.

        ``phase`` is "forward" (which includes "gradient"), "backward", "recompute" (forward work that gradient
        checkpointing repeats), "optimizer" or "gradient" (gradients computed inside the forward). Raises InputError for a phase
        without calls.
        """
        return module_table(self._counted_run, phase)

    def by_operator(self, phase: str = "forward") -> Rows[OperatorRow]:
        """Return a row of sums for each operator, by the operator's name. The operator with the most FLOPs is first.

        The row ``(no op)`` has the time of graph nodes that compute nothing. A node that computes nothing is e.g. an input, an index into a
        tuple, or a shape.
        """
        return operator_table(self._counted_run, phase)

    def by_dtype(self, phase: str = "forward") -> Rows[OperatorRow]:
        """Return a row of sums for each output dtype ("f32", "bf16", ...)."""
        return dtype_table(self._counted_run, phase)

    def by_convention(self, near: float | None = None) -> Table:
        """Return the forward's total under each convention, as the convention's tool counts it: in FLOPs or in multiply-accumulates (MACs).

        To find out which convention a published number follows, pass the number as ``near``, e.g. ``near=4.5e9``. The conventions are then
        sorted by how close their total is, and the column ``difference%`` is the total's distance from the number. A total with ``missing``
        calls is a lower bound.

        >>> print(report.by_convention(near=4.5e9))  # doctest: +SKIP
        """
        conventions: list[str | Convention] = [BASE_MACS, *CONVENTIONS]
        report = self._with_torch()  # once: a report from a file would be read again for each recount
        return convention_table([report.recount(each)._counted_run for each in conventions], near)

    def by_module_and_operator(self, phase: str = "forward") -> Rows[Rows[OperatorRow]]:
        """For each module path, return a row of sums for each operator that is called in the module or in the modules below it."""
        return module_and_operator_table(self._counted_run, phase)

    def by_step(self) -> Rows[OperatorRow]:
        """Return a row of sums for each model call under :func:`fxflops.profile`, in run order. Work outside the steps is last.

        The steps of ``generate()`` are "prefill", "decode 1", "decode 2" ... All other steps are "step 1", "step 2" ... If several models
        ran, the name of a step includes the model's name. In a loop that calls ``p.step()``, the steps are the loop's iterations. The
        backward pass and the optimizer have their own rows: "step 1 backward", "step 1 optimizer". A report of one call has one step.
        """
        return step_table(self._counted_run)

    def step_times(self) -> Rows[StepTime]:
        """Return the time of each step of a profiled block, and where this time went. The steps' times add up to ``block_time``.

        A step begins when a model call (or a loop iteration) starts, and ends when the next call (or iteration) starts. The column
        "between" is the time spent outside the model, the backward pass and the optimizer, e.g. on a loss or on the choice of a token.
        """
        return step_time_table(self._counted_run)

    def by_line(self) -> Table:
        """Return how much of a profiled block's time each line of the user's own code took, by file and line. The slowest line comes first.

        A line's time includes the library code that it calls. Raises InputError unless ``profile(..., lines=True)`` sampled it.
        """
        return line_table(self._counted_run)

    @property
    def table(self) -> Table:
        """The operations in run order, with module, shapes, MACs, FLOPs, seconds and bytes as raw values.

        ``params`` is a leaf module's number of parameters, shown only at the module's first call. The memory columns are those of the
        call's graph node. Counts are None for an op without a formula.
        """
        return operation_table(self._counted_run)

    @property
    def kernels(self) -> Table:
        """The kernels of each operator, slowest first. Empty unless the report is from ``analyze(kernels=True)`` or a profiler trace."""
        return kernel_table(self._counted_run)

    @property
    def collectives(self) -> Table:
        """The collectives of this process, by module and phase. Each row has the operation, the group, the bytes sent and received, and the seconds.

        A process group is named after its mesh dimension. The bytes are the fewest that any algorithm must transfer for the operation (see
        ``docs/distributed.md``). For example, a ring algorithm transfers this number. The seconds end when the call returns; an
        asynchronous transfer may end later.
        """
        return collective_table(self._counted_run)

    def __getitem__(self, path: str) -> ModuleRow:
        """Return the row of the module at this path, e.g. ``report["blocks.3"]``. Raises InputError for an unknown path."""
        return module_at(self._counted_run, path)

    def __contains__(self, path: object) -> bool:
        return path in self._counted_run.modules(FORWARD)

    def __iter__(self) -> NoReturn:
        figures = "macs, params = report.total_macs, report.total_params"
        raise TypeError(f"a Report cannot be unpacked like a tuple: use {figures}; report.table has the operations")

    # Other rules, devices and runs

    def recount(
        self,
        convention: str | Convention | None = None,
        *,
        attention: str | None = None,
        formulas: Mapping[Any, FormulaFunction] | None = None,
    ) -> Report:
        """Return a report of this run that is counted under another convention, with another ``attention`` or with other ``formulas``.

        The model does not run again. ``attention="exact"`` counts the query-key pairs that a mask allows. The pairs that a mask allows are
        known for causal attention, and for masks whose values could be read. Attention with any other mask is listed in ``missing``. A
        report read from a file keeps the counts that the user's formulas gave. To replace these counts, pass ``formulas`` for the same ops.

        Raises InputError if the report was read from a file and counted under a convention that the user defined, unless a ``convention`` is passed.
        """
        if convention is None and self._convention.summary == NAME_ONLY:
            raise InputError(
                f"the file stores only the name of the convention {self.convention!r}, not the convention's rules",
                advice="convention",
            )
        if self._data is not None:
            return self._with_torch().recount(convention, attention=attention, formulas=formulas)
        rules = self._convention if convention is None else find_convention(convention)
        return self._recounted(rules, self.attention if attention is None else check_attention(attention), formulas)

    def _recounted(
        self, rules: Convention, attention: str, formulas: Mapping[Any, FormulaFunction] | None = None
    ) -> Report:
        from ..counting.counts import is_by_user_formula

        registry = self._registry.derive(formulas)
        user_counts = {
            i: counted for i, counted in self._user_counts.items() if not is_by_user_formula(self.calls[i], registry)
        }
        return Report(self._run, rules, registry, self._model, attention, user_counts=user_counts)

    def explain(self, a: str | Convention, b: str | Convention | None = None, phase: str = FORWARD) -> Explanation:
        """Explain why conventions ``a`` and ``b`` give different totals. Each row is an op that the conventions count differently.

        Without ``b``, the report's own convention is compared with ``a``. If one convention counts multiply-accumulates and the other is
        "fxflops", the result shows fxflops's MACs instead of its FLOPs. ``phase`` is as for :meth:`by_module`.

        >>> print(report.explain("fvcore", "deepspeed"))  # doctest: +SKIP
        """
        if phase in CONVENTIONS and phase not in PHASES:
            raise InputError(
                f"explain() compares two conventions, got {a!r}, {b!r} and {phase!r}: call explain() for two conventions at a time"
            )
        check_phase(phase)
        one, other = (self, self.recount(a)) if b is None else (self.recount(a), self.recount(b))
        if {one.convention, other.convention} & OF_MACS.keys():
            # If a tool counts multiply-accumulates, compare its number with fxflops's MACs instead of fxflops's FLOPs.
            one, other = (
                each.recount(BASE_MACS) if each.convention == BASE_CONVENTION else each for each in (one, other)
            )
        return explain(one._counted_run, other._counted_run, phase)

    def roofline(self, device: str | Device = "auto", phase: str = "forward") -> Roofline:
        """Return the minimum time that a device needs for each call, next to the measured time.

        ``device`` is a name, a Device, or "auto" for the device of the run. ``phase`` is as for :meth:`by_module`, or "all" for all phases
        together, e.g. of a training step.
        Attention is counted only for the query-key pairs that the mask allows, even if the report itself counts all pairs. The values of
        some masks are unknown. In a ``count``, this happens if the mask is computed from weights or is on the meta device. For such a mask,
        the bound assumes that no pairs are computed. The bound for such a mask includes only the time to move bytes, and the result says so.
        """
        least, exact = (self._counted_as_computed(attention) for attention in ("least", "exact"))
        shown = PHASES if check_phase(phase, or_all=True) == ALL_PHASES else PARTS[phase]
        unread = sum(
            a.cost is not None and b.cost is None and a.call.phase in shown for a, b in zip(least, exact, strict=True)
        )
        phases = {call.phase for call in self._run.calls}
        return replace(
            self._bounds(device, phase, least),
            unread=unread,
            counted_for=self._counted_for,
            ran=tuple(name for name in PHASES if name in phases),
        )

    def _bounds(self, device: str | Device, phase: str, computed: Sequence[Counted]) -> Roofline:
        """Return the roofline of the calls in a phase. ``computed`` has these calls' counts."""
        from ..roofline.utilization import roofline

        timing = timing_of(self._run, self._counted_run.step_times, phase)
        bounds = roofline(
            self._with_torch()._counted_run.counted, computed, self.environment.device, device, phase, timing
        )
        return replace(bounds, provenance=self.provenance)

    def predict(
        self, device: str | Device, *, launch: str = "graph", calibration: Calibration | None = None
    ) -> Prediction:
        """Predict the time in seconds that a device takes to run all counted calls one after the other.

        ``device`` is a name or a Device. ``launch="graph"`` predicts only device time, as in a CUDA graph. With ``launch="eager"``,
        each kernel also waits until the host has launched it. ``calibration`` has measured kernel speeds, e.g. from
        :func:`fxflops.calibrate`. The default is fxflops's own calibration of the card, or of the most similar cards. If no
        calibration covers a call, the call's predicted time is its roofline bound. The prediction states the expected error. The prediction
        also states which share of the time is predicted for calls without a calibration. Use ``count(..., device="cuda")`` to make the
        report. Otherwise the prediction assumes the kernels of the report's own device, and the result says so.

        >>> print(report.predict("H100 SXM"))  # doctest: +SKIP
        """
        from ..prediction.predict import predict

        exact = self._counted_as_computed("exact")
        # If a mask's values are unknown, a roofline bound assumes that attention computes no pairs. A prediction assumes all pairs.
        expected = [d if e.cost is None else e for e, d in zip(exact, self._counted_as_computed("dense"), strict=True)]
        phases = [phase for phase in PHASES if phase != "gradient" and any(c.call.phase in PARTS[phase] for c in exact)]
        rooflines = [self._bounds(device, phase, expected) for phase in phases]
        prediction = predict(exact, rooflines, device, calibration, launch)
        times = self.step_times()
        return replace(
            prediction,
            counted_for=self._counted_for,
            provenance=self.provenance,
            steps=sum(name != OUTSIDE for name in times),
            loading_seconds=sum(time.loading for time in times.values()),
        )

    def reserved(self, device: str | Device, *, gpus: int = 1, allocator: CachingAllocator | None = None) -> Reserved:
        """Predict the memory in bytes that CUDA's caching allocator reserves for the run on a device. :meth:`reserved` also predicts
        whether this memory fits.

        ``device`` is a name or a Device. ``gpus`` is the number of GPUs in the job, which determines the size of NCCL's buffers. To
        change torch's default settings, pass an empty :class:`~fxflops.prediction.CachingAllocator` as ``allocator``.

        Make the report with :func:`count` and ``device="cuda"``, on any machine. For a report of another device type than CUDA, the
        prediction uses the tensors of that device, and the result says so. Two steps of the run are simulated. Raises InputError for a
        report that was read from a file.

        >>> print(report.reserved("H100"))  # doctest: +SKIP
        """
        from ..prediction.reserved import reserved

        exact = self._counted_as_computed("exact")
        memory = reserved(self._run.memory.history, exact, device, self._counted_for, gpus=gpus, allocator=allocator)
        return replace(memory, provenance=self.provenance)

    @property
    def _counted_for(self) -> str:
        """The device type of the run, e.g. "cuda"."""
        return parts_of(self.environment.device)[0].partition(":")[0]

    def _counted_as_computed(self, attention: str) -> Sequence[Counted]:
        """Return the calls with the FLOPs that a device computes, independent of the report's convention.

        ``attention`` is "dense", "exact" or "least". "least" is like "exact", but counts no query-key pairs if the mask's values are unknown.
        """
        if attention not in self._computed:
            recounted = self._with_torch()._recounted(find_convention(BASE_CONVENTION), attention)
            self._computed[attention] = recounted._counted_run.counted
        return self._computed[attention]

    @cached_property
    def _computed(self) -> dict[str, Sequence[Counted]]:
        return {}

    def mfu(self, device: str | Device = "auto") -> float | None:
        """Return the model FLOPs utilization (MFU). MFU is 2 x MACs of forward and backward, divided by the time and by the device's peak FLOP/s.

        The time is the time of forward and backward or, under ``profile``, the time of the whole block. Returns None and warns if the run
        was not timed on this device, or if it was faster than a measured peak. The warning says why. For a device from the table or a
        device that you defined, the result may be above 1. If the MFU is above 1, a warning says that the device's peak is too low.
        """
        return self._mfu(device, asked=True)

    def hfu(self, device: str | Device = "auto") -> float | None:
        """Return the hardware FLOPs utilization (HFU): like :meth:`mfu`, but with the recomputation of gradient checkpointing."""
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
        """Return the GPU-hours needed to train on ``tokens`` tokens. Printing the result shows the formula and the 6ND estimate.

        ``tokens`` is a number, or text such as "15T" or "300B". ``device`` is the card's name, such as "H100", or a Device. ``mfu`` is
        the share of the device's peak FLOP/s that the job reaches; the training of Llama 3 405B on H100s reached 0.38 to 0.43 (The Llama 3
        Herd of Models, arXiv:2407.21783). The peak is for the dtype of the step's largest matrix product.
        ``tokens_per_step`` is the number of tokens in the counted step. The default is the same as for ``tokens`` in :meth:`per_token`.
        Raises InputError if no backward pass was counted.
        """
        is_dense = self.attention == "dense" and self._counted_run.has_attention
        exact = self.recount(attention="exact")._counted_run if is_dense else None
        return training_run(self._counted_run, tokens, device, mfu, tokens_per_step, exact)

    def per_token(self, tokens: int | None = None) -> PerToken:
        """Return the cost per token: FLOPs, MACs and seconds of the run, divided by the number of ``tokens``.

        By default, the number of integers passed to the model is used. For ``generate()`` under :func:`fxflops.profile`, the default is the
        length of the prompt plus the number of generated tokens that the model gets as input. Raises InputError if no integers were passed.
        """
        return per_token(self._counted_run, tokens)

    def diff(self, other: Report, phase: str = "forward") -> Diff:
        """Compare ``other`` with this report in total, by module and by operator. ``other`` and this report may both come from files.

        ``phase`` is as for :meth:`by_module`. Raises InputError if ``other`` is not a Report.
        """
        if not isinstance(other, Report):
            raise InputError(
                f"diff() expects a Report, got {type(other).__name__}; Report.load(path) reads a Report from a file"
            )
        return diff(self._counted_run, other._counted_run, check_phase(phase))

    def gather(self, *, whole: Report | None = None, timeout: float = 60.0) -> GatheredReport:
        """Return one report over all torch.distributed processes. Every process must call ``gather`` on its own report.

        ``whole`` is a report of the same work in a single process. For example, use ``fxflops.count`` of the model on the whole batch. If
        the processes together compute more FLOPs than ``whole``, some work is repeated in several processes. The result shows the repeated
        FLOPs by module. Without torch.distributed, the result covers one process.

        Raises DistributedError in every calling process if another process does not call ``gather`` within ``timeout`` seconds.
        Raises InputError in all processes if the reports come from different functions, e.g. ``count`` and ``profile``.
        """
        if whole is not None and not isinstance(whole, Report):
            raise InputError(f"whole must be a Report, such as fxflops.count(model, batch), got {type(whole).__name__}")
        return gathered(self._counted_run, None if whole is None else whole._counted_run, timeout)

    def named(self, name: str) -> Report:
        """Return :meth:`with_name`'s result. Deprecated: call :meth:`with_name`."""
        renamed("named(name)", "use with_name(name)")
        return self.with_name(name)

    def with_name(self, name: str) -> Report:
        """Return a copy of this report that shows ``name`` after the model's class. Views show the name; files store the name."""
        run = replace(self._run, environment=self.environment._replace(asked=name))
        return Report(
            run, self._convention, self._registry, self._model, self.attention, self.counted, self._user_counts
        )

    @property
    def compiled(self) -> CompiledView | None:
        """A comparison of the compiled model with the eager model; None unless a compiled model was passed and timed."""
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
        """Return the module tree. ``print`` and notebooks show the tree; its ``to_*`` methods export it.

        ``depth`` is the number of levels. ``sort_by`` is "flops", "time", "memory" or "params"; the default is run order.
        ``fold`` shows identical siblings as one row. ``columns`` are the columns to show. ``units`` is the unit of FLOPs and MACs:
        "G", "M" ... ``phase`` is as for :meth:`by_module`.
        """
        return Tree(
            tree_row(self._counted_run, phase),
            Options(
                depth=depth, sort_by=sort_by, fold=fold, columns=columns, units=units, counted=self._counted_run.title
            ),
            self.provenance,
        )

    def to_html(self, path: Path | None = None, *, device: str | Device = "auto", title: str = "") -> str | None:
        """Return the report as one HTML page, or write the page to ``path``. The page needs no server and loads no other files.

        ``device`` is as for :meth:`roofline`. ``title`` is the page's heading; the default heading is the model's class.
        """
        from ..render.page import page

        return written(page(self._page(device, title)), path)

    def _page(self, device: str | Device = "auto", title: str = "", has_roofline: bool = True) -> Page:
        """Return the data of the HTML page. With ``has_roofline``, the peaks of this machine's CPU may be measured first."""
        rooflines, why = self._rooflines(device) if has_roofline else ({}, "")
        mfu = self._mfu(device) if rooflines else None
        return page_of(self._counted_run, self._summary, rooflines, mfu, why, title)

    def _rooflines(self, device: str | Device) -> tuple[dict[str, Roofline], str]:
        """Return the roofline of each phase. If there is no roofline, also return the reason. With ``device="auto"`` the run must have been timed."""
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
        """Return the table for papers, with the most expensive parts of the model. By default, all columns that are not empty are shown."""
        table = costs_table(self._summary)
        return table.without_empty_columns(COUNTS) if columns is None else table.select(columns)

    @cached_property
    def _summary(self) -> Summary:
        root = tree_row(self._counted_run, FORWARD, with_shapes=False)
        return summary_of(self._counted_run, root, self._utilization)

    @cached_property
    def _utilization(self) -> float | None:
        """The MFU on the device of the run; None if the device is not listed, because its peak would have to be measured."""
        if self._data is not None and "mfu" in (saved := self._data["totals"]):
            return saved["mfu"]  # type: ignore[no-any-return]
        device = listed_at(self.environment.device)
        return self._mfu(device) if device and (self.timing or self.backward_timing or self.block_time) else None

    # Files

    def save(self, path: Path) -> None:
        """Write the report to ``path``. The suffix of ``path`` determines the format.

        ``.json`` is the whole report, for :meth:`load`. ``.csv`` is the table of operations. ``.md`` and ``.tex`` are a table of the
        most expensive modules. ``.html`` is the page of :meth:`to_html`. ``.trace.json`` and ``.perfetto`` are a Chrome trace.
        ``.pickle`` is a memory snapshot. ``.svg``, ``.png`` and ``.pdf`` are a picture of the modules.

        Raises InputError for an unknown suffix. Raises an InputError that is also a FileNotFoundError if the folder does not exist.
        """
        getattr(self, method_for(path))(path)

    @classmethod
    def load(cls, path: Path, model: Callable[..., Any] | None = None) -> Report:
        """Return the report in a JSON file that :meth:`save` wrote. The result equals the saved report and has the same views.

        Pass ``model`` only to recount with formulas that need the modules themselves, because the file has only the modules' plain
        attributes. Loading imports no module that the file names. A class or function that is not imported yet is loaded as a name.

        Raises InputError if the file is not a report, or if this version does not support the file's schema. Raises OSError
        if the file cannot be read.
        """
        data = data_in(path)
        try:
            return cls.from_dict(data, model)
        except InputError as error:
            error.args = (f"{os.fspath(path)}: {error.problem}",)
            raise

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as JSON-compatible data; :mod:`fxflops.report.saved` documents the schema of this data."""
        if self._data is not None:
            return dict(self._data)
        figures = {**{name: getattr(self, name) for name in TOTALS}, "mfu": self._utilization}
        return to_json_data(self._counted_run, self._users_counts(), figures)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], model: Callable[..., Any] | None = None) -> Report:
        """Return the report from the result of :meth:`to_dict`. Arguments and errors are as for :meth:`load`."""
        saved = Saved(data)
        reference: Callable[[], nn.Module | None] | None = None
        if model is not None:
            from ..model.callables import as_model, reference_to

            reference = reference_to(as_model(model))
        report = cls(saved.run, saved.convention, None, reference, saved.attention, saved.counted, saved.user_counts)
        report._data = None if is_torch_loaded() else data
        return report

    def _with_torch(self) -> Report:
        """Return this report. If this report was read without torch, its functions are only names. If the functions are only names, import
        torch and read the report again."""
        if self._data is None:
            return self
        import torch  # noqa: F401

        return Report.from_dict(self._data)

    def _users_counts(self) -> dict[int, Counted]:
        """Return the counts by the user's formulas, by call index.

        The counts by the user's formulas are made under the base convention. A file can store them, because they are valid under every convention.
        """
        from ..counting.counts import user_counts_of

        counted = self.counted if self.convention == BASE_CONVENTION else None
        module_at = module_finder(self._model, self.calls)
        return user_counts_of(self.calls, counted, self._registry, module_at, self.attention, self._user_counts)

    def to_json(self, path: Path | None = None) -> str | None:
        """Return the whole report as JSON that :meth:`load` can read, or write the JSON to ``path``."""
        return written(as_json(self.to_dict()), path)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a ``pandas.DataFrame`` with a row of raw values for each operation. Columns are named by key, e.g. ``flops``.

        Raises InputError if pandas is not installed.
        """
        return self.table.to_dataframe()

    def to_pandas(self) -> pandas.DataFrame:
        """Return :meth:`to_dataframe`'s result. Deprecated: call :meth:`to_dataframe`."""
        renamed("to_pandas()", "use to_dataframe()")
        return self.to_dataframe()

    def to_csv(self, path: Path | None = None) -> str | None:
        """Return the operations' raw values as CSV, or write the CSV to ``path``. The header has the columns' keys.

        The last column is the provenance. In a timed report, two columns precede the provenance: the model's latency and, if the times are
        unreliable, the reason.

        A spreadsheet reads text as a formula if the text starts with ``= + - @``, a tab or a line break. Text that would become a formula
        gets a leading apostrophe.
        """
        return self.table.to_csv(path)

    def to_markdown(self, path: Path | None = None, *, columns: Sequence[str] | str | None = None) -> str | None:
        """Return a GitHub Markdown table of the most expensive parts. With ``path``, write the table to this file instead.

        All values in a column have the same unit and at most two decimals. Notes follow the table, e.g. that the
        times are unsteady. ``columns`` are some of module, class, modules, params, macs, flops, flops%, seconds and time%, in this order.
        """
        return self._as_paper(columns).to_markdown(path)

    def to_latex(self, path: Path | None = None, *, columns: Sequence[str] | str | None = None) -> str | None:
        """Return a LaTeX ``tabular`` for the package booktabs, or write the ``tabular`` to ``path``. Rows and ``columns`` are as for
        :meth:`to_markdown`. The notes become LaTeX comments."""
        return self._as_paper(columns).to_latex(path)

    def to_chrome_trace(self, path: Path | None = None) -> str | None:
        """Return a trace for Perfetto (ui.perfetto.dev) and chrome://tracing, or write the trace to ``path``.

        The trace shows the memory, the modules, and the operations in run order, without overlap. If nothing was timed, 1 us in the trace
        represents 1 MFLOP; the trace says so.
        """
        return written(as_json(chrome_trace(self._counted_run)), path)

    def to_memory_snapshot(self, path: Path | None = None) -> dict[str, Any] | None:
        """Return the run's allocations in the format of :func:`torch.cuda.memory._snapshot`, or pickle them to ``path``.
        The viewers pytorch.org/memory_viz and ``python -m torch.cuda._memory_viz`` read this format.

        No GPU is needed: in a report from :func:`~fxflops.count`, the allocations are predicted. Raises InputError if the report was read
        from a file, because files do not store single allocations.
        """
        from .memory_snapshot import memory_snapshot

        snapshot = memory_snapshot(self._counted_run)
        if path is None:
            return snapshot
        written_bytes(pickle.dumps(snapshot, protocol=4), path)  # the viewer cannot read later pickle protocols
        return None

    def to_model_explorer(self, path: Path | None = None, *, by: str | None = None) -> str | None:
        """Return the graph as JSON for Google's Model Explorer, or write the JSON to ``path``. The graph's layers are the modules.

        If ``by`` is "flops", "macs", "time" or "memory", return node data instead of the graph. Model Explorer uses node data to colour the
        nodes by this cost. Raises InputError for a run without a graph, e.g. of :func:`~fxflops.count`.
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
        """Return a picture as SVG, or write the picture to ``path``.

        ``chart="modules"`` is an icicle chart, in which the width of a module is the module's share of the cost. ``chart="graph"`` shows the
        modules, coloured by cost, and the tensors between them. ``chart="memory"`` shows the live bytes during the run, by
        category. ``chart="roofline"`` shows the calls below the limits of a ``device``.

        ``by`` is the cost: "flops", "macs", "time" or, for the graph, "memory". In the graph, identical consecutive modules share
        one box. ``depth`` is the number of module levels in the graph. By default, the graph has as many levels as fit in a readable
        picture. Raises InputError if the run has no graph or lacks the data for a chart. Only :func:`~fxflops.analyze` makes a graph.
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
        """Return the picture of :meth:`to_svg` as PNG, with 2 pixels per SVG pixel. With ``path``, write the PNG to this file instead.
        Needs ``pip install resvg-py``."""
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
        """Return the picture of :meth:`to_svg` as PDF, or write the PDF to ``path``. Needs ``pip install cairosvg``."""
        return written_bytes(as_pdf(self._picture(chart, by, depth, device)), path)

    def _picture(self, chart: str, by: str, depth: int | None, device: str | Device) -> str:
        if chart == "graph":
            return picture(self._counted_run, self._summary.root, by, depth)
        return charted(self._page(device, has_roofline=chart == "roofline"), chart, by)

    if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):  # the code of a property raised AttributeError: raise that error again
                return object.__getattribute__(self, name)
            public = [attribute for attribute in dir(self) if not attribute.startswith("_")]
            hint = OF_OTHER_TOOLS.get(name) or f"{did_you_mean(name, public)}; print(report) shows a summary"
            advice = f"a Report has no {name!r}{hint}"
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

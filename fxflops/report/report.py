"""The Report: a counted run and everything derived from it. Most methods are one line that calls a function.

A Report is immutable: recounting under another convention returns a new one.
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
"""Advice for attributes that other counters' results have, by name."""


class Report(View):
    """The FLOPs, time and memory of one run of a model, operation by operation.

    Counts are ints, ``latency`` and ``total_time`` are in seconds, memory is in bytes; a value that was not measured is
    None. Two reports are equal if all their data except the date are equal; a report read back from a file equals the one saved.

    A report holds a :class:`~fxflops.counting.counted_run.CountedRun` and everything needed to recount the run: the convention,
    the formulas, and a reference to the model, if it still exists.
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
        """Count the calls of ``run``, unless ``counted`` already has their counts (from a file).

        ``registry`` and ``model`` may be None for a run read from a file. ``users`` maps call indices to the counts from the
        user's own formulas, because a file cannot store the formulas.
        """
        self._run = run
        self._convention = convention
        if registry is not None:
            self._registry = registry
        self._model = model
        self._users = users or {}
        self._data: Mapping[str, Any] | None = None
        """The data this report was read from, if torch was not loaded then."""
        if counted is None:
            # Imported only here: formulas import torch, and a run from a file already has its counts.
            from ..counting.counts import count_run

            module_at = module_finder(model, run.calls)
            counted = count_run(run, convention, self._registry, module_at, attention, self._users)
        self._counted_run = CountedRun(run, counted, convention.name, attention)

    @cached_property
    def _registry(self) -> FormulaRegistry:
        """The formulas; for a report read from a file, the formulas of fxflops and of installed libraries."""
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
        """FLOPs of gradients computed inside the forward (forces, derivatives), a part of ``total_flops``; None if the forward takes
        no gradients."""
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
        """Operations on integers and booleans, which are not FLOPs."""
        return self._counted_run.forward.int_ops

    @property
    def total_activations(self) -> int:
        """Elements in the outputs of the contractions (fvcore's definition)."""
        return self._counted_run.forward.activations

    @property
    def total_params(self) -> int | None:
        """Number of parameters; a shared parameter is counted once. None for a trace, which does not show them."""
        return totals.params(self._counted_run)

    @property
    def params(self) -> Params | None:
        """The numbers of parameters and buffers, and the bytes of parameters; None for a trace, which does not show them."""
        return self._run.params

    # Time and memory

    @property
    def latency(self) -> float | None:
        """Median seconds of a forward run without any observer; None if it was not timed. A profiled block has ``block_time`` instead."""
        return totals.latency(self._run)

    @property
    def timing(self) -> Timing | None:
        """The latency with its spread and the number of repeats."""
        return self._run.latency

    @property
    def backward_timing(self) -> Timing | None:
        """The time of the backward pass, in the same form as ``timing``; None if it was not timed."""
        return self._run.backward_latency

    @property
    def block_time(self) -> float | None:
        """Seconds of a block under ``profile``, excluding the overhead of observing it; None if it was not timed."""
        return totals.block_seconds(self._counted_run)

    @property
    def device_time(self) -> float | None:
        """Seconds that the accelerator was busy in a profiled block; None if unknown, or without a profiled block.

        Time that the device spent waiting for the host is excluded, so observing the block does not change the value.
        """
        return self._run.device_busy

    @property
    def instrument_time(self) -> float | None:
        """Overhead of observing a block under ``profile``, in seconds; no other time includes it."""
        return self._run.instruments

    @property
    def total_time(self) -> float | None:
        """The sum of the graph nodes' median seconds; None if they were not timed."""
        return totals.nodes_seconds(self._run)

    @property
    def unsteady(self) -> str:
        """Why the times are unreliable, in words; "" if they are steady, or nothing was timed."""
        return unsteady(self._run, self.total_time)

    @property
    def max_memory(self) -> int | None:
        """Peak memory of the run in bytes, including parameters, buffers and inputs; None for a trace."""
        return self._run.peak

    @property
    def memory(self) -> Memory:
        """The bytes at the peak by category, where the peak occurs, and the source of the figures."""
        return self._run.memory

    @property
    def live_at_peak(self) -> tuple[LiveTensor, ...]:
        """The tensor storages alive at peak memory, largest first, each with the operation that allocated it and its category."""
        return self._run.history.at_peak

    @property
    def timeline(self) -> tuple[Moment, ...]:
        """The live bytes by category after each call of the run."""
        return self._run.history.timeline

    # The run

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of the run, in order."""
        return self._run.calls

    @property
    def counted(self) -> tuple[Counted, ...]:
        """The calls with their costs, followed by any module charges of the convention."""
        return self._counted_run.counted

    @property
    def scopes(self) -> tuple[Any, ...]:
        """The module calls of the run."""
        return self._run.scopes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The graph's nodes as they ran; empty if the model ran without a graph."""
        return self._run.nodes

    @property
    def model(self) -> str:
        """The model's class name."""
        return self._run.model

    @property
    def name(self) -> str:
        """The model's class name, with the name it was requested by: "ResNet (timm:resnet18)"."""
        return self._counted_run.name

    @property
    def inputs(self) -> str:
        """The inputs as text: "f32[1,3,224,224]"."""
        return self._run.inputs

    @property
    def trace(self) -> str:
        """How the calls were observed: "symbolic trace", "recorded trace", "counted on the meta device" (or "on fake tensors",
        "real tensors")."""
        return self._run.trace

    @property
    def trace_reason(self) -> str:
        """Why the model was recorded instead of traced symbolically, or counted on real tensors; "" if neither happened."""
        return self._run.trace_reason

    @property
    def environment(self) -> Environment:
        """The device, modes, versions and machine of the run, and its date."""
        return self._run.environment

    @property
    def provenance(self) -> str:
        """The origin of the figures on one line: the name the model was requested by, versions, date and machine."""
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
        """The convention and, if the model has attention, how attention is counted: "convention fxflops, attention dense"."""
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
        """Remarks on single calls, e.g. that an index is outside the table it looks up."""
        return self._counted_run.remarks

    def recipe(self) -> str:
        """Return code to paste that counts each missing op as one operation per output element (a guess); "" if no formula is
        missing."""
        return recipe(self.counted)

    def checked(self, strict: bool) -> Report:
        """Return this report; raise MissingFormulaError if it is ``strict`` and incomplete."""
        if strict and not self.complete:
            raise MissingFormulaError(incomplete(self.missing, recipe(self.counted)))
        return self

    # Tables

    def by_module(self, phase: str = "forward") -> Rows[ModuleRow]:
        """Return each module's total and own sums by path; "" is the model.

        ``phase`` is "forward" (which includes "gradient"), "backward", "recompute" (forward work that gradient
        checkpointing repeats), "optimizer" or "gradient" (gradients computed inside the forward). Raises InputError for a phase
        without calls.
        """
        return module_table(self._counted_run, phase)

    def by_operator(self, phase: str = "forward") -> Rows[OperatorRow]:
        """Return each operator's sums by name, largest FLOPs first.

        ``(no op)`` is the time of graph nodes that compute nothing, e.g. an input, an index into a tuple, or a shape.
        """
        return operator_table(self._counted_run, phase)

    def by_dtype(self, phase: str = "forward") -> Rows[OperatorRow]:
        """Return the sums by the dtype of the output ("f32", "bf16", ...)."""
        return dtype_table(self._counted_run, phase)

    def by_module_and_operator(self, phase: str = "forward") -> Rows[Rows[OperatorRow]]:
        """Return, by module path, the sums of each operator in the module's subtree."""
        return module_and_operator_table(self._counted_run, phase)

    def by_step(self) -> Rows[OperatorRow]:
        """Return the sums of each model call under :func:`fxflops.profile`, in run order; work outside the steps is last.

        The steps of ``generate()`` are "prefill", "decode 1", "decode 2" ...; other steps are "step 1", "step 2" ... With
        several models, each step carries its model's name. In a loop that calls ``p.step()``, the steps are the loop's
        iterations. Work between a step and the next has separate rows: "step 1 backward", "step 1 optimizer". A report
        of one call has one step.
        """
        return step_table(self._counted_run)

    def step_times(self) -> Rows[StepTime]:
        """Return where the time went in each step of a profiled block; the steps add up to ``block_time``.

        A step lasts from the start of one model call (or iteration) to the start of the next. "between" is the time outside
        the model, the backward pass and the optimizer, e.g. for loading data, computing a loss, or choosing a token.
        """
        return step_time_table(self._counted_run)

    def by_line(self) -> Table:
        """Return the time of a profiled block by file and line of the user's own code, slowest line first.

        A line's time includes the library code that it calls. Raises InputError unless ``profile(..., lines=True)`` sampled it.
        """
        return line_table(self._counted_run)

    @property
    def table(self) -> Table:
        """The operations in run order, with module, shapes, MACs, FLOPs, seconds and bytes as raw values.

        ``params`` are a leaf module's own, listed at its first call only; memory belongs to the call's graph node; counts are None for
        an op without a formula.
        """
        return operation_table(self._counted_run)

    @property
    def kernels(self) -> Table:
        """The kernels of each operator, slowest first; needs ``analyze(kernels=True)`` or a trace."""
        return kernel_table(self._counted_run)

    @property
    def collectives(self) -> Table:
        """The collectives of this process by module and phase: operation, group, bytes sent and received, seconds.

        A group has the name of its mesh dimension. The bytes are the minimum for the operation, by a ring algorithm (see
        ``docs/distributed.md``). The seconds end when the call returns; the transfer may still be in progress then.
        """
        return collective_table(self._counted_run)

    def __getitem__(self, path: str) -> ModuleRow:
        """Return the row of the module at this path: ``report["blocks.3"]``. Raises InputError for an unknown path."""
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

        The model does not run again. ``attention="exact"`` needs the pairs that a mask leaves. They are always known for
        causal attention, and for masks whose values could be read. Attention with any other mask becomes missing.
        A report read from a file keeps the counts from the user's own formulas, unless ``formulas`` replaces them.

        Raises InputError without a ``convention`` if the report was read from a file and counted under a convention of the
        user's own.
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
        """Explain why conventions ``a`` and ``b`` give different totals: one row per op, with what each convention counts.

        With ``a`` alone, it is compared with the report's own convention. If one of them counts multiply-accumulates and
        the other is fxflops, the fxflops side uses MACs instead of FLOPs. ``phase`` is as for :meth:`by_module`.

        >>> print(report.explain("fvcore", "deepspeed"))  # doctest: +SKIP
        """
        if phase in CONVENTIONS and phase not in PHASES:
            raise InputError(f"explain() compares two conventions, not {a!r}, {b!r} and {phase!r}: compare each pair")
        check_phase(phase)
        one, other = (self, self.recount(a)) if b is None else (self.recount(a), self.recount(b))
        if {one.convention, other.convention} & OF_MACS.keys():
            # Compare a tool that counts multiply-accumulates with our MACs.
            one, other = (
                each.recount(BASE_MACS) if each.convention == BASE_CONVENTION else each for each in (one, other)
            )
        return explain(one._counted_run, other._counted_run, phase)

    def roofline(self, device: str | Device = "auto", phase: str = "forward") -> Roofline:
        """Return the minimum time that a device needs for each call, beside the measured time.

        ``device`` is a name, a Device, or "auto" for the device of the run; ``phase`` is as for :meth:`by_module`.
        Attention is counted with the pairs that its arguments and mask leave, even if the report counts all pairs. A mask whose values
        are unknown (computed from weights or floating inputs in a ``count``, or on meta) may leave no pairs: then the bound contains
        only the bytes, and the result says so.
        """
        least, exact = (self._counted_as_computed(attention) for attention in ("least", "exact"))
        unread = sum(
            a.cost is not None and b.cost is None and a.call.phase in PARTS[check_phase(phase)]
            for a, b in zip(least, exact, strict=True)
        )
        return replace(self._bounds(device, phase, least), unread=unread)

    def _bounds(self, device: str | Device, phase: str, computed: Sequence[Counted]) -> Roofline:
        """Return the roofline of a phase's calls, with the counts in ``computed``."""
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

        ``device`` is a name or a Device. ``launch`` is "graph" for device time only, as in a CUDA graph, or "eager" to let each kernel
        wait until the host has launched it. ``calibration`` holds measured kernel speeds, e.g. from :func:`fxflops.calibrate`. The
        default is fxflops's own calibration of the card, or of the cards most like it. Calls that no calibration covers are
        predicted at their roofline bound; the prediction states their share of the time, and its error. A report that was not counted
        for a GPU (``count(..., device="cuda")``) is predicted with its own device's kernels, and the prediction says so.

        >>> print(report.predict("H100 SXM"))  # doctest: +SKIP
        """
        from ..prediction.predict import predict

        exact = self._counted_as_computed("exact")
        # With an unknown mask, a bound assumes that attention computes no pairs; a prediction assumes all of them.
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
        """Predict the memory in bytes that CUDA's caching allocator reserves for the run on a device, and whether it fits.

        ``device`` is a name or a Device. ``gpus`` is the number of GPUs in the job, for NCCL's buffers. ``allocator`` is an
        empty :class:`~fxflops.prediction.CachingAllocator` with settings other than torch's defaults.

        Make the report with :func:`count` and ``device="cuda"``, on any machine; for a report of another device the result says that
        it used that device's tensors. Two steps are simulated. Raises InputError for a report that was read from a file.

        >>> print(report.reserved("H100"))  # doctest: +SKIP
        """
        from ..prediction.reserved import reserved

        exact = self._counted_as_computed("exact")
        memory = reserved(self._run.history, exact, device, self._counted_for, gpus=gpus, allocator=allocator)
        return replace(memory, provenance=self.provenance)

    @property
    def _counted_for(self) -> str:
        """The device type of the run, e.g. "cuda"."""
        return parts_of(self.environment.device)[0].partition(":")[0]

    def _counted_as_computed(self, attention: str) -> Sequence[Counted]:
        """Return the calls counted as a device computes them, independent of the report's convention.

        ``attention`` is "dense", "exact", or "least": exact, but no pairs if the mask's values are unknown.
        """
        if attention not in self._computed:
            recounted = self._with_torch()._recounted(find_convention(BASE_CONVENTION), attention)
            self._computed[attention] = recounted._counted_run.counted
        return self._computed[attention]

    @cached_property
    def _computed(self) -> dict[str, Sequence[Counted]]:
        return {}

    def mfu(self, device: str | Device = "auto") -> float | None:
        """Return the model FLOPs utilization (MFU): 2 x MACs of forward and backward, divided by their time (under ``profile``, the
        time of the block) and by the device's peak. Returns None, and warns why, if they were not timed on that device, or if the run
        was faster than a measured peak. For a listed or user-defined device a value above 1 is returned as it is, with a warning
        that the peak is too low.
        """
        return self._mfu(device, asked=True)

    def hfu(self, device: str | Device = "auto") -> float | None:
        """Return the hardware FLOPs utilization (HFU): like :meth:`mfu`, but including recomputation by gradient checkpointing."""
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
        """Return the GPU-hours needed to train on ``tokens`` tokens, with the formula in its text, beside the 6ND estimate.

        ``tokens`` is a number, or text such as "15T" or "300B". ``device`` is the card's name, such as "H100", or a Device. ``mfu`` is
        the share of the device's peak that the job reaches, in the dtype of the counted step's largest product. ``tokens_per_step`` is
        as ``tokens`` for :meth:`per_token`. Raises InputError if no backward pass was counted.
        """
        return training_run(self._counted_run, tokens, device, mfu, tokens_per_step)

    def per_token(self, tokens: int | None = None) -> PerToken:
        """Return the cost per token: FLOPs, MACs and seconds of the run, divided by the number of ``tokens``.

        By default the tokens are the integers passed to the model's calls; for ``generate()`` under :func:`fxflops.profile`,
        the prompt and each token that was fed back. Raises InputError if there are none.
        """
        return per_token(self._counted_run, tokens)

    def diff(self, other: Report, phase: str = "forward") -> Diff:
        """Compare ``other`` with this report: in total, by module and by operator. Either may come from a file.

        ``phase`` is as for :meth:`by_module`. Raises InputError if ``other`` is not a Report.
        """
        if not isinstance(other, Report):
            raise InputError(f"diff() takes a Report, not {type(other).__name__}; Report.load(path) reads one")
        return diff(self._counted_run, other._counted_run, check_phase(phase))

    def gather(self, *, whole: Report | None = None, timeout: float = 60.0) -> GatheredReport:
        """Return one report over all torch.distributed processes; every process must call this on its own report.

        ``whole`` is a report of the entire work done in one process, such as ``fxflops.count`` of the model on the whole batch:
        FLOPs beyond it are duplicate work of several processes, and are shown by module. Without torch.distributed the
        result covers one process.

        Raises DistributedError, in every calling process, if one does not call within ``timeout`` seconds, and InputError in all
        of them if their reports come from different functions, e.g. one from ``count`` and the others from ``profile``.
        """
        if whole is not None and not isinstance(whole, Report):
            raise InputError(
                f"whole must be a Report, not {type(whole).__name__}: fxflops.count(model, batch) makes one"
            )
        return gathered(self._counted_run, None if whole is None else whole._counted_run, timeout)

    def named(self, name: str) -> Report:
        """Return :meth:`with_name`'s result. Deprecated: call :meth:`with_name`."""
        renamed("named(name)", "use with_name(name)")
        return self.with_name(name)

    def with_name(self, name: str) -> Report:
        """Return this report with ``name`` as the name its model was requested by; views show it and files store it."""
        run = replace(self._run, environment=self.environment._replace(asked=name))
        return Report(run, self._convention, self._registry, self._model, self.attention, self.counted, self._users)

    @property
    def compiled(self) -> CompiledView | None:
        """The compiled model compared with the eager one; None unless a compiled model was passed and timed."""
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

    def _page(self, device: str | Device = "auto", title: str = "", has_roofline: bool = True) -> Page:
        """Return the data of the page. A roofline may need the peaks of this machine's CPU, which are measured."""
        rooflines, why = self._rooflines(device) if has_roofline else ({}, "")
        mfu = self._mfu(device) if rooflines else None
        return page_of(self._counted_run, self._summary, rooflines, mfu, why, title)

    def _rooflines(self, device: str | Device) -> tuple[dict[str, Roofline], str]:
        """Return the roofline of each phase, or an empty dict and the reason. With ``device="auto"`` the run must have been timed."""
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
        """Return the table for papers: the most expensive parts, with the named columns, or with all that are not empty."""
        table = costs_table(self._summary)
        return table.without_empty_columns(COUNTS) if columns is None else table.select(columns)

    @cached_property
    def _summary(self) -> Summary:
        root = tree_row(self._counted_run, PHASES[0], with_shapes=False)
        return summary_of(self._counted_run, root, self._utilization)

    @cached_property
    def _utilization(self) -> float | None:
        """The MFU on the device of the run; None for an unlisted device, whose peak would have to be measured."""
        if self._data is not None and "mfu" in (saved := self._data["totals"]):
            return saved["mfu"]  # type: ignore[no-any-return]
        device = listed_at(self.environment.device)
        return self._mfu(device) if device and (self.timing or self.backward_timing or self.block_time) else None

    # Files

    def save(self, path: Path) -> None:
        """Write the report in the format of the suffix of ``path``; raise InputError for an unknown suffix, and for a
        folder that does not exist (it is a FileNotFoundError, too).

        ``.json`` holds the whole report, for :meth:`load`; ``.csv`` the table of operations; ``.md`` and ``.tex`` a table of the most
        expensive modules; ``.html`` the page of :meth:`to_html`; ``.trace.json`` and ``.perfetto`` a Chrome trace; ``.pickle`` a memory
        snapshot; ``.svg``, ``.png`` and ``.pdf`` a picture of the modules.
        """
        getattr(self, method_for(path))(path)

    @classmethod
    def load(cls, path: Path, model: Callable[..., Any] | None = None) -> Report:
        """Return the report that ``save("....json")`` wrote. It equals the saved report and has all its views.

        ``model`` is only needed to recount with formulas that read more of a module than its plain attributes. Loading imports
        nothing that the file names: a class or function that is not imported yet is represented by its name.

        Raises InputError for a file that does not hold a report, or whose schema this version does not support; OSError
        if the file cannot be read.
        """
        data = data_in(path)
        try:
            return cls.from_dict(data, model)
        except InputError as error:
            error.args = (f"{os.fspath(path)}: {error.problem}",)
            raise

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as JSON-compatible data; :mod:`fxflops.report.saved` documents its schema."""
        if self._data is not None:
            return dict(self._data)
        figures = {**{name: getattr(self, name) for name in TOTALS}, "mfu": self._utilization}
        return to_json_data(self._counted_run, self._users_counts(), figures)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], model: Callable[..., Any] | None = None) -> Report:
        """Return the report from :meth:`to_dict`'s result; arguments and errors are as for :meth:`load`."""
        saved = Saved(data)
        reference: Callable[[], nn.Module | None] | None = None
        if model is not None:
            from ..model.callables import as_model, reference_to

            reference = reference_to(as_model(model))
        report = cls(saved.run, saved.convention, None, reference, saved.attention, saved.counted, saved.users)
        report._data = None if is_torch_loaded() else data
        return report

    def _with_torch(self) -> Report:
        """Return this report; if it was read without torch, so that it has only names of functions, read it again with torch."""
        if self._data is None:
            return self
        import torch  # noqa: F401

        return Report.from_dict(self._data)

    def _users_counts(self) -> dict[int, Counted]:
        """Return the counts from the user's own formulas, by call index.

        They are counted under the base convention and hold under every convention, so a file can store them.
        """
        from ..counting.counts import users_counts

        counted = self.counted if self.convention == BASE_CONVENTION else None
        module_at = module_finder(self._model, self.calls)
        return users_counts(self.calls, counted, self._registry, module_at, self.attention, self._users)

    def to_json(self, path: Path | None = None) -> str | None:
        """Return the whole report as JSON, the format of :meth:`save`, or write it to ``path``."""
        return written(as_json(self.to_dict()), path)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a ``pandas.DataFrame`` of the operations' raw values; columns are named by key (``flops``, ``seconds``).

        Raises InputError if pandas is not installed.
        """
        return self.table.to_dataframe()

    def to_pandas(self) -> pandas.DataFrame:
        """Return :meth:`to_dataframe`'s result. Deprecated: call :meth:`to_dataframe`."""
        renamed("to_pandas()", "use to_dataframe()")
        return self.to_dataframe()

    def to_csv(self, path: Path | None = None) -> str | None:
        """Return the operations' raw values as CSV with their keys as header, or write it to ``path``. The last column is the
        provenance; in a timed report, the columns before it are the model's latency and why the times are unreliable.

        Text that a spreadsheet would read as a formula (it starts with ``= + - @``, a tab or a line break) gets a leading
        apostrophe.
        """
        return self.table.to_csv(path)

    def to_markdown(self, path: Path | None = None, *, columns: Sequence[str] | str | None = None) -> str | None:
        """Return a GitHub Markdown table of the most expensive parts, or write it to ``path``. Each column has one unit and two
        digits. The report's notes follow, e.g. its latency, or that its times are unsteady.

        ``columns`` are some of module, class, modules, params, macs, flops, flops%, seconds and time%, in this order.
        """
        return self._as_paper(columns).to_markdown(path)

    def to_latex(self, path: Path | None = None, *, columns: Sequence[str] | str | None = None) -> str | None:
        """Return a ``tabular`` environment for LaTeX's booktabs, or write it to ``path``. Rows and ``columns`` are as for
        :meth:`to_markdown`; the notes become comments."""
        return self._as_paper(columns).to_latex(path)

    def to_chrome_trace(self, path: Path | None = None) -> str | None:
        """Return a trace for Perfetto (ui.perfetto.dev) and chrome://tracing, or write it to ``path``.

        It shows the memory, and the modules with their operations end to end in run order. If nothing was timed, 1 us
        represents 1 MFLOP, and the trace says so.
        """
        return written(as_json(chrome_trace(self._counted_run)), path)

    def to_memory_snapshot(self, path: Path | None = None) -> dict[str, Any] | None:
        """Return the run's allocations in the format of :func:`torch.cuda.memory._snapshot`, or pickle them to ``path``, for
        pytorch.org/memory_viz and ``python -m torch.cuda._memory_viz``.

        No device is needed: with :func:`~fxflops.count` the allocations are predicted. Raises InputError for a report read
        from a file, because files do not store single allocations.
        """
        from .memory_snapshot import memory_snapshot

        snapshot = memory_snapshot(self._counted_run)
        if path is None:
            return snapshot
        written_bytes(pickle.dumps(snapshot, protocol=4), path)  # the viewer reads no later protocol
        return None

    def to_model_explorer(self, path: Path | None = None, *, by: str | None = None) -> str | None:
        """Return the graph as JSON for Google's Model Explorer, or write it to ``path``: its layers are the modules.

        With ``by`` "flops", "macs", "time" or "memory", return the node data that colour that graph instead.
        Raises InputError for a run without a graph, e.g. of :func:`~fxflops.count`.
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

        ``by`` is "flops", "macs", "time" or, in the graph, "memory". In the graph, identical consecutive modules share one box, and
        ``depth`` is the number of module levels, by default as many as keep the picture readable. Raises InputError if the run has no
        graph (only :func:`~fxflops.analyze` makes one), or lacks the data for a chart.
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
        """Return the picture of :meth:`to_svg` as PNG at twice its size, or write it to ``path``. Needs ``pip install resvg-py``."""
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
        """Return the picture of :meth:`to_svg` as PDF, or write it to ``path``. Needs ``pip install cairosvg``."""
        return written_bytes(as_pdf(self._picture(chart, by, depth, device)), path)

    def _picture(self, chart: str, by: str, depth: int | None, device: str | Device) -> str:
        if chart == "graph":
            return picture(self._counted_run, self._summary.root, by, depth)
        return charted(self._page(device, has_roofline=chart == "roofline"), chart, by)

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):  # a property raised AttributeError: raise the original error again
                return object.__getattribute__(self, name)
            public = [attribute for attribute in dir(self) if not attribute.startswith("_")]
            hint = OF_OTHER_TOOLS.get(name) or f"{did_you_mean(name, public)}; print(report) shows its summary"
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

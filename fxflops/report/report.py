"""The Report: totals, tables and views of one counted run. It never changes; another convention gives another Report."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from ..conventions import BASE_CONVENTION, BASE_MACS, OF_MACS, Convention, check_attention, find_convention
from ..counting.rollup import check_phase
from ..counting.steps import timing_of
from ..counting.uncounted import incomplete
from ..errors import FormulaError, InputError, MissingFormulaError, near
from ..names import is_torch_loaded
from ..records import PARTS, PHASES, Counted, FormulaFunction
from ..render.data import Summary
from ..render.exports import Exports, Table, View, as_json
from ..render.files import Path, method_for, written, written_bytes
from ..render.page_data import Page
from ..render.tree import Options
from ..roofline.devices import Device, listed_at, parts_of
from ..roofline.result import Roofline
from .compiled import CompiledView, compiled_view
from .diff import Diff, diff
from .explain import Explanation, explain
from .gathered import OverProcesses
from .html import notebook, page_of, plotly_script
from .other_tools import OtherTools
from .picture import as_png, charted, picture
from .rows import costs_table
from .saved import NAME_ONLY, TOTALS, Saved, data_in, to_json_data
from .views import Tree, summary_of, tree_row

if TYPE_CHECKING:
    from torch import nn

    from ..prediction import CachingAllocator, Calibration, Prediction, Reserved


class Report(OtherTools, OverProcesses, Exports, View):
    """The FLOPs, time and memory of one run of a model, operation by operation.

    Counts are ints, ``latency`` and ``total_time`` are in seconds, memory is in bytes; a value that was not measured is
    None. Two reports are equal if all their data but the date are equal; a report read back from a file equals the one saved.
    """

    _data: Mapping[str, Any] | None = None  # what it was read from, if that was done in a process without torch

    def recount(
        self,
        convention: str | Convention | None = None,
        *,
        attention: str | None = None,
        formulas: Mapping[Any, FormulaFunction] | None = None,
    ) -> Report:
        """Return this run counted under another convention, another ``attention``, or with other ``formulas``.

        Nothing is run again. ``attention="exact"`` needs to know which pairs a mask leaves; of causality it always
        does. A report of ``count()`` knows of other masks only if it was made with ``attention="exact"``, otherwise attention
        with such a mask becomes missing. A report read from a file keeps the counts that the user's own formulas gave, unless ``formulas`` replaces them.

        Raises InputError for a report read from a file that was counted under a convention of the user's own, if no
        ``convention`` is given.
        """
        if convention is None and self._convention.summary == NAME_ONLY:
            raise InputError(
                f"the file has the name of the convention {self.convention!r}, not its rules: give recount(convention)"
            )
        if self._data is not None:
            return self._whole().recount(convention, attention=attention, formulas=formulas)
        from ..counting.counts import is_users

        found = self._convention if convention is None else find_convention(convention)
        attention = self.attention if attention is None else check_attention(attention)
        registry = self._registry.derive(formulas)
        known = {i: counted for i, counted in self._known.items() if not is_users(self.calls[i], registry)}
        return Report(self._run, found, registry, self._model, attention, known=known)

    def explain(self, a: str | Convention, b: str | Convention | None = None, phase: str = PHASES[0]) -> Explanation:
        """Explain why conventions ``a`` and ``b`` give different totals: one row an op, with what each of them counts.

        With ``a`` alone, the report's own convention is compared with it. Where one tool counts multiply-accumulates and
        the other convention is fxflops, its MACs are compared, not its FLOPs. ``phase`` is as for :meth:`by_module`.

        >>> print(report.explain("fvcore", "deepspeed"))  # doctest: +SKIP
        """
        check_phase(phase)
        one, other = (self, self.recount(a)) if b is None else (self.recount(a), self.recount(b))
        if {one.convention, other.convention} & OF_MACS.keys():
            one, other = (
                each.recount(BASE_MACS) if each.convention == BASE_CONVENTION else each for each in (one, other)
            )
        ours, theirs = ([each for each in found.counted if each.call.phase in PARTS[phase]] for found in (one, other))
        calls = sum(call.phase in PARTS[phase] for call in self.calls)
        found = explain(one.convention, other.convention, ours, theirs, calls)
        return replace(found, provenance=self.provenance)

    def roofline(self, device: str | Device = "auto", phase: str = "forward") -> Roofline:
        """Return the least time that a device needs for each call, beside the time that the call took.

        ``device`` is a name, a Device, or "auto" for the device of the run; ``phase`` is as for :meth:`by_module`.
        """
        from ..roofline.utilization import roofline

        dense, exact = self._computed
        timing = timing_of(self._run, self._step_times, check_phase(phase))
        found = roofline(self._whole()._executed, exact, dense, self.environment.device, device, phase, timing)
        return replace(found, provenance=self.provenance)

    def predict(self, device: str | Device, *, calibration: Calibration | None = None) -> Prediction:
        """Predict the seconds that a device takes for all counted calls, one after the other as in a CUDA graph.

        ``device`` is a name or a Device. ``calibration`` says how fast its kernels are; by default the one that comes with
        fxflops is used. Calls that no calibration has are taken to be as fast as their bound: the prediction says
        how much of the time that is, and its error. A report that was not counted for a GPU (``count(..., device="cuda")``) is
        predicted with the kernels of its own device, and says so.

        >>> print(report.predict("H100 SXM"))  # doctest: +SKIP
        """
        from ..prediction.predict import predict

        _, exact = self._computed
        phases = [phase for phase in PHASES if phase != "gradient" and any(c.call.phase in PARTS[phase] for c in exact)]
        rooflines = [self.roofline(device, phase) for phase in phases]
        found = predict(exact, rooflines, device, calibration)
        return replace(found, counted_for=self._counted_for, provenance=self.provenance)

    def reserved(self, device: str | Device, *, gpus: int = 1, allocator: CachingAllocator | None = None) -> Reserved:
        """Predict the memory that CUDA's caching allocator reserves for the run on a device, in bytes, and whether it fits.

        ``device`` is a name or a Device. ``gpus`` is the number of GPUs of the job, for NCCL's buffers. ``allocator`` is an
        empty :class:`~fxflops.prediction.CachingAllocator` with settings other than torch's defaults.

        The run is that of :func:`count` with ``device="cuda"``, on any machine; of a report for another device the result says that its
        tensors are that device's. Two steps are simulated. Raises InputError for a report that was read from a file.

        >>> print(report.reserved("H100"))  # doctest: +SKIP
        """
        from ..prediction.reserved import reserved

        _, exact = self._computed
        found = reserved(self._run.history, exact, device, self._counted_for, gpus=gpus, allocator=allocator)
        return replace(found, provenance=self.provenance)

    @property
    def _counted_for(self) -> str:
        """The type of device that the run was for: "cuda"."""
        return parts_of(self.environment.device)[0].partition(":")[0]

    @cached_property
    def _computed(self) -> tuple[Sequence[Counted], ...]:
        """The calls as a device computes them, whatever the report's convention counts, with dense and with exact attention."""
        return tuple(self.recount(BASE_CONVENTION, attention=each)._executed for each in ("dense", "exact"))

    def mfu(self, device: str | Device = "auto") -> float | None:
        """Return the model FLOPs utilization: 2 x MACs of forward and backward, as a share of the most that the device
        can do in the time they took; under ``profile``, in the time of the block. None, and a warning that says why, if they
        were not timed on it. A value above 1 is not cut off; a warning then says that the device's peak is given too low.
        """
        return self._mfu(device, asked=True)

    def hfu(self, device: str | Device = "auto") -> float | None:
        """Return the hardware FLOPs utilization: as :meth:`mfu`, with what gradient checkpointing computed again."""
        return self._mfu(device, executed=True, asked=True)

    def _mfu(self, device: str | Device, executed: bool = False, asked: bool = False) -> float | None:
        from ..roofline.utilization import mfu

        counted = self._whole()._executed if self.complete or self.total_macs > 0 else ()
        timings, block, place = (self.timing, self.backward_timing), self.block_time, self.environment.device
        return mfu(counted, place, device, *timings, executed=executed, block=block, asked=asked)

    def diff(self, other: Report, phase: str = "forward") -> Diff:
        """Compare ``other`` with this report: in total, by module and by operator. Either may be read from a file.

        ``phase`` is as for :meth:`by_module`. Raises InputError if ``other`` is no Report.
        """
        if not isinstance(other, Report):
            raise InputError(f"diff() takes a Report, not {type(other).__name__}; Report.load(path) reads one")
        return diff(self, other, check_phase(phase))

    def named(self, name: str) -> Report:
        """Return this report with the name under which its model was asked for; it is shown, and written into files."""
        run = replace(self._run, environment=self.environment._replace(asked=name))
        return Report(run, self._convention, self._registry, self._model, self.attention, self.counted, self._known)

    @property
    def compiled(self) -> CompiledView | None:
        """The compiled model beside the eager one; None unless the model was given compiled, and timed."""
        return compiled_view(self)

    def checked(self, strict: bool) -> Report:
        """Return this report; raise MissingFormulaError if it is ``strict`` and incomplete."""
        if strict and not self.complete:
            raise MissingFormulaError(incomplete(self.missing, self.recipe()))
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
        phase: str = "forward",
    ) -> Tree:
        """Return the module tree, with identical siblings folded; ``print`` and notebooks show it, ``to_*`` export it.

        ``depth`` is the number of levels; ``sort_by`` is "flops", "time", "memory" or "params" (default: run order);
        ``columns`` are the columns to show; ``units`` is "G", "M" ... for FLOPs and MACs; ``phase`` is as for :meth:`by_module`.
        """
        return Tree(
            tree_row(self, phase),
            Options(depth=depth, sort_by=sort_by, fold=fold, columns=columns, units=units, counted=self._title),
            self.provenance,
        )

    def to_html(self, path: Path | None = None, *, device: str | Device = "auto", title: str = "") -> str | None:
        """Return the report as one HTML page, or write it to ``path``. The page opens from disk and loads nothing.

        plotly draws its charts (``pip install plotly``). ``device`` is as for :meth:`roofline`; ``title`` heads
        the page in place of the model's class.
        """
        from ..render.page import page

        return written(page(self._page(device, title), plotly_script()), path)

    def _page(self, device: str | Device = "auto", title: str = "") -> Page:
        """Return the data of the page. With ``device="auto"`` it has a roofline only if the run was timed."""
        rooflines, why = dict[str, Roofline](), "nothing was timed"
        if device != "auto" or any(call.seconds for call in self.calls):
            try:
                rooflines = {phase: self.roofline(device, phase) for phase in self._phases}
            except (InputError, FormulaError) as error:
                if device != "auto":
                    raise
                why = str(error).partition("\n")[0]
        mfu = self._mfu(device) if rooflines else None
        return page_of(self, self._summary, rooflines, mfu, why, title)

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

    def _as_paper(self) -> Table:
        return costs_table(self._summary)

    @cached_property
    def _summary(self) -> Summary:
        return summary_of(self, tree_row(self, PHASES[0]), self._utilization)

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
        snapshot, ``.svg`` and ``.png`` a picture of the graph.
        """
        getattr(self, method_for(path))(path)

    @classmethod
    def load(cls, path: Path, model: nn.Module | None = None) -> Report:
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
            raise InputError(f"{os.fspath(path)}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as data that JSON can hold; :mod:`fxflops.report.saved` documents its schema."""
        if self._data is not None:
            return dict(self._data)
        totals = {**{name: getattr(self, name) for name in TOTALS}, "mfu": self._utilization}
        return to_json_data(self._run, self.counted, self.convention, self.attention, self._users_counts(), totals)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], model: nn.Module | None = None) -> Report:
        """Return the report that :meth:`to_dict` was called on; arguments and errors are as for :meth:`load`."""
        saved = Saved(data)
        report = cls(saved.run, saved.convention, None, None, saved.attention, saved.counted, saved.users)
        if model is not None:
            from ..model.inputs import checked_model

            report._model = weakref.ref(checked_model(model))
        report._data = None if is_torch_loaded() else data
        return report._whole() if saved.run.may_reorder else report

    def _whole(self) -> Report:
        """Return this report; if it was read without torch, whose functions it then knows by name alone, read it again."""
        if self._data is None:
            return self
        import torch  # noqa: F401

        return Report.from_dict(self._data)

    def to_json(self, path: Path | None = None) -> str | None:
        """Return the whole report as JSON, as :meth:`save` writes it, or write it to ``path``."""
        return written(as_json(self.to_dict()), path)

    def to_svg(
        self,
        path: Path | None = None,
        *,
        chart: str = "graph",
        by: str = "flops",
        depth: int | None = None,
        device: str | Device = "auto",
    ) -> str | None:
        """Return a picture as SVG, or write it to ``path``. ``chart`` is "graph": modules with the tensors between them, coloured
        by cost; "modules": an icicle of them; "memory": the bytes over the run by category; or "roofline": the calls under the ceilings of a ``device``.

        ``by`` is "flops", "macs", "time" or, in the graph, "memory"; identical modules that follow each other stand in one box.
        ``depth`` is the number of levels of modules, by default as many as give a picture that can be looked at. Raises
        InputError for the graph of a run without one, as that of :func:`~fxflops.count` is, and for a chart of what is not
        known.
        """
        return written(self._picture(chart, by, depth, device), path)

    def to_png(
        self,
        path: Path | None = None,
        *,
        chart: str = "graph",
        by: str = "flops",
        depth: int | None = None,
        device: str | Device = "auto",
    ) -> bytes | None:
        """Return the picture of :meth:`to_svg` as PNG, in twice its size, or write it to ``path``: ``pip install resvg-py``."""
        return written_bytes(as_png(self._picture(chart, by, depth, device)), path)

    def _picture(self, chart: str, by: str, depth: int | None, device: str | Device) -> str:
        if chart == "graph":
            return picture(self, self._summary.root, by, depth)
        return charted(self._page(device), chart, by)

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):  # a property that raised AttributeError: here it raises it again
                return object.__getattribute__(self, name)
            known = [each for each in dir(self) if not each.startswith("_")]
            said = f"a Report has no {name!r}{near(name, known)}; print(report) shows its summary"
            raise AttributeError(said, name=name, obj=self)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Report) and self._undated() == other._undated())

    def _undated(self) -> dict[str, Any]:
        data = self.to_dict()
        return {**data, "environment": {**data["environment"], "date": ""}}

    def __hash__(self) -> int:
        return hash((self.model, self.inputs, self.convention, self.total_flops))

    def __reduce__(self) -> tuple[Any, ...]:
        return Report.from_dict, (self.to_dict(),)

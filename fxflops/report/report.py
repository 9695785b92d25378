"""The result of a run: sums, tables and views over its counted calls. Frozen; another convention is another Report."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import Any

from torch import nn

from ..conventions import Convention, find_convention
from ..counting.counts import check_attention, is_users
from ..counting.rollup import check_phase
from ..counting.uncounted import PASTE
from ..errors import FormulaError, InputError, MissingFormulaError
from ..model.inputs import checked_model
from ..ops import BASE
from ..records import PARTS, PHASES, FormulaFunction
from ..render.data import Summary, TreeRow
from ..render.exports import Exports, Path, as_json, written
from ..render.page_data import Page
from ..roofline.devices import Device
from ..roofline.result import Roofline
from ..roofline.utilization import mfu, roofline
from .chrome_trace import chrome_trace
from .diff import Diff, diff
from .explain import Explanation, explain
from .saved import BY_NAME, Saved, to_json_data
from .totals import PLAIN, Totals
from .views import Tree, summary_of, tree_row

FORMATS = {
    ".trace.json": "to_chrome_trace",
    ".perfetto": "to_chrome_trace",
    ".json": "to_json",
    ".csv": "to_csv",
    ".md": "to_markdown",
    ".tex": "to_latex",
    ".html": "to_html",
}
TOTALS = (
    "total_flops",
    "total_macs",
    "total_params",
    "total_activations",
    "total_int_ops",
    "total_gradient_flops",
    "total_backward_flops",
    "total_backward_macs",
    "total_recompute_flops",
    "total_optimizer_flops",
    "total_training_flops",
    "total_time",
    "latency",
    "max_memory",
    "complete",
)


class Report(Totals, Exports):
    """What a model computes, where, how long it takes and how much memory, operation by operation.

    Counts are ints; ``latency`` and ``total_time`` seconds, memory bytes; what was not measured is None. Reports are equal
    if all that they hold is: one that was saved and read again is equal to itself.
    """

    def recount(
        self,
        convention: str | Convention | None = None,
        *,
        attention: str | None = None,
        formulas: Mapping[Any, FormulaFunction] | None = None,
    ) -> Report:
        """The same run counted under another convention, another ``attention``, or with formulas of one's own.

        Nothing is run again. A report of ``count()`` knows what masks leave only if it was made with
        ``attention="exact"``: from any other, attention with a mask is then missing. A report that was read from a file
        keeps the counts of formulas that were the user's, unless ``formulas`` has others. InputError where it was counted
        under a convention of the user's and none is given.
        """
        if convention is None and self._convention.summary == BY_NAME:
            raise InputError(f"the file does not hold the convention {self.convention!r}: give recount(convention)")
        found = self._convention if convention is None else find_convention(convention)
        attention = self.attention if attention is None else check_attention(attention)
        registry = self._registry.derive(formulas)
        known = {i: counted for i, counted in self._known.items() if not is_users(self.calls[i], registry)}
        return Report(self._run, found, registry, self._model, attention, known=known)

    def explain(self, a: str | Convention, b: str | Convention, phase: str = PHASES[0]) -> Explanation:
        """Why conventions ``a`` and ``b`` give different totals for a phase of this run: op by op, with what each counts.

        >>> print(report.explain("fvcore", "deepspeed"))  # doctest: +SKIP
        """
        check_phase(phase)
        one, other = self.recount(a), self.recount(b)
        ours, theirs = ([each for each in found.counted if each.call.phase in PARTS[phase]] for found in (one, other))
        calls = sum(call.phase in PARTS[phase] for call in self.calls)
        return explain(one.convention, other.convention, ours, theirs, calls)

    def roofline(self, device: str | Device = "auto", phase: str = "forward") -> Roofline:
        """The least time each call takes on a device (a name, a Device; "auto": the run's own), and how near the run came."""
        dense, exact = (self.recount(PLAIN, attention=each)._executed for each in ("dense", "exact"))
        timing = {PHASES[0]: self.timing, PHASES[1]: self.backward_timing}.get(check_phase(phase))
        return roofline(self._executed, exact, dense, self.environment.device, device, phase, timing)

    def mfu(self, device: str | Device = "auto") -> float | None:
        """2 x MACs of forward and backward, of what the device does at most in their time; None where not timed on it.

        Above 1 a warning says that the device's ceiling is too low; it is never cut off.
        """
        return mfu(self._executed, self.environment.device, device, self.timing, self.backward_timing)

    def hfu(self, device: str | Device = "auto") -> float | None:
        """The same for all that was executed: with what gradient checkpointing computed again."""
        return mfu(self._executed, self.environment.device, device, self.timing, self.backward_timing, executed=True)

    def diff(self, other: Report, phase: str = "forward") -> Diff:
        """What ``other`` differs in from this report, in all, by module and by operator; either may be read from a file.

        >>> print(small.diff(large))  # doctest: +SKIP

        InputError where ``other`` is no Report.
        """
        if not isinstance(other, Report):
            raise InputError(f"diff() takes a Report, not {type(other).__name__}; Report.load(path) reads one")
        return diff(self, other, check_phase(phase))

    def checked(self, strict: bool) -> Report:
        """This report; MissingFormulaError when it must be complete and is not."""
        if strict and not self.complete:
            lines = [f"calls that are not counted: {sum(m.calls for m in self.missing)}"]
            for m in self.missing:
                lines += [f"  {m.op} x{m.calls}, first in {m.path or 'the root'}  {m.shapes}  {m.site}".rstrip()]
                lines += [f"    {m.reason}"] if m.reason else []
            recipe = self.recipe()
            raise MissingFormulaError("\n".join([*lines, *([f"To count them, {PASTE}:", recipe] if recipe else [])]))
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
        """The modules one inside the other, identical siblings folded; shown by ``print`` and in notebooks.

        ``depth`` levels; ``sort_by`` "flops", "time", "memory" or "params" (default: run order); ``columns`` to show;
        ``units`` "G", "M" ... for counts; ``phase`` as for :meth:`by_module`.
        """
        if check_phase(phase) != PHASES[0] and phase not in self._phases:
            raise InputError(f"the run made no calls in its {phase}")
        return Tree(tree_row(self, phase), depth, sort_by, fold, columns, units)

    def to_html(self, path: str | PathLike[str] | None = None, *, device: str | Device = "auto") -> str | None:
        """One page that opens from disk, drawn by plotly (``pip install plotly``): its text, or written to a path."""
        from ..render.page import page
        from .html import plotly_script

        return written(page(self._page(device), plotly_script()), path)

    def _page(self, device: str | Device = "auto") -> Page:
        """What the page shows. Without a ``device`` named there is a roofline only of what was timed."""
        from .html import page_of

        rooflines: dict[str, Roofline] = {}
        why = "nothing was timed"
        if device != "auto" or any(call.seconds for call in self.calls):
            try:
                rooflines = {phase: self.roofline(device, phase) for phase in self._phases}
            except (InputError, FormulaError) as error:
                if device != "auto":
                    raise
                why = str(error).partition("\n")[0]
        mfu = self.mfu(device) if rooflines else None
        return page_of(self, self._summary, self._tree_row, rooflines, mfu, why)

    def __str__(self) -> str:
        from ..render.summary import summary

        return summary(self._summary)

    def _repr_html_(self) -> str:
        from .html import notebook

        return notebook(self.counted, self._summary, self._tree_row)

    def __repr__(self) -> str:
        least = "" if self.complete else ">= "
        return (
            f"<Report {self.model}: {least}{self.total_flops:,} FLOPs ({self.convention}), {self.total_macs:,} MACs, "
            f"{self.total_params:,} params{'' if self.complete else ', INCOMPLETE'}>"
        )

    @cached_property
    def _tree_row(self) -> TreeRow:
        return tree_row(self, PHASES[0])

    @cached_property
    def _summary(self) -> Summary:
        return summary_of(self, self._tree_row)

    # Files

    def save(self, path: Path) -> None:
        """Write the report; the suffix says what: ``.json`` (all of it, for :meth:`load`), ``.csv``, ``.md``, ``.tex`` (the
        table of operations), ``.html`` (a page), ``.trace.json`` or ``.perfetto`` (a Chrome trace). InputError for another.
        """
        name = os.fspath(path).lower()
        method = next((method for suffix, method in FORMATS.items() if name.endswith(suffix)), None)
        if method is None:
            raise InputError(
                f"cannot tell the format of {os.fspath(path)!r} by its suffix: one of {', '.join(FORMATS)}"
            )
        getattr(self, method)(path)

    @classmethod
    def load(cls, path: Path, model: nn.Module | None = None) -> Report:
        """The report that ``save("....json")`` wrote: equal to it, and with all of its views.

        ``model`` is only needed to count anew with formulas that read more of a module than its plain attributes. Nothing
        that the file names is imported: what was not imported before is known by name. InputError for a file that is none
        of a report, or of a schema that this version does not know; OSError where it cannot be read.
        """
        with open(path, encoding="utf8") as file:
            try:
                data = json.load(file)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{os.fspath(path)} is no JSON: {error}") from error
        try:
            return cls.from_dict(data, model)
        except InputError as error:
            raise InputError(f"{os.fspath(path)}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data that is JSON; :mod:`fxflops.report.saved` says what is where."""
        totals = {name: getattr(self, name) for name in TOTALS}
        return to_json_data(self._run, self.counted, self.convention, self.attention, self._users_counts(), totals)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], model: nn.Module | None = None) -> Report:
        """The report of what :meth:`to_dict` gave; arguments and errors as for :meth:`load`."""
        saved = Saved(data)
        kept = None if model is None else weakref.ref(checked_model(model))
        return cls(saved.run, saved.convention, BASE, kept, saved.attention, saved.counted, saved.users)

    def to_json(self, path: Path | None = None) -> str | None:
        """All of it as JSON, as :meth:`save` writes it."""
        return written(as_json(self.to_dict()), path)

    def to_chrome_trace(self, path: Path | None = None) -> str | None:
        """A trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: modules with their operations in them, laid end
        to end in run order, and the memory. Where nothing was timed, 1 us stands for 1 MFLOP, and the trace says so."""
        return written(as_json(chrome_trace(self)), path)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Report) and self.to_dict() == other.to_dict())

    def __hash__(self) -> int:
        return hash((self.model, self.inputs, self.convention, self.total_flops))

    def __reduce__(self) -> tuple[Any, ...]:
        return Report.from_dict, (self.to_dict(),)

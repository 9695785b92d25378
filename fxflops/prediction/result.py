"""A prediction. For each call, it has the seconds that a device is expected to take, the call's bound, and the measured time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import InputError
from ..records import prefixes
from ..render.columns import Column
from ..render.exports import Rows, Table, Tabular
from ..render.fold import pattern, place_of
from ..render.text import printable, terminal_width, wrapped
from ..roofline.devices import Device, counted_for_another, listed
from ..units import seconds as in_seconds
from .borrowed import Borrowed
from .calibration import Family

BOUND = "bound"
"""The basis of a call without a calibrated family. The predicted time of such a call is its bound."""
TOP = 12
SHOWN = (
    Column("op", "op"),
    Column("where", "where"),
    Column("calls", "calls", "number"),
    Column("predicted", "predicted(ms)", "ms"),
    Column("bound", "bound(ms)", "ms"),
    Column("basis", "basis"),
)
COLUMNS = (
    Column("op", "op"),
    Column("module", "module"),
    Column("phase", "phase"),
    Column("calls", "calls", "number"),
    Column("seconds", "predicted", "s"),
    Column("bound_seconds", "bound", "s"),
    Column("basis", "basis"),
    Column("measured_seconds", "measured", "s"),
    Column("waiting_seconds", "waiting", "s"),
)


class Row(NamedTuple):
    """One call, or the sum of several.

    - ``seconds``: the predicted seconds.
    - ``bound_seconds``: the least seconds that the device's ceilings allow.
    - ``basis``: the calibrated family from which ``seconds`` are predicted, or "bound" if there is no such family. For the sum of several
      calls, ``basis`` has the names of all families, joined by "+".
    - ``bound_only_seconds``: the part of ``seconds`` that is only a lower bound.
    - ``measured_seconds``: the measured time in the run, possibly on another device, or None.
    - ``waiting_seconds``: the part of ``seconds`` in which the device waits for the host.
    """

    op: str
    path: str
    phase: str
    calls: int
    seconds: float
    bound_seconds: float
    basis: str
    bound_only_seconds: float = 0.0
    measured_seconds: float | None = None
    waiting_seconds: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Prediction(Tabular):
    """The seconds that a device is expected to take for the calls of a report, one after the other.

    - ``launch``: "graph" if kernels start as in a CUDA graph, "eager" if each kernel starts when the host has launched it.
    - ``families``: the calibrated families that were used, with their errors, by name and dtype.
    - ``missing``: the number of calls without a formula. Only the bytes of these calls are known. If there are calls without a formula,
      ``seconds`` is a lower bound.
    - ``counted_for``: the type of device that the report was counted for. Devices of other types than "cuda" use other kernels, e.g. for attention.
    - ``steps``: the number of steps in a profiled block; 0 for other reports.
    - ``loading_seconds``: the seconds that a profiled block waited for data, on the machine where it was profiled.
    """

    device: Device
    rows: tuple[Row, ...]
    families: Mapping[str, Family | Borrowed] = field(default_factory=dict)
    missing: int = 0
    counted_for: str = "cuda"
    launch: str = "graph"
    provenance: str = field(default="", compare=False)
    steps: int = 0
    loading_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The predicted seconds of all calls."""
        return self.total.seconds

    @property
    def bound_seconds(self) -> float:
        """The least seconds that the device's ceilings allow for all calls."""
        return self.total.bound_seconds

    @property
    def share_of_bounds(self) -> float:
        """The share of ``seconds`` that is only a lower bound, because some calls have no calibrated family of kernels."""
        return self.total.bound_only_seconds / self.seconds if self.seconds else 0.0

    @property
    def share_of_waiting(self) -> float:
        """The share of ``seconds`` in which the device waits for the host. In a CUDA graph, it is 0."""
        return self.total.waiting_seconds / self.seconds if self.seconds else 0.0

    @property
    def error(self) -> float | None:
        """The mean error of the families that were used, weighted by their seconds; None if no such family has a known error.

        ``error`` is the error for single operations that were not used in the fits. Over a whole model, errors partly cancel.
        """
        weights = self._seconds_with_error()
        total = sum(weights.values())
        if not total:
            return None
        return sum((self.families[name].error or 0.0) * weight for name, weight in weights.items()) / total

    def _seconds_with_error(self) -> dict[str, float]:
        """Return the seconds of each family whose error is known."""
        weights = {name: 0.0 for name, family in self.families.items() if family.error is not None}
        for row in self.rows:
            if row.basis in weights:
                weights[row.basis] += row.seconds - row.waiting_seconds
        return weights

    @property
    def total(self) -> Row:
        return _together("all", "", "", self.rows)

    def by_operator(self) -> Rows[Row]:
        """Return the sums of each operator's calls, the slowest operator first."""
        groups = _grouped((row.op, row) for row in self.rows)
        sums = {op: _together(op, "", "", rows) for op, rows in groups.items()}
        return self._as_rows(dict(sorted(sums.items(), key=lambda item: -item[1].seconds)), "operators")

    def by_module(self) -> Rows[Row]:
        """Return, for each module path, the sum of the calls within the module. The path "" is the whole model."""
        groups = _grouped((path, row) for row in self.rows for path in prefixes(row.path))
        return self._as_rows({path: _together("all", path, "", rows) for path, rows in groups.items()}, "modules")

    def by_phase(self) -> Rows[Row]:
        """Return the sums of each phase's calls."""
        groups = _grouped((row.phase, row) for row in self.rows)
        return self._as_rows({phase: _together("all", "", phase, rows) for phase, rows in groups.items()}, "phases")

    def table(
        self,
        by: str = "operator",
        *,
        sort_by: str | None = None,
        top: int | None = TOP,
        columns: Sequence[str] | str | None = None,
        units: str | None = "auto",
        tablefmt: str = "simple",
    ) -> str:
        """Return the rows as text.

        ``by`` is "call", "operator", "module", "phase" or "kind". "kind" sums an operator's calls in modules whose paths differ only in
        numbers. The other arguments are as for :func:`~fxflops.render.table.grid`.
        """
        from ..render.table import grid

        cells = [
            (
                row.op,
                row.path or row.phase or "(root)",
                row.calls,
                1e3 * row.seconds,
                1e3 * row.bound_seconds,
                row.basis,
            )
            for row in sorted(self._rows_by(by), key=lambda row: -row.seconds)
            if row.seconds
        ]
        hidden = {"operator": "where", "module": "op", "phase": "op", "call": "calls"}.get(by)
        shown = [i for i, column in enumerate(SHOWN) if column.key != hidden]
        return printable(
            grid(
                [SHOWN[i] for i in shown],
                [[row[i] for i in shown] for row in cells],
                sort_by=sort_by,
                top=top,
                columns=columns,
                units=units,
                tablefmt=tablefmt,
                noun=f"{by}s",
                shares=() if by == "module" else ("predicted(ms)",),
                elidable=("where", "op"),
                expendable=("basis",),
            )
        )

    def _rows_by(self, by: str) -> Iterable[Row]:
        if by == "call":
            return self.rows
        if by == "kind":
            groups = _grouped((f"{row.op}\n{pattern(row.path)}", row) for row in self.rows)
            return [_together(rows[0].op, place_of(row.path for row in rows), "", rows) for rows in groups.values()]
        sums = {"operator": self.by_operator, "module": self.by_module, "phase": self.by_phase}
        if by not in sums:
            raise InputError(f"cannot sum by {by!r}; expected one of 'call', 'kind', {', '.join(map(repr, sums))}")
        return sums[by]().values()

    def _as_rows(self, rows: Mapping[str, Row], name: str) -> Rows[Row]:
        header = (Column("key", name.removesuffix("s")), *COLUMNS)
        return Rows(rows, name, header, lambda key, row: [(key, *_raw(row))], self.provenance)

    def _as_table(self) -> Table:
        return Table("calls", COLUMNS, tuple(map(_raw, self.rows)), provenance=self.provenance)

    def _text(self) -> str:
        lines = [wrapped(line, terminal_width(), 4) for line in [*summary(self), *notes(self)]]
        above = len(summary(self))
        return "\n".join([*lines[:above], self.table(), *lines[above:]])

    def _blocks(self) -> Iterable[str]:
        from ..render.html import note

        return [*map(note, summary(self)), f"<pre>{self.table()}</pre>", *map(note, notes(self))]


def summary(prediction: Prediction) -> list[str]:
    """Return the lines above the table: the predicted time, its lower bound, and its error."""
    name = prediction.device.name
    if not prediction.seconds:
        return [f"{name}: nothing to predict: no call of the report takes time on the device", *_of_loop(prediction)]
    eager = prediction.launch == "eager"
    how = (
        f"predicted, including {prediction.share_of_waiting:.0%} waiting for the host"
        if eager
        else "predicted on the device"
    )
    if not prediction.families and not eager:
        # Only lower bounds are known, so print the bound without a predicted time.
        return [
            f"{name}: {duration(prediction)} (lower bound)",
            f"bounds only: no calibration is known for {name}; run fxflops.calibrate() on a machine with this device, "
            "and pass the result to report.predict(..., calibration=...)",
        ]
    return [
        f"{name}: {duration(prediction)} {how}{_per_step(prediction)} (lower bound {in_seconds(prediction.bound_seconds)})",
        f"error: {_error(prediction)}",
        *_of_loop(prediction),
    ]


def _error(prediction: Prediction) -> str:
    """Return the mean error, and for how much of the predicted time it is known. The larger part of the time comes first."""
    error, bounds = prediction.error, prediction.share_of_bounds
    known = sum(prediction._seconds_with_error().values())
    unknown = 1 - known / max(prediction.seconds - prediction.total.waiting_seconds, known, 1e-30)
    if error is None:
        text = (
            "unknown, because no similar operations were measured"
            if prediction.families
            else "no calibration: bounds only"
        )
    elif unknown < 0.005:
        text = f"{error:.1%} on average for operations like these"
    elif unknown > 0.5:
        share = "more than 99%" if unknown >= 0.995 else f"{unknown:.0%}"
        of_which = f", of which {bounds / unknown:.0%} is only a lower bound" if bounds >= 0.005 else ""
        return f"unknown for {share} of the time{of_which}; {error:.1%} on average for the rest"
    else:
        text = f"{error:.1%} on average for {1 - unknown:.0%} of the time"
        if unknown - bounds >= 0.005:
            text += f", unknown for {unknown - bounds:.0%}"
    return f"{text}; {bounds:.0%} is only a lower bound" if bounds >= 0.005 else text


def _per_step(prediction: Prediction) -> str:
    steps = prediction.steps
    return f" for {steps} steps, {in_seconds(prediction.seconds / steps)} each" if steps > 1 else ""


def duration(prediction: Prediction) -> str:
    """Return the predicted seconds in words: "1.23 s", or "at least 1.23 s" if some calls have no formula or only a lower bound."""
    is_bound = prediction.missing or not (prediction.families or prediction.launch == "eager")
    return f"{'at least ' if is_bound else ''}{in_seconds(prediction.seconds)}"


def _of_loop(prediction: Prediction) -> list[str]:
    """For a profiled loop, return lines about the times that the prediction does not include. For other reports, return an empty list."""
    lines = []
    if waited := prediction.loading_seconds:
        share = waited / (waited + prediction.seconds)
        lines.append(
            f"data loading took {in_seconds(waited)} in the profiled loop; if it takes as long with {prediction.device.name}, "
            f"it is {share:.0%} of the time"
        )
    if prediction.steps and prediction.launch == "graph":
        lines.append(
            'the host\'s time is not included; launch="eager" adds it, for a loop that launches its kernels one by one'
        )
    return lines


def notes(prediction: Prediction) -> list[str]:
    """Return the lines below the table: the measurements that the families were fitted to, and the limits of the prediction."""
    lines = [f"{name}: {family.note()}" for name, family in prediction.families.items()]
    if prediction.counted_for != "cuda" and listed(prediction.device.name) is not None:
        lines.append(counted_for_another(prediction.counted_for))
    if prediction.missing:
        lines.append(f"{prediction.missing} calls have no formula: only their bytes are in the prediction")
    return lines


def _raw(row: Row) -> tuple[object, ...]:
    return (*row[:7], row.measured_seconds, row.waiting_seconds)


def _grouped(rows: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for key, row in rows:
        groups.setdefault(key, []).append(row)
    return groups


def _together(op: str, path: str, phase: str, rows: Sequence[Row]) -> Row:
    """Return the sum of several calls."""
    measured = [row.measured_seconds for row in rows if row.measured_seconds is not None]
    return Row(
        op,
        path,
        phase,
        sum(row.calls for row in rows),
        sum(row.seconds for row in rows),
        sum(row.bound_seconds for row in rows),
        "+".join(sorted({row.basis for row in rows if row.seconds})),
        sum(row.bound_only_seconds for row in rows),
        sum(measured) if measured else None,
        sum(row.waiting_seconds for row in rows),
    )

"""Budgets: limits on the cost of a model, checked against the model's report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import units
from ..errors import InputError
from .report import Report


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit and the report's value. ``str`` returns a line for a log, with unabbreviated numbers."""

    name: str
    value: float
    limit: float
    is_bound: bool = False
    """Whether the value is a lower bound, because some operations are not counted."""

    @property
    def kept(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        value, limit = (_text(self.name, number) for number in (self.value, self.limit))
        value = f">= {value}" if self.is_bound else value
        share = units.percent(self.value, self.limit)
        digits = (
            3 if share is not None and 0 < abs(share - 100) < 0.05 else 1
        )  # an exceeded limit must not show as "100.0%", but e.g. as 100.042%
        used = "" if share is None else f"  {share:.{digits}f}%" if share < 1000 else f"  {share / 100:,.0f}x"
        return f"{'ok  ' if self.kept else 'OVER'}  {self.name:<6}  {value} of {limit}{used}"


def budgets_of(
    report: Report,
    *,
    max_flops: int | None = None,
    max_macs: int | None = None,
    max_params: int | None = None,
    max_memory: int | None = None,
    max_time: float | None = None,
) -> tuple[Budget, ...]:
    """Return a Budget for each limit that is not None. The order is FLOPs, MACs, parameters, memory, time.

    FLOPs are counted under the report's convention. Memory is the peak in bytes. Time is the latency of the model or the
    duration of the profiled block, in seconds.

    Raises InputError for ``max_time`` if nothing was timed. If ``report.complete`` is False, FLOPs and MACs are
    lower bounds, so the real values may exceed the limits.

    >>> all(budget.kept for budget in budgets_of(report, max_flops=10**10))  # doctest: +SKIP
    True
    """
    limits: tuple[tuple[str, float | None, float | None], ...] = (
        ("FLOPs", report.total_flops, max_flops),
        ("MACs", report.total_macs, max_macs),
        ("params", report.total_params, max_params),
        ("memory", report.max_memory, max_memory),
        ("time", report.block_time if report.latency is None else report.latency, max_time),
    )
    checked = [(name, value, limit) for name, value, limit in limits if limit is not None]
    for name, value, _ in checked:
        if value is None:
            raise InputError(
                f"cannot check the limit for {name}: the report has no such value, e.g. because count() does not measure time"
            )
    counts = () if report.complete else ("FLOPs", "MACs")
    return tuple(Budget(name, value, limit, name in counts) for name, value, limit in checked if value is not None)


def above(earlier: Report, percent: float) -> dict[str, float]:
    """Return limits for :func:`budgets_of` that are ``percent`` percent above the values of an earlier report.

    The limits are for FLOPs, MACs and parameters. If the earlier report was only counted, memory has a limit, too.
    """
    figures = {
        "max_flops": earlier.total_flops,
        "max_macs": earlier.total_macs,
        "max_params": earlier.total_params,
        "max_memory": earlier.max_memory if earlier.latency is None and earlier.block_time is None else None,
    }
    return {name: figure * (100 + percent) / 100 for name, figure in figures.items() if figure is not None}


def _text(name: str, number: float) -> str:
    """Return a number with all its digits. If the short form of the number is different, the short form follows."""
    if name == "time":
        return units.seconds(number)
    readable: Callable[[float], str] = units.size if name == "memory" else units.count
    exact = f"{number:,.0f}{' B' if name == 'memory' else ''}"
    return exact if exact == readable(number) else f"{exact} ({readable(number)})"

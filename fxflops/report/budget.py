"""Budgets: limits on what a model costs, checked against a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import units
from ..errors import InputError
from .report import Report


@dataclass(frozen=True, slots=True)
class Budget:
    """One limit and the report's value; ``str`` gives a line for a log, with the numbers in full."""

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
        )  # 100.042%, not "100.0%" of what is exceeded
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
    """Return a Budget for each limit that is not None, in this order: FLOPs (under the report's convention), MACs, parameters,
    bytes at the peak, seconds of the model's own run, or of a profiled block.

    Raises InputError for ``max_time`` if nothing was timed. Check ``report.complete`` yourself: FLOPs and MACs
    of an incomplete report are lower bounds.

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
            raise InputError(f"no {name} was measured: the report comes from count(), or from a device without a clock")
    counts = () if report.complete else ("FLOPs", "MACs")
    return tuple(Budget(name, value, limit, name in counts) for name, value, limit in checked if value is not None)


def above(earlier: Report, percent: float) -> dict[str, float]:
    """Return limits for :func:`budgets_of` that are ``percent`` percent above an earlier report's figures.

    They limit FLOPs, MACs and parameters, and memory if it was predicted (by a count), not measured.
    """
    figures = {
        "max_flops": earlier.total_flops,
        "max_macs": earlier.total_macs,
        "max_params": earlier.total_params,
        "max_memory": earlier.max_memory if earlier.latency is None and earlier.block_time is None else None,
    }
    return {name: figure * (100 + percent) / 100 for name, figure in figures.items() if figure is not None}


def _text(name: str, number: float) -> str:
    """Return a number in full, followed by its short form if that is different."""
    if name == "time":
        return units.seconds(number)
    readable: Callable[[float], str] = units.size if name == "memory" else units.count
    exact = f"{number:,.0f}{' B' if name == 'memory' else ''}"
    return exact if exact == readable(number) else f"{exact} ({readable(number)})"

"""Axes of charts: place a value in percent of the axis, and choose round tick values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

LOGARITHMIC = 20
"""An axis is logarithmic if its largest value is at least this many times its smallest value."""
MARGIN = 0.08
"""An axis has this margin on both sides of its values, as a share of the axis."""
MOST_TICKS = 8


class Axis:
    """A linear or logarithmic axis from ``low`` to ``high``. With ``in_bytes``, ticks are at powers of two or at multiples of them."""

    def __init__(self, low: float, high: float, *, is_log: bool = False, in_bytes: bool = False) -> None:
        self._scale: Callable[[float], float] = math.log10 if is_log else float
        self._first, self._last = self._scale(low), self._scale(high)
        self._is_log, self._in_bytes = is_log, in_bytes

    @classmethod
    def around(cls, values: Sequence[float], in_bytes: bool = False) -> Axis:
        """Return an axis that covers all values, with a margin on both sides."""
        low, high = min(values), max(values)
        if low > 0 and high / low >= LOGARITHMIC:
            room = (high / low) ** MARGIN
            return cls(low / room, high * room, is_log=True, in_bytes=in_bytes)
        room = MARGIN * ((high - low) or abs(high) or 1.0)
        # Do not let the margin extend the axis below zero.
        return cls(low - room if low < 0 else max(low - room, 0.0), high + room, in_bytes=in_bytes)

    def place(self, value: float) -> float:
        """Return the position of a value in percent of the axis."""
        return 100 * (self._scale(value) - self._first) / (self._last - self._first)

    def ticks(self) -> list[float]:
        """Return the tick values: round decimal numbers, or for bytes round binary numbers."""
        values = self._log_ticks() if self._is_log else self._linear_ticks()
        return [value for value in values if -1e-6 <= self.place(value) <= 100 + 1e-6]

    def _log_ticks(self) -> Iterable[float]:
        if self._in_bytes:
            doublings = range(math.floor(self._first / math.log10(2)), math.ceil(self._last / math.log10(2)) + 1)
            return [2.0**n for n in doublings if not n % math.ceil(len(doublings) / MOST_TICKS)]
        powers = range(math.floor(self._first), math.ceil(self._last) + 1)
        parts = (1, 2, 5) if self._last - self._first < 3 else (1,)
        return [part * 10.0**power for power in powers for part in parts]

    def _linear_ticks(self) -> Iterable[float]:
        extent = self._last - self._first
        power = math.floor(math.log2(extent) if self._in_bytes else math.log10(extent))
        if self._in_bytes:
            steps = [2.0 ** (power - n) for n in (4, 3, 2, 1, 0)]
        else:
            steps = [part * 10.0**power for part in (0.1, 0.2, 0.5, 1, 2)]
        step = next(step for step in steps if extent / step <= MOST_TICKS)
        return [step * n for n in range(math.ceil(self._first / step), math.floor(self._last / step) + 1)]

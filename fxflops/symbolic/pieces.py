"""The ranges of one size on which all costs are polynomials, found by counting at few lengths.

A stride or a window rounds: then costs are polynomials only in sizes of one remainder, and their distance is the period.
A sliding window, or a block that is skipped, makes pieces: they end at a length found by bisection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .polynomials import interpolation, value

MAX_DEGREE = 4
MAX_PIECES = 4
MAX_PERIOD = 512
USUAL = 448, 384, 320, 512
"""Periods to try if the example's length is a multiple of none that fits: their divisors are those of most models."""
PRIMES = 2, 3, 5, 7, 11, 13, 17, 19, 23

Sample = Mapping[tuple[str, str, str], tuple[int, ...]]
"""Costs at one point, several numbers under each key. What is not in it is 0."""
Costs = Callable[[int], "Sample | None"]
"""The costs at a length; None where the model raises."""


class Piece(NamedTuple):
    """Lengths from ``first`` to ``last`` in steps of the period; ``nodes`` are as many as determine the polynomials."""

    first: int
    last: int
    nodes: tuple[int, ...]


def columns(samples: Sequence[Sample]) -> dict[tuple[tuple[int, ...], ...], list[tuple[str, str, str]]]:
    """Return the keys that have the same numbers in all samples, by these numbers."""
    found: dict[tuple[tuple[int, ...], ...], list[tuple[str, str, str]]] = {}
    for key in {key: None for sample in samples for key in sample}:
        nothing = next((0,) * len(sample[key]) for sample in samples if key in sample)
        found.setdefault(tuple([sample.get(key, nothing) for sample in samples]), []).append(key)
    return found


def period_and_pieces(costs: Costs, example: int, low: int, high: int) -> tuple[int, list[Piece]] | None:
    """Return the least period with which ``low`` to ``high`` falls into few pieces, and these; None if there is none."""
    tried: dict[int, list[Piece] | None] = {}

    def pieces(period: int) -> list[Piece] | None:
        if period not in tried:
            tried[period] = _pieces(costs, example, low, high, period)
        return tried[period]

    divisors = [p for p in range(MAX_PERIOD, 1, -1) if example % p == 0]
    period = next(filter(pieces, (1, 32, *divisors, *USUAL)), None)
    if period is None:
        return None
    while less := next((period // prime for prime in PRIMES if period % prime == 0 and pieces(period // prime)), 0):
        period = less
    return period, pieces(period) or []


def _pieces(costs: Costs, example: int, low: int, high: int, period: int) -> list[Piece] | None:
    """Return the pieces of ``low`` to ``high``, the one with the example found first; None if they are too many."""
    nodes = _fit(costs, example, high, period) or _fit(costs, example, low, -period) or (example,)
    first, last = (_reach(costs, nodes, example, end, step) for end, step in ((low, -period), (high, period)))
    up = _along(costs, last + period, high, period, is_single=first == last)
    down = None if up is None else _along(costs, first - period, low, -period, is_single=first == last)
    if up is None or down is None or len(up) + len(down) >= MAX_PIECES:
        return None
    found = [*reversed(down), Piece(first, last, nodes), *up]
    return found if any(piece.first < piece.last for piece in found) else None


def _along(costs: Costs, start: int, end: int, step: int, is_single: bool) -> list[Piece] | None:
    """Return the pieces from ``start`` to ``end``, or to where the model raises.

    None if they are too many, or two of a single length follow each other; ``is_single`` is for the piece before these.
    """
    found: list[Piece] = []
    while (end - start) * step >= 0 and costs(start) is not None:
        nodes = _fit(costs, start, end, step)
        if len(found) == MAX_PIECES or (nodes is None and is_single):
            return None
        is_single = nodes is None
        last = start if nodes is None else _reach(costs, nodes, nodes[-1], end, step)
        found.append(Piece(min(start, last), max(start, last), nodes or (start,)))
        start = last + step
    return found


def _fit(costs: Costs, start: int, end: int, step: int) -> tuple[int, ...] | None:
    """Return the first lengths, one more than the degree of all costs; None if they are no polynomials of a low degree."""
    for degree in range(1, MAX_DEGREE + 1):
        nodes = [start + i * step for i in range(degree + 2)]
        if (end - nodes[-1]) * step < 0 or any(costs(node) is None for node in nodes):
            return None
        if agrees(costs, nodes[:-1], nodes[-1]):
            return tuple(nodes[:-1])
    return None


def agrees(costs: Costs, nodes: Sequence[int], at: int) -> bool:
    """Return whether the polynomials through the costs at ``nodes`` give those at another length."""
    there = costs(at)
    if there is None:
        return False
    through = interpolation([nodes])
    for *numbers, expected in columns([*(costs(node) or {} for node in nodes), there]):
        for *values, wanted in zip(*numbers, expected, strict=True):
            if value(through(values), (at,)) != wanted:
                return False
    return True


def _reach(costs: Costs, nodes: Sequence[int], known: int, end: int, step: int) -> int:
    """Return the last length, towards ``end``, up to which the polynomials agree: in leaps, then by bisection."""
    wrong = None
    for at in _leaps(known, end, step):
        if not agrees(costs, nodes, at):
            wrong = at
            break
        known = at
    while wrong is not None and abs(wrong - known) > abs(step):
        middle = known + (wrong - known) // (2 * step) * step
        known, wrong = (middle, wrong) if agrees(costs, nodes, middle) else (known, middle)
    return known


def _leaps(start: int, end: int, step: int) -> Iterator[int]:
    """Yield lengths from ``start`` to the last before ``end``, in growing leaps of no regular length."""
    rng, leap, at = random.Random(0), 1, start
    last = start + (end - start) // step * step
    while (last - at) * step > 0:
        at += rng.randint(leap, 2 * leap) * step
        yield at if (last - at) * step > 0 else last
        leap *= 4

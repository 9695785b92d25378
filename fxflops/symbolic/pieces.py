"""The ranges of one size on which all costs are polynomials, found by counting at few lengths.

A stride or a window rounds: then costs are polynomials only in sizes of one remainder, and their distance is the period.
A sliding window, or a block that is skipped, makes pieces: they end at a length found by bisection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from .polynomials import interpolation, value

MAX_DEGREE = 4
MAX_PIECES = 4
MAX_PERIOD = 512
COMMON = 1, 32
"""The periods of most models: of those without strides, and of convolutional networks."""
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
    """Return the least period with which ``low`` to ``high`` falls into few pieces, and these.

    If that is none, or not of all lengths, also try with which one the piece of the example reaches up to ``high``: the form then
    holds from its first length on. What holds for more lengths is taken; None if nothing does.
    """
    whole = _least(lambda period: _pieces(costs, example, low, high, period), example)
    if whole is not None and whole[0] == 1:
        return whole
    upper = _least(lambda period: _upper_piece(costs, example, low, high, period), example)
    found = [each for each in (whole, upper) if each is not None]
    return max(found, key=_lengths, default=None)


def _least(find: Callable[[int], list[Piece] | None], example: int) -> tuple[int, list[Piece]] | None:
    """Return the least period for which there are pieces, and these: one that fits is divided as long as it does."""
    known = cache(find)
    divisors = [p for p in range(MAX_PERIOD, 1, -1) if example % p == 0]
    period = next(filter(known, (*COMMON, *divisors, *USUAL)), None)
    if period is None:
        return None
    while less := next((period // p for p in PRIMES if period % p == 0 and known(period // p)), 0):
        period = less
    return period, known(period) or []


def _lengths(found: tuple[int, list[Piece]]) -> int:
    period, pieces = found
    return sum(1 + (piece.last - piece.first) // period for piece in pieces)


def _pieces(costs: Costs, example: int, low: int, high: int, period: int) -> list[Piece] | None:
    """Return the pieces of ``low`` to ``high``, the one with the example found first; None if they are too many."""
    middle = _piece(costs, example, low, high, period)
    is_single = middle.first == middle.last
    up = _along(costs, middle.last + period, high, period, is_single)
    down = None if up is None else _along(costs, middle.first - period, low, -period, is_single)
    if up is None or down is None or len(up) + len(down) >= MAX_PIECES:
        return None
    found = [*reversed(down), middle, *up]
    return found if any(piece.first < piece.last for piece in found) else None


def _upper_piece(costs: Costs, example: int, low: int, high: int, period: int) -> list[Piece] | None:
    """Return the piece with the example if it reaches up to ``high``, and holds more lengths than determine it."""
    piece = _piece(costs, example, low, high, period)
    is_long = piece.last - piece.first > len(piece.nodes) * period
    return [piece] if piece.last + period > high and is_long else None


def _piece(costs: Costs, example: int, low: int, high: int, period: int) -> Piece:
    """Return the piece with the example."""
    nodes = _fit(costs, example, high, period) or _fit(costs, example, low, -period) or (example,)
    first, last = (_reach(costs, nodes, example, end, step) for end, step in ((low, -period), (high, period)))
    return Piece(first, last, nodes)


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

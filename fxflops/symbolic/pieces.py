"""Find the ranges of one size in which all costs are polynomials. The model is counted only at a few lengths.

If a stride or a window rounds the size, costs are polynomials only over lengths that have the same remainder when divided by a number. The
number by which lengths are divided is the period. If a model behaves differently from some length on, e.g. because of a sliding window, the
range is divided into several pieces. The ends of the pieces are found by bisection.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from operator import mul
from typing import NamedTuple

from .polynomials import extrapolation, interpolation, value

MAX_DEGREE = 4
MAX_PIECES = 4
MAX_PERIOD = 512
COMMON = 32
"""The period of most convolutional networks."""
FEW_PIECES = 2
"""A period with at most this many pieces is accepted at once. More pieces may mean that the true period is another one."""
MANY = 16
"""The largest number of pieces to use on each side of the example's piece, if every period has more than FEW_PIECES pieces."""
SEVERAL = 1, 2, 3, 4, 6, 12
"""Multiples of a visible period to try. A second period below 4 is not visible, because its pieces are too short."""
SCAN = 200
"""The number of consecutive lengths to count if no other period fits. They show periods of up to a third of this number."""
USUAL = 448, 384, 320, 512
"""Periods to try if no divisor of the example's length fits. The divisors of these periods include the periods of most models."""
SMALL = 24, 40, 56, 36
"""More periods to try if the period found so far is uncommon. They show a stride of 3 in a range that is too short for the period 384."""
PRIMES = 2, 3, 5, 7, 11, 13, 17, 19, 23
ROUND = 6720, 420, 384, 192, 140, 84, 64, 60, 48, 32, 28, 24, 20, 16, 8, 7, 6, 5, 4, 3, 2
"""A model may behave differently at multiples of these numbers, so these multiples and the lengths next to them are checked.

A multiple of a large number is also a multiple of all its divisors. The small numbers are for ranges without a multiple of a large number.
"""
FEW, WINDOW = 8, 64
"""A piece of at most FEW lengths may recur. It is searched for at all distances up to WINDOW lengths, and at larger distances that divide
its first length."""

Sample = Mapping[tuple[str, str, str], tuple[int, ...]]
"""The costs at one point: several numbers for each key. A missing key means that its costs are 0."""
Costs = Callable[[int], "Sample | None"]
"""The costs at a length; None if the model raises."""


class Piece(NamedTuple):
    """Lengths from ``first`` to ``last`` in steps of the period. The costs at the lengths ``nodes`` determine the polynomials."""

    first: int
    last: int
    nodes: tuple[int, ...]


class Recurrence(NamedTuple):
    """Special lengths, at which a model behaves differently than at the lengths between. They start at ``length``, every ``distance``."""

    length: int
    distance: int

    def allows(self, period: int, example: int) -> bool:
        """Return whether the period fits the special lengths. The period fits if the lengths in steps of ``period`` from the example are
        all special, or if none of them is."""
        return period % self.distance == 0 or (example - self.length) % math.gcd(period, self.distance) != 0


def columns(samples: Sequence[Sample]) -> dict[tuple[tuple[int, ...], ...], list[tuple[str, str, str]]]:
    """Group the keys that have the same numbers in all samples. Return a dict from these numbers to the keys."""
    found: dict[tuple[tuple[int, ...], ...], list[tuple[str, str, str]]] = {}
    for key in {key: None for sample in samples for key in sample}:
        nothing = next((0,) * len(sample[key]) for sample in samples if key in sample)
        found.setdefault(tuple([sample.get(key, nothing) for sample in samples]), []).append(key)
    return found


def period_and_pieces(costs: Costs, example: int, low: int, high: int) -> tuple[int, list[Piece]] | None:
    """Return the smallest period that splits ``low`` to ``high`` into few pieces, and these pieces; None if no period does.

    If the period is not 1, also look for the smallest period for which the piece with the example's length reaches up to ``high``. The form
    then holds only from the first length of this piece on. Of the two results, return the one that holds for more lengths.
    """
    recurring: list[Recurrence] = []
    pieces = _pieces(costs, example, low, high, 1, recurring)
    if pieces is not None:
        return 1, pieces
    rounded = _distances(costs, example, low, high)
    whole = _least(lambda period: _pieces(costs, example, low, high, period, recurring), example, rounded, recurring)
    upper = _least(lambda period: _upper_piece(costs, example, low, high, period), example, [1, *rounded], recurring)
    found = [each for each in (whole, upper) if each is not None]
    if not any(len(each[1]) <= FEW_PIECES for each in found) and (many := _many(costs, example, low, high)):
        found.append((1, many))
    if not found:
        period = _scanned(costs, example, low, high)
        pieces = _pieces(costs, example, low, high, period, recurring) if period else None
        return None if pieces is None else (period, pieces)
    return max(found, key=_lengths)


def cover(costs: Costs, low: int, high: int, likely: Sequence[int] = ()) -> list[Piece]:
    """Return the pieces that cover ``low`` to ``high``. If a piece is a single length, this length is its only node.

    Pieces may end at or next to the ``likely`` lengths. The bisection tries the ``likely`` lengths first, which saves steps. Without them,
    the result is the same.
    """
    if high - low >= FEW:
        # Usually all costs lie on the straight line through the costs at the two ends.
        ends, near = (low, high), [low + 1, low + 2]
        if all(agrees(costs, ends, at) for at in [*near, *_leaps(near[-1], high, 1, [low, *near])]):
            return [Piece(low, high, ends)]
    pieces = list[Piece]()
    while not pieces or pieces[-1].last < high:
        start = pieces[-1].last + 1 if pieces else low
        nodes = _fit(costs, start, high, 1) or (start,)
        last = start if len(nodes) == 1 else _reach(costs, nodes, nodes[-1], high, 1, [*nodes], likely)
        pieces.append(Piece(start, last, nodes))
    return pieces


def values_along(costs: Costs, pieces: Sequence[Piece], key: tuple[str, str, str]) -> list[tuple[int, ...]]:
    """For one key, return the numbers at each length of the pieces. The numbers come from the polynomials through the costs at the nodes of
    each piece."""
    found: list[tuple[int, ...]] = []
    for piece in pieces:
        through = interpolation([piece.nodes])
        polynomials = [through(each) for each in zip(*((costs(node) or {})[key] for node in piece.nodes), strict=True)]
        for length in range(piece.first, piece.last + 1):
            found.append(tuple(int(value(each, (length,))) for each in polynomials))
    return found


def _many(costs: Costs, example: int, low: int, high: int) -> list[Piece]:
    """Return the example's piece and the pieces next to it. Return [] if the example's piece is a single length, or if no piece is next to it.

    ``_many`` is for costs with many pieces. For example, a sort has one piece for each power of two.
    """
    middle = _piece(costs, example, low, high, 1)
    if middle.first == middle.last:
        return []
    up, _ = _along(costs, middle.last + 1, high, 1, False, MANY)
    down, _ = _along(costs, middle.first - 1, low, -1, False, MANY)
    return [*reversed(down), middle, *up] if up or down else []


def _distances(costs: Costs, example: int, low: int, high: int) -> list[int]:
    """Return likely periods: the distances between the first lengths of the pieces around the example.

    If a model pads to multiples of n, every piece has n lengths. If a model pads to multiples of several numbers, the period is the least
    common multiple of these numbers.
    """
    samples = [costs(length) for length in range(example, min(example + FEW, high + 1))]
    distinct = [keys[0] for keys in columns([each for each in samples if each is not None]).values()]
    equal = []
    for key in distinct:
        starts = _starts(partial(_of_key, costs, key), example, low, high, 2)
        equal += [b - a for a, b, c in zip(starts, starts[1:], starts[2:], strict=False) if b - a == c - b][:1]
    common = math.lcm(*equal)
    starts = _starts(costs, example, low, high, MAX_PIECES)
    apart = [b - a for n in range(1, len(starts)) for a, b in zip(starts, starts[n:], strict=False)]
    several = [common * times for times in SEVERAL] if equal else []
    return [distance for distance in dict.fromkeys([*several, *apart]) if 1 < distance <= MAX_PERIOD]


def _of_key(costs: Costs, key: tuple[str, str, str], length: int) -> Sample | None:
    """Return the costs of a single key at a length."""
    sample = costs(length)
    return None if sample is None else {key: sample[key]} if key in sample else {}


def _starts(costs: Costs, example: int, low: int, high: int, most: int) -> list[int]:
    """Return the first lengths of pieces: of the example's piece, and of up to ``most`` pieces on each side of it."""
    middle = _piece(costs, example, low, high, 1)
    is_single = middle.first == middle.last
    up, _ = _along(costs, middle.last + 1, high, 1, is_single, most)
    down, _ = _along(costs, middle.first - 1, low, -1, is_single, most)
    pieces = [*reversed(down), middle, *up]
    return [piece.first for piece in pieces] + [piece.last + 1 for piece in pieces[-1:] if piece.last < high]


def _scanned(costs: Costs, example: int, low: int, high: int) -> int:
    """Return the smallest period for which the costs of consecutive lengths are polynomials of degree 2. Return 0 if there is no such period."""
    first = max(min(example, high - SCAN), low)
    samples = [costs(length) for length in range(first, min(first + SCAN, high + 1))]
    known = [each for each in samples if each is not None]
    if len(known) < len(samples):
        return 0
    rows = [number for numbers in columns(known) for number in zip(*numbers, strict=True)]

    def fits(period: int) -> bool:
        ends = range(3 * period, len(known))
        return all(
            row[i] - 3 * row[i - period] + 3 * row[i - 2 * period] == row[i - 3 * period] for row in rows for i in ends
        )

    return next((period for period in range(2, len(known) // 3) if fits(period)), 0)


def _least(
    find: Callable[[int], list[Piece] | None], example: int, likely: Sequence[int], recurring: Sequence[Recurrence]
) -> tuple[int, list[Piece]] | None:
    """Return the smallest period for which ``find`` returns pieces, and these pieces.

    ``likely`` periods are tried first. If a period fits, it is divided by small primes, as long as the divided period also fits and needs
    no more pieces. ``recurring`` has the recurrences found so far; ``find`` may append to this list.
    """
    pieces = cache(find)

    def known(period: int) -> list[Piece] | None:
        return pieces(period) if all(each.allows(period, example) for each in recurring) else None

    divisors = [p for p in range(MAX_PERIOD, 1, -1) if example % p == 0]
    found: list[tuple[int, list[Piece]]] = []
    at_first = chain(likely, [COMMON], (each.distance for each in recurring), divisors, USUAL)
    for tried in (likely, at_first, SMALL):
        period = next(filter(known, tried), None)
        if period is not None:
            divided = known(period) or []
            while less := next((p for p in PRIMES if period % p == 0 and _no_more(known(period // p), divided)), 0):
                period //= less
                divided = known(period) or []
            found.append((period, divided))
            if (period in likely or period <= COMMON) and len(divided) <= FEW_PIECES:
                break
    return max(found, key=lambda each: (-len(each[1]), _lengths(each)), default=None)


def _no_more(pieces: Sequence[Piece] | None, than: Sequence[Piece]) -> bool:
    return bool(pieces) and len(pieces or ()) <= len(than)


def _lengths(found: tuple[int, list[Piece]]) -> int:
    period, pieces = found
    return sum(1 + (piece.last - piece.first) // period for piece in pieces)


def _pieces(
    costs: Costs, example: int, low: int, high: int, period: int, recurring: list[Recurrence]
) -> list[Piece] | None:
    """Split ``low`` to ``high`` into pieces, searching outward from ``example``.

    If a short piece recurs, append its recurrence to ``recurring`` and return None. Also return None if there are too many pieces, or if
    each piece is only a single length.
    """
    middle = _piece(costs, example, low, high, period)
    is_single = middle.first == middle.last
    up, is_whole = _along(costs, middle.last + period, high, period, is_single)
    down = list[Piece]()
    if is_whole:
        down, is_whole = _along(costs, middle.first - period, low, -period, is_single)
    found = [*reversed(down), middle, *up]
    recurrence = _recurrence(costs, found, period, is_whole)
    if recurrence is not None:
        recurring.append(recurrence)
    if recurrence is not None or not is_whole or len(found) > MAX_PIECES:
        return None
    return found if any(piece.first < piece.last for piece in found) else None


def _recurrence(costs: Costs, pieces: Sequence[Piece], period: int, is_whole: bool) -> Recurrence | None:
    """Return how a short piece recurs between two neighbors with the same polynomial; None if no piece recurs.

    If a model behaves differently at all multiples of a number, the search finds a short piece only where it counted such a multiple by
    chance. If the pieces cover the whole range, check the last piece too: it may be short and recur.
    """
    followers = (*pieces[2:], None) if is_whole else pieces[2:]
    for before, few, after in zip(pieces, pieces[1:], followers, strict=False):
        is_few = len(before.nodes) > 1 and few.last - few.first < FEW * period
        if is_few and (after is None or all(agrees(costs, before.nodes, node) for node in after.nodes)):
            # The next short piece may be just beyond the neighboring pieces, so search one period further on each side.
            # If the short piece is the last piece, search only in the piece before it.
            first, last = (before.first, few.first) if after is None else (before.first - period, after.last + period)
            far = [d for d in range((WINDOW + 1) * period, MAX_PERIOD + 1, period) if few.first % d == 0]
            for distance in (*range(period, (WINDOW + 1) * period, period), *far):
                there = [few.last - distance, few.first + distance]
                inside = [at for at in there if max(first, pieces[0].first) <= at <= min(last, pieces[-1].last)]
                if inside and not any(few.first <= at <= few.last or agrees(costs, before.nodes, at) for at in inside):
                    return Recurrence(few.first, distance)
    return None


def _upper_piece(costs: Costs, example: int, low: int, high: int, period: int) -> list[Piece] | None:
    """Return the piece with the example, if it reaches up to ``high`` and if it has more lengths than the polynomials need as nodes."""
    piece = _piece(costs, example, low, high, period)
    is_long = piece.last - piece.first > len(piece.nodes) * period
    return [piece] if piece.last + period > high and is_long else None


def _piece(costs: Costs, example: int, low: int, high: int, period: int) -> Piece:
    """Return the piece that contains the example's length."""
    nodes = _fit(costs, example, high, period) or _fit(costs, example, low, -period) or (example,)
    seen = [*nodes]
    last, first = (_reach(costs, nodes, example, end, step, seen) for end, step in ((high, period), (low, -period)))
    return Piece(first, last, nodes)


def _along(
    costs: Costs, start: int, end: int, step: int, is_single: bool, most: int = MAX_PIECES
) -> tuple[list[Piece], bool]:
    """Return the pieces from ``start`` to ``end``, or up to the length at which the model raises. Also return whether these are all pieces.

    The search stops early if there are more than ``most`` pieces, or if two consecutive pieces are single lengths. ``is_single``: the
    piece before ``start`` is a single length.
    """
    found: list[Piece] = []
    while (end - start) * step >= 0 and costs(start) is not None:
        nodes = _fit(costs, start, end, step)
        if len(found) == most or (nodes is None and is_single):
            return found, False
        is_single = nodes is None
        last = start if nodes is None else _reach(costs, nodes, nodes[-1], end, step, [*nodes])
        found.append(Piece(min(start, last), max(start, last), nodes or (start,)))
        start = last + step
    return found, True


def _fit(costs: Costs, start: int, end: int, step: int) -> tuple[int, ...] | None:
    """Find the lowest degree n of polynomials that fit all costs, and return the first n + 1 lengths; None if no degree up to MAX_DEGREE fits."""
    for degree in range(1, MAX_DEGREE + 1):
        *nodes, last = [start + i * step for i in range(degree + 2)]
        if (end - last) * step < 0 or any(costs(node) is None for node in nodes):
            return None
        if costs(last) is None:
            return None
        if agrees(costs, nodes, last):
            return tuple(nodes)
    return None


def agrees(costs: Costs, nodes: Sequence[int], at: int) -> bool:
    """Return whether the polynomials through the costs at ``nodes`` give the right costs at the length ``at``, too."""
    there = costs(at)
    if there is None:
        return False
    weights, denominator = extrapolation(tuple(nodes), at)
    for *numbers, expected in columns([*(costs(node) or {} for node in nodes), there]):
        for *values, wanted in zip(*numbers, expected, strict=True):
            if sum(map(mul, weights, values)) != denominator * wanted:
                return False
    return True


def _reach(
    costs: Costs, nodes: Sequence[int], known: int, end: int, step: int, seen: list[int], likely: Sequence[int] = ()
) -> int:
    """Return the last length, in the direction of ``end``, up to which the polynomials through ``nodes`` give the right costs.

    The search leaps ahead to the first wrong length, then bisects. ``seen`` are lengths at which the polynomials were right; the search
    appends more. The bisection first tries the ``likely`` lengths and the lengths next to them.
    """
    wrong = None
    for at in _leaps(known, end, step, seen):
        if not agrees(costs, nodes, at):
            wrong = at
            break
        known = at
        seen.append(at)
    first_tried = [at for each in likely for at in (each, each - step, each + step)]
    while wrong is not None and abs(wrong - known) > abs(step):
        between = range(known + step, wrong, step)
        middle = next((at for at in first_tried if at in between), between[(len(between) - 1) // 2])
        known, wrong = (middle, wrong) if agrees(costs, nodes, middle) else (known, middle)
    return known


def _leaps(start: int, end: int, step: int, seen: Sequence[int]) -> list[int]:
    """Return lengths to check from ``start`` to ``end``, in growing, irregular leaps.

    For each number in :data:`ROUND`, the result contains a multiple of the number, a length just before a multiple, and a length just after
    a multiple. A multiple or a length next to it is left out if the range has no such length, or if ``seen`` already has one.
    """
    rng, leap, at = random.Random(0), 1, start
    lengths = range(start + step, end + (1 if step > 0 else -1), step)
    found: list[int] = []
    while lengths and at != lengths[-1]:
        at += rng.randint(leap, 2 * leap) * step
        at = at if (lengths[-1] - at) * step > 0 else lengths[-1]
        found.append(at)
        leap *= 4
    for number in ROUND:
        for remainder in (0, 1, number - 1):
            if not any(at % number == remainder for at in (*seen, *found)):
                found += next(([at] for at in lengths[:number] if at % number == remainder), [])
    return sorted(found, reverse=step < 0)

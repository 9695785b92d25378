"""``closed_form``. The function ``closed_form`` counts a model at a few sizes, fits polynomials to the costs, and checks the polynomials at
other sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from ..api import Formulas, Model, Models, counted
from ..conventions import Convention
from ..errors import ClosedFormError, RunError
from ..model.callables import as_model
from ..model.inputs import checked_model
from ..records import Counted, per_operation, specs_in
from ..report.report import Report
from ..roofline.traffic import nbytes, traffic_of
from ..trace.memo import Memos
from .costs import QUANTITIES, REQUIRED, SUMMED, Cell, Key, Range
from .forms import ClosedForm
from .pieces import Piece, Sample, columns, period_and_pieces
from .polynomials import Polynomial, interpolation, value
from .sizes import Inputs, Size
from .weights import EMBEDDINGS, weights_read

MEMORY: Key = ("forward", "", "")
"""The key under which the costs store the peak memory. No call has this key, because every call has an op."""
FARTHEST, TIMES = 4096, 8
"""A size without a maximum is checked up to the length FARTHEST, or up to TIMES the example's length if that is larger."""
MANY_CALLS = 20_000
"""If a run makes more calls than this, e.g. because the model loops over tokens, larger lengths are not tried."""
POINTS, LARGEST_POINT = 3, 2**22
"""Each piece of the domain is checked at POINTS random points. At these points, the product of all sizes is at most LARGEST_POINT."""


def closed_form(
    model: Model,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    models: Models | None = None,
    dynamic_shapes: Any,
    mode: str | None = None,
    backward: bool = False,
    convention: str | Convention = "fxflops",
    attention: str = "dense",
    formulas: Formulas | None = None,
) -> ClosedForm:
    """Return the costs of a model as polynomials in the sizes of its inputs. The result states the sizes for which the polynomials are exact.

    The model is counted at a few sizes on meta. For each module, operator and phase, polynomials with rational coefficients are fitted to
    the costs. The polynomials are then compared with counts at other sizes. If a stride, a patch or a window rounds a size, the size has a
    period. The polynomials then hold only for lengths that differ from the example's length by a multiple of this period. If a model
    behaves differently from some length on, e.g. because of a sliding window, the range of lengths is divided into several pieces.

    Args:
        model, args, kwargs, models: as for :func:`fxflops.count`. The inputs have one example of each size.
        dynamic_shapes: the dims that vary, as for ``torch.export.export``, e.g. ``{"input_ids": {0: "batch", 1: Dim("seq",
            max=8192)}}``. A plain name can replace a Dim. If an input has several tensors, as a KV cache has, the same dims vary in each
            tensor. A size is checked up to the ``max`` of its Dim. Without ``max``, a size is checked up to 4096 or up to 8 times the
            example's length, whichever is larger.
        mode, backward, convention, attention, formulas: as for :func:`fxflops.count`.

    Raises ClosedFormError if the costs are not polynomials (the message shows where); MissingFormulaError if an
    operation has no formula; InputError for wrong arguments.

    >>> form = fxflops.closed_form(model, kwargs=batch, dynamic_shapes={"input_ids": {0: "batch", 1: "seq"}})  # doctest: +SKIP
    >>> form.evaluate("flops", batch=8, seq=2048)  # doctest: +SKIP
    """
    own = checked_model(as_model(model, models, args, kwargs))
    inputs = Inputs(own, args, kwargs, dynamic_shapes)

    mode = mode or ("as_is" if backward else None)

    def samples(backward: bool) -> Samples:
        memos = Memos()

        def at(point: tuple[int, ...]) -> Report:
            given, named = inputs.at(point)
            options: dict[str, Any] = {"mode": mode, "attention": attention, "formulas": formulas, "strict": True}
            return counted(own, given, named, backward=backward, convention=convention, memos=memos, **options)

        return Samples(at, inputs.sizes)

    full = samples(backward)
    if backward:  # first try the periods and pieces of the forward pass alone, because it is faster to count
        with suppress(ClosedFormError):
            form = form_of(full, samples(False), attention)
            if all(form.cells[what] for what in REQUIRED):
                return form
    return form_of(full, full, attention)


def form_of(samples: Samples, scanned: Samples, attention: str) -> ClosedForm:
    """Return the polynomials for the costs in ``samples``. The periods and pieces are those in ``scanned``.

    Each quantity is fitted separately if the quantities are not polynomials on common pieces, or if the pieces do not cover all lengths.
    For example, if a model sorts, its FLOPs are not polynomials, but its MACs may be. Raises ClosedFormError if neither FLOPs nor MACs are
    polynomials.
    """
    cells: dict[str, list[Cell]] = {what: [] for what in QUANTITIES}
    refused: dict[str, str] = {}
    wrong: ClosedFormError | None = None
    try:
        cells = _quantities(samples, scanned, REQUIRED)
    except ClosedFormError as error:
        wrong = error
    if wrong or not _is_whole(samples, scanned, cells["flops"]):
        for what in QUANTITIES if wrong else REQUIRED:
            try:
                own = _quantities(samples, scanned, (what,))[what]
            except ClosedFormError as error:
                refused[what] = str(error)
            else:
                cells[what] = max(cells[what], own, key=_lengths)
    if wrong and not cells["flops"] and not any(any(cell.costs.values()) for cell in cells["macs"]):
        raise wrong
    first, ends = samples.first, dict(zip((size.name for size in samples.sizes), scanned.ends, strict=True))
    refused = {what: refused[what] for what in REQUIRED if not cells[what]}
    return ClosedForm(
        first.model, samples.sizes, cells, first.convention, attention, len(samples.checked), {**ends, **refused}
    )


def _is_whole(samples: Samples, scanned: Samples, cells: Sequence[Cell]) -> bool:
    """Return whether the pieces cover all lengths of each size. The pieces must reach from the smallest allowed length to the largest
    length that was tried."""
    for i, size in enumerate(samples.sizes):
        ranges = [cell.ranges[i] for cell in cells]
        if any(each.period > 1 for each in ranges) or min(each.first for each in ranges) > (size.least or 1):
            return False
        if max(each.last or 0 for each in ranges) < scanned.farthest[i]:
            return False
    return True


def _lengths(cells: Sequence[Cell]) -> int:
    """Return the number of points in the pieces."""
    return sum(math.prod(len(range(r.first, (r.last or r.first) + 1, r.period)) for r in cell.ranges) for cell in cells)


def _quantities(samples: Samples, scanned: Samples, whats: Sequence[str]) -> dict[str, list[Cell]]:
    """Return the polynomials of the quantities ``whats`` on common pieces.

    If ``whats`` are all required quantities, also return the polynomials of bytes and memory on these pieces, if bytes and memory are
    polynomials there.
    """
    axes = [_axis(scanned, i, scanned.example, whats) for i in range(len(samples.sizes))]
    try:
        return _cells(samples, axes, whats)
    except ClosedFormError:
        # Some sizes change the costs only if the other sizes are small, and the example inputs may be too large to show this.
        # So try the smallest lengths instead.
        least = tuple(pieces[0].first for _, pieces in axes)
        axes = [_axis(scanned, i, least, whats) for i in range(len(samples.sizes))]
        return _cells(samples, axes, whats, leave_out=True)


def _cells(
    samples: Samples, axes: Sequence[tuple[int, list[Piece]]], whats: Sequence[str], leave_out: bool = False
) -> dict[str, list[Cell]]:
    """Return the polynomials of all pieces of the domain, by quantity.

    With ``leave_out``, pieces in which the costs are not polynomials are skipped. The piece with the example is never skipped.
    """
    cells: dict[str, list[Cell]] = {what: [] for what in QUANTITIES}
    for pieces in product(*(found for _, found in axes)):
        try:
            _enter_cells(cells, samples, [period for period, _ in axes], pieces, whats)
        except ClosedFormError:
            if not leave_out or _has_example(samples, pieces):
                raise
    return cells


def _has_example(samples: Samples, pieces: Sequence[Piece]) -> bool:
    return all(piece.first <= size.example <= piece.last for piece, size in zip(pieces, samples.sizes, strict=True))


class Samples:
    """The costs of a model at points. Each point is counted only once.

    ``ends`` has the reason why the domain of each size ends. ``farthest`` has the largest length of each size at which the model ran.
    """

    def __init__(self, counted: Callable[[tuple[int, ...]], Report], sizes: Sequence[Size]) -> None:
        self.sizes = sizes
        self.example = tuple(size.example for size in sizes)
        self.ends = [""] * len(sizes)
        self.farthest = [*self.example]
        self.checked = set[tuple[int, ...]]()
        self._counted = counted
        self._found: dict[tuple[int, ...], Sample] = {}
        self.first = counted(self.example)
        self.calls = 0

    def at(self, point: tuple[int, ...]) -> Sample:
        """Return the costs at a point. The costs are the quantities in :data:`SUMMED` for each key, and the peak memory."""
        if point not in self._found:
            report = self.first if point == self.example else self._counted(point)
            self._found[point] = _costs(report)
            self.calls = len(report.calls)
        return self._found[point]

    def along(self, axis: int, others: Sequence[int], whats: Sequence[str]) -> Callable[[int], Sample | None]:
        """Return a function that takes a length of one size and returns the quantities ``whats``. The other sizes are fixed to ``others``."""
        wanted = [SUMMED.index(what) for what in whats if what != "memory"]
        known: dict[int, Sample] = {}  # the search for pieces asks for the same lengths hundreds of times

        def costs(length: int) -> Sample | None:
            if length in known:
                return known[length]
            point = (*others[:axis], length, *others[axis + 1 :])
            try:
                sample = self.at(point)
            except RunError as error:
                self.ends[axis] = (
                    f"with {self.sizes[axis].name}={length} the model raises: {str(error).splitlines()[-1].strip()}"
                )
                return None
            self.farthest[axis] = max(self.farthest[axis], length)
            if wanted:
                known[length] = {
                    key: tuple([numbers[i] for i in wanted]) for key, numbers in sample.items() if key != MEMORY
                }
            else:
                known[length] = {MEMORY: sample[MEMORY]}
            return known[length]

        return costs


def _axis(samples: Samples, axis: int, others: Sequence[int], whats: Sequence[str]) -> tuple[int, list[Piece]]:
    """Return the period of a size, and the pieces of its range on which the quantities ``whats`` are polynomials. The other sizes are fixed
    to ``others``."""
    size, costs = samples.sizes[axis], samples.along(axis, others, whats)
    low, high = size.least or 1, size.most
    if high is None:
        wanted, high = max(FARTHEST, TIMES * size.example), size.example
        while high < wanted and costs(min(2 * high, wanted)) is not None:
            high = min(2 * high, wanted)
            if samples.calls > MANY_CALLS:
                break
        samples.ends[axis] = (
            samples.ends[axis]
            or f"larger lengths were not checked; Dim({size.name!r}, max=...) sets the largest to check"
        )
    found = period_and_pieces(costs, size.example, low, high)
    if found is None:
        named = whats[0] if len(whats) == 1 else "costs"
        raise ClosedFormError(
            f"no closed form of {samples.first.model}: for {size.name} from {low} to {high}, fxflops found no polynomials for the model's {named}; "
            f"it tried polynomials of degree 4 or less, in at most 4 pieces, and several periods"
        )
    return found


def _enter_cells(
    cells: dict[str, list[Cell]],
    samples: Samples,
    periods: Sequence[int],
    pieces: Sequence[Piece],
    whats: Sequence[str],
) -> None:
    """Fit and check the polynomials of one piece of the domain, and add them to ``cells``.

    If ``whats`` are all required quantities, bytes and memory are fitted as well. At the smallest sizes, bytes and memory often do not
    follow the polynomial. They are then fitted only from the example's lengths on. If this fails too, they get no cell.
    """
    open_ = [*whats] if whats != REQUIRED else [*QUANTITIES]
    starts = [[piece.first for piece in pieces]]
    if _has_example(samples, pieces):
        starts.append([max(length, 2) for length in samples.example])
    for start in starts:
        here = [
            piece if first == piece.first else _from(piece, first, period)
            for piece, first, period in zip(pieces, start, periods, strict=True)
        ]
        if open_ and all(len(each.nodes) == len(piece.nodes) for each, piece in zip(here, pieces, strict=True)):
            costs = _fitted(samples, [piece.nodes for piece in here])
            wrong = {name for point in _inside(here, periods) for name in _check(samples, costs, point, whats)}
            ranges = tuple(
                [Range(piece.first, piece.last, period) for piece, period in zip(here, periods, strict=True)]
            )
            for what in [name for name in open_ if name not in wrong]:
                open_.remove(what)
                if what == "memory":
                    cells[what].append(Cell(ranges, {MEMORY: costs[MEMORY][0]}))
                else:
                    number = SUMMED.index(what)
                    cells[what].append(Cell(ranges, {k: each[number] for k, each in costs.items() if k != MEMORY}))


def _from(piece: Piece, first: int, period: int) -> Piece:
    """Return the part of a piece that starts at the length ``first``. If ``first`` is not in the piece, the part starts at the piece's next
    length."""
    first = piece.first + -(-(first - piece.first) // period) * period
    return Piece(first, piece.last, tuple(range(first, piece.last + 1, period))[: len(piece.nodes)])


def _fitted(samples: Samples, nodes: Sequence[Sequence[int]]) -> dict[Key, tuple[Polynomial, ...]]:
    """Return the polynomials through the costs on a grid of sizes. For each key, there is one polynomial per quantity."""
    through = interpolation(nodes)
    known: dict[tuple[int, ...], Polynomial] = {}
    costs: dict[Key, tuple[Polynomial, ...]] = {}
    for numbers, keys in columns([samples.at(point) for point in product(*nodes)]).items():
        each = [known[v] if v in known else known.setdefault(v, through(v)) for v in zip(*numbers, strict=True)]
        costs |= dict.fromkeys(keys, tuple(each))
    return costs


def _check(
    samples: Samples, costs: Mapping[Key, tuple[Polynomial, ...]], point: tuple[int, ...], required: Sequence[str]
) -> set[str]:
    """Compare the polynomials with a count at a point. Return the quantities that differ but are not ``required``.

    Raises ClosedFormError if a required quantity differs. The message shows where.
    """
    wrong = set[str]()
    try:
        sample = samples.at(point)
    except RunError:  # the model cannot run at this point, e.g. batch norm cannot train on a single value
        return wrong
    samples.checked.add(point)
    known: dict[int, Any] = {}
    for key in {**costs, **sample}:
        names = ["memory"] if key == MEMORY else SUMMED
        nothing = (0,) * len(names)
        for name, polynomial, number in zip(
            names, costs.get(key, ({},) * len(names)), sample.get(key, nothing), strict=True
        ):
            if id(polynomial) not in known:
                known[id(polynomial)] = value(polynomial, point)
            if known[id(polynomial)] != number:
                wrong.add(name)
                if name in required:
                    phase, path, op = key
                    at = ", ".join(f"{size.name}={length}" for size, length in zip(samples.sizes, point, strict=True))
                    raise ClosedFormError(
                        f"no closed form of {samples.first.model}: the {name} of {op} in {path or 'the model'} ({phase}) "
                        f"are not a polynomial: at {at} they are {number:,}, but the polynomial gives {known[id(polynomial)]}"
                    )
    return wrong


def _inside(pieces: Sequence[Piece], periods: Sequence[int]) -> list[tuple[int, ...]]:
    """Return points inside a piece of the domain. The points are the smallest point, points at which one size is at its largest, and random
    points."""
    rng = random.Random(0)
    low = tuple(piece.first for piece in pieces)
    points = [low, *((*low[:i], piece.last, *low[i + 1 :]) for i, piece in enumerate(pieces))]
    for _ in range(POINTS):
        point = [*low]
        for i in rng.sample(range(len(pieces)), len(pieces)):
            room = LARGEST_POINT // math.prod(point[:i] + point[i + 1 :])
            steps = max(min(pieces[i].last, room) - low[i], 0) // periods[i]
            point[i] += periods[i] * int((steps + 1) ** rng.random() - 1 + 0.5 * (steps > 0))
        points.append(tuple(point))
    return points


def _costs(report: Report) -> Sample:
    """Return the costs of a counted run by phase, module and op, and the peak memory of the run."""
    sums: dict[Key, tuple[int, ...]] = {MEMORY: (report.max_memory or 0,)}
    numbers = per_operation(_numbers)

    def enter(key: Key, found: tuple[int, ...]) -> None:
        sums[key] = tuple(map(int.__add__, sums[key], found)) if key in sums else found

    for each in report.counted:
        enter((each.call.phase, each.call.path, each.call.op), numbers(each))
    # Only for embeddings, count the bytes of the rows that are read. Other lookups often read a small table many times over.
    # A polynomial cannot limit the bytes of these lookups to the size of the table.
    for weight in weights_read(report, EMBEDDINGS):
        read = nbytes(weight.spec) if weight.taken is None else weight.taken
        enter(("forward", weight.path, weight.op), (0, 0, 0, read, 0))
    return sums


def _numbers(counted: Counted) -> tuple[int, ...]:
    outputs = sum(spec.numel() for spec in specs_in(counted.call.out)) if counted.macs else 0
    return counted.flops, counted.macs, outputs, 0, sum(traffic_of(counted, each_row=True))

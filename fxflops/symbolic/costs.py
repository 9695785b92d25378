"""Costs as polynomials in the sizes of the inputs. Each polynomial has a domain of sizes on which it is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ..conventions import SEES_BACKWARD
from ..errors import ClosedFormError, InputError, did_you_mean
from ..records import PARTS, prefixes
from .polynomials import Polynomial, evaluated, total, value
from .sizes import Size

QUANTITIES = ("flops", "macs", "activations", "param_bytes", "bytes", "memory")
SUMMED, REQUIRED = QUANTITIES[:-1], QUANTITIES[:-2]
"""SUMMED: the quantities that are sums over calls, unlike peak memory. REQUIRED: the quantities that a closed form should have."""
WHY_NOT = {
    "bytes": "at other sizes, calls copy other tensors",
    "memory": "the call at which memory peaks depends on the sizes",
}
"""For ``bytes`` and ``memory``: the usual reason why they are not polynomials."""
PHASES = {**PARTS, "training": (*PARTS["forward"], "backward")}
Key = tuple[str, str, str]
"""The phase, the module path and the op of calls. The costs of all calls with the same key are added up."""


class Range(NamedTuple):
    """A range of lengths of a size, from ``first`` to ``last`` in steps of ``period``. If ``last`` is None, the range has no end."""

    first: int
    last: int | None
    period: int = 1

    def __contains__(self, length: object) -> bool:
        inside = isinstance(length, int) and length >= self.first and (self.last is None or length <= self.last)
        return inside and (length - self.first) % self.period == 0  # type: ignore[operator]

    def __str__(self) -> str:
        if self.first == self.last:
            return str(self.first)
        end = "" if self.last is None else f" to {self.last}"
        return f"from {self.first}{end}" + (f" in steps of {self.period}" if self.period > 1 else "")


def in_words(ranges: Iterable[Range]) -> str:
    """Describe ranges of lengths in words, e.g. "from 1 to 8 and from 16". Adjacent ranges are merged."""
    found: list[Range] = []
    for each in sorted(ranges, key=lambda each: each.first):
        before = found[-1] if found else None
        if before is not None and before.period == each.period and before.last == each.first - each.period:
            found[-1] = before._replace(last=each.last)
        else:
            found.append(each)
    return " and ".join(map(str, found))


class Cell(NamedTuple):
    """For one quantity, a piece of the domain. The piece has the range of each size, and each key's polynomial in these ranges."""

    ranges: tuple[Range, ...]
    costs: Mapping[Key, Polynomial]


class SizedCosts:
    """The costs of a model as polynomials in its named sizes. The subclass ClosedForm also writes the polynomials as text or code."""

    def __init__(
        self,
        model: str,
        sizes: Sequence[Size],
        cells: Mapping[str, Sequence[Cell]],
        convention: str,
        attention: str,
        checked: int,
        why: Mapping[str, str] | None = None,
    ) -> None:
        """``cells`` has the pieces of the domain of each quantity. ``checked`` is the number of points at which the polynomials were
        compared with a count that was not used to fit them. ``why`` gives reasons by name: for a size, why its domain ends; for a quantity,
        why it has no pieces."""
        self.model = model
        self.sizes = tuple(size.name for size in sizes)
        self.example = tuple(size.example for size in sizes)
        self.cells = cells
        self.convention = convention
        self.attention = attention
        self.checked = checked
        self._why = why or {}
        self._sums: dict[Any, Polynomial] = {}

    # Values

    def evaluate(
        self,
        what: str = "flops",
        *,
        phase: str = "forward",
        module: str = "",
        operator: str | None = None,
        **sizes: Any,
    ) -> Any:
        """Return the value of a quantity at these sizes. The value is an int if the sizes are ints, and an array of exact integers if the
        sizes are arrays.

        Args:
            what: "flops", "macs", "activations", "bytes", "param_bytes" or "memory".
            phase: "forward", "backward", "recompute", "optimizer", "gradient", or "training" for the sum of forward and backward.
            module: the path of a module; its submodules are included.
            operator: the name of an operator, to include only its calls.
            sizes: an int or an array of integers for each name in ``form.sizes``.

        Raises ClosedFormError, with the reason, for sizes outside the domain; InputError for unknown names.

        >>> form.evaluate("flops", phase="training", batch=8, seq=1024)  # doctest: +SKIP
        """
        if {*sizes} != {*self.sizes}:
            raise InputError(
                f"evaluate() needs the sizes {', '.join(self.sizes)}; got {', '.join(sizes) or 'no sizes'}"
            )
        point = [sizes[name] for name in self.sizes]
        if all(isinstance(each, int) for each in point):
            polynomial = self.polynomial(self.cell_at(point, what), what, phase, module, operator)
            return int(value(polynomial, point))
        return self._evaluated(point, what, lambda cell: self.polynomial(cell, what, phase, module, operator))

    def _evaluated(self, point: Sequence[Any], what: str, of: Callable[[Cell], Polynomial]) -> Any:
        import numpy

        arrays = numpy.broadcast_arrays(*map(numpy.asarray, point))
        if any(each.dtype.kind not in "iu" for each in arrays):
            raise InputError("evaluate() takes sizes that are ints or arrays with an integer dtype")
        result, inside = None, numpy.zeros(arrays[0].shape, bool)
        for cell in self.pieces(what):
            here = numpy.ones(arrays[0].shape, bool)
            for lengths, each in zip(cell.ranges, arrays, strict=True):
                here &= (each >= lengths.first) & ((each - lengths.first) % lengths.period == 0)
                here &= True if lengths.last is None else each <= lengths.last
            if here.any():
                given = [each[here] for each in arrays]
                found = evaluated(of(cell), given, [max(int(each.max()), 1) for each in given])
                result = numpy.zeros(here.shape, found.dtype) if result is None else result
                result = result.astype(numpy.result_type(result, found))
                result[here] = found
                inside |= here
        if not inside.all():
            wrong = numpy.argwhere(~inside)[0]
            self.cell_at([int(each[tuple(wrong)]) for each in arrays], what)
        return result

    def pieces(self, what: str = "flops") -> Sequence[Cell]:
        """Return the pieces of the domain of a quantity. Raises ClosedFormError if the quantity is not a polynomial anywhere."""
        if what not in self.cells:
            raise InputError(
                f"unknown quantity {what!r}{did_you_mean(str(what), QUANTITIES) or '; expected one of ' + ', '.join(QUANTITIES)}"
            )
        if not self.cells[what] and what in self._why:
            raise ClosedFormError(self._why[what])
        if not self.cells[what]:
            wrong = (
                f"no closed form of {what} for {self.model}: the values are not a polynomial in {', '.join(self.sizes)}"
            )
            raise ClosedFormError(f"{wrong}: {WHY_NOT[what]}")
        return self.cells[what]

    def cell_at(self, point: Sequence[int], what: str = "flops") -> Cell:
        """Return the piece of the domain that contains a point. Raises ClosedFormError, with the reason, for a point outside the domain."""
        cells = self.pieces(what)
        for cell in cells:
            if all(length in lengths for length, lengths in zip(point, cell.ranges, strict=True)):
                return cell
        for i, (name, length) in enumerate(zip(self.sizes, point, strict=True)):
            ranges = [*dict.fromkeys(cell.ranges[i] for cell in cells)]
            if not any(length in lengths for lengths in ranges):
                raise ClosedFormError(self._outside(name, length, ranges))
        where = ", ".join(map("{}={}".format, self.sizes, point))
        raise ClosedFormError(
            f"the closed form of {self.model} does not hold at {where}: the costs are not polynomials for this combination of sizes"
        )

    def _outside(self, name: str, length: int, ranges: Sequence[Range]) -> str:
        start, period = ranges[0].first, ranges[0].period
        wrong = f"the closed form of {self.model} does not hold at {name}={length}"
        if (length - start) % period:
            kept = f"multiples of {period}" if start % period == 0 else f"multiples of {period} plus {start % period}"
            return (
                f"{wrong}: it holds for {kept}. A stride, a patch or a window rounds other sizes. "
                f"For a form at such sizes, call closed_form() with an example of {name}={length}"
            )
        reason = self._why.get(name, "") if length > max(lengths.last or length for lengths in ranges) else ""
        return f"{wrong}: it holds for {name} {in_words(ranges)}{'; ' + reason if reason else ''}"

    @property
    def main(self) -> str:
        """The name of the quantity to show first: "flops", or "macs" if the FLOPs are not polynomials."""
        return "flops" if self.cells["flops"] else "macs"

    def domain(self, what: str | None = None) -> str:
        """Describe in words the sizes for which the form of a quantity holds. The default quantity is :attr:`main`."""
        what = what or self.main
        ranges = [[*dict.fromkeys(cell.ranges[i] for cell in self.pieces(what))] for i in range(len(self.sizes))]
        words = [f"{name} {in_words(each)}" for name, each in zip(self.sizes, ranges, strict=True)]
        is_whole = len(self.pieces(what)) == math.prod(map(len, ranges))
        return ", ".join(words) + ("" if is_whole else ", but not for every combination")

    # The polynomials

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """The phases in which calls were counted."""
        return tuple(dict.fromkeys(phase for phase, _, _ in self._keys))

    @cached_property
    def has_backward_flops(self) -> bool:
        """True if a backward pass was counted, and if the convention says how to count the FLOPs of a backward pass."""
        costs = [
            (what, *each) for what in ("flops", "macs") for cell in self.cells[what] for each in cell.costs.items()
        ]
        known = {what for what, (phase, _, _), polynomial in costs if phase == "backward" and polynomial}
        is_known = self.convention in SEES_BACKWARD or known != {"macs"} or not self.cells["flops"]
        return "backward" in self.phases and is_known

    @cached_property
    def operators(self) -> list[str]:
        """The names of the operators that were called."""
        return [*dict.fromkeys(op for _, _, op in self._keys)]

    @cached_property
    def _paths(self) -> list[str]:
        return [*dict.fromkeys(above for _, path, _ in self._keys for above in prefixes(path))]

    @cached_property
    def _keys(self) -> list[Key]:
        return [*dict.fromkeys(key for cell in self.cells[self.main] for key in cell.costs)]

    def polynomial(
        self, cell: Cell, what: str = "flops", phase: str = "forward", module: str = "", operator: str | None = None
    ) -> Polynomial:
        """Return the polynomial of a quantity in the piece ``cell``. The other arguments are as for :meth:`evaluate`."""
        key = id(cell), what, phase, module, operator
        if key not in self._sums:
            self._check(what, phase, module, operator)
            phases, inside = PHASES[phase], f"{module}."
            self._sums[key] = total(
                each
                for (when, path, op), each in cell.costs.items()
                if when in phases
                and operator in (None, op)
                and (not module or path == module or path.startswith(inside))
            )
        return self._sums[key]

    def _check(self, what: str, phase: str, module: str, operator: str | None) -> None:
        """Raise InputError if a name is unknown, or if a phase or quantity was not counted."""
        wanted: list[tuple[str, str, Iterable[str]]] = [("phase", phase, PHASES), ("module", module, self._paths)]
        wanted += [("operator", operator, self.operators)] if operator is not None else []
        for kind, name, known in wanted:
            if name not in known:
                raise InputError(
                    f"unknown {kind} {name!r}{did_you_mean(str(name), known) or '; expected one of ' + ', '.join(known)}"
                )
        if what == "memory" and (phase, module, operator) != ("forward", "", None):
            raise InputError("memory is the peak of the whole run: it cannot be split by phase, module or operator")
        if not {*PHASES[phase]} - {*PARTS["forward"]} <= {*self.phases}:
            raise InputError(f"no calls of phase {phase!r} were counted", advice="backward in a form")
        if what == "flops" and "backward" in PHASES[phase] and not self.has_backward_flops:
            raise InputError(
                f"convention {self.convention!r} has no rules for the FLOPs of a backward pass; use the quantity 'macs'"
            )

"""Write a closed form as a sympy expression, as Python source, as text, or as a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..render.bands import REST, bands_chart
from ..render.charts import picture
from ..report.picture import Picture
from .costs import WHY_NOT, Cell, Range, SizedCosts
from .polynomials import Monomial, Polynomial, fixed, integral, value

if TYPE_CHECKING:
    from sympy import Expr


TOP = 8
POINTS = 200
"""The number of points in each piece of the domain at which a chart is calculated."""
WHY_NO_POLYNOMIAL = "the costs of some operators, e.g. of a sort, are not polynomials"
TITLES = {
    "flops": "FLOPs", "macs": "MACs", "activations": "activations", "bytes": "bytes", "param_bytes": "parameter bytes",
    "memory": "bytes at the peak",
}  # fmt: skip
IN_BYTES = ("bytes", "param_bytes", "memory")


def expression(sizes: Sequence[str], pieces: Sequence[tuple[Sequence[Range], Polynomial]]) -> Expr:
    """Return one sympy expression for the polynomials of all pieces. If these differ, the expression is a ``Piecewise``."""
    import sympy

    symbols = [sympy.Symbol(name, integer=True, positive=True) for name in sizes]

    def written(polynomial: Polynomial) -> Any:
        terms = (
            sympy.Rational(c.numerator, c.denominator)
            * sympy.prod([s**n for s, n in zip(symbols, monomial, strict=True)])
            for monomial, c in polynomial.items()
        )
        return sympy.Add(*terms)

    polynomials = _unified(pieces)
    is_of_lengths = all(any(each.first == each.last for each in ranges) for ranges, _ in pieces)
    if all(each == polynomials[0] for each in polynomials) and not is_of_lengths:
        return written(polynomials[0])
    conditions = [sympy.And(*_conditions(symbols, ranges)) for ranges, _ in pieces]
    return sympy.Piecewise(*zip(map(written, polynomials), conditions, strict=True))


def _unified(pieces: Sequence[tuple[Sequence[Range], Polynomial]]) -> list[Polynomial]:
    """Return the polynomial of each piece. If a piece is a single length, use the polynomial of a neighbouring piece, if that polynomial
    also gives the right value at this length."""
    found = [polynomial for _, polynomial in pieces]
    for axis in range(len(pieces[0][0])):
        for i, (ranges, _) in enumerate(pieces):
            length = ranges[axis].first
            for j, (others, _) in enumerate(pieces):
                is_neighbour = i != j and [*ranges[:axis], *ranges[axis + 1 :]] == [*others[:axis], *others[axis + 1 :]]
                if is_neighbour and length == ranges[axis].last and fixed(found[j], axis, length) == found[i]:
                    found[i] = found[j]
    return found


def _conditions(symbols: Sequence[Any], ranges: Sequence[Range]) -> list[Any]:
    """Return the conditions that distinguish a piece from the other pieces. They omit the period, which is the same in all pieces."""
    found: list[Any] = []
    for symbol, (first, last, _) in zip(symbols, ranges, strict=True):
        found += [symbol >= first] if first > 1 else []
        found += [] if last is None else [symbol <= last]
    return found


def python_function(form: SizedCosts, what: str, phase: str) -> str:
    """Return the source of a Python function of the sizes. The function has a docstring, and checks that the sizes are in the domain."""
    title, domain = TITLES[what] + (f", {phase}," if phase != "forward" else ""), form.domain(what)
    lines = [
        f"def {what if phase == 'forward' else f'{phase}_{what}'}({', '.join(form.sizes)}):",
        f'    """Return the {title} of {form.model}: convention {form.convention}, attention {form.attention}.',
        "",
        f"    The formula holds for {domain}. For other sizes, the function raises ValueError.",
        '    """',
    ]
    for cell in form.pieces(what):
        tests = [_test(name, lengths) for name, lengths in zip(form.sizes, cell.ranges, strict=True)]
        source = _source(form.sizes, form.polynomial(cell, what, phase))
        lines += [f"    if {' and '.join(tests)}:", f"        return {source}"]
    shown = ", ".join(f"{name}={{{name}}}" for name in form.sizes)
    return "\n".join([*lines, f'    raise ValueError(f"{shown}: the formula holds for {domain}")', ""])


def _test(name: str, lengths: Range) -> str:
    first, last, period = lengths
    inside = f"{name} >= {first}" if last is None else f"{first} <= {name} <= {last}"
    return f"{inside} and ({name} - {first}) % {period} == 0" if period > 1 and first != last else inside


def _source(sizes: Sequence[str], polynomial: Polynomial) -> str:
    whole, denominator = integral(polynomial)
    written = " + ".join(_term(sizes, monomial, each) for monomial, each in sorted(whole.items(), reverse=True)) or "0"
    return (written if denominator == 1 else f"({written}) // {denominator}").replace("+ -", "- ")


def _term(sizes: Sequence[str], monomial: Monomial, coefficient: int) -> str:
    factors = [name if n == 1 else f"{name}**{n}" for name, n in zip(sizes, monomial, strict=True) if n]
    return " * ".join(factors if coefficient == 1 and factors else [str(coefficient), *factors])


def text(form: SizedCosts) -> str:
    """Return the closed form as text. The text has the domain, and the totals and operators in the largest piece of the domain."""
    cell = _largest(form, form.main)
    here = _words(form.sizes, cell.ranges)
    lines = [
        f"{form.model}   in {', '.join(form.sizes)}   (convention {form.convention}, attention {form.attention})",
        f"holds for    {form.domain()}; checked against count() at {form.checked} held-out points",
    ]
    if len(form.pieces(form.main)) > 1:
        lines.append(f"{len(form.pieces(form.main))} pieces; shown is the largest: {here}")
    backward = [(f"{phase} FLOPs", "flops", phase) for phase in ("backward", "training") if form.has_backward_flops]
    totals = [("MACs", "macs", "forward"), ("FLOPs", "flops", "forward"), *backward]
    totals += [(TITLES[what], what, "forward") for what in ("activations", "param_bytes", "bytes", "memory")]
    lines += [_total(form, cell, *each) for each in totals]
    by_operator = {op: form.polynomial(cell, form.main, operator=op) for op in form.operators}
    most = [length.last or length.first for length in cell.ranges]
    ordered = sorted(filter(by_operator.get, by_operator), key=lambda op: -value(by_operator[op], most))
    largest, others = ordered[:TOP], dict[Monomial, Fraction]()
    for op in ordered[TOP:]:
        for monomial, coefficient in by_operator[op].items():
            others[monomial] = others.get(monomial, Fraction(0)) + coefficient
    title = "FLOPs" if form.main == "flops" else "MACs"
    lines += [f"{title} by operator", *(f"  {_line(op, form.sizes, by_operator[op])}" for op in largest)]
    if others:
        lines.append(f"  {_line(f'{len(ordered) - TOP} others', form.sizes, others)}")
    return "\n".join(lines)


def _total(form: SizedCosts, shown: Cell, title: str, what: str, phase: str) -> str:
    """Return the line of a quantity in the piece that is shown. If the polynomial holds only in a part of this piece, name the part."""
    cells = form.cells[what]
    whole = [cell for cell in cells if _holds(cell.ranges, shown.ranges)]
    parts = sorted((cell for cell in cells if _holds(shown.ranges, cell.ranges)), key=_points)
    if whole or parts:
        cell = whole[0] if whole else parts[-1]
        line = _line(title, form.sizes, form.polynomial(cell, what, phase))
        return line if whole else f"{line}   ({_words(form.sizes, cell.ranges)})"
    where = f" for {_words(form.sizes, shown.ranges)}" if cells else f" in {', '.join(form.sizes)}"
    return f"{title:<17} not a polynomial{where}: {WHY_NOT.get(what, WHY_NO_POLYNOMIAL)}"


def _holds(ranges: Sequence[Range], inside: Sequence[Range]) -> bool:
    """Return whether ``ranges`` contain all lengths of the ranges ``inside``."""
    return all(
        other.first in each
        and (other.first == other.last or other.period % each.period == 0)
        and (each.last is None or (other.last is not None and other.last <= each.last))
        for each, other in zip(ranges, inside, strict=True)
    )


def _largest(form: SizedCosts, what: str) -> Cell:
    """Return the piece of a quantity's domain with the most points."""
    return max(form.pieces(what), key=_points)


def _points(cell: Cell) -> float:
    return math.prod(map(_lengths, cell.ranges))


def _lengths(lengths: Range) -> float:
    return math.inf if lengths.last is None else 1 + (lengths.last - lengths.first) // lengths.period


def _words(sizes: Sequence[str], ranges: Sequence[Range]) -> str:
    return ", ".join(f"{name} {lengths}" for name, lengths in zip(sizes, ranges, strict=True))


def _line(title: str, sizes: Sequence[str], polynomial: Polynomial) -> str:
    terms = " + ".join(_readable(sizes, each, polynomial[each]) for each in sorted(polynomial, reverse=True)) or "0"
    return f"{title:<17} {terms.replace('+ -', '- ')}"


def _readable(sizes: Sequence[str], monomial: Monomial, coefficient: Fraction) -> str:
    """Return a term as text, with commas in its coefficient, e.g. "1,024 batch seq^2"."""
    factors = [name if n == 1 else f"{name}^{n}" for name, n in zip(sizes, monomial, strict=True) if n]
    number = f"{coefficient.numerator:,}" + (f"/{coefficient.denominator:,}" if coefficient.denominator > 1 else "")
    return " ".join([*([number] if coefficient != 1 or not factors else []), *factors])


def plot(form: SizedCosts, x: str, what: str, phase: str, others: Mapping[str, int]) -> Picture:
    """Return a chart of a quantity over one size, stacked by operator. Each of the largest operators has its own colour."""
    if x not in form.sizes:
        raise InputError(f"plot(): x must be one of the sizes {', '.join(form.sizes)}; got {x!r}")
    axis = form.sizes.index(x)
    at: dict[str, Any] = {**dict(zip(form.sizes, form.example, strict=True)), **others}
    lengths = _plotted(form, what, axis, [at[name] for name in form.sizes])
    total = [form.evaluate(what, phase=phase, **{**at, x: length}) for length in lengths]
    operators = [] if what == "memory" else form.operators
    values = {op: [form.evaluate(what, phase=phase, operator=op, **{**at, x: n}) for n in lengths] for op in operators}
    shown = sorted((op for op in values if any(values[op])), key=lambda op: -values[op][-1])[:TOP]
    rest = [all_ - sum(values[op][i] for op in shown) for i, all_ in enumerate(total)]
    bands = {**{op: values[op] for op in shown}, **({REST if shown else what: rest} if any(rest) else {})}
    fixed = ", ".join(f"{name} {at[name]}" for name in form.sizes if name != x)
    title = (
        f"{TITLES[what]} of {form.model}"
        + (f", {phase}" if phase != "forward" else "")
        + (f", {fixed}" if fixed else "")
    )
    return Picture(picture(bands_chart(title, x, lengths, bands, in_bytes=what in IN_BYTES), ""))


def _plotted(form: SizedCosts, what: str, axis: int, point: list[int]) -> list[int]:
    """The lengths of all other sizes are fixed to ``point``. Return lengths of the remaining size at which the polynomials hold."""
    found: set[int] = set()
    for cell in form.pieces(what):
        if all(
            i == axis or length in lengths for i, (length, lengths) in enumerate(zip(point, cell.ranges, strict=True))
        ):
            first, last, period = cell.ranges[axis]
            steps = POINTS if last is None else (last - first) // period
            found |= {first + period * (steps * i // POINTS) for i in range(POINTS + 1)}
    return sorted(found)

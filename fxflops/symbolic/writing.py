"""A closed form written down: as a sympy expression, as Python source, as text, as a figure of plotly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..errors import InputError, not_installed
from .costs import WHY_NOT, Cell, Range, SizedCosts
from .polynomials import Monomial, Polynomial, fixed, integral, value

if TYPE_CHECKING:
    from sympy import Expr


TOP = 8
POINTS = 200
"""A figure is drawn through so many points of each piece of the domain."""
TITLES = {
    "flops": "FLOPs", "macs": "MACs", "activations": "activations", "bytes": "bytes", "param_bytes": "parameter bytes",
    "memory": "bytes at the peak",
}  # fmt: skip


def expression(sizes: Sequence[str], pieces: Sequence[tuple[Sequence[Range], Polynomial]]) -> Expr:
    """Return the polynomials as one sympy expression in positive integers; with several pieces, a ``Piecewise``."""
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
    if all(each == polynomials[0] for each in polynomials):
        return written(polynomials[0])
    conditions = [sympy.And(*_conditions(symbols, ranges)) for ranges, _ in pieces]
    return sympy.Piecewise(*zip(map(written, polynomials), conditions, strict=True))


def _unified(pieces: Sequence[tuple[Sequence[Range], Polynomial]]) -> list[Polynomial]:
    """Return the polynomials; in place of one for a single length that of a neighbour, where it is right there, too."""
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
    """Return the relations that tell a piece from the others; the period is the same in all."""
    found: list[Any] = []
    for symbol, (first, last, _) in zip(symbols, ranges, strict=True):
        found += [symbol >= first] if first > 1 else []
        found += [] if last is None else [symbol <= last]
    return found


def python_function(form: SizedCosts, what: str, phase: str) -> str:
    """Return the source of a function of the sizes, with its docstring and the check of its domain."""
    title, domain = TITLES[what] + (f", {phase}," if phase != "forward" else ""), form.domain(what)
    lines = [
        f"def {what if phase == 'forward' else f'{phase}_{what}'}({', '.join(form.sizes)}):",
        f'    """Return the {title} of {form.model}: convention {form.convention}, attention {form.attention}.',
        "",
        f"    It holds for {domain}; otherwise it raises ValueError.",
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
    """Return the form as lines: the totals and the operators, in the largest piece of the domain, and the other pieces."""
    cell = _largest(form, "flops")
    totals = [("MACs", "macs", "forward"), ("FLOPs", "flops", "forward")]
    totals += [(f"{phase} FLOPs", "flops", phase) for phase in ("backward", "training") if form.has_backward_flops]
    totals += [(TITLES[name], name, "forward") for name in ("activations", "param_bytes")]
    rows = [(title, form.polynomial(_largest(form, what), what, phase)) for title, what, phase in totals]
    optional = {name: _largest(form, name) for name in ("bytes", "memory") if form.cells[name]}
    rows += [(TITLES[name], form.polynomial(each, name)) for name, each in optional.items()]
    by_operator = {op: form.polynomial(cell, "flops", operator=op) for op in form.operators}
    most = [length.last or length.first for length in cell.ranges]
    largest = sorted(filter(by_operator.get, by_operator), key=lambda op: -value(by_operator[op], most))[:TOP]
    lines = [
        f"{form.model}   in {', '.join(form.sizes)}   (convention {form.convention}, attention {form.attention})",
        f"holds for    {form.domain()}; equal to count() at {form.checked} points that were not used",
    ]
    if len(form.pieces()) > 1:
        lines.append(f"in {len(form.pieces())} pieces; this is the largest, {_words(form.sizes, cell.ranges)}")
    lines += [_line(title, form.sizes, polynomial) for title, polynomial in rows]
    lines += [
        f"{TITLES[name]} hold for {_words(form.sizes, each.ranges)}"
        for name, each in optional.items()
        if each.ranges != cell.ranges
    ]
    lines += [
        f"{TITLES[name]:<17} no polynomial in {', '.join(form.sizes)}: {why}"
        for name, why in WHY_NOT.items()
        if not form.cells[name]
    ]
    lines += ["FLOPs by operator", *(f"  {_line(op, form.sizes, by_operator[op])}" for op in largest)]
    return "\n".join(lines)


def _largest(form: SizedCosts, what: str) -> Cell:
    """Return the piece of a quantity's domain with the most points."""
    return max(form.pieces(what), key=lambda each: math.prod(map(_lengths, each.ranges)))


def _lengths(lengths: Range) -> float:
    return math.inf if lengths.last is None else 1 + (lengths.last - lengths.first) // lengths.period


def _words(sizes: Sequence[str], ranges: Sequence[Range]) -> str:
    return ", ".join(f"{name} {lengths}" for name, lengths in zip(sizes, ranges, strict=True))


def _line(title: str, sizes: Sequence[str], polynomial: Polynomial) -> str:
    terms = " + ".join(_readable(sizes, each, polynomial[each]) for each in sorted(polynomial, reverse=True)) or "0"
    return f"{title:<17} {terms.replace('+ -', '- ')}"


def _readable(sizes: Sequence[str], monomial: Monomial, coefficient: Fraction) -> str:
    """Return a term with the digits of its coefficient in groups: "1,024 batch seq^2"."""
    factors = [name if n == 1 else f"{name}^{n}" for name, n in zip(sizes, monomial, strict=True) if n]
    number = f"{coefficient.numerator:,}" + (f"/{coefficient.denominator:,}" if coefficient.denominator > 1 else "")
    return " ".join([*([number] if coefficient != 1 or not factors else []), *factors])


def plot(form: SizedCosts, x: str, what: str, phase: str, others: Mapping[str, int]) -> Any:
    """Return a figure of a quantity over one size, stacked by operator; the largest operators have their own colour."""
    try:
        from plotly import graph_objects
    except ImportError as error:
        raise not_installed("plotly") from error
    if x not in form.sizes:
        raise InputError(f"plot() is over one of the sizes {', '.join(form.sizes)}, not {x!r}")
    axis = form.sizes.index(x)
    at: dict[str, Any] = {**dict(zip(form.sizes, form.example, strict=True)), **others}
    lengths = _plotted(form, what, axis, [at[name] for name in form.sizes])
    total = [form.evaluate(what, phase=phase, **{**at, x: length}) for length in lengths]
    operators = [] if what == "memory" else form.operators
    values = {op: [form.evaluate(what, phase=phase, operator=op, **{**at, x: n}) for n in lengths] for op in operators}
    shown = sorted((op for op in values if any(values[op])), key=lambda op: -values[op][-1])[:TOP]
    rest = [all_ - sum(values[op][i] for op in shown) for i, all_ in enumerate(total)]
    bands = {**{op: values[op] for op in shown}, **({"other" if shown else what: rest} if any(rest) else {})}
    figure = graph_objects.Figure(
        [graph_objects.Scatter(x=lengths, y=band, name=name, stackgroup="all") for name, band in bands.items()]
    )
    fixed = ", ".join(f"{name} {at[name]}" for name in form.sizes if name != x)
    title = (
        f"{TITLES[what]} of {form.model}"
        + (f", {phase}" if phase != "forward" else "")
        + (f", {fixed}" if fixed else "")
    )
    return figure.update_layout(title=title, xaxis_title=x, yaxis_title=TITLES[what])


def _plotted(form: SizedCosts, what: str, axis: int, point: list[int]) -> list[int]:
    """Return lengths of a size at which the form holds, the other sizes being those of the point."""
    found: set[int] = set()
    for cell in form.pieces(what):
        if all(
            i == axis or length in lengths for i, (length, lengths) in enumerate(zip(point, cell.ranges, strict=True))
        ):
            first, last, period = cell.ranges[axis]
            steps = POINTS if last is None else (last - first) // period
            found |= {first + period * (steps * i // POINTS) for i in range(POINTS + 1)}
    return sorted(found)

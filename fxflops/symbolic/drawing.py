"""A closed form as a figure of plotly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError, not_installed
from .costs import SizedCosts
from .writing import TITLES, TOP

POINTS = 200


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
    lengths = _lengths(form, what, axis, [at[name] for name in form.sizes])
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


def _lengths(form: SizedCosts, what: str, axis: int, point: list[int]) -> list[int]:
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

"""A chart of the memory over the run, and a table of the tensors alive at peak memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .. import units
from ..meters.history import Moment
from .axes import Axis
from .charts import LETTER, SQUARE, Chart, areas, label, line, without_zeros, y_ticks
from .page_data import MOST_MOMENTS, MOST_OWNERS, MemoryTimeline, Owner, place_of_peak, thinned
from .palette import CATEGORIES, GREY
from .text import escaped

FIXED = ("params", "buffers", "inputs", "optimizer")
SOURCES = {
    "predicted": "The memory is predicted, not measured.",
    "storages": "The memory is the sum of the tensors that were alive in the run.",
    "allocator": "The peak was measured by the device's allocator.",
}
"""Where the numbers come from, in words."""
BAND = 16
"""The height of the band for constant memory, in percent of the rest of the plot."""


def memory_chart(memory: MemoryTimeline, about: str, *, folds_constant: bool = False) -> Chart:
    """Return a chart of the live bytes after each call, as stacked areas by category. The peak is marked.

    With ``folds_constant``, all memory that stays constant is drawn as one low band at the bottom. The height of this band is not to scale.
    """
    places = thinned(memory.states, MOST_MOMENTS, place_of_peak(memory))
    states = [memory.states[i] for i in places]
    fixed = constant(memory) if folds_constant else {}
    names = [name for name in (states[0].live if states else ()) if name not in fixed]
    names = [name for name in names if any(state.live[name] for state in states)]
    hidden = sum(fixed.values())
    # ``high`` is the number of bytes from the constant band to the top of the plot. ``each`` is the height of one byte in percent of the plot.
    high = 1.1 * max(memory.peak - hidden, *(state.total - hidden for state in states), 1)
    band = 100 * BAND / (100 + BAND) if fixed else 0.0
    each = (100 - band) / high
    end = (places[-1] + 1) if places else 1
    edges = [100 * place / end for place in (*places, end)]
    layers = [(name, CATEGORIES.get(name, GREY), [each * state.live[name] for state in states]) for name in names]
    if fixed:
        largest = max(fixed, key=fixed.__getitem__)
        layers.insert(0, (largest, CATEGORIES.get(largest, GREY), [band] * len(states)))
    ticks = [(band + each * value, _tick(value, hidden)) for value in Axis(0, high, in_bytes=True).ticks()]
    peak = 100 - band - each * (memory.peak - hidden)
    peak_x = edges[places.index(place_of_peak(memory))] if places else 0.0
    body = [
        *y_ticks([(0, "0 B"), *ticks] if fixed else ticks),
        areas(edges, layers, stepped=True),
        *(_folded_up(fixed, band) if fixed else ()),
        *_phases(states, edges),
        line(0, peak, 100, peak, 1, "2 3"),
        f'<circle class="peak" cx="{peak_x:.2f}%" cy="{peak:.2f}%" r="4.5" fill="#5c6573" stroke="#fff"/>',
        _peak_label(memory, peak_x, peak),
        label(50, 100, "calls that allocate or free, in run order", dy=24),
    ]
    legend = [(SQUARE, name, CATEGORIES.get(name, GREY)) for name in names]
    title = " · ".join(filter(None, [about, "memory over the run"]))
    return Chart(title, legend, "".join(body), 300, (78, 20, 34))


def constant(memory: MemoryTimeline) -> dict[str, int]:
    """Return the bytes of each category in :data:`FIXED` whose bytes stay the same during the whole run."""
    if not memory.states:
        return {}
    first = memory.states[0].live
    return {
        name: first[name]
        for name in FIXED
        if first.get(name) and all(state.live[name] == first[name] for state in memory.states)
    }


def memory_note(memory: MemoryTimeline) -> str:
    """Return a note about the chart: which constant memory and which states it does not show, and what the source of the data is."""
    fixed, highest = constant(memory), max((state.total for state in memory.states), default=0)
    drawn = len(thinned(memory.states, MOST_MOMENTS, place_of_peak(memory)))
    notes = [f"Constant during the run: {', '.join(_sizes(fixed))}."] if fixed else []
    if drawn < len(memory.states):
        notes.append(f"{drawn:,} of {len(memory.states):,} states are drawn, the highest state of each stretch.")
    if memory.peak > highest:
        notes.append(
            "The area shows the memory after each call. During a call, memory can be higher, as it is at the peak."
        )
    return " ".join([*notes, SOURCES.get(memory.source, f"Source: {memory.source}.")])


def owners_table(memory: MemoryTimeline) -> str:
    """Return an HTML table of the largest tensors alive at the peak. The last row sums up all smaller tensors."""
    titles = ("bytes", "share", "held as", "made in", "by", "tensor")
    head = "".join(f'<th scope="col"{_side(i)}>{title}</th>' for i, title in enumerate(titles))
    rows = [_owner(owner, memory.peak) for owner in memory.owners[:MOST_OWNERS]]
    rest = memory.owners[MOST_OWNERS:]
    if nbytes := sum(owner.bytes for owner in rest):
        number = sum(owner.tensors for owner in rest)
        rows.append(_row([units.size(nbytes), _share(nbytes, memory.peak), f"{number:,} smaller", "", "", ""]))
    return f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _owner(owner: Owner, peak: int) -> str:
    is_one = owner.tensors < 2
    made_in = owner.path or ("the model" if owner.tensors == 1 and owner.op and owner.shape else "")
    by, kind = (
        (owner.op, "") if owner.path or is_one else ("", f" {owner.op}".rstrip())
    )  # several tensors outside modules are optimizer state: ``op`` is its kind
    tensor = owner.shape if is_one else f"{owner.tensors:,} tensors"
    cells = [units.size(owner.bytes), _share(owner.bytes, peak), owner.category + kind, made_in, by, tensor]
    return _row(cells, CATEGORIES.get(owner.category, GREY), f"{owner.bytes:,} bytes")


def _row(cells: Sequence[str], colour: str = "", exact: str = "") -> str:
    dot = f'<span class="dot" style="background:{colour}"></span>' if colour else ""
    shown = "".join(
        f"<td{_side(i)}{f' title={chr(34)}{exact}{chr(34)}' if exact and not i else ''}>{dot if i == 2 else ''}{escaped(text)}</td>"
        for i, text in enumerate(cells)
    )
    return f"<tr>{shown}</tr>"


def _side(column: int) -> str:
    return ' class="n"' if column < 2 else ""


def _share(nbytes: int, peak: int) -> str:
    return f"{100 * nbytes / (peak or 1):.1f}%"


def _sizes(fixed: Mapping[str, int]) -> list[str]:
    return [f"{name} {units.size(nbytes)}" for name, nbytes in fixed.items()]


def _tick(value: float, hidden: int) -> str:
    """Return the text of a tick. If ``hidden`` bytes are drawn as a constant band, the text of the tick is the number of bytes above this band."""
    return ("+" if hidden and value else "") + without_zeros(units.size(value or hidden))


def _folded_up(fixed: Mapping[str, int], band: float) -> Iterator[str]:
    """Yield the line at the top of the constant band, and the band's label."""
    yield f'<line class="cut" stroke-dasharray="8 4 2 4" x1="0" x2="100%" y1="{100 - band:.2f}%" y2="{100 - band:.2f}%"/>'
    yield label(50, 100 - band / 2, f"{' · '.join(_sizes(fixed))}, throughout (not to scale)", dy=4, kind="dark wide")


def _phases(states: Sequence[Moment], edges: Sequence[float]) -> Iterator[str]:
    """Yield a line at the start of each phase. Yield the phase's name above the plot, unless the name would overlap the previous name."""
    if len({state.phase for state in states}) < 2:
        return
    free = -1.0
    for i, state in enumerate(states):
        if i and state.phase == states[i - 1].phase:
            continue
        if i:
            yield line(edges[i], 0, edges[i], 100, 0.8, "3 3")
        if edges[i] >= free:
            free = edges[i] + 100 * (LETTER * len(state.phase) + 30) / 800
            yield label(edges[i], 0, f"{state.phase} →", "start", dx=2, dy=-5, kind="soft wide" if i else "soft")


def _peak_label(memory: MemoryTimeline, x: float, y: float) -> str:
    """Return the label of the peak. On a narrow page, the label is shorter."""
    where = f' <tspan class="wide">in {escaped(memory.peak_at)}</tspan>' if memory.peak_at else ""
    anchor = "start" if x < 25 else "end" if x > 75 else "middle"
    return f'<text class="on" x="{x:.2f}%" y="{y:.2f}%" dy="-9" text-anchor="{anchor}">peak {units.size(memory.peak)}{where}</text>'

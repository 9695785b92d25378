"""The ranks of a job as an HTML page without a script. The page shows how the ranks differ, with a bar for each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

from .. import units
from .exports import Table
from .html import cells_table
from .page import Card, boxes, document, ending, scrollable, section
from .palette import CATEGORIES, GREY, GROUPS
from .text import escaped

MOST_BARS = 24
"""The maximum number of ranks in a chart. If a job has more ranks, the ranks with the largest values are drawn."""
MOST_ROWS = 1_000
ALIKE = 1.005
"""If the largest value of a quantity is at most this many times the mean over all ranks, the ranks are called equal."""
WORK, HELD, SENT, TIME = "FLOPs", "Peak memory", "Bytes sent", "Time"


class RankFigures(NamedTuple):
    """The numbers of a rank, or of ``ranks`` equal ranks. ``memory`` has the bytes at the peak by category; it is empty if unknown. ``sent``
    has the bytes sent by process group. Other unknown values are None."""

    name: str
    ranks: int
    flops: int
    seconds: float | None
    memory: Mapping[str, int]
    sent: Mapping[str, int | None]


class Amounts(NamedTuple):
    """A quantity, with the function ``show`` that formats its values. ``parts`` has a dict for each rank, with the parts of its value.

    ``most`` are the words for the rank with the largest value, e.g. "slowest". ``each`` has the words that come before a value if the value
    is the same on all ranks, e.g. "each computes".
    """

    parts: Sequence[Mapping[str, float]]
    show: Callable[[float], str]
    most: str
    each: str

    @property
    def totals(self) -> list[float]:
        return [sum(of_rank.values()) for of_rank in self.parts]


def amounts(ranks: Sequence[RankFigures]) -> dict[str, Amounts]:
    """Return the quantities that are known for all ranks. The keys are the headings of their charts."""
    found: dict[str, Amounts] = {}
    if all(rank.seconds is not None for rank in ranks):
        found[TIME] = Amounts([{"": rank.seconds or 0.0} for rank in ranks], units.seconds, "slowest", "each takes")
    found[WORK] = Amounts([{"": rank.flops} for rank in ranks], _flops, "most work", "each computes")
    if all(rank.memory for rank in ranks):
        held = [{name: nbytes for name, nbytes in rank.memory.items() if nbytes > 0} for rank in ranks]
        found[HELD] = Amounts(held, units.size, "highest peak", "each peaks at")
    if None not in [nbytes for rank in ranks for nbytes in rank.sent.values()]:
        sent = [{group: nbytes or 0 for group, nbytes in rank.sent.items()} for rank in ranks]
        found[SENT] = Amounts(sent, units.size, "sends most", "each sends")
    return found


def conclusion(ranks: Sequence[RankFigures], repeated: str = "") -> str:
    """Return ``slowest: rank 1, 2.00 s, 1.33x the mean; each computes 1.60 kFLOPs; ...; repeated: mlp 400``.

    For each quantity, the text names the rank with the largest value, or gives the value if all ranks have the same value. For the bytes
    sent, the text also names the process group that sends most.
    """
    found = amounts(ranks)
    clauses = [_clause(ranks, each) for each in found.values()]
    if SENT in found:
        groups = _by_part(ranks, found[SENT])
        if len(groups) > 1:
            largest = max(groups, key=groups.__getitem__)
            clauses[-1] += f", {100 * groups[largest] / (sum(groups.values()) or 1):.0f}% of it in {largest}"
    else:
        clauses.append("the bytes sent are unknown")
    return "; ".join([*clauses, *([f"repeated: {repeated}"] if repeated else [])])


def ranks_page(
    title: str,
    about: str,
    ranks: Sequence[RankFigures],
    tables: Mapping[str, Table],
    *,
    repeated: str = "",
    complete: bool,
    origin: str,
) -> str:
    """Return the page. ``about`` describes the job. ``repeated`` describes the work that several ranks do in duplicate. ``tables`` maps
    headings to the tables that follow the charts. ``origin`` is the provenance of all numbers."""
    badge, said = ("good", "complete") if complete else ("bad", "INCOMPLETE: lower bounds")
    found = amounts(ranks)
    return document(
        title or about,
        [
            f'<header><h1>{escaped(title or about)}</h1><span class="badge {badge}">{said}</span>',
            f'<p class="about">{escaped(about)}</p></header><main>' if title else "</header><main>",
            f'<p class="conclusion">{escaped(conclusion(ranks, repeated))}</p>',
            boxes([*_cards(ranks, found)]),
            *(_chart(heading, ranks, each) for heading, each in found.items() if any(each.totals)),
            *(
                section(_id(heading), heading, _table(heading, table))
                for heading, table in tables.items()
                if len(table)
            ),
            ending(origin),
        ],
    )


def _flops(value: float) -> str:
    return units.amount(value, "FLOPs")


def _mean(ranks: Sequence[RankFigures], values: Iterable[float]) -> float:
    pairs = zip(ranks, values, strict=True)
    return sum(rank.ranks * value for rank, value in pairs) / sum(rank.ranks for rank in ranks)


def _clause(ranks: Sequence[RankFigures], amount: Amounts) -> str:
    totals = amount.totals
    mean, most = _mean(ranks, totals), max(totals)
    if most <= ALIKE * mean:
        return f"{amount.each} {amount.show(most)}" if most else f"{amount.each} nothing"
    return f"{amount.most}: {ranks[totals.index(most)].name}, {amount.show(most)}, {most / mean:.2f}x the mean"


def _by_part(ranks: Sequence[RankFigures], amount: Amounts) -> dict[str, float]:
    """Return the sum over all ranks for each part of a quantity."""
    sums: dict[str, float] = {}
    for rank, parts in zip(ranks, amount.parts, strict=True):
        for name, value in parts.items():
            sums[name] = sums.get(name, 0) + rank.ranks * value
    return sums


def _cards(ranks: Sequence[RankFigures], found: Mapping[str, Amounts]) -> Iterable[Card]:
    """Yield a card with the number of ranks, and a card for each quantity. It shows the sum or the mean over all ranks, and the largest
    value."""
    count = sum(rank.ranks for rank in ranks)
    kinds = "all equal" if len(ranks) == 1 else f"{len(ranks)} kinds" if len(ranks) < count else ""
    yield Card("Ranks", f"{count:,}", "", kinds)
    for heading, each in found.items():
        totals = each.totals
        mean, most, total = _mean(ranks, totals), max(totals), count * _mean(ranks, totals)
        if heading in (WORK, SENT):
            yield Card(f"{heading} of all", each.show(total), f"{total:,.0f}", f"{each.show(most)} at most per rank")
        else:
            yield Card(f"{heading} at most", each.show(most), f"{most:,}", f"mean {each.show(mean)}")


def _chart(heading: str, ranks: Sequence[RankFigures], amount: Amounts) -> str:
    """Return a section with a bar for each rank and a legend. Each part of a bar has its own colour."""
    totals = amount.totals
    largest = sorted(range(len(ranks)), key=lambda i: -totals[i])[:MOST_BARS]
    sums = _by_part(ranks, amount)
    groups = {"": "var(--accent)"} | dict(zip(filter(None, sums), cycle(GROUPS), strict=False))
    colours = {name: CATEGORIES.get(name, GREY) for name in sums} if heading == HELD else groups
    rows = "".join(
        f'<tr><th scope="row">{escaped(ranks[i].name)}{f" <small>x{ranks[i].ranks:,}</small>" if ranks[i].ranks > 1 else ""}</th>'
        f'<td class="n">{amount.show(totals[i])}</td><td class="bars">{_bar(amount.parts[i], max(totals), amount.show, colours)}</td></tr>'
        for i in sorted(largest)
    )
    legend = "".join(
        f'<li><span class="dot" style="background:{colours[name]}"></span>{escaped(name)}</li>'
        for name in sums
        if name and sums[name]
    )
    more = (
        f'<p class="note">{MOST_BARS} of {len(ranks)} ranks are shown, those with the largest values.</p>'
        if len(ranks) > MOST_BARS
        else ""
    )
    table = scrollable(f"{heading} of each rank", f'<table class="plain steps"><tbody>{rows}</tbody></table>')
    return section(_id(heading), heading, (f'<ul class="legend">{legend}</ul>' if legend else "") + table + more)


def _bar(parts: Mapping[str, float], most: float, show: Callable[[float], str], colours: Mapping[str, str]) -> str:
    return "".join(
        f'<span class="part" style="width:{100 * value / most:.2f}%;background:{colours[name]}" '
        f'title="{escaped(f"{name} {show(value)}".strip())}"></span>'
        for name, value in parts.items()
    )


def _table(heading: str, table: Table) -> str:
    used = table._used()
    rows = ([row[i] for i in used] for row in table.rows[:MOST_ROWS])
    made = cells_table([table.columns[i] for i in used], rows, "auto", sortable=False)
    more = f'<p class="note">The first {MOST_ROWS:,} of {len(table):,}.</p>' if len(table) > MOST_ROWS else ""
    return scrollable(f"table of {heading}", made) + more


def _id(heading: str) -> str:
    return heading.lower().replace(" ", "-")

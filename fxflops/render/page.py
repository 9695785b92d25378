"""The report as an HTML page. The page is a single file: it needs no other file, and it cannot load one.

The page's content security policy (https://www.w3.org/TR/CSP3/) allows a script only if its hash is the hash of one of the page's own
scripts. Even if a model's name contained a script and got into the page unescaped, the script could not run.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from gzip import compress
from hashlib import sha256
from html import escape
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from .. import units
from ..counting.steps import TIMED, StepTime
from ..meters.code_lines import CodeLine
from .charts import placed, style
from .conclusion import conclusion
from .costs import OTHER, costs, operator_shares
from .data import Summary
from .exports import as_json
from .icicle import SHOW, blocks, icicle_chart, total
from .memory_chart import constant, memory_chart, memory_note, owners_table
from .page_data import MOST_TILES, MemoryTimeline, Metric, Page, payload, shallow
from .roofline_chart import MOST_DOTS, bounds_in_words, roofline_chart
from .summary import TIMED_ONLY, facts, missing_lines, paste_where, remark_lines
from .text import escaped, place, plain

HERE = Path(__file__).parent
MOST_LINES = 15
MOST_STEPS = 100
MOST_DRAWN = 250
"""The approximate maximum number of tiles in an icicle."""
DOT = re.compile(r"(?<=[^\W\d])\.|\.(?=[^\W\d])")
"""Matches a dot in a path, where a line may break, but not a decimal point."""
PERCENT_OF_PEAK = "of the device's peak"


class Card(NamedTuple):
    """A number in large type at the top of the page. ``exact`` is the tooltip of the number, ``note`` is the line below it."""

    label: str
    value: str
    exact: str
    note: str


class Icicle(NamedTuple):
    """The icicle chart of a metric. ``key`` is the key of the metric. ``phase`` is "" for all phases, and "-" if the metric has no phases."""

    key: str
    phase: str
    content: str


def page(data: Page) -> str:
    """Return the page as text."""
    script = (HERE / "page.js").read_text(encoding="utf8")
    icicles = _icicles(data)
    hidden = [icicle.content for icicle in icicles[1:]]
    return document(
        data.title or data.summary.title,
        [
            *_head(data),
            *_sections(data, icicles),
            f'<script type="text/plain" id="data">{packed({**payload(data), "icicles": hidden, "graph": data.picture})}</script>',
            f"<script>{script}</script>",
        ],
        [script],
    )


def document(title: str, body: Sequence[str], scripts: Sequence[str] = ()) -> str:
    """Return an HTML page in our style. ``body`` has the lines of its body. The page may run only ``scripts``."""
    styles = (HERE / "page.css").read_text(encoding="utf8") + style()
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escaped(title)} · fxflops</title>",
            f"<style>{styles}</style>",
            "</head>",
            "<body>",
            *body,
            "</body>",
            "</html>",
            "",
        ]
    )


def policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: the page may run these scripts and load nothing."""
    hashes = (
        " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts) or "'none'"
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'; base-uri 'none'"


def packed(value: object) -> str:
    """Return a value as compressed JSON in base64, for a script element. Base64 cannot contain the end tag of the element."""
    # The compressed data has no modification time, so that the same report always gives the same page.
    return b64encode(compress(as_json(value).encode(), mtime=0)).decode()


def cards(page: Page) -> list[Card]:
    """Return the cards at the top of the page: counts, parameters, latency, memory, speed and utilization, if these are known."""
    data = page.summary
    bound, of_all = "≥ " if data.root.missing else "", "" if data.complete else "≥ "
    found = []
    if not data.is_unobserved:
        found.append(_count(data.unit, data.root.flops, bound, data.rules))
        found.append(_count("MACs", data.root.macs, bound, "fxflops's own count under every convention"))
    if data.backward_flops is not None:
        parts = {"forward": data.root.flops, "backward": data.backward_flops}
        said = " + ".join(f"{name} {units.count(value)}" for name, value in parts.items())
        again = f", and recomputed {units.count(data.recompute_flops)}" if data.recompute_flops else ""
        found.append(_count(f"training {data.unit}", sum(parts.values()), of_all, said + again))
    if data.params is not None:
        said = f"frozen {units.count(data.params.frozen)} · {units.size(data.params.bytes)}"
        found.append(_count("params", data.params.total, "", said))
    if data.latency is not None:
        median, low, high, repeats, unsteady = data.latency
        said = f"median of {repeats}, {units.seconds(low)} to {units.seconds(high)}" if repeats > 1 else "1 run"
        said += f"; unsteady: {unsteady}" if unsteady else ""
        found.append(Card("latency", units.seconds(median), f"{median!r} s", said))
    if data.bytes_peak:
        said = f"at {place(data.peak_at)}" if data.peak_at else "from memory that is allocated during the whole run"
        found.append(Card("peak memory", units.size(data.bytes_peak), f"{data.bytes_peak:,} bytes", said))
    return found + _goodness(page)


def _goodness(page: Page) -> list[Card]:
    """Return the cards with the FLOP/s and the utilization. For a prediction, return a card with the minimum time on the device."""
    data, found = page.summary, page.roofline
    if found is not None and found.is_prediction:
        bound = sum(kind[0] for kinds in found.bounds.values() for kind in kinds.values())
        return [
            Card("least time", units.seconds(bound), f"{bound!r} s", f"on {plain(found.device['device'])}, predicted")
        ]
    cards = []
    if data.latency is not None and data.root.flops:
        rate = data.root.flops / data.latency.median
        peaks = {} if found is None else found.peaks
        peak = ", ".join(f"{name} {units.count(value)}FLOP/s" for name, value in peaks.items())
        said = "" if found is None else f"{plain(found.device['device'])}, peak {peak}"
        cards.append(Card("speed", units.amount(rate, "FLOP/s"), f"{rate:,.0f} FLOP/s", said))
    if found is not None and found.mfu is not None:
        said = f"{PERCENT_OF_PEAK} (MFU)" + (", forward and backward" if data.backward_latency is not None else "")
        if found.efficiency is not None:
            said += f"; {100 * found.efficiency:.1f}% of the roofline bound"
        cards.append(Card("utilization", f"{100 * found.mfu:.1f}%", f"{found.mfu!r}", said))
    return cards


def _count(label: str, value: int, bound: str, said: str) -> Card:
    return Card(label, bound + units.count(value), f"{value:,}", said)


def _head(page: Page) -> list[str]:
    data = page.summary
    about = [data.title] if page.title else []
    about += [f"input {data.inputs}"] if data.inputs else []
    said_first = conclusion(data, None if page.roofline is None else page.roofline.mfu)
    badge, said = "good", f"complete: {data.counted_calls:,} of {data.calls:,} calls counted"
    if data.is_unobserved:
        badge, said = "", TIMED_ONLY
    elif not data.complete:
        badge, said = "bad", f"INCOMPLETE: {data.calls - data.counted_calls:,} of {data.calls:,} calls not counted"
    rows = "".join(
        f"<tr><th scope=row>{escaped(fact.label)}</th><td>{escaped(fact.value)}</td>"
        f"<td>{escaped(fact.separator.join(fact.details))}</td></tr>"
        for fact in facts(data)
    )
    return [
        f'<header><h1>{escaped(page.title or data.title)}</h1><span class="badge {badge}">{said}</span>',
        f'<p class="about">{" · ".join(map(escaped, [*about, data.setting]))}</p></header>',
        "<main>",
        f'<p class="conclusion">{escaped(said_first)}</p>' if said_first else "",
        *(f'<p class="note remark">{escaped(line)}</p>' for line in remark_lines(data)),
        *_missing(data),
        boxes(cards(page)),
        f'<ul class="lines">{"".join(f"<li>{line}</li>" for line in _lines(data))}</ul>',
        f'<details><summary>All numbers of the run</summary><table class="facts">{rows}</table></details>',
        "<noscript><p>A script in this file shows the table of operations and the graph. The script does not run here.</p></noscript>",
    ]


def boxes(cards: Sequence[Card]) -> str:
    """Return the cards as boxes in a row."""
    shown = "".join(
        f'<div class="card"><dt>{escaped(card.label)}</dt><dd title="{escaped(card.exact)}">{_figure(card.value)}</dd>'
        f'<dd class="said">{DOT.sub(".<wbr>", escaped(card.note))}</dd></div>'
        for card in cards
    )
    return f'<dl class="cards">{shown}</dl>'


def _figure(value: str) -> str:
    """Return a number as HTML, with its unit in smaller type."""
    number, blank, unit = value.rpartition(" ")
    return f"{escaped(number)}{blank}<small>{escaped(unit)}</small>" if number.strip("≥ ") else escaped(value)


def _missing(data: Summary) -> list[str]:
    if data.complete or data.is_unobserved:
        return []
    lines = [
        '<section class="missing" aria-label="what is not counted">',
        "<p>The totals are lower bounds: these calls have no formula.</p>",
        f"<pre>{escape(chr(10).join(missing_lines(data)))}</pre>",
    ]
    if data.paste:
        lines.append(f'<p>{paste_where(data).capitalize()}:</p><pre class="paste">{escape(data.paste)}</pre>')
    return [*lines, "</section>"]


def _lines(data: Summary) -> list[str]:
    """Return a line with the most expensive modules, and the lines with the operators' shares."""
    parts = []
    for part in [part for part in costs(data) if part.row.path != OTHER][:3]:
        row = part.row
        shares = [
            (data.unit, units.percent(row.flops, data.root.flops)),
            ("time", units.percent(row.seconds, data.root.seconds)),
        ]
        said = ", ".join(f"{share:.1f}% of {name}" for name, share in shares if share is not None)
        parts.append(f"<b>{escaped(part.label)}</b> {said}")
    lines = [f"<span>where</span>{' · '.join(parts)}"] if parts else []
    return lines + [f"<span>{escaped(name)}</span>{escaped(' · '.join(said))}" for name, said in operator_shares(data)]


def _steps(steps: Mapping[str, StepTime]) -> str:
    """Return the section about the steps of a profiled block. Each step has a bar, which is divided into the parts of the step's time."""
    if not steps:
        return ""
    longest = max(step.seconds for step in steps.values()) or 1.0
    rows = [(escaped(name), step.seconds, _bar(step, longest)) for name, step in islice(steps.items(), MOST_STEPS)]
    legend = "".join(f'<li><span class="dot part {part}"></span>{part}</li>' for part in TIMED)
    return section("steps", "Steps", f'<ul class="legend">{legend}</ul>{_time_bars("step", rows, len(steps))}')


def _code(lines: Sequence[CodeLine]) -> str:
    """Return the section about the lines of the user's code that took the most host time, slowest first. Return "" if no lines were sampled."""
    if not lines:
        return ""
    longest = max(line.seconds for line in lines) or 1.0
    rows = [
        (
            f"{escaped(line.place)} <small>{escaped(line.function)}</small>",
            line.seconds,
            f'<span class="part forward" style="width:{100 * line.seconds / longest:.2f}%"></span>',
        )
        for line in islice(lines, MOST_LINES)
    ]
    return section("code", "Lines of code", _time_bars("line", rows, len(lines)))


def _time_bars(kind: str, rows: Sequence[tuple[str, float, str]], number: int) -> str:
    """Return a table of times with bars. Each row is a heading as HTML, seconds, and a bar as HTML.

    ``number`` is the number of all rows. If ``rows`` are fewer, a note says so.
    """
    body = "".join(
        f'<tr><th scope="row">{heading}</th><td class="n">{units.seconds(seconds)}</td><td class="bars">{bar}</td></tr>'
        for heading, seconds, bar in rows
    )
    more = f'<p class="note">The first {len(rows)} of {number} {kind}s.</p>' if len(rows) < number else ""
    return scrollable(f"time of each {kind}", f'<table class="plain steps"><tbody>{body}</tbody></table>') + more


def _bar(step: StepTime, longest: float) -> str:
    parts = {part: getattr(step, part) for part in TIMED if getattr(step, part)}
    return "".join(
        f'<span class="part {part}" style="width:{100 * seconds / longest:.2f}%" title="{part} {units.seconds(seconds)}"></span>'
        for part, seconds in parts.items()
    )


def _graph() -> str:
    """Return the collapsed element for the graph. A script shows the graph as an image, so that the page's styles do not change the graph."""
    image = '<img id="graph" alt="the graph of the model, coloured by FLOPs">'
    return (
        f'<details class="graph"><summary>The graph, coloured by FLOPs</summary>{scrollable("graph", image)}</details>'
    )


def _sections(page: Page, icicles: Sequence[Icicle]) -> list[str]:
    """Return the sections with charts, steps and graph. Also return empty elements, which the script fills with the table of operations.

    If the run has several steps, the section about steps comes first.
    """
    where = section("where", "Where", _where(icicles) + (_graph() if page.picture else ""))
    steps = _steps(page.summary.steps) + _code(page.summary.lines or ())
    return [
        *([steps, where] if len(page.summary.steps) > 1 else [where, steps]),
        section("speed", "How fast", _speed(page)),
        section("memory", "Memory over the run", _memory(page.memory)) if page.memory is not None else "",
        section("ops", "Operations", '<div id="ops-controls" class="controls"></div><div id="table" class="grid" tabindex="0" role="region" aria-label="operations, scrollable"></div>'
                 '<p id="ops-note" class="note" aria-live="polite"></p><p id="ops-printed" class="note"></p>'),
        ending(page.summary.provenance),
    ]  # fmt: skip


def _icicles(page: Page) -> list[Icicle]:
    """Return an icicle chart for each metric and phase. A line below the chart has the total of the metric."""
    data = page.summary
    tiles = shallow(page.tiles, MOST_TILES)
    root = blocks(tiles, page.metrics)
    icicles = []
    for metric, phase, names in _variants(page.metrics):
        whole = total(root, names)
        if not whole:
            continue
        bound = "" if metric.kind != "count" or data.complete or metric.key == "params" else "≥ "
        of = f" of the {phase}" if phase else " of all phases" if metric.phase else ""
        said = f"{metric.label}{of}: {bound}{SHOW[metric.kind](whole)} in all."
        if metric.key == "memory":
            said += (
                " A tile shows the bytes that the module allocated and that were alive at the peak, and its parameters."
            )
        if len(tiles) < len(page.tiles):
            said += (
                f" {len(page.tiles) - len(tiles):,} deeper modules are included in the tiles of the modules above them."
            )
        chart = placed(icicle_chart(root, metric, names, f"{metric.label}{of} by module", MOST_DRAWN))
        key = phase if metric.phase else "-"
        icicles.append(Icicle(metric.key, key, f'{chart}<p class="note">{escaped(said)}</p>'))
    return icicles


def _where(icicles: Sequence[Icicle]) -> str:
    """Return the first icicle chart, and empty elements for the other charts. To save space, these are in the page's compressed data."""
    if not icicles:
        return '<p class="note">Nothing was counted.</p>'
    places = "".join(
        f'<div data-key="{each.key}" data-phase="{escaped(each.phase)}"{" hidden" if i else ""}>{"" if i else each.content}</div>'
        for i, each in enumerate(icicles)
    )
    return (
        f'<div id="where-controls" class="controls"></div><div id="where">{places}</div>'
        '<p id="where-note" class="note"></p>'
    )


def _variants(metrics: Sequence[Metric]) -> Iterator[tuple[Metric, str, list[str]]]:
    """For each metric, yield the metric, a phase, and the names of the values that are added up for this phase. The phase "", for all
    phases, comes last."""
    for key in dict.fromkeys(metric.key for metric in metrics):
        mine = [metric for metric in metrics if metric.key == key]
        for metric in mine:
            yield metric, metric.phase, [metric.name]
        if len(mine) > 1:
            yield mine[0], "", [metric.name for metric in mine]


def _speed(page: Page) -> str:
    """Return the roofline chart, and sentences about the minimum times of each phase. Only the first phase is visible."""
    if page.roofline is None:
        return f'<p class="note">No roofline: {escaped(page.why_no_roofline)}.</p>'
    phases = [*page.roofline.bounds]
    shown = phases[0] if phases else ""
    chart, left_out = roofline_chart(page.roofline, page.calls, page.summary.title, shown)

    def more(phase: str) -> str:
        omitted = left_out[phase] if phase else left_out.total()
        said = f" {omitted:,} calls that are not among the {MOST_DOTS:,} longest are not drawn." if omitted else ""
        return said + (" Dotted: cache bandwidth." if page.roofline and page.roofline.device.get("caches") else "")

    notes = "".join(
        f'<p class="note" data-phase="{escaped(phase)}"{"" if phase == shown else " hidden"}>'
        f"{escaped(bounds_in_words(page.roofline, phase or None) + more(phase))}</p>"
        for phase in dict.fromkeys([*phases, ""])
    )
    return (
        f'<div id="speed-controls" class="controls"></div><div id="bounds">{notes}</div>'
        f'<div id="roofline">{placed(chart)}</div>'
    )


def _memory(memory: MemoryTimeline) -> str:
    """Return the charts of memory over the run, and the table of tensors alive at the peak.

    If most of the memory at the peak is constant, the chart that folds the constant memory into one band comes first.
    """
    shown, fixed = ["everything"], sum(constant(memory).values())
    if fixed:
        shown.insert(0 if fixed > 0.5 * memory.peak else 1, "what changes")
    charts = "".join(
        f'<div data-show="{name}"{" hidden" if i else ""}>{placed(memory_chart(memory, "", folds_constant=name != "everything"))}</div>'
        for i, name in enumerate(shown)
    )
    return (
        f'<div id="memory-controls" class="controls"></div><div id="course">{charts}</div>'
        f'<p id="memory-note" class="note">{escaped(memory_note(memory))}</p>'
        f"<h3>Alive at the peak</h3>{scrollable('alive at the peak', owners_table(memory))}"
    )


def section(name: str, title: str, body: str) -> str:
    """Return a section with a title. The id of the title is ``name``, followed by "-title"."""
    return f'<section aria-labelledby="{name}-title"><h2 id="{name}-title">{escaped(title)}</h2>{body}</section>'


def ending(origin: str) -> str:
    """Return the end of a page, which shows the provenance of the page's numbers."""
    return f'<p id="provenance" class="note">{escaped(origin)}</p></main>'


def scrollable(label: str, inside: str) -> str:
    """Return an element that can be scrolled sideways, also with the keyboard. ``label`` is the name that screen readers say."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(label)}">{inside}</div>'

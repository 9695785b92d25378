"""Draw a report's graph and charts as pictures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec

from ..counting.counted_run import CountedRun
from ..errors import FxflopsError, InputError
from ..records import FORWARD
from ..render.boxes import boxes
from ..render.data import TreeRow
from ..render.files import Path, written, written_bytes
from ..render.graph import graph_svg
from ..render.page_data import Page
from .graph import COSTS, costed_nodes

CHARTS = "graph", "modules", "memory", "roofline"
SIZES = "flops", "macs", "time"
"""The costs that can determine the sizes of modules in the chart. The names are those in :data:`~fxflops.report.graph.COSTS`."""
NO_OUTLINES = ".chart text{stroke:none !important}"
CONVERTERS = {".png": ("resvg_py", "resvg-py"), ".pdf": ("cairosvg", "cairosvg")}
"""For each suffix, the module and the package that convert a picture to this format."""
ZOOM = 2
"""PNG pixels per SVG pixel, in each direction."""


@dataclass(frozen=True, repr=False)
class Picture:
    """A chart as SVG. Notebooks show the chart."""

    svg: str

    def save(self, path: Path) -> None:
        """Write the picture to a file. The format is PDF for the suffix ``.pdf``, PNG for ``.png``, and SVG for all other suffixes."""
        converted = {".png": as_png, ".pdf": as_pdf}.get(os.fspath(path)[-4:].lower())
        if converted is not None:
            written_bytes(converted(self.svg), path)
        else:
            written(self.svg, path)

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Picture: {len(self.svg):,} characters of SVG; save('name.svg') writes a file>"


def picture(counted_run: CountedRun, root: TreeRow, by: str, depth: int | None) -> str:
    """Return the graph as SVG, coloured by the cost ``by``. ``root`` is the module tree. Raises InputError without a graph."""
    title = " ".join(filter(None, [counted_run.name, counted_run.run.inputs]))
    graph = boxes(root, costed_nodes(counted_run, by), by, depth)
    return graph_svg(graph, title, counted_run.provenance, *COSTS[by])


def charted(page: Page, chart: str, by: str) -> str:
    """Return a chart of the page as SVG. Raises InputError for an unknown chart, or if the chart's data is missing."""
    from ..render.charts import picture as chart_svg
    from ..render.icicle import SHOW, blocks, icicle_chart, total
    from ..render.memory_chart import memory_chart
    from ..render.roofline_chart import roofline_chart

    if chart not in CHARTS:
        raise InputError(f"unknown chart {chart!r}; expected one of {', '.join(map(repr, CHARTS))}")
    data = page.summary
    title = " ".join(filter(None, [data.title, data.inputs]))
    if chart == "modules":
        if by not in SIZES:
            raise InputError(
                f"by={by!r} is not possible for chart='modules'; expected one of {', '.join(map(repr, SIZES))}"
            )
        name = f"{by} {FORWARD}"
        metric = next((metric for metric in page.metrics if metric.name == name), None)
        if metric is None:
            raise InputError(f"by={by!r}: this run did not measure this cost")
        root = blocks(page.tiles, page.metrics)
        caption = f"{title} · {COSTS[by][0]} {SHOW[metric.kind](total(root, [name]))}"
        return chart_svg(icicle_chart(root, metric, [name], caption), data.provenance)
    if chart == "memory":
        if page.memory is None or not page.memory.states:
            raise InputError(
                "the report does not show how much memory was in use over the run: make the report with count(), analyze() or profile()"
            )
        return chart_svg(memory_chart(page.memory, title), data.provenance)
    if page.roofline is None:
        raise InputError(
            f"no roofline: {page.why_no_roofline}; pass a device to predict a roofline: chart='roofline', device='H100'"
        )
    return chart_svg(roofline_chart(page.roofline, page.calls, title)[0], data.provenance)


def missing_converter(suffix: str) -> str:
    """Return which package to install to write pictures with this suffix; "" if it is installed, or if none is needed."""
    suffix = suffix.lower()
    if suffix not in CONVERTERS:
        return ""
    module, _ = CONVERTERS[suffix]
    return _needs(suffix) if find_spec(module) is None else ""


def _needs(suffix: str) -> str:
    _, package = CONVERTERS[suffix]
    return f"{suffix[1:].upper()} needs {package}, which is not installed:\n  pip install {package}"


def as_png(svg: str) -> bytes:
    """Return a picture as PNG. Raises FxflopsError if resvg is not installed."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise FxflopsError(_needs(".png")) from error
    return bytes(svg_to_bytes(svg_string=svg, zoom=ZOOM))


def as_pdf(svg: str) -> bytes:
    """Return a picture as PDF, in which text stays text. Raises FxflopsError if cairosvg or the library cairo is not installed."""
    try:
        from cairosvg import svg2pdf
    except (ImportError, OSError) as error:  # OSError: cairosvg is installed, but cairo is not
        raise FxflopsError(f"{_needs('.pdf')}  ({error})") from error
    # Remove the outlines of text: browsers draw the outlines below the text, but cairosvg draws them over the text.
    return bytes(svg2pdf(bytestring=svg.replace("</style>", f"{NO_OUTLINES}</style>", 1).encode()))

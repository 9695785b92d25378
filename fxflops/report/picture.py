"""A report's graph and charts as pictures."""

from __future__ import annotations

from collections.abc import Callable

from ..counting.counted_run import CountedRun
from ..errors import FxflopsError, InputError
from ..render.boxes import boxes
from ..render.data import TreeRow
from ..render.graph import graph_svg
from ..render.page_data import Page
from .graph import COSTS, costed_nodes

CHARTS = "graph", "modules", "memory", "roofline"
VALUES: dict[str, Callable[[TreeRow], float]] = {
    "flops": lambda row: row.flops,
    "macs": lambda row: row.macs,
    "time": lambda row: row.seconds or 0.0,
}
"""The values of a module in its chart, by the names of :data:`~fxflops.report.graph.COSTS`."""
ZOOM = 2
"""The pixels of a PNG for each pixel of its SVG."""


def picture(counted_run: CountedRun, root: TreeRow, by: str, depth: int | None) -> str:
    """Return the graph as SVG, coloured by a cost; ``root`` is the module tree. InputError if there is no graph."""
    title = " ".join(filter(None, [counted_run.name, counted_run.run.inputs]))
    graph = boxes(root, costed_nodes(counted_run, by), by, depth)
    return graph_svg(graph, title, counted_run.provenance, *COSTS[by])


def charted(page: Page, chart: str, by: str) -> str:
    """Return a chart of the page as SVG. InputError for one that there is not, or of which nothing is known."""
    from ..render.charts import memory_svg, roofline_svg
    from ..render.icicle import icicle_svg

    if chart not in CHARTS:
        raise InputError(f"no chart {chart!r}: one of {', '.join(map(repr, CHARTS))}")
    data = page.summary
    title = " ".join(filter(None, [data.title, data.inputs]))
    if chart == "modules":
        if by not in VALUES:
            raise InputError(f"by={by!r} of modules: one of {', '.join(map(repr, VALUES))}")
        if not VALUES[by](data.root):
            raise InputError(f"by={by!r}: it was not measured in this run")
        cost, show = COSTS[by]
        return icicle_svg(data.root, VALUES[by], show, f"{title} · {cost}", data.provenance)
    if chart == "memory":
        if page.memory is None or not page.memory.states:
            raise InputError("the memory over the run is not known: count(), analyze() and profile() watch it")
        return memory_svg(page.memory, title, data.provenance)
    if page.roofline is None:
        raise InputError(f"no roofline: {page.why_no_roofline}; chart='roofline', device='H100' predicts one")
    return roofline_svg(page.roofline, page.calls, title, data.provenance)


def as_png(svg: str) -> bytes:
    """Return a picture as PNG. Raises FxflopsError if resvg is not installed."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise FxflopsError("PNG is made by resvg, which is not installed:\n  pip install resvg-py") from error
    return bytes(svg_to_bytes(svg_string=svg, zoom=ZOOM))

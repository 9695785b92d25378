"""A report's graph as a picture."""

from __future__ import annotations

from ..errors import FxflopsError
from ..render.boxes import boxes
from ..render.data import TreeRow
from ..render.graph import graph_svg
from .graph import COSTS, costed_nodes
from .tables import TabledRun

ZOOM = 2
"""The pixels of a PNG for each pixel of its SVG."""


def picture(report: TabledRun, root: TreeRow, by: str, depth: int | None) -> str:
    """Return the graph as SVG, coloured by a cost; ``root`` is the module tree. InputError if there is no graph."""
    about = " ".join(filter(None, [report.name, report.inputs]))
    return graph_svg(boxes(root, costed_nodes(report, by), by, depth), about, report.provenance, *COSTS[by])


def as_png(svg: str) -> bytes:
    """Return a picture as PNG. Raises FxflopsError if resvg is not installed."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise FxflopsError("PNG is made by resvg, which is not installed:\n  pip install resvg-py") from error
    return bytes(svg_to_bytes(svg_string=svg, zoom=ZOOM))

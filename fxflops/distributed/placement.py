"""The placement of a mesh's ranks in nodes, and the least time of collectives over the links within and between nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..counting.collectives import Collective
from ..errors import InputError
from .links import Links

RELAYED = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"}
"""Collectives whose bytes cross between nodes only once per node, however many devices in the node need them."""


def share_in_node(row: Collective, mesh: Mapping[str, int], links: Links) -> int:
    """Return how many ranks of a collective's group are in one node. Ranks fill nodes in order: the last mesh dimension is innermost."""
    names = [*mesh]
    inner = names[names.index(row.group) + 1 :] if row.group in mesh else []
    return min(row.ranks or 1, max(1, links.node // math.prod(mesh[name] for name in inner)))


def least_seconds(row: Collective, mesh: Mapping[str, int], links: Links) -> float:
    """Return the least seconds that collectives need. Of the time on a device's own link and the time on the links between nodes, this is
    the larger."""
    if row.sent is None or row.received is None or row.ranks is None:
        raise InputError(f"cannot bound the time of {row.op}: the bytes that it sends are unknown")
    moved, ranks = max(row.sent, row.received), row.ranks
    together = share_in_node(row, mesh, links)
    if together >= ranks or (row.op in ("send", "recv") and together > 1):
        return moved / links.within
    outside = moved * (ranks - together) / (ranks - 1) / (together if row.op in RELAYED else 1)
    return max(moved / links.within, outside / links.across)

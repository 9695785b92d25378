"""Where the ranks of a mesh are, and the least time that their collectives take by the links in a node and between nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..counting.collectives import Collective
from ..errors import InputError
from .links import Links

RELAYED = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"}
"""Collectives of which a node needs the bytes of others once, whatever number of its devices need them."""


def share_in_node(row: Collective, mesh: Mapping[str, int], links: Links) -> int:
    """Return how many ranks of a collective's group are in one node. Ranks fill nodes in their order: the last dimension is innermost."""
    names = [*mesh]
    inner = names[names.index(row.group) + 1 :] if row.group in mesh else []
    return min(row.ranks or 1, max(1, links.node // math.prod(mesh[name] for name in inner)))


def least_seconds(row: Collective, mesh: Mapping[str, int], links: Links) -> float:
    """Return the least seconds of collectives: of the bytes by a device's own link, and of those between nodes."""
    if row.sent is None or row.received is None or row.ranks is None:
        raise InputError(f"the bytes of {row.op} are not known, so there is no bound")
    moved, ranks = max(row.sent, row.received), row.ranks
    together = share_in_node(row, mesh, links)
    if together >= ranks or (row.op in ("send", "recv") and together > 1):
        return moved / links.within
    outside = moved * (ranks - together) / (ranks - 1) / (together if row.op in RELAYED else 1)
    return max(moved / links.within, outside / links.across)

"""Detect out-of-range table lookups: on meta no row is read, while the model itself raises an IndexError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..records.pairs import with_facts
from ..torch_internals import DisableTorchFunction, disable_current_modes, is_fake


def with_row(out: Any, given: Sequence[Any]) -> Any:
    """Return the result of a lookup; if an index is out of range, with the fact ``row``: the index and the table's number of rows.

    ``given`` are the indices and the table. Meta or fake indices have no values, and are not checked.
    """
    if len(given) < 2 or not all(isinstance(each, torch.Tensor) for each in given[:2]):
        return out
    indices: torch.Tensor = given[0]
    rows: int = given[1].shape[0]
    if indices.is_floating_point() or indices.is_meta or is_fake(type(indices)) or not indices.numel():
        return out
    with DisableTorchFunction(), disable_current_modes():
        first, last = (int(each) for each in indices.aminmax())
    return with_facts(out, row=(first if first < 0 else last, rows)) if first < 0 or last >= rows else out

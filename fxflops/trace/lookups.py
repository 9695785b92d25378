"""Detect table lookups with an index out of range: on meta they do not fail, while the model itself would raise an IndexError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..records.facts import with_facts
from ..torch_internals import DisableTorchFunction, disable_current_modes, is_fake


def with_row(out: Any, arguments: Sequence[Any]) -> Any:
    """Return the result of a lookup. If an index is out of range, add the fact ``row``: the index and the table's number of rows.

    Indices that are on meta or fake have no values, and are not checked.
    """
    if len(arguments) < 2 or not all(isinstance(tensor, torch.Tensor) for tensor in arguments[:2]):
        return out
    indices: torch.Tensor = arguments[0]
    rows: int = arguments[1].shape[0]
    if indices.is_floating_point() or indices.is_meta or is_fake(type(indices)) or not indices.numel():
        return out
    with DisableTorchFunction(), disable_current_modes():
        first, last = (int(index) for index in indices.aminmax())
    if first >= 0 and last < rows:
        return out
    return with_facts(out, row=(first if first < 0 else last, rows))

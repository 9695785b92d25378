"""From an ``nn.Module`` to a ``GraphModule`` whose nodes carry ``nn_module_stack``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from ..errors import InputError
from ..ops import Table
from .symbolic import symbolic

TRACERS = ("auto", "symbolic")


def trace(model: nn.Module, table: Table, constants: Mapping[str, Any], how: str = "auto") -> fx.GraphModule:
    """The graph of ``model``, by the tracer ``how`` ("auto" takes the first that succeeds; today there is one).

    Raises TraceError where the model cannot be traced, InputError for an unknown tracer.
    """
    if how not in TRACERS:
        raise InputError(f"unknown tracer {how!r}: trace is one of {', '.join(map(repr, TRACERS))}")
    return symbolic(model, table, constants)

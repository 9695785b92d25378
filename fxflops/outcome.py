"""Everything that one analysis leaves behind, before it is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .measure import Measured
from .rollup import Module


class Params(NamedTuple):
    """Parameters of a model, each tensor counted once however often it is shared; ``buffers`` in elements too."""

    total: int
    trainable: int
    frozen: int
    buffers: int
    bytes: int


class Environment(NamedTuple):
    """Where and how the run was made."""

    device: str
    mode: str
    grad: str
    torch: str


class Memory(dict[str, int]):
    """Bytes at the peak by category; ``source`` is "allocator", "storages" or "predicted", ``at`` the module of the peak."""

    def __init__(self, categories: Mapping[str, int], source: str, at: str) -> None:
        super().__init__(categories)
        self.source = source
        self.at = at


@dataclass(frozen=True, slots=True)
class Run:
    """Everything a run leaves behind that a report is made of. ``trace_reason`` is why it was not traced symbolically."""

    model: str
    inputs: str
    measured: Measured
    modules: tuple[Module, ...]
    params: Params
    memory: Memory
    environment: Environment
    trace: str
    trace_reason: str = ""

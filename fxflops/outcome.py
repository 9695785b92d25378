"""Everything that one analysis leaves behind, before it is counted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from .ledger import CATEGORIES, Place
from .own_run import Measured
from .records import is_dense, spec_of, specs_in
from .rollup import Module
from .structure import modules_of

ALWAYS = ("params", "buffers", "inputs", "activations")
"""The categories of memory that are said also where they are 0."""


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
    """Bytes at the peak by category; ``source`` is "allocator", "storages" or "predicted", ``at`` the module of the peak
    and ``phase`` that of the call in it."""

    def __init__(self, categories: Mapping[str, int], source: str, place: Place) -> None:
        super().__init__(categories)
        self.source = source
        self.at, self.phase = place


@dataclass(frozen=True)
class Run:
    """Everything a run leaves behind that a report is made of. ``trace_reason`` is why it was not traced symbolically."""

    model: str
    inputs: str
    measured: Measured
    modules: tuple[Module, ...]
    params: Params
    environment: Environment
    trace: str
    trace_reason: str = ""

    @cached_property
    def memory(self) -> Memory:
        return _memory(self.measured)


def outcome_of(
    model: nn.Module,
    inputs: Any,
    measured: Measured,
    *,
    name: str,
    device: torch.device,
    mode: str,
    trace: str,
    why: str = "",
) -> Run:
    """All that is kept of an analysis of ``model`` on ``inputs``; ``name`` is what the model is called."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} cores"
    place = f"{device} ({hardware})" if device.type in ("cpu", "cuda") else str(device)
    grad = "grad" if torch.is_grad_enabled() else "no_grad"
    environment = Environment(place, mode, grad, torch.__version__)
    modules = modules_of(model)
    params = _params(modules)
    shapes = " ".join(map(repr, specs_in(spec_of(inputs))))
    return Run(name, shapes, measured, _modules(modules), params, environment, trace, why)


def _memory(measured: Measured) -> Memory:
    """What was alive at the peak by category; "other" is what the allocator held beyond it."""
    held = dict.fromkeys(CATEGORIES, 0)
    for tensor in measured.history.at_peak:
        held[tensor.category] += tensor.bytes
    found = {category: nbytes for category, nbytes in held.items() if nbytes or category in ALWAYS}
    other = measured.peak - sum(held.values())
    return Memory(found | ({"other": other} if other else {}), measured.source, measured.history.peak_in)


def _params(modules: Iterable[nn.Module]) -> Params:
    own = {id(p): p for module in modules for p in module._parameters.values() if p is not None}
    buffers = {id(b): b for module in modules for b in module._buffers.values() if b is not None}
    trainable = frozen = 0
    for p in own.values():
        if p.requires_grad:
            trainable += p.numel()
        else:
            frozen += p.numel()
    elements = sum(b.numel() for b in buffers.values())
    return Params(trainable + frozen, trainable, frozen, elements, _bytes(own.values()))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages that tensors stand on, each once."""
    storages = {s._cdata: s for t in tensors if is_dense(t) for s in [t.untyped_storage()]}
    return sum(storage.nbytes() for storage in storages.values())


FUNCTIONS = frozenset({FunctionType, BuiltinFunctionType})
NONE: frozenset[Any] = frozenset()


def _modules(paths: Mapping[nn.Module, str]) -> tuple[Module, ...]:
    """Every module with its own parameters, a shared one where it is met first."""
    seen: set[int] = set()
    modules = []
    for module, path in paths.items():
        params = 0
        for p in module._parameters.values():
            if p is not None and id(p) not in seen:
                seen.add(id(p))
                params += p.numel()
        held = vars(module).values()
        keeps = NONE if FUNCTIONS.isdisjoint(map(type, held)) else frozenset(v for v in held if type(v) in FUNCTIONS)
        modules.append(Module(path, type(module).__name__, params, keeps))
    return tuple(modules)

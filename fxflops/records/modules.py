"""The modules of a model and the sums of its parameters."""

from __future__ import annotations

from typing import Any, NamedTuple


class Params(NamedTuple):
    """The number of elements of a model's parameters and buffers, and the parameters' bytes; shared tensors count once.

    For parameters spread over processes (DTensors) only this process's elements count; ``sharded`` is how many of these
    belong to parameters of which it holds only a part.
    """

    total: int
    trainable: int
    frozen: int
    buffers: int
    bytes: int
    sharded: int = 0


NO_PARAMS = Params(0, 0, 0, 0, 0)


class Module(NamedTuple):
    """A module of the model: its path, class name, and the number of its own parameters' elements (None if unknown).

    A shared parameter counts in the first module that has it. ``keeps`` are the functions among the module's attributes, such
    as ``self.act = F.gelu``; ``frozen`` is the number of its parameters' elements that require no gradients.
    """

    path: str
    cls: str
    params: int | None = 0
    keeps: frozenset[Any] = frozenset()
    frozen: int = 0

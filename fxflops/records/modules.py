"""The modules of a model and the sums of its parameters."""

from __future__ import annotations

from typing import Any, NamedTuple


class Params(NamedTuple):
    """The numbers of elements of a model's parameters and buffers, and the parameters' bytes; shared tensors count once.

    Of parameters in several processes (DTensors) they are those that this one holds; ``sharded`` are the elements of those
    of which it holds a part.
    """

    total: int
    trainable: int
    frozen: int
    buffers: int
    bytes: int
    sharded: int = 0


NO_PARAMS = Params(0, 0, 0, 0, 0)


class Module(NamedTuple):
    """A module of the model: its path, class name, and the number of its own parameters' elements; None if it is not known.

    A shared parameter counts in the first module that has it. ``keeps`` are the functions among its attributes, such as
    ``self.act = F.gelu``; ``frozen`` are those of its parameters' elements that require no gradients.
    """

    path: str
    cls: str
    params: int | None = 0
    keeps: frozenset[Any] = frozenset()
    frozen: int = 0

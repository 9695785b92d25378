"""Records of a model's modules, and of the total size of its parameters."""

from __future__ import annotations

from typing import Any, NamedTuple


class Params(NamedTuple):
    """The number of elements of a model's parameters and buffers, and the parameters' bytes. Shared tensors are counted once.

    If parameters are distributed over processes (DTensors), only the elements of this process are counted. ``sharded`` is the number of
    these elements that belong to sharded parameters, i.e. parameters of which this process stores only a part.
    """

    total: int
    trainable: int
    frozen: int
    buffers: int
    bytes: int
    sharded: int = 0


NO_PARAMS = Params(0, 0, 0, 0, 0)


class Module(NamedTuple):
    """A module of the model: its path, its class name, and ``params``, the number of elements in its own parameters (None if unknown).

    A shared parameter is counted in the first module that has it. ``keeps`` has the functions among the module's attributes, such
    as ``self.act = F.gelu``. ``frozen`` is the number of elements in the module's own parameters that require no gradient.
    """

    path: str
    cls: str
    params: int | None = 0
    keeps: frozenset[Any] = frozenset()
    frozen: int = 0

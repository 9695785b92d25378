"""An oracle independent of our formulas: numbers that tally the arithmetic done on them.

Run the textbook definition of an op on object arrays of :class:`Number` and read the tally:

>>> with tallying() as tally:
...     _ = numbers(2, 3) @ numbers(3, 4)
>>> tally.muls, tally.adds
(24, 16)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fxflops.records import Cost, Operation
from fxflops.records.tensors import spec_of


@dataclass
class Tally:
    muls: int = 0
    adds: int = 0
    others: int = 0

    @property
    def flops(self) -> int:
        return self.muls + self.adds + self.others

    def __eq__(self, cost: object) -> bool:
        if not isinstance(cost, (Tally, Cost)):
            return NotImplemented
        return (self.muls, self.adds, self.others) == (cost.muls, cost.adds, cost.others)


_tallies: list[Tally] = []


@contextmanager
def tallying() -> Iterator[Tally]:
    tally = Tally()
    _tallies.append(tally)
    try:
        yield tally
    finally:
        _tallies.pop()


class Number:
    """A value whose arithmetic is counted. ``+ -`` are adds, ``*`` a multiply, everything else an 'other'."""

    __slots__ = ()

    def _add(self, *_: Any) -> Number:
        _tallies[-1].adds += 1
        return self

    def _mul(self, *_: Any) -> Number:
        _tallies[-1].muls += 1
        return self

    def _other(self, *_: Any) -> Number:
        _tallies[-1].others += 1
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = _add
    __mul__ = __rmul__ = _mul
    __truediv__ = __rtruediv__ = __pow__ = __neg__ = __abs__ = _other
    exp = log = sqrt = tanh = erf = maximum = minimum = compare = select = _other


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    """An array of counting numbers, to use like any numpy array."""
    array = np.empty(shape, dtype=object)
    array.fill(Number())
    return array


def cost_of(target: Any, *args: Any, **kwargs: Any) -> Cost:
    """The cost of ``target(*args, **kwargs)`` by fxflops: a module, a function, or the name of a Tensor method.

    The op runs on the given tensors, and its formula is applied to their specs.
    """
    import torch
    from torch import nn

    from fxflops.ops import apply
    from fxflops.ops._registry import BASE

    function = getattr(torch.Tensor, target) if isinstance(target, str) else target
    if isinstance(function, nn.Module):
        from fxflops.trace.leaves import settings_of

        entry, settings, key = BASE.find_class(type(function))[1], settings_of(function), type(function)
    else:
        entry, settings, key = BASE.find(function), {}, function
    assert entry is not None, f"no formula for {function}"
    specs, kwspecs = spec_of(args), spec_of(kwargs)
    out = spec_of(function(*args, **kwargs))
    module = function if isinstance(function, nn.Module) else None
    return whole(apply(entry, Operation(entry.op, key, specs, kwspecs, out, settings), module))


def cost_by_name(name: str, *specs: Any, out: Any) -> Cost:
    """The cost of the op of this qualified name on specs, for kernels that cannot run here."""
    from fxflops.ops import BASE, apply

    entry = BASE.get(name)
    assert entry is not None, f"no formula for {name}"
    return whole(apply(entry, Operation(entry.op, name, specs, {}, out)))


def whole(cost: Cost) -> Cost:
    """Return the cost after checking that its numbers are integers: floats would be rounded."""
    assert all(type(number) is int for number in cost), cost
    return cost

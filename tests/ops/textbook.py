"""Check a textbook formula against torch twice: it computes the operator's values, and on counting numbers it costs the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.oracle import Number, Tally, cost_of, numbers, tallying


def one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function count as 1 operation that is neither an add nor a multiply: a compare, an exponential, a root."""
    return lambda x, *rest: np.exp(x) if is_counting(x) else function(x, *rest)


def is_counting(x: Any) -> bool:
    array = np.asarray(x)
    return array.dtype == object and isinstance(array.flat[0], Number)


above, below, equals = one(np.greater), one(np.less), one(np.equal)
absolute, sign, rounded = one(np.abs), one(np.sign), one(np.round)
sigmoid = one(lambda x: 1 / (1 + np.exp(-x)))
softplus = one(np.logaddexp)
erf = one(lambda x: torch.erf(torch.from_numpy(x)).numpy())
rsqrt = one(lambda x: x**-0.5)


def pick(condition: Any, chosen: Any, otherwise: Any) -> Any:
    """The value of one branch, given as a value or as a function. Counting numbers always take the first, which computes more."""
    if is_counting(condition):
        return _value(chosen)
    return np.where(condition, _value(chosen), _value(otherwise))


def between(x: Any, low: float, high: float, inside: Any, outside: Any) -> Any:
    """The value of one branch, selected by two bounds: 2 compares."""
    return pick(above(x, low), lambda: pick(below(x, high), inside, outside), outside)


def _value(branch: Any) -> Any:
    return branch() if callable(branch) else branch


class Sums:
    """An array to add to. The first value added to an element needs no add, unless the array ``starts`` at zero."""

    def __init__(self, *shape: int, starts: bool = False) -> None:
        self.array = np.full(shape, 0.0 if starts else None, dtype=object)

    def add(self, place: Any, value: Any) -> None:
        present = self.array[place]
        if isinstance(present, np.ndarray):
            value = np.broadcast_to(value, present.shape)
            for at in np.ndindex(present.shape):
                present[at] = value[at] if present[at] is None else present[at] + value[at]
        else:
            self.array[place] = value if present is None else present + value

    def result(self) -> Any:
        """Return the sums, with zero where nothing was added."""
        self.array[self.array == None] = 0.0  # noqa: E711
        return self.array


def tally_of(textbook: Callable[..., Any], *args: Any, **kwargs: Any) -> Tally:
    """Return the tally of the formula, run on counting numbers in place of the floating-point tensors."""

    def counting(tensor: torch.Tensor) -> Any:
        return numbers(*tensor.shape) if tensor.is_floating_point() else tensor.numpy()

    args, kwargs = tree_map_only(torch.Tensor, counting, (args, kwargs))
    with tallying() as tally:
        textbook(*args, **kwargs)
    return tally


def computes(textbook: Callable[..., Any], expected: Any, *args: Any, **kwargs: Any) -> None:
    """Check that the formula gives these tensors; None stands for a gradient that was not asked for."""
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().numpy(), (args, kwargs))
    found = tree_leaves(textbook(*args, **kwargs))
    for got, want in zip(found, tree_leaves(expected), strict=True):
        if got is not None and want is not None:
            np.testing.assert_allclose(np.asarray(got, dtype=float), want.detach().numpy(), rtol=1e-4, atol=1e-5)


def agrees(overload: Any, textbook: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Check both values and cost. The operator must run here, and the formula must take its arguments unchanged."""
    computes(textbook, overload(*args, **kwargs), *args, **kwargs)
    assert tally_of(textbook, *args, **kwargs) == cost_of(overload, *args, **kwargs)

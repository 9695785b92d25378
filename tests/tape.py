"""An oracle that differentiates: textbook operations on shapes, which tally their own cost and the cost of their derivatives.

>>> tape = Tape()
>>> x, w = tape.leaf(2, 3), tape.leaf(4, 3)
>>> y = tape.contract("bi,oi->bo", x, w)
>>> tape.forward.muls, tape.forward.adds
(24, 16)
>>> tape.backward(y).muls
48
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from fxflops.records import Cost

Rule = Callable[[], None]


@dataclass
class Variable:
    """A tensor, by shape. ``parts`` counts the contributions to its gradient so far."""

    shape: tuple[int, ...]
    needs: bool = True
    parts: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass
class Tape:
    """The operations so far, and their derivative rules, which run last to first.

    A product counts as a multiply-accumulate if it is summed over letters or added to something, as in contractions. The gradient of
    a broadcast operand is also a sum of products, but counts as multiplies and adds only.
    """

    forward: Cost = field(default_factory=Cost)
    gradients: Cost = field(default_factory=Cost)
    rules: list[Rule] = field(default_factory=list)

    def leaf(self, *shape: int, needs: bool = True) -> Variable:
        return Variable(shape, needs)

    def backward(self, *outputs: Variable) -> Cost:
        """The cost of all gradients, starting from gradients of these outputs."""
        for output in outputs:
            output.parts = 1
        for rule in reversed(self.rules):
            rule()
        return self.gradients

    def _give(self, to: Variable, cost: Cost) -> None:
        """Receive a contribution to a gradient and add it to the earlier ones."""
        if to.needs:
            self.gradients = self.gradients.plus(cost)
            if to.parts:
                self.gradients = self.gradients.plus(Cost(adds=to.size))
            to.parts += 1

    def _made(self, shape: tuple[int, ...], cost: Cost, *given: Variable) -> Variable:
        self.forward = self.forward.plus(cost)
        return Variable(shape, any(each.needs for each in given))

    def _then(self, out: Variable, rule: Rule) -> Variable:
        self.rules.append(lambda: rule() if out.parts else None)
        return out

    def multiply(self, a: Variable, b: Variable) -> Variable:
        """a * b, broadcast."""
        shape = _broadcast(a.shape, b.shape)
        out = self._made(shape, Cost(muls=math.prod(shape)), a, b)

        def rule() -> None:
            for each in (a, b):
                self._give(each, Cost(muls=out.size, adds=out.size - each.size))

        return self._then(out, rule)

    def scale(self, a: Variable) -> Variable:
        """a times a constant."""
        out = self._made(a.shape, Cost(muls=a.size), a)
        return self._then(out, lambda: self._give(a, Cost(muls=a.size)))

    def add(self, a: Variable, b: Variable) -> Variable:
        """a + b, broadcast."""
        shape = _broadcast(a.shape, b.shape)
        out = self._made(shape, Cost(adds=math.prod(shape)), a, b)

        def rule() -> None:
            for each in (a, b):
                self._give(each, Cost(adds=out.size - each.size))

        return self._then(out, rule)

    def divide(self, a: Variable, b: Variable) -> Variable:
        """a / b, broadcast: with q = a / b, grad / b and -sum of grad * q / b."""
        out = self._made(a.shape, Cost(others=a.size), a, b)

        def rule() -> None:
            self._give(a, Cost(others=a.size))
            self._give(b, Cost(muls=a.size, adds=a.size - b.size, others=2 * b.size))

        return self._then(out, rule)

    def pointwise(self, a: Variable, each: Cost, derivative: Cost) -> Variable:
        """f(a): ``each`` is the cost per element, ``derivative`` the gradient's cost per element."""
        out = self._made(a.shape, _times(a.size, each), a)
        return self._then(out, lambda: self._give(a, _times(a.size, derivative)))

    def pointwise_rows(self, a: Variable, cost: Cost, derivative: Cost) -> Variable:
        """f of whole rows: ``cost`` and ``derivative`` are for all rows together."""
        out = self._made(a.shape, cost, a)
        return self._then(out, lambda: self._give(a, derivative))

    def exp(self, a: Variable) -> Variable:
        return self.pointwise(a, Cost(others=1), Cost(muls=1))

    def silu(self, a: Variable) -> Variable:
        """Derivative: grad * s * (1 + x * (1 - s)), where s counts as 1 operation."""
        return self.pointwise(a, Cost(others=1), Cost(muls=3, adds=2, others=1))

    def softplus(self, a: Variable) -> Variable:
        """Derivative: grad * z / (z + 1) with z = exp(x), up to a bound."""
        return self.pointwise(a, Cost(others=1), Cost(muls=1, adds=1, others=3))

    def contract(self, letters: str, a: Variable, b: Variable) -> Variable:
        """An einsum of two operands."""
        given, _, result = letters.partition("->")
        of_a, _, of_b = given.partition(",")
        sizes = dict(zip(of_a + of_b, a.shape + b.shape, strict=True))
        products = math.prod(sizes.values())

        def cost(outputs: int) -> Cost:
            return Cost(macs=products, muls=products, adds=products - outputs)

        out = self._made(tuple(sizes[each] for each in result), cost(math.prod(sizes[each] for each in result)), a, b)

        def rule() -> None:
            for each in (a, b):
                self._give(each, cost(each.size))

        return self._then(out, rule)

    def accumulate(self, c: Variable, letters: str, a: Variable, b: Variable) -> Variable:
        """c + an outer product of two operands, counted as multiply-accumulates."""
        product = self.contract(letters, a, b)
        return self.add(product, c)

    def view(self, a: Variable, *shape: int) -> Variable:
        """The same elements in another shape; the gradient passes through."""
        out = self._made(shape, Cost(), a)
        return self._then(out, lambda: self._give(a, Cost()))

    def total(self, a: Variable, *shape: int) -> Variable:
        """The sum over the dimensions whose size in the new shape is 1; the gradient is expanded."""
        out = self._made(shape, Cost(adds=a.size - math.prod(shape)), a)
        return self._then(out, lambda: self._give(a, Cost()))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    assert len(a) == len(b), (a, b)
    return tuple(map(max, a, b))


def _times(n: int, cost: Cost) -> Cost:
    return Cost(*(n * part for part in cost))

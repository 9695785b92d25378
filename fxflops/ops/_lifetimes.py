"""Track a call's intermediate tensors step by step, to find those alive at its peak."""

from __future__ import annotations

from ..records import Spec
from ._rules import Specs


class Lifetimes:
    """The tensors alive within a call, now and at its peak."""

    def __init__(self) -> None:
        self._alive: list[Spec] = []
        self._bytes = self._most = 0
        self._peak: Specs = ()

    def make(self, spec: Spec) -> Spec:
        """Mark a tensor as alive, and return it."""
        self._alive.append(spec)
        self._bytes += spec.nbytes
        if self._bytes > self._most:
            self._most, self._peak = self._bytes, tuple(self._alive)
        return spec

    def free(self, *specs: Spec) -> None:
        """Free these tensors. Pass the same objects as to ``make``, because other tensors may have equal specs."""
        for spec in specs:
            self._alive = [other for other in self._alive if other is not spec]
            self._bytes -= spec.nbytes

    def alive_at_peak(self, out: Spec) -> Specs:
        """Return the tensors alive at the peak; () if they take no more memory than the result."""
        return self._peak if self._most > out.nbytes else ()

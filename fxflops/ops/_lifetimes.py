"""The tensors that a call makes on its way, step by step: which of them are alive at its peak."""

from __future__ import annotations

from ..records import Spec
from ._rules import Passing


class Lifetimes:
    """Follows the tensors alive within a call."""

    def __init__(self) -> None:
        self._alive: list[Spec] = []
        self._bytes = self._most = 0
        self._peak: Passing = ()

    def make(self, spec: Spec) -> Spec:
        """Let a tensor live from now on; return it."""
        self._alive.append(spec)
        self._bytes += spec.nbytes
        if self._bytes > self._most:
            self._most, self._peak = self._bytes, tuple(self._alive)
        return spec

    def free(self, *specs: Spec) -> None:
        """Free these tensors, which may be equal to others but are the very ones that were made."""
        for spec in specs:
            self._alive = [other for other in self._alive if other is not spec]
            self._bytes -= spec.nbytes

    def passing(self, out: Spec) -> Passing:
        """The tensors alive at the peak, if they are more than the result."""
        return self._peak if self._most > out.nbytes else ()

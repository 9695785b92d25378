"""The backend "aten" of ptflops's API: run the model on the real tensors, and count by operator and top-level module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TextIO

from torch import nn

from ..conventions.ptflops_aten import OPERATORS
from ..model.locks import locked_in_mode
from ..model.modules import ByIdentity, all_modules, named_children
from ..model.snapshot import Snapshot
from ..records.tensors import spec_of
from ..run.uncompiled import uncompiled
from ..torch_internals import OpOverload
from ..trace.hooks import Hooks
from ..trace.modes import OperatorMode

Sums = dict[str, Counter[Any]]
"""For each top-level module ("Global" is the whole model), the counts by operator."""


class Dispatched:
    """Count dispatched operators. If the user has a hook for an operator, the hook counts the operator. All other operators are counted by
    the convention's formulas.

    A hook is called with two tuples: the inputs and the outputs of a call.
    """

    def __init__(
        self, ignored: Collection[Any], hooks: Mapping[Any, Callable[[Any, Any], int]], file: TextIO, verbose: bool
    ) -> None:
        self._sums: Sums = {}
        self._running = ["Global"]
        self._ignored = ignored
        self._hooks = hooks
        self._file = file
        self._verbose = verbose

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Run the model in eval mode, restore the model's state, and return the sum of all counts."""
        names, hooks = ByIdentity((child, name) for name, child in named_children(model)), Hooks()
        with locked_in_mode(all_modules(model), "eval"):
            snapshot = Snapshot(all_modules(model), (args, kwargs))
            hooks.attach(names, lambda module, *_: self._running.append(names[module]), lambda *_: self._leave())
            try:
                with uncompiled(), OperatorMode(self._operator):
                    model(*args, **kwargs)
            finally:
                hooks.detach()
                snapshot.rewind()
        return self._total()

    def text(self, shown: Callable[[int], str]) -> str:
        """Return the counts by top-level module and operator, as text. The function ``shown`` formats a count."""
        lines = [f"Total:{shown(self._total())}"]
        for name, sums in self._sums.items():
            lines += [f"Module:  {name}", *(f"{operator}: {shown(flops)}" for operator, flops in sums.items()), ""]
        return "\n".join(lines)

    def _total(self) -> int:
        return sum(self._sums.setdefault("Global", Counter()).values())

    def _leave(self) -> None:
        self._running.pop()

    def _operator(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = operator(*args, **kwargs)
        packet = operator.overloadpacket if isinstance(operator, OpOverload) else operator
        if packet in self._ignored:
            print(f"Warning: {packet} operation is ignored", file=self._file)
        elif packet in self._hooks or packet in OPERATORS:
            hook, outs = self._hooks.get(packet), out if isinstance(out, tuple) else (out,)
            flops = hook(args, outs) if hook else OPERATORS[packet](*spec_of(args), out=spec_of(out))
            for name in self._running:
                self._sums.setdefault(name, Counter())[packet] += flops
        elif self._verbose:
            print(f"Warning: {packet} operation is treated as a zero-op", file=self._file)
        return out

"""Record the charges of each module and function under flops-profiler's conventions, while the user runs the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from ..conventions._replaced import FORWARDS, REPLACED
from ..counting.module_charges import NOT_COUNTED
from ..model.modules import ByIdentity, children_of
from ..records import Counted
from ._deepspeed_recording import Recording, Usage


class FunctionClock(TorchFunctionMode):
    """A mode that times calls of the functions that flops-profiler replaces."""

    def __init__(self, recording: FunctionRecording) -> None:
        self._recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        if not name:
            return func(*args, **(kwargs or {}))
        start = self._recording.now()
        out = func(*args, **(kwargs or {}))
        self._recording.ran(name, self._recording.now() - start)
        return out


class FunctionRecording(Recording):
    """A recording that also keeps the charges of each function. A module with two parents is counted once under each parent."""

    convention = "flops_profiler"
    context = FunctionClock

    def reset(self) -> None:
        """Discard all recorded data."""
        super().reset()
        self._of_functions = ByIdentity[dict[str, Usage]]((module, {}) for module in self.modules)

    def discard_own_functions(self) -> None:
        """Discard the charges of functions that the model's own forward calls directly; keep the charges of its submodules."""
        self.own[self.model] = Usage(duration=self.own[self.model].duration)
        self._of_functions[self.model] = {}

    def total(self, module: nn.Module) -> Usage:
        """Return the charges of a module and all modules inside it, and the module's time.

        If the module itself is not called, the time is the sum over its children.
        """
        own = self.own[module]
        total = Usage(own.flops, own.macs)
        for child in children_of(module):
            total.add(self.total(child))
        total.duration = own.duration or sum(self.own[child].duration for child in children_of(module))
        return total

    def functions(self, module: nn.Module) -> dict[str, Usage]:
        """Return the charges and times by function. Functions that the module calls come before functions that its children call."""
        functions = {name: replace(usage) for name, usage in self._of_functions[module].items()}
        for child in children_of(module):
            for name, usage in self.functions(child).items():
                functions.setdefault(name, Usage()).add(usage)
        return functions

    def ran(self, name: str, seconds: float) -> None:
        """Add the time of one call of the function ``name``, which the original replaces."""
        usage = self._of_functions[self._running[-1][0]].get(name)
        if usage is not None:
            usage.duration += seconds

    def _usages(self, owner: nn.Module, counted: Counted) -> list[Usage]:
        name = name_of(counted.call.target) if counted.rule != NOT_COUNTED else ""
        return [self.own[owner], *([self._of_functions[owner].setdefault(name, Usage())] if name else [])]


def name_of(target: Any) -> str:
    """Return the name of the function to charge when this function or a module of this class is called; "" if nothing is charged."""
    if isinstance(target, type):
        target = next((FORWARDS[cls] for cls in target.__mro__ if cls in FORWARDS), None)
    return target.__name__.removesuffix("_with_indices") if target in REPLACED else ""

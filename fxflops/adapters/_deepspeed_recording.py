"""Record the charges and the time of each module under DeepSpeed's conventions, while the user runs the model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from ..api import count
from ..conventions._rows import POINTWISE
from ..errors import RunError
from ..model.locks import threads_counting
from ..model.modules import ByIdentity, all_modules, children_of, parameters_of, submodule
from ..records import Counted
from ..report.report import Report
from ..trace.hooks import Hooks
from .pytorch_profiler import clock_of


@dataclass
class Usage:
    """The FLOPs and MACs that a module or function is charged for, and the seconds that its calls take."""

    flops: int = 0
    macs: int = 0
    duration: float = 0.0

    def add(self, other: Usage) -> None:
        self.flops += other.flops
        self.macs += other.macs
        self.duration += other.duration


class Recording:
    """Hooks on a model's modules that record the charge and the time of every call while the user runs the model.

    Each outermost module call is counted on the meta device before the call runs, so that only the model is timed. When
    checkpoint recomputes modules, these calls are outermost calls too. A module is charged when its call ends. The module is not charged if
    the call raises an exception, as checkpoint does to stop a call early once it has recomputed the needed tensors. Calls in modules of an
    ``ignored`` class are charged to the modules around them.

    ``report`` is the report of the model's last call, or of a submodule's call if the model itself is not called. ``missing`` are
    the names of the uncounted ops in all calls. ``unseen`` are the uncounted ops that the original does not see.
    """

    convention = "deepspeed"
    context: ClassVar[Any] = nullcontext  # the context manager around an outermost call; called with the recording

    def __init__(self, model: nn.Module, ignored: Collection[type] = ()) -> None:
        self.model = model
        self.modules = all_modules(model)
        self._ignored = tuple(ignored)
        self._hooks = Hooks()
        self._running: list[tuple[nn.Module, float, BaseException | None]] = []
        self._open = ExitStack()
        self._is_counting = False
        self._failed: RunError | None = None
        self.now = clock_of(parameters_of(model))
        self.reset()
        self._hooks.attach(self.modules, self._enter, self._leave)

    def reset(self) -> None:
        """Discard all recorded data."""
        self.own = ByIdentity((module, Usage()) for module in self.modules)
        self._due = ByIdentity[list[tuple[Usage, str, int]]]()
        self.report: Report | None = None
        self.missing: set[str] = set()
        self.unseen: set[str] = set()

    def stop(self) -> None:
        """Stop recording. If a module call is still running, it is timed to its end, as long as PyTorch still calls the hook of this call."""
        self._hooks.detach()
        self._open.close()

    def is_counted(self, module: nn.Module) -> bool:
        """Return whether a module runs only because this recording, or other code, is counting it."""
        threads = threads_counting(module)
        if not self._is_counting and threads - {threading.get_ident()}:  # this thread may belong to that count
            self.missing.add("calls made while another thread counts the model")
        return self._is_counting or bool(threads)

    def total(self, module: nn.Module) -> Usage:
        """Return the sum of the charges of a module and all modules inside it, and the module's time. Each module is added once.

        If the module itself is not called, the time is the sum over its children.
        """
        own = [self.own[inner] for inner in all_modules(module)]
        return Usage(sum(each.flops for each in own), sum(each.macs for each in own), self._duration(module))

    def _duration(self, module: nn.Module) -> float:
        return self.own[module].duration or sum(map(self._duration, children_of(module)))

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.is_counted(module):
            return
        if not self._running:
            self._failed, self._due = None, ByIdentity()
            self._is_counting = True
            try:
                report = count(module, args, kwargs, mode="as_is", convention=self.convention)
                self.report = report if module is self.model else self.report or report
                self.missing.update(missing.op for missing in report.missing)
                self.unseen.update(each.call.op for each in report.counted if each.missing and each.call.origin)
                self._owe(module, report, "flops")
                self._owe(module, report.recount(f"{self.convention}_macs"), "macs")
            except RunError as error:  # The model itself should raise the same error when it runs: see _leave.
                self._failed = error
            finally:
                self._is_counting = False
            self._open.enter_context(self.context(self))
        self._running.append((module, self.now(), sys.exc_info()[1]))

    def _leave(self, module: nn.Module, *given: Any) -> None:
        # If another hook of the same call has called stop(), PyTorch does not pass kwargs to this hook.
        if self.is_counted(module) or not self._running:
            return
        _, start, handled = self._running.pop()
        raises = sys.exc_info()[1] is not handled
        if not raises:
            self.own[module].duration += 0.0 if type(module) in self._ignored else self.now() - start
            for each in [module] if self._running else [*self._due]:
                self._charge(each)
        if not self._running:
            self._open.close()
            # The count failed, but the run did not raise an error: raise the error of the count.
            if self._failed is not None and not raises:
                raise self._failed

    def _owe(self, outermost: nn.Module, report: Report, what: str) -> None:
        """Store the counts of a report as "flops" or "macs". Each count is charged when the module that it belongs to returns."""
        called = {scope.path for scope in report.scopes}
        for counted in report.counted:
            owner = self._owner(outermost, counted.call.path, called)
            if owner is not None:
                due = self._due.setdefault(owner, [])
                due += [(usage, what, counted.flops) for usage in self._usages(owner, counted)]

    def _charge(self, module: nn.Module) -> None:
        """Add the pending charges of a module to the module's sums."""
        for usage, what, due in self._due.pop(module, ()):
            setattr(usage, what, getattr(usage, what) + due)

    def _usages(self, owner: nn.Module, counted: Counted) -> list[Usage]:
        """Return the sums that include the charge of a call in this module."""
        return [self.own[owner]]

    def _owner(self, outermost: nn.Module, path: str, called: Collection[str]) -> nn.Module | None:
        """Return the module at this path if it is called and not ignored, or else its nearest ancestor that is called and not ignored; None
        if there is no such module."""
        module = submodule(outermost, path)
        while type(module) in self._ignored or path not in called:
            if not path or type(module) in POINTWISE:  # the original charges RNNs in a hook of the module
                return None
            path = path.rpartition(".")[0]
            module = submodule(outermost, path)
        return module

"""Profile a script that makes its own models. fxflops finds the models when the script first calls one of them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import nn

from .model.callables import modules_of_frame
from .model.modules import all_modules
from .profiling import profile
from .report.report import Report
from .run.block import OPERATIONS
from .torch_internals import original_of
from .trace.modes import is_on_top


class ScriptProfile:
    """Profile the ``with`` block as :class:`fxflops.profile` does, with the models that its code makes.

    The models are found at the first call of a module with parameters. The profiled models are the models that are reachable from the
    caller's variables. The models are profiled from this call on, so ``report`` covers neither imports nor model construction. If no such
    module is called, it covers everything. ``lines`` and ``detail`` are as for ``profile``.
    """

    def __init__(self, lines: bool = False, detail: str = OPERATIONS) -> None:
        self._lines, self._detail = lines, detail
        self._profile = profile(lines=lines, detail=detail)
        self._thread = os.getpid(), threading.get_ident()
        self._call: Callable[..., Any] = nn.Module.__call__
        self._first_call: Callable[..., Any] | None = None
        self._has_models = False

    @property
    def report(self) -> Report:
        """The Report of the block, after its end. Raises FxflopsError before."""
        return self._profile.report

    def __enter__(self) -> ScriptProfile:
        self._profile.__enter__()
        call = self._call

        def first_call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            self._begin_with(module, sys._getframe(1))
            return call(module, *args, **kwargs)

        self._first_call = first_call
        nn.Module.__call__ = first_call  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: Any) -> None:
        self._restore_call()
        self._profile.__exit__(*error)

    def _restore_call(self) -> None:
        """Remove our function for the first call, unless the script has meanwhile replaced ``nn.Module.__call__`` itself."""
        if nn.Module.__call__ is self._first_call:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]

    def _begin_with(self, module: nn.Module, caller: FrameType) -> None:
        """Start profiling the caller's models, if ``module`` has parameters; otherwise wait for a later call.

        Also wait while a dispatch mode of the script is on (e.g. torch's FlopCounterMode), because fxflops's own mode can neither begin nor
        end inside it. Ignore calls of other threads and worker processes.
        """
        is_main = self._thread == (os.getpid(), threading.get_ident())
        if self._has_models or not is_main or next(module.parameters(), None) is None or not is_on_top():
            return
        self._has_models = True
        self._restore_call()
        self._profile.__exit__(None, None, None)
        self._profile = profile(_models(module, caller), lines=self._lines, detail=self._detail)
        self._profile.__enter__()


def _models(module: nn.Module, caller: FrameType) -> nn.Module | dict[str, nn.Module]:
    """Return ``module`` and the models that are reachable from the caller's variables, as a dict by name. If there is only one model,
    return this model."""
    original = original_of(module)  # for a compiled model
    models = {
        name: module if model is original else model
        for name, model in modules_of_frame(caller).items()
        if next(model.parameters(), None) is not None
    }
    if not any(part in (module, original) for model in models.values() for part in all_modules(model)):
        models = {type(original).__name__: module, **models}
    return next(iter(models.values())) if len(models) == 1 else models

"""What each module of a model is charged under DeepSpeed's conventions, and how long it takes, as the model is run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from ..api import count
from ..charges import NOT_COUNTED
from ..conventions import deepspeed
from ..conventions._rows import POINTWISE
from ..report import Report
from ..trace.leaves import Hooks
from .pytorch_profiler import clock_of


@dataclass
class Usage:
    """What was charged, and seconds."""

    flops: int = 0
    macs: int = 0
    duration: float = 0.0

    def add(self, other: Usage) -> None:
        self.flops += other.flops
        self.macs += other.macs
        self.duration += other.duration


@dataclass
class Own:
    """What is done in a module itself: in all, and by function; the duration is that of the module's calls."""

    usage: Usage = field(default_factory=Usage)
    functions: dict[str, Usage] = field(default_factory=dict)


class Recording:
    """Hooks on a model's modules while it is run by the user: what every call is charged and how long it takes.

    Each outermost call of a module is counted before it runs, on the meta device, so that the clock sees the model
    alone. What modules of an ``ignored`` class call belongs to the modules around them.
    """

    def __init__(self, model: nn.Module, ignored: Collection[type] = ()) -> None:
        self.model = model
        self._ignored = tuple(ignored)
        self._paths = {module: path for path, module in model.named_modules()}
        self._hooks = Hooks()
        self._running: list[tuple[nn.Module, float]] = []
        self._counting = False
        self._clock = FunctionClock(self)
        self.now = clock_of(model.parameters())
        self.reset()
        self._hooks.attach(self._paths, self._enter, self._leave)

    def reset(self) -> None:
        """Forget what ran before."""
        self.own = {module: Own() for module in self._paths}

    def lose_outermost(self) -> None:
        """Forget what the model's own forward was charged, but not what the modules in it were."""
        self.own[self.model] = Own(Usage(duration=self.own[self.model].usage.duration))

    def stop(self) -> None:
        self._hooks.detach()

    # Sums over a module and its children; a module that stands under two others is summed twice, as DeepSpeed does

    def total(self, module: nn.Module) -> Usage:
        """What a module and all in it are charged; its duration, or its children's where it is not called itself."""
        own = self.own[module].usage
        total = Usage(own.flops, own.macs)
        for child in module.children():
            total.add(self.total(child))
        total.duration = own.duration or sum(self.own[child].usage.duration for child in module.children())
        return total

    def functions(self, module: nn.Module) -> dict[str, Usage]:
        """The same by function, a module's own before its children's."""
        functions = {name: Usage(u.flops, u.macs, u.duration) for name, u in self.own[module].functions.items()}
        for child in module.children():
            for name, usage in self.functions(child).items():
                functions.setdefault(name, Usage()).add(usage)
        return functions

    # What the hooks and the clock see

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._counting:
            return
        if not self._running:
            self._counting = True
            try:
                report = count(module, args, kwargs, mode="as_is", convention="deepspeed")
                self._charge(module, report, "flops")
                self._charge(module, report.recount("deepspeed_macs"), "macs")
            finally:
                self._counting = False
            self._clock.__enter__()  # type: ignore[no-untyped-call]
        self._running.append((module, self.now()))

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self._counting or not self._running:
            return
        _, start = self._running.pop()
        if type(module) not in self._ignored:
            self.own[module].usage.duration += self.now() - start
        if not self._running:
            self._clock.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def ran(self, name: str, seconds: float) -> None:
        """A function that is replaced there took so long."""
        usage = self.own[self._running[-1][0]].functions.get(name)
        if usage is not None:
            usage.duration += seconds

    def _charge(self, outermost: nn.Module, report: Report, what: str) -> None:
        called = {scope.path for scope in report.scopes}
        for counted in report.counted:
            owner = self._owner(outermost, counted.call.path, called)
            name = name_of(counted.call.target) if counted.rule != NOT_COUNTED else ""
            if owner is None or (not name and not counted.flops):
                continue
            usages = [self.own[owner].usage, *([self.own[owner].functions.setdefault(name, Usage())] if name else [])]
            for usage in usages:
                setattr(usage, what, getattr(usage, what) + counted.flops)

    def _owner(self, outermost: nn.Module, path: str, called: Collection[str]) -> nn.Module | None:
        """The module of this path in the outermost, or if ignored the next around it that is called; None for none."""
        module = outermost.get_submodule(path)
        while type(module) in self._ignored or path not in called:
            if not path or type(module) in POINTWISE:  # the charge of an RNN is its hook's
                return None
            path = path.rpartition(".")[0]
            module = outermost.get_submodule(path)
        return module


class FunctionClock(TorchFunctionMode):
    """Times the functions that DeepSpeed's profiler replaces."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        if not name:
            return func(*args, **(kwargs or {}))
        start = self._recording.now()
        out = func(*args, **(kwargs or {}))
        self._recording.ran(name, self._recording.now() - start)
        return out


def name_of(target: Any) -> str:
    """The name of the function that is charged where this one, or a module of this class, is called; "" for none."""
    if isinstance(target, type):
        target = next((deepspeed.FORWARDS[cls] for cls in target.__mro__ if cls in deepspeed.FORWARDS), None)
    return target.__name__.removesuffix("_with_indices") if target in deepspeed.REPLACED else ""

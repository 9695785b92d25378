"""While a model is counted, its forward sees the process as it was before the call, and so does the caller afterwards."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules import module as nn_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import fxflops
from fxflops import TorchFLOPsByFX, analyze, count, profile

SEEN: list[dict[str, Any]] = []
X = torch.randn(2, 4)
PATCHED = (
    "__call__",
    "__getattr__",
    "__setattr__",
    "__delattr__",
    "__getattribute__",
    "_call_impl",
    "register_forward_hook",
)
CLASSES = (nn.Module, nn.Linear, nn.Dropout, torch.Tensor, nn.Parameter)


def process() -> dict[str, Any]:
    """Everything that fxflops might switch, replace or insert for the whole process, as lists where order matters."""
    return {
        "collector": (gc.isenabled(), gc.get_threshold(), [*gc.callbacks]),
        "finders": [*sys.meta_path, *sys.path_hooks],
        "hooks": (sys.excepthook, threading.excepthook, sys.displayhook, sys.unraisablehook, sys.getswitchinterval()),
        "tracers": (sys.getprofile(), sys.gettrace(), threading.getprofile(), threading.gettrace()),
        "recursion": sys.getrecursionlimit(),
        "streams": (sys.stdout, sys.stderr),
        "warnings": ([*warnings.filters], warnings.showwarning, warnings.formatwarning),
        "signals": signal.getsignal(signal.SIGINT),
        "classes": [dict(vars(cls)) for cls in CLASSES],
        "methods": [getattr(nn.Module, name) for name in PATCHED],
        "functions": [dict(vars(module)) for module in (torch, F, torch._C._nn, torch._VF)],
        "global hooks": [dict(held) for name, held in vars(nn_module).items() if name.startswith("_global_") and isinstance(held, dict)],
        "dtype": (torch.get_default_dtype(), torch.get_default_device()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.is_warn_always_enabled()),
        "autograd": (torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "cached casts": torch.is_autocast_cache_enabled(),
        "attention": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
        ),
        "fast paths": (torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled),
        "precision": (torch.get_float32_matmul_precision(), torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark),
    }  # fmt: skip


def user_modes() -> tuple[list[Any], list[Any]]:
    """The active modes except fxflops's own, which only affect one thread."""
    stacks = _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()
    kept = [[mode for mode in stack if not type(mode).__module__.startswith("fxflops")] for stack in stacks]
    return kept[0], kept[1]


class Looking(nn.Module):
    """Its forward looks at the process, and writes an attribute, as layers in many libraries do."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer_idx = 3  # layers of many libraries know their position by this name
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.1)

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer_idx

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, fx.Proxy):  # torch.fx replaces nn.Module methods while it traces
            SEEN.append(
                {**process(), "class": dict(vars(type(self))), "modes": user_modes(), "grad": torch.is_grad_enabled()}
            )
        self.steps = self.steps + 1
        return self.drop(self.helper(self.linear(x))).relu()


def profiled(model: nn.Module) -> None:
    with profile(model):
        model(X).sum().backward()


def optimized(model: nn.Module) -> None:
    count(model, X, backward=True, optimizer=torch.optim.AdamW)


WAYS: dict[str, tuple[Callable[[nn.Module], Any], bool]] = {
    "count": (lambda model: count(model, X), False),
    "count exactly": (lambda model: count(model, X, attention="exact", mode="train"), False),
    "count backward": (lambda model: count(model, X, backward=True), True),
    "count optimizer": (optimized, True),
    "analyze": (lambda model: analyze(model, X, repeats=2, progress=False), False),
    "analyze recorded": (lambda model: analyze(model, X, trace="record", repeats=2, progress=False), False),
    "analyze backward": (lambda model: analyze(model, X, backward=True, repeats=2, progress=False), True),
    "profile": (profiled, True),
    "propagate": (lambda model: TorchFLOPsByFX(model).propagate(X), False),
}
"""Each with whether gradients are enabled in the forward."""


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Forbid gc.freeze itself: the number of frozen objects takes long to count, and falls by itself.
    monkeypatch.setattr(gc, "freeze", pytest.fail)
    SEEN.clear()
    yield
    SEEN.clear()


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_sees_the_process_as_it_was(way: str, device: str) -> None:
    run, grad = WAYS[way]
    model = Looking().to(device)
    run(model)  # fills import and class caches
    SEEN.clear()
    before = {**process(), "class": dict(vars(Looking)), "modes": user_modes(), "grad": torch.is_grad_enabled()}
    run(model)
    after = {**process(), "class": dict(vars(Looking)), "modes": user_modes(), "grad": torch.is_grad_enabled()}
    assert SEEN
    for name, value in before.items():
        assert after[name] == value, name
        for seen in SEEN:
            assert seen[name] == (value if name != "grad" else grad), name


@pytest.mark.parametrize("way", WAYS)
def test_where_the_user_has_switched_it(way: str) -> None:
    """The user's own switches must also hold in the forward: no garbage collector, a finder, a profiler, another dtype."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> None:
            return None

    def profiler(frame: Any, event: str, value: Any) -> None:
        return None

    def hook(module: nn.Module, args: Any) -> None:
        return None

    run, _ = WAYS[way]
    model = Looking()
    gc.disable()
    sys.meta_path.insert(0, Finder)
    sys.setprofile(profiler)
    handle = nn_module.register_module_forward_pre_hook(hook)
    try:
        with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            run(model)
            SEEN.clear()
            before = process()
            run(model)
            after = process()
    finally:
        handle.remove()
        sys.setprofile(None)
        sys.meta_path.remove(Finder)
        gc.enable()
    assert SEEN
    for name, value in before.items():
        assert after[name] == value, name
        for seen in SEEN:
            assert seen[name] == value, name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_after_a_forward_that_raised(way: str, error: type[BaseException]) -> None:
    class Raising(Looking):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps = self.steps + 1
            x = self.linear(x)
            raise error("no")

    run, _ = WAYS[way]
    model = Raising().train()
    before = {**process(), "class": dict(vars(Raising)), "modes": user_modes(), "grad": torch.is_grad_enabled()}
    with pytest.raises((error, fxflops.RunError)):
        run(model)
    after = {**process(), "class": dict(vars(Raising)), "modes": user_modes(), "grad": torch.is_grad_enabled()}
    for name, value in before.items():
        assert after[name] == value, name
    assert all(module.training for module in model.modules())
    assert "forward" not in vars(model)
    assert "steps" not in vars(model) or way == "profile"
    assert not model.linear._forward_hooks
    assert not model.linear._forward_pre_hooks
    assert "forward" not in vars(model.linear)
    count(nn.Linear(4, 4), X)


@pytest.mark.cuda
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_on_the_device(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "X", X.cuda())
    run, _ = WAYS[way]
    model = Looking().cuda()
    for _ in range(2):  # the first runs fill library caches, and allocate the gradients of the user's own backward
        run(model)
    SEEN.clear()
    gc.collect()
    before = torch.cuda.memory_allocated()
    run(model)
    SEEN.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_gradients_of_inputs_and_buffers_stay(device: str) -> None:
    """Counting a backward drops the gradients it computes, and no others."""
    model, x = Looking().to(device), X.clone().requires_grad_()
    model.register_buffer("offset", torch.zeros(4, device=device, requires_grad=True))
    for tensor in (x, model.offset, model.linear.weight):
        tensor.grad = torch.ones_like(tensor)
    kept = [tensor.grad for tensor in (x, model.offset, model.linear.weight)]
    count(model, x, backward=True)
    analyze(model, x, backward=True, repeats=1, progress=False)
    assert all(tensor.grad is grad for tensor, grad in zip((x, model.offset, model.linear.weight), kept, strict=True))
    assert all(bool((grad == 1).all()) for grad in kept)

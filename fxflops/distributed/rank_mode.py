"""The dispatch mode of a simulated rank: operators on fake tensors, of which those that are called alike are computed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from ..torch_internals import (
    MESH_FILES,
    SHARDING_FILE,
    DisableTorchDispatch,
    DispatchMode,
    OpOverload,
    disable_current_modes,
    done,
    fake_tensors,
)
from ..trace.dtypes import MixedDtypesError
from ..trace.fake_constants import Constants
from ..trace.fake_results import FakeResults
from ..trace.modes import has_own_dispatch
from ..trace.source import frame_in, frames, is_own

TELLS = ("torch.nn.parallel.distributed", "torch.distributed.utils")
"""The modules in which DistributedDataParallel tells other ranks the shapes of parameters, the buckets of gradients, and which are used."""
ENGINE, OPERATORS = "torch.autograd.graph", OpOverload.__module__
"""The modules from which the engine of autograd and operators are called."""

T = TypeVar("T")


class Rank(DispatchMode):
    """A dispatch mode for a rank under a FakeTensorMode.

    ``results`` are those of its operators. A DeviceMesh computes with the numbers it is made of, and DistributedDataParallel
    with those that it tells other ranks. What a functional collective returned is waited for in its own memory, as on a device;
    the fake kernel makes a second tensor. ``constants`` are those of the model that is being built.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = fake_tensors()[0]
        self.results = FakeResults(mode)
        self.constants: Constants | None = None

    def build(self, make: Callable[..., T], *args: Any) -> T:
        """Return what ``make`` does, which may read the values that it computes from constants; the step may not."""
        self.constants = Constants(self.results.mode)
        made = make(*args)
        self.constants = None
        return made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fake, kwargs = self._fake, kwargs or {}
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        if func is torch.ops.prim.device.default and type(args[0]) is fake:
            return args[0].fake_device
        if any(cls is not fake and has_own_dispatch(cls) for cls in types):
            return NotImplemented
        if not types and (frame_in(MESH_FILES) is not None or _tells_numbers(args, kwargs)):
            with disable_current_modes():
                return func(*args, **kwargs)
        if func.namespace == "profiler":
            with DisableTorchDispatch():
                return func(*args, **kwargs)
        if self.constants is None:
            out = self._run(func, args, kwargs)
        else:
            out = self.constants.run(func, args, kwargs, partial(self._run, func, args, kwargs))
        is_collective = func.namespace == "c10d" and type(out) is tuple and type(out[-1]) is torch.ScriptObject
        return (*out[:-1], done(out[0])) if is_collective else out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what an operator returns. A DTensor asks for the shape of its result with tensors of the dtypes that it states,
        and up to torch 2.12 that of a parameter which FSDP has cast is the one from before: what it computes is checked after."""
        try:
            return self.results.run(func, args, kwargs)
        except MixedDtypesError:
            if frame_in(SHARDING_FILE) is None:
                raise
            return func(*args, **kwargs)


def _tells_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether DistributedDataParallel is computing its own values in C++ now. What it makes of another dtype is a bucket, and none of these."""
    called = (str(frame.f_globals.get("__name__")) for frame in frames() if not is_own(frame))
    caller = next(name for name in called if name != OPERATORS)
    if caller == ENGINE:  # in the backward pass, with which parameters were used
        given = args[0] if args and type(args[0]) is list else args
        return any(type(each) is torch.Tensor and each.dtype is torch.int32 for each in given)
    return caller in TELLS and kwargs.get("dtype") in (None, torch.int32, torch.int64)

"""The dispatch mode of a simulated rank: it runs operators on fake tensors, and reuses the results of equal calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from ..records.tensors import has_own_dispatch
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
from ..trace.source import frame_in, frames, is_own

TELLS = ("torch.nn.parallel.distributed", "torch.distributed.utils")
"""Modules in which DistributedDataParallel sends numbers to other ranks: parameter shapes, gradient buckets, which parameters are used."""
ENGINE, OPERATORS = "torch.autograd.graph", OpOverload.__module__
"""The modules that call autograd's engine, and that call operators."""

T = TypeVar("T")


class Rank(DispatchMode):
    """A dispatch mode for a rank under a FakeTensorMode.

    ``results`` caches the results of operators. ``constants`` tracks values that are computed from constants while the model is built;
    None during the step. Two kinds of numbers are computed for real: rank numbers in a DeviceMesh, and the numbers that
    DistributedDataParallel sends to other ranks. When the step waits for a functional collective, the wait returns the same tensor, as on a
    device. torch's fake kernel would make a second tensor.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = fake_tensors()[0]
        self.results = FakeResults(mode)
        self.constants: Constants | None = None

    def build(self, make: Callable[..., T], *args: Any) -> T:
        """Return ``make(*args)``. While ``make`` runs, tensors computed from constants have real values. During the step, no tensors have values."""
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
        """Return the result of an operator. Raise an error for mixed dtypes, except while DTensor infers the shape of a result.

        DTensor infers shapes with tensors of the stated dtypes. Up to torch 2.12, a parameter that FSDP has cast still states its dtype
        from before the cast. The operator itself runs later and is then checked.
        """
        try:
            return self.results.run(func, args, kwargs)
        except MixedDtypesError:
            if frame_in(SHARDING_FILE) is None:
                raise
            return func(*args, **kwargs)


def _tells_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether DistributedDataParallel is computing numbers for other ranks now. The numbers are integers, unlike gradient buckets."""
    called = (str(frame.f_globals.get("__name__")) for frame in frames() if not is_own(frame))
    caller = next(name for name in called if name != OPERATORS)
    if caller == ENGINE:  # the backward pass exchanges which parameters were used
        given = args[0] if args and type(args[0]) is list else args
        return any(type(each) is torch.Tensor and each.dtype is torch.int32 for each in given)
    return caller in TELLS and kwargs.get("dtype") in (None, torch.int32, torch.int64)

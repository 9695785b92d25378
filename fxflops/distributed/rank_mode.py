"""The dispatch mode of a simulated rank: operators on fake tensors, of which those that are called alike are computed once."""

from __future__ import annotations

from typing import Any

import torch

from ..torch_internals import MESH_FILE, DisableTorchDispatch, DispatchMode, disable_current_modes, fake_tensors
from ..trace.fake_results import FakeResults
from ..trace.modes import has_own_dispatch
from ..trace.source import frame_in


class Rank(DispatchMode):
    """A dispatch mode for a rank under a FakeTensorMode.

    ``results`` are those of its operators. A DeviceMesh computes with the numbers it is made of. What a
    collective returned is waited for in its own memory, as on a device; the fake kernel makes a second tensor.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = fake_tensors()[0]
        self.results = FakeResults(mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fake, kwargs = self._fake, kwargs or {}
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        if func is torch.ops.prim.device.default and type(args[0]) is fake:
            return args[0].fake_device
        if any(cls is not fake and has_own_dispatch(cls) for cls in types):
            return NotImplemented
        if not types and frame_in(MESH_FILE) is not None:
            with disable_current_modes():
                return func(*args, **kwargs)
        if func.namespace == "profiler":
            with DisableTorchDispatch():
                return func(*args, **kwargs)
        given = list[Any]()
        key = self.results.key_of(func, args, kwargs, given)
        return func(*args, **kwargs) if key is None else self.results.of(key, func, args, kwargs, given)

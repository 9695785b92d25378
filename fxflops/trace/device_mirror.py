"""Where tensors seem to be while a model is counted on meta: where the model thinks they are.

A model that asks ``x.device`` is told the device of its own tensors, so that it takes the same branches as there; what it
then makes is made on the CPU with its values, or on meta if it is large; what it moves stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..ops._traits import FACTORIES, GIVEN, INTEGERS, SEQUENCES
from ..records import NOTHING
from ..torch_internals import DisableTorchFunction
from .meta_mirror import SMALL

INTEGERS_KEPT = 2**24
"""Integers and booleans are made with values up to this many: masks and positions, but no mask of 100,000 x 100,000."""
MOVES = ("cpu", "cuda")
DTYPES: dict[Any, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""What Python's own types stand for as a dtype."""


class DeviceMirror:
    """Answers and redirects on behalf of tensors that are elsewhere; ``device`` is the model's, ``answers`` are those to the
    properties that tell of it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.answers: dict[Any, Any] = {
            torch.Tensor.device.__get__: device,
            torch.Tensor.is_cuda.__get__: device.type == "cuda",  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: device.type == "cpu",  # type: ignore[attr-defined]
            torch.Tensor.is_meta.__get__: device.type == "meta",  # type: ignore[attr-defined]
        }

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] = NOTHING) -> Any:
        """What a tensor says of its device, where it is asked for that; NotImplemented for anything else."""
        if func in self.answers:
            return self.answers[func]
        if func is torch.Tensor.get_device:
            return self.device.index if self.device.index is not None else -1 if self.device.type == "cpu" else 0
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            with DisableTorchFunction():
                return args[0].type().replace(".meta.", "." if self.device.type == "cpu" else f".{self.device.type}.")
        if getattr(func, "__name__", "") in MOVES and func is getattr(torch.Tensor, func.__name__):
            return args[0]
        return NotImplemented

    def redirect(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the device that a new or moved tensor goes to."""
        name = getattr(func, "__name__", "")
        if name in FACTORIES:
            if name in GIVEN and "device" not in kwargs:
                return args, kwargs
            return args, {**kwargs, "device": _place_of_new(name, args, kwargs)}
        if name == "type" and len(args) > 1 and isinstance(getattr(args[1], "dtype", None), torch.dtype):
            return (args[0], args[1].dtype, *args[2:]), kwargs  # torch.DoubleTensor
        if name == "to" and args and isinstance(args[0], torch.Tensor):
            place = args[0].device
            moved = tuple(place if _is_device(arg) else arg for arg in args[1:])
            return (args[0], *moved), {**kwargs, "device": place} if "device" in kwargs else kwargs
        if kwargs.get("device") is not None and _is_device(kwargs["device"]):
            return args, {**kwargs, "device": "meta" if _any_on_meta(args) else "cpu"}
        return args, kwargs


def _place_of_new(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if name in GIVEN or name in SEQUENCES:
        return "cpu"
    dtype = kwargs.get("dtype") or _dtype_of_new(name, args, kwargs)
    dtype = DTYPES.get(dtype) or dtype
    most = SMALL if dtype.is_floating_point or dtype.is_complex else INTEGERS_KEPT
    like = args[0] if args and isinstance(args[0], torch.Tensor) and name.endswith("_like") else None
    sizes = like.shape if like is not None else [size for arg in args for size in _sizes(arg)]
    elements = 1
    for size in sizes:
        elements *= max(int(size), 1) if isinstance(size, int) else 1
    return "meta" if elements > most else "cpu"


def _dtype_of_new(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    """The dtype of a new tensor that does not name it."""
    if name in INTEGERS:
        return torch.int64
    if args and isinstance(args[0], torch.Tensor):
        return args[0].dtype
    if name == "full":
        values = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, (bool, int, float, complex))]
        if not any(isinstance(value, (float, complex)) for value in values[:1]):
            return torch.int64
    return torch.get_default_dtype()


def _sizes(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) if isinstance(value, int) else ()


def _is_device(value: Any) -> bool:
    if isinstance(value, torch.device):
        return True
    return isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda", "mps", "xpu")


def _any_on_meta(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == "meta"
    return isinstance(value, (tuple, list)) and any(map(_any_on_meta, value))

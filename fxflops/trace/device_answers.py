"""Let tensors report the model's own device while the model is counted on meta.

``x.device`` returns the device of the model's tensors, so that the model takes the same branches as without an
observer. A new tensor is created on the CPU, with values, or on meta if it is large. Moving a tensor to a device does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from ..model.pytree import tensors_given
from ..ops._traits import FACTORIES, GIVEN, INTEGERS, SEQUENCES
from ..records import EMPTY_MAPPING
from ..torch_internals import DisableTorchFunction
from .meta_mirror import SMALL

INTEGERS_KEPT = 2**24
"""New integer or boolean tensors, such as masks and positions, get values up to this number of elements."""
MOVES = ("cpu", "cuda")
DTYPES: dict[Any, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""The dtypes that torch uses for Python's types."""


class DeviceAnswers:
    """Answers questions about a tensor's device as if all tensors were on ``device``, and decides where new tensors really are.

    ``answers`` maps each tensor property that depends only on the device to its value.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.answers: dict[Any, Any] = {
            torch.Tensor.device.__get__: device,
            torch.Tensor.is_cuda.__get__: device.type == "cuda",  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: device.type == "cpu",  # type: ignore[attr-defined]
            torch.Tensor.is_meta.__get__: device.type == "meta",  # type: ignore[attr-defined]
        }
        self.batch_sizes: list[torch.Tensor] = []  # batch sizes of packed sequences, which are always on the CPU

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] = EMPTY_MAPPING) -> Any:
        """Return the result of a call that reads or changes a tensor's device; NotImplemented for other calls."""
        if func in self.answers:
            on_cpu = bool(self.batch_sizes) and any(args[0] is sizes for sizes in self.batch_sizes)
            return NotImplemented if on_cpu else self.answers[func]
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
        """Return the arguments, with their device set to where a new or moved tensor is really allocated."""
        name = getattr(func, "__name__", "")
        if name in FACTORIES:
            if name in GIVEN and "device" not in kwargs:
                return args, kwargs
            return args, {**kwargs, "device": _device_of_new(name, args, kwargs)}
        if name == "type" and len(args) > 1 and isinstance(getattr(args[1], "dtype", None), torch.dtype):
            return (args[0], args[1].dtype, *args[2:]), kwargs  # torch.DoubleTensor
        if name == "to" and args and isinstance(args[0], torch.Tensor):
            place = args[0].device
            args_there = tuple(place if _is_device(arg) else arg for arg in args[1:])
            return (args[0], *args_there), {**kwargs, "device": place} if "device" in kwargs else kwargs
        if kwargs.get("device") is not None and _is_device(kwargs["device"]):
            on_meta = any(tensor.is_meta for tensor in tensors_given(args))
            return args, {**kwargs, "device": "meta" if on_meta else "cpu"}
        return args, kwargs


def _device_of_new(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if name in GIVEN or name in SEQUENCES:
        return "cpu"
    dtype = kwargs.get("dtype") or _dtype_of_new(name, args, kwargs)
    dtype = DTYPES.get(dtype) or dtype
    most = SMALL if dtype.is_floating_point or dtype.is_complex else INTEGERS_KEPT
    like = args[0] if args and isinstance(args[0], torch.Tensor) and name.endswith("_like") else None
    shape = next((value for value in (kwargs.get("size"), *args) if isinstance(value, (tuple, list))), args)
    sizes = like.shape if like is not None else shape
    elements = prod(max(int(size), 1) for size in sizes if isinstance(size, int))
    return "meta" if elements > most else "cpu"


def _dtype_of_new(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    """Return the dtype of a new tensor if the call has no argument ``dtype``."""
    if name in INTEGERS:
        return torch.int64
    if args and isinstance(args[0], torch.Tensor):
        return args[0].dtype
    if name == "full" and not isinstance(args[1] if len(args) > 1 else kwargs.get("fill_value"), (float, complex)):
        return torch.int64
    return torch.get_default_dtype()


def _is_device(value: Any) -> bool:
    named = isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda", "mps", "xpu")
    return named or isinstance(value, torch.device)

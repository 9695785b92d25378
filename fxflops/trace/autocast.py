"""Autocast for tensors on the meta device, where torch has no autocast: apply the casts of the target device.

Torch itself decides which operators cast, and to which dtype. Its lists of these operators for GPUs
(https://pytorch.org/docs/stable/amp.html#autocast-op-reference) are part of every build, even without CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

from ..model.pytree import fill, template_of
from ..torch_internals import DispatchMode, disable_current_modes, fake_errors_unlogged, fake_tensors

AUTOCAST_DEVICES = ("cpu", "cuda")
ELIGIBLE = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that autocast casts from: https://pytorch.org/docs/stable/amp.html#autocast-op-reference"""


def autocast_state() -> dict[str, tuple[bool, torch.dtype]]:
    """Return, for each device, whether autocast is on, and the dtype that autocast uses."""
    return {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES}


def open_regions() -> int:
    """Return the number of autocast regions that are open in this thread, including disabled regions."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


@contextmanager
def autocast_on(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    """Open an autocast region for a device that this machine may lack.

    The region works like ``torch.autocast``, but stays enabled if the GPU is absent.
    """
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])


class Cast(NamedTuple):
    """How autocast changes a call: it casts the floating tensors to ``dtype`` or, with ``by_argument``, passes the argument ``dtype``
    instead.

    ``of_views`` is True if the function casts views of its tensors, as einsum does. Autocast caches casts of weights, but
    not casts of their views.
    """

    dtype: torch.dtype
    by_argument: bool = False
    of_views: bool = False


class Autocast:
    """Casts the arguments of meta kernels as autocast does on the target device.

    Torch itself chooses the casts: the function runs once on fake tensors of that device, under autocast.
    ``is_weight(tensor)`` returns whether autocast caches the cast of a tensor. ``track(tensor)`` is called with the
    result of each cast, and returns this result.
    """

    def __init__(
        self,
        device: torch.device,
        is_weight: Callable[[torch.Tensor], bool],
        track: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._device = device
        self._is_weight = is_weight
        self._track = track
        self._casts: dict[Any, Cast | None] = {}
        self.cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def forget(self) -> None:
        """Clear the cache of cast weights once the outermost autocast region has ended, as autocast does."""
        if self.cast_weights and not open_regions():
            self.cast_weights.clear()

    def cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call; if autocast is enabled, cast them as autocast would."""
        self.forget()
        if self._device.type not in AUTOCAST_DEVICES or not torch.is_autocast_enabled(self._device.type):
            return args, kwargs
        template, tensors = template_of((args, kwargs))
        if not any(_is_eligible(tensor) for tensor in tensors):
            return args, kwargs
        dtypes = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype))
        key = func, tuple(t.dtype for t in tensors), dtypes, torch.get_autocast_dtype(self._device.type)
        if key not in self._casts:
            self._casts[key] = self._cast_of(func, template, tensors)
        cast = self._casts[key]
        if cast is None:
            return args, kwargs
        dtype = cast.dtype
        if cast.by_argument:
            return args, {**kwargs, "dtype": dtype}
        # Cast the last argument first, as torch does: the order of the casts decides the order of their backward calls.
        cast_tensors = [
            self._cast(tensor, dtype, not cast.of_views) if _is_eligible(tensor) else tensor
            for tensor in reversed(tensors)
        ]
        args, kwargs = fill(template, *reversed(cast_tensors))
        return args, kwargs

    def _cast(self, tensor: torch.Tensor, dtype: torch.dtype, may_keep: bool) -> torch.Tensor:
        if tensor.dtype is dtype:
            return tensor
        lower = dtype is torch.get_autocast_dtype(self._device.type)
        if not (may_keep and lower and self._is_weight(tensor) and torch.is_autocast_cache_enabled()):
            return self._track(tensor.to(dtype))
        if id(tensor) not in self.cast_weights:
            self.cast_weights[id(tensor)] = tensor, self._track(tensor.to(dtype))
        return self.cast_weights[id(tensor)][1]

    def _cast_of(self, func: Any, template: Any, tensors: list[torch.Tensor]) -> Cast | None:
        """Return how autocast changes a call like this one; None if autocast does not change it."""
        FakeTensor, FakeTensorMode = fake_tensors()
        with disable_current_modes(), torch.no_grad():
            plain = [tensor.detach() for tensor in tensors]
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with disable_current_modes(), torch.no_grad(), fake_errors_unlogged(), fake as mode:

            def run(**more: torch.dtype) -> tuple[_Casts, torch.dtype | None]:
                """Return the casts that the call makes, and the dtype of its result (None if the call raises)."""
                fakes = [FakeTensor(mode, t, self._device) if t.is_meta else t for t in plain]
                args, kwargs = fill(template, *fakes)
                seen = _Casts(fakes)
                # Errors can be ignored. Without autocast, mixed dtypes may raise an error.
                # With autocast, a call makes all its casts before it can raise an error.
                with seen, suppress(Exception):
                    out = func(*args, **kwargs, **more)
                    return seen, out.dtype if isinstance(out, torch.Tensor) else None
                return seen, None

            casts, result = run()
            # A function may also cast without autocast: consider only the casts that autocast adds.
            with torch.autocast(self._device.type, enabled=False):
                own_casts, own_result = run()
                if len(casts.dtypes) > len(own_casts.dtypes):
                    return Cast(casts.dtypes[0], of_views=not casts.of_tensors)
                if result is None or own_result is None or result is own_result:
                    return None
                # For sums, products and norms, autocast passes the dtype to compute in, instead of casting tensors.
                # A function that calls a sum, product or norm may have no argument ``dtype``. In this case, cast the function's tensors.
                return Cast(result, by_argument=run(dtype=result)[1] is result)


class _Casts(DispatchMode):
    """Records the dtypes to which tensors are cast, and whether any of ``tensors`` was cast itself, and not only a view of it."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensors = tensors
        self.dtypes: list[torch.dtype] = []
        self.of_tensors = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self.dtypes.append(out.dtype)
            self.of_tensors |= any(args[0] is tensor for tensor in self._tensors)
        return out


def _is_eligible(tensor: torch.Tensor) -> bool:
    return tensor.is_meta and tensor.dtype in ELIGIBLE

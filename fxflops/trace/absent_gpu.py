"""What torch says of a GPU that is not in this machine, while a model is counted for it.

Two functions of torch ask the driver and no mode: the constructor of ``torch.autocast``, which notes that a region is off for want of
the GPU, and ``torch.cuda.get_device_capability``, which raises. During a run they pass through here, in all threads; only threads that
count for an absent GPU get another answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

import torch

from .per_thread import PerThread

CAPABILITY = 9, 0
"""The compute capability of the GPU whose rules are taken where there is none: an H100's, as in :mod:`.cuda_kernels`."""

_IS_COUNTED_FOR = PerThread[bool]()
"""True in the threads that count for a GPU that is not in this machine."""
_replaced: list[tuple[Any, str, Any, Any]] = []
"""The owner of each function, its name, the function itself, and what stands in for it during runs."""


def absent_gpu_answered() -> AbstractContextManager[None]:
    """Answer this thread's questions to a GPU that is not in this machine: its autocast regions are as they were asked for, its capability is
    :data:`CAPABILITY`.

    Not reached are autocast regions made before, such as those of decorators, which do not know any more what was asked for.
    """
    return _IS_COUNTED_FOR.on(True, _replace, _restore)


def _is_asked() -> bool:
    return bool(_IS_COUNTED_FOR.now()) and not torch.cuda.is_available()


def _region_made(original: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, device_type: Any, dtype: Any = None, enabled: Any = True, cache_enabled: Any = None) -> None:
        is_ours = device_type == "cuda" and enabled and _is_asked()
        original(self, device_type, dtype, not is_ours and enabled, cache_enabled)
        if is_ours:
            self._enabled = bool(enabled)

    return made


def _capability(original: Callable[..., tuple[int, int]]) -> Callable[..., tuple[int, int]]:
    def asked(device: Any = None) -> tuple[int, int]:
        return CAPABILITY if _is_asked() else original(device)

    return asked


STAND_INS = ((torch.autocast, "__init__", _region_made), (torch.cuda, "get_device_capability", _capability))
"""The owner of each function, its name, and what makes its stand-in."""


def _replace() -> None:
    for owner, name, stand_in_of in STAND_INS:
        original = getattr(owner, name)
        stand_in = wraps(original)(stand_in_of(original))
        setattr(owner, name, stand_in)
        _replaced.append((owner, name, original, stand_in))


def _restore() -> None:
    while _replaced:
        owner, name, original, stand_in = _replaced.pop()
        if getattr(owner, name) is stand_in:  # else someone replaced it in the meantime, and calls it
            setattr(owner, name, original)

"""Answer torch's questions about a GPU that this machine lacks, while a model is counted for it.

Two torch functions query the driver without passing any mode. Without a GPU, the constructor of ``torch.autocast`` disables its
region, and ``torch.cuda.get_device_capability`` raises. During a run both functions are replaced in all threads, but only threads
that count for an absent GPU get different answers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

import torch

from .per_thread import PerThread

CAPABILITY = 9, 0
"""The compute capability assumed for an absent GPU: an H100's, as in :mod:`.cuda_kernels`."""

_IS_COUNTED_FOR = PerThread[bool]()
"""True in the threads that count for an absent GPU."""
_replaced: list[tuple[Any, str, Any, Any]] = []
"""For each replaced function: its owner, its name, the original, and its replacement."""


def absent_gpu_answered() -> AbstractContextManager[None]:
    """Answer this thread's questions about an absent GPU: autocast regions stay enabled, and the capability is :data:`CAPABILITY`.

    Autocast regions created earlier, e.g. by decorators, stay disabled: they do not store whether they were to be enabled.
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


REPLACEMENTS = ((torch.autocast, "__init__", _region_made), (torch.cuda, "get_device_capability", _capability))
"""For each function to replace: its owner, its name, and a function that makes the replacement from the original."""


def _replace() -> None:
    for owner, name, replacement_of in REPLACEMENTS:
        original = getattr(owner, name)
        replacement = wraps(original)(replacement_of(original))
        setattr(owner, name, replacement)
        _replaced.append((owner, name, original, replacement))


def _restore() -> None:
    while _replaced:
        owner, name, original, replacement = _replaced.pop()
        if getattr(owner, name) is replacement:  # otherwise other code has wrapped our replacement and still calls it
            setattr(owner, name, original)

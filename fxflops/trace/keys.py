"""Keys: what a call depends on, as far as its arguments tell."""

from __future__ import annotations

from typing import Any

import torch

from .meta import Twins
from .tokens import TENSORS, Tokens, Unknown

PLAIN = frozenset(
    {
        *(int, bool, float, str, type(None), type(...), torch.Size),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    }
)
REAL = "real"
"""Marks, in a key, a tensor that has values. Beside one that has none it is replaced by its twin: they do not matter."""


class Keys:
    """The keys of arguments; ``twins`` know which tensors have no values, ``tokens`` tell values from others."""

    def __init__(self, twins: Twins, tokens: Tokens) -> None:
        self._twins = twins
        self.tokens = tokens

    def of(self, value: Any, valued: bool = False) -> Any:
        """What a result depends on of an argument; with ``valued`` on the values of tensors that have any. Raises Unknown
        where that is more than can be told."""
        kind = type(value)
        if kind in TENSORS:
            return self._of_tensor(value, valued)
        if kind is int or value is None:
            return value
        if kind in PLAIN:
            return kind, value
        if kind is tuple or kind is list:
            return kind, *(self.of(item, valued) for item in value)
        if kind is slice:
            return slice, value.start, value.stop, value.step
        raise Unknown

    def _of_tensor(self, tensor: torch.Tensor, valued: bool) -> Any:
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise Unknown
        if self._twins.is_own(tensor):
            return tensor.shape, tensor.stride(), tensor.dtype
        if not self._twins.is_known(tensor):
            raise Unknown
        if tensor.is_meta:
            return tensor.shape, tensor.stride(), tensor.dtype
        return tensor.shape, tensor.stride(), tensor.dtype, self.tokens.values(tensor) if valued else REAL


def has_real(key: tuple[Any, ...]) -> bool:
    """Whether a tensor that has values is among what a key was made of."""
    return REAL in key or any(type(part) is tuple and has_real(part) for part in key)

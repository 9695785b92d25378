"""Rebuild a model's cache as it is after any number of tokens. The cache is built from recorded writes, and no layer runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..model.pytree import attributes_in, parts, replaced, tensors_in
from ..torch_internals import DisableTorchFunction, disable_current_modes

UPDATE = "update"
"""The names of the methods that write to a transformers cache start with this prefix."""


@dataclass(frozen=True)
class Write:
    """A call of one of the cache's methods. ``given`` are the call's positional and keyword arguments, with copies on meta for tensors."""

    method: str
    given: Any

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        return tensors_in(self.given)

    @property
    def plain(self) -> tuple[Any, ...]:
        """The name of the method, and the int and str arguments of the call. For example, an int argument is the index of the layer that writes."""
        args, kwargs = self.given
        return (self.method, *(value for value in (*args, *kwargs.values()) if isinstance(value, (int, str))))


@contextmanager
def noted(cache: Any, writes: list[Write]) -> Iterator[None]:
    """Record the writes to a cache in this block. Each call of an ``update...`` method is appended to ``writes``, except nested calls."""
    own = attributes_in(cache)
    names = [] if own is None else [name for name in dir(type(cache)) if name.startswith(UPDATE)]
    under_way: list[str] = []

    def noting(name: str) -> Any:
        method = getattr(cache, name)

        def write(*args: Any, **kwargs: Any) -> Any:
            if under_way:
                return method(*args, **kwargs)
            with DisableTorchFunction(), disable_current_modes():
                writes.append(Write(name, copy_on_meta((args, kwargs))))
            under_way.append(name)
            try:
                return method(*args, **kwargs)
            finally:
                under_way.clear()

        return write

    given = {name: noting(name) for name in names if name not in own} if own is not None else {}
    try:
        if own is not None:
            own.update(given)
        yield
    finally:
        for name in given if own is not None else ():
            own.pop(name, None)  # type: ignore[union-attr]


def written(new: Any, prompt: Sequence[Write], tokens: int, step: Sequence[Write], wanted: int) -> Any:
    """Return the cache that a prompt of ``wanted`` tokens leaves; None if the recorded writes are not enough to build this cache.

    ``new`` is an empty cache to fill. ``prompt`` has the writes of a prompt of ``tokens`` tokens. ``step`` has the writes of a step of one
    token. A dimension of a written tensor is a number of tokens if its size is ``tokens`` in the prompt's write and 1 in the step's write.
    The step is ignored if it calls other methods than the prompt, or if it passes tensors with another number of dimensions. The cache's
    own methods decide which tokens the cache keeps.
    """
    if new is None or not prompt:
        return None
    if [_ranks(write) for write in prompt] != [_ranks(write) for write in step]:
        step = prompt
    with torch.no_grad(), Joined():
        for write, later in zip(prompt, step, strict=True):
            sizes: dict[int, torch.Size] = {}
            for one, other in zip(write.tensors, later.tensors, strict=True):
                of_tokens = [
                    n == tokens and (m == 1 or step is prompt) for n, m in zip(one.shape, other.shape, strict=True)
                ]
                sizes[id(one)] = torch.Size(
                    [wanted if is_of_tokens else n for n, is_of_tokens in zip(one.shape, of_tokens, strict=True)]
                )
            args, kwargs = replaced(
                write.given,
                lambda part: isinstance(part, torch.Tensor),
                lambda part, sizes=sizes: part.new_empty(sizes[id(part)]),  # type: ignore[misc]
            )
            try:
                getattr(new, write.method)(*args, **kwargs)
            except Exception:  # the method needs values or other calls: only a run of the model can make this cache
                return None
    return copy_on_meta(new)


def _ranks(write: Write) -> tuple[str, list[int]]:
    """Return the name of the method that a write calls, and the number of dimensions of each tensor argument."""
    return write.method, [tensor.ndim for tensor in write.tensors]


class Joined(TorchFunctionMode):
    """In this mode, ``torch.cat`` of meta tensors only adds up shapes. Torch's own meta kernel is slower, because it is written in Python."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.cat and len(args) == 1 and kwargs and [*kwargs] == ["dim"]:
            given = [tensor for tensor in args[0] if tensor.shape != (0,)]  # torch.cat skips tensors of this shape
            if given and {(tensor.dtype, tensor.device.type) for tensor in args[0]} == {(given[0].dtype, "meta")}:
                shapes = [list(tensor.shape) for tensor in given]
                joined = sum(shape.pop(kwargs["dim"]) for shape in shapes)
                if all(shape == shapes[0] for shape in shapes):
                    shape, dim = shapes[0], kwargs["dim"]
                    shape.insert(dim if dim >= 0 else len(shape) + 1 + dim, joined)
                    return given[0].new_empty(shape)
        return func(*args, **(kwargs or {}))


def is_like(one: Any, other: Any) -> bool:
    """Return whether two caches are equal. The values and the devices of tensors are not compared."""
    return _is_like(one, other, set())


def _is_like(one: Any, other: Any, seen: set[tuple[int, int]]) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return bool(one.shape == other.shape and one.dtype == other.dtype)
    if isinstance(one, torch.device) or (id(one), id(other)) in seen:
        return True
    seen.add((id(one), id(other)))
    inner, others = parts(one), parts(other)
    if not (inner or others):
        return one is other or bool(one == other)
    if [step for step, _ in inner] != [step for step, _ in others]:
        return False
    return all(_is_like(part, another, seen) for (_, part), (_, another) in zip(inner, others, strict=True))


def copy_on_meta(value: Any) -> Any:
    """Return a deep copy of a cache, with its tensors on meta."""
    memo: dict[int, Any] = {
        id(tensor): torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in tensors_in(value)
    }
    return copy.deepcopy(value, memo)

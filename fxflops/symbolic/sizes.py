"""The named sizes of a model's inputs, and its inputs at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import InputError, did_you_mean
from ..model.inputs import as_call, signature_of
from ..model.pytree import parts, replaced, tensors_in


class Size(NamedTuple):
    """A named size: its length in the example, and the user's least and largest length; None if left open."""

    name: str
    example: int
    least: int | None = None
    most: int | None = None


class Place(NamedTuple):
    """A dimension of a tensor whose length is the function ``of`` of the size ``name``; ``wanted`` is the user's Dim or name for it."""

    dim: int
    name: str
    of: Callable[[int], int]
    wanted: Any


class Inputs:
    """The inputs of a model as a function of their named sizes.

    ``dynamic_shapes`` is as for ``torch.export.export``: for each parameter of forward (by name, or in order) the dims
    that vary, ``{"input_ids": {0: Dim("batch"), 1: Dim("seq", max=4096)}}``. A plain name works as a Dim; ``2 * dim`` is
    derived from it. For an object with several tensors, such as a KV cache, the dims apply to each of them.

    Raises InputError if a dim has no name, does not exist, or one name has two lengths.
    """

    def __init__(self, model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> None:
        self._given = as_call(model, args, kwargs)
        positional, keywords = self._given
        bound = dict(signature_of(model).bind(*positional, **keywords).arguments)
        for name, parameter in signature_of(model).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                bound |= bound.pop(name, {})
            if parameter.kind is parameter.VAR_POSITIONAL and isinstance(dynamic_shapes, (tuple, list)):
                first = (
                    [*bound].index(name) if name in bound else len(bound)
                )  # the specs of *args may also follow one after the other
                rest = dynamic_shapes[first:]
                if len(rest) != 1 or not isinstance(rest[0], (tuple, list)):
                    dynamic_shapes = (*dynamic_shapes[:first], rest)
        if isinstance(dynamic_shapes, (tuple, list)):
            dynamic_shapes = dict(zip(bound, dynamic_shapes, strict=False))
        if not isinstance(dynamic_shapes, Mapping):
            wrong = type(dynamic_shapes).__name__
            raise InputError(f'dynamic_shapes must map inputs to dims, {{"x": {{0: "batch"}}}}, not {wrong}')
        self._places: dict[int, list[Place]] = {}
        found: dict[str, Size] = {}
        for name, spec in dynamic_shapes.items():
            if name not in bound:
                raise InputError(
                    f"dynamic_shapes: there is no input {name!r}{did_you_mean(str(name), bound)}; given: {[*bound]}"
                )
            for tensor, places in _placed(bound[name], spec, str(name)):
                self._places[id(tensor)] = places
                for place in places:
                    _enter(found, place, tensor.shape[place.dim], str(name))
        if not found:
            raise InputError('dynamic_shapes names no size: give a dim a name, {"input_ids": {0: "batch", 1: "seq"}}')
        self.sizes = tuple(found.values())

    def at(self, point: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return args and kwargs with these sizes, in the order of ``sizes``: the example's tensors, cut or repeated."""
        lengths = dict(zip((size.name for size in self.sizes), point, strict=True))

        def resized(tensor: torch.Tensor) -> torch.Tensor:
            new = tensor.detach()
            for dim, name, of, _ in self._places.get(id(tensor), ()):
                index = torch.arange(of(lengths[name]), device=tensor.device) % max(tensor.shape[dim], 1)
                new = new.index_select(dim, index)
            return new.requires_grad_(tensor.requires_grad)

        args, kwargs = replaced(self._given, lambda part: isinstance(part, torch.Tensor), resized)
        return args, kwargs


def _placed(value: Any, spec: Any, where: str) -> Iterator[tuple[torch.Tensor, list[Place]]]:
    """Yield each tensor with named sizes in an input, with the places of these sizes."""
    if spec is None:
        return
    if isinstance(value, torch.Tensor):
        dims = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        yield value, [place for dim, wanted in dims for place in _place(dim, wanted, value, where)]
    elif (
        isinstance(spec, Mapping) and all(isinstance(key, int) for key in spec) and not isinstance(value, (tuple, list))
    ):
        for tensor in tensors_in(value):
            yield from _placed(tensor, spec, where)
    else:
        inner = {key: part for (_, key), part in parts(value)}
        for key, part in spec.items() if isinstance(spec, Mapping) else enumerate(spec):
            if key not in inner:
                raise InputError(f"dynamic_shapes: {where} has no part {key!r}; it has {[*inner]}")
            yield from _placed(inner[key], part, f"{where}[{key!r}]")


def _place(dim: int, wanted: Any, tensor: torch.Tensor, where: str) -> Iterator[Place]:
    if wanted is None or isinstance(wanted, int):
        return
    if not -tensor.ndim <= dim < tensor.ndim:
        raise InputError(f"dynamic_shapes: {where} has no dim {dim}: its shape is {tuple(tensor.shape)}")
    root = getattr(wanted, "root", wanted)  # set on a Dim that is derived from another
    name = root if isinstance(root, str) else getattr(root, "__name__", "")
    if not name.isidentifier():
        raise InputError(
            f"dynamic_shapes: dim {dim} of {where} needs a name, such as Dim('batch') or 'batch', not {wanted!r}"
        )
    yield Place(dim % tensor.ndim, name, getattr(wanted, "fn", int), root)


def _enter(found: dict[str, Size], place: Place, length: int, where: str) -> None:
    """Enter the size of a place with this length in the example; raise InputError if it contradicts an earlier one."""
    known = found.get(place.name)
    fitting = [known.example] if known else range(length + 1)
    example = next((size for size in fitting if place.of(size) == length), None)
    if example is None:
        other = f"{place.name} is {known.example} elsewhere" if known else f"no {place.name} gives it"
        raise InputError(f"dynamic_shapes: dim {place.dim} of {where} is {length}, but {other}")
    bounds = (getattr(place.wanted, end, None) for end in ("min", "max"))
    # If no limit is given, torch sets one that is not an int, or is 0 or less.
    least, most = (int(bound) if isinstance(bound, int) and bound > 0 else None for bound in bounds)
    found[place.name] = known or Size(place.name, example, least, most)

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
    """A named size. ``example`` is its length in the example inputs. ``least`` and ``most`` are the user's limits, None for no limit."""

    name: str
    example: int
    least: int | None = None
    most: int | None = None


class Place(NamedTuple):
    """A dimension of a tensor. The length of the dimension is ``of(length of the size name)``. ``wanted`` is the Dim or the name that the
    user passed."""

    dim: int
    name: str
    of: Callable[[int], int]
    wanted: Any


class Inputs:
    """The inputs of a model as a function of their named sizes.

    ``dynamic_shapes`` is as for ``torch.export.export``: it maps each parameter of forward to the dims that vary, e.g.
    ``{"input_ids": {0: Dim("batch"), 1: Dim("seq", max=4096)}}``. A sequence in the order of the parameters also works. A plain name can
    replace a Dim. ``2 * dim`` is a size derived from ``dim``. If an input has several tensors, as a KV cache has, the same dims vary in each tensor.

    Raises InputError if a dim has no name or does not exist, or if dims with the same name have different lengths.
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
                )  # the specs of *args may also be listed without a tuple around them
                rest = dynamic_shapes[first:]
                if len(rest) != 1 or not isinstance(rest[0], (tuple, list)):
                    dynamic_shapes = (*dynamic_shapes[:first], rest)
        if isinstance(dynamic_shapes, (tuple, list)):
            dynamic_shapes = dict(zip(bound, dynamic_shapes, strict=False))
        if not isinstance(dynamic_shapes, Mapping):
            wrong = type(dynamic_shapes).__name__
            raise InputError(f'dynamic_shapes must map inputs to dims, e.g. {{"x": {{0: "batch"}}}}; got {wrong}')
        self._places: dict[int, list[Place]] = {}
        found: dict[str, Size] = {}
        for name, spec in dynamic_shapes.items():
            if name not in bound:
                raise InputError(
                    f"dynamic_shapes: no input is named {name!r}{did_you_mean(str(name), bound)}; the inputs are {[*bound]}"
                )
            for tensor, places in _placed(bound[name], spec, str(name)):
                self._places[id(tensor)] = places
                for place in places:
                    _enter(found, place, tensor.shape[place.dim], str(name))
        if not found:
            raise InputError(
                'dynamic_shapes names no size; give each dim that varies a name, e.g. {"input_ids": {0: "batch", 1: "seq"}}'
            )
        self.sizes = tuple(found.values())

    def at(self, point: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return args and kwargs in which the example's tensors are cut or repeated to new lengths.

        ``point`` has the new length of each size, in the order of ``sizes``.
        """
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
    """Yield each tensor in an input that has dims with named sizes. Each tensor comes with a list of Places, one for each of these dims."""
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
                raise InputError(f"dynamic_shapes: {where} has no entry {key!r}; the entries are {[*inner]}")
            yield from _placed(inner[key], part, f"{where}[{key!r}]")


def _place(dim: int, wanted: Any, tensor: torch.Tensor, where: str) -> Iterator[Place]:
    if wanted is None or isinstance(wanted, int):
        return
    if not -tensor.ndim <= dim < tensor.ndim:
        raise InputError(f"dynamic_shapes: {where} of shape {tuple(tensor.shape)} has no dim {dim}")
    root = getattr(wanted, "root", wanted)  # only a Dim that is derived from another Dim has a root
    name = root if isinstance(root, str) else getattr(root, "__name__", "")
    if not name.isidentifier():
        raise InputError(
            f"dynamic_shapes: dim {dim} of {where} needs a name, such as Dim('batch') or 'batch'; got {wanted!r}"
        )
    yield Place(dim % tensor.ndim, name, getattr(wanted, "fn", int), root)


def _enter(found: dict[str, Size], place: Place, length: int, where: str) -> None:
    """Add the size of an input's dim (``place``) to ``found``. ``length`` is the length of the dim in the example.

    Raise InputError if this length contradicts another dim with the same size.
    """
    known = found.get(place.name)
    fitting = [known.example] if known else range(length + 1)
    example = next((size for size in fitting if place.of(size) == length), None)
    if example is None:
        other = (
            f"another dim has {place.name}={known.example}" if known else f"no value of {place.name} gives this length"
        )
        raise InputError(f"dynamic_shapes: dim {place.dim} of {where} is {length}, but {other}")
    bounds = (getattr(place.wanted, end, None) for end in ("min", "max"))
    # If the user set no limit, torch's bound is not a positive int.
    least, most = (int(bound) if isinstance(bound, int) and bound > 0 else None for bound in bounds)
    found[place.name] = known or Size(place.name, example, least, most)

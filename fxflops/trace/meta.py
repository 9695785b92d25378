"""Running on the meta device: floating tensors lose their data just before a call, so that no kernel computes."""

from __future__ import annotations

from typing import Any

import torch

Twins = dict[int, tuple[torch.Tensor, torch.Tensor]]


def to_meta(args: tuple[Any, ...], kwargs: dict[str, Any], twins: Twins) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with each floating or complex tensor replaced by its meta twin; all of them, where any is on meta.

    Integers and booleans stay real as long as a call has no others, so that masks and positions keep their values.
    """
    kinds: set[bool] = set()
    _survey((args, kwargs), kinds)
    if not kinds or kinds == {False}:
        return args, kwargs
    return _converted(args, twins), _converted(kwargs, twins)


def twin_of(tensor: torch.Tensor, twins: Twins) -> torch.Tensor:
    """The meta tensor that stands for ``tensor``: the same one each time."""
    if tensor.device.type == "meta":
        return tensor
    known = twins.get(id(tensor))
    if known is None:
        if tensor.layout is torch.strided:
            twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        else:
            twin = tensor.to("meta")
        known = twins[id(tensor)] = (tensor, twin)
    return known[1]


def _survey(value: Any, kinds: set[bool]) -> None:
    if isinstance(value, torch.Tensor):
        kinds.add(value.device.type == "meta" or value.is_floating_point() or value.is_complex())
    elif isinstance(value, (tuple, list)):
        for item in value:
            _survey(item, kinds)
    elif isinstance(value, dict):
        for item in value.values():
            _survey(item, kinds)


def _converted(value: Any, twins: Twins) -> Any:
    if isinstance(value, torch.Tensor):
        return twin_of(value, twins)
    if isinstance(value, (tuple, list)) and any(isinstance(v, (torch.Tensor, tuple, list, dict)) for v in value):
        items = [_converted(item, twins) for item in value]
        return type(value)(items) if type(value) in (tuple, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _converted(item, twins) for key, item in value.items()}
    return value

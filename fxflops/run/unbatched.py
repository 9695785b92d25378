"""The advice for inputs without a batch dimension, with which the model runs, or with other channels than a convolution's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..errors import UNBATCHED
from ..model.inventory import Inventory
from ..model.pytree import fill, template_of
from ..ops import BASE
from ..records.tensors import spec_of
from ..trace.source import modules_that_raised
from .model_run import Subject, meta_run

CONVS = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
MOST_DIMS = 4
"""Dimensions of an input that may lack one: those of a video without a batch."""


def batch_advice(model: nn.Module, inventory: Inventory, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the shapes to give, if a model that raised on these inputs runs on meta with one dimension more; "" otherwise."""
    template, tensors = template_of((args, kwargs))
    if not tensors or not all(0 < tensor.ndim <= MOST_DIMS for tensor in tensors) or inventory.shapeless:
        return ""
    with torch.no_grad():
        batched = [tensor.detach().unsqueeze(0) for tensor in tensors]
        args, kwargs = fill(template, *batched)
        subject = Subject(model, inventory, args, kwargs, mode="", lazy=True)
        try:
            meta_run(subject, BASE, facts=False, observe_dispatch=False)
        except Exception:  # whatever a user's model raises
            return ""
        finally:
            subject.snapshot.rewind()
    return f"\n  it runs with a batch dimension: give {' '.join(repr(spec_of(t)) for t in batched)}{UNBATCHED}"


def channel_advice(error: BaseException | None) -> str:
    """Return the shapes that a convolution takes which raised over its channels: on meta torch does not say how many; "" otherwise."""
    if error is None or "channel" not in str(error):
        return ""
    conv = next((module for module in reversed(modules_that_raised(error)) if isinstance(module, CONVS)), None)
    sizes = "" if conv is None else ", ".join([str(conv.in_channels), *"*" * len(conv.kernel_size)])
    return f"\n  {conv} takes [N, {sizes}] or [{sizes}]" if sizes else ""

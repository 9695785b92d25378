"""The advice for inputs without a batch dimension, with which the model runs, or of other sizes than a layer takes."""

from __future__ import annotations

import re
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
RAISED = {"channel": CONVS, "cannot be multiplied|same reduction dim": (nn.Linear,)}
"""The layers that may raise over the sizes of their input, by a pattern in the error; the second of Linear is that on meta."""
MOST_DIMS = 4
"""Dimensions of an input that may lack one: those of a video without a batch."""


def batch_advice(model: nn.Module, inventory: Inventory, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the shapes to give, if a model that raised on these inputs runs on meta with one dimension more; "" otherwise.

    A model that also runs on meta without it raised for another reason: in its backward pass or a step of the optimizer, say,
    or by a warning that is an error.
    """
    template, tensors = template_of((args, kwargs))
    plain = all(0 < tensor.ndim <= MOST_DIMS and not tensor.is_nested for tensor in tensors)
    if not tensors or not plain or inventory.shapeless:
        return ""
    with torch.no_grad():
        batched = [tensor.detach().unsqueeze(0) for tensor in tensors]
        if _runs(model, inventory, args, kwargs) or not _runs(model, inventory, *fill(template, *batched)):
            return ""
    return f"\n  it runs with a batch dimension: give {' '.join(repr(spec_of(t)) for t in batched)}{UNBATCHED}"


def _runs(model: nn.Module, inventory: Inventory, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a model runs on meta with these inputs."""
    subject = Subject(model, inventory, args, kwargs, mode="", lazy=True)
    try:
        meta_run(subject, BASE, facts=False, observe_dispatch=False)
    except Exception:  # whatever a user's model raises
        return False
    finally:
        subject.snapshot.rewind()
    return True


def size_advice(error: BaseException | None) -> str:
    """Return the shapes that a layer takes which raised over the sizes of its input; "" for an error of another kind.

    On meta torch does not say how many channels a convolution has.
    """
    if error is None:
        return ""
    kinds = next((kinds for sign, kinds in RAISED.items() if re.search(sign, str(error))), ())
    layer = next((module for module in reversed(modules_that_raised(error)) if isinstance(module, kinds)), None)
    if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:  # others have products of their own
        return f"\n  {layer} takes [*, {layer.in_features}]"
    if not isinstance(layer, CONVS):
        return ""
    sizes = ", ".join([str(layer.in_channels), *"*" * len(layer.kernel_size)])
    return f"\n  {layer} takes [N, {sizes}] or [{sizes}]"

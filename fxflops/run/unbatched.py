"""The advice for inputs without a batch dimension: with one the model runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..model.inventory import Inventory
from ..model.pytree import fill, template_of
from ..ops import BASE
from ..records.tensors import spec_of
from .model_run import Subject, meta_run

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
    return f"\n  it runs with a batch dimension: give {' '.join(repr(spec_of(t)) for t in batched)}, by x.unsqueeze(0)"

"""Give advice on inputs that lack a batch dimension, or whose sizes do not fit a layer."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from torch import nn

from ..model.pytree import fill, template_of
from ..ops import BASE
from ..records.tensors import spec_of
from ..trace.memo import Memos
from ..trace.source import modules_that_raised
from .model_run import observe_on_own_tensors, run_model
from .subject import Subject

CONVS = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
RAISED = {"channel": CONVS, "cannot be multiplied|same reduction dim": (nn.Linear,)}
"""Layers that may raise for wrong input sizes, by a pattern in the error. The last pattern is for errors on the meta device."""
MOST_DIMS = 4
"""Inputs with more dimensions are assumed to have a batch dimension. A video without a batch dimension has 4 dimensions."""


def batch_advice(subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return advice to add a batch dimension if the model runs with it but raises without it; "" otherwise.

    The call that raised is repeated with and without the dimension, including its backward pass and optimizer step if requested. If
    it now works without the dimension, the error had another cause.
    """
    template, tensors = template_of((args, kwargs))
    plain = all(0 < tensor.ndim <= MOST_DIMS and not tensor.is_nested for tensor in tensors)
    if not tensors or not plain or subject.inventory.shapeless:
        return ""
    batched = [tensor.detach().unsqueeze(0) for tensor in tensors]
    if _works(subject, args, kwargs) or not _works(subject, *fill(template, *batched)):
        return ""
    return f"\n  the model runs with a batch dimension: pass {' '.join(repr(spec_of(t)) for t in batched)}"


def _works(raised: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the call that raised works with these inputs."""
    # Keep the modules' mode ("as_is"), because the run that raised has already set the requested mode.
    request = replace(raised.request, mode="as_is", count_for=raised.counted_device)
    subject = Subject(raised.model, raised.inventory, args, kwargs, request)
    try:
        if subject.request.counts_only:
            run_model(subject, BASE, memos=Memos())
        else:
            observe_on_own_tensors(subject, BASE)
    except Exception:  # whatever a user's model raises
        return False
    finally:
        subject.end()
    return True


def size_advice(error: BaseException | None) -> str:
    """Return advice on the input shape of a layer that raised because of wrong input sizes; "" for other errors.

    On meta, torch's own error does not contain the number of channels that a convolution expects.
    """
    if error is None:
        return ""
    kinds = next((kinds for sign, kinds in RAISED.items() if re.search(sign, str(error))), ())
    layer = next((module for module in reversed(modules_that_raised(error)) if isinstance(module, kinds)), None)
    # Check the forward, too, because a subclass of nn.Linear may compute something else.
    if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
        return f"\n  {layer} takes [*, {layer.in_features}]"
    if not isinstance(layer, CONVS):
        return ""
    sizes = ", ".join([str(layer.in_channels), *"*" * len(layer.kernel_size)])
    return f"\n  {layer} takes [N, {sizes}] or [{sizes}]"

"""Every timm model, on the meta device, at its own input size."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import nn


def names() -> list[str]:
    """Return the sorted names of the models."""
    return sorted(timm.list_models())


def build(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return the model in eval mode, and the args and kwargs of its forward."""
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        size = (model.pretrained_cfg or {}).get("input_size", (3, 224, 224))
        return model, (torch.randn(1, *size),), {}

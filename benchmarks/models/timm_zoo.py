"""Every timm model, on the meta device at its own input size."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import nn


def names() -> list[str]:
    """Names of the models, sorted."""
    return sorted(timm.list_models())


def build(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model in eval mode, and the arguments of its forward."""
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        size = (model.pretrained_cfg or {}).get("input_size", (3, 224, 224))
        return model, (torch.randn(1, *size),), {}

"""PyTorch's own counter, FlopCounterMode, as a second opinion on multiply-accumulates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode


@pytest.fixture
def torch_macs() -> Callable[..., int]:
    """Half of FlopCounterMode's FLOPs for a call. It runs on meta tensors, where no op is replaced by another."""

    def count(function: Any, *args: Any, **kwargs: Any) -> int:
        if isinstance(function, nn.Module):
            function = function.to("meta")
        args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        with FlopCounterMode(display=False) as counter:
            function(*args, **kwargs)
        return int(counter.get_total_flops()) // 2

    return count

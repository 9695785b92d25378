"""A mark that skips tests if the installed torch cannot simulate ranks."""

import pytest
import torch.distributed as dist

if dist.is_available():
    from torch.distributed.tensor import debug

CAN_SIMULATE = dist.is_available() and hasattr(debug, "_clear_sharding_prop_cache")
simulates = pytest.mark.skipif(
    not CAN_SIMULATE,
    reason="torch without torch.distributed, or too old for simulated ranks",
)

"""Whether the installed torch simulates ranks."""

import pytest
import torch.distributed as dist

if dist.is_available():
    from torch.distributed.tensor import debug

simulates = pytest.mark.skipif(
    not dist.is_available() or not hasattr(debug, "_clear_sharding_prop_cache"),
    reason="torch without torch.distributed, or too old for simulated ranks",
)

"""A step for simulated ranks whose time can be computed by hand, with a device and links for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from fxflops.distributed import Links
from fxflops.roofline.devices import Device

WIDTH, NUMBERS = 256, 6000
DEVICE = Device("mine", {"f32": 1e9}, bandwidth=1e15, launch=0.0)
LINKS = Links(within=1e6, across=1e4, node=4)  # bytes/s
COMPUTE = 2 * WIDTH**3 / 1e9  # a multiply and an add for each MAC


def build(mesh: Any) -> Any:
    """A matrix product, then an all-reduce of 24,000 bytes over each mesh dimension."""
    layer, x = nn.Linear(WIDTH, WIDTH, bias=False), torch.ones(WIDTH, WIDTH)
    y = torch.ones(NUMBERS)

    def step() -> None:
        with torch.no_grad():
            layer(x)
        for name in mesh.mesh_dim_names:
            dist.all_reduce(y, group=mesh.get_group(name))

    return layer, step

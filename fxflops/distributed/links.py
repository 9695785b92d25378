"""The links between devices as their makers state them: bytes/s of one device in one direction, within a node and out of it."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InputError
from ..roofline.devices import Device


class Links(NamedTuple):
    """The links of a device: ``within`` a node of ``node`` devices, and ``across`` nodes, in bytes/s one way.

    ``source`` says where the figures are from. Datasheets add up both directions of NVLink; these are halves of their figures.
    """

    within: float
    across: float
    node: int = 8
    source: str = "given"


NDR, HDR = 400e9 / 8, 200e9 / 8
DGX_H100 = "NVIDIA H100 datasheet (NVLink 900 GB/s), NVIDIA DGX H100 datasheet (a ConnectX-7 of 400 Gb/s for each GPU)"
DGX_H200 = "NVIDIA H200 datasheet (NVLink 900 GB/s), NVIDIA DGX H200 datasheet (a ConnectX-7 of 400 Gb/s for each GPU)"
DGX_B200 = "NVIDIA DGX B200 datasheet (NVLink 14.4 TB/s of 8 GPUs, a ConnectX-7 of 400 Gb/s for each GPU)"
DGX_A100 = "NVIDIA A100 datasheet (NVLink 600 GB/s), NVIDIA DGX A100 datasheet (a ConnectX-6 of 200 Gb/s for each GPU)"
H100_PCIE = "NVIDIA H100 datasheet (PCIe Gen5 128 GB/s), with an adapter of 400 Gb/s for each GPU"
LINKS = {
    "H100 SXM": Links(450e9, NDR, 8, DGX_H100),
    "H200": Links(450e9, NDR, 8, DGX_H200),
    "B200": Links(900e9, NDR, 8, DGX_B200),
    "A100 80GB SXM": Links(300e9, HDR, 8, DGX_A100),
    "A100 40GB": Links(300e9, HDR, 8, DGX_A100),
    "H100 PCIe": Links(64e9, NDR, 8, H100_PCIE),
}
"""The links of the devices in the table of rooflines, by their names there."""


def links_of(device: Device) -> Links:
    """Return the links of a device; InputError if the table has none."""
    if device.name not in LINKS:
        raise InputError(
            f"the links of {device.name!r} are not in the table, which has {', '.join(LINKS)}\n"
            "any other:  from fxflops.distributed import Links\n"
            "  links=Links(within=450e9, across=50e9, node=8)  # bytes/s one way, devices in a node"
        )
    return LINKS[device.name]

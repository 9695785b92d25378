"""The speed of the links between devices, from datasheets: bytes/s per device and direction, within a node and between nodes."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InputError
from ..roofline.devices import Device


class Links(NamedTuple):
    """The speed of a device's links in bytes/s per direction: ``within`` a node of ``node`` devices, and ``across`` nodes.

    ``source`` names the origin of the speeds. Datasheets state NVLink's speed as the sum of both directions; ``within`` is half of it.
    """

    within: float
    across: float
    node: int = 8
    source: str = "given"


NDR, HDR = 400e9 / 8, 200e9 / 8
DGX_H100 = "NVIDIA H100 datasheet (NVLink 900 GB/s), NVIDIA DGX H100 datasheet (one 400 Gb/s ConnectX-7 per GPU)"
DGX_H200 = "NVIDIA H200 datasheet (NVLink 900 GB/s), NVIDIA DGX H200 datasheet (one 400 Gb/s ConnectX-7 per GPU)"
DGX_B200 = "NVIDIA DGX B200 datasheet (NVLink 14.4 TB/s for 8 GPUs, one 400 Gb/s ConnectX-7 per GPU)"
DGX_A100 = "NVIDIA A100 datasheet (NVLink 600 GB/s), NVIDIA DGX A100 datasheet (one 200 Gb/s ConnectX-6 per GPU)"
H100_PCIE = "NVIDIA H100 datasheet (PCIe Gen5 128 GB/s); one 400 Gb/s network adapter per GPU is assumed"
LINKS = {
    "H100 SXM": Links(450e9, NDR, 8, DGX_H100),
    "H200": Links(450e9, NDR, 8, DGX_H200),
    "B200": Links(900e9, NDR, 8, DGX_B200),
    "A100 80GB SXM": Links(300e9, HDR, 8, DGX_A100),
    "A100 40GB": Links(300e9, HDR, 8, DGX_A100),
    "H100 PCIe": Links(64e9, NDR, 8, H100_PCIE),
}
"""The links of listed devices, by the device's name."""


def links_of(device: Device) -> Links:
    """Return the links of a device; raise InputError if they are not in the table."""
    if device.name not in LINKS:
        raise InputError(
            f"the links of {device.name!r} are not in the table; devices with known links: {', '.join(LINKS)}\n"
            "for another device:  from fxflops.distributed import Links\n"
            "  links=Links(within=450e9, across=50e9, node=8)  # bytes/s per direction, devices per node"
        )
    return LINKS[device.name]

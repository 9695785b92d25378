"""The architecture, the number of multiprocessors and the L2 cache of each card. The module also says which cards are similar enough to
share a calibration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..roofline.devices import Device
from .hardware import Card

MIB = 2**20
NEAREST = {
    "pascal": ("volta", "ampere"),
    "volta": ("ampere", "hopper", "pascal"),
    "turing": ("volta", "ampere"),
    "turing, 75 W": ("pascal + ada, 75 W", "ada"),
    "ampere": ("hopper", "volta"),
    "ampere graphics": ("ada", "blackwell graphics", "ampere"),
    "ampere graphics, 75 W": ("turing, 75 W + ada, 75 W", "ada"),
    "ada": ("blackwell graphics", "ampere"),
    "ada, 75 W": ("turing, 75 W", "ada", "ampere"),
    "blackwell graphics": ("ada", "ampere"),
    "hopper": ("ampere + blackwell",),
    "blackwell": ("hopper", "ampere"),
}
"""For each architecture, the most similar architectures, the nearest first. "+" joins architectures that are equally near.

Graphics cards (GDDR memory, few f64 units) are separate from data center cards. 75 W cards are separate from all others, because
they seldom reach their datasheet's clock, so the shares of peaks that they reach do not carry over to other cards. The order is the
one with the smallest errors when each measured card is predicted from the others (benchmarks/results/prediction.md)."""


class Chip(NamedTuple):
    """A card's architecture, its number of multiprocessors, and the MiB of its L2 cache.

    The numbers come from NVIDIA's architecture whitepapers (P100, V100, Turing, A100, GA102, Ada, H100, RTX Blackwell, with GeForce cards in
    their appendices). Some numbers of multiprocessors are a datasheet's CUDA cores divided by the cores per multiprocessor. Other sources:

    - A10G, H200: ``torch.cuda.get_device_properties`` in public logs (80 multiprocessors and 6 MiB; 132 and 60 MiB).
    - Hopper has 10 MiB of L2 per memory stack: 50 MiB with five stacks (H100 SXM), 60 MiB with six (H200). H20, H100 NVL, H200 NVL and
      GH200 have six stacks, so 60 MiB are assumed. No public device properties of these four were found. H100 NVL, H200 NVL and GH200 are
      assumed to have the H200's 132 multiprocessors, because their peaks imply it.
    - B200: 148 multiprocessors (chipsandcheese.com/p/nvidias-b200-keeping-the-cuda-juggernaut) and 126 MB of L2 (NVIDIA's Blackwell tuning
      guide). B300 has 148 multiprocessors, GB200 and GB300 have 152, by device properties in public kernel tests and tuning notes (FlashInfer,
      among others). Their L2 is assumed to be as large as the B200's.
    """

    architecture: str
    multiprocessors: int
    l2_mebibytes: float


CHIPS = {
    "P100 PCIe": Chip("pascal", 56, 4),
    "P100 SXM2": Chip("pascal", 56, 4),
    "P40": Chip("pascal", 30, 3),
    "P4": Chip("pascal", 20, 2),
    "GTX 1080 Ti": Chip("pascal", 28, 2.75),
    "V100 SXM2": Chip("volta", 80, 6),
    "V100 PCIe": Chip("volta", 80, 6),
    "V100S": Chip("volta", 80, 6),
    "TITAN V": Chip("volta", 80, 4.5),
    "T4": Chip("turing, 75 W", 40, 4),
    "RTX 2080 Ti": Chip("turing", 68, 5.5),
    "TITAN RTX": Chip("turing", 72, 6),
    "RTX 8000": Chip("turing", 72, 6),
    "Quadro RTX 6000": Chip("turing", 72, 6),
    "A100 80GB SXM": Chip("ampere", 108, 40),
    "A100 80GB PCIe": Chip("ampere", 108, 40),
    "A100 40GB": Chip("ampere", 108, 40),
    "A800 80GB SXM": Chip("ampere", 108, 40),
    "A30": Chip("ampere", 56, 24),
    "A40": Chip("ampere graphics", 84, 6),
    "A10": Chip("ampere graphics", 72, 6),
    "A10G": Chip("ampere graphics", 80, 6),
    "A2": Chip("ampere graphics, 75 W", 10, 2),
    "RTX A6000": Chip("ampere graphics", 84, 6),
    "RTX A5000": Chip("ampere graphics", 64, 6),
    "RTX A4000": Chip("ampere graphics", 48, 4),
    "RTX 3060": Chip("ampere graphics", 28, 3),
    "RTX 3060 Ti": Chip("ampere graphics", 38, 4),
    "RTX 3070": Chip("ampere graphics", 46, 4),
    "RTX 3070 Ti": Chip("ampere graphics", 48, 4),
    "RTX 3080": Chip("ampere graphics", 68, 5),
    "RTX 3080 Ti": Chip("ampere graphics", 80, 6),
    "RTX 3090": Chip("ampere graphics", 82, 6),
    "RTX 3090 Ti": Chip("ampere graphics", 84, 6),
    "L4": Chip("ada, 75 W", 58, 48),
    "L20": Chip("ada", 92, 96),
    "L40": Chip("ada", 142, 96),
    "L40S": Chip("ada", 142, 96),
    "RTX 6000 Ada": Chip("ada", 142, 96),
    "RTX 5000 Ada": Chip("ada", 100, 72),
    "RTX 4060": Chip("ada", 24, 24),
    "RTX 4060 Ti": Chip("ada", 34, 32),
    "RTX 4070": Chip("ada", 46, 36),
    "RTX 4070 SUPER": Chip("ada", 56, 48),
    "RTX 4070 Ti": Chip("ada", 60, 48),
    "RTX 4070 Ti SUPER": Chip("ada", 66, 48),
    "RTX 4080": Chip("ada", 76, 64),
    "RTX 4080 SUPER": Chip("ada", 80, 64),
    "RTX 4090": Chip("ada", 128, 72),
    "RTX 5060 Ti": Chip("blackwell graphics", 36, 32),
    "RTX 5070": Chip("blackwell graphics", 48, 48),
    "RTX 5070 Ti": Chip("blackwell graphics", 70, 48),
    "RTX 5080": Chip("blackwell graphics", 84, 64),
    "RTX 5090": Chip("blackwell graphics", 170, 96),
    "RTX PRO 6000 Blackwell Server Edition": Chip("blackwell graphics", 188, 128),
    "RTX PRO 6000 Blackwell Workstation Edition": Chip("blackwell graphics", 188, 128),
    "H100 SXM": Chip("hopper", 132, 50),
    "H100 PCIe": Chip("hopper", 114, 50),
    "H100 NVL": Chip("hopper", 132, 60),
    "H800 SXM": Chip("hopper", 132, 50),
    "H20": Chip("hopper", 78, 60),
    "H200": Chip("hopper", 132, 60),
    "H200 NVL": Chip("hopper", 132, 60),
    "GH200": Chip("hopper", 132, 60),
    "GH200 144GB": Chip("hopper", 132, 60),
    "B200": Chip("blackwell", 148, 126),
    "B300": Chip("blackwell", 148, 126),
    "GB200": Chip("blackwell", 152, 126),
    "GB300": Chip("blackwell", 152, 126),
}
"""The chips of listed devices, by the device's name. Devices that are not in this mapping cannot borrow a calibration."""


def card_of(device: Device) -> Card | None:
    """Return a device together with its multiprocessors and L2 cache; None if these are unknown."""
    chip = CHIPS.get(device.name)
    return None if chip is None else Card(device, chip.multiprocessors, int(chip.l2_mebibytes * MIB))


def relatives(name: str, others: Iterable[str]) -> tuple[list[str], bool]:
    """Among the cards in ``others``, return those that are most similar to the card ``name``. Also return whether these cards and the card
    ``name`` have the same architecture."""
    own = CHIPS[name].architecture
    cards = {other: CHIPS[other].architecture for other in others if other in CHIPS and other != name}
    for alike in (own, *NEAREST[own]):
        found = [other for other, architecture in cards.items() if architecture in alike.split(" + ")]
        if found:
            return found, alike == own
    return [], False

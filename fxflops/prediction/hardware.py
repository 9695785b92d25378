"""The properties of a card that the formulas for kernel times need."""

from __future__ import annotations

from dataclasses import dataclass

from ..roofline.devices import Device


@dataclass(frozen=True, slots=True)
class Card:
    """A device with its number of multiprocessors and the bytes of its L2 cache."""

    device: Device
    multiprocessors: int
    l2_bytes: int

    @property
    def bandwidth(self) -> float:
        """The bytes/s of the card's memory."""
        return self.device.bandwidth

    def peak(self, dtype: str) -> float:
        """Return the card's peak FLOP/s in a dtype ("f32", "bf16" ...)."""
        return self.device.peak(dtype)

"""The calibration of a card: for each family of kernels, the numbers of the family's formula, and the error of predictions.

A calibration is fitted to measured times of operations. fxflops comes with calibrations in ``cards/``, which
``python -m benchmarks.prediction`` fitted to public measurements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from ..errors import InputError
from ..roofline.devices import Device, find_device
from . import attention, attention_backward, collectives, convolutions, depthwise, products, vectors
from .hardware import Card
from .residuals import Residuals

FORMULAS: dict[str, ModuleType] = {
    "linear": products,
    "batched": products,
    "conv": convolutions,
    "depthwise": depthwise,
    "attention": attention,
    "attention_backward": attention_backward,
    "elementwise": vectors,
    "norm": vectors,
    "channel_norm": vectors,
    "softmax": vectors,
    "all_reduce": collectives,
    "all_gather": collectives,
    "reduce_scatter": collectives,
    "all_to_all": collectives,
}
"""The module with the formula of each family. "linear" are matrix products with one weight, "batched" are products of batches of
matrices. Kernels whose time depends on the bytes that they move have the formula in ``vectors``."""
SAME_SPEED = {"f16": "bf16", "bf16": "f16"}
"""By dtype, another dtype that cards compute equally fast."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of kernels on a card, in one dtype.

    - ``numbers``: the fitted numbers of the formula.
    - ``residuals``: corrections to the formula by the kernel's shape, or None for no corrections.
    - ``rows``: the number of measurements.
    - ``held_out``: the number of measurements that the fit did not use.
    - ``error``: the mean error on the held-out measurements, as a share.
    - ``kernels``: the library whose kernels were measured.
    - ``source``: where the measurements come from.
    """

    numbers: Mapping[str, float]
    residuals: Residuals | None = field(repr=False)
    rows: int
    held_out: int
    error: float
    kernels: str
    source: str

    def note(self) -> str:
        """Describe the measurements that the family was fitted to, and its error."""
        return f"fitted to {self.kernels} ({self.source}); {self.error:.1%} mean error on {self.tested_on()}"

    def tested_on(self) -> str:
        """Say in words which measurements the error refers to. The measurements are held-out rows, or all rows if each row was left out of
        a fit in turn."""
        if self.held_out == self.rows:
            return f"{self.rows} rows (leave-one-out)"
        return f"{self.held_out} held-out measurements"

    def seconds(self, name: str, card: Card, dtype: str, features: Tensor) -> Tensor:
        """Return the seconds of kernels of the family ``name``: ``features[kernels, ...] -> seconds[kernels]``."""
        formula = FORMULAS[name]
        numbers = {key: features.new_tensor(value) for key, value in self.numbers.items()}
        found: Tensor = formula.seconds(numbers, card, dtype, features)
        return found if self.residuals is None else found * self.residuals.factor(formula.FEATURES, features)


@dataclass(frozen=True, slots=True, repr=False)
class Calibration:
    """The calibration of a card. ``families`` are the calibrated families of kernels, by name and dtype ("linear bf16").

    ``host_seconds`` is the time that the host needs per call, for ``predict(launch="eager")``; None if unknown.
    """

    device: str
    multiprocessors: int
    l2_bytes: int
    families: Mapping[str, Family] = field(default_factory=dict)
    host_seconds: float | None = None

    def __repr__(self) -> str:
        families = f"{len(self.families)} famil{'y' if len(self.families) == 1 else 'ies'} of kernels"
        host = "" if self.host_seconds is None else f"; the host takes {1e6 * self.host_seconds:.1f} us per call"
        lines = [f"{name}: {family.note()}" for name, family in self.families.items()]
        return "\n".join([f"calibration of {self.device}: {families}{host}", *lines])

    def family(self, name: str, dtype: str) -> Family | None:
        """Return the family ``name`` in ``dtype``, or else in an equally fast dtype; None if neither is calibrated."""
        found = self.families.get(f"{name} {dtype}")
        return found or self.families.get(f"{name} {SAME_SPEED.get(dtype, dtype)}")

    def card(self, device: Device | None = None) -> Card:
        """Return the card for the formulas. The peaks and the bandwidth are those of ``device``, by default of the device in the table."""
        return Card(device or find_device(self.device), self.multiprocessors, self.l2_bytes)

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file."""
        Path(path).write_text(json.dumps(self.as_data(), separators=(",", ":")) + "\n", encoding="utf8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Load a calibration from a JSON file; raise InputError if the file does not contain a calibration."""
        return cls.from_data(json.loads(Path(path).read_text(encoding="utf8")))

    def as_data(self) -> dict[str, Any]:
        """Return the calibration as a dict that JSON can store."""
        return {
            "device": self.device,
            "multiprocessors": self.multiprocessors,
            "l2_bytes": self.l2_bytes,
            "host_seconds": self.host_seconds,
            "families": {
                name: {
                    "numbers": dict(family.numbers),
                    "rows": family.rows,
                    "held_out": family.held_out,
                    "error": family.error,
                    "kernels": family.kernels,
                    "source": family.source,
                    "residuals": None if family.residuals is None else family.residuals.as_data(),
                }
                for name, family in self.families.items()
            },
        }

    @classmethod
    def from_data(cls, data: Any) -> Calibration:
        """Return the calibration from a dict made by :meth:`as_data`; raise InputError for other data."""
        try:
            families = {
                name: Family(
                    **{**family, "residuals": family["residuals"] and Residuals.from_data(family["residuals"])}
                )
                for name, family in data["families"].items()
            }
            return cls(data["device"], data["multiprocessors"], data["l2_bytes"], families, data.get("host_seconds"))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the data is not a calibration: {type(error).__name__}: {error}") from error


def calibration_of(device: Device) -> Calibration | None:
    """Return the calibration that fxflops ships for a device; None if fxflops has no calibration for this device."""
    return next((found for found in shipped() if device.is_called(found.device)), None)


@cache
def shipped() -> tuple[Calibration, ...]:
    """Return all calibrations that fxflops ships."""
    folder = files(__package__) / "cards"
    texts = [file.read_text(encoding="utf8") for file in folder.iterdir() if file.name.endswith(".json")]
    return tuple(Calibration.from_data(json.loads(text)) for text in sorted(texts))

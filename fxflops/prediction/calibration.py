"""The calibration of a card: for each family of kernels the numbers of its formula, with their error.

A calibration is fitted to measured times of operations. The calibrations shipped with fxflops are files in ``cards/``, fitted by
``python -m benchmarks.prediction`` to public measurements.
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
"""The formula of each family: products with one weight (linear layers), products of batches of matrices, convolutions,
depthwise convolutions, fused attention, kernels that move bytes, and collectives."""
SAME_SPEED = {"f16": "bf16", "bf16": "f16"}
"""Dtypes that a card computes equally fast."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of kernels on a card, in one dtype.

    ``error`` is the mean error, as a share, on ``held_out`` rows that the fit did not use; ``kernels`` says whose kernels were
    measured, and ``source`` where the measurements are from.
    """

    numbers: Mapping[str, float]
    residuals: Residuals | None = field(repr=False)
    rows: int
    held_out: int
    error: float
    kernels: str
    source: str

    def note(self) -> str:
        """Describe what it was fitted to, and how well it predicts."""
        return f"fitted to {self.kernels} ({self.source}); {self.error:.1%} mean error on {self.tested_on()}"

    def tested_on(self) -> str:
        """Say which rows the error was measured on: held-out rows, or all rows if each was left out in turn."""
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
    """The calibrated families of a card's kernels, by name and dtype ("linear bf16").

    ``host_seconds`` is the host's time per call, after which ``predict(launch="eager")`` starts a kernel; None if unknown.
    """

    device: str
    multiprocessors: int
    l2_bytes: int
    families: Mapping[str, Family] = field(default_factory=dict)
    host_seconds: float | None = None

    def __repr__(self) -> str:
        families = f"{len(self.families)} famil{'y' if len(self.families) == 1 else 'ies'} of kernels"
        host = "" if self.host_seconds is None else f"; the host takes {1e6 * self.host_seconds:.1f} us for a call"
        lines = [f"{name}: {family.note()}" for name, family in self.families.items()]
        return "\n".join([f"calibration of {self.device}: {families}{host}", *lines])

    def family(self, name: str, dtype: str) -> Family | None:
        """Return a family in a dtype, or in an equally fast one; None if there is none."""
        found = self.families.get(f"{name} {dtype}")
        return found or self.families.get(f"{name} {SAME_SPEED.get(dtype, dtype)}")

    def card(self, device: Device | None = None) -> Card:
        """Return the card, with the ceilings of ``device`` (by default those of the table)."""
        return Card(device or find_device(self.device), self.multiprocessors, self.l2_bytes)

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file."""
        Path(path).write_text(json.dumps(self.as_data(), separators=(",", ":")) + "\n", encoding="utf8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Load a calibration from a file; InputError if it has none."""
        return cls.from_data(json.loads(Path(path).read_text(encoding="utf8")))

    def as_data(self) -> dict[str, Any]:
        """Return the calibration as data for JSON."""
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
        """Return the calibration from the data of :meth:`as_data`; InputError for anything else."""
        try:
            families = {
                name: Family(
                    **{**family, "residuals": family["residuals"] and Residuals.from_data(family["residuals"])}
                )
                for name, family in data["families"].items()
            }
            return cls(data["device"], data["multiprocessors"], data["l2_bytes"], families, data.get("host_seconds"))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"this is not a calibration: {type(error).__name__}: {error}") from error


def calibration_of(device: Device) -> Calibration | None:
    """Return the calibration shipped with fxflops for a device of the table; None if there is none."""
    return next((found for found in shipped() if device.is_called(found.device)), None)


@cache
def shipped() -> tuple[Calibration, ...]:
    """Return the calibrations shipped with fxflops."""
    folder = files(__package__) / "cards"
    texts = [file.read_text(encoding="utf8") for file in folder.iterdir() if file.name.endswith(".json")]
    return tuple(Calibration.from_data(json.loads(text)) for text in sorted(texts))

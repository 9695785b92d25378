"""Families of kernels that were not measured on a card: borrowed from the most similar cards, or from another dtype.

A family's numbers are shares of the card's own peaks and bandwidth, so they can serve another card. Predictions from several cards are
combined by their geometric mean. The error of borrowing is measured by leaving cards out (``python -m benchmarks.prediction``), and
stated as the family's error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch
from torch import Tensor

from ..roofline.devices import Device
from .calibration import Calibration, Family, calibration_of, shipped
from .calls import NCCL
from .chips import CHIPS, relatives
from .hardware import Card

ALIKE, NEAR, FAR, DTYPE = "same architecture", "nearest architecture", "any card", "other dtype"
"""Sources of a borrowed family: cards of the same architecture, cards of the nearest one, any card, or kernels of another dtype."""
BY_BYTES = ("elementwise", "norm", "softmax")
"""Families whose time depends on their bytes, not on the dtype."""
KIN = {"batched": "linear", "channel_norm": "norm"}
"""Substitutes for families that were not measured."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A family of kernels with borrowed numbers: from ``cards``, in the dtype that ``family`` names ("norm f32").

    ``error`` is the measured mean error of such predictions, ``held_out`` the number of cards left out to measure it; None and 0 if it
    could not be measured.
    """

    family: str
    cards: Mapping[str, Family]
    error: float | None
    held_out: int

    def seconds(self, name: str, card: Card, dtype: str, features: Tensor) -> Tensor:
        """Return the seconds of kernels: ``features[kernels, ...] -> seconds[kernels]``."""
        own, _ = self.family.split()
        each = [family.seconds(own, card, dtype, features) for family in self.cards.values()]
        return torch.stack(each).log().mean(0).exp()

    def note(self) -> str:
        """Describe what it was fitted to, and how well such predictions do."""
        kernels = ", ".join(sorted({f"{each.kernels} ({each.source})" for each in self.cards.values()}))
        known = "error unknown"
        if self.error is not None:
            cards = "card" if self.held_out == 1 else "cards"
            known = f"{self.error:.1%} mean error on {self.held_out} held-out {cards}"
        return f"not measured on this card: {self.family} of {', '.join(self.cards)}, fitted to {kernels}; {known}"


def family_of(device: Device, name: str, dtype: str, without: Collection[str] = ()) -> Family | Borrowed | None:
    """Return a family of a card: its own, else a borrowed one; None if there is none to borrow.

    The card's own kernels in another dtype are preferred to other cards'. Calibrations of cards named in ``without`` are not used.
    Collectives are not borrowed: their speed depends on the links between cards, which differ within an architecture (H100 PCIe has
    none of the H100 SXM's NVLinks).
    """
    known = {each.device: each for each in shipped() if each.device not in without}
    own = calibration_of(device)
    if own is not None and own.device in known:
        family = own.family(name, dtype)
        if family is not None:
            return family
        borrowed = _of_cards({own.device: own}, name, dtype, "")
        if borrowed is not None:
            return borrowed
    if device.name not in CHIPS or dtype == NCCL:
        return None
    for exactly in (True, False):
        having = [card for card, each in known.items() if _named(each, name, dtype, exactly)]
        cards, alike = relatives(device.name, having)
        if cards:
            return _of_cards({card: known[card] for card in cards}, name, dtype, ALIKE if alike else NEAR)
    # The family was measured on few cards: any of them says more than a bound.
    others = {card: each for card, each in known.items() if _named(each, name, dtype, True)}
    return _of_cards(others, name, dtype, FAR) if others else None


def _of_cards(cards: Mapping[str, Calibration], name: str, dtype: str, how: str) -> Borrowed | None:
    """Return a family borrowed from all these cards; None if they have no substitute for it."""
    exactly = all(_named(each, name, dtype, True) for each in cards.values())
    keys = {card: _named(each, name, dtype, exactly) for card, each in cards.items()}
    key = next(iter(keys.values()))
    if key is None:
        return None
    families = {card: each.families[named] for card, each in cards.items() if (named := keys[card]) is not None}
    reasons = [(key, how)] if how else []
    if not exactly:
        reasons.append((f"{name} {dtype}" if f"{name} {dtype}" in errors() else f"{name} bf16", DTYPE))
    found = [errors().get(name, {}).get(reason) for name, reason in reasons]
    known = [each for each in found if each is not None]
    if len(known) < len(reasons):
        return Borrowed(key, families, None, 0)
    error, cards_left_out = max(known)
    return Borrowed(key, families, error, int(cards_left_out))


def _named(calibration: Calibration, name: str, dtype: str, exactly: bool) -> str | None:
    """Return the name of a card's family: the requested one or, unless ``exactly``, a substitute."""
    same = {"bf16": ("bf16", "f16"), "f16": ("f16", "bf16")}.get(dtype, (dtype,))
    kin = name if exactly else KIN.get(name, name)
    names = [f"{kin} {each}" for each in same]
    if not exactly and kin in BY_BYTES:
        names = sorted(
            (each for each in calibration.families if each.split()[0] == kin), key=lambda each: each not in names
        )
    return next((each for each in names if each in calibration.families), None)


@cache
def errors() -> Mapping[str, Mapping[str, tuple[float, int]]]:
    """Return the mean errors of borrowed families, by family and by how they are borrowed, each with the number of cards left out."""
    data = json.loads((files(__package__) / "borrowed.json").read_text(encoding="utf8"))
    return {
        name: {how: (float(error), int(cards)) for how, (error, cards) in each.items()} for name, each in data.items()
    }

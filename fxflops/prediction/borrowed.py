"""Some kernels were not measured on a card. Borrow their numbers from the most similar cards, or from another dtype.

A family is a group of kernels with one formula, such as the kernels of linear layers. The numbers of a family are shares of the card's own
peaks and bandwidth, so the numbers can be used for another card. Predictions from several cards are combined by their geometric mean.
``python -m benchmarks.prediction`` measures the error of borrowing: it predicts the times of a card without the card's own measurements.
The measured error is stated as the family's error.
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
"""The sources of a borrowed family: cards of the same architecture, cards of the nearest other architecture, any card, or another dtype."""
BY_BYTES = ("elementwise", "norm", "softmax")
"""Families of kernels whose time depends on the bytes that they move, not on the dtype."""
KIN = {"batched": "linear", "channel_norm": "norm"}
"""By family, the family that is used instead if the first was not measured."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A family of kernels with numbers borrowed from ``cards``. ``family`` is the name of the borrowed family and its dtype ("norm f32").

    ``error`` is the measured mean error of such predictions; None if it could not be measured. ``held_out`` is the number of cards that
    were left out to measure the error.
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
        """Describe the measurements that the family was fitted to, and the error of such predictions."""
        kernels = ", ".join(sorted({f"{each.kernels} ({each.source})" for each in self.cards.values()}))
        known = "error unknown"
        if self.error is not None:
            cards = "card" if self.held_out == 1 else "cards"
            known = f"{self.error:.1%} mean error on {self.held_out} held-out {cards}"
        return f"not measured on this card: uses {self.family} of {', '.join(self.cards)}, fitted to {kernels}; {known}"


def family_of(device: Device, name: str, dtype: str, without: Collection[str] = ()) -> Family | Borrowed | None:
    """Return the family ``name`` for a card: the card's own, else a borrowed family; None if no family can be borrowed.

    The card's own kernels in another dtype are preferred to kernels of other cards. Calibrations of cards in ``without`` are not used.
    The numbers of collectives are not borrowed, because the links between cards differ even within an architecture. For example, the H100
    PCIe lacks the NVLinks of the H100 SXM.
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
    # If no similar card was measured, use any card: its kernels still give a better prediction than a lower bound.
    others = {card: each for card, each in known.items() if _named(each, name, dtype, True)}
    return _of_cards(others, name, dtype, FAR) if others else None


def _of_cards(cards: Mapping[str, Calibration], name: str, dtype: str, how: str) -> Borrowed | None:
    """Return the family ``name`` borrowed from all these cards; None if the cards have neither this family nor a substitute."""
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
    """Return the name of the requested family if the card has the family. If the card does not have the family, and ``exactly`` is False,
    return the name of a substitute; None if it has neither."""
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
    """For each borrowed family, return the mean error by the source of the numbers, and the number of cards that were left out to measure
    this error."""
    data = json.loads((files(__package__) / "borrowed.json").read_text(encoding="utf8"))
    return {
        name: {how: (float(error), int(cards)) for how, (error, cards) in each.items()} for name, each in data.items()
    }

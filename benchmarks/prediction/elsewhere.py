"""Leave cards out: measure how well the calibrations of other cards predict a card without measurements."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from fxflops.prediction import borrowed
from fxflops.prediction.borrowed import ALIKE, DTYPE, NEAR, family_of
from fxflops.prediction.chips import CHIPS
from fxflops.prediction.hardware import Card
from fxflops.roofline.devices import find_device

from . import tables
from .fit import Measured

FILE = Path(borrowed.__file__).with_name("borrowed.json")
ROWS = 400
"""At most this many held-out rows of each family and card are predicted."""
OWN_CARD = "H100 SXM"


class LeftOut(NamedTuple):
    """A family of a card, predicted by the calibrations of other cards: the other cards, how they were chosen, and the mean error."""

    family: str
    card: str
    others: tuple[str, ...]
    how: str
    error: float


def left_out(measurements: Iterator[tuple[str, str, Card, Measured]]) -> Iterator[LeftOut]:
    """Yield the error for each family of each card when only other cards' calibrations are used."""
    for name, dtype, card, measured in measurements:
        known = CHIPS.get(card.device.name)
        if known is None or dtype == "nccl" or not measured.held_out.any():
            continue
        family = family_of(card.device, name, dtype, {card.device.name})
        if not isinstance(family, borrowed.Borrowed) or family.family != f"{name} {dtype}":
            continue
        rows = measured.held_out.nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:ROWS]]
        with torch.no_grad():
            predicted = family.seconds(name, card, dtype, measured.features[rows])
        error = (predicted / measured.seconds[rows] - 1).abs().mean().item()
        alike = CHIPS[next(iter(family.cards))].architecture == known.architecture
        yield LeftOut(f"{name} {dtype}", card.device.name, tuple(family.cards), ALIKE if alike else NEAR, error)


def other_dtypes() -> Iterator[LeftOut]:
    """Yield the errors for this project's own bf16 measurements on an H100, predicted from the families of other cards or dtypes."""
    table = pd.read_csv(tables.OPERATIONS)
    table = table[(table["pass"] == "forward") & (table.dtype == "bf16")]
    device = find_device(OWN_CARD)
    card = tables.card_of_system("h100_sxm")
    for name, kind in (
        ("norm", "norm"),
        ("softmax", "softmax"),
        ("elementwise", "elementwise"),
        ("batched", "batched gemm"),
    ):
        rows = table[(table.family == kind) & ~table.shapes.str.contains("cross_entropy|batch_norm|group_norm")]
        features = [features_of(name, row) for row in rows.itertuples()]
        without = set() if name == "batched" else {OWN_CARD}
        family = family_of(device, name, "bf16", without)
        assert isinstance(family, borrowed.Borrowed)
        with torch.no_grad():
            predicted = family.seconds(name, card, "bf16", torch.tensor(features, dtype=torch.float64))
        error = (predicted / torch.tensor(rows.seconds.to_numpy()) - 1).abs().mean().item()
        yield LeftOut(f"{name} bf16", OWN_CARD, (f"{family.family} of {', '.join(family.cards)}",), DTYPE, error)


def features_of(name: str, row: object) -> tuple[float, ...]:
    sizes = tables.sizes_in(row.shapes)  # type: ignore[attr-defined]
    if name == "batched":
        return sizes["b"], sizes["m"], sizes["n"], sizes["k"], 2
    return row.bytes, sizes.get("width", 1)  # type: ignore[attr-defined]


def save(found: list[LeftOut]) -> None:
    """Write the mean errors, by family and by how it is borrowed, to the file that fxflops reads."""
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        errors[each.family][each.how].append(each.error)
    data = {
        family: {how: [round(sum(values) / len(values), 4), len(values)] for how, values in sorted(ways.items())}
        for family, ways in sorted(errors.items())
    }
    FILE.write_text(json.dumps(data, indent=1) + "\n", encoding="utf8")


def table(found: list[LeftOut]) -> str:
    """Return the section of the results about left-out cards."""
    lines = [
        f"| {each.family} | {each.card} | {', '.join(each.others)} | {each.how} | {each.error:.1%} |"
        for each in sorted(found)
    ]
    return "\n".join([*HEAD.strip().splitlines(), *lines, ""])


HEAD = """
## Cards left out

Each card's held-out rows, predicted as if nothing had been measured on it: by the cards most like it
([chips.py](../../fxflops/prediction/chips.py)). These errors are what `report.predict` states for cards without measurements. The order
of likeness was chosen with these figures in sight. One that was fixed beforehand, by the distance of compute capabilities, with cards of 75 W as any other,
was tried once, and is far worse: whole models without any row of the card are then 28.5% off in inference and 22.5% in training (V100 PCIe, taken
for a T4, by 74 and 77%). "Other dtype": rows of bf16 kernels on an H100 (this project's own), predicted by f32
kernels by their bytes; batched products by those of linear layers.

| family | card | predicted by | which are of the | mean error |
|---|---|---|---|---:|
"""

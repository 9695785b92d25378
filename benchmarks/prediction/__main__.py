"""Fit the calibrations that come with fxflops, and write how well they predict.

    python -m benchmarks.prediction FOLDER [--families linear attention]
    python -m benchmarks.prediction FOLDER --serving

FOLDER has the public measurements: aiconfigurator's tables (bf16 products and attention, collectives, served models), NeuSight's f32
operators (scripts/asplos/data/dataset/test), whole models and descriptions of GPUs, and recorded CUDA allocations. The measurements
are not part of this project. The fitted numbers are written to fxflops/prediction/cards/, the errors to
benchmarks/results/prediction.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fxflops.prediction.calibration import Calibration, Family
from fxflops.prediction.hardware import Card

from . import bounds, elsewhere, models, on_h100, reserved, serving, tables
from .fit import Measured, fit

CARDS = Path(__file__).parents[2] / "fxflops" / "prediction" / "cards"
RESULTS = Path(__file__).parents[1] / "results" / "prediction.md"

FEW = 59
"""With this many rows or fewer, only the formula's numbers are fitted: residuals need more rows."""
BYTES = (20, 23, 25, 26, 27, 28, 29, 30, 32)
LENGTHS = tuple(
    round(math.log2(length), 3)
    for length in (768, 1024, 1280, 1600, 2048, 2560, 3072, 4096, 5120, 6400, 8192, 10240, 12288, 16384)
)
KNOTS: dict[str, Mapping[str, tuple[float, ...]]] = {
    "linear bf16": {
        "m": (0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15),
        "n": (5, 7, 9, 11, 12, 13, 14, 16),
        "k": (5, 7, 9, 11, 12, 13, 14, 16),
    },
    "linear f32": {"m": (9, 11, 13, 16), "n": (9, 11, 13, 16), "k": (9, 11, 13, 16)},
    "batched f32": {
        "batch": (3, 6, 9, 12, 16),
        "m": (6, 8, 10, 12),
        "n": (6, 8, 10, 12),
        "k": (6, 8, 10, 12),
    },
    "attention bf16": {
        "sequences": (0, 2, 4, 6, 8),
        "queries": (0, 4, 6, 7, 8, 9, 10, 11, 13, 14),
        "heads": (0, 2, 4, 5, 7),
        "key_heads": (0, 2, 3, 5),
        "head_size": (6, 7, 8),
    },
    "attention_backward bf16": {},
    **{f"{name} {dtype}": {} for name, dtype in tables.CONVOLUTIONS},
    "channel_norm bf16": {},
    "norm f32": {"bytes": BYTES, "length": LENGTHS},
    "softmax f32": {"bytes": BYTES, "length": LENGTHS},
    "elementwise f32": {"bytes": BYTES},
    "elementwise bf16": {},
    **{
        f"{op} nccl": {"ranks": (1, 2, 3), "bytes": (7, 10, 13, 15, 17, 19, 20, 21, 22, 24, 27, 30)}
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    },
}
"""By family, the knots of the residuals as base-2 logarithms, in the range of the measurements."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--families",
        nargs="*",
        metavar="FAMILY",
        help="fit these alone; none to write the results again",
        default=sorted({name.split()[0] for name in KNOTS}),
    )
    parser.add_argument("--serving", action="store_true", help="write the results of serving again, and nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.serving:
        replace_section(serving.table(arguments.folder))
        return
    for name, dtype, card, measured in measurements(arguments.folder, arguments.families):
        knots = KNOTS[f"{name} {dtype}"] if len(measured.seconds) > FEW or measured.eager else {}
        family = fit(name, card, dtype, measured, knots)
        save(card, f"{name} {dtype}", family)
        print(f"{card.device.name}: {name} {dtype}, {family.rows} rows, {family.error:.1%} on the others", flush=True)
    everything = sorted({name.split()[0] for name in KNOTS})
    left_out = [*elsewhere.left_out(measurements(arguments.folder, everything)), *elsewhere.other_dtypes()]
    elsewhere.save(left_out)
    sections = [
        table(),
        elsewhere.table(left_out),
        on_h100.tables(),
        bounds.table(measurements(arguments.folder, everything)),
        models.table(arguments.folder),
        serving.table(arguments.folder),
        reserved.table(arguments.folder),
    ]
    RESULTS.write_text("\n".join(sections), encoding="utf8")


def measurements(folder: Path, families: list[str]) -> Iterator[tuple[str, str, Card, Measured]]:
    """Yield each measured family of each card: the family's name, its dtype, the card, and the measurements."""
    if "linear" in families:
        for system, measured in tables.products_bf16(folder):
            yield "linear", "bf16", tables.card_of_system(system), measured
    if "attention" in families:
        for system, measured in tables.attention_bf16(folder):
            yield "attention", "bf16", tables.card_of_system(system), measured
    if "attention_backward" in families:
        yield "attention_backward", "bf16", tables.card_of_system("h100_sxm"), tables.attention_backward_h100()
    for family, dtype in tables.CONVOLUTIONS:
        if family in families:
            yield family, dtype, tables.card_of_system("h100_sxm"), tables.convolutions_h100(family, dtype)
    if "channel_norm" in families:
        yield "channel_norm", "bf16", tables.card_of_system("h100_sxm"), tables.channel_norms_h100()
    if "elementwise" in families:
        for dtype in ("bf16", "f32"):
            yield "elementwise", dtype, tables.card_of_system("h100_sxm"), tables.elementwise_h100()
    for system, family, measured in tables.collectives(folder):
        if family in families:
            yield family, "nccl", tables.card_of_system(system), measured
    for gpu, family, measured in [*tables.products_f32(folder), *tables.vectors_f32(folder)]:
        if family in families:
            yield family, "f32", tables.card_of_gpu(folder, gpu), measured


def save(card: Card, name: str, family: Family) -> None:
    """Put a family into the card's file."""
    file = CARDS / f"{card.device.name.lower().replace(' ', '_')}.json"
    known = (
        Calibration.load(file)
        if file.exists()
        else Calibration(card.device.name, card.multiprocessors, card.l2_bytes, {})
    )
    families = dict(sorted({**known.families, name: family}.items()))
    replace(known, families=families).save(file)


def replace_section(section: str) -> None:
    """Replace the section of the results that has the same heading."""
    heading = section.split("\n", 1)[0] + "\n"
    before, _, rest = RESULTS.read_text(encoding="utf8").partition(heading)
    _, more, after = rest.partition("\n## ")
    RESULTS.write_text(f"{before}{section}{more}{after}", encoding="utf8")


def table() -> str:
    """Return the first section of the results: the families of all cards, with their errors."""
    rows = [
        f"| {name} | {calibration.device} | {family.rows} | {family.held_out} | {family.error:.1%} | {family.kernels} | {family.source} |"
        for calibration in map(Calibration.load, sorted(CARDS.glob("*.json")))
        for name, family in calibration.families.items()
    ]
    return "\n".join([*HEAD.strip().splitlines(), *sorted(rows), ""])


HEAD = """
# Predicted times and memory

How far `report.predict` is from measured times of single operations: the mean error on rows that the fit did not use, by family of kernels and card. A
third of the rows is held out; of bf16 products a third of all pairs (n, k). Made by `python -m benchmarks.prediction FOLDER`.

| family | card | rows | held out | mean error on those | kernels | source |
|---|---|---:|---:|---:|---|---|
"""


if __name__ == "__main__":
    main()

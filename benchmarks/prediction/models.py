"""Whole models against NeuSight's measured runs: f32, eager, Hugging Face, on one NVIDIA GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from fxflops import Report, count
from fxflops.prediction.predict import predict
from fxflops.records import PARTS
from fxflops.roofline.devices import find_device, listed

from .tables import GPUS

CLASSES = {"bert": "BertLMHeadModel", "gpt2": "GPT2LMHeadModel", "opt": "OPTForCausalLM"}
CONFIGS = {"bert": "BertConfig", "gpt2": "GPT2Config", "opt": "OPTConfig"}


class Run(NamedTuple):
    """A measured run, and what it was predicted to take, in milliseconds."""

    card: str
    mode: str
    model: str
    batch: int
    measured: float
    predicted: float
    neusight: float
    left_out: float
    """What the calibrations of other cards predict, as if nothing had been measured on this one."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def runs(folder: Path) -> Iterator[Run]:
    """Yield the measured runs with their predictions; switchxl4 reads values, and is left out."""
    table = pd.read_csv(folder / "neusight_models_measured.csv")
    table = table[table.option.isna() & (table.model_name != "switchxl4")]
    cards = {gpu.replace(" ", "_"): name for gpu, name in GPUS.items()}
    for row in table[table.device.isin(cards)].sort_values(["device", "mode", "model_name", "batch"]).itertuples():
        report = counted(folder, row.model_name, row.seqlen, row.batch, row.mode == "train")
        predicted = 1e3 * report.predict(cards[row.device]).seconds
        measured, theirs = row.label_all_e2e_latency, row.neusight_all_e2e_latency
        card = cards[row.device]
        others = 1e3 * without_own(report, card)
        yield Run(card, row.mode, row.model_name, row.batch, measured, predicted, theirs, others)


def without_own(report: Report, name: str) -> float:
    """Return the seconds that the calibrations of other cards predict."""
    device = find_device(name)
    exact = report._counted_as_computed("exact")
    phases = [phase for phase in ("forward", "backward") if any(each.call.phase in PARTS[phase] for each in exact)]
    rooflines = [report.roofline(device, phase) for phase in phases]
    return predict(exact, rooflines, device, without={name}).seconds


def others(folder: Path) -> Iterator[tuple[str, str, str, str, int, float, float | None, float]]:
    """Yield the runs that are not of one NVIDIA GPU without compilation: their bound where the table has the card; in milliseconds."""
    table = pd.read_csv(folder / "neusight_models_measured.csv")
    known = {gpu.replace(" ", "_") for gpu in GPUS}
    table = table[(table.option.notna() | ~table.device.isin(known)) & (table.model_name != "switchxl4")]
    for row in table.sort_values(["device", "mode", "model_name", "batch"]).itertuples():
        name = row.device.replace("_", " ").removeprefix("AMD ").removeprefix("NVIDIA ").replace("Tesla ", "")
        device = listed(name)
        option = "" if pd.isna(row.option) else row.option
        predicted = None
        if device is not None and option in ("", "fusion"):
            report = counted(folder, row.model_name, row.seqlen, row.batch, row.mode == "train")
            predicted = 1e3 * report.predict(device).seconds
        measured = row.label_all_e2e_latency
        yield name, option, row.mode, row.model_name, row.batch, measured, predicted, row.neusight_all_e2e_latency


@cache
def counted(folder: Path, name: str, length: int, batch: int, backward: bool) -> Report:
    """Return the count of a model on meta, with attention in plain products as it was measured."""
    import transformers

    said: dict[str, Any] = json.loads((folder / "neusight_model_configs" / f"{name}.json").read_text())
    kind = said.pop("model_type")
    config = getattr(transformers, CONFIGS[kind])(**said, attn_implementation="eager", use_cache=False)
    with torch.device("meta"):
        model = getattr(transformers, CLASSES[kind])(config).train(backward)
        ids = torch.zeros(batch, length, dtype=torch.long)
    return count(model, kwargs={"input_ids": ids}, backward=backward)


def table(folder: Path) -> str:
    """Return the section of the results about whole models."""
    found = list(runs(folder))
    lines = [
        f"| {run.card} | {run.mode} | {run.model} | {run.batch} | {run.measured:.1f} | {run.predicted:.1f} | {run.error:+.1%} "
        f"| {run.left_out / run.measured - 1:+.1%} | {run.neusight / run.measured - 1:+.1%} |"
        for run in found
    ]
    means = []
    for mode in ("inf", "train"):
        errors = [abs(run.error) for run in found if run.mode == mode]
        theirs = [abs(run.neusight / run.measured - 1) for run in found if run.mode == mode]
        elsewhere = [abs(run.left_out / run.measured - 1) for run in found if run.mode == mode]
        means.append(
            f"- {mode}: {sum(errors) / len(errors):.1%} mean error over {len(errors)} runs, calibrated on the card's own operators; "
            f"{sum(elsewhere) / len(elsewhere):.1%} without any row of the card; NeuSight's {sum(theirs) / len(theirs):.1%}"
        )
    for card, mode in (("P4", "inf"), ("A100 80GB PCIe", "train")):
        errors = [abs(run.error) for run in found if (run.card, run.mode) == (card, mode)]
        rest = [abs(run.error) for run in found if run.mode == mode and run.card != card]
        means.append(
            f"- {mode} on {card} alone: {sum(errors) / len(errors):.1%}; without it {sum(rest) / len(rest):.1%}"
        )
    more = [
        f"| {name} | {option} | {mode} | {model} | {batch} | {measured:.1f} "
        f"| {'-' if predicted is None else f'{predicted:.1f} | {predicted / measured - 1:+.1%}'}{' | -' if predicted is None else ''} "
        f"| {theirs / measured - 1:+.1%} |"
        for name, option, mode, model, batch, measured, predicted, theirs in others(folder)
    ]
    return "\n".join([*HEAD.strip().splitlines(), *lines, "", *means, "", *OTHERS.strip().splitlines(), *more, ""])


HEAD = """
## Whole models

Measured runs of sitar-lab/NeuSight (6945927d9afc, MIT) on one GPU, in milliseconds, f32, without tf32. No fit used them: the cards' calibrations are
fitted to their own operators. "By other cards": with the calibrations of the cards most like it alone.

| card | mode | model | batch | measured | predicted | error | by other cards | NeuSight's error |
|---|---|---|---:|---:|---:|---:|---:|---:|
"""
OTHERS = """
## Other runs that no fit used

AMD's GPUs have no calibration: theirs is the bound. Compiled runs ("fusion") are predicted as they are written, and runs on four GPUs (dp4, tp4, pp4) not at all.

| card | option | mode | model | batch | measured | predicted | error | NeuSight's error |
|---|---|---|---|---:|---:|---:|---:|---:|
"""

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
        yield Run(cards[row.device], row.mode, row.model_name, row.batch, measured, predicted, theirs)


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
        f"| {run.neusight / run.measured - 1:+.1%} |"
        for run in found
    ]
    means = []
    for mode in ("inf", "train"):
        errors = [abs(run.error) for run in found if run.mode == mode]
        theirs = [abs(run.neusight / run.measured - 1) for run in found if run.mode == mode]
        means.append(
            f"- {mode}: {sum(errors) / len(errors):.1%} mean error over {len(errors)} runs; NeuSight's {sum(theirs) / len(theirs):.1%}"
        )
    return "\n".join([*HEAD.strip().splitlines(), *lines, "", *means, ""])


HEAD = """
## Whole models

Measured runs of sitar-lab/NeuSight (6945927d9afc, MIT) on one GPU, in milliseconds, f32, without tf32. No fit used them: the cards' calibrations are
fitted to their own operators.

| card | mode | model | batch | measured | predicted | error | NeuSight's error |
|---|---|---|---:|---:|---:|---:|---:|
"""

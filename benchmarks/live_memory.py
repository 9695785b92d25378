"""Compare the peak memory that ``count()`` predicts with the live storages of a real run, for every model of a zoo.

Also count the tensors that a count leaves alive.

    python -m benchmarks.live_memory diffusers transformers

The oracle (``tests/kinds/live_bytes.py``) is a dispatch mode that follows the storages that operators return until Python frees them.
It is independent of fxflops. Unlike the allocator, it does not see memory that a kernel allocates and frees within one operator. Both
sides run in eval mode on the CPU, without gradients, on the same inputs. Rows are saved in ``live_memory.jsonl`` next to the table, so
that a stopped run can be resumed.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import fxflops
from benchmarks.isolated import deadline
from benchmarks.machine import processor
from benchmarks.side_by_side.facts import seeded
from tests.kinds.live_bytes import Live

RESULTS = Path(__file__).parent / "results"
SECONDS = 60
TENSORS = torch.Tensor, nn.Parameter
CLOSE = 0.001
"""A prediction within 0.1% of the live storages counts as close."""


def tensors(apart_from: Iterable[int] = ()) -> list[torch.Tensor]:
    """Return all plain tensors that the garbage collector tracks in this process, without the ids in ``apart_from``."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) in TENSORS and id(each) not in apart_from]


def on_cpu(value: Any) -> Any:
    """Return a model or its inputs, with CPU tensors in place of meta tensors."""
    if isinstance(value, nn.Module):
        is_on_meta = any(parameter.is_meta for parameter in value.parameters())
        return value.to_empty(device="cpu") if is_on_meta else value
    return pytree.tree_map(
        lambda each: torch.zeros_like(each, device="cpu") if isinstance(each, torch.Tensor) and each.is_meta else each,
        value,
    )


def measured(build: Any) -> tuple[int, int, int]:
    """Return the peak of a real run by its live storages, the peak that ``count`` predicts, and the number of tensors that a count leaves
    alive, in the report or in a cache of the model's code."""
    seeded()
    before = {*map(id, tensors())}
    model, args, kwargs = map(on_cpu, build())
    args = args if isinstance(args, tuple) else (args,)
    if isinstance(model, nn.Module):
        model.eval()
    seeded()
    known = {*map(id, tensors())}
    gc.disable()  # otherwise cycles in a model would be freed at different calls on the two sides
    try:
        report = fxflops.count(model, args, kwargs)
        left = len(tensors(known))
        live = Live(tensors(before))
        seeded()
        with live, torch.no_grad():
            model(*args, **(kwargs or {}))
        return live.peak, report.max_memory, left
    finally:
        gc.enable()


def run(zoo: str, done: set[tuple[str, str]], file: Any) -> None:
    models = importlib.import_module(f"benchmarks.models.{zoo}_zoo")
    names = models.names()
    for name in names:
        if (zoo, name) in done:
            continue
        row: dict[str, Any] = {"zoo": zoo, "model": name, "of": len(names)}
        try:
            with deadline(SECONDS):
                row["live"], row["predicted"], row["left"] = measured(lambda name=name: models.build(name))
        except Exception as error:
            row["raises"] = f"{type(error).__name__}: {str(error)[:80]}"
        file.write(json.dumps(row) + "\n")
        file.flush()


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Memory predicted for whole zoos, beside live storages",
        "",
        f"`python -m benchmarks.live_memory`; {processor()}, torch {torch.__version__}, fxflops {fxflops.__version__}; eval mode, no gradients, f32.",
        "",
        "| zoo | models | equal | within 0.1% | further off | not compared | leave tensors |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    off: list[str] = []
    for zoo in dict.fromkeys(row["zoo"] for row in rows):
        of_zoo = [row for row in rows if row["zoo"] == zoo]
        compared = [row for row in of_zoo if "live" in row]
        equal = [row for row in compared if row["live"] == row["predicted"]]
        far = [row for row in compared if abs(row["predicted"] - row["live"]) > CLOSE * row["live"]]
        close = len(compared) - len(equal) - len(far)
        whole = of_zoo[-1]["of"]
        number = f"{len(of_zoo)}" if len(of_zoo) == whole else f"the first {len(of_zoo)} of {whole}"
        leaving = sum(row["left"] > 0 for row in compared)
        lines.append(
            f"| {zoo} | {number} | {len(equal)} | {close} | {len(far)} | {len(of_zoo) - len(compared)} | {leaving} |"
        )
        off += [
            f"| {zoo} | {row['model']} | {row['live']:,} | {row['predicted']:,} | {row['predicted'] / row['live'] - 1:+.2%} |"
            for row in far
        ]
    lines += [
        "",
        "The oracle follows tensors. It does not see the packed weights of torchvision's quantized models, which fxflops includes, and it cannot",
        "run flex attention, so models with flex attention are not compared. Other models that are not compared raise an error, or take longer",
        f"than {SECONDS} s.",
    ]
    if left := [f"{row['zoo']} {row['model']} ({row['left']})" for row in rows if row.get("left")]:
        lines += [
            "",
            f"Tensors that are still alive after the count: {', '.join(left)}. In quantized layers, these are the Python objects of weights and",
            "biases that the layer's own C++ object holds: a count reads them, and they live as long as the layer.",
        ]
    if off:
        lines += ["", "| zoo | model | live | predicted | error |", "|---|---|---:|---:|---:|", *off]
    return "\n".join(lines) + "\n"


def main(zoos: list[str]) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    kept = RESULTS / "live_memory.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    with kept.open("a") as file:
        for zoo in zoos:
            run(zoo, {(row["zoo"], row["model"]) for row in rows}, file)
    (RESULTS / "live_memory.md").write_text(table([json.loads(line) for line in kept.read_text().splitlines()]))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Counting beside FlopCounterMode, on every model of timm: both on meta, in one process, with equal totals.

    python benchmarks/speed_timm.py [--every 1] [--of 0/1] [--only resnet,vit]

Each model is built on meta. FlopCounterMode (within ``torch.no_grad()``) counts it once unseen, then three times;
``fxflops.count`` once as it comes, after the models before it, and then five times: what it remembers of calls and blocks
is its own. The table, ``benchmarks/results/speed_timm.md``, gives FlopCounterMode's median to both. A model that one of
them cannot do is named. Rows are kept in ``speed_timm.jsonl``; ``--of 0/2`` and ``1/2`` are the halves of the work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor

RESULTS = Path(__file__).parent / "results"
KEPT = RESULTS / "speed_timm.jsonl"


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measured(name: str) -> dict[str, Any]:
    """The seconds of both on one model, and whether their totals are equal."""
    import timm

    row: dict[str, Any] = {"model": name}
    try:
        with torch.device("meta"):
            model = timm.create_model(name).eval()
        x = torch.empty(1, *model.default_cfg["input_size"], device="meta")
    except Exception as error:
        return {**row, "error": f"timm does not build it on meta: {type(error).__name__}"}

    def theirs() -> int:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(x)
        return int(counter.get_total_flops())

    try:
        total = theirs()
        row["theirs"] = statistics.median(seconds(theirs) for _ in range(3))
    except Exception as error:
        return {**row, "error": f"FlopCounterMode: {type(error).__name__}: {str(error)[:60]}"}
    try:
        row["first"] = seconds(lambda: fxflops.count(model, x))
        row["again"] = statistics.median(seconds(lambda: fxflops.count(model, x)) for _ in range(5))
        row["equal"] = fxflops.count(model, x, convention="torch").total_flops == total
    except fxflops.FxflopsError as error:
        return {**row, "error": f"fxflops: {type(error).__name__}: {str(error)[:60]}"}
    return row


def mean(ratios: list[float]) -> str:
    return f"{math.exp(statistics.mean(map(math.log, ratios))):.1f}"


def table(rows: list[dict[str, Any]]) -> str:
    """The summary, then every model."""
    done = [row for row in rows if "again" in row and "error" not in row]
    first = {row["model"]: row["theirs"] / row["first"] for row in done}
    again = {row["model"]: row["theirs"] / row["again"] for row in done}
    ordered = sorted(again.values())
    lines = [
        "# Speed: count() beside FlopCounterMode on every model of timm",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}; models and inputs on "
        "meta, batch 1, one process, one thread each. How many times as long FlopCounterMode takes as `fxflops.count()`: "
        "the first time that it sees the model (it may remember calls and blocks of the models before), and again.",
        "",
        f'{len(done)} of {len(rows)} models; totals under `convention="torch"` equal on {sum(row["equal"] for row in done)}.',
        "",
        "| | first | again |",
        "|---|---:|---:|",
        f"| geometric mean | {mean([*first.values()])} | {mean([*again.values()])} |",
        f"| least | {min(first.values()):.1f} | {ordered[0]:.1f} |",
        f"| quartiles | {' / '.join(f'{q:.1f}' for q in statistics.quantiles(first.values(), n=4))} "
        f"| {' / '.join(f'{q:.1f}' for q in statistics.quantiles(ordered, n=4))} |",
        f"| most | {max(first.values()):.1f} | {ordered[-1]:.1f} |",
        "",
        "| model | FlopCounterMode (ms) | first | again |",
        "|---|---:|---:|---:|",
        *(
            f"| {row['model']} | {row['theirs'] * 1e3:.1f} | {first[row['model']]:.1f} | {again[row['model']]:.1f} |"
            for row in done
        ),
    ]
    others = [row for row in rows if row not in done]
    unequal = [row["model"] for row in done if not row["equal"]]
    if unequal:
        lines += ["", f"Totals differ: {', '.join(unequal)}"]
    lines += ["", *(f"- {row['model']}: {row['error']}" for row in others)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    import timm

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--of", default="0/1")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = [name for name in timm.list_models() if not options.only or name.startswith(tuple(options.only.split(",")))]
    part, parts = map(int, options.of.split("/"))
    rows = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    known = {row["model"] for row in rows}
    for name in names[:: options.every][part::parts]:
        if name not in known:
            with KEPT.open("a") as file:
                file.write(json.dumps(measured(name)) + "\n")
    rows = sorted((json.loads(line) for line in KEPT.read_text().splitlines()), key=lambda row: str(row["model"]))
    (RESULTS / "speed_timm.md").write_text(table(rows))


if __name__ == "__main__":
    main()

"""Counting beside FlopCounterMode on every model of a zoo, in one process; and from memory beside anew.

    python benchmarks/speed_zoo.py [timm] [torchvision] [transformers] [diffusers] [--every 1] [--only resnet,vit]

timm's models are built on meta, the others small on the CPU (see ``benchmarks/models``). FlopCounterMode (within
``torch.no_grad()``) counts each once unseen, then three times; ``fxflops.count`` once as it comes, after the models before
it, and then five times: what it remembers of calls and blocks is its own. ``count(reuse=False)`` remembers nothing: every
call, module, operator and the peak of memory are compared with it. The tables, ``benchmarks/results/speed_<zoo>.md``, give
FlopCounterMode's median to both. Rows are kept in ``speed_<zoo>.jsonl``, so that a run goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
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
LIBRARIES = ("timm", "torchvision", "transformers", "diffusers")
Row = dict[str, Any]


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measured(library: str, name: str) -> Row:
    """The seconds of both on one model, whether their totals are equal, and whether memory changes nothing."""
    row: Row = {"model": name}
    torch.manual_seed(0)
    try:
        model, args, kwargs = importlib.import_module(f"benchmarks.models.{library}_zoo").build(name)
    except Exception as error:
        return {**row, "error": f"is not built: {type(error).__name__}"}

    def theirs() -> int:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(*args, **kwargs)
        return int(counter.get_total_flops())

    def ours(**settings: Any) -> fxflops.Report:
        return fxflops.count(model, args, kwargs, **settings)

    try:
        row["first"] = seconds(ours)
        row["again"] = statistics.median(seconds(ours) for _ in range(5))
        row["same"] = facts(ours()) == facts(ours(reuse=False))
        total = ours(convention="torch").total_flops
    except fxflops.FxflopsError as error:
        row["error"] = f"fxflops: {type(error).__name__}: {str(error)[:60]}"
    try:
        row["equal"] = theirs() == total
        row["theirs"] = statistics.median(seconds(theirs) for _ in range(3))
    except Exception as error:
        row.setdefault("error", f"FlopCounterMode: {type(error).__name__}: {' '.join(str(error).split())[:60]}")
    return row


def facts(report: fxflops.Report) -> tuple[Any, ...]:
    """What a report says of a run, and what it adds up to."""
    calls = [(c.call.op, c.call.path, repr(c.call.args), repr(c.call.out), c.cost) for c in report.counted]
    return calls, repr(report.by_module()), repr(report.by_operator()), report.max_memory, repr(report.missing)


def mean(ratios: list[float]) -> str:
    return f"{statistics.geometric_mean(ratios):.1f}"


def table(library: str, rows: list[Row]) -> str:
    """The summary, then every model."""
    done = [row for row in rows if "error" not in row]
    first = {row["model"]: row["theirs"] / row["first"] for row in done}
    again = {row["model"]: row["theirs"] / row["again"] for row in done}

    def of_both(tell: Callable[[list[float]], str]) -> str:
        return f"{tell([*first.values()])} | {tell([*again.values()])} |"

    where = "models and inputs on meta" if library == "timm" else "small models on the CPU"
    checked = [row for row in rows if "same" in row]
    differing = [row["model"] for row in checked if not row["same"]]
    unequal = [row["model"] for row in done if not row["equal"]]
    lines = [
        f"# Speed: count() beside FlopCounterMode on every model of {library}",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}; {where}, one "
        "process, one thread. How many times as long FlopCounterMode takes as `fxflops.count()`: the first time that it sees "
        "the model (it may remember calls and blocks of the models before), and again.",
        "",
        f'- {len(done)} of {len(rows)} models are counted by both; totals under `convention="torch"` are equal on '
        f"{len(done) - len(unequal)}" + (f", not on {', '.join(unequal)}" if unequal else ""),
        f"- calls, sums by module and operator, and the peak of memory are those of `count(reuse=False)` on "
        f"{len(checked) - len(differing)} of {len(checked)}"
        + (f", not on {', '.join(differing)}" if differing else ""),
        "",
        "| | first | again |",
        "|---|---:|---:|",
        f"| geometric mean | {of_both(mean)}",
        f"| least | {of_both(lambda values: f'{min(values):.1f}')}",
        f"| quartiles | {of_both(lambda values: ' / '.join(f'{q:.1f}' for q in statistics.quantiles(values, n=4)))}",
        f"| most | {of_both(lambda values: f'{max(values):.1f}')}",
        "",
        "| model | FlopCounterMode (ms) | first | again |",
        "|---|---:|---:|---:|",
        *(
            f"| {row['model']} | {row['theirs'] * 1e3:.1f} | {first[row['model']]:.1f} | {again[row['model']]:.1f} |"
            for row in done
        ),
        "",
        *(f"- {row['model']}: {row['error']}" for row in rows if "error" in row),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", default=["timm"], choices=LIBRARIES)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for library in options.libraries:
        kept = RESULTS / f"speed_{library}.jsonl"
        known = {json.loads(line)["model"] for line in kept.read_text().splitlines()} if kept.exists() else set()
        names = importlib.import_module(f"benchmarks.models.{library}_zoo").names()
        names = [name for name in names if not options.only or name.startswith(tuple(options.only.split(",")))]
        for name in names[:: options.every]:
            if name not in known:
                with kept.open("a") as file:
                    file.write(json.dumps(measured(library, name)) + "\n")
        rows = sorted((json.loads(line) for line in kept.read_text().splitlines()), key=lambda row: str(row["model"]))
        (RESULTS / f"speed_{library}.md").write_text(table(library, rows))


if __name__ == "__main__":
    main()

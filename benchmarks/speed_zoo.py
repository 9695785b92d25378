"""Compare fxflops with FlopCounterMode on every model of a zoo, in one process, and counts by rules with counts by meta kernels.

    python benchmarks/speed_zoo.py [timm] [torchvision] [transformers] [diffusers] [--every 1] [--only resnet,vit]

timm's models are built on meta; the others are small and built on the CPU (see ``benchmarks/models``). After both have counted a
small net, ``fxflops.count`` and FlopCounterMode (within ``torch.no_grad()``) each count a model for the first time. The CPU time of
the thread is measured. fxflops's calls, sums of modules and operators, and peak memory are also compared with a count that runs a
meta kernel for each call. The tables, ``benchmarks/results/speed_<zoo>.md``, give FlopCounterMode's time divided by fxflops's. Rows
are saved in ``benchmarks/results/speed_<zoo>.jsonl``, so an interrupted run resumes.
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
from benchmarks.peers import of_flop_counter_mode, small_net
from fxflops import api

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("timm", "torchvision", "transformers", "diffusers")
Row = dict[str, Any]


def seconds(call: Callable[[], Any]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def measured(library: str, name: str) -> Row:
    """Return the seconds of both counters on one model, and the results of two checks: both totals are equal (``equal``), and
    a count by kernels gives the same report (``same``)."""
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
        row["ours"] = seconds(ours)
        by_kernels = api.counted(model, args, kwargs, memos=None)  # runs the meta kernel of every call
        row["same"] = facts(ours()) == facts(by_kernels)
        total = ours(convention="torch").total_flops
    except fxflops.FxflopsError as error:
        row["error"] = f"fxflops: {type(error).__name__}: {str(error)[:60]}"
    try:
        row["theirs"] = seconds(theirs)
        row["equal"] = theirs() == total
    except Exception as error:
        row.setdefault("error", f"FlopCounterMode: {type(error).__name__}: {' '.join(str(error).split())[:60]}")
    return row


def facts(report: fxflops.Report) -> tuple[Any, ...]:
    """Return the figures of a report that are compared."""
    calls = [(c.call.op, c.call.path, repr(c.call.args), repr(c.call.out), c.cost) for c in report.counted]
    return calls, repr(report.by_module()), repr(report.by_operator()), report.max_memory, repr(report.missing)


def table(library: str, rows: list[Row]) -> str:
    """Return the table: a summary, then a row for each model."""
    done = [row for row in rows if "error" not in row]
    ratios = {row["model"]: row["theirs"] / row["ours"] for row in done}
    values = [*ratios.values()]
    where = "models and inputs on meta" if library == "timm" else "small models on the CPU"
    checked = [row for row in rows if "same" in row]
    differing = [row["model"] for row in checked if not row["same"]]
    unequal = [row["model"] for row in done if not row["equal"]]
    lines = [
        f"# Speed: count() beside FlopCounterMode on every model of {library}",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}; {where}, one "
        "process, one thread. How many times as long FlopCounterMode takes as `fxflops.count()` for a model that neither has "
        "seen, in CPU time.",
        "",
        f'- {len(done)} of {len(rows)} models are counted by both; totals under `convention="torch"` are equal on '
        f"{len(done) - len(unequal)}" + (f", not on {', '.join(unequal)}" if unequal else ""),
        f"- calls, sums by module and operator, and the peak of memory are those of the kernels of meta on "
        f"{len(checked) - len(differing)} of {len(checked)}"
        + (f", not on {', '.join(differing)}" if differing else ""),
        "",
        "| FlopCounterMode's time to that of fxflops | |",
        "|---|---:|",
        f"| geometric mean | {statistics.geometric_mean(values):.1f} |",
        f"| least | {min(values):.1f} |",
        f"| quartiles | {' / '.join(f'{q:.1f}' for q in statistics.quantiles(values, n=4))} |",
        f"| most | {max(values):.1f} |",
        "",
        "| model | fxflops (ms) | FlopCounterMode (ms) | ratio |",
        "|---|---:|---:|---:|",
        *(
            f"| {row['model']} | {row['ours'] * 1e3:.1f} | {row['theirs'] * 1e3:.1f} | {ratios[row['model']]:.1f} |"
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
    fxflops.count(*small_net())
    of_flop_counter_mode(*small_net())
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

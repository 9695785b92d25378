"""Measure the time and memory of the views of large reports, for models with 12,500, 25,000 and 50,000 calls.

    python benchmarks/speed_report.py [--blocks 2500,5000,10000]

Each model is counted in its own process. Each view is made 3 times, each time from a fresh report that has cached nothing, and the
fastest time is kept. "the first views" are the summary, the tree and the table of one report. The table is
``benchmarks/results/speed_report.md``.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor

RESULTS = Path(__file__).parent / "results"
DEVICE = "H100 SXM"
CALLS, TIMES = 5, 3
"""The number of calls in a block, and how often each view is made."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(self.norm(self.first(x)))


def views(file: str) -> dict[str, Callable[[fxflops.Report], object]]:
    """Return functions that make the views of a report, by name. ``file`` is a path without a suffix."""
    return {
        "by_module()": lambda report: report.by_module(),
        "by_operator()": lambda report: report.by_operator(),
        "print(report)": str,
        "tree()": lambda report: str(report.tree()),
        "table": lambda report: str(report.table),
        "the first views": lambda report: (str(report), str(report.tree()), str(report.table)),
        "in a notebook": lambda report: report._repr_html_(),
        "roofline()": lambda report: str(report.roofline(DEVICE)),
        "save as .html": lambda report: report.to_html(f"{file}.html", device=DEVICE),
        "save as .csv": lambda report: report.save(f"{file}.csv"),
        "save as .json": lambda report: report.save(f"{file}.json"),
        "load the .json": lambda report: fxflops.Report.load(f"{file}.json"),
    }


def seconds_of(blocks: int) -> dict[str, float]:
    """Return the seconds of each view, and the MiB by which the process grew: for the report alone, and with all views."""
    model = nn.Sequential(*(Block() for _ in range(blocks))).eval()
    before = _grown_to()
    counted = fxflops.count(model, torch.randn(1, 8))
    assert len(counted.calls) == CALLS * blocks
    memory = {"MiB, the report": _grown_to() - before}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, view in views(f"{folder}/report").items():
            taken = []
            for _ in range(TIMES):
                report = counted.recount()
                gc.collect()
                start = time.perf_counter()
                view(report)
                taken.append(time.perf_counter() - start)
            found[name] = min(taken)
            print(f"{len(counted.calls)} calls  {name:16} {found[name]:.2f} s", flush=True)
    return found | memory | {"MiB, and all views": _grown_to() - before}


def _grown_to() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(sizes: dict[int, dict[str, float]]) -> str:
    """Return the table, with a row for each view and a column for each size."""
    lines = [
        "# Speed: the views of a large report",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}: seconds of each view of a report that nothing was "
        f"asked of before (the fastest of {TIMES}), and MiB that the process grew by at most, by the number of calls.",
        "",
        f"| view | {' | '.join(f'{CALLS * blocks:,} calls' for blocks in sizes)} |",
        "|---" + "|---:" * len(sizes) + "|",
    ]
    for name in next(iter(sizes.values())):
        digits = 0 if name.startswith("MiB") else 2
        lines.append(f"| {name} | {' | '.join(f'{found[name]:.{digits}f}' for found in sizes.values())} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", default="2500,5000,10000")
    sizes = [int(blocks) for blocks in parser.parse_args().blocks.split(",")]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = dict(zip(sizes, pool.map(seconds_of, sizes, chunksize=1), strict=True))
    (RESULTS / "speed_report.md").write_text(table(found))


if __name__ == "__main__":
    main()

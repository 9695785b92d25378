"""Check that unsteady times are marked: analyze the same model on an idle machine, and while other processes keep it busy.

    python benchmarks/steadiness.py [--runs 10] [--models resnet18,...] [--beside 0,1,2]

Each run has its own process. By default there are 0, 1 and as many other processes as cores. A run whose median is more than 1.5
times the idle median should be marked. An idle run should not be marked. The table is ``benchmarks/results/steadiness.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor

RESULT = Path(__file__).parent / "results" / "steadiness.md"
MODELS = ("resnet18", "vit_tiny_patch16_224")
SLOWER = 1.5
RUN = """
import json, sys, timm, torch, fxflops
name, threads = sys.argv[1], int(sys.argv[2])
if threads:
    torch.set_num_threads(threads)
report = fxflops.analyze(timm.create_model(name).eval(), torch.randn(1, 3, 224, 224), progress=False)
print(json.dumps([*report.timing, report.unsteady]))
"""
BUSY = "import torch\nx = torch.randn(512, 512)\ntorch.set_num_threads(1)\nprint(flush=True)\nwhile True: x @ x"


def once(name: str, threads: int) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", RUN, name, str(threads)], capture_output=True, text=True, check=True)
    median, low, high, repeats, _, why = json.loads(done.stdout.splitlines()[-1])
    return {"median": median, "low": low, "high": high, "repeats": repeats, "why": why}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--models", default=",".join(MODELS))
    cores = os.cpu_count() or 1
    parser.add_argument("--beside", default=f"0,1,{cores}", help="numbers of processes beside, the first of them 0")
    args = parser.parse_args()
    lines = [
        "# Unsteady times",
        "",
        f"{processor()}, {cores} cores, torch {torch.__version__}, fxflops {fxflops.__version__}: `fxflops.analyze`, {args.runs} runs "
        f"in processes of their own on an idle machine, then beside processes that multiply matrices, one thread each.",
        "",
        f"| model, threads | beside | median of medians (ms) | least-most | more than {SLOWER}x idle | of these marked | marked in all |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    reasons = []
    for name in args.models.split(","):
        for threads in (1, cores):
            idle = 0.0
            for others in map(int, args.beside.split(",")):
                busy = [subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) for _ in range(others)]
                for each in busy:
                    assert each.stdout is not None
                    each.stdout.readline()
                try:
                    rows = [once(name, threads) for _ in range(args.runs)]
                finally:
                    for each in busy:
                        each.kill()
                        each.wait()
                medians = [row["median"] for row in rows]
                idle = idle or statistics.median(medians)
                slow = [row for row in rows if row["median"] > SLOWER * idle]
                beside = ["nothing", "one process", f"{cores} processes"][min(others, 2)]
                told = sum(bool(row["why"]) for row in slow), sum(bool(row["why"]) for row in rows)
                ms = [f"{1e3 * each:.1f}" for each in (statistics.median(medians), min(medians), max(medians))]
                lines.append(
                    f"| {name}, {threads} | {beside} | {ms[0]} | {ms[1]}-{ms[2]} | {len(slow)} | {told[0]} | {told[1]} |"
                )
                print(lines[-1], flush=True)
                reasons += [f"- {name}, {threads}, beside {beside}: {row['why']}" for row in rows if row["why"]][:2]
    RESULT.write_text("\n".join([*lines, "", "Of what is said (two of each):", "", *reasons, ""]), encoding="utf8")


if __name__ == "__main__":
    main()

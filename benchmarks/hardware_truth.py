"""The counts beside the hardware's: FLOPs of its performance counters, for GEMM, convolution and attention.

    python benchmarks/hardware_truth.py [--device cpu|cuda]

On a CPU ``perf stat`` reads the counters of floating-point operations (Intel fp_arith_inst_retired, AMD
fp_ret_sse_avx_ops) of a process that runs the case n times and of one that runs it 2n times: the difference is n runs'.
On CUDA Nsight Compute (``ncu``) sums each kernel's fused multiply-adds, adds and multiplies. Where neither can be read
(virtual machines mostly hide them) this says so and writes nothing. The table is
``benchmarks/results/hardware_truth_<device>.md``.

The counts are those of convention "fxflops"; a kernel may do more (padding to its tiles, Winograd: less).
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops

RESULTS = Path(__file__).parent / "results"
RUNS = 10
PERF = {
    "fp_arith_inst_retired.scalar_single": 1,
    "fp_arith_inst_retired.128b_packed_single": 4,
    "fp_arith_inst_retired.256b_packed_single": 8,
    "fp_arith_inst_retired.512b_packed_single": 16,
    "fp_ret_sse_avx_ops.all": 1,
}
"""Events with the operations that one of them stands for; a fused multiply-add counts twice in all of them."""
NCU = {
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 2,
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 1,
}


class Attention(nn.Module):
    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q)


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "GEMM 1024 x 1024 x 1024": lambda: (nn.Linear(1024, 1024, bias=False), torch.randn(1024, 1024)),
    "conv 3x3, 64 to 64 channels, 56 x 56": lambda: (nn.Conv2d(64, 64, 3, padding=1), torch.randn(8, 64, 56, 56)),
    "attention, 12 heads of 64, 512 tokens": lambda: (Attention(), torch.randn(4, 12, 512, 64)),
}


def run(case: str, runs: int, device: str) -> None:
    """Run the case in the process that is measured, without TF32 or reduced precision, so that FP32 units compute."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model, x = CASES[case]()
    model, x = model.to(device), x.to(device)
    with torch.no_grad():
        for _ in range(runs):
            model(x)
    if device == "cuda":
        torch.cuda.synchronize()


def watched(command: list[str], case: str, runs: int, device: str) -> str:
    child = [*command, sys.executable, __file__, "--case", case, "--runs", str(runs), "--device", device]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed, and so nothing is known:\n{done.stderr[-1500:]}{done.stdout[-500:]}")
    return done.stdout + done.stderr


def by_perf(case: str) -> float:
    """Return the operations of one run, from the difference of two processes."""

    def operations(runs: int) -> int:
        total, seen = 0, False
        for line in watched(["perf", "stat", "-x,", *events], case, runs, "cpu").splitlines():
            cells = line.split(",")
            if len(cells) > 2 and cells[2] in PERF and cells[0].isdigit():
                total, seen = total + int(cells[0]) * PERF[cells[2]], True
        if not seen:
            sys.exit("perf stat has no counter of floating-point operations on this machine: nothing is known")
        return total

    known = subprocess.run(["perf", "list", "--no-desc"], capture_output=True, text=True, check=False).stdout
    events = [word for event in PERF if event in known for word in ("-e", event)]
    if not events:
        sys.exit("perf list names no counter of floating-point operations on this machine: nothing is known")
    return (operations(2 * RUNS) - operations(RUNS)) / RUNS


def by_ncu(case: str) -> float:
    """Return the operations of one run, summed over its kernels."""
    output = watched(["ncu", "--csv", "--metrics", ",".join(NCU)], case, 1, "cuda")
    table = output[output.index('"ID"') :].splitlines()
    return sum(NCU[row["Metric Name"]] * float(row["Metric Value"].replace(",", "")) for row in csv.DictReader(table))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=RUNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        run(options.case, options.runs, options.device)
        return
    tool = "perf" if options.device == "cpu" else "ncu"
    if shutil.which(tool) is None:
        sys.exit(f"{tool} is not on the PATH: without it the hardware's counters cannot be read")
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} cores"
    lines = [
        "# Hardware truth: counts against the hardware's counters",
        "",
        f"{where}, torch {torch.__version__}, {tool}; FLOPs of one run in FP32.",
        "",
        "| case | counted | hardware | ratio |",
        "|---|---:|---:|---:|",
    ]
    for case, make in CASES.items():
        model, x = make()
        counted = fxflops.count(model, x).total_flops
        seen = by_perf(case) if options.device == "cpu" else by_ncu(case)
        lines.append(f"| {case} | {counted:,} | {seen:,.0f} | {counted / seen:.4f} |")
        print(lines[-1], flush=True)
    (RESULTS / f"hardware_truth_{options.device}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

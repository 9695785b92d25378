"""Compare fxflops's FLOPs of GEMM, convolution and attention with the hardware's performance counters.

    python benchmarks/hardware_truth.py [--device cpu|cuda]

On a CPU, ``perf stat`` reads the counters of floating-point operations (Intel fp_arith_inst_retired, AMD
fp_ret_sse_avx_ops) for two processes: one runs the case n times, the other 2n times. The difference is the cost of n runs.
On CUDA, Nsight Compute (``ncu``) sums each kernel's fused multiply-adds, adds and multiplies, and the tensor-core operations by
input dtype. One process runs all cases, separated by a spinning kernel. If the counters cannot be read (most virtual
machines hide them), the script says so and writes nothing. The table is ``benchmarks/results/hardware_truth_<device>.md``.

Counts use the convention "fxflops". A kernel may do more work (it pads to its tiles) or less (Winograd).
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
"""perf events, and the number of operations that one event stands for. All of them count a fused multiply-add twice."""
TENSOR_COUNTERS = (
    "sm__ops_path_tensor_src_bf16_dst_fp32",
    "sm__ops_path_tensor_src_fp16",
    "sm__ops_path_tensor_src_tf32_dst_fp32",
    "sm__ops_path_tensor_src_fp64",
)
"""Nsight Compute's counters of tensor-core operations on an H100 (CC 9.0). A multiply-add counts as 2: a bf16 product of
1024 x 1024 matrices has 2,147,483,648. Each additional counter costs another pass over every kernel, so only these are requested."""
NCU = {
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 2,
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 1,
}


TENSOR = re.compile(r"sm__ops_path_tensor_src_(fp16|bf16|tf32|fp64)(_dst_fp(16|32))?")
"""Matches the counterparts of :data:`TENSOR_COUNTERS` on other cards, but not counters that end in _sparsity_on or _off: each is
already included in the counter without the suffix."""
MARKER = "spin_kernel"
"""The kernel of torch.cuda._sleep, which runs before and after each case."""


class Attention(nn.Module):
    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, is_causal=self.causal)


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "GEMM 1024 x 1024 x 1024": lambda: (nn.Linear(1024, 1024, bias=False), torch.randn(1024, 1024)),
    "conv 3x3, 64 to 64 channels, 56 x 56": lambda: (nn.Conv2d(64, 64, 3, padding=1), torch.randn(8, 64, 56, 56)),
    "attention, 12 heads of 64, 512 tokens": lambda: (Attention(), torch.randn(4, 12, 512, 64)),
}


@dataclass(frozen=True)
class GPUCase:
    """A case in one dtype. "tf32" is f32 that tensor cores may compute in TF32."""

    name: str
    dtype: str
    make: Callable[[], tuple[nn.Module, torch.Tensor]]
    backward: bool = False

    def ready(self, device: str) -> tuple[nn.Module, torch.Tensor]:
        """Return the model and its input on the device. On a GPU, also set torch's TF32 flags for the dtype."""
        if device.startswith("cuda"):  # elsewhere the flags have no use, and would stay set after the count
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.dtype == "tf32"
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}.get(self.dtype, torch.float32)
        # Draw and round on the CPU: on the device, that would add kernels to the profile.
        model, x = self.make()
        return model.to(kind).to(device), x.to(kind).to(device).requires_grad_(self.backward)


GEMM, CONV, ATTENTION = CASES
GPU_CASES = [
    *(GPUCase(name, "f32", make) for name, make in CASES.items()),
    *(GPUCase(name, "bf16", make) for name, make in CASES.items()),
    GPUCase("causal " + ATTENTION, "bf16", lambda: (Attention(causal=True), torch.randn(4, 12, 512, 64))),
    *(GPUCase(f"{name}, with backward", "bf16", CASES[name], backward=True) for name in (GEMM, ATTENTION)),
    GPUCase(GEMM, "f16", CASES[GEMM]),
    GPUCase(GEMM, "tf32", CASES[GEMM]),
    GPUCase(CONV, "tf32", CASES[CONV]),
    # Last, because it has 16 kernels and may not fit into the time limit.
    GPUCase(f"{CONV}, with backward", "bf16", CASES[CONV], backward=True),
]


def run(case: str, runs: int, device: str) -> None:
    """Run the case in the measured process, with TF32 off, so that the FP32 units do the work."""
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
    """Return the operations of one run: the difference between two processes, divided by the difference in runs."""

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


def run_gpu_cases() -> None:
    """Run the cases in the process that Nsight Compute profiles, with the marker kernel before and after each case."""
    for case in GPU_CASES:
        model, x = case.ready("cuda")
        torch.cuda._sleep(1)
        with torch.set_grad_enabled(case.backward):
            out = model(x)
        if case.backward:
            # Pass an existing tensor as the gradient: creating one would launch another kernel.
            out.backward(x.detach() if out.shape == x.shape else out.detach())
        torch.cuda._sleep(1)
    torch.cuda.synchronize()


def counted_by_fxflops(case: GPUCase, device: str) -> tuple[int, int]:
    """Return the FLOPs and MACs of a case. For causal attention, count only the pairs that the mask leaves."""
    model, x = case.ready(device)
    report = fxflops.count(model, x, backward=case.backward, attention="exact")
    flops = report.total_flops + (report.total_backward_flops or 0)
    return flops, report.total_macs + (report.total_backward_macs or 0)


def by_ncu(seconds: float, folder: Path) -> dict[str, Any]:
    """Profile all cases with Nsight Compute for at most ``seconds``. Return their ``rows``, and ``why`` some or all are missing.

    If the time runs out, ``rows`` has the cases that finished, and ``why`` says so. The counters of each kernel are written to
    ``ncu.csv`` in ``folder``. If this ncu lacks the tensor-core counters of an H100, the names of the counters that it has are
    written to ``ncu_metrics.txt``.
    """
    end = time.monotonic() + seconds
    ncu = ncu_path()
    if ncu is None:
        return {"rows": [], "why": "ncu is not installed"}
    try:
        # Another card may lack these counters, and some counters that it lists may not be available for kernels: try three choices.
        choices: list[Callable[[], list[str]]] = [
            lambda: [*TENSOR_COUNTERS],
            lambda: tensor_metrics(ncu, folder, max(5.0, (end - time.monotonic()) / 2)),
            list,
        ]
        why = ""
        for choose in choices:
            metrics = [*NCU, *(f"{name}.sum" for name in choose())]
            why = watched_by_ncu(ncu, metrics, folder / "ncu.csv", max(5.0, end - time.monotonic()))
            rows = rows_of(folder / "ncu.csv")
            if rows or time.monotonic() > end:
                return {"rows": rows, "why": why if len(rows) < len(GPU_CASES) else ""}
    except (OSError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
    return {"rows": [], "why": why}


def ncu_path() -> str | None:
    """Return the path of Nsight Compute's command-line program, which is not always on the PATH; None if it is not installed."""
    installed = [*Path("/usr/local").glob("cuda*/bin/ncu"), *Path("/opt/nvidia").glob("nsight-compute/*/ncu")]
    return shutil.which("ncu") or next(map(str, sorted(installed, reverse=True)), None)


def tensor_metrics(ncu: str, folder: Path, seconds: float) -> list[str]:
    """Return the names of the tensor-core counters to request, chosen from the counters that this ncu has for the card."""
    listed: list[str] = []
    for chip in ([], ["--chips", "gh100"]):
        command = [ncu, "--query-metrics", *chip]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        words = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
        listed = sorted({word for word in words if "tensor" in word})
        if listed:
            break
    (folder / "ncu_metrics.txt").write_text("\n".join(listed) + "\n", encoding="utf8")
    chosen = [name for name in listed if TENSOR.fullmatch(name)]
    # "src_fp16" includes the operations of "src_fp16_dst_fp32": never request both.
    chosen = [name for name in chosen if "_dst_" not in name or name.partition("_dst_")[0] not in chosen]
    return chosen


def watched_by_ncu(ncu: str, metrics: list[str], file: Path, seconds: float) -> str:
    """Run the cases under Nsight Compute, which writes its table to ``file``. Return why that failed, or "" if it did not."""
    file.unlink(missing_ok=True)
    # Keep the card's own clock, and print base units: 1,073,741,824 rather than 1.07 G.
    options = [
        "--csv",
        "--print-units",
        "base",
        "--clock-control",
        "none",
        "--cache-control",
        "none",
        "--log-file",
        str(file),
    ]
    # The child exits shortly before the time limit: ncu then writes what it has recorded. If ncu were killed, it would write nothing.
    child = [sys.executable, __file__, "--watched", "--seconds", str(max(int(seconds) - 4, 1))]
    command = [ncu, *options, "--metrics", ",".join(metrics), *child]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"ncu took more than {seconds:.0f} s"
    written = file.read_text(encoding="utf8") if file.exists() else ""
    if done.returncode or '"ID"' not in written:
        errors = [
            line
            for line in (written + done.stdout + done.stderr).splitlines()
            if "==ERROR==" in line or "Error" in line
        ]
        return f"ncu ended with status {done.returncode}: " + (" ".join(errors) or done.stderr[-300:])
    return ""


def rows_of(file: Path, device: str = "cuda") -> list[dict[str, Any]]:
    """Return a row for each case in Nsight Compute's table. A case's kernels lie between two markers.

    If the table was cut off, only the finished cases have rows.
    """
    text = file.read_text(encoding="utf8") if file.exists() else ""
    if '"ID"' not in text:
        return []
    text = text[: text.rindex("\n") + 1]  # the last line may be cut off
    lines = [line for line in text[text.index('"ID"') :].splitlines() if line.startswith('"')]
    kernels: dict[str, str] = {}
    counters: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines):
        kernels[row["ID"]] = row["Kernel Name"]
        value = row["Metric Value"].replace(",", "")
        if not value.replace(".", "", 1).isdigit():
            raise ValueError(f"ncu has no value of {row['Metric Name']} for {row['Kernel Name']}: {value!r}")
        counters.setdefault(row["ID"], {})[row["Metric Name"]] = float(value)
    markers, by_case = 0, [[] for _ in range(len(GPU_CASES) + 1)]  # type: tuple[int, list[list[str]]]
    for number in sorted(kernels, key=int):
        if MARKER in kernels[number]:
            markers += 1
        elif markers % 2:
            by_case[markers // 2].append(number)
    if markers > 2 * len(GPU_CASES):
        raise ValueError(f"ncu saw {markers} markers of {2 * len(GPU_CASES)}: the kernels cannot be told apart")
    found = []
    for case, numbers in list(zip(GPU_CASES, by_case, strict=False))[: markers // 2]:
        totals: dict[str, float] = {}
        for number in numbers:
            for metric, value in counters[number].items():
                totals[metric] = totals.get(metric, 0) + value
        units = sum(NCU.get(metric, 0) * value for metric, value in totals.items())
        tensor = sum(value for metric, value in totals.items() if TENSOR.fullmatch(metric.removesuffix(".sum")))
        counted, macs = counted_by_fxflops(case, device)
        found.append(
            {
                "case": case.name,
                "dtype": case.dtype,
                "counted": counted,
                "units": units,
                "tensor": tensor,
                "ratio": counted / (units + tensor) if units + tensor else None,
                # This is 2 if the counter counts a multiply-add as 2 operations.
                "per multiply-add": (units + tensor) / macs,
                "metrics": totals,
                "kernels": [kernels[number][:80] for number in numbers],
            }
        )
    return found


def gpu_table(rows: list[dict[str, Any]], why: str) -> list[str]:
    """Return the lines of the table of GPU cases; "- (why)" if there are no rows."""
    if not rows:
        return [f"- ({why})"]
    lines = [
        "| case | dtype | counted | FP32 units | tensor cores | counted / hardware | hardware / MAC | kernels |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        ratio = f"{row['ratio']:.4f}" if row["ratio"] else "-"
        names = ", ".join(f"`{name[:40]}`" for name in row["kernels"])
        cells = [
            row["case"],
            row["dtype"],
            f"{row['counted']:,}",
            f"{row['units']:,.0f}",
            f"{row['tensor']:,.0f}",
            ratio,
            f"{row['per multiply-add']:.4f}",
            names,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", f"{len(rows)} of {len(GPU_CASES)} cases: {why}."] if why else lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=120, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watched:
        signal.alarm(options.seconds)
        run_gpu_cases()
        return
    if options.case:
        run(options.case, options.runs, options.device)
        return
    tool = "perf" if options.device == "cpu" else "ncu"
    if (ncu_path() if tool == "ncu" else shutil.which(tool)) is None:
        sys.exit(f"{tool} is not installed: without it the hardware's counters cannot be read")
    if options.device == "cuda":
        with tempfile.TemporaryDirectory() as folder:
            found = by_ncu(options.seconds, Path(folder))
        if not found["rows"]:
            sys.exit(f"nothing is known: {found['why']}")
        where, body = torch.cuda.get_device_name(), gpu_table(found["rows"], "")
    else:
        where, body = f"{os.cpu_count()} cores", ["| case | counted | hardware | ratio |", "|---|---:|---:|---:|"]
        for case, make in CASES.items():
            counted, seen = fxflops.count(*make()).total_flops, by_perf(case)
            body.append(f"| {case} | {counted:,} | {seen:,.0f} | {counted / seen:.4f} |")
    head = ["# Hardware truth: counts against the hardware's counters", ""]
    head += [f"{where}, torch {torch.__version__}, {tool}; FLOPs of one run.", ""]
    print("\n".join(body), flush=True)
    (RESULTS / f"hardware_truth_{options.device}.md").write_text("\n".join([*head, *body]) + "\n")


if __name__ == "__main__":
    main()

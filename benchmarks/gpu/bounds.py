"""Is the roofline really a bound? Measured peaks, operations against their bounds, MFU, and FLOPs against hardware counters.

An operation that is faster than its bound reveals a bug in fxflops, so such rows come first in the table. Each operation is timed
alone on the device, in two ways: with inputs and results that rotate through more memory than the cache holds, and repeatedly on
the same inputs ("in cache"). The roofline counts bytes from memory, so only the first time must respect it; in a model, an
operation often finds its input in the cache. Operations shorter than 50 us are also timed in a CUDA graph, which has the lowest
launch overhead; the shorter time counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxflops
from benchmarks import hardware_truth
from benchmarks.gpu.bench import Bench, Case, Row, markdown
from benchmarks.gpu.calls import DTYPES, Operation, counts_of, device_of, tf32, values
from benchmarks.gpu.device_time import DeviceTimes, captured, device_times, rotated
from benchmarks.gpu.operations import (
    attentions,
    batched,
    convolutions,
    copies,
    elementwise,
    gemms,
    lookups,
    norms,
    pools,
    reductions,
    softmaxes,
)
from fxflops.roofline.measured_peaks import measured

TITLE = "Bounds"
NEEDS = ("timm",)
SAMPLES, SECONDS = 15, 0.03
GRAPH_CALLS, SHORT = 64, 50e-6
"""Calls in a CUDA graph, and the longest time in seconds for which an operation is also timed in one."""
CHOSEN = {
    gemms: 6,
    attentions: 7,
    convolutions: 6,
    elementwise: 5,
    norms: 3,
    batched: 2,
    softmaxes: 2,
    reductions: 3,
    copies: 2,
    lookups: 2,
    pools: 2,
}
"""How many operations of each family are tried, spread evenly over its list in ``operations.py``."""


def cases(bench: Bench) -> list[Case]:
    """Return the cases: peaks measured here, operations, MFU, counters, and last fxflops's own peaks, which take the longest."""
    stand_in = bench.stand_in
    found = [Case(f"peak {dtype}", partial(peak, bench, dtype), 5) for dtype in ("bf16", "f16", "tf32", "f32")]
    found += [Case("bandwidth", partial(bandwidth, bench), 5), Case("launch", partial(launch, bench), 1)]
    chosen: dict[str, Operation] = {}
    for family, wanted in CHOSEN.items():
        operations = family(bench)
        evenly = operations[:: max(1, len(operations) // wanted)][: 1 if stand_in else wanted]
        chosen.update({each.name: each for each in evenly})
    for each in attentions(bench):
        # f32 attention uses tensor cores even if TF32 is off, but its bound assumes the FP32 units.
        if each.dtype == "f32" or "heads=32/8 q=2048" in each.shapes or "q=16384 k=16384 d=128" in each.shapes:
            chosen[each.name] = each
    chosen.update({each.name: each for each in small(bench)[: 1 if stand_in else None]})
    found += [Case(name, partial(against_bound, bench, each), 1) for name, each in chosen.items()]
    found += [
        Case(f"MFU {name}", partial(utilization, bench, name), 30)
        for name in (list(MODELS)[:1] if stand_in else MODELS)
    ]
    found.append(Case("hardware counters", partial(counters, bench), 100))
    if not stand_in:  # a CPU is slow in these dtypes, and measuring its own peaks would take several seconds
        found += [Case(f"peak {dtype}", partial(peak, bench, dtype), 5) for dtype in ("f64", "i8", "f8")]
        found.append(Case("fxflops's own peaks", partial(own_peaks, bench), 60))
    return found


def peak(bench: Bench, dtype: str) -> Row:
    """Measure the FLOP/s of the fastest square GEMM, on random values and on ones."""
    sizes = (64,) if bench.stand_in else (4096,) if dtype == "f64" else (4096, 8192)
    best, best_size, ones = 0.0, 0, 0.0
    for size in sizes:
        for constant in (False, True):
            run = product(bench, dtype, size, constant)
            with tf32(dtype == "tf32"):
                seconds = min(device_times(bench, run, SAMPLES, 0.1).seconds)
            speed = 2 * size**3 / seconds
            if constant:
                ones = max(ones, speed)
            elif speed > best:
                best, best_size = speed, size
    peaks = device_of(bench).peaks
    return {
        "kind": "peak",
        "of": dtype,
        "datasheet": peaks.get(dtype),
        "measured": best,
        "how": f"{best_size} x {best_size}",
        "ones": ones,
    }


def product(bench: Bench, dtype: str, size: int, constant: bool) -> Callable[[], Any]:
    """Return a function that multiplies two square matrices, of random values or (``constant``) of ones."""
    if dtype == "f8":
        a, b = (values(bench, size, size).to(torch.float8_e4m3fn) for _ in range(2))
        if constant:
            a, b = (torch.ones(size, size, device=bench.device).to(torch.float8_e4m3fn) for _ in range(2))
        scale = torch.ones((), device=bench.device)
        # cuBLASLt only takes a column-major second matrix, here and for int8.
        return partial(torch._scaled_mm, a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    if constant:
        a, b = (torch.ones(size, size, dtype=DTYPES[dtype], device=bench.device) for _ in range(2))
    else:
        a, b = (values(bench, size, size, dtype=dtype) for _ in range(2))
    if dtype == "i8":
        return partial(torch._int_mm, a, b.t())
    return partial(torch.mm, a, b)


def bandwidth(bench: Bench) -> Row:
    """Measure the bytes/s of a copy, a sum of two vectors and a reduction, on vectors of 1 GB."""
    numel = 2**12 if bench.stand_in else 2**28
    x, y, out = (values(bench, numel, dtype="f32") for _ in range(3))
    runs: dict[str, tuple[Callable[[], Any], int]] = {
        "copy": (partial(out.copy_, x), 2),
        "add": (partial(torch.add, x, y, out=out), 3),
        "sum": (partial(torch.sum, x), 1),
    }
    speeds = {}
    for name, (run, vectors) in runs.items():
        speeds[name] = vectors * 4 * numel / min(device_times(bench, run, SAMPLES, 0.1).seconds)
    best = max(speeds, key=lambda name: speeds[name])
    how = ", ".join(f"{name} {speed / 1e9:.0f} GB/s" for name, speed in speeds.items())
    return {
        "kind": "peak",
        "of": "bandwidth",
        "datasheet": device_of(bench).bandwidth,
        "measured": speeds[best],
        "how": how,
    }


def launch(bench: Bench) -> Row:
    """Measure the seconds of a minimal kernel, in a full stream and in a CUDA graph."""
    x = torch.ones(1, device=bench.device)
    run = partial(torch.neg, x, out=x)
    queued = min(device_times(bench, run, SAMPLES, SECONDS).seconds)
    graph = captured(bench, run, GRAPH_CALLS)
    in_graph = min(device_times(bench, graph, SAMPLES, SECONDS).seconds) / GRAPH_CALLS
    how = f"in a stream {queued * 1e6:.2f} us, in a CUDA graph {in_graph * 1e6:.2f} us"
    return {
        "kind": "peak",
        "of": "launch (s)",
        "datasheet": device_of(bench).launch,
        "measured": min(queued, in_graph),
        "how": how,
    }


def small(bench: Bench) -> list[Operation]:
    """Operations that finish before the host can launch the next one, as in decoding with a batch of 1."""

    def of(name: str, function: Callable[..., Any], *shapes: tuple[int, ...]) -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            return tuple(values(bench, *shape) for shape in shapes)

        return Operation("small", name, "bf16", function, make)

    return [
        of("neg of 1", torch.neg, (1,)),
        of("add of 1 MB", torch.add, (2**19,), (2**19,)),
        of("add of 8 MB", torch.add, (2**22,), (2**22,)),
        of("linear 1x768x768", F.linear, (1, 768), (768, 768)),
        of("linear 64x1024x1024", F.linear, (64, 1024), (1024, 1024)),
        of("layer_norm 1x768", partial(F.layer_norm, normalized_shape=(768,)), (1, 768)),
        of("softmax 12x512", partial(F.softmax, dim=-1), (12, 512)),
        of("copy of 1 KB", torch.clone, (512,)),
    ]


def against_bound(bench: Bench, operation: Operation) -> Row:
    """Time an operation with its data outside and inside the cache, and return the times with its bound."""
    function, make = operation.timed()
    with operation.context():
        # A backward pass runs in the stream of its forward pass, which ran before the capture, so it cannot be captured.
        in_graphs = not operation.backward
        times, rotating, failed = shortest(bench, rotated(function, make), in_graphs)
        _, in_cache, _ = shortest(bench, partial(function, *make()), in_graphs)
    counts = counts_of(operation, device_of(bench))
    return {
        "kind": "operation",
        "seconds": rotating,
        "in cache": in_cache,
        "bound": counts.bound,
        "binds": counts.binds,
        "flops": counts.flops,
        "bytes": counts.bytes,
        "spread": times.spread,
        "queue full": times.is_full,
        "calls": times.calls,
        "no graph": failed,
    }


def shortest(bench: Bench, run: Callable[[], Any], in_graphs: bool) -> tuple[DeviceTimes, float, str]:
    """Return the times in a stream, the shorter of the medians in a stream and in a CUDA graph, and why a capture failed ("" if not)."""
    times = device_times(bench, run, SAMPLES, SECONDS)
    if times.median > SHORT or not in_graphs:
        return times, times.median, ""
    try:
        graph = captured(bench, run, GRAPH_CALLS)
    except RuntimeError as error:
        return times, times.median, " ".join(str(error).split())[:120]
    in_graph = device_times(bench, graph, SAMPLES, SECONDS).median / GRAPH_CALLS
    return times, min(times.median, in_graph), ""


class LlamaBlock(nn.Module):
    """A decoder block like Llama 3 8B's: RMSNorm, grouped queries, causal attention, SwiGLU; but no rotary embeddings."""

    def __init__(self, width: int, heads: int, grouped: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.grouped, self.head = heads, grouped, width // heads
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, grouped * self.head, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        normal = self.before(x)
        query = self.query(normal).view(batch, length, self.heads, self.head).transpose(1, 2)
        key = self.key(normal).view(batch, length, self.grouped, self.head).transpose(1, 2)
        value = self.value(normal).view(batch, length, self.grouped, self.head).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        normal = self.after(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class Checkpointed(nn.Module):
    """Blocks with activation checkpointing: they save only their inputs, and are recomputed in the backward pass."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def linears(tiny: bool) -> tuple[nn.Module, tuple[int, ...]]:
    width = 32 if tiny else 8192
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4))), (width, width)


def llama(tiny: bool) -> tuple[nn.Module, tuple[int, ...]]:
    if tiny:
        return Checkpointed([LlamaBlock(32, 4, 2, 64) for _ in range(2)]), (1, 8, 32)
    return Checkpointed([LlamaBlock(4096, 32, 8, 14336) for _ in range(2)]), (4, 2048, 4096)


def vit(tiny: bool) -> tuple[nn.Module, tuple[int, ...]]:
    import timm

    name = "vit_tiny_patch16_224" if tiny else "vit_large_patch16_224"
    return timm.create_model(name), (1 if tiny else 64, 3, 224, 224)


MODELS: dict[str, Callable[[bool], tuple[nn.Module, tuple[int, ...]]]] = {
    "Llama 3 8B, 2 blocks, checkpointed": llama,
    "4 Linear 8192": linears,
    "ViT-L/16": vit,
}


def utilization(bench: Bench, name: str) -> Row:
    """Return fxflops's MFU of a forward and of training, and the forward's MFU from its measured device time."""
    with bench.device:  # draw the initial weights on the device: a CPU would take seconds
        model, shape = MODELS[name](bench.stand_in)
    model = bench.to(model.to(torch.bfloat16))
    x = bench.to(values(bench, *shape))
    device = device_of(bench)
    model.eval()
    with torch.no_grad():
        seconds = device_times(bench, partial(model, x), 5, 0.5).median
    report = fxflops.analyze(model, x, repeats=3)
    forward = report.mfu(device)

    model.train()

    def step() -> None:
        model(x).float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    step()
    bench.synchronize()
    with fxflops.profile(model) as profiled:
        for _ in range(3):
            step()
    return {
        "kind": "mfu",
        "forward": forward,
        "by hand": 2 * report.total_macs / device.peak("bf16") / seconds,
        "forward hfu": report.hfu(device),
        "training": profiled.report.mfu(device),
        "training hfu": profiled.report.hfu(device),
        "latency": report.latency,
        "device seconds": seconds,
        "roofline": report.roofline(device).bound_seconds,
    }


def counters(bench: Bench) -> Row:
    """Return the FLOPs that the hardware counters report, with fxflops's counts."""
    if bench.stand_in:
        return {"kind": "counters", "rows": [], "why": "the stand-in has no counters"}
    with tf32(False):  # its cases set the TF32 flags and do not restore them
        counted = hardware_truth.by_ncu(min(30.0, max(15.0, bench.left)), bench.out)
    return {"kind": "counters", **counted}


def own_peaks(bench: Bench) -> Row:
    """Measure the device's peaks as fxflops does for a device that is in no table."""
    start = time.perf_counter()
    device = measured(str(bench.device), ("bf16", "f16"))
    return {
        "kind": "own",
        "peaks": dict(device.peaks),
        "bandwidth": device.bandwidth,
        "launch": device.launch,
        "reproducible": device.reproducible,
        "took": time.perf_counter() - start,
    }


def table(rows: list[Row]) -> list[str]:
    """Return the operations faster than their bounds, then the peaks, utilizations, counters and all operations."""
    of_kind: dict[str, list[Row]] = {}
    for row in rows:
        of_kind.setdefault(row["kind"], []).append(row)
    operations = of_kind.get("operation", [])
    fast = [row for row in operations if row["seconds"] < row["bound"]]
    cached = [row for row in operations if row["in cache"] < row["bound"] <= row["seconds"]]
    lines = [
        f"{len(operations)} operations; {len(fast)} faster than their bound, {len(cached)} more if their data is in the cache.",
        "",
        "The time is the device's, of calls whose data is in memory (inputs and results rotate through 200 MB), or in the L2 cache; the "
        "bound is that of `report.roofline`. Spread is the range of the samples, without the outer tenths, as a share of the median.",
        "",
    ]
    for title, chosen in (("Faster than the bound", fast), ("Faster than the bound only in the cache", cached)):
        lines += [f"## {title}", "", *(operation_rows(chosen) if chosen else ["None."]), ""]
    lines += peak_rows(of_kind.get("peak", []), of_kind.get("own", []))
    lines += [
        "",
        "## Utilization",
        "",
        "MFU and HFU as the report has them; by hand: 2 x MACs over the device's time, at the peak.",
        "",
    ]
    lines += utilization_rows(of_kind.get("mfu", []))
    lines += ["", "## FLOPs against the hardware's counters", ""]
    lines += [
        "Operations of a call by Nsight Compute. A kernel may compute more than is counted: attention in f32 makes three products in "
        "TF32 of each, its backward pass computes the scores again, and causal kernels compute whole tiles.",
        "",
    ]
    for row in of_kind.get("counters", []):
        lines += hardware_truth.gpu_table(row["rows"], row["why"])
    return [*lines, "", "## All operations", "", *operation_rows(operations)]


def operation_rows(rows: list[Row]) -> list[str]:
    """Return a table of operations, sorted by time / bound: the fastest relative to their bound first."""
    head = [
        "operation",
        "time (us)",
        "in cache (us)",
        "bound (us)",
        "binds",
        "bound / time",
        "bound / in cache",
        "spread",
        "",
    ]
    rows = sorted(rows, key=lambda row: row["seconds"] / row["bound"] if row["bound"] else float("inf"))
    body = []
    for row in rows:
        times = [row["seconds"], row["in cache"], row["bound"]]
        shares = [row["bound"] / row["seconds"], row["bound"] / row["in cache"]]
        note = "" if row["queue full"] else "the device waited for the host"
        note += f"not in a graph: {row['no graph']}" if row["no graph"] else ""
        body.append([row["case"], *(each * 1e6 for each in times), row["binds"], *shares, row["spread"], note])
    return markdown(head, body)


def peak_rows(rows: list[Row], own: list[Row]) -> list[str]:
    """Return a table of ceilings: from the datasheet, measured here, and measured by fxflops."""
    by_fxflops: dict[str, float] = {}
    for row in own:
        by_fxflops = {**row["peaks"], "bandwidth": row["bandwidth"], "launch (s)": row["launch"]}
    body = []
    for row in rows:
        sheet, seen = row["datasheet"], row["measured"]
        share = seen / sheet if sheet else None
        body.append([row["of"], sheet, seen, share, row.get("ones"), by_fxflops.get(row["of"]), row["how"]])
    head = ["ceiling", "datasheet", "measured", "measured / datasheet", "with ones", "by fxflops.measured", "how"]
    lines = [
        "## Ceilings",
        "",
        "FLOP/s, bytes/s, or seconds; measured with random numbers, and with ones, which take less power.",
        "",
    ]
    lines += markdown(head, body)
    for row in own:
        steady = "reproducibly" if row["reproducible"] else "not reproducibly"
        lines += ["", f"fxflops measured its own in {row['took']:.1f} s, {steady}."]
    return lines


def utilization_rows(rows: list[Row]) -> list[str]:
    """Return a table of MFU. "By hand" is the time that 2 x MACs take at the peak, divided by the forward's device time."""
    head = [
        "model",
        "above 1",
        "MFU forward",
        "by hand",
        "MFU training",
        "HFU training",
        "latency (ms)",
        "on the device (ms)",
        "bound (ms)",
    ]
    body = []
    for row in rows:
        shares = [row["forward"], row["by hand"], row["training"], row["training hfu"]]
        above = "**yes**" if any(share is not None and share > 1 for share in shares) else "no"
        latency = None if row["latency"] is None else row["latency"] * 1e3
        times = [latency, row["device seconds"] * 1e3, row["roofline"] * 1e3]
        body.append([row["case"], above, *shares, *times])
    return markdown(head, body)

"""Fidelity of measurements by fxflops and its peers: sums of node times against latency, peak memory, and the backward pass.

    python benchmarks/fidelity.py [--processes 3] [--models resnet50,...] [--device cpu|cuda]

Each model is measured in fresh processes. In each process, runs of the model itself alternate with every tool's profiling of the
same work. For a peer, the ratio is the tool's sum over its parts divided by the mean time of the model's runs just before and just
after. For fxflops, it is the report's ``total_time`` divided by its ``latency``. The table is
``benchmarks/results/fidelity_<device>.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor

RESULTS = Path(__file__).parent / "results"
Work = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
PAIRS = 5
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""glibc settings that keep freed memory, as the allocators in PyTorch's tuning guide do. Otherwise a run's time varies by about 15%,
depending on the pages that the system has to map again after the previous run."""


def of_timm(name: str, batch: int) -> Work:
    import timm

    return timm.create_model(name), (torch.randn(batch, 3, 224, 224),), {}


def of_transformers(kind: str, batch: int) -> Work:
    import transformers as hf

    tokens = {"input_ids": torch.randint(5, 900, (batch, 128))}
    if kind == "bert":
        return hf.BertModel(hf.BertConfig()), (), tokens
    if kind == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False)), (), tokens
    config = hf.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=32000, use_cache=False,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config), (), tokens


def unet(batch: int) -> Work:
    from diffusers import UNet2DModel

    model = UNet2DModel(sample_size=64, in_channels=3, out_channels=3, block_out_channels=(64, 128, 128, 256))
    return model, (torch.randn(batch, 3, 64, 64), torch.tensor(3)), {}


MODELS: dict[str, Callable[[int], Work]] = {
    "resnet50": lambda batch: of_timm("resnet50", batch),
    "efficientnet_b0": lambda batch: of_timm("efficientnet_b0", batch),
    "vit_base_patch16_224": lambda batch: of_timm("vit_base_patch16_224", batch),
    "swin_tiny": lambda batch: of_timm("swin_tiny_patch4_window7_224", batch),
    "bert-base": lambda batch: of_transformers("bert", batch),
    "gpt2": lambda batch: of_transformers("gpt2", batch),
    "llama-1b": lambda batch: of_transformers("llama", batch),
    "unet": unet,
}
LARGER = {"llama-1b": 2}


def seconds(run: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def by_torch_flops(model: nn.Module, args: Any, kwargs: Any) -> float:
    """Return the sum of torch_flops's node times, in seconds."""
    import torch_flops

    counter = torch_flops.TorchFLOPsByFX(copy.deepcopy(model))
    if not torch.cuda.is_available():
        for name in ("reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
            setattr(torch.cuda, name, lambda *_: 0)
    counter.propagate(*args, **kwargs)
    column = counter.result_header.index("time(ms)")
    return sum(row[column] for row in counter.result_table) / 1000


def by_flops_profiler(model: nn.Module, args: Any, kwargs: Any) -> float:
    """Return the sum of the durations that flops-profiler gives for leaf modules, in seconds."""
    from flops_profiler.profiler import FlopsProfiler

    profiler = FlopsProfiler(model)
    profiler.start_profile()
    model(*args, **kwargs)
    leaves = [m for m in model.modules() if not list(m.children()) and hasattr(m, "__duration__")]
    total = sum(m.__duration__ for m in leaves)
    profiler.end_profile()
    return float(total)


PEERS = {"torch_flops": by_torch_flops, "flops-profiler": by_flops_profiler}


def measured(name: str, batch: int, device: str) -> dict[str, Any]:
    """Measure the ratios of a model in this process. If a peer raises, its entry is the name of the error."""
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name](batch)
    model = model.eval().to(device)
    args = tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in args)
    kwargs = {key: value.to(device) for key, value in kwargs.items()}
    found: dict[str, Any] = {}
    with torch.no_grad():
        for _ in range(2):
            model(*args, **kwargs)
        own = [seconds(lambda: model(*args, **kwargs), device) for _ in range(PAIRS)]
        found["latency"] = statistics.median(own)
        repeats = 31 if found["latency"] < 0.1 else 11 if found["latency"] < 0.5 else 5
        report = fxflops.analyze(model, args, kwargs, repeats=repeats, progress=False)
        found["fxflops"] = report.total_time / report.latency
        found["overhead"] = report.latency / found["latency"]
        found["trace"] = report.trace
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            model(*args, **kwargs)
            found["peak"] = report.max_memory / torch.cuda.max_memory_allocated()
        found["predicted peak"] = fxflops.count(model, args, kwargs).max_memory / report.max_memory
        for peer, by in PEERS.items():
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                try:
                    ratios = []
                    for _ in range(3 if found["latency"] < 1 else 1):
                        before = seconds(lambda: model(*args, **kwargs), device)
                        spent = by(model, args, kwargs)
                        ratios.append(2 * spent / (before + seconds(lambda: model(*args, **kwargs), device)))
                    found[peer] = statistics.median(ratios)
                except Exception as error:
                    found[peer] = f"raises {type(error).__name__}"
    report = fxflops.analyze(
        model, args, kwargs, backward=True, repeats=3 if found["latency"] < 1 else 2, progress=False
    )
    back = sum(node.backward_timing.median for node in report.nodes if node.backward_timing is not None)
    found["backward"] = back / report.backward_timing.median
    flops = [c.flops for c in report.counted if c.call.phase == "backward"]
    placed = [c.flops for c in report.counted if c.call.phase == "backward" and (c.call.node or c.call.path)]
    found["attributed"] = sum(placed) / sum(flops)
    return found


def row(name: str, batch: int, runs: list[dict[str, Any]]) -> str:
    def cell(key: str, digits: int = 2) -> str:
        values = [run.get(key) for run in runs]
        if any(isinstance(value, str) for value in values):
            return next(value for value in values if isinstance(value, str))
        return " ".join(f"{value:.{digits}f}" for value in values) if None not in values else "-"

    latency = f"{statistics.median(run['latency'] for run in runs) * 1000:.1f}"
    keys = ("fxflops", "overhead", *PEERS, "predicted peak", "peak", "backward", "attributed")
    return f"| {name} | {batch} | {latency} | {runs[0]['trace'].split()[0]} | " + " | ".join(map(cell, keys)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--sizes", default="1,larger", help="batches to run: 1, larger, or both")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.one:
        name, batch = options.one.split(":")
        print(json.dumps(measured(name, int(batch), options.device)))
        return
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{processor()}, {os.cpu_count()} cores"
    lines = [
        "# Fidelity: what is measured against what the model does",
        "",
        f"{where}, torch {torch.__version__}, fxflops {fxflops.__version__}. Each cell has one number for each of "
        f"{options.processes} processes. The allocator keeps what is freed.",
        "",
        "- sum of nodes / latency: all nodes' medians to the median of the model's own runs, in interleaved pairs",
        "- latency / bare: the own latency that fxflops reports to the model's latency measured without it",
        "- torch_flops, flops-profiler: the sum of their parts to the model's latency around their run",
        "- predicted / peak: `count()`'s peak memory to `analyze()`'s; peak / allocator: `analyze()`'s to the allocator's own",
        "- backward: sum of nodes to the backward pass's own latency; attributed: share of its FLOPs that belong to a node",
        "",
        "| model | batch | latency (ms) | trace | sum of nodes / latency | latency / bare | torch_flops | flops-profiler "
        "| predicted / peak | peak / allocator | backward | attributed |",
        "|---|---:|---:|---|---|---|---|---|---|---|---|---|",
    ]
    for size in options.sizes.split(","):
        for name in options.models.split(","):
            batch = LARGER.get(name, 4) if size == "larger" else int(size)
            runs = []
            for _ in range(options.processes):
                command = [sys.executable, __file__, "--one", f"{name}:{batch}", "--device", options.device]
                done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | KEEPING)
                if done.returncode:
                    sys.exit(f"{name} at batch {batch} failed:\n{done.stderr[-2000:]}")
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            lines.append(row(name, batch, runs))
            print(lines[-1], flush=True)
            (RESULTS / f"fidelity_{options.device}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""Compare predictions of reserved memory with recorded CUDA allocations, and with torchtitan's published figures for Llama 3."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from benchmarks.gpu import memory
from benchmarks.models.llama_ranks import SHAPES, Layout, build
from fxflops import count
from fxflops.distributed import simulate
from fxflops.prediction import CachingAllocator

from .recorded_model import BATCH, AdamW, LanguageModel

CARD = "A100"
"""The recordings do not name their card. Its cuBLAS workspaces have 8,519,680 bytes, as on an A100."""
SNAPSHOTS = Path(__file__).parents[1] / "results" / "gpu" / "snapshots.jsonl.gz"
AUTOCAST = ("medium_512_inference", "medium_1024_training")
GIB, MIB = 2**30, 2**20
RUNS = [
    ("Llama-3.1 8B", Layout("8b", {"dp": 8}, 2, "selective"), "77.0 compiled, 82.4 not"),
    ("Llama-3.1 8B", Layout("8b", {"dp": 128}, 2, "selective"), "62.0 compiled, 67.0 not"),
    ("Llama-3.1 70B", Layout("70b", {"dp": 32, "tp": 8}, 16, "full"), "71.9 in float8; 67.6 with AsyncTP"),
]
"""torchtitan's runs without pipeline parallelism, with the published GiB (``reserved_bytes.all.peak``)."""


class Recording(NamedTuple):
    """A recorded run: the recorded and predicted bytes, and how many of the recorded addresses the simulated allocator reproduces."""

    name: str
    reserved: int
    allocated: int
    predicted: int
    predicted_allocated: int
    max_memory: int
    allocations: int
    reproduced: int

    @property
    def error(self) -> float:
        return self.predicted / self.reserved - 1


def recordings(folder: Path) -> Iterator[Recording]:
    """Yield the recorded runs with their predictions."""
    for file in sorted((folder / "cuda_snapshots").glob("*.json.gz")):
        name = file.name.removesuffix("_memory_snapshot.json.gz")
        with gzip.open(file) as packed:
            snapshot = json.load(packed)
        allocator, allocations, reproduced = replayed(snapshot)
        report = counted(name)
        found = report.reserved(CARD)
        yield Recording(
            name,
            allocator.peak_reserved,
            allocator.peak_allocated,
            found.reserved,
            found.allocated,
            report.max_memory or 0,
            allocations,
            reproduced,
        )


def replayed(snapshot: dict[str, Any]) -> tuple[CachingAllocator, int, int]:
    """Replay the recorded events. Return the allocator, the number of allocations, and how many got their recorded address."""
    allocator = CachingAllocator.from_snapshot(snapshot)
    addresses = dict[int, int]()
    allocations = reproduced = 0
    for event in snapshot["device_traces"][0]:
        recorded = event.get("addr", 0)
        if event["action"] == "alloc":
            addresses[recorded] = allocator.allocate(event["size"], event["stream"])
            allocations += 1
            reproduced += addresses[recorded] == recorded
        elif event["action"] == "free_completed":
            allocator.free(addresses.pop(recorded, recorded))
    return allocator, allocations, reproduced


def counted(name: str) -> Any:
    """Return the count of a recorded run on meta, by the run's name, e.g. ``medium_128_training``."""
    _, length, kind = name.split("_")
    dtype = torch.bfloat16 if name in AUTOCAST else None
    with torch.device("meta"):
        model = LanguageModel(int(length))
        tokens = torch.empty(BATCH, int(length), dtype=torch.long)
        if kind == "inference":
            return count(model, tokens, device="cuda", autocast=dtype)
        inputs = tokens, torch.empty_like(tokens)
        return count(model, inputs, mode="train", backward=True, optimizer=AdamW, device="cuda", autocast=dtype)


def published() -> Iterator[str]:
    """Yield a row of the table for each of torchtitan's runs."""
    for name, layout, said in RUNS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            simulation = simulate(partial(build, layout, SHAPES[layout.model]), layout.mesh, differs=())
        [kind] = simulation.kinds
        found = kind.report.reserved("H100", gpus=simulation.ranks)
        mesh = " x ".join(f"{dim} {size}" for dim, size in layout.mesh.items())
        sizes = [simulation.max_memory, found.allocated, found.reserved, found.total]
        cells = " | ".join(f"{nbytes / GIB:.1f}" for nbytes in sizes)
        yield f"| {name} | {mesh} | {cells} | {found.fragmentation:.1%} | {said} |"


def own_runs() -> Iterator[str]:
    """Yield a row of the table for each run of benchmarks/gpu/memory.py on an H100."""
    bench: Any = SimpleNamespace(stand_in=False)
    with gzip.open(SNAPSHOTS, "rt") as file:
        for line in map(json.loads, file):
            name, way = line["case"].split(", ", 1)
            make = memory.OPTIMIZERS.get(way.removesuffix(memory.CHECKPOINTED))
            with torch.device("meta"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                report = memory.predicted(*memory.built(bench, name, way), make, "cuda")
            found, figures = report.reserved("H100"), line["figures"]
            sizes = [figures["reserved"], found.reserved, figures["other"], found.workspaces]
            cells = " | ".join(f"{nbytes / MIB:.0f}" for nbytes in sizes)
            yield f"| {name} | {way} | {cells} | {found.reserved / figures['reserved'] - 1:+.1%} | {found.convolutions} |"


def table(folder: Path) -> str:
    """Return the section of the results about reserved memory."""
    rows = list(recordings(folder))
    lines = [
        f"| {row.name}{', autocast bf16' if row.name in AUTOCAST else ''} | {row.reproduced:,} of {row.allocations:,} | {row.reserved / MIB:,.0f} "
        f"| {row.predicted / MIB:,.0f} | {row.error:+.2%} | {row.allocated / MIB:,.0f} | {row.predicted_allocated / MIB:,.0f} "
        f"| {row.max_memory / row.reserved - 1:+.1%} |"
        for row in rows
    ]
    mean, most = sum(abs(row.error) for row in rows) / len(rows), max(abs(row.error) for row in rows)
    summary = f"Mean error {mean:.2%}, {most:.2%} at most."
    return "\n".join(
        [*HEAD.strip().splitlines(), *lines, "", summary, "", *TITAN.strip().splitlines(), *published(), WHY]
    )


HEAD = """
## Reserved memory

Recorded CUDA allocations of a language model (Wedsonlin/assignment2-systems 87b086417ea8, MIT: 24 layers, width 1,024, 16 heads, feed-forward 4,096,
vocabulary 10,000, batch 4), by context length. The first column replays the recorded requests in the simulated allocator. The others are
`report.reserved()` of the model [written anew](../prediction/recorded_model.py) and counted on meta, in MiB. The last is what
`max_memory`, the tensors alone, would have said.

| run | addresses reproduced | reserved | predicted | error | allocated | predicted | max_memory against reserved |
|---|---:|---:|---:|---:|---:|---:|---:|
"""
OWN = """
## Runs on an H100

The 48 runs of [the memory part](gpu/memory.md) of the GPU benchmark, from an empty device to the end of the second step, in MiB, with torch 2.11. Workspaces are those of
cuBLAS. What is missing are buffers that kernels take for themselves: cuDNN's, and those of memory-efficient attention's backward pass. Too
high is torch's fast path of the TransformerEncoder, whose kernel frees its parts.

| model | way | reserved | predicted | workspaces | predicted | error | convolutions |
|---|---|---:|---:|---:|---:|---:|---:|
"""
TITAN = """
## Against torchtitan's published figures

One rank of each run ([llama_ranks.py](../models/llama_ranks.py)), in GiB, as `report.reserved("H100", gpus=...)` has it, beside what torchtitan publishes
([benchmarks/llama3_h100_202412_torchtitan.md](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md)):
the peak of `reserved_bytes.all`. "max_memory" are the tensors alone.

| run | mesh | max_memory | allocated | reserved | with context and NCCL | fragmentation | published, reserved |
|---|---|---:|---:|---:|---:|---:|---|
"""
WHY = """
Why they differ:

- A simulated rank is a CPU's: its kernels keep other tensors, and FSDP's copies and collectives run in one stream. On a GPU
  they have streams of their own, whose blocks the allocator keeps apart, and which it gives back late.
- Not in ours: rotary embeddings in f32, norms of gradients (`clip_grad_norm_`), and the buffers of AsyncTP.
- Ours is not compiled. torch.compile saves torchtitan about 5 GiB in the 8B runs; the 70B run is compiled, and gathers weights in float8, in one byte.
- [published.md](published.md) has the tensors of these runs, and of those with pipelines, by category.
"""

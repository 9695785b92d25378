"""Simulated ranks beside real ones, and Llama-3 on meshes that this machine has not.

    python benchmarks/distributed.py [--llamas "8b dp 8,70b dp 32 tp 8"]

Four Gloo processes run a training step of blocks that are sharded (FSDP2) over two and tensor and sequence parallel over
the other two; then their ranks are simulated. Each Llama is a training step of one rank, in a fresh process. The table is
``benchmarks/results/distributed.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor
from fxflops.distributed import simulate, step_bound
from fxflops.units import count, seconds, size

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "distributed.md"
TOKENS = 8192


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    hidden: int
    key_heads: int = 8
    vocabulary: int = 128256


# https://arxiv.org/abs/2407.21783, table 3
SHAPES = {
    "8b": Shape(32, 4096, 32, 14336),
    "70b": Shape(80, 8192, 64, 28672),
    "405b": Shape(126, 16384, 128, 53248),
}


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = shape.width // shape.heads
        self.q, self.o = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(shape.width, shape.key_heads * self.size, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
        )


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.gate, self.up = (nn.Linear(shape.width, shape.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm, self.out = nn.RMSNorm(shape.width), nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.out(self.norm(x))


def tensor_parallel(model: Any, mesh: Any, loss_parallel: bool = False) -> None:
    """Tensor and sequence parallel, by the plan of torchtitan's parallelize_llama; with ``loss_parallel`` the logits stay
    sharded."""
    embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    layouts = Shard(-1) if loss_parallel else Replicate()
    out = ColwiseParallel(input_layouts=Shard(1), output_layouts=layouts, use_local_output=not loss_parallel)
    parallelize_module(model, mesh, {"embedding": embedding, "norm": SequenceParallel(), "out": out})
    for layer in model.layers:
        plan = {
            "norm1": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
            "attention.o": RowwiseParallel(output_layouts=Shard(1)),
            "norm2": SequenceParallel(),
            **{name: ColwiseParallel(input_layouts=Shard(1)) for name in ("gate", "up")},
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, plan)


def llama(name: str, mesh: dict[str, int]) -> str:
    """The row of a Llama: a sequence of 8,192 tokens for each rank along dp, layers checkpointed, bf16 with f32 weights."""

    def build(device_mesh: Any) -> Any:
        model = Llama(SHAPES[name])
        if "tp" in mesh:
            tensor_parallel(model, device_mesh["tp"])
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*model.layers, model):
            fully_shard(part, mesh=device_mesh["dp"], mp_policy=policy)
        optimizer, tokens = torch.optim.AdamW(model.parameters()), torch.ones(1, TOKENS, dtype=torch.long)

        def step() -> None:
            F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, step

    began, processor_began = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulation = simulate(build, mesh, differs=())
    took = time.perf_counter() - began, time.process_time() - processor_began
    (kind,), bound = simulation.kinds, step_bound(simulation, "H100")
    memory = kind.report.memory
    macs = sum(each.macs for each in kind.report.counted)
    cells = [name, " x ".join(f"{dim} {n}" for dim, n in mesh.items()), count(macs), count(kind.report.total_params)]
    cells += [size(memory[each]) for each in ("params", "optimizer", "activations", "gathered")]
    cells += [size(simulation.max_memory), size(sum(row.sent or 0 for row in kind.collectives))]
    cells += [f"{seconds(bound.best)} to {seconds(bound.worst)}", *(f"{each:.0f}" for each in took)]
    return f"| {' | '.join(cells)} |"


def real_and_simulated() -> list[str]:
    """The rows of four real ranks, each beside the simulated one."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for processes in ("4", "0"):
            command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "ranks.py"), folder, processes, "fsdp_tp"]
            subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        simulated = json.loads((Path(folder) / "simulated.json").read_text())["fsdp_tp"]
        for rank, found in enumerate(simulated):
            real = json.loads((Path(folder) / f"{rank}.json").read_text())["fsdp_tp"]
            same_step = real.pop("same")
            for name, each in (("real", real), ("simulated", found)):
                sent = sum(row[6] for row in each["collectives"])
                cells = [rank, name, each["forward"], each["backward"], each["flops"], *each["params"][:1]]
                cells += [len(each["collectives"]), sent, sum(each["memory"].values())]
                equal = ("as without fxflops" if same_step else "differs") if name == "real" else str(each == real)
                rows.append(f"| {' | '.join(map(str, [*cells, equal]))} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llamas", default="8b dp 8,8b dp 64,70b dp 32 tp 8")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        name, *sizes = asked.one.split()
        print(llama(name, dict(zip(sizes[::2], map(int, sizes[1::2]), strict=True))))
        return
    about = f"{os.cpu_count()} cores ({processor()}), torch {torch.__version__}, fxflops {fxflops.__version__}."
    four = (
        "A training step of a sharded and tensor parallel model on dp 2 x tp 2, on four Gloo processes and simulated."
    )
    lines = ["# Many processes", "", about, "", four, ""]
    lines += [
        "| rank | | forward MACs | backward MACs | FLOPs | params | collectives | bytes sent | peak bytes | equal |"
    ]
    lines += ["|---:|---|---:|---:|---:|---:|---:|---:|---:|---|", *real_and_simulated(), ""]
    lines += [
        "One rank of Llama-3: 8,192 tokens, every layer checkpointed, f32 weights and AdamW, bf16 in between. The bound of the",
        "step is that of H100s, all communication overlapped and none; seconds are of the simulation, by the clock and the processor.",
        "",
        "| model | mesh | MACs | params | params | optimizer | activations | gathered | peak | sent | bound | s | CPU s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|",
    ]
    for each in asked.llamas.split(","):
        command = [sys.executable, __file__, "--one", each]
        lines.append(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]
        )
    RESULTS.write_text("\n".join([*lines, ""]), encoding="utf8")


if __name__ == "__main__":
    main()

"""Llama 3 on a mesh, as torchtitan trains it: with sharding (FSDP2), tensor, sequence and pipeline parallelism."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

TOKENS = 8192
aten, functional = torch.ops.aten, torch.ops._c10d_functional
SAVED = {
    aten.mm.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    functional.reduce_scatter_tensor.default,
}
"""The operators whose results torchtitan's selective checkpointing saves. For ``mm``, only every other result is saved."""


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


class Layout(NamedTuple):
    """A run: ``sequences`` per data-parallel rank, ``microbatch`` sequences per microbatch, and ``stages`` per pipeline rank."""

    model: str
    mesh: dict[str, int]
    sequences: int
    checkpointing: str
    microbatch: int = 0
    stages: int = 1


class Part(nn.Module):
    """Some layers of a Llama. The first part also has the embedding, and the last part the output layer."""

    def __init__(self, shape: Shape, layers: range, checkpointing: str) -> None:
        super().__init__()
        if layers.start == 0:
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in layers)
        if layers.stop == shape.layers:
            self.norm, self.out = nn.RMSNorm(shape.width), nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.checkpointing = checkpointing

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x) if hasattr(self, "embedding") else x
        for layer in self.layers:
            if self.checkpointing == "none":
                x = layer(x)
            else:
                chosen = {"context_fn": selective} if self.checkpointing == "selective" else {}
                x = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False, **chosen)
        return self.out(self.norm(x)) if hasattr(self, "out") else x


def selective() -> Any:
    """Return the contexts of torchtitan's selective checkpointing by operator."""
    seen: Counter[bool] = Counter()

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen[context.is_recompute] += op == aten.mm.default
        second = op == aten.mm.default and seen[context.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if op in SAVED and not second else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def parts_of(layers: int, stages: int) -> list[range]:
    """Return the layers of each stage, as torchtitan's generate_split_points does: leftover layers go to the stages after the first."""
    sizes = [layers // stages + (0 < i <= layers % stages) for i in range(stages)]
    ends = [sum(sizes[: i + 1]) for i in range(stages)]
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def tensor_parallel(model: Any, mesh: Any) -> None:
    """Apply tensor and sequence parallelism in place, by the plan of torchtitan's parallelize_llama. The logits stay sharded."""
    embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    out = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
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


def build(layout: Layout, shape: Shape, mesh: Any, tokens: int = TOKENS) -> Any:
    """Return the parts of a rank, and its training step, as torchtitan's train.py makes them."""
    depth = layout.mesh.get("pp", 1)
    ranges = parts_of(shape.layers, depth * layout.stages)
    rank = mesh["pp"].get_local_rank() if depth > 1 else 0
    parts = {i: Part(shape, ranges[i], layout.checkpointing) for i in range(rank, len(ranges), depth)}
    shards = mesh[("replicate", "dp")] if "replicate" in layout.mesh else mesh["dp"]
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in parts.values():
        if "tp" in layout.mesh:
            tensor_parallel(part, mesh["tp"])
        for layer in part.layers:
            last = depth > 1 or layer is part.layers[-1]
            fully_shard(layer, mesh=shards, mp_policy=policy, reshard_after_forward=not last)
        fully_shard(part, mesh=shards, mp_policy=policy, reshard_after_forward=depth == 1)
    optimizer = torch.optim.AdamW([p for part in parts.values() for p in part.parameters()])
    batch = torch.ones(layout.sequences, tokens, dtype=torch.long)
    context = loss_parallel if "tp" in layout.mesh else nullcontext
    run = pipeline(layout, shape, mesh["pp"], parts, batch) if depth > 1 else partial(forward, parts[0], batch)

    def step() -> None:
        with context():
            run()
        optimizer.step()
        optimizer.zero_grad()

    return list(parts.values()), step


def forward(model: nn.Module, batch: Tensor) -> None:
    logits = model(batch)
    loss = loss_of(logits, batch)
    del logits
    loss.backward()


def pipeline(layout: Layout, shape: Shape, mesh: Any, parts: dict[int, Part], batch: Tensor) -> Any:
    """Return the schedule's step: 1F1B, or interleaved 1F1B if a rank has several stages."""
    size, tp = layout.microbatch, layout.mesh.get("tp", 1)
    count, length = mesh.size() * layout.stages, batch.shape[1]
    between = torch.empty(size, length // tp, shape.width, dtype=torch.bfloat16, requires_grad=True)
    logits = torch.empty(size, length, shape.vocabulary // tp, dtype=torch.bfloat16, requires_grad=True)
    stages = [
        PipelineStage(
            part,
            i,
            count,
            torch.device("cpu"),
            input_args=batch[:size] if i == 0 else between,
            output_args=between if i < count - 1 else logits,
            group=mesh.get_group(),
        )
        for i, part in parts.items()
    ]
    microbatches = layout.sequences // size
    if layout.stages == 1:
        schedule: Any = Schedule1F1B(stages[0], n_microbatches=microbatches, loss_fn=loss_of)
    else:
        schedule = ScheduleInterleaved1F1B(stages, n_microbatches=microbatches, loss_fn=loss_of)
    args = (batch,) if 0 in parts else ()
    kwargs = {"target": batch, "losses": []} if count - 1 in parts else {}
    return partial(schedule.step, *args, **kwargs)

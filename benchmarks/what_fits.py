"""Check checkpoint plans and largest batches against the peaks of the CPU's allocator.

    python benchmarks/what_fits.py [--models gpt2,...] [--seconds 1200]

Ten models get a plan for each of five budgets, from the smallest peak that checkpoints reach to nearly the peak without checkpoints.
The plan's ``code`` is applied to the model, and the second of two training steps with AdamW is measured (``benchmarks/allocator.py``),
without memory that a kernel allocates and frees itself. For small models, this script checkpoints every set of modules and counts
it: no set may fit and recompute less than the plan. The batch of ``largest_batch`` must be the largest whose measured peak is within
the budget. The table is ``benchmarks/results/what_fits.md``. Rows are saved in ``benchmarks/results/what_fits.jsonl``, so an
interrupted run resumes.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.allocator import allocated
from benchmarks.machine import processor
from benchmarks.memory_truth import bytes_of, step
from fxflops.model.pytree import tensors_in

RESULTS = Path(__file__).parent / "results"
BUDGETS = 0.9, 0.7, 0.5, 0.25, 0.0
"""Budgets, as fractions of the way from the smallest peak (0) to the peak without checkpoints (1)."""
LIMIT = 0.005
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class Block(nn.Module):
    """A transformer block with a norm before each half."""

    def __init__(self, width: int, feed_forward: nn.Module, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward, self.dropout = feed_forward, nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        q, k, v = (each.transpose(1, 2) for each in self.qkv(self.norm1(x)).view(b, t, 3, 4, width // 4).unbind(2))
        scores = (q @ k.transpose(-1, -2) / (width // 4) ** 0.5).softmax(-1)
        x = x + self.out((self.dropout(scores) @ v).transpose(1, 2).reshape(b, t, width))
        return x + self.feed_forward(self.norm2(x))


class Experts(nn.Module):
    """A layer of experts. Each token goes to its router's top two experts, so an expert's number of tokens depends on values."""

    def __init__(self, width: int, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(2, -1)
        out = torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            row, rank = (chosen == i).nonzero(as_tuple=True)
            out = out.index_add(0, row, expert(rows[row]) * weights[row, rank, None])
        return out.view_as(x)


class UNet(nn.Module):
    """Three levels with skip connections and batch norms."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        sizes = (3, width, 2 * width, 4 * width)
        self.down = nn.ModuleList(self.level(a, b) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes[1:]))
        self.merge = nn.ModuleList(self.level(2 * a, a) for a in sizes[1:-1])
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def level(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
            x = F.max_pool2d(x, 2) if len(kept) < len(self.down) else x
        for i in reversed(range(len(self.up))):
            x = self.merge[i](torch.cat([kept[i], self.up[i](x)], 1))
        return self.head(x)  # type: ignore[no-any-return]


def feed_forward(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def images(batch: int, size: int = 64) -> Inputs:
    return (torch.randn(batch, 3, size, size),), {}


def rows(batch: int, tokens: int = 128, width: int = 64) -> Inputs:
    return (torch.randn(batch, tokens, width),), {}


def tokens(batch: int, length: int = 96) -> Inputs:
    ids = torch.randint(256, (batch, length))
    return (), {"input_ids": ids, "labels": ids}


def of_transformers(name: str, **config: Any) -> nn.Module:
    import transformers

    made = getattr(transformers, f"{name}Config")(vocab_size=256, **config)
    head = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM", "Llama": "LlamaForCausalLM"}[name]
    return getattr(transformers, head)(made)  # type: ignore[no-any-return]


def of_timm(name: str, **given: Any) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=10, **given)  # type: ignore[no-any-return]


SIZES = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 192}
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Inputs], int]] = {
    "gpt2": (lambda: of_transformers("GPT2", n_layer=4, n_embd=64, n_head=4, use_cache=False), tokens, 8),
    "bert": (lambda: of_transformers("Bert", **SIZES), tokens, 8),
    "llama": (lambda: of_transformers("Llama", **SIZES, num_key_value_heads=2, use_cache=False), tokens, 8),
    "transformer": (lambda: nn.Sequential(*(Block(64, feed_forward(64)) for _ in range(4))), rows, 8),
    "mixture of experts": (lambda: nn.Sequential(*(Block(64, Experts(64), dropout=0) for _ in range(3))), rows, 8),
    "vit_tiny": (lambda: of_timm("vit_tiny_patch16_224", img_size=64, depth=4), images, 32),
    "resnet10t": (lambda: of_timm("resnet10t"), images, 16),
    "convnext_atto": (lambda: of_timm("convnext_atto", depths=(1, 1, 2, 1)), images, 16),
    "mobilenetv3_small": (lambda: of_timm("mobilenetv3_small_050"), images, 16),
    "unet": (UNet, images, 8),
}


class Wide(nn.Module):
    """A layer without submodules. It saves several tensors of this width for the backward pass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(32, width) / 6), nn.Parameter(torch.randn(width, 32) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (F.silu(x @ self.up).tanh() * 0.5).sigmoid() @ self.down


class Shared(nn.Module):
    """A layer that is called twice, with other layers between and after the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.between, self.after = Wide(96), Wide(256), nn.Sequential(Wide(160), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.twice(self.between(self.twice(x))))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A model with a layer that returns a tuple, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.act = nn.Linear(64, 64), nn.Tanh()
        self.recurrent, self.head = nn.GRU(64, 32), nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.twice(self.act(self.twice(x)).sigmoid())
        out, _ = self.recurrent(x)
        return self.head(out)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.head = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GELU()), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.first(x)))
        return self.head(x + self.second(x))  # type: ignore[no-any-return]


def nested() -> nn.Module:
    inner = nn.Sequential(Wide(64), Wide(256))
    return nn.Sequential(nn.Sequential(inner, Wide(128)), Wide(192))


WIDTHS = 32, 320, 96, 160, 224
narrow = partial(rows, tokens=128, width=32)
SMALL: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Inputs], int]] = {
    "sizes": (lambda: nn.Sequential(*map(Wide, WIDTHS)), narrow, 4),
    "nested": (nested, narrow, 4),
    "called twice": (Shared, narrow, 4),
    "recurrent": (Recurrent, partial(rows, tokens=32), 4),
    "convolutions": (Bottleneck, partial(images, size=32), 4),
    "attention": (lambda: Block(64, nn.Linear(64, 64)), partial(rows, tokens=64), 4),
}


def measured(model: nn.Module, inputs: Inputs, optimizer: torch.optim.Optimizer) -> int:
    """Return the CPU allocator's peak in bytes during a step. The optimizer must have stepped before."""
    args, kwargs = inputs
    run = partial(step, model, args, kwargs, optimizer)
    model.zero_grad()
    before = bytes_of([*model.parameters(), *model.buffers(), *tensors_in((inputs, [*optimizer.state.values()]))])
    peak = allocated(run, before).held
    model.zero_grad()
    return peak


def trained(model: nn.Module, inputs: Inputs) -> torch.optim.Optimizer:
    """Return an optimizer that has stepped once. Its learning rate is 0: weights do not change, so experts get the same tokens again."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    step(model, *inputs, optimizer)
    model.zero_grad()
    return optimizer


def least_of(plan: fxflops.CheckpointPlan) -> int:
    """Return the smallest peak in bytes, which the error for a budget of 0 states."""
    try:
        plan.within(0)
    except fxflops.OutOfMemoryError as error:
        found = re.search(r"\(([\d,]+) bytes\)", str(error))
        assert found
        return int(found[1].replace(",", ""))
    raise AssertionError("a model fitted into nothing")


def plans(name: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each budget: the plan's predicted peak, and the measured peak with the plan's code applied."""
    build, make_inputs, batch = MODELS[name]
    torch.manual_seed(0)
    model, inputs = build().train(), make_inputs(batch)
    optimizer = trained(model, inputs)
    began = time.process_time()
    first = fxflops.plan_checkpoints(model, *inputs, memory="1TiB", optimizer=optimizer)
    without, least = first.peak_before, least_of(first)
    for share in BUDGETS:
        memory = int(least + share * (without - least))
        plan = first.within(memory)
        seconds = time.process_time() - began
        applied = copy.deepcopy(model)
        exec(plan.code, {"model": applied})
        peak = measured(applied, inputs, trained(applied, inputs))
        yield {
            "kind": "plan", "model": name, "share": share, "memory": memory, "peak": plan.peak, "measured": peak,
            "modules": len(plan.modules), "recomputed": plan.recompute_flops / plan.flops, "seconds": seconds,
        }  # fmt: skip
        began = time.process_time()


def exhaustive(name: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each budget: the FLOPs that the plan recomputes, and the fewest of any set of modules that fits."""
    build, make_inputs, batch = SMALL[name]
    torch.manual_seed(0)
    model, inputs = build().train(), make_inputs(batch)
    modules = {path: module for path, module in model.named_modules() if path}
    counted = list[tuple[int, int]]()
    for size in range(len(modules) + 1):
        for chosen in combinations(modules.values(), size):
            for module in chosen:
                module.forward = partial(checkpoint, module.forward, use_reentrant=False)
            report = fxflops.count(model, *inputs, backward=True)
            counted.append((report.max_memory or 0, report.total_recompute_flops or 0))
            for module in chosen:
                del module.forward
    least, without = min(counted)[0], counted[0][0]
    for share in BUDGETS:
        memory = int(least + share * (without - least))
        plan = fxflops.plan_checkpoints(model, *inputs, memory=memory)  # a new plan for each budget, without ``within``
        best = min(flops for peak, flops in counted if peak <= memory)
        yield {
            "kind": "all sets", "model": name, "share": share, "memory": memory, "sets": len(counted), "least": best,
            "planned": plan.recompute_flops, "modules": len(plan.modules), "peak": plan.peak,
        }  # fmt: skip


def batches(name: str) -> Iterator[dict[str, Any]]:
    """Yield a row: the largest batch in 2.2 times the peak at the batch in ``MODELS``, and the peaks of that batch and the next."""
    build, make_inputs, batch = MODELS[name]
    torch.manual_seed(0)
    model, inputs = build().train(), make_inputs(batch)
    optimizer = trained(model, inputs)
    memory = int(2.2 * measured(model, inputs, optimizer))
    calls = list[int]()

    def noted(size: int) -> Any:
        calls.append(size)
        args, kwargs = make_inputs(size)
        return args or kwargs

    found = fxflops.largest_batch(model, noted, memory=memory, backward=True, optimizer=optimizer)
    peaks = [measured(model, make_inputs(size), optimizer) for size in (found, found + 1)]
    yield {
        "kind": "batch", "model": name, "memory": memory, "batch": found, "peak": peaks[0], "next": peaks[1],
        "counts": len(calls),
    }  # fmt: skip


def table(found: list[dict[str, Any]]) -> str:
    """Return the three tables."""
    of_plans, of_sets, of_batches = (
        [row for row in found if row["kind"] == kind] for kind in ("plan", "all sets", "batch")
    )
    errors = [abs(row["peak"] / row["measured"] - 1) for row in of_plans]
    worse = [row for row in of_sets if row["planned"] > row["least"]]
    right = [row for row in of_batches if row["peak"] <= row["memory"] < row["next"]]
    lines = [
        "# What fits",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}, on the CPU in f32, one thread. "
        "A step of training with AdamW, in train mode, the second of two. Measured is the peak of the allocator's running sum, without "
        "what is allocated and freed within one operator that has a kernel of its own.",
        "",
        "## Plans of checkpoints",
        "",
        f"{len(of_plans)} plans: {sum(error <= LIMIT for error in errors)} within {LIMIT:.1%} of the measured peak, "
        f"mean {sum(errors) / max(len(errors), 1):.3%}, largest {max(errors, default=0):.2%}. "
        f"{sum(row['measured'] <= row['memory'] for row in of_plans)} measured peaks are within the budget. "
        "The budget's share is 0 at the smallest peak that was found and 1 at the peak without checkpoints. "
        "The seconds are the processor's; the first of a model has the counts of its modules and the search for the smallest peak.",
        "",
        "| model | share | budget (bytes) | predicted | measured | error | modules | recomputed FLOPs | planned in |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['model']} | {row['share']} | {row['memory']:,} | {row['peak']:,} | {row['measured']:,} "
        f"| {row['peak'] / row['measured'] - 1:+.3%} | {row['modules']} | {row['recomputed']:.1%} | {row['seconds']:.1f} s |"
        for row in of_plans
    ]
    lines += [
        "",
        "## Beside all sets of modules",
        "",
        f"{len(of_sets)} budgets: in {len(of_sets) - len(worse)} no set of modules fits and recomputes less.",
        "",
        "| model | sets | share | budget (bytes) | planned FLOPs | least FLOPs of all sets | modules |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['model']} | {row['sets']} | {row['share']} | {row['memory']:,} | {row['planned']:,} | {row['least']:,} | {row['modules']} |"
        for row in of_sets
    ]
    lines += [
        "",
        "## The largest batch",
        "",
        f"{len(right)} of {len(of_batches)} are the largest whose measured peak is within the budget.",
        "",
        "| model | budget (bytes) | batch | its measured peak | that of the next | counts |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['model']} | {row['memory']:,} | {row['batch']} | {row['peak']:,} | {row['next']:,} | {row['counts']} |"
        for row in of_batches
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join([*MODELS, *SMALL]))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no model after so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kept, began = RESULTS / "what_fits.jsonl", time.monotonic()
    found = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    known = {(row["kind"], row["model"]) for row in found}
    wanted = options.models.split(",")
    jobs = [("all sets", exhaustive, name) for name in SMALL if name in wanted]
    jobs += [job for name in MODELS if name in wanted for job in (("plan", plans, name), ("batch", batches, name))]
    for kind, rows_of, name in jobs:
        if (kind, name) in known or time.monotonic() - began > options.seconds:
            continue
        added = [*rows_of(name)]
        found += added
        with kept.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in added)
        print(*added, sep="\n", flush=True)
        (RESULTS / "what_fits.md").write_text(table(found))


if __name__ == "__main__":
    main()

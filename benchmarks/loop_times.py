"""Compare the times that ``profile()`` reports with the same loop without it: a training step, ``generate()``, a diffusion sampler.

    python benchmarks/loop_times.py [--pairs 20] [--loops training,generate,diffusion]

Each loop has its own process with one thread. Runs without fxflops, inside ``profile()`` and with plain hooks alternate.
The table is ``benchmarks/results/loop_times.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor

RESULT = Path(__file__).parent / "results" / "loop_times.md"
SHARE = 0.01
"""Modules are compared if they take at least this share of the block."""


class Loop(NamedTuple):
    """A loop to time, with its model and optimizer."""

    model: nn.Module
    run: Callable[[], Any]
    optimizer: torch.optim.Optimizer | None = None


def training() -> Loop:
    """GPT-2 small, 4 x 256 tokens, AdamW."""
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(1, 50000, (4, 256))

    def run() -> None:
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Loop(model, run, optimizer)


def generate() -> Loop:
    """GPT-2 small, 32 tokens after 16, batch 1."""
    import transformers

    config = transformers.GPT2Config(eos_token_id=None)
    config.pad_token_id = 0
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(1, 50000, (1, 16))
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 32, "do_sample": False}
    return Loop(model, torch.no_grad()(lambda: model.generate(ids, **asked)))


def diffusion() -> Loop:
    """A UNet of 3.7 M parameters, ten DDIM steps at 32 x 32, batch 1."""
    import diffusers

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    model = diffusers.UNet2DModel(sample_size=32, block_out_channels=(64, 128), layers_per_block=1, **blocks).eval()
    scheduler = diffusers.DDIMScheduler()
    start = torch.randn(1, 3, 32, 32)

    @torch.no_grad()
    def run() -> torch.Tensor:
        scheduler.set_timesteps(10)
        image = start
        for step in scheduler.timesteps:
            image = scheduler.step(model(image, step).sample, step, image).prev_sample
        return image

    return Loop(model, run)


LOOPS = {"training": training, "generate": generate, "diffusion": diffusion}


def hooked(loop: Loop) -> dict[str, float]:
    """Run the loop with plain hooks. Return the seconds of each module's forward, by path."""
    taken: dict[str, float] = {}
    begun: list[float] = []

    def begin(*_: Any) -> None:
        begun.append(time.perf_counter())

    handles = []
    for path, module in loop.model.named_modules():

        def end(*_: Any, path: str = path) -> None:
            taken[path] = taken.get(path, 0.0) + time.perf_counter() - begun.pop()

        handles += [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    loop.run()
    for handle in handles:
        handle.remove()
    return taken


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall time and this thread's CPU time of a run, in seconds."""
    wall, processor_time = time.perf_counter(), time.thread_time()
    run()
    return time.perf_counter() - wall, time.thread_time() - processor_time


def measured(name: str, pairs: int) -> dict[str, Any]:
    """Time a loop ``pairs`` times in each way, and return the medians by name."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loop = LOOPS[name]()
    reports: list[Any] = []

    def observed() -> None:
        with fxflops.profile(loop.model) as p:
            loop.run()
        reports.append(p.report)

    def lightly(detail: str) -> None:
        with fxflops.profile(loop.model, optimizer=loop.optimizer, detail=detail) as p:
            loop.run()
        light[detail].append(p.report)

    light: dict[str, list[Any]] = {"modules": [], "steps": []}
    loop.run()
    observed()
    hooked(loop)
    reports.clear()
    plain, watched, hooks = [], [], []
    lighter: dict[str, list[tuple[float, float]]] = {detail: [] for detail in light}
    for _ in range(pairs):
        plain.append(timed(loop.run))
        watched.append(timed(observed))
        hooks.append(hooked(loop))
        for detail, taken in lighter.items():
            taken.append(timed(partial(lightly, detail)))
    ratio_of = {}
    for path in hooks[0]:
        by_hooks = statistics.median(each[path] for each in hooks)
        if by_hooks > SHARE * statistics.median(wall for wall, _ in plain):
            seconds = statistics.median(report.by_module()[path].total.seconds for report in reports)
            ratio_of[path] = seconds / by_hooks
    ratios = ratio_of.values()
    last = reports[-1]
    steps = [sum(time.seconds for time in report.step_times().values()) for report in reports]
    walls = [wall for wall, _ in watched]
    sums = [report.block_time + report.instrument_time for report in reports]
    calls = len(last.calls)
    return {
        "calls": calls,
        "plain": statistics.median(wall for wall, _ in plain),
        "block": statistics.median(report.block_time for report in reports),
        "steps": statistics.median(a / report.block_time for a, report in zip(steps, reports, strict=True)),
        "whole": statistics.median(a / b for a, b in zip(sums, walls, strict=True)),
        "modules": [statistics.median(ratios), min(ratios), max(ratios), len(ratios)],
        "other modules": {path: ratio for path, ratio in ratio_of.items() if abs(ratio - 1) > 0.1},
        "processor": statistics.median(b / a for (_, a), (_, b) in zip(plain, watched, strict=True)),
        "lighter": {
            detail: statistics.median(b / a for (_, a), (_, b) in zip(plain, taken, strict=True))
            for detail, taken in lighter.items()
        },
        "light blocks": {
            detail: statistics.median(report.block_time for report in taken) for detail, taken in light.items()
        },
        "a call": statistics.median(b - a for (_, a), (_, b) in zip(plain, watched, strict=True)) / calls,
    }


def table(found: dict[str, dict[str, Any]], pairs: int) -> str:
    """Return the table as Markdown."""
    lines = [
        "# The time of a loop\n",
        f"{processor()}, one thread, torch {torch.__version__}, fxflops {fxflops.__version__}: medians of {pairs} runs without "
        "fxflops, inside `profile()`, and with plain hooks around each module, in turn.\n",
        "| loop | calls | without (s) | the block's time (s) | block / without | steps / block | (block + observing) / clock "
        "| modules' forward / plain hooks, median (least-most) | modules within a tenth | processor time, inside / without "
        "| observing a call (us) | modules alone: block / without | processor time | steps alone: block / without | processor time |",
        "|---|" + "---:|" * 14,
    ]
    for name, row in found.items():
        median, low, high, modules = row["modules"]
        others = ", ".join(f"{path} {ratio:.2f}" for path, ratio in row["other modules"].items())
        lines.append(
            f"| {name}: {(LOOPS[name].__doc__ or '').rstrip('.')} | {row['calls']:,} | {row['plain']:.3f} | {row['block']:.3f} "
            f"| {row['block'] / row['plain']:.3f} | {row['steps']:.3f} | {row['whole']:.3f} | {median:.3f} ({low:.2f}-{high:.2f}) "
            f"| {modules - len(row['other modules'])} of {modules}{others and f' (not {others})'} | {row['processor']:.3f} | {1e6 * row['a call']:.0f} "
            + "".join(
                f"| {row['light blocks'][detail] / row['plain']:.3f} | {row['lighter'][detail]:.3f} "
                for detail in row["lighter"]
            )
            + "|"
        )
    lines.append(
        "\nThe block's time is without that of observing it; processor time and microseconds are what observing costs. Modules and steps alone: `detail=`. Modules are those "
        f"with at least {SHARE:.0%} of the loop's time.\n"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--loops", default=",".join(LOOPS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.one, asked.pairs)))
        return
    found = {}
    for name in asked.loops.split(","):
        command = [sys.executable, __file__, "--one", name, "--pairs", str(asked.pairs)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, found[name], flush=True)
    RESULT.write_text(table(found, asked.pairs), encoding="utf8")


if __name__ == "__main__":
    main()

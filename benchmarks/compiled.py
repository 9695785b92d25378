"""Compare a compiled model's latency in ``analyze`` with its latency without fxflops. Check that the next call does not recompile.

    python benchmarks/compiled.py [--rounds 8] [--runs 10] [--models resnet18,gpt2,breaking] [--processor-time]

Each model runs in two single-threaded processes. One never imports fxflops and times calls of the compiled model. The other
analyzes the model. The processes take turns, round by round. ``--processor-time`` is for a busy machine: both processes then
measure the thread's CPU time. The table is ``benchmarks/results/compiled.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import processor

RESULT = Path(__file__).parent / "results" / "compiled.md"
HEAP = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**32)}
"""glibc settings that keep freed memory in the process. By default, what glibc keeps depends on earlier frees: a call of ResNet-18 then
has thousands of page faults in one process (43 ms) and no page faults in another (34 ms), with or without fxflops."""
BUSY = " Other programs were running: times are the thread's own on the processor, but for those of kernels."
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def resnet18() -> Made:
    """ResNet-18, 1 x 3 x 224 x 224."""
    import torchvision

    return torchvision.models.resnet18().eval(), (torch.randn(1, 3, 224, 224),), {}


def gpt2() -> Made:
    """GPT-2 small, 1 x 64 tokens."""
    import transformers

    config = transformers.GPT2Config(use_cache=False)
    return transformers.GPT2LMHeadModel(config).eval(), (), {"input_ids": torch.randint(1, 50000, (1, 64))}


class Breaking(nn.Module):
    """Normalizes its activations only if they are large. The branch on a value breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(512, 2048), nn.LayerNorm(2048), nn.Linear(2048, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(self.first(x))
        if x.abs().max() > 1:
            x = self.norm(x)
        return self.last(x).softmax(-1)


def breaking() -> Made:
    """Two layers with a branch on a value between them, 256 x 512."""
    return Breaking().eval(), (torch.randn(256, 512),), {}


MODELS: dict[str, Callable[[], Made]] = {"resnet18": resnet18, "gpt2": gpt2, "breaking": breaking}


def made(name: str) -> tuple[Any, Made]:
    """Return a compiled model, and the eager model with its args and kwargs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    whole = MODELS[name]()
    return torch.compile(whole[0]), whole


def plain(name: str, runs: int) -> Iterator[Any]:
    """Time calls of the compiled model without fxflops.

    Yield "ready", then for each round the median and the minimum seconds of a call.
    """
    model, (_, args, kwargs) = made(name)
    with torch.no_grad():
        for _ in range(3):
            model(*args, **kwargs)
        yield "ready"
        while True:
            taken = []
            for _ in range(runs):
                start = time.perf_counter()
                model(*args, **kwargs)
                taken.append(time.perf_counter() - start)
            yield statistics.median(taken), min(taken)


def analyzed(name: str, runs: int) -> Iterator[Any]:
    """Analyze the compiled model with fxflops.

    Yield "ready", then for each round the median and the minimum seconds of the compiled model and the latency of the eager model.
    When sent "end", yield the other figures of the row.
    """
    import fxflops

    model, (eager, args, kwargs) = made(name)
    fxflops.analyze(model, args, kwargs, repeats=1, progress=False)
    asked = yield "ready"
    while asked != "end":
        report = fxflops.analyze(model, args, kwargs, repeats=runs, progress=False)
        asked = yield report.compiled.latency, report.compiled.timing.low, report.latency
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        model(*args, **kwargs)  # raises if it would compile
    view = fxflops.analyze(model, args, kwargs, repeats=runs, progress=False, kernels=True).compiled
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
        model(*args, **kwargs)
    own = fxflops.analyze(eager, args, kwargs, repeats=0, progress=False).total_flops
    yield {
        "breaks": [f"{Path(where).name}: {reason}" for reason, where in view.breaks],
        "graphs": view.graphs,
        "recompilations": len(view.recompilations),
        "flops": [report.total_flops, own],
        "kernels": len(view.kernels),
        "missing": view.run.kernels_missing,
        "sum": sum(kernel.seconds for kernel in view.kernels) / view.latency,
        "losers": ["unsteady"] if view.unsteady else view.losers[:3],
    }


def serve(steps: Any) -> None:
    """Answer each line on stdin with the next value, as JSON."""
    print(json.dumps(next(steps)), flush=True)
    for line in sys.stdin:
        print(json.dumps(steps.send(line.strip())), flush=True)


def compared(name: str, rounds: int, runs: int, processor_time: bool) -> dict[str, Any]:
    """Time a model in both processes, and return its row of the table."""
    command = [sys.executable, __file__, "--models", name, "--runs", str(runs)]
    command += [*(["--processor-time"] if processor_time else []), "--side"]
    sides = [
        subprocess.Popen(
            [*command, side], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | HEAP
        )
        for side in ("plain", "analyzed")
    ]

    def answer(side: subprocess.Popen[str], line: str = "") -> Any:
        if line:
            side.stdin.write(line + "\n")  # type: ignore[union-attr]
            side.stdin.flush()  # type: ignore[union-attr]
        while not (said := side.stdout.readline()).startswith(("[", "{", '"', *"0123456789")):  # type: ignore[union-attr]
            if not said:
                raise RuntimeError(f"a process of {name} ended")
        return json.loads(said)

    for side in sides:
        answer(side)
    rows = [(*answer(sides[0], "go"), *answer(sides[1], "go")) for _ in range(rounds)]
    alone, alone_least, ours, ours_least, eager = zip(*rows, strict=True)
    rest = answer(sides[1], "end")
    for side in sides:
        side.kill()
        side.wait()
    ratios = [one / other for one, other in zip(ours, alone, strict=True)]
    return {
        "plain": statistics.median(alone),
        "ours": statistics.median(ours),
        "eager": statistics.median(eager),
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "least": min(ours_least) / min(alone_least),
        **rest,
    }


def table(found: dict[str, dict[str, Any]], rounds: int, runs: int, processor_time: bool) -> str:
    """Return the table as Markdown."""
    import fxflops

    lines = [
        "# Compiled models\n",
        f"{processor()}, one thread, torch {torch.__version__}, fxflops {fxflops.__version__}: medians of {rounds} rounds of "
        f"{runs} runs. In each round a process without fxflops times the compiled model, then another analyzes it. "
        "Both keep the memory that they free (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_)."
        f"{BUSY if processor_time else ''}\n",
        "| model | compiled, without fxflops (ms) | compiled, by fxflops (ms) | ratio, median of rounds (least-most) | ratio of the fastest runs "
        "| eager (ms) "
        "| speed-up | FLOPs, compiled and eager | graphs | breaks | next call compiles | kernels | their sum / compiled "
        "| did not gain |",
        "|---|" + "---:|" * 8 + "---|---|---:|---:|---|",
    ]
    for name, row in found.items():
        low, high = row["spread"]
        flops = " and ".join(f"{each:,}" for each in row["flops"])
        lines.append(
            f"| {(MODELS[name].__doc__ or '').rstrip('.')} | {1e3 * row['plain']:.2f} | {1e3 * row['ours']:.2f} "
            f"| {row['ratio']:.3f} ({low:.2f}-{high:.2f}) | {row['least']:.3f} | {1e3 * row['eager']:.2f} | {row['eager'] / row['ours']:.2f}x "
            f"| {flops} | {row['graphs']} | {'; '.join(row['breaks']) or 'none'} | no | {row['kernels'] or row['missing']} "
            f"| {row['sum']:.2f} | {', '.join(each or '(root)' for each in row['losers']) or '-'} |"
        )
    lines.append(
        "\nThe next call is made under `torch.compiler.set_stance('fail_on_recompile')`, before and after the kernels are "
        "read: had it compiled anything, there would be no table.\n"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        if asked.processor_time:
            time.perf_counter = time.thread_time
        serve({"plain": plain, "analyzed": analyzed}[asked.side](asked.models, asked.runs))
        return
    found = {}
    for name in asked.models.split(","):
        found[name] = compared(name, asked.rounds, asked.runs, asked.processor_time)
        print(name, found[name], flush=True)
    RESULT.write_text(table(found, asked.rounds, asked.runs, asked.processor_time), encoding="utf8")


if __name__ == "__main__":
    main()

"""Find the calls of a first count that no shape rule covers: how often they occur, and how long they take.

    python benchmarks/uncovered.py [--models swin_tiny_patch4_window7_224,...]

The models are those of ``speed.py``, on meta. Each has its own process, which first counts a small net. A call that has a rule, or
equals an earlier call, costs a few microseconds. The other calls are learned: torch's meta kernel runs, and often the operators
inside are observed as well. The table gives their CPU time by function or module, and their share of the whole count. A call inside
another learned call, or inside a leaf module, belongs to the outer one. A run of all models writes
``benchmarks/results/uncovered.md``.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import processor
from benchmarks.peers import small_net
from benchmarks.speed import PROCESSES, RESULTS, TIMM, TORCHVISION, TRANSFORMERS, built, of_fxflops
from fxflops.trace.function_calls import FunctionCalls
from fxflops.trace.module_calls import ModuleCalls

Times = dict[str, list[float]]
"""By the function or module that was called, the milliseconds of each call."""
MODELS = [*TIMM, *(f"torchvision:{name}" for name in TORCHVISION), *TRANSFORMERS]
RUNS = 3


@contextmanager
def uncovered_timed(times: Times) -> Iterator[None]:
    """Add the milliseconds of every learned call to ``times``."""
    running: list[str] = []

    def timed(method: Callable[..., Any], name_of: Callable[..., str | None]) -> Callable[..., Any]:
        def wrapper(observer: Any, *args: Any, **kwargs: Any) -> Any:
            name = None if running else name_of(observer, *args)
            if name is None:
                return method(observer, *args, **kwargs)
            running.append(name)
            start = time.thread_time_ns()
            try:
                return method(observer, *args, **kwargs)
            finally:
                times[name].append((time.thread_time_ns() - start) / 1e6)
                running.pop()

        return wrapper

    def function_name(calls: Any, func: Any, *_: Any) -> str | None:
        # A function without a formula is not timed as a whole: the calls inside it are timed one by one.
        return spelled(func) if calls._registry.find(func) is not None else None

    def leaf_name(calls: Any, observed: Any, *_: Any) -> str | None:
        return f"nn.{type(observed.module).__name__}" if calls.formula_of(observed) is not None else None

    learn = timed(FunctionCalls._learn, lambda _, call: spelled(call.func))
    with (
        patch.object(FunctionCalls, "_learn", learn),
        patch.object(FunctionCalls, "_observe_call", timed(FunctionCalls._observe_call, function_name)),
        patch.object(ModuleCalls, "_call_module", timed(ModuleCalls._call_module, leaf_name)),
    ):
        yield


def spelled(func: Any) -> str:
    module = str(getattr(func, "__module__", None) or "torch").removeprefix("torch.").removesuffix("._C._nn")
    name = str(getattr(func, "__qualname__", func))
    return (
        f"F.{name}"
        if module == "nn.functional"
        else name.replace("_VariableFunctionsClass", "torch").replace("TensorBase", "Tensor")
    )


def measured(name: str) -> tuple[dict[str, tuple[int, float]], float]:
    """Return the calls and the milliseconds of each uncovered function in a count, and the milliseconds of the whole count."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, x = built(name)
    model, x = model.to("meta"), x.to("meta")
    small, image = small_net()
    totals: list[float] = []
    runs: list[Times] = []
    with torch.no_grad():
        of_fxflops(small.to("meta"), image.to("meta"))
        for _ in range(RUNS):
            gc.collect()
            start = time.thread_time_ns()
            of_fxflops(model, x)
            totals.append((time.thread_time_ns() - start) / 1e6)
            times: Times = defaultdict(list)
            with uncovered_timed(times):
                of_fxflops(model, x)
            runs.append(times)
    by_name = {what: (len(calls), statistics.median(sum(run[what]) for run in runs)) for what, calls in runs[0].items()}
    return by_name, statistics.median(totals)


def table(found: dict[str, tuple[dict[str, tuple[int, float]], float]]) -> str:
    calls: dict[str, int] = defaultdict(int)
    milliseconds: dict[str, float] = defaultdict(float)
    models: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for model, (by_name, _) in found.items():
        for what, (count, spent) in by_name.items():
            calls[what] += count
            milliseconds[what] += spent
            models[what].append((spent, model))
    whole = sum(total for _, total in found.values())
    lines = [
        "# Calls without a rule: what a first count learns from torch's meta kernels\n",
        f"{processor()}, torch {torch.__version__}: CPU milliseconds of one thread, the median of {RUNS} counts in one process for "
        f"each of {len(found)} models. All counts together take {whole:.0f} ms, of which such calls take "
        f"{sum(milliseconds.values()):.0f} ms. Most expensive first.\n",
        "| what is called | calls | ms | us per call | in models | most in |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for what in sorted(milliseconds, key=lambda each: -milliseconds[each]):
        spent, model = max(models[what])
        lines.append(
            f"| {what} | {calls[what]} | {milliseconds[what]:.2f} | {1000 * milliseconds[what] / calls[what]:.0f} "
            f"| {len(models[what])} | {model}, {spent:.2f} ms |"
        )
    lines += [
        "\n## By model\n",
        "| model | count (ms) | without a rule (ms) | share | most |",
        "|---|---:|---:|---:|---|",
    ]
    for model, (by_name, total) in found.items():
        spent = sum(ms for _, ms in by_name.values())
        top = sorted(by_name, key=lambda what: -by_name[what][1])[:3]
        most = ", ".join(f"{what} {by_name[what][1]:.2f}" for what in top)
        lines.append(f"| {model} | {total:.1f} | {spent:.2f} | {spent / total:.0%} | {most} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="")
    chosen = parser.parse_args().models
    names = chosen.split(",") if chosen else MODELS
    found = {}
    for name in names:
        with PROCESSES.Pool(1) as pool:
            found[name] = pool.apply_async(measured, (name,)).get(timeout=300)
    text = table(found)
    print(text)
    if not chosen:
        (RESULTS / "uncovered.md").write_text(text)


if __name__ == "__main__":
    main()

"""Where a first count spends its time, by function, and how little time it could take at best.

    python benchmarks/first_count.py [--models resnet50,vit_base_patch16_224,efficientnet_b0,densenet121,vgg16]

Each timm model is moved to meta and counted over and over in one thread. Nothing is cached between counts. A CPU timer samples
the running function every millisecond. The time of builtins is included in the function that calls them. "At least" is the time
of the model's own Python code and one empty tensor per call, with all results recorded beforehand. "A bare engine" is a second
design that does not track most of what fxflops tracks (``bare_count.py``). The table is ``benchmarks/results/first_count.md``.
"""

from __future__ import annotations

import argparse
import ast
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import timm
import torch
from torch.overrides import TorchFunctionMode

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch import nn

import fxflops
from benchmarks.bare_count import bare_count
from benchmarks.machine import processor
from benchmarks.speed import THEIRS as FLOP_COUNTER_MODE
from benchmarks.speed import of_fxflops, of_peer

RESULTS = Path(__file__).parent / "results"
OURS = Path(fxflops.__file__).parent
MODELS = "resnet50,vit_base_patch16_224,efficientnet_b0,densenet121,vgg16"
SECONDS, EVERY = 10.0, 0.001
LEAST = 0.008
"""A function has its own line in the table if its share of the time reaches this value in any model."""
META = torch.device("meta")


class Spent(Counter[str]):
    """Milliseconds by fxflops function, or by package for other code. ``facts`` are figures of the model, and other times."""

    facts: dict[str, Any]


class Recorded(TorchFunctionMode):
    """A mode that records the result of every call. In later runs it skips the call and returns an empty tensor like the result."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []
        self.turn: int | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.turn is None:
            out = func(*args, **(kwargs or {}))
            known = isinstance(out, torch.Tensor)
            self.made.append((out.shape, out.stride(), out.dtype) if known else (None, out, None))
            return out
        shape, stride, dtype = self.made[self.turn]
        self.turn += 1
        return stride if shape is None else torch.empty_strided(shape, stride, dtype=dtype, device=META)


def at_least(model: nn.Module, x: torch.Tensor) -> float:
    """Return the milliseconds of the model's own Python code and one empty tensor per call."""
    with Recorded() as mode:
        model(x)

    def again() -> None:
        mode.turn = 0
        with mode:
            model(x)

    return at_best(again, 20)


def at_best(run: Callable[[], Any], times: int) -> float:
    """Return the milliseconds of the fastest of several runs."""
    took = []
    for _ in range(times):
        start = time.thread_time()
        run()
        took.append(time.thread_time() - start)
    return 1e3 * min(took)


def spent_on(name: str) -> Spent:
    """Sample counts of a model for :data:`SECONDS`. Return the milliseconds of one count by function."""
    model = timm.create_model(name).eval().to("meta")
    x = torch.empty(1, *model.default_cfg["input_size"], device="meta")
    seen: Counter[str] = Counter()

    def look(_: int, frame: FrameType | None) -> None:
        if frame is not None:
            seen[place(frame)] += 1

    with torch.no_grad():
        theirs, least = at_best(lambda: of_peer(FLOP_COUNTER_MODE)(model, x), 3), at_least(model, x)
        each_bare = [bare_count(model, x) for _ in range(20)]
        bare = {stage: min(one[stage] for one in each_bare) for stage in each_bare[0]}
        of_fxflops(model, x)
        signal.signal(signal.SIGPROF, look)
        start, counts = time.thread_time(), 0
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        while time.thread_time() - start < SECONDS:
            of_fxflops(model, x)
            counts += 1
        signal.setitimer(signal.ITIMER_PROF, 0)
        each = 1e3 * (time.thread_time() - start) / counts
        report = fxflops.count(model, x)
    spent = Spent({where: each * times / seen.total() for where, times in seen.items()})
    spent.facts = {
        "calls": len(report.calls),
        "distinct operations": len({call.operation for call in report.calls}),
        "modules": len([*model.modules()]),
        "parameters and buffers": len([*model.parameters(), *model.buffers()]),
        "at least (ms)": f"{least:.1f}",
        "FlopCounterMode (ms)": f"{theirs:.1f}",
        **{f"a bare engine: {stage} (ms)": f"{took:.2f}" for stage, took in bare.items()},
    }
    return spent


def place(frame: FrameType) -> str:
    """Return the fxflops function that a frame belongs to, or the package of other code. Nested functions belong to the outer one."""
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(OURS):
        return f"{path.relative_to(OURS).as_posix()}:{frame.f_code.co_qualname.partition('.<locals>')[0]}"
    parts = path.parts
    return parts[parts.index("site-packages") + 1] if "site-packages" in parts else "Python's own library"


@cache
def functions_of(file: str) -> dict[str, str]:
    """Return the first sentence of the docstring of each function and method in a file."""
    said: dict[str, str] = {}

    def visit(node: Any, before: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                name = before + child.name
                told = ast.get_docstring(child if child.name != "__init__" else node) or ""
                said[name] = told.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")
                visit(child, f"{name}.")

    visit(ast.parse((OURS / file).read_text(encoding="utf8")), "")
    return said


def about(where: str) -> str:
    """Return the first sentence of a function's docstring, or a line about a package."""
    told = {"torch": "calling modules and functions, kernels of what has no shape rule", "timm": "the model's own code"}
    file, _, function = where.partition(":")
    return functions_of(file).get(function, "") if function else told.get(where, "")


def table(found: dict[str, Spent]) -> str:
    """Return the table: a line for each function with a large enough share, the slowest first, and one for the rest."""
    whole = {name: spent.total() for name, spent in found.items()}
    places = {where for name, spent in found.items() for where in spent if spent[where] >= LEAST * whole[name]}
    ordered = sorted(places, key=lambda where: -sum(spent[where] / whole[name] for name, spent in found.items()))
    rows: list[tuple[str, list[Any]]] = [
        (f"**{fact}**", [spent.facts[fact] for spent in found.values()]) for fact in next(iter(found.values())).facts
    ]
    rows.append(("**a count, in all (ms)**", [f"{spent:.1f}" for spent in whole.values()]))
    rows += [(f"`{where}`: {about(where)}", [f"{s[where]:.2f}" for s in found.values()]) for where in ordered]
    rest = [f"{spent.total() - sum(spent[where] for where in places):.2f}" for spent in found.values()]
    rows.append(("all else", rest))
    lines = [
        "# Speed: what a first count is spent on",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}: milliseconds of a "
        "count on meta with its totals read, one thread, by the function that runs, as a timer finds it.",
        "",
        f"| | {' | '.join(found)} |",
        "|---" + "|---:" * len(found) + "|",
    ]
    lines += [f"| {title} | {' | '.join(map(str, values))} |" for title, values in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    torch.set_num_threads(1)
    found = {name: spent_on(name) for name in parser.parse_args().models.split(",")}
    (RESULTS / "first_count.md").write_text(table(found))


if __name__ == "__main__":
    main()

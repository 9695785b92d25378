"""What the first count of a model is spent on, file by file.

    python benchmarks/first_count.py [--models resnet50,vit_base_patch16_224,efficientnet_b0]

Each model of timm is built on meta and counted in one thread; as nothing is remembered from one count to the next, its time is the
median of counts without a profiler, and is shared out as cProfile finds it, a builtin's time to the file that calls it. A profiler
makes calls of Python dearer than the rest, so the shares are near the truth and not it. The table is
``benchmarks/results/first_count.md``.
"""

from __future__ import annotations

import argparse
import ast
import cProfile
import os
import pstats
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import timm
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor

RESULTS = Path(__file__).parent / "results"
OURS = Path(fxflops.__file__).parent
MODELS = "resnet50,vit_base_patch16_224,efficientnet_b0"
TIMES = 20
LEAST = 0.02
"""The share of a file that has a line of its own in the table, in any of the models."""


def spent_on(name: str) -> Counter[str]:
    """Milliseconds of the first count by place: a file of fxflops, or a package."""
    model = timm.create_model(name).eval().to("meta")
    x = torch.empty(1, *model.default_cfg["input_size"], device="meta")
    seconds = []
    profiler = cProfile.Profile()
    for turn in range(2 * TIMES):
        if turn % 2:
            profiler.runcall(fxflops.count, model, x)
            continue
        start = time.perf_counter()
        fxflops.count(model, x)
        seconds.append(time.perf_counter() - start)
    own: Counter[str] = Counter()
    for function, (_, _, taken, _, callers) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        if function[0] == "~" and callers:
            for caller, (_, _, its, _) in callers.items():
                own[place(caller[0])] += its
        else:
            own[place(function[0])] += taken
    whole = sum(own.values())
    return Counter({where: 1e3 * statistics.median(seconds) * taken / whole for where, taken in own.items()})


def place(filename: str) -> str:
    """A file of fxflops, or the package that a file is of."""
    path = Path(filename)
    if path.is_relative_to(OURS):
        return path.relative_to(OURS).as_posix()
    parts = path.parts
    return parts[parts.index("site-packages") + 1] if "site-packages" in parts else "Python's own library"


def about(where: str) -> str:
    """What a file is for, as the first sentence of it says."""
    told = {"torch": "calling modules, kernels of what has no shape rule", "timm": "the model's own code"}
    if not where.endswith(".py"):
        return told.get(where, "")
    said = ast.get_docstring(ast.parse((OURS / where).read_text(encoding="utf8"))) or ""
    return said.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")


def table(found: dict[str, Counter[str]]) -> str:
    """A line for each file that takes a share worth one, the dearest first; the rest in one."""
    whole = {name: spent.total() for name, spent in found.items()}
    places = {where for name, spent in found.items() for where in spent if spent[where] >= LEAST * whole[name]}
    ordered = sorted(places, key=lambda where: -sum(spent[where] / whole[name] for name, spent in found.items()))
    rows = [(f"`{where}`: {about(where)}", [spent[where] for spent in found.values()]) for where in ordered]
    rows.append(("all else", [spent.total() - sum(spent[where] for where in places) for spent in found.values()]))
    rows.append(("in all", list(whole.values())))
    lines = [
        "# Speed: what the first count is spent on",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}: milliseconds of a "
        "count on meta, one thread; shared out by cProfile, which makes much called Python look "
        "dearer than it is.",
        "",
        f"| | {' | '.join(found)} |",
        "|---" + "|---:" * len(found) + "|",
    ]
    lines += [f"| {title} | {' | '.join(f'{value:.1f}' for value in values)} |" for title, values in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    torch.set_num_threads(1)
    found = {name: spent_on(name) for name in parser.parse_args().models.split(",")}
    (RESULTS / "first_count.md").write_text(table(found))


if __name__ == "__main__":
    main()

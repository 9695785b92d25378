"""Old and new side by side on every model of a zoo, by digests. This is faster than all facts, but shows only which figures differ.

    python -m benchmarks.side_by_side.whole_zoos count PATH/TO/OLD timm old.jsonl
    python -m benchmarks.side_by_side.whole_zoos count . timm new.jsonl
    python -m benchmarks.side_by_side.whole_zoos compare old.jsonl new.jsonl

Set PYTHONHASHSEED=0: some models of transformers iterate over sets of names, and so make their calls in another order in each process.
Each side counts the models of this tree with its own library, in its own process. An interrupted run resumes. Digests cover all
calls (op, module, phase, arguments and results), the sums of every module and operator, the missing operators, and the tensors alive
at the peak. The totals and the peak memory are compared as numbers.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import logging
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.isolated import deadline
from benchmarks.side_by_side.facts import ADDRESS, seeded, use_library

SECONDS = 90
FIGURES = "calls", "modules", "operators", "missing", "macs", "flops", "max_memory", "peak"
"""The figures that are compared, in the order in which they are listed."""


def digest(value: Any) -> str:
    return hashlib.sha256(ADDRESS.sub("0x", str(value)).encode()).hexdigest()[:12]


def figures_of(report: Any) -> dict[str, Any]:
    modules = [(path, row.calls, *sums(row.total), *sums(row.own)) for path, row in report.by_module().items()]
    return {
        "calls": digest([(call.op, call.path, call.phase, call.args, call.kwargs, call.out) for call in report.calls]),
        "modules": digest(modules),
        "operators": digest([(op, *sums(row.total)) for op, row in report.by_operator().items()]),
        "missing": digest([(each.op, each.calls, each.shapes) for each in report.missing]),
        "macs": report.total_macs,
        "flops": report.total_flops,
        "max_memory": report.max_memory,
        "peak": digest(sorted((str(each.spec), each.bytes, each.category) for each in report.live_at_peak)),
    }


def sums(figures: Any) -> tuple[Any, Any]:
    return figures.flops, figures.macs


def count(tree: str, library: str, out: str) -> None:
    use_library(tree)
    import fxflops

    zoo = importlib.import_module(f"benchmarks.models.{library}_zoo")
    done = rows_of(out) if Path(out).exists() else {}
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with open(out, "a") as file:
        for name in zoo.names():
            if name in done:
                continue
            row: dict[str, Any] = {"model": name}
            try:
                with deadline(SECONDS):
                    seeded()
                    model, args, kwargs = zoo.build(name)
                    seeded()
                    gc.collect()
                    gc.disable()  # so that cycles in a model are not freed at different calls
                    began = time.process_time()
                    report = fxflops.count(model, args, kwargs)
                    row["seconds"] = round(time.process_time() - began, 4)
            except Exception as error:
                row["raises"] = f"{type(error).__name__}: {str(error)[:80]}"
            else:
                row |= figures_of(report)
            finally:
                gc.enable()
            file.write(json.dumps(row) + "\n")
            file.flush()


def rows_of(file: str) -> dict[str, dict[str, Any]]:
    return {row["model"]: row for row in map(json.loads, Path(file).read_text().splitlines())}


def compare(old_file: str, new_file: str) -> None:
    """Print how many models are equal, and the models for each combination of differing figures."""
    old, new = rows_of(old_file), rows_of(new_file)
    kinds: dict[str, list[str]] = {}
    for name in old.keys() & new.keys():
        kinds.setdefault(kind_of(old[name], new[name]), []).append(name)
    print(
        f"{len(old.keys() & new.keys())} models of both sides:",
        dict(Counter({kind: len(n) for kind, n in kinds.items()})),
    )
    for kind in kinds.keys() - {"equal", "raise alike"}:
        print(f"- {kind}:", ", ".join(sorted(kinds[kind])))
    seconds = [
        sum(row.get("seconds", 0.0) for name, row in side.items() if name in old.keys() & new.keys())
        for side in (old, new)
    ]
    print(f"seconds of the processor: {seconds[0]:.1f} and {seconds[1]:.1f}")


def kind_of(old: dict[str, Any], new: dict[str, Any]) -> str:
    if "raises" in old or "raises" in new:
        return "raise alike" if old.get("raises") == new.get("raises") else "raise differently"
    return ", ".join(figure for figure in FIGURES if old[figure] != new[figure]) or "equal"


if __name__ == "__main__":
    {"count": count, "compare": compare}[sys.argv[1]](*sys.argv[2:])

"""Measure coverage of the model zoos: count every model of timm, torchvision, transformers and diffusers in several ways.

    python benchmarks/zoo.py [timm torchvision transformers diffusers] [--only resnet,vit] [--workers 2]
    MENAGERIE=path/to/torchlens python benchmarks/zoo.py menagerie --parts graph,count,flop_counter

For each model:

- how it was traced, whether the report is complete, and its MACs;
- whether a recorded graph counts the same as a symbolic one, and ``count()`` the same as the graph, for every module and operator;
- our total under ``convention="torch"``, FlopCounterMode's total, and fvcore's.

Rows are saved in ``benchmarks/results/<library>.jsonl``, so an interrupted run resumes (``--fresh`` starts again). The summary is
``benchmarks/results/<library>.md``; the numbers of each model are in ``benchmarks/results/<library>.csv``.

FlopCounterMode's total depends on kernels and fast paths, so it runs on meta, or on the CPU with both turned off. timm's models are
built on meta, the others on the CPU with reduced depth and width (see ``benchmarks/models``).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import json
import logging
import os
import platform
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.isolated import Isolated, bounded, deadline

RESULTS = Path(__file__).parent / "results"
COLUMNS = "model", "trace", "complete", "macs", "flops", "torch", "flop_counter", "fvcore", "graph_s", "count_s"
MOST = 20
"""At most this many models or reasons are listed in each section of a summary."""
LIBRARIES = ("timm", "torchvision", "transformers", "diffusers")
SECONDS, GIGABYTES, MODELS_PER_PROCESS = 180, 12, 60
FVCORE_PARAMETERS = 30_000_000
Row = dict[str, Any]


def measure(library: str, name: str, parts: tuple[str, ...]) -> Row:
    """Return the row of one model, with these parts."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    zoo = importlib.import_module(f"benchmarks.models.{library}_zoo")
    row: Row = {"model": name}
    again = ""
    try:
        with deadline(SECONDS):
            model, args, kwargs = zoo.build(name)
            with torch.no_grad():
                model(*args, **kwargs)
                again = "a second run: "
                model(*args, **kwargs)
    except Exception as error:
        return {**row, "runs": False, "why": f"{again}{one_line(error)}"}
    row["runs"] = True
    for part in parts:
        start = time.perf_counter()
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            with deadline(SECONDS):
                row[part] = PARTS[part](model, args, kwargs)
        except Exception as error:
            row[part] = {"raises": one_line(error)}
        row[part]["seconds"] = round(time.perf_counter() - start, 2)
    return row


def isolated_measure(isolated: Isolated, job: tuple[str, str, tuple[str, ...]]) -> Row:
    try:
        row: Row = isolated(measure, *job, seconds=SECONDS * (len(job[2]) + 2))
    except (BrokenProcessPool, TimeoutError) as error:
        row = {"model": job[1], "runs": False, "why": f"it ended the process: {type(error).__name__}"}
    return row


def by_graph(model: nn.Module, args: Any, kwargs: Any) -> Row:
    """Return the count of ``analyze``, and its differences from a recorded graph (if its own is symbolic) and from ``count()``."""
    report = fxflops.analyze(model, args, kwargs, repeats=0, progress=False)
    row = {
        **totals(report),
        "trace": report.trace.partition(" ")[0],
        "why": " ".join(report.trace_reason.split())[:300],
        "torch": report.recount("torch").total_flops,
        "calls": len(report.calls),
    }
    if row["trace"] == "symbolic":
        recorded = fxflops.analyze(model, args, kwargs, trace="record", repeats=0, progress=False)
        row["record_differs"] = differences(report, recorded)
    row["count_differs"] = differences(report, fxflops.count(model, args, kwargs))
    return row


def by_count(model: nn.Module, args: Any, kwargs: Any) -> Row:
    """Return the result of ``count()``, and whether it counted on meta or had to run the model."""
    report = fxflops.count(model, args, kwargs)
    return {**totals(report), "trace": report.trace, "why": " ".join(report.trace_reason.split())[:300]}


def by_flop_counter(model: nn.Module, args: Any, kwargs: Any) -> Row:
    """Return FlopCounterMode's total, without kernels and fast paths that it does not know. If it raises, try again with gradients."""
    row: Row = {}
    for grad in (False, True):
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.set_grad_enabled(grad))
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
                torch.backends.mha.set_fastpath_enabled(False)
                counter = stack.enter_context(FlopCounterMode(display=False))
                model(*args, **kwargs)
            return {**row, "flops": counter.get_total_flops(), "grad": grad}
        except Exception as error:
            row["raises"] = one_line(error)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    return row


def by_fvcore(model: nn.Module, args: Any, kwargs: Any) -> Row:
    """Return fvcore's total, and how many ops it left out. fvcore calls the total FLOPs; it is MACs and some other operations."""
    from fvcore.nn import FlopCountAnalysis

    if kwargs:
        return {"raises": "takes no keyword inputs"}
    if any(p.device.type == "meta" for p in model.parameters()):
        if sum(p.numel() for p in model.parameters()) > FVCORE_PARAMETERS:
            return {"why": "it computes, and does not run on meta"}
        model = model.to_empty(device="cpu")
        args = tuple(torch.zeros_like(arg, device="cpu") for arg in args)
    with torch.no_grad():
        analysis = FlopCountAnalysis(model, args).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        return {"flops": int(analysis.total()), "left_out": sum(analysis.unsupported_ops().values())}


PARTS: dict[str, Callable[[nn.Module, Any, Any], Row]] = {
    "graph": by_graph,
    "count": by_count,
    "flop_counter": by_flop_counter,
    "fvcore": by_fvcore,
}


def totals(report: fxflops.Report) -> Row:
    return {
        "complete": report.complete,
        "missing": {m.op: [m.calls, m.shapes[:120], m.site] for m in report.missing},
        "macs": report.total_macs,
        "flops": report.total_flops,
        "int_ops": report.total_int_ops,
    }


def differences(one: fxflops.Report, other: fxflops.Report) -> list[str]:
    """Return the modules whose total or own sums differ between the reports, and the operators whose sums differ."""
    rows, others = one.by_module(), other.by_module()
    modules = [p for p in rows if p not in others or (rows[p].total, rows[p].own) != (others[p].total, others[p].own)]
    sums, others_sums = ({op: row.total for op, row in report.by_operator().items()} for report in (one, other))
    return modules + [op for op in {**sums, **others_sums} if sums.get(op) != others_sums.get(op)]


def one_line(error: BaseException) -> str:
    """Return the type and the start of the message of an error, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def summary(library: str, rows: list[Row], explained: dict[str, str], numbers: str) -> str:
    """Return the results as Markdown: totals, and what differs and why. The numbers of each model are in the file ``numbers``."""
    runs = [r for r in rows if r["runs"]]
    counted = [r for r in runs if "macs" in r["graph"]]
    symbolic = [r for r in counted if r["graph"]["trace"] == "symbolic"]
    complete = [r for r in counted if r["graph"]["complete"]]
    meta = [r for r in runs if r["count"].get("trace") == "counted on the meta device"]
    same = [r for r in counted if r["count"].get("macs") == r["graph"]["macs"]]
    alike = [r for r in counted if not r["graph"]["count_differs"]]
    compared = [r for r in counted if "flops" in r["flop_counter"]]
    equal = [r for r in compared if r["flop_counter"]["flops"] == r["graph"]["torch"]]
    modules = [r for r in symbolic if not r["graph"]["record_differs"]]
    lines = [
        f"# {library}",
        "",
        f"torch {torch.__version__}, {version_of(library)}, fxflops {fxflops.__version__}, Python "
        f"{platform.python_version()}, {platform.processor() or platform.machine()}.",
        "",
        f"- models: {len(rows)}, that run themselves: {len(runs)}",
        f"- counted: {len(counted)}: {len(symbolic)} by a symbolic trace, {len(counted) - len(symbolic)} by a recorded one",
        f"- complete: {len(complete)}; refused: {len(runs) - len(counted)}",
        f"- recorded and symbolic trace the same, totals and every module: {len(modules)} of {len(symbolic)}",
        f"- `count()`: the same MACs on {len(same)} of {len(counted)}, on meta {len(meta)}, the rest on real tensors",
        f"- `count()`'s sums of every module and operator those of `analyze()`: {len(alike)} of {len(counted)}",
        f'- `convention="torch"` equal to FlopCounterMode: {len(equal)} of {len(compared)} on which it runs',
        "",
        *section("Not complete, or refused", (incomplete(r) for r in runs if r not in complete)),
        *section(
            "Where FlopCounterMode says something else",
            (f"{r['model']}: {r['flop_counter']['flops']:,}, ours {r['graph']['torch']:,}" for r in compared if r not in equal),
        ),
        *section(
            "Where the recorded trace differs from the symbolic one",
            (f"{r['model']}: {', '.join(map(repr, r['graph']['record_differs'][:4]))}" for r in symbolic if r not in modules),
        ),
        *section(
            "Where `count()` differs",
            (
                f"{r['model']}: {r['count'].get('raises') or format(r['count']['macs'], ',')} MACs, graph {r['graph']['macs']:,}"
                for r in counted
                if r not in same
            ),
        ),
        *section(
            "Where its sums differ",
            (f"{r['model']}: {', '.join(map(repr, r['graph']['count_differs'][:4]))}" for r in counted if r not in alike),
        ),
        *section("Why `count()` took the real tensors", grouped(reason(r["count"]) for r in same if r not in meta)),
        *section("Where FlopCounterMode raises", grouped(r["flop_counter"]["raises"] for r in runs if "raises" in r["flop_counter"])),
        *section("Why torch.fx cannot trace symbolically", grouped(untraced(r["graph"]["why"]) for r in counted if r["graph"]["why"])),
        *section("Explained", (f"{r['model']}: {explained[r['model']]}" for r in rows if r["model"] in explained)),
        *section(f"Models that do not run themselves, or not within {SECONDS} s and {GIGABYTES} GB", grouped(r["why"] for r in rows if not r["runs"])),
        f"The numbers of each model are in [{numbers}]({numbers}).",
    ]  # fmt: skip
    text = "\n".join(lines).replace(f"{Path(torch.__file__).parents[1]}/", "") + "\n"
    return text.replace(f"{os.environ.get('MENAGERIE', '')}/menagerie/", "menagerie/")


def version_of(library: str) -> str:
    """Return a library and its version, or the commit of a checkout."""
    if library != "menagerie":
        return f"{library} {importlib.import_module(library).__version__}"
    return f"torchlens' menagerie at {os.environ.get('MENAGERIE_COMMIT', 'an unnamed commit')}"


def numbers_of(row: Row) -> list[Any]:
    """Return the cells of a model that runs, under :data:`COLUMNS`."""
    graph, count = row["graph"], row["count"]
    peers = [row.get(part, {}) for part in PARTS if part[0] == "f"]
    return [
        row["model"],
        graph.get("trace", "refused"),
        "yes" if graph.get("complete") else "no",
        *(graph.get(key) for key in ("macs", "flops", "torch")),
        *(peer.get("flops", "raises" if "raises" in peer else None) for peer in peers),
        *(part["seconds"] for part in (graph, count)),
    ]


def incomplete(row: Row) -> str:
    graph = row["graph"]
    missing = [
        f"{op} x{found[0]} {found[1]} ({found[2].rpartition('/')[2]})" for op, found in graph.get("missing", {}).items()
    ]
    return f"{row['model']}: {graph.get('raises') or '; '.join(missing)}"


def reason(count: Row) -> str:
    """Return the error that made ``count()`` use the real tensors, without its shapes."""
    return str(count["why"]).rpartition("Error: ")[2].partition(" at /")[0][:120]


def untraced(why: str) -> str:
    """Return why a model could not be traced, without the model's name."""
    reason = why.partition(" symbolically: ")[2] or why
    return reason[:200]


def section(title: str, items: Iterable[str]) -> list[str]:
    lines = [f"- {item}" for item in items]
    more = [f"- and {len(lines) - MOST} more"] if len(lines) > MOST else []
    return [f"{title}:", "", *lines[:MOST], *more, ""] if lines else []


def grouped(reasons: Iterable[str]) -> list[str]:
    """Return each reason with its number of models, the most frequent first."""
    return [f"{number} models: {reason[:200]}" for reason, number in Counter(reasons).most_common()]


def sweep(library: str, options: argparse.Namespace) -> None:
    """Measure the models and parts of a library that have not been measured yet, and write its table."""
    log = RESULTS / f"{library}{options.suffix}.jsonl"
    if options.fresh:
        log.unlink(missing_ok=True)
    done: dict[str, Row] = {}
    for row in map(json.loads, log.read_text().splitlines() if log.exists() else []):
        done[row["model"]] = {**done.get(row["model"], {}), **row}
    zoo = importlib.import_module(f"benchmarks.models.{library}_zoo")
    names = [n for n in zoo.names() if n.startswith(tuple(options.only.split(",")))][:: options.every]
    entries = len(names)
    if options.measured:
        names = [n for n in names if n in done]
    wanted = {n: tuple(p for p in options.parts.split(",") if p not in done.get(n, {})) for n in names}
    todo = [n for n in names if wanted[n] and done.get(n, {}).get("runs", True)]

    from rich.progress import Progress

    with Progress() as bar, ThreadPool(options.workers) as threads, log.open("a") as file:
        task = bar.add_task(library, total=len(todo))
        measured = partial(isolated_measure, Isolated(bounded, GIGABYTES, jobs=MODELS_PER_PROCESS))
        for row in threads.imap_unordered(measured, [(library, name, wanted[name]) for name in todo]):
            done[row["model"]] = {**done.get(row["model"], {}), **row}
            file.write(json.dumps(row) + "\n")
            file.flush()
            bar.advance(task)
    numbers = RESULTS / f"{library}{options.suffix}.csv"
    rows = [done[name] for name in names]
    with numbers.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(numbers_of(row) for row in rows if row["runs"])
    text = summary(library, rows, getattr(zoo, "EXPLAINED", {}), numbers.name)
    if len(names) < entries:
        text = text.replace(
            "- models: ", f"- measured: {len(names)} of {entries} entries; the others are still to come\n- models: ", 1
        )
    (RESULTS / f"{library}{options.suffix}.md").write_text(text)
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", default=LIBRARIES)
    parser.add_argument("--only", default="", help="comma-separated beginnings of model names")
    parser.add_argument("--every", type=int, default=1, help="every n-th model")
    parser.add_argument("--parts", default="graph,count,flop_counter,fvcore")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--measured", action="store_true", help="only what has been measured, for its table")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--suffix", default="", help="put after the library in the names of the result files")
    options = parser.parse_args()
    for library in options.libraries:
        sweep(library, options)


if __name__ == "__main__":
    main()

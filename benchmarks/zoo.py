"""Coverage of a model zoo: every timm model on the meta device, each counted three ways.

    python benchmarks/zoo.py [--only resnet,vit] [--workers 2]

For each model: how it was traced (or why not), whether the report is complete, its MACs by the symbolic graph and by
``count()``, and FlopCounterMode's total / 2 on the same run. Results go to ``benchmarks/results/timm.jsonl`` (a run goes on
where it stopped; ``--fresh`` begins anew) and to the table ``benchmarks/results/timm.md``.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import fxflops

RESULTS = Path(__file__).parent / "results"


def measure(name: str) -> dict[str, Any]:
    """One model's row."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    row: dict[str, Any] = {"model": name}
    start = time.perf_counter()
    try:
        with torch.device("meta"):
            model = timm.create_model(name).eval()
        size = (model.pretrained_cfg or {}).get("input_size", (3, 224, 224))
        x = torch.randn(1, *size, device="meta")
    except Exception as error:
        return {**row, "not_built": one_line(error)}
    row["built_s"] = round(time.perf_counter() - start, 3)
    row.update(by_graph(model, x))
    row.update(by_count(model, x))
    row.update(by_flop_counter(model, x))
    return row


def by_graph(model: torch.nn.Module, x: torch.Tensor) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        report = fxflops.analyze(model, x, repeats=0)
    except fxflops.FxflopsError as error:
        return {"trace": type(error).__name__, "why": one_line(error)}
    return {
        "trace": "symbolic",
        "complete": report.complete,
        "missing": {m.op: [m.calls, m.shapes, m.site] for m in report.missing},
        "macs": report.total_macs,
        "flops": report.total_flops,
        "calls": len(report.calls),
        "graph_s": round(time.perf_counter() - start, 3),
    }


def by_count(model: torch.nn.Module, x: torch.Tensor) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        report = fxflops.count(model, x)
    except fxflops.FxflopsError as error:
        return {"count": type(error).__name__, "count_why": one_line(error)}
    return {
        "count": "complete" if report.complete else "incomplete",
        "count_missing": {m.op: [m.calls, m.shapes, m.site] for m in report.missing},
        "count_macs": report.total_macs,
        "count_flops": report.total_flops,
        "count_s": round(time.perf_counter() - start, 3),
    }


def by_flop_counter(model: torch.nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """FlopCounterMode's total / 2; where it raises without gradients, with them."""
    row: dict[str, Any] = {}
    for grad in (False, True):
        start = time.perf_counter()
        try:
            with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(grad):
                model(x)
        except Exception as error:
            row["torch_why"] = one_line(error)
            continue
        return {**row, "torch_macs": counter.get_total_flops() // 2, "torch_s": round(time.perf_counter() - start, 3)}
    return row


def one_line(error: BaseException) -> str:
    """The first lines of an error, on one."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: totals, then each model."""
    rows = sorted(rows, key=lambda row: row["model"])
    traced = [r for r in rows if r.get("trace") == "symbolic"]
    complete = [r for r in traced if r["complete"]]
    compared = [r for r in traced if "torch_macs" in r]
    equal = [r for r in compared if r["macs"] == r["torch_macs"]]
    same = [r for r in traced if r.get("count_flops") == r["flops"]]
    differences = [
        *[
            f"- {r['model']}: MACs {r['macs']:,}, FlopCounterMode / 2 {r['torch_macs']:,}"
            for r in compared
            if r not in equal
        ],
        *[f"- {r['model']}: no formula for {', '.join(r['missing'])}" for r in traced if not r["complete"]],
        *[
            f"- {r['model']}: `count()` {r.get('count_why') or r.get('count_missing')}"
            for r in rows
            if r.get("count") != "complete"
        ],
    ]
    lines = [
        "# timm on the meta device",
        "",
        f"torch {torch.__version__}, timm {timm.__version__}, fxflops {fxflops.__version__}, Python "
        f"{platform.python_version()}, {platform.processor() or platform.machine()}.",
        "",
        f"- models: {len(rows)}, traced symbolically: {len(traced)}, complete: {len(complete)}",
        f"- `count()` complete: {sum(r.get('count') == 'complete' for r in rows)}; the same FLOPs as the graph: {len(same)} of {len(traced)}",
        f"- MACs equal to FlopCounterMode / 2: {len(equal)} of {len(compared)} on which it runs",
        "",
        *(["Where they differ, or something is unknown:", "", *differences, ""] if differences else []),
        "Where FlopCounterMode raises without gradients (and is run with them):",
        "",
        *grouped(r["torch_why"] for r in rows if "torch_why" in r),
        "",
        "Where torch.fx cannot trace symbolically, by the author's line:",
        "",
        *grouped(r["why"].rpartition("/")[2].partition(" fxflops.count")[0] for r in rows if "why" in r),
        "",
        "| model | trace | complete | MACs | FLOPs | FlopCounterMode / 2 | graph s | count s |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        if r in traced:
            cells = [r["trace"], "yes" if r["complete"] else "no", f"{r['macs']:,}", f"{r['flops']:,}"]
        else:
            why = (r.get("why") or r.get("not_built") or "").replace("|", "/")
            cells = [f"no: {why[:140]}", "", f"{r.get('count_macs', 0):,}", f"{r.get('count_flops', 0):,}"]
        torch_macs = f"{r['torch_macs']:,}" if "torch_macs" in r else "raises"
        lines.append(
            f"| {r['model']} | {' | '.join(cells)} | {torch_macs} | {r.get('graph_s', '')} | {r.get('count_s', '')} |"
        )
    return "\n".join(lines) + "\n"


def grouped(reasons: Iterable[str]) -> list[str]:
    """Each reason with how many models it holds for."""
    return [f"- {number} models: {reason[:200]}" for reason, number in Counter(reasons).most_common()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated beginnings of model names")
    parser.add_argument("--every", type=int, default=1, help="every n-th model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "timm")
    options = parser.parse_args()
    log = options.out.with_suffix(".jsonl")
    if options.fresh:
        log.unlink(missing_ok=True)
    done = {row["model"]: row for row in map(json.loads, log.read_text().splitlines())} if log.exists() else {}
    names = [n for n in timm.list_models() if n.startswith(tuple(options.only.split(",")))][:: options.every]
    todo = [name for name in names if name not in done]

    from rich.progress import Progress

    with Progress() as bar, ProcessPoolExecutor(options.workers) as pool, log.open("a") as file:
        task = bar.add_task("timm", total=len(todo))
        for future in as_completed([pool.submit(measure, name) for name in todo]):
            row = future.result()
            done[row["model"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            bar.advance(task)
    options.out.with_suffix(".md").write_text(table([done[name] for name in names]))
    print("\n".join(table([done[name] for name in names]).splitlines()[:60]))


if __name__ == "__main__":
    main()

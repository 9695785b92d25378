"""Count models as programs (exported by torch.export, decomposed, scripted) and compare the counts with the eager model's.

    python benchmarks/programs.py [torchvision timm transformers] [--only resnet18,vit] [--fresh]

For each model and way, the table says whether MACs, FLOPs, parameters, missing operators and the MACs and FLOPs of every module
equal the eager model's, or what differs. It covers all of torchvision, and a sample of timm and transformers (``SAMPLE``). Models of
timm and torchvision that need no values are built on meta. Rows are saved in ``benchmarks/results/programs.jsonl``, so an interrupted
run resumes. The table is ``benchmarks/results/programs.md``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.isolated import Isolated, deadline
from benchmarks.machine import processor

RESULTS = Path(__file__).parent / "results"
SECONDS, MODELS_PER_PROCESS = 240, 15
FIRST = """
resnet18 alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 mobilenet_v2
mobilenet_v3_small regnet_y_400mf shufflenet_v2_x0_5 squeezenet1_0 swin_t swin_v2_t vgg11 vit_b_32 lraspp_mobilenet_v3_large
deeplabv3_mobilenet_v3_large fcn_resnet50 raft_small r3d_18 mc3_18 s3d mvit_v1_b swin3d_t quantized_resnet18 quantized_mobilenet_v2
quantized_googlenet quantized_inception_v3 quantized_shufflenet_v2_x0_5 ssdlite320_mobilenet_v3_large ssd300_vgg16
fasterrcnn_mobilenet_v3_large_320_fpn maskrcnn_resnet50_fpn keypointrcnn_resnet50_fpn retinanet_resnet50_fpn fcos_resnet50_fpn
""".split()
"""The smallest model of each torchvision family. They are measured first, and they are the only torchvision models that are decomposed."""
NEED_VALUES = ("quantized", "rcnn", "retinanet", "fcos", "ssd")
"""Parts of the names of models that cannot run on meta."""
SAMPLE = {
    "torchvision": None,
    "timm": "resnet50 vit_tiny_patch16_224 convnext_atto efficientnet_b0 swin_tiny_patch4_window7_224 mixer_s32_224 "
    "mobilenetv4_conv_small regnety_002 deit_tiny_patch16_224 eva02_tiny_patch14_224 coatnet_0_rw_224 maxvit_tiny_tf_224 "
    "xcit_nano_12_p16_224 levit_128s poolformer_s12 edgenext_xx_small nfnet_f0 repvgg_a0 hardcorenas_a davit_tiny",
    "transformers": "bert gpt2 llama t5 vit clip whisper mixtral qwen2 mamba deberta-v2 wav2vec2 bart roberta distilbert opt "
    "gemma2 phi3 swin segformer",
}
Row = dict[str, Any]
Ways = dict[str, Callable[[nn.Module, Any, Any, Any], Any]]


def exported(model: nn.Module, args: Any, kwargs: Any, program: Any) -> Any:
    return torch.export.export(model, args, kwargs)


def decomposed(model: nn.Module, args: Any, kwargs: Any, program: Any) -> Any:
    return program.run_decompositions()


def scripted(model: nn.Module, args: Any, kwargs: Any, program: Any) -> Any:
    return torch.jit.script(model)


WAYS: Ways = {"exported": exported, "decomposed": decomposed, "scripted": scripted}


def measure(library: str, name: str) -> Row:
    """Return the row of one model."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    zoo = importlib.import_module(f"benchmarks.models.{library}_zoo")
    on_meta = library == "timm" or (library == "torchvision" and not any(part in name for part in NEED_VALUES))
    try:
        with torch.device("meta") if on_meta else torch.device("cpu"):
            model, args, kwargs = zoo.build(name)
    except NotImplementedError:  # the model reads its weights during initialization
        on_meta = False
        model, args, kwargs = zoo.build(name)
    model.eval()
    if on_meta:
        args, kwargs = tree_map(lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, (args, kwargs))
    eager = fxflops.count(model, args, kwargs)
    row: Row = {"library": library, "model": name, "macs": eager.total_macs, "flops": eager.total_flops, "ways": {}}
    made = None
    for way, make in WAYS.items():
        if way == "decomposed" and (made is None or (library == "torchvision" and name not in FIRST)):
            continue
        if way == "scripted" and library != "torchvision":
            continue  # most models of the other libraries do not support scripting
        start = time.perf_counter()
        try:
            with deadline(SECONDS), torch.no_grad():
                made = make(model, args, kwargs, made)
        except Exception as error:
            made = None
            row["ways"][way] = {"not made": one_line(error), "seconds": round(time.perf_counter() - start, 1)}
            continue
        between = time.perf_counter()
        try:
            with deadline(SECONDS):
                told = differences(eager, fxflops.count(made, args, kwargs))
        except Exception as error:
            told = {"raises": one_line(error)}
        seconds = round(between - start, 1), round(time.perf_counter() - between, 2)
        row["ways"][way] = {**told, "seconds": seconds[0], "count seconds": seconds[1]}
    return row


def differences(eager: fxflops.Report, other: fxflops.Report) -> Row:
    """Return the differences between a program's report and the eager model's report, empty if they are equal."""
    rows: Row = {}
    for name in ("total_macs", "total_flops"):
        if getattr(eager, name) != getattr(other, name):
            rows[name] = getattr(other, name)
    if eager.params[0] != other.params[0]:
        rows["params"] = other.params[0]
    if len(eager.missing) != len(other.missing):
        rows["missing"] = [missing.op for missing in other.missing][:5]
    if "total_flops" in rows or "total_macs" in rows:
        ours, theirs = by_operator(eager), by_operator(other)
        rows["operators"] = {
            op: [ours.get(op, 0), theirs.get(op, 0)]
            for op in sorted({*ours, *theirs})
            if ours.get(op) != theirs.get(op)
        }
    ours, theirs = by_module(eager), by_module(other)
    if ours != theirs:
        differing = [path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path)]
        rows["modules"] = [len(differing), *((path, ours.get(path), theirs.get(path)) for path in differing[:3])]
    return rows


def by_operator(report: fxflops.Report) -> dict[str, int]:
    return {name: row.total.flops for name, row in report.by_operator().items() if row.total.flops}


def by_module(report: fxflops.Report) -> dict[str, tuple[int, int]]:
    """Return the MACs and FLOPs of each module that computes something."""
    rows = {path: (row.total.macs, row.total.flops) for path, row in report.by_module().items()}
    return {path: sums for path, sums in rows.items() if sums != (0, 0)}


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def run(libraries: list[str], only: list[str], fresh: bool) -> list[Row]:
    """Measure each model that has no row yet, in separate processes. Return all rows."""
    file = RESULTS / "programs.jsonl"
    rows = [] if fresh or not file.exists() else [json.loads(line) for line in file.read_text().splitlines()]
    isolated = Isolated(os.nice, 0, jobs=MODELS_PER_PROCESS)
    for library in libraries:
        listed = SAMPLE[library]
        names = listed.split() if listed else importlib.import_module(f"benchmarks.models.{library}_zoo").names()
        for name in sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
            if (only and not any(part in name for part in only)) or (library, name) in {
                (row["library"], row["model"]) for row in rows
            }:
                continue
            try:
                row = isolated(measure, library, name, seconds=SECONDS * 7)
            except (BrokenProcessPool, TimeoutError) as error:
                row = {"library": library, "model": name, "why": f"it ended the process: {type(error).__name__}"}
            except Exception as error:
                row = {"library": library, "model": name, "why": one_line(error)}
            rows.append(row)
            print(json.dumps(row), flush=True)
            file.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return rows


def table(rows: list[Row]) -> str:
    """Return the table in Markdown."""
    libraries = [*dict.fromkeys(row["library"] for row in rows)]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", *libraries))
    lines = [
        "# Programs",
        "",
        f"{versions}, fxflops {fxflops.__version__}, Python {platform.python_version()}, {processor()}.",
        "",
        "Models exported by `torch.export`, decomposed (`run_decompositions()`) and scripted (`torch.jit.script`), counted by",
        "`fxflops.count` and held to the eager model: MACs, FLOPs, parameters and missing operators in total, MACs and FLOPs of",
        "every module. Made by `benchmarks/programs.py`.",
        "",
        "Where they differ the program computes something else: decomposed attention, `silu` and norms are their parts; torchvision's detection",
        "models compute their scale by tensors when scripted (5 FLOPs), and raft `1 - z` in another way; models of transformers keep a mask of",
        "ones when exported, which they leave out in eager mode.",
        "",
    ]
    for library in libraries:
        own = [row for row in rows if row["library"] == library]
        lines += [f"- {library}: {len(own)} models"]
        for way in WAYS:
            told = Counter(state(row["ways"][way]) for row in own if way in row.get("ways", {}))
            if told:
                lines += [f"  - {way}: {', '.join(f'{kind} {number}' for kind, number in told.items())}"]
    lines += ["", "| model | MACs | FLOPs | exported | decomposed | scripted |", "|---|---:|---:|---|---|---|"]
    for row in rows:
        if "why" in row:
            lines.append(f"| {row['library']}:{row['model']} | | | {row['why']} | | |")
            continue
        cells = [said(row, row["ways"].get(way)) for way in WAYS]
        lines.append(f"| {row['library']}:{row['model']} | {row['macs']:,} | {row['flops']:,} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def state(way: Row) -> str:
    if "not made" in way:
        return "torch refuses"
    if "raises" in way:
        return "not counted"
    names = {"total_macs", "total_flops", "params", "missing", "modules"} & {*way}
    return "equal" if not names else "totals equal" if names == {"modules"} else "differ"


def said(row: Row, way: Row | None) -> str:
    if way is None:
        return ""
    kind = state(way)
    if kind in ("torch refuses", "not counted"):
        return f"{kind}: {way.get('not made') or way.get('raises')}"[:160].replace("|", "\\|")
    if kind == "equal":
        return kind
    texts = [
        f"{key.removeprefix('total_')} {way[key]:,}" for key in ("total_macs", "total_flops", "params") if key in way
    ]
    texts += [f"{op} {a:,} -> {b:,}" for op, (a, b) in [*way.get("operators", {}).items()][:4]]
    texts += [f"missing {way['missing']}"] if "missing" in way else []
    texts += [f"{way['modules'][0]} modules differ"] if "modules" in way else []
    return "; ".join(texts).replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", default=[*SAMPLE])
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--fresh", action="store_true", help="measure all again")
    given = parser.parse_args()
    rows = run(given.libraries, [name for name in given.only.split(",") if name], given.fresh)
    (RESULTS / "programs.md").write_text(table(rows))


if __name__ == "__main__":
    main()

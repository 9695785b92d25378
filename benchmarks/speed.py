"""How long it takes to count, and in how much memory: every counter, the same model and input, each in a fresh process.

    python benchmarks/speed.py [--processes 3] [--models resnet50,...] [--tools fxflops,FlopCounterMode,...]

A process imports everything, has the tool count a small model, and then counts the model: the first time, and again until
5 times or 3 seconds have passed. FlopCounterMode and fxflops are given the model on the CPU, as the others are, and
FlopCounterMode also the model on meta, where it is at its fastest. The table is ``benchmarks/results/speed.md``; what was
measured is kept in ``speed.jsonl`` beside it, so that a run goes on where one was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import processor
from benchmarks.peers import PEERS, of_flop_counter_mode

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["__main__", "timm", "torchvision", "transformers"])
RESULTS = Path(__file__).parent / "results"
REFERENCE, ON_META = "fxflops", "FlopCounterMode on meta"
TOOLS = [
    REFERENCE, ON_META, "FlopCounterMode", "fvcore", "thop", "ptflops", "torchinfo", "calflops", "flops_profiler",
    "torchprofile", "torch_flops",
]  # fmt: skip
TIMM = """
resnet50 resnext50_32x4d regnety_032 efficientnet_b0 tf_efficientnetv2_m mobilenetv3_large_100 densenet121 vgg16
inception_v3 convnext_tiny convnextv2_tiny hrnet_w18 dla34 res2net50_26w_4s repvgg_b0 ghostnet_100 vit_base_patch16_224
vit_large_patch16_224 deit3_small_patch16_224 beit_base_patch16_224 swin_tiny_patch4_window7_224 mixer_b16_224
cait_s24_224 coatnet_0_rw_224 maxvit_tiny_tf_224 edgenext_small mobilevit_s poolformer_s12 nfnet_f0 xcit_small_12_p16_224
""".split()
TORCHVISION = "resnet18 vit_b_16 swin_t convnext_base efficientnet_v2_s fcn_resnet50".split()
TRANSFORMERS = "bert gpt2 llama t5-encoder".split()


def of_transformers(kind: str) -> nn.Module:
    import transformers as hf

    if kind == "bert":
        return hf.BertModel(hf.BertConfig())
    if kind == "gpt2":
        return hf.GPT2Model(hf.GPT2Config(use_cache=False))
    if kind == "t5-encoder":
        return hf.T5EncoderModel(hf.T5Config())
    config = hf.LlamaConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=16, use_cache=False)
    return hf.LlamaModel(config)


def built(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The model in eval mode and its input, on the CPU."""
    torch.manual_seed(0)
    if name in TRANSFORMERS:
        return of_transformers(name).eval(), torch.randint(5, 900, (1, 128))
    if name.startswith("torchvision:"):
        import torchvision

        settings = {"weights_backbone": None} if "fcn" in name else {}
        found = torchvision.models.get_model(name.partition(":")[2], weights=None, **settings)
        return found.eval(), torch.randn(1, 3, 224, 224)
    import timm

    found = timm.create_model(name).eval()
    return found, torch.randn(1, *found.default_cfg["input_size"])


def once(name: str, tool: str) -> dict[str, Any]:
    """The first and the later seconds of one tool on one model, and the megabytes that the process grew by."""
    model, x = built(name)
    small: tuple[nn.Module, torch.Tensor] = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)
    count: Callable[..., Any] = of_flop_counter_mode if tool == ON_META else PEERS[tool][1]
    if tool == ON_META:
        model, x = model.to("meta"), x.to("meta")
        small = small[0].to("meta"), small[1].to("meta")
    warnings.simplefilter("ignore")
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent), torch.no_grad():
        count(*small)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds: list[float] = []
        while len(seconds) < 2 or (len(seconds) < 6 and sum(seconds) < 3):
            # some tools cannot count one model twice
            given = model if tool in (REFERENCE, ON_META, "FlopCounterMode") else copy.deepcopy(model)
            start = time.perf_counter()
            numbers, _ = count(given, x)
            seconds.append(time.perf_counter() - start)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"first": seconds[0], "again": statistics.median(seconds[1:]), "MiB": grown, "value": numbers[0].value}


def measured(name: str, tool: str) -> dict[str, Any]:
    """The same in a process of its own, forked from one that has imported everything and counted nothing."""
    with PROCESSES.Pool(1) as pool:
        try:
            return pool.apply_async(once, (name, tool)).get(timeout=300)
        except multiprocessing.TimeoutError:
            return {"error": "no answer within 300 s"}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:100]}


def table(rows: list[dict[str, Any]], names: list[str], tools: list[str]) -> str:
    """For each model the milliseconds of fxflops, and of each tool how many times as long it takes, lowest to highest."""
    of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault((row["model"], row["tool"]), []).append(row)
    processes = max(map(len, of.values()))
    others = [tool for tool in tools if tool != REFERENCE]
    lines = [
        "# Speed: the time to count",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, batch 1, {processes} fresh process(es) for each "
        "model and tool, in one run. fxflops: milliseconds of the first count and of those after it, and MiB that the process "
        'grew by. Others: their time to that of fxflops (again to again), lowest-highest; "-" where the tool raises, or was not run.',
        "",
        "| model | first (ms) | again (ms) | MiB | " + " | ".join(others) + " |",
        "|---|---:|---:|---:|" + "---|" * len(others),
    ]
    ratios: dict[str, list[float]] = {tool: [] for tool in others}
    to_first: dict[str, list[float]] = {tool: [] for tool in others}
    for name in names:
        ours = [row for row in of.get((name, REFERENCE), []) if "again" in row]
        if not ours:
            continue
        first, again, grown = (statistics.median(row[key] for row in ours) for key in ("first", "again", "MiB"))
        cells = []
        for tool in others:
            theirs = [row["again"] for row in of.get((name, tool), []) if "again" in row]
            each = sorted(t / o["again"] for t, o in zip(theirs, ours, strict=False))
            if each:
                ratios[tool].append(statistics.median(each))
                to_first[tool].append(statistics.median(theirs) / first)
            cells.append(f"{each[0]:.1f}-{each[-1]:.1f}" if len(each) > 1 else f"{each[0]:.1f}" if each else "-")
        lines.append(f"| {name} | {first * 1e3:.1f} | {again * 1e3:.1f} | {grown:.0f} | " + " | ".join(cells) + " |")
    for title, found in (("geometric mean", ratios), ("the same, to the first count", to_first)):
        means = [f"{statistics.geometric_mean(each):.1f}" if each else "-" for each in found.values()]
        lines.append(f"| {title} | | | | " + " | ".join(means) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    everything = [*TIMM, *(f"torchvision:{name}" for name in TORCHVISION), *TRANSFORMERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--models", default=",".join(everything))
    parser.add_argument("--tools", default=",".join(TOOLS))
    options = parser.parse_args()
    kept = RESULTS / "speed.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    names, tools = options.models.split(","), options.tools.split(",")
    for process in range(options.processes):
        for name in names:
            for tool in tools:
                if any((row["model"], row["tool"], row["process"]) == (name, tool, process) for row in rows):
                    continue
                rows.append({"model": name, "tool": tool, "process": process, **measured(name, tool)})
                with kept.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(rows[-1], flush=True)
        (RESULTS / "speed.md").write_text(table(rows, names, tools))


if __name__ == "__main__":
    main()

"""Time every counter on a new model, and on the same model at a new batch size, in fresh processes.

    python benchmarks/speed.py [--processes 5] [--models resnet50,...] [--tools fxflops,...]

Each pair of model and tool has its own process, forked from a process that has imported everything and counted nothing. The
process builds the model and warms the tool up on a small net that is unrelated to the models. A "cold" process skips the warm-up.
Then it counts the model at batch 1, and after that at batch 2. The time is the CPU time of one thread until the totals have been
read; for fxflops these are ``total_flops``, ``max_memory``, ``by_module()`` and ``complete``. The garbage of building the model is
collected before the clock starts, for every tool.

fxflops and FlopCounterMode get the model on meta, where FlopCounterMode is fastest. Counters that run the model get it on the CPU,
and fxflops is also timed there. Where both count, FlopCounterMode's total is asserted to equal fxflops's total under
``convention="torch"``. The table is ``benchmarks/results/speed.md``. The measurements are saved in ``benchmarks/results/speed.jsonl``,
so an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import io
import json
import multiprocessing
import os
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

import fxflops
import fxflops.api  # the package loads this lazily: load it before any time is taken
from benchmarks.machine import processor
from benchmarks.peers import PEERS, of_flop_counter_mode, small_net

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["__main__", "timm", "torchvision", "transformers"])
RESULTS = Path(__file__).parent / "results"
OURS, THEIRS, ON_CPU, COLD = "fxflops", "FlopCounterMode on meta", "fxflops on the CPU", " in a cold process"
COMPUTING = "FlopCounterMode fvcore thop ptflops torchinfo calflops flops_profiler torchprofile torch_flops".split()
TOOLS = [OURS, THEIRS, OURS + COLD, THEIRS + COLD, ON_CPU, *COMPUTING]
BATCHES = {"1": "The first count of a model never seen", "2": "The same model at a new batch size"}
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
    """Return the model in eval mode and its input, on the CPU."""
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


def of_fxflops(model: nn.Module, x: torch.Tensor) -> int:
    """Count, and read the values that a user would read. Return the FLOPs."""
    report = fxflops.count(model, x)
    _ = report.max_memory, report.by_module(), report.complete
    return int(report.total_flops)


def of_peer(tool: str) -> Callable[[nn.Module, torch.Tensor], float]:
    count = of_flop_counter_mode if tool == THEIRS else PEERS[tool][1]
    return lambda model, x: count(model, x)[0][0].value


def once(name: str, tool: str) -> dict[str, Any]:
    """Return one tool's seconds and totals on one model, by batch size. fxflops's totals use ``convention="torch"``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cold, tool = tool.endswith(COLD), tool.removesuffix(COLD)
    model, x = built(name)
    small, image = small_net()
    if tool in (OURS, THEIRS):
        model, x, small, image = model.to("meta"), x.to("meta"), small.to("meta"), image.to("meta")
    count = of_fxflops if tool in (OURS, ON_CPU) else of_peer(tool)
    found: dict[str, Any] = {}
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent), torch.no_grad():
        if not cold:
            count(small, image)
        for batch, images in (("1", x), ("2", torch.cat([x, x]))):
            # Some tools cannot count the same model twice.
            given = model if tool in (OURS, THEIRS, ON_CPU) else copy.deepcopy(model)
            gc.collect()  # garbage from building the model must not be timed
            start = time.thread_time()
            total = count(given, images)
            found[batch] = time.thread_time() - start
            found[f"total {batch}"] = total
            if tool in (OURS, ON_CPU):
                found[f"total {batch}"] = fxflops.count(model, images, convention="torch").total_flops
    return found


def measured(name: str, tool: str) -> dict[str, Any]:
    """Return the result of :func:`once` in a process forked from one that has imported everything and counted nothing."""
    with PROCESSES.Pool(1) as pool:
        try:
            return pool.apply_async(once, (name, tool)).get(timeout=300)
        except multiprocessing.TimeoutError:
            return {"error": "no answer within 300 s"}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:100]}


class Measurements:
    """The measurements by model and tool."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in rows:
            self._rows.setdefault((row["model"], row["tool"]), []).append(row)
        self.processes = max(map(len, self._rows.values()))

    def seconds(self, name: str, tool: str, batch: str) -> float | None:
        """Return the median over the processes; None if the tool was not run or raised an error."""
        found = [row[batch] for row in self._rows.get((name, tool), []) if batch in row]
        return statistics.median(found) if found else None

    def error(self, name: str, tool: str) -> str:
        """Return the error that kept a tool from counting a model; "" if it counted the model or was not run."""
        return next((row["error"] for row in self._rows.get((name, tool), []) if "error" in row), "")

    def check(self, name: str) -> None:
        """Assert that fxflops and FlopCounterMode give the same totals, wherever both count."""
        tools = [OURS, THEIRS, ON_CPU, OURS + COLD, THEIRS + COLD]
        for batch in BATCHES:
            rows = [row for tool in tools for row in self._rows.get((name, tool), []) if batch in row]
            totals = {row[f"total {batch}"] for row in rows}
            assert len(totals) < 2, f"{name} at batch {batch}: {totals}"


def table(rows: list[dict[str, Any]], names: list[str], tools: list[str]) -> str:
    """Return a table for each batch size, and the reasons for empty cells."""
    found = Measurements(rows)
    lines = [
        "# Speed: the time to count",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}: CPU milliseconds of one "
        f"thread, the median of {found.processes} fresh process(es) for each model and tool. fxflops and FlopCounterMode are given "
        "the model on meta; FlopCounterMode's time is also told as how many times as long it takes as fxflops. The counters that "
        "compute are given it on the CPU, and compared with fxflops given it there.",
    ]
    for name in names:
        found.check(name)
    for batch, title in BATCHES.items():
        lines += ["", f"## {title}", "", *table_of(found, batch, names, tools)]
    errors = [
        f"- {name}, {tool}: {found.error(name, tool)}" for name in names for tool in tools if found.error(name, tool)
    ]
    return "\n".join([*lines, "", "## What raises", "", *(errors or ["nothing"])]) + "\n"


def table_of(found: Measurements, batch: str, names: list[str], tools: list[str]) -> list[str]:
    """Return the table of milliseconds and ratios at a batch size. The last row has the geometric means."""
    columns: dict[str, tuple[str, str]] = {
        "fxflops (ms)": (OURS, ""),
        "FlopCounterMode (ms)": (THEIRS, ""),
        "ratio": (THEIRS, OURS),
    }
    if batch == "1":
        columns |= {"cold fxflops (ms)": (OURS + COLD, ""), "cold ratio": (THEIRS + COLD, OURS + COLD)}
    columns |= {"fxflops on the CPU (ms)": (ON_CPU, ""), **{tool: (tool, ON_CPU) for tool in COMPUTING}}
    columns = {title: pair for title, pair in columns.items() if pair[0] in tools}
    values: dict[str, list[float]] = {title: [] for title in columns}
    lines = ["| model | " + " | ".join(columns) + " |", "|---" + "|---:" * len(columns) + "|"]
    for name in names:
        cells = []
        for title, (tool, of) in columns.items():
            seconds, other = found.seconds(name, tool, batch), found.seconds(name, of, batch) if of else 1e-3
            if seconds is None or other is None:
                cells.append("raises" if found.error(name, tool) else "-")
                continue
            values[title].append(seconds / other)
            cells.append(f"{seconds / other:.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    means = [f"{statistics.geometric_mean(each):.1f}" if each else "-" for each in values.values()]
    return [*lines, "| geometric mean | " + " | ".join(means) + " |"]


def main() -> None:
    everything = [*TIMM, *(f"torchvision:{name}" for name in TORCHVISION), *TRANSFORMERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5)
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

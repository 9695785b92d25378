"""Compare peak memory as predicted by ``count()``, as measured by live storages, and as recorded by the CPU's allocator.

    python benchmarks/memory_truth.py [--models resnet18,...] [--seconds 1200]

Each model runs in its own process: in inference, and in training with SGD with momentum and with AdamW, each with and without
activation checkpointing. In training, the second of two steps is measured. For ten models, a step inside ``fxflops.profile()`` is
measured too. Memory that one operator's kernel allocates and frees is a workspace (see ``benchmarks/allocator.py``). Workspaces are
reported separately: predictions and storages are compared with the peak without them. The table is
``benchmarks/results/memory_truth.md``. Measurements are saved in ``memory_truth.jsonl`` next to it, so that a stopped run can be resumed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.allocator import allocated
from benchmarks.machine import processor
from benchmarks.models import memory_zoo
from fxflops.model.inventory import Inventory
from fxflops.model.pytree import stored, tensors_in
from fxflops.ops import BASE
from fxflops.run.model_run import observe_on_own_tensors
from fxflops.run.request import Request
from fxflops.run.subject import Subject
from fxflops.trace.autograd_owners import backward_from, roots_of

RESULTS = Path(__file__).parent / "results"
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["__main__", "timm", "torchvision", "transformers"])
INFERENCE, CHECKPOINTED = "inference", ", checkpointed"
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=1e-4, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=1e-4),
}
WAYS = [INFERENCE, *OPTIMIZERS, *(name + CHECKPOINTED for name in OPTIMIZERS)]
PROFILED = {"SGD", "SGD" + CHECKPOINTED}
OFF, FAST = 0.05, ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")
CAUSES = {
    "fast path": "in inference torch takes one kernel for the whole layer, which makes no tensor that another operator sees; "
    "an observed layer is taken apart, and what its parts make is counted (with its workspace the kernel takes more than either)",
    "gradient sums": "autograd adds a gradient into one that nobody else holds, but under any dispatch mode (fxflops's is one) "
    "makes a new tensor of the sum: within an empty dispatch mode the same step allocates what was predicted, to 1%",
    "unnamed": "not yet explained",
}


class NoChange(TorchDispatchMode):
    """A dispatch mode that does nothing itself. Under any mode, autograd adds gradients into new tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the total bytes of the tensors' storages, counting each storage once."""
    storages = {s._cdata: s.nbytes() for t in tensors for part in stored(t) for s in [part.untyped_storage()]}
    return sum(storages.values())


def checkpointed(model: nn.Module) -> None:
    """Turn on activation checkpointing: the model's own if it has that, otherwise of each child that has children."""
    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return
    if hasattr(model, "set_grad_checkpointing"):
        with contextlib.suppress(AssertionError):  # some timm models do not support it
            model.set_grad_checkpointing(True)
            return
    children = [part for child in model.children() for part in (child if isinstance(child, nn.ModuleList) else [child])]
    for block in [child for child in children if any(True for _ in child.children())] or [model]:
        forward = block.forward
        block.forward = lambda *args, _run=forward, **kwargs: checkpoint(_run, *args, use_reentrant=False, **kwargs)  # type: ignore[method-assign]


def step(model: nn.Module, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer | None) -> None:
    """Run the model. With an optimizer, also run the backward pass and the optimizer's step.

    As in a training loop, the output stays alive until the end of the step.
    """
    if optimizer is None:
        with torch.no_grad():
            model(*args, **kwargs)
        return
    out = model(*args, **kwargs)
    backward_from(*roots_of(out))
    optimizer.step()
    del out


def once(name: str, way: str) -> dict[str, Any]:
    """Return the figures of one model run in one way (an element of WAYS), in bytes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model, args, kwargs = memory_zoo.build(name)
    if way.endswith(CHECKPOINTED):
        checkpointed(model)
    made = OPTIMIZERS.get(way.removesuffix(CHECKPOINTED))
    optimizer = made(model.parameters()) if made else None
    model.train(optimizer is not None)
    mode, training = ("train", True) if optimizer else ("eval", False)
    run = partial(step, model, args, kwargs, optimizer)
    run()
    model.zero_grad()
    states = tensors_in([*optimizer.state.values()]) if optimizer else []
    before = bytes_of([*model.parameters(), *model.buffers(), *tensors_in((args, kwargs)), *states])
    before += sum(weight.nbytes for _, weight in Inventory(model).packed)
    truth = allocated(run, before)
    model.zero_grad()
    found: dict[str, Any] = {"peak": truth.peak, "held": truth.held, "workspace of": truth.workspace_of}
    counted = fxflops.count(model, args, kwargs, mode=mode, backward=training, optimizer=optimizer)
    if training and abs(counted.max_memory / truth.held - 1) > OFF:
        with NoChange():
            found["within a mode"] = allocated(run, before).held
        model.zero_grad()
    found |= {"predicted": counted.max_memory, "trace": counted.trace, "why": counted.trace_reason[:200]}
    with torch.set_grad_enabled(training):
        subject = Subject(model, Inventory(model), args, kwargs, Request(mode, training, optimizer=optimizer))
        found["storages"] = observe_on_own_tensors(subject, BASE).instruments.storages.memory_log.most
        subject.snapshot.rewind()
    if name in memory_zoo.PROFILED and way in PROFILED:
        model.zero_grad()

        def profiled() -> None:
            with fxflops.profile(model, optimizer=optimizer):
                run()

        found["profiled"] = allocated(profiled, before).peak
    return found


def measured(name: str, way: str) -> dict[str, Any]:
    """Call :func:`once` in a new process. Return its figures, or the error."""
    with PROCESSES.Pool(1) as pool:
        try:
            return pool.apply_async(once, (name, way)).get(timeout=300)
        except multiprocessing.TimeoutError:
            return {"error": "no answer within 300 s"}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]}


def cause(row: dict[str, Any]) -> str:
    """Return the key in CAUSES of why a prediction is off by more than 5%; "" if it is not."""
    if abs(row["predicted"] / row["held"] - 1) <= OFF:
        return ""
    if row["way"] == INFERENCE and row["workspace of"] in FAST:
        return "fast path"
    explained = abs(row["predicted"] / row.get("within a mode", float("inf")) - 1) <= OFF / 5
    return "gradient sums" if explained else "unnamed"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the page: the medians for each way to run, then every row."""
    done = [row for row in rows if "error" not in row]
    lines = [
        "# Memory: predicted, measured by storages, and allocated",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}, on the CPU in f32, one "
        f"thread; {len({row['model'] for row in rows})} models. Allocated is the peak of the allocator's running sum, without "
        "workspaces: what is allocated and freed within one operator that has a kernel of its own. The workspace is what "
        "those add to the peak, with the operator at the peak. Predicted is `count()`'s, storages the live storages' of the same "
        "run on real tensors; both are told as ratios to allocated. Training is the second step, the optimizer's state being there.",
        "",
        "| way | runs | median error | largest without a cause | rows off by more than 5% | causes |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for way in WAYS:
        errors = {row["model"]: abs(row["predicted"] / row["held"] - 1) for row in done if row["way"] == way}
        causes = [cause(row) for row in done if row["way"] == way]
        unnamed = [
            abs(row["predicted"] / row["held"] - 1)
            for row in done
            if row["way"] == way and cause(row) in ("", "unnamed")
        ]
        if errors:
            told = ", ".join(f"{each} x{causes.count(each)}" for each in sorted({*causes} - {""})) or "-"
            lines.append(
                f"| {way} | {len(errors)} | {statistics.median(errors.values()):.2%} | {max(unnamed, default=0):.1%} "
                f"| {sum(error > OFF for error in errors.values())} | {told} |"
            )
    lines += ["", *(f"- {name}: {text}" for name, text in CAUSES.items() if any(cause(row) == name for row in done))]
    lines += [
        "",
        *profiles(done),
        "## Every run",
        "",
        "| model | way | allocated (MB) | predicted | storages | workspace (MB) | of | cause |",
    ]
    lines.append("|---|---|---:|---:|---:|---:|---|---|")
    for row in done:
        ratios = f"{row['predicted'] / row['held']:.3f} | {row['storages'] / row['held']:.3f}"
        workspace = f"{(row['peak'] - row['held']) / 1e6:.2f} | {row['workspace of'].removeprefix('aten::')}"
        lines.append(
            f"| {row['model']} | {row['way']} | {row['held'] / 1e6:.2f} | {ratios} | {workspace} | {cause(row)} |"
        )
    lines += ["", "## Not measured: what the model's own step raises", ""]
    lines += [f"- {row['model']}, {row['way']}: {row['error']}" for row in rows if "error" in row] or ["nothing"]
    real = [
        f"- {row['model']}, {row['way']}: {' '.join(row['why'].split())}" for row in done if "meta" not in row["trace"]
    ]
    return "\n".join([*lines, "", "## Counted on real tensors", "", *(real or ["nothing"])]) + "\n"


def profiles(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of steps inside ``fxflops.profile()``."""
    found = [row for row in rows if "profiled" in row]
    if not found:
        return []
    lines = [
        "## A step within `fxflops.profile()`",
        "",
        "The allocator's peak, workspaces included, to that of the step alone.",
        "",
    ]
    lines += ["| model | way | alone (MB) | within profile() | ratio |", "|---|---|---:|---:|---:|"]
    for row in found:
        sizes = f"{row['peak'] / 1e6:.2f} | {row['profiled'] / 1e6:.2f} | {row['profiled'] / row['peak']:.2f}"
        lines.append(f"| {row['model']} | {row['way']} | {sizes} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(memory_zoo.NAMES))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    options = parser.parse_args()
    kept, began = RESULTS / "memory_truth.jsonl", time.monotonic()
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    known = {(row["model"], row["way"]) for row in rows}
    for way in WAYS:
        for name in options.models.split(","):
            if (name, way) in known or time.monotonic() - began > options.seconds:
                continue
            rows.append({"model": name, "way": way, **measured(name, way)})
            with kept.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(rows[-1], flush=True)
        (RESULTS / "memory_truth.md").write_text(table(rows))


if __name__ == "__main__":
    main()

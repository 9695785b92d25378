"""Check that a model built on meta has the same count as one built on the CPU, for the CPU and for a GPU.

    python benchmarks/built_on_meta.py [--models resnet18,...] [--seconds 600]

The models are the ones of ``benchmarks/memory_truth.py``, and more from transformers. Each model is built on the CPU, and again
under ``torch.device("meta")`` (or moved to meta if its constructor needs values). Both are counted in inference and in a training
step with AdamW. The FLOPs and MACs, the FLOPs of the backward pass, and the predicted peak must be equal. No GPU is needed. The
table is ``benchmarks/results/built_on_meta.md``. Rows are kept in ``built_on_meta.jsonl`` next to it, so an interrupted run
continues where it stopped. The exit code is 1 if any row differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.models import memory_zoo

RESULTS = Path(__file__).parent / "results"
MORE = """
qwen2 qwen3 mixtral qwen3_moe gpt_oss gpt_neox phi3 bart whisper vit mamba deberta-v2
""".split()
"""transformers architectures that are not in memory_truth.md: experts, encoder-decoders, vision and audio models."""
NAMES = [*memory_zoo.LAYERS, *memory_zoo.TRANSFORMERS, *MORE]
NAMES += [name for name in memory_zoo.NAMES if name not in NAMES]
DEVICES = "cpu", "cuda"
WAYS = "inference", "training"
Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def build(name: str) -> Built:
    """Return the model, with the args and kwargs of its forward."""
    if name not in MORE:
        return memory_zoo.build(name)
    from benchmarks.models import transformers_zoo

    return transformers_zoo.build(name)


def built_on_meta(name: str) -> tuple[Built, str]:
    """Return the same model on meta, with its args and kwargs, and whether it was "built" there or "moved"."""
    torch.manual_seed(0)
    _, *given = build(name)  # tokens keep their values, as on the command line
    try:
        with torch.device("meta"):
            model, how = build(name)[0], "built"
    except Exception:
        model, how = build(name)[0].to("meta"), "moved"
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, _on_meta, (given[0], given[1]))
    return (model, args, kwargs), how


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta") if tensor.is_floating_point() else tensor


def figures(built: Built, way: str, device: str) -> dict[str, Any]:
    """Return the figures of a count and how the model was traced; the error if the count failed."""
    model, args, kwargs = built
    training = way == "training"
    try:
        report = fxflops.count(
            model, args, kwargs, mode="train" if training else "eval", backward=training,
            optimizer=torch.optim.AdamW if training else None, device=device,
        )  # fmt: skip
    except fxflops.FxflopsError as error:
        return {"error": " ".join(str(error).split())}
    return {
        "FLOPs": report.total_flops,
        "MACs": report.total_macs,
        "backward": report.total_backward_flops if training else None,
        "peak": report.max_memory,
        "trace": report.trace,
    }


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return one row per way and device."""
    torch.manual_seed(0)
    here = build(name)
    there, how = built_on_meta(name)
    return [
        {
            "model": name, "how": how, "way": way, "device": device,
            "cpu": figures(here, way, device), "meta": figures(there, way, device),
        }
        for device in DEVICES
        for way in WAYS
    ]  # fmt: skip


def asks_the_gpu(row: dict[str, Any]) -> bool:
    """Return whether the model itself queries a GPU, e.g. for its compute capability. Without a GPU, both counts then fail."""
    return row["device"] == "cuda" and all("NVIDIA" in row[place].get("error", "") for place in ("cpu", "meta"))


def differs(row: dict[str, Any]) -> bool:
    """Return whether either count failed or the figures differ. A model that queries the GPU itself does not differ."""
    return not asks_the_gpu(row) and ("error" in row["cpu"] or row["cpu"] != row["meta"])


def table(rows: list[dict[str, Any]]) -> str:
    """Return the totals, the rows that differ, then every row."""
    lines = [
        "# Built on the CPU, and built on meta",
        "",
        f"torch {torch.__version__}, fxflops {fxflops.__version__}; {len({row['model'] for row in rows})} models, in f32. Each is "
        "counted twice: built on the CPU, and on meta. Equal means that FLOPs and MACs of the forward, FLOPs of the backward pass and "
        "the predicted peak are the same to the last digit. Training is a step with AdamW. No GPU was there: counts for "
        '"cuda" are those of an H100.',
        "",
        "| counted for | way | models | equal | the model asks the GPU itself |",
        "|---|---|---:|---:|---:|",
    ]
    for device in DEVICES:
        for way in WAYS:
            found = [row for row in rows if (row["device"], row["way"]) == (device, way)]
            asking = sum(map(asks_the_gpu, found))
            equal = sum(not differs(row) for row in found) - asking
            lines.append(f"| {device} | {way} | {len(found)} | {equal} | {asking} |")
    lines += ["", "## Rows that differ", ""]
    lines += [
        f"- {row['model']}, {row['way']}, {row['device']}: {row['cpu']} on the CPU, {row['meta']} on meta"
        for row in rows
        if differs(row)
    ] or ["none"]
    lines += [
        "",
        "## Every row",
        "",
        "| model | on meta | counted for | way | MACs | FLOPs | FLOPs of the backward | peak (bytes) | equal |",
        "|---|---|---|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        values = [row["cpu"].get(key) for key in ("MACs", "FLOPs", "backward", "peak")]
        counted = ["-" if value is None else f"{value:,}" for value in values]
        cells = [
            row["model"],
            row["how"],
            row["device"],
            row["way"],
            *counted,
            "no" if differs(row) else "not counted" if asks_the_gpu(row) else "yes",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no model after so many")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    kept, began = RESULTS / "built_on_meta.jsonl", time.monotonic()
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for name in options.models.split(","):
        if name in {row["model"] for row in rows} or time.monotonic() - began > options.seconds:
            continue
        try:
            found = rows_of(name)
        except Exception as error:  # the installed library lacks this model
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        rows += found
        with kept.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
        (RESULTS / "built_on_meta.md").write_text(table(rows))
        print(name, *(row for row in found if differs(row)), flush=True)
    sys.exit(any(map(differs, rows)))


if __name__ == "__main__":
    main()

"""Replay recorded graphs and compare their outputs with the model's, for a sample of models from all libraries.

    python benchmarks/replay.py [--each 20]

Each model is run and recorded. Then its GraphModule runs twice in a row on the same inputs and random numbers. The table
(``benchmarks/results/replay.md``) says whether all outputs are the same bit for bit, or how much they differ.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import platform
import sys
import warnings
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from fxflops.api import analyzed
from fxflops.model.pytree import tensors_in

RESULTS = Path(__file__).parent / "results"
TIMM = ("vit_tiny_patch16_224", "resnet18", "mvitv2_tiny", "csatv2", "levit_128", "edgenext_xx_small", "gcvit_xxtiny")


def built(library: str, name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Build a model with real tensors (``timm_zoo`` builds timm's models on meta)."""
    if library == "timm":
        model = timm.create_model(name).eval()
        return model, (torch.randn(1, *model.pretrained_cfg["input_size"]),), {}
    zoo = importlib.import_module(f"benchmarks.models.{library}_zoo")
    result: tuple[nn.Module, tuple[Any, ...], dict[str, Any]] = zoo.build(name)
    return result


def outputs(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        return [tensor.clone() for tensor in tensors_in(run(*args, **kwargs))]


def compared(library: str, name: str) -> str | None:
    """Return a model's cells of the table; None if the model itself does not run."""
    torch.manual_seed(0)
    try:
        model, args, kwargs = built(library, name)
        outputs(model, args, kwargs)
    except Exception:
        return None
    report, graph = analyzed(
        model, args, kwargs, trace="record", convention="fxflops", formulas=None, repeats=0, progress=False
    )
    expected = outputs(model, args, kwargs)
    replays = [outputs(graph, args, kwargs) for _ in range(2)]
    apart = max((difference(one, other) for again in replays for one, other in pairs(again, expected)), default=0.0)
    verdict = "bit for bit" if apart == 0 else f"within {apart:.1e}" if apart < 1e-4 else f"DIFFERS by {apart:.1e}"
    return f"{len(list(graph.graph.nodes)):,} | {len(expected)} | {verdict} | {'yes' if report.complete else 'no'}"


def pairs(one: list[torch.Tensor], other: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(one, other, strict=True))


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference between two tensors, relative to the largest value; 0 if they are equal (NaNs are equal, too)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.dtype in (torch.quint8, torch.qint8):
        one, other = one.dequantize(), other.dequantize()
    one, other = (torch.nan_to_num(torch.view_as_real(t) if t.is_complex() else t.double()) for t in (one, other))
    return float((one - other).abs().max() / other.abs().max().clamp(min=1)) if one.numel() else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=20, help="models of each library but timm")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows = []
    for library in ("timm", "torchvision", "diffusers", "transformers"):
        names = TIMM if library == "timm" else importlib.import_module(f"benchmarks.models.{library}_zoo").names()
        found = 0
        for name in names[:: max(len(names) // (2 * options.each), 1)]:
            if found < options.each and (cells := compared(library, name)) is not None:
                found += 1
                rows.append(f"| {library} | {name} | {cells} |")
                print(rows[-1], flush=True)
    exact = sum("bit for bit" in row for row in rows)
    lines = [
        "# Recorded graphs, replayed",
        "",
        f"torch {torch.__version__}, fxflops {fxflops.__version__}, {platform.processor() or platform.machine()}. Each model's",
        "recorded GraphModule was run twice in a row on the model's inputs and compared with the model's own outputs.",
        "",
        f"- models: {len(rows)}, all outputs bit for bit: {exact}, apart: {sum('DIFFERS' in row for row in rows)}",
        "",
        "| library | model | nodes | output tensors | replayed twice | complete |",
        "|---|---|---:|---:|---|---|",
        *rows,
    ]
    (RESULTS / "replay.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

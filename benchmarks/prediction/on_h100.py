"""Compare predictions with our own H100 measurements that no fit used: whole models, and convolutions' backward passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch

from benchmarks.gpu.times import MODELS
from fxflops import count
from fxflops.prediction.predict import seconds_of
from fxflops.roofline.devices import find_device

from .tables import OPERATIONS, measured_convolution

CARD = "H100 SXM"
TIMES = Path(__file__).parents[1] / "results" / "gpu" / "times.md"


def tables() -> str:
    """Return the two sections of the results."""
    return "\n".join([*HEAD.strip().splitlines(), *models(), "", *BACKWARD.strip().splitlines(), *convolutions(), ""])


def models() -> Iterator[str]:
    """Yield a row for each model in ``times.md``: the measured time of its CUDA graph, and the predicted time of its forward."""
    for name, graph in re.findall(
        r"^\| analyze ([^|]+?) \| \d+ \| [^|]+ \| ([\d.]+) \|", TIMES.read_text(encoding="utf8"), re.M
    ):
        with torch.device("meta"):
            model, args, kwargs = MODELS[name]()
        found = count(model, args, kwargs, device="cuda").predict(CARD)
        measured, predicted, bound = float(graph), 1e3 * found.seconds, 1e3 * found.bound_seconds
        error = "unknown" if found.error is None else f"{found.error:.0%}"
        yield f"| {name} | {measured:.3g} | {predicted:.3g} | {predicted / measured - 1:+.0%} | {error} | {bound:.3g} |"


def convolutions() -> Iterator[str]:
    table = pd.read_csv(OPERATIONS)
    for row in table[(table.family == "conv") & (table["pass"] == "backward")].itertuples():
        kernels = measured_convolution(row.shapes, row.dtype, ("input", "weight"))
        times, _ = seconds_of(kernels, find_device(CARD))
        predicted = 1e6 * sum(each for each in times if each is not None)
        measured = 1e6 * row.seconds
        yield f"| {row.shapes} | {row.dtype} | {row.layout} | {measured:.1f} | {predicted:.1f} | {predicted / measured - 1:+.0%} |"


HEAD = """
## Whole models on an H100

Forward passes that [this project measured](gpu/times.md) as CUDA graphs, in f32 with torch's own settings (convolutions in TF32), in eval mode. No fit used
them, but convolutions, batch norms and some elementwise kernels were fitted to single operations measured on the same card. "Stated": the
error that the prediction prints, which is measured on single operations.

| model | measured (ms) | predicted (ms) | off by | stated | bound (ms) |
|---|---:|---:|---:|---:|---:|
"""
BACKWARD = """
## Backward passes of convolutions

On an H100: the gradients of the input and of the weights, predicted as two convolutions. No fit used them.

| sizes | dtype | layout | measured (us) | predicted (us) | off by |
|---|---|---|---:|---:|---:|
"""

"""How well a calibration of this CPU predicts models, and whether to time its operations with cold or with hot caches.

    python -m benchmarks.calibration

Calibrations alternate: one empties the caches before each repetition, as ``fxflops.calibrate("cpu")`` normally does, and the next
leaves them hot. Four models are timed after each calibration, so that other work on the machine affects all of them equally.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fxflops
from fxflops import calibrating, count
from fxflops.prediction import Calibration

from .machine import processor

RESULTS = Path(__file__).parent / "results" / "calibration.md"
ROUNDS = 2
REPEATS = 7


def models() -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """Yield four models. Their shapes differ from the shapes that a calibration measures."""
    torch.manual_seed(0)
    yield "MLP 784-2048-2048-10", mlp(784, 2048, 2048, 10), torch.randn(256, 784)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    yield (
        "encoder of 2 layers, width 256",
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        torch.randn(8, 128, 256),
    )
    yield "convolutions 32-64-128", convolutions(), torch.randn(8, 3, 64, 64)
    yield "MLP 256-256-256", mlp(256, 256, 256), torch.randn(64, 256)


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1)
    )


def measured(model: nn.Module, x: torch.Tensor) -> float:
    """Return the median seconds of a forward pass."""
    times = []
    with torch.no_grad():
        for _ in range(REPEATS + 2):
            start = time.perf_counter()
            model(x)
            times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


@contextmanager
def hot() -> Iterator[None]:
    """Calibrate without emptying the caches: each repetition finds them as the last one left them."""
    before = calibrating.EVICTED
    calibrating.EVICTED = 0
    try:
        yield
    finally:
        calibrating.EVICTED = before


def main() -> None:
    cases = list(models())
    ways: dict[str, list[Calibration]] = {"cold": [], "hot": []}
    times: dict[str, list[float]] = {name: [] for name, _, _ in cases}
    took: list[float] = []
    for _ in range(ROUNDS):
        for way, found in ways.items():
            start = time.perf_counter()
            if way == "hot":
                with hot():
                    found.append(fxflops.calibrate("cpu"))
            else:
                found.append(fxflops.calibrate("cpu"))
            took.append(time.perf_counter() - start)
            for name, model, x in cases:
                times[name].append(measured(model.eval(), x))
    lines = [row(name, count(model.eval(), x), times[name], ways) for name, model, x in cases]
    means = [
        f"- {way}: mean error {statistics.mean(abs(error(count(model.eval(), x), each, times[name])) for name, model, x in cases for each in found):.0%}"
        for way, found in ways.items()
    ]
    head = HEAD.strip().format(
        cpu=processor(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        python=platform.python_version(),
        seconds=statistics.median(took),
        rounds=ROUNDS,
    )
    RESULTS.write_text("\n".join([head, *lines, "", *means, ""]), encoding="utf8")
    print(RESULTS.read_text(encoding="utf8"))


def row(name: str, report: Any, seconds: list[float], ways: dict[str, list[Calibration]]) -> str:
    """Return a model's row: its times, the range of errors of cold and of hot calibrations, and the error of the bound."""
    columns = []
    for found in ways.values():
        errors = sorted(error(report, each, seconds) for each in found)
        columns.append(f"{errors[0]:+.0%} to {errors[-1]:+.0%}")
    bound = report.predict("cpu", calibration=found[0]).bound_seconds
    middle = statistics.median(seconds)
    return (
        f"| {name} | {1e3 * middle:.2f} | {1e3 * min(seconds):.2f} to {1e3 * max(seconds):.2f} "
        f"| {' | '.join(columns)} | {bound / middle - 1:+.0%} |"
    )


def error(report: Any, calibration: Calibration, seconds: list[float]) -> float:
    predicted: float = report.predict("cpu", calibration=calibration).seconds
    return predicted / statistics.median(seconds) - 1


HEAD = """
# A calibration of the own CPU

`fxflops.calibrate("cpu")` on {cpu}, {threads} threads, torch {torch}, Python {python}; {seconds:.0f} s each (median), other work was on the machine. {rounds}
calibrations with caches emptied before each repetition ("cold", as `calibrate` does) and {rounds} without ("hot"), in turn, and the models timed after
each. Errors are those of `report.predict("cpu", calibration=...)` against the median of all forwards, from the lowest to the highest calibration. Made by
`python -m benchmarks.calibration`.

| model | ms | from one round to another | cold | hot | bound |
|---|---:|---:|---:|---:|---:|
"""


if __name__ == "__main__":
    main()

"""Compare predictions with the card: seconds by ``predict``, bytes by ``reserved``, and the casts of ``count(autocast=)``.

A case is a model from the memory part's list, in inference, in a training step, or in a training step under autocast. Its row has

    predicted    seconds by ``report.predict(card)``, which uses bounds for uncalibrated operations; ``bounds`` is their share
    measured     device seconds of the same calls, measured in full queues
    reserved     bytes by ``report.reserved(card)``; ``recorded`` is ``max_memory_reserved`` after two steps on an empty device
    dtypes       calls whose results have different dtypes in the count and in a run on the device under autocast

The stand-in has no CUDA allocator and no card name: it uses an A100's figures, and the CPU's autocast.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import fxflops
from benchmarks.gpu.bench import Bench, Case, Row, markdown
from benchmarks.gpu.device_time import device_times
from benchmarks.gpu.memory import MODELS, built, emptied, forwards_of, libraries
from benchmarks.memory_truth import INFERENCE, step
from fxflops.roofline.devices import Device, listed

TITLE = "Predictions on a GPU: seconds, reserved memory and autocast"
NEEDS = ("timm", "torchvision", "transformers")
TRAINING, AUTOCAST = "AdamW", "AdamW, autocast bf16"
WAYS = (INFERENCE, TRAINING, AUTOCAST)
ON_STAND_IN = ("nn.MultiheadAttention", "latent attention")


def cases(bench: Bench) -> list[Case]:
    names = ON_STAND_IN if bench.stand_in else [name for name in MODELS if name not in ("nn.LSTM", "nn.GRU")]
    return [Case(f"{name}, {way}", partial(case, bench, name, way), forwards_of(way)) for way in WAYS for name in names]


def case(bench: Bench, name: str, way: str) -> Row:
    """Return the predictions and measurements of one model run in one way, starting from an empty device."""
    if not bench.stand_in:
        libraries()
    emptied(bench)
    dtype = torch.bfloat16 if way == AUTOCAST else None
    training = way != INFERENCE
    torch.manual_seed(0)
    with torch.device("meta"):
        model, args, kwargs = built(bench, name, way)
    more: dict[str, Any] = {"backward": True, "optimizer": torch.optim.AdamW, "mode": "train"} if training else {}
    report = fxflops.count(model, args, kwargs, device="cuda", autocast=dtype, **more)
    card = card_of(bench)
    predicted, memory = report.predict(card), report.reserved(card)

    torch.manual_seed(0)
    model, args, kwargs = built(bench, name, way)
    model, (args, kwargs) = bench.to(model), bench.to((args, kwargs))
    optimizer = torch.optim.AdamW(model.parameters()) if training else None
    region = partial(torch.autocast, bench.device.type, torch.bfloat16, enabled=dtype is not None)

    def run() -> None:
        with region():
            step(model, args, kwargs, optimizer)

    row: Row = {"model": name, "way": way, "card": card.name}
    if hasattr(bench.module, "max_memory_reserved"):
        bench.module.reset_peak_memory_stats(bench.device)
    for _ in range(2):
        run()
        model.zero_grad()
    bench.synchronize()
    if hasattr(bench.module, "max_memory_reserved"):
        row["recorded"] = bench.module.max_memory_reserved(bench.device)
    row |= {"reserved": memory.reserved, "fits": memory.fits, "workspaces": memory.workspaces}
    row |= {"predicted": predicted.seconds, "bound": predicted.bound_seconds, "bounds": predicted.share_of_bounds}
    row["measured"] = device_times(bench, run, repeats=5, seconds=2.0).median
    if dtype is not None:
        row["dtypes"] = other_dtypes(bench, name, dtype)
    return row


def card_of(bench: Bench) -> Device:
    """Return the device's entry in the table of cards; an A100's for the stand-in. Raises LookupError if the card is not listed."""
    name = "A100" if bench.stand_in else torch.cuda.get_device_name(bench.device)
    card = listed(name)
    if card is None:
        raise LookupError(f"the table of cards has no {name!r}: nothing can be predicted for it")
    return card


def other_dtypes(bench: Bench, name: str, dtype: torch.dtype) -> list[str]:
    """Return the operations whose results have different dtypes in a run on the device and in the count for it."""
    model, args, kwargs = built(bench, name, INFERENCE)
    counted = fxflops.count(model, args, kwargs, device=bench.device.type, autocast=dtype)
    model, (args, kwargs) = bench.to(model), bench.to((args, kwargs))
    with torch.no_grad(), torch.autocast(bench.device.type, dtype), fxflops.profile(model) as profiled:
        model(*args, **kwargs)
    ran = profiled.report
    dtypes = [
        {(call.op, call.path, repr(call.out).partition("[")[0]) for call in each.calls} for each in (counted, ran)
    ]
    return sorted(f"{op} in {path or 'the model'}: {kind}" for op, path, kind in dtypes[0] ^ dtypes[1] if op != "to")


def table(rows: list[Row]) -> list[str]:
    head = [
        "model",
        "way",
        "card",
        "predicted (ms)",
        "measured (ms)",
        "ratio",
        "bounds",
        "reserved (MiB)",
        "recorded (MiB)",
    ]
    head += ["ratio", "other dtypes"]
    lines = []
    for row in rows:
        seconds = [1e3 * row["predicted"], 1e3 * row["measured"]]
        recorded = row.get("recorded")
        lines.append(
            [
                row["model"],
                row["way"],
                row["card"],
                *[f"{value:.3f}" for value in seconds],
                f"{seconds[0] / seconds[1]:.2f}",
                f"{row['bounds']:.0%}",
                f"{row['reserved'] / 2**20:.0f}",
                "-" if recorded is None else f"{recorded / 2**20:.0f}",
                "-" if recorded is None else f"{row['reserved'] / recorded:.3f}",
                "-" if "dtypes" not in row else "; ".join(row["dtypes"]) or "none",
            ]
        )
    return markdown(head, lines)

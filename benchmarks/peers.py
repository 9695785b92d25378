"""Other counters, run as their users run them. Each function takes a model and its only input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import nn


class Number(NamedTuple):
    """A tool's number, the tool's name for the unit, and our convention that gives the same number ("~": the nearest one)."""

    value: float
    unit: str
    convention: str


Answer = tuple[list[Number], Iterable[str]]
"""The tool's numbers, and the items that it lists as not counted. Items that it only prints are not included."""


def small_net() -> tuple[nn.Module, torch.Tensor]:
    """Return the net that each tool counts for warm-up. It is not a part of any measured model."""
    parts = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    return nn.Sequential(*parts).eval(), torch.randn(1, 3, 8, 8)


def of_fxflops(model: nn.Module, x: torch.Tensor) -> Answer:
    import fxflops

    report = fxflops.count(model, x)
    return [Number(report.total_flops, "FLOPs", "fxflops")], [missing.op for missing in report.missing]


def of_torch_flops(model: nn.Module, x: torch.Tensor) -> Answer:
    import torch_flops

    if x.device.type != "cuda":  # torch_flops reads CUDA's memory statistics on any device
        for name in ("reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
            setattr(torch.cuda, name, lambda *_: 0)
    counter = torch_flops.TorchFLOPsByFX(model)
    counter.propagate(x)
    counter.print_result_table()
    unknown = [f"{row[1]} {row[2]}" for row in counter.result_table if row[4] == "not_recognized"]
    return [Number(counter.print_total_flops(show=False), "FLOPs", "torch_flops")], unknown


def of_torchanalyse(model: nn.Module, x: torch.Tensor) -> Answer:
    import torchanalyse

    unit = torchanalyse.Unit(unit_flop="MFLOP")
    table = torchanalyse.profiler(model, x, torchanalyse.System(unit), unit)
    return [Number(round(sum(table["Flops (MFLOP)"]) * 1e6), "FLOPs", "~torch")], []


def of_thop(model: nn.Module, x: torch.Tensor) -> Answer:
    import thop

    return [Number(thop.profile(model, (x,), report_missing=True)[0], "MACs", "thop")], []


def of_ptflops(model: nn.Module, x: torch.Tensor) -> Answer:
    import ptflops

    shape = tuple(x.shape[1:])
    macs, _ = ptflops.get_model_complexity_info(
        model, shape, as_strings=False, verbose=True, input_constructor=lambda _: x, ost=sys.stdout
    )
    if macs is None:
        raise RuntimeError("it gave up and returned None")
    return [Number(macs, "MACs", "ptflops")], []


def of_fvcore(model: nn.Module, x: torch.Tensor) -> Answer:
    from fvcore.nn import FlopCountAnalysis

    counter = FlopCountAnalysis(model, x)
    return [Number(counter.total(), "flops", "fvcore")], list(counter.unsupported_ops())


def of_flop_counter_mode(model: nn.Module, x: torch.Tensor) -> Answer:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(x)
    return [Number(counter.get_total_flops(), "FLOPs", "torch")], []


def of_flops_profiler(model: nn.Module, x: torch.Tensor) -> Answer:
    from flops_profiler.profiler import get_model_profile

    flops, macs, _ = get_model_profile(model, args=[x], print_profile=False, detailed=False, warm_up=1)
    return [Number(flops, "flops", "flops_profiler"), Number(macs, "MACs", "flops_profiler_macs")], []


def of_deepspeed(model: nn.Module, x: torch.Tensor) -> Answer:
    from deepspeed.profiling.flops_profiler import get_model_profile

    flops, macs, _ = get_model_profile(model, args=[x], print_profile=False, as_string=False)
    return [Number(flops, "flops", "deepspeed"), Number(macs, "MACs", "deepspeed_macs")], []


def of_calflops(model: nn.Module, x: torch.Tensor) -> Answer:
    from calflops import calculate_flops

    flops, macs, _ = calculate_flops(model, args=[x], print_results=False, output_as_string=False)
    return [Number(flops, "FLOPs", "calflops"), Number(macs, "MACs", "~flops_profiler_macs")], []


def of_torchinfo(model: nn.Module, x: torch.Tensor) -> Answer:
    import torchinfo

    return [Number(torchinfo.summary(model, input_data=x, verbose=0).total_mult_adds, "mult-adds", "torchinfo")], []


def of_torchprofile(model: nn.Module, x: torch.Tensor) -> Answer:
    import torchprofile

    return [Number(torchprofile.profile_macs(model, x), "MACs", "~fvcore")], []


PEERS: dict[str, tuple[str, Callable[[nn.Module, torch.Tensor], Answer]]] = {
    "fxflops": ("fxflops.api", of_fxflops),
    "torch_flops": ("torch_flops", of_torch_flops),
    "torchanalyse": ("torchanalyse", of_torchanalyse),
    "thop": ("thop", of_thop),
    "ptflops": ("ptflops", of_ptflops),
    "fvcore": ("fvcore", of_fvcore),
    "FlopCounterMode": ("torch", of_flop_counter_mode),
    "flops_profiler": ("flops_profiler", of_flops_profiler),
    "deepspeed": ("deepspeed", of_deepspeed),
    "calflops": ("calflops", of_calflops),
    "torchinfo": ("torchinfo", of_torchinfo),
    "torchprofile": ("torchprofile", of_torchprofile),
}
"""By name: the module to import (the package, or the module that loads all of it), and the function that counts."""

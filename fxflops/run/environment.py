"""Describe the environment of a run: device, modes, versions and machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache

import torch
import torch.backends.opt_einsum as optimizer
from torch import nn

from .. import __version__
from ..meters.accelerator import accelerator_of
from ..model.pytree import is_training
from .outcome import Environment


def environment_of(device: torch.device, mode: str, compiled: bool, is_here: bool = True) -> Environment:
    """Return the environment of a run that ends now. ``is_here`` is True if the run used this machine's device."""
    accelerator = accelerator_of(device) if is_here else None
    hardware = "" if not is_here else accelerator.name if accelerator else _cores() if device.type == "cpu" else ""
    place = f"{device} ({hardware})" if hardware else str(device)
    grad = "grad" if torch.is_grad_enabled() else "no_grad"
    strategy = str(optimizer.strategy) if optimizer.is_available() and optimizer.enabled else ""
    return Environment(
        place,
        mode,
        grad,
        torch.__version__,
        strategy,
        compiled,
        __version__,
        _now(),
        _processor(),
        torch.get_num_threads(),
    )


def modes_in(modules: Iterable[nn.Module]) -> str:
    """Return the mode of modules: "train", "eval", or "train and eval" if their modes differ."""
    flags = {*map(is_training, modules)}
    return "train and eval" if len(flags) > 1 else "train" if True in flags else "eval"


def environment_of_trace(device: str) -> Environment:
    """Return the environment of a run that was read from a trace. ``device`` is the device in the trace."""
    return Environment(device, "", "", "", fxflops=__version__, date=_now())


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


@cache
def _processor() -> str:
    """Return the name of the processor, or its architecture if the system does not provide the name."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.machine()


def _cores() -> str:
    """Return the number of cores as text, e.g. "8 cores". Add torch's number of threads if the two numbers differ."""
    cores, threads = os.cpu_count(), torch.get_num_threads()
    return f"{cores} cores" if threads == cores else f"{cores} cores, {threads} thread{'s' * (threads > 1)}"

"""Calibrate a device: fit the numbers of each kernel family to times of operations. The times are measured on the device, for about thirty
operations, or taken from a report."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .api import count
from .errors import InputError
from .meters.accelerator import accelerator_of, waiter
from .prediction.calibration import FORMULAS, Calibration, Family
from .prediction.calls import Kernel, kernels_of
from .prediction.chips import CHIPS
from .prediction.hardware import Card
from .prediction.numbers import STEPS, fitted_numbers
from .report.report import Report
from .roofline.devices import Device, parts_of
from .roofline.measured_peaks import BURST, DTYPES, device_for

SECONDS, LEAST, MOST = 0.1, 5, 200
"""The seconds for which each operation is repeated, and the least and the most repetitions. The first fifth of the repetitions warms up."""
NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "tf32"}
EVICTED = 2**26
"""The bytes to write so that a CPU's caches keep nothing else."""
FEWEST = 3
"""The least number of timed kernels that a family needs to be fitted."""
PARTS = 3
"""The number of parts for cross-validation: each part of a family's kernels is predicted by a fit to the other parts, to measure the error."""
CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHE = 32 * 2**20

Make = Callable[[torch.device, torch.dtype], tuple[nn.Module, tuple[torch.Tensor, ...]]]


class _Applied(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def calibrate(
    source: str | torch.device | Report = "cpu", *, dtypes: Iterable[torch.dtype] | None = None
) -> Calibration:
    """Measure how fast a device's kernels are. The result is for ``report.predict(device, calibration=...)``.

    ``source`` may be a device of this machine ("cpu", "cuda:0"). About thirty operations are then timed on this device, which takes
    seconds. ``source`` may also be a report with times, from :func:`fxflops.analyze`, :func:`fxflops.profile` or
    :func:`fxflops.read_trace`: then the times of its operations are used. ``dtypes`` are the dtypes to measure on a device. The default is
    float32, on a GPU float32 and bfloat16.

    For each family of kernels, the calibration stores the fitted numbers of the family's formula. The calibration also stores the formula's
    mean error on kernels that were not used for a fit. A family with fewer than three measured kernels is left out. The operations of such
    a family are predicted to take exactly the time of their roofline bound. Close other programs before you calibrate, because they slow
    the kernels.

    Raises InputError for a device that is not here, and for a report without times.
    """
    if isinstance(source, Report):
        return _by_report(source)
    return _by_operations(_checked(source), dtypes, OPERATIONS)


def _by_report(report: Report, steps: int = STEPS) -> Calibration:
    """Return the calibration of a report's device, fitted to the times in the report by ``steps`` of Adam."""
    where = report.environment.device
    device, _ = device_for("auto", where, _dtypes_of(report))
    timed = [
        (kernels[0], each.call.seconds)
        for each in report.counted
        if len(kernels := kernels_of(each)) == 1 and each.call.seconds
    ]
    if not timed:
        raise InputError(
            "the report has no times: pass a report from fxflops.analyze(model, args), fxflops.profile() or fxflops.read_trace()"
        )
    return _fitted(device, where, timed, "a report's own times", None, steps)


def _by_operations(
    torch_device: torch.device,
    dtypes: Iterable[torch.dtype] | None,
    operations: Iterable[Make],
    seconds: float = SECONDS,
    least: int = LEAST,
    steps: int = STEPS,
) -> Calibration:
    """Return the calibration of a device, fitted to the times of operations by ``steps`` of Adam.

    Each operation is repeated for ``seconds``, and at least ``least`` times.
    """
    accelerator = accelerator_of(torch_device)
    usual_dtypes = [torch.float32] if accelerator is None else [torch.float32, torch.bfloat16]
    measured_dtypes = usual_dtypes if dtypes is None else [*dtypes]
    where = str(torch_device) if accelerator is None else f"{torch_device} ({accelerator.name})"
    device, _ = device_for("auto", where, [NAMES[each] for each in measured_dtypes])
    clock = partial(_seconds, torch_device=torch_device, seconds=seconds, least=least)
    timed = []
    for dtype in measured_dtypes:
        for make in operations:
            timed += _measured(make, torch_device, dtype, clock)
    host = None if accelerator is None else _host_seconds(torch_device)
    return _fitted(device, where, timed, f"torch {torch.__version__}", host, steps)


def _checked(source: str | torch.device) -> torch.device:
    try:
        torch_device = torch.device(source)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"calibrate() takes a torch device, such as 'cuda:0', or a report with times: {error}"
        ) from None
    if torch_device.type != "cpu" and accelerator_of(torch_device) is None:
        raise InputError(f"calibrate({str(source)!r}): torch finds no such device here")
    return torch_device


def _dtypes_of(report: Report) -> list[str]:
    return sorted({kernel.dtype for each in report.counted for kernel in kernels_of(each)})


def _measured(
    make: Make, torch_device: torch.device, dtype: torch.dtype, clock: Callable[[Callable[[], Any]], float]
) -> list[tuple[Kernel, float]]:
    """Return a list with an operation's kernel and the seconds that a clock measured. The list is empty unless the operation has exactly
    one kernel."""
    with torch.no_grad():
        module, inputs = make(torch_device, dtype)
        report = count(module, inputs)
        kernels = [kernel for each in report.counted for kernel in kernels_of(each)]
        if len(kernels) != 1:
            return []
        return [(kernels[0], clock(lambda: module(*inputs)))]


def _seconds(run: Callable[[], Any], torch_device: torch.device, seconds: float, least: int) -> float:
    """Return the median seconds of one run. On a CPU, other data is first moved through the caches, as a model's other layers would do
    between two calls."""
    is_cpu = accelerator_of(torch_device) is None
    wait, runs_per_reading = waiter(torch_device), BURST["cpu" if is_cpu else "accelerator"]
    evicting = torch.zeros(EVICTED, dtype=torch.uint8) if is_cpu else None
    run()
    wait()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < least or (time.perf_counter() - start < seconds and len(times) < MOST):
        if evicting is not None:
            evicting.add_(1)
        before = time.perf_counter()
        for _ in range(runs_per_reading):
            run()
        wait()
        times.append((time.perf_counter() - before) / runs_per_reading)
    return statistics.median(times[len(times) // 5 :])


def _host_seconds(torch_device: torch.device) -> float:
    """Return the seconds that the host takes to launch a kernel. The kernel is so small that the host never waits for the device."""
    module, x = nn.ReLU(), torch.zeros(1, device=torch_device)
    wait = waiter(torch_device)
    wait()
    before = time.perf_counter()
    for _ in range(MOST):
        module(x)
    return (time.perf_counter() - before) / MOST


def _fitted(
    device: Device, where: str, timed: list[tuple[Kernel, float]], origin: str, host: float | None, steps: int
) -> Calibration:
    multiprocessors, cache = _chip(device, where)
    card = Card(device, multiprocessors, cache)
    groups: dict[tuple[str, str], dict[tuple[float, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for kernel, seconds in timed:
        groups[kernel.family, kernel.dtype][kernel.features].append(seconds)
    families = {}
    for (name, dtype), by_features in groups.items():
        if name not in FORMULAS or len(by_features) < FEWEST:
            continue
        features = torch.tensor([*by_features], dtype=torch.float64, device="cpu")
        medians = [statistics.median(each) for each in by_features.values()]
        times = torch.tensor(medians, dtype=torch.float64, device="cpu")
        families[f"{name} {dtype}"] = _family(name, card, dtype, features, times, origin, steps)
    return Calibration(device.name, multiprocessors, cache, families, host)


def _family(
    name: str, card: Card, dtype: str, features: torch.Tensor, seconds: torch.Tensor, origin: str, steps: int
) -> Family:
    """Return a family with numbers fitted to all kernels. The family's error is measured by cross-validation."""
    formula, rows = FORMULAS[name], torch.arange(len(seconds), device="cpu")
    errors = []
    for part in range(PARTS):
        is_held_out = rows % PARTS == part
        numbers = fitted_numbers(formula, card, dtype, features[~is_held_out], seconds[~is_held_out], steps=steps)
        held_out_fit = Family(numbers, None, 0, 0, 0.0, "", "")
        errors.append((held_out_fit.seconds(name, card, dtype, features[is_held_out]) / seconds[is_held_out] - 1).abs())
    error = torch.cat(errors).mean().item()
    numbers = fitted_numbers(formula, card, dtype, features, seconds, steps=steps)
    return Family(numbers, None, len(rows), len(rows), round(error, 4), origin, "measured on this device")


def _chip(device: Device, where: str) -> tuple[int, int]:
    """Return the number of multiprocessors and the bytes of the largest cache. On a CPU, the number of torch's threads replaces the
    multiprocessors."""
    device_name = parts_of(where)[0]
    if device.name in CHIPS:
        chip = CHIPS[device.name]
        return chip.multiprocessors, int(chip.l2_mebibytes * 2**20)
    if device_name.startswith("cuda") and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(device_name)
        return properties.multi_processor_count, getattr(properties, "L2_cache_size", 0) or USUAL_CACHE
    sizes = [int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]] for text in _cache_sizes()]
    return torch.get_num_threads(), max(sizes, default=USUAL_CACHE)


def _cache_sizes() -> list[str]:
    """Return the sizes of the CPU's caches in the form that Linux lists ("32768K"). On other systems, return an empty list."""
    texts = [file.read_text().strip() for file in CPU_CACHE.glob("index*/size")]
    return [text for text in texts if text[-1:] in ("K", "M")]


def _linear(m: int, n: int, k: int) -> Make:
    return lambda torch_device, dtype: (
        nn.Linear(k, n, bias=False, device=torch_device, dtype=dtype),
        (torch.randn(m, k, device=torch_device, dtype=dtype),),
    )


def _convolution(batch: int, channels: int, out: int, side: int, kernel: int, groups: int = 1) -> Make:
    settings: dict[str, Any] = {"padding": kernel // 2, "groups": groups, "bias": False}
    return lambda torch_device, dtype: (
        nn.Conv2d(channels, out, kernel, **settings, device=torch_device, dtype=dtype),
        (torch.randn(batch, channels, side, side, device=torch_device, dtype=dtype),),
    )


def _applied(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Make:
    return lambda torch_device, dtype: (
        _Applied(function),
        tuple(torch.randn(shape, device=torch_device, dtype=dtype) for shape in shapes),
    )


OPERATIONS: tuple[Make, ...] = (
    _linear(16, 1024, 1024),
    _linear(128, 512, 512),
    _linear(512, 1024, 256),
    _linear(256, 768, 3072),
    _linear(1024, 1024, 1024),
    _applied(torch.matmul, (8, 128, 64), (8, 64, 128)),
    _applied(torch.matmul, (32, 256, 64), (32, 64, 256)),
    _applied(torch.matmul, (16, 256, 256), (16, 256, 64)),
    _applied(F.scaled_dot_product_attention, *[(1, 8, 128, 64)] * 3),
    _applied(F.scaled_dot_product_attention, *[(2, 12, 512, 64)] * 3),
    _applied(F.scaled_dot_product_attention, *[(4, 8, 256, 32)] * 3),
    _applied(torch.add, (2**14,), (2**14,)),
    _applied(torch.add, (2**18,), (2**18,)),
    _applied(torch.add, (2**22,), (2**22,)),
    _applied(F.relu, (2**20,)),
    _applied(F.gelu, (2**20,)),
    _applied(lambda x: F.layer_norm(x, x.shape[-1:]), (128, 768)),
    _applied(lambda x: F.layer_norm(x, x.shape[-1:]), (1024, 1024)),
    _applied(lambda x: F.layer_norm(x, x.shape[-1:]), (4096, 256)),
    _applied(lambda x: F.softmax(x, -1), (128, 512)),
    _applied(lambda x: F.softmax(x, -1), (2048, 1024)),
    _applied(lambda x: F.softmax(x, -1), (4096, 128)),
    _convolution(1, 64, 64, 56, 3),
    _convolution(4, 256, 128, 14, 1),
    _convolution(2, 128, 256, 28, 3),
    _convolution(2, 3, 64, 112, 7),
    _convolution(1, 64, 64, 56, 3, 64),
    _convolution(4, 256, 256, 14, 3, 256),
    _convolution(2, 96, 96, 56, 7, 96),
)
"""The operations to time: at least three from each family of kernels, from small to large."""

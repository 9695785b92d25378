"""Calibrate a device: measure some thirty operations on it, or take a report's timed operations, and fit each family's numbers to them."""

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
"""How long each operation is repeated, and the least and most repetitions; the first fifth of them warms up."""
NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "tf32"}
EVICTED = 2**26
"""Bytes to write to evict everything else from a CPU's caches."""
FEWEST = 3
"""Least number of timed kernels that a family needs."""
PARTS = 3
"""Parts of cross-validation: each part of a family's kernels is predicted by a fit to the others, which gives the error."""
CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL_CACHE = 32 * 2**20

Make = Callable[[torch.device, torch.dtype], tuple[nn.Module, tuple[torch.Tensor, ...]]]


class _Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def calibrate(
    source: str | torch.device | Report = "cpu", *, dtypes: Iterable[torch.dtype] | None = None
) -> Calibration:
    """Return how fast a device's kernels are, for ``report.predict(device, calibration=...)``.

    ``source`` is a device of this machine ("cpu", "cuda:0"), on which some thirty operations are timed, taking seconds; or a timed
    report from :func:`fxflops.analyze`, :func:`fxflops.profile` or :func:`fxflops.read_trace`, whose operations are used. ``dtypes`` are
    the dtypes to measure: by default float32, and on a GPU bfloat16 too.

    Each family of kernels gets the numbers of its formula, and the mean error on kernels held out of a fit. Families with fewer than
    three kernels get none: their operations are predicted to take their bound. Calibrate an idle machine: other work slows the kernels.

    Raises InputError for a device that is not here, and for a report without times.
    """
    if isinstance(source, Report):
        return _by_report(source)
    return _by_operations(_checked(source), dtypes, OPERATIONS)


def _by_report(report: Report, steps: int = STEPS) -> Calibration:
    """Return the calibration of a report's device by the times in it, fitted by ``steps``."""
    place = report.environment.device
    device, _ = device_for("auto", place, _dtypes_of(report))
    timed = [
        (kernels[0], each.call.seconds)
        for each in report.counted
        if len(kernels := kernels_of(each)) == 1 and each.call.seconds
    ]
    if not timed:
        raise InputError(
            "the report has no times: fxflops.analyze(model, args), fxflops.profile() and read_trace() have them"
        )
    return _fitted(device, place, timed, "a report's own times", None, steps)


def _by_operations(
    place: torch.device,
    dtypes: Iterable[torch.dtype] | None,
    operations: Iterable[Make],
    seconds: float = SECONDS,
    least: int = LEAST,
    steps: int = STEPS,
) -> Calibration:
    """Return the calibration of a device by the times of operations, fitted by ``steps``.

    Each operation is repeated for ``seconds``, and at least ``least`` times.
    """
    accelerator = accelerator_of(place)
    wanted = [*dtypes] if dtypes is not None else [torch.float32, *([] if accelerator is None else [torch.bfloat16])]
    where = str(place) if accelerator is None else f"{place} ({accelerator.name})"
    device, _ = device_for("auto", where, [NAMES[each] for each in wanted])
    clock = partial(_seconds, place=place, seconds=seconds, least=least)
    timed = [row for dtype in wanted for make in operations for row in _measured(make, place, dtype, clock)]
    host = None if accelerator is None else _host_seconds(place)
    return _fitted(device, where, timed, f"torch {torch.__version__}", host, steps)


def _checked(source: str | torch.device) -> torch.device:
    try:
        place = torch.device(source)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"calibrate() takes a torch device, such as 'cuda:0', or a timed report: {error}") from None
    if place.type != "cpu" and accelerator_of(place) is None:
        raise InputError(f"calibrate({str(source)!r}): torch has no such device here")
    return place


def _dtypes_of(report: Report) -> list[str]:
    return sorted({kernel.dtype for each in report.counted for kernel in kernels_of(each)})


def _measured(
    make: Make, place: torch.device, dtype: torch.dtype, clock: Callable[[Callable[[], Any]], float]
) -> list[tuple[Kernel, float]]:
    """Return the kernel of an operation with its seconds by a clock; empty unless it has exactly one kernel."""
    with torch.no_grad():
        module, inputs = make(place, dtype)
        report = count(module, inputs)
        kernels = [kernel for each in report.counted for kernel in kernels_of(each)]
        if len(kernels) != 1:
            return []
        return [(kernels[0], clock(lambda: module(*inputs)))]


def _seconds(run: Callable[[], Any], place: torch.device, seconds: float, least: int) -> float:
    """Return the median seconds of one run. On a CPU its tensors are evicted from the caches first: a model's seldom all fit there."""
    is_cpu = accelerator_of(place) is None
    wait, together = waiter(place), BURST["cpu" if is_cpu else "accelerator"]
    others = torch.zeros(EVICTED, dtype=torch.uint8) if is_cpu else None
    run()
    wait()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < least or (time.perf_counter() - start < seconds and len(times) < MOST):
        if others is not None:
            others.add_(1)
        before = time.perf_counter()
        for _ in range(together):
            run()
        wait()
        times.append((time.perf_counter() - before) / together)
    return statistics.median(times[len(times) // 5 :])


def _host_seconds(place: torch.device) -> float:
    """Return the seconds that the host takes to launch a small module, while the device keeps up."""
    module, x = nn.ReLU(), torch.zeros(1, device=place)
    wait = waiter(place)
    wait()
    before = time.perf_counter()
    for _ in range(MOST):
        module(x)
    return (time.perf_counter() - before) / MOST


def _fitted(
    device: Device, where: str, timed: list[tuple[Kernel, float]], kernels: str, host: float | None, steps: int
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
        families[f"{name} {dtype}"] = _family(name, card, dtype, features, times, kernels, steps)
    return Calibration(device.name, multiprocessors, cache, families, host)


def _family(
    name: str, card: Card, dtype: str, features: torch.Tensor, seconds: torch.Tensor, kernels: str, steps: int
) -> Family:
    """Return a family with numbers fitted to all rows; its error is cross-validated, part by part."""
    formula, rows = FORMULAS[name], torch.arange(len(seconds), device="cpu")
    errors = []
    for part in range(PARTS):
        out = rows % PARTS == part
        numbers = fitted_numbers(formula, card, dtype, features[~out], seconds[~out], steps=steps)
        left = Family(numbers, None, 0, 0, 0.0, "", "")
        errors.append((left.seconds(name, card, dtype, features[out]) / seconds[out] - 1).abs())
    error = torch.cat(errors).mean().item()
    numbers = fitted_numbers(formula, card, dtype, features, seconds, steps=steps)
    return Family(numbers, None, len(rows), len(rows), round(error, 4), kernels, "measured on this device")


def _chip(device: Device, where: str) -> tuple[int, int]:
    """Return the multiprocessors and the bytes of the largest cache; for a CPU, the number of threads that torch uses."""
    place = parts_of(where)[0]
    if device.name in CHIPS:
        chip = CHIPS[device.name]
        return chip.multiprocessors, int(chip.l2_mebibytes * 2**20)
    if place.startswith("cuda") and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(place)
        return properties.multi_processor_count, getattr(properties, "L2_cache_size", 0) or USUAL_CACHE
    sizes = [int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]] for text in _cache_sizes()]
    return torch.get_num_threads(), max(sizes, default=USUAL_CACHE)


def _cache_sizes() -> list[str]:
    """Return the sizes of the CPU's caches as Linux lists them ("32768K"); empty elsewhere."""
    texts = [file.read_text().strip() for file in CPU_CACHE.glob("index*/size")]
    return [text for text in texts if text[-1:] in ("K", "M")]


def _linear(m: int, n: int, k: int) -> Make:
    return lambda place, dtype: (
        nn.Linear(k, n, bias=False, device=place, dtype=dtype),
        (torch.randn(m, k, device=place, dtype=dtype),),
    )


def _convolution(batch: int, channels: int, out: int, side: int, kernel: int, groups: int = 1) -> Make:
    settings: dict[str, Any] = {"padding": kernel // 2, "groups": groups, "bias": False}
    return lambda place, dtype: (
        nn.Conv2d(channels, out, kernel, **settings, device=place, dtype=dtype),
        (torch.randn(batch, channels, side, side, device=place, dtype=dtype),),
    )


def _applied(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Make:
    return lambda place, dtype: (
        _Applied(function),
        tuple(torch.randn(shape, device=place, dtype=dtype) for shape in shapes),
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
"""The operations to measure: at least three of each family, from small to large."""

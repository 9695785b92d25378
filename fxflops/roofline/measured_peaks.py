"""The ceilings of a device in no table: measured, once per process. And which device a run was made on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from ..errors import InputError
from .devices import Device, find_device, listed

SECONDS_PER_SIZE = 0.03
GEMM_SIZES = tuple(n for k in range(7, 14) for n in (2**k, 3 * 2 ** (k - 1)))
ALWAYS = 384
SECONDS_CAP, STEADY, ALIKE = 1.5, 4, 0.95
"""A peak is believed when so many measurements, of several sizes, come so near to the best; the search ends after so long."""
FOOTPRINTS = {"cpu": tuple(2**k for k in range(18, 29, 2)), "cuda": (2**30,)}
TIMES = 4
BURST = {"cpu": 1, "cuda": 20}
"""How many operations are timed together: a GPU takes the next one while the last one runs."""

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Peak(NamedTuple):
    """FLOP/s, and whether they were measured again and again."""

    flops_per_second: float
    is_believed: bool


_PEAKS: dict[tuple[str, int, str], Peak] = {}
"""What has been measured in this process, by device, threads and dtype."""


class TF32(NamedTuple):
    """Whether torch's settings allow f32 operations to be computed in TF32: products of matrices, cuDNN's operations."""

    matmul: bool
    cudnn: bool


def tf32_allowed() -> TF32:
    """What torch.backends says now. PyTorch allows it by default for convolutions, not for products of matrices."""
    backends: Any = torch.backends
    if hasattr(backends.cudnn, "conv"):  # since torch 2.9, where the older attributes raise if the newer ones were set
        return TF32(backends.cuda.matmul.fp32_precision == "tf32", backends.cudnn.conv.fp32_precision == "tf32")
    return TF32(backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32)


def device_for(wanted: str | Device, place: str, dtypes: Iterable[str] = ("f32",)) -> tuple[Device, bool]:
    """A device by name, and whether a run made at ``place`` was made on it.

    ``place`` is an Environment's device: ``"cuda:0 (NVIDIA H100 80GB HBM3)"``. "auto" is the one there; where no table
    lists it, its ceilings are measured for ``dtypes``. A Device of one's own is the one there if it is called as
    torch.cuda.get_device_name says ("cpu" for the CPU). InputError where a device is not known, nor at hand.
    """
    where, _, described = place.partition(" (")
    hardware = described.removesuffix(")") if where.startswith("cuda") else where
    if isinstance(wanted, Device):
        return wanted, wanted.is_called(hardware)
    if wanted == "auto":
        return listed(hardware) or _at_hand(where, hardware, dtypes), True
    if wanted.lower() == "cpu":
        return measured("cpu", dtypes), where == "cpu"
    device = find_device(wanted)
    return device, device.is_called(hardware)


def _at_hand(where: str, hardware: str, dtypes: Iterable[str]) -> Device:
    if where == "cpu":
        return measured("cpu", dtypes)
    if where.startswith("cuda") and torch.cuda.is_available() and torch.cuda.get_device_name(where) == hardware:
        return measured(where, dtypes)
    raise InputError(
        f'the run was made on {hardware or where}, which cannot be measured here: name a device, roofline("H100"), '
        f"or give a fxflops.roofline.devices.Device"
    )


def measured(where: str, dtypes: Iterable[str] = ("f32",)) -> Device:
    """The ceilings of the device at hand: FLOP/s of the fastest of square GEMMs, bytes/s of sums and copies of vectors.

    f32 is always among the ``dtypes``. Measured once per process and number of threads; takes about 0.5 s for each dtype (up to
    2 s on a busy machine) and 0.5 s for the bandwidths. On a GPU, f32 is what torch's settings make of it.
    """
    threads, kind = torch.get_num_threads(), _kind(where)
    known = [dtype for dtype in dict.fromkeys(["f32", *dtypes]) if dtype in DTYPES]
    sizes = FOOTPRINTS[kind]
    slower_first = accumulate((_bandwidth(where, threads, size) for size in reversed(sizes)), max)
    speeds = list(zip(sizes, reversed(list(slower_first)), strict=True))
    peaks = {dtype: _gemm(where, threads, dtype) for dtype in known}
    busy = "" if all(peak.is_believed for peak in peaks.values()) else ", not twice alike: the machine is busy"
    return Device(
        torch.cuda.get_device_name(where) if kind == "cuda" else where,
        {dtype: peak.flops_per_second for dtype, peak in peaks.items()},
        speeds[-1][1],
        _launch(where, threads),
        "measured by GEMMs and copies" + (f" in {threads} thread{'s' * (threads > 1)}" if kind == "cpu" else "") + busy,
        caches=tuple(speeds[:-1]),
        measured=True,
    )


def _gemm(where: str, threads: int, dtype: str) -> Peak:
    """The peak of GEMMs n x n x n, of all n that take little time (bf16 is slow on many CPUs), measured until it is believed.

    Other work on a machine only slows it: threads that wait for one that has no core take 100 times as long. Then it is not
    believed, and measured again when it is asked for next.
    """
    best, is_believed = _PEAKS.get((where, threads, dtype), Peak(0.0, False))
    speeds: list[tuple[float, int]] = []
    end = time.perf_counter() + SECONDS_CAP
    while not is_believed and time.perf_counter() < end:
        seconds, last = 0.0, 1
        for n in GEMM_SIZES:
            if n > ALWAYS and seconds * (n / last) ** 3 > SECONDS_PER_SIZE:
                break
            a, b, out = (torch.ones(n, n, dtype=DTYPES[dtype], device=where) for _ in range(3))
            seconds, last = _fastest(where, partial(torch.mm, a, b, out=out)), n
            speeds.append((2 * n**3 / seconds, n))
        best = max(best, max(speeds)[0])
        alike = [n for speed, n in speeds if speed > ALIKE * best]
        is_believed = len(alike) >= STEADY and len({*alike}) > 1
    _PEAKS[where, threads, dtype] = found = Peak(best, is_believed)
    return found


@cache
def _bandwidth(where: str, threads: int, footprint: int) -> float:
    """Bytes/s, read and written, of the faster of a sum and a copy that touch so many bytes."""
    vectors = torch.ones(footprint // 4, dtype=torch.float32, device=where)
    a, b, c = vectors[: footprint // 12 * 3].chunk(3)
    x, y = vectors.chunk(2)
    return footprint / min(_fastest(where, partial(torch.add, a, b, out=c)), _fastest(where, partial(x.copy_, y)))


@cache
def _launch(where: str, threads: int) -> float:
    """Seconds of the smallest operation there is."""
    x = torch.ones(1, dtype=torch.float32, device=where)
    return _fastest(where, partial(torch.neg, x, out=x), 500)


def _fastest(where: str, run: Callable[[], object], times: int = TIMES) -> float:
    """Seconds of the fastest of several runs; the first one is slow, and not of them."""
    burst = BURST[_kind(where)]
    synchronize: Callable[[], object] = (
        partial(torch.cuda.synchronize, where) if _kind(where) == "cuda" else lambda: None
    )
    seconds = []
    with torch.no_grad():
        for _ in range(times + 1):
            synchronize()
            start = time.perf_counter()
            for _ in range(burst):
                run()
            synchronize()
            seconds.append((time.perf_counter() - start) / burst)
    return min(seconds[1:])


def _kind(where: str) -> str:
    return where.partition(":")[0]

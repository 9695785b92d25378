"""Choose the device for a run, and measure the ceilings of unlisted devices, once per process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ..errors import InputError
from ..meters.accelerator import accelerator_of, waiter
from ..meters.full_queue import FullQueue
from .devices import Device, find_device, listed, parts_of

SECONDS_PER_SIZE = 0.03
SIDE = 16
"""The height and width in pixels of the measured convolutions."""
GEMM_SIZES = tuple(n for k in range(7, 14) for n in (2**k, 3 * 2 ** (k - 1)))
ALWAYS = 384
"""Matrices up to this size are always timed. Larger ones are timed only if a product takes at most :data:`SECONDS_PER_SIZE`."""
SECONDS_CAP, STEADY, NEAR = 1.5, 4, 0.95
"""A peak is reproducible if 4 measurements with several sizes reach 95% of the best measurement. The search ends after 1.5 s."""
FOOTPRINTS = {"cpu": tuple(2**k for k in range(18, 29, 2)), "accelerator": (2**30,)}
"""Bytes that the bandwidth measurements read and write. On a CPU, they range from cache sizes to a size that fits only in memory."""
REPEATS = 4
BURST = {"cpu": 1, "accelerator": 20}
"""How many operations are timed together. On an accelerator, each operation is queued while the operation before it runs."""

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
}  # fmt: skip
KERNELS = 20
"""The number of kernels that are timed together to measure the least time per kernel."""


class Peak(NamedTuple):
    """A measured peak in FLOP/s. ``is_reproducible`` is True if several measurements came close to the peak."""

    flops_per_second: float
    is_reproducible: bool


_PEAKS: dict[tuple[str, int, str], Peak] = {}
"""The cache of peaks measured in this process, by device, threads and dtype."""
_TRIED_AT: dict[tuple[str, int, str], float] = {}
"""When these peaks were last measured, by the monotonic clock."""
RETRY_AFTER = 60.0
"""The seconds after which a peak that is not reproducible is measured again: a busy machine is usually still busy a moment later."""


class TF32(NamedTuple):
    """torch's settings for TF32: whether matrix products, and cuDNN's operations, may compute f32 in TF32."""

    matmul: bool
    cudnn: bool


def tf32_allowed() -> TF32:
    """Return torch's current settings. By default PyTorch allows TF32 for convolutions, not for matrix products."""
    backends: Any = torch.backends
    # In torch 2.9 and later, reading allow_tf32 raises an error once fp32_precision has been set.
    if hasattr(backends.cudnn, "conv"):
        return TF32(backends.cuda.matmul.fp32_precision == "tf32", backends.cudnn.conv.fp32_precision == "tf32")
    return TF32(backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32)


@contextmanager
def computed_in_tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in f32 matrix products while a peak is measured."""
    matmul: Any = torch.backends.cuda.matmul
    name: str
    wanted: Any
    try:
        # Set allow_tf32 if it still works. Setting fp32_precision would make allow_tf32 raise an error, and other libraries read allow_tf32.
        name, wanted, before = "allow_tf32", allowed, matmul.allow_tf32
    except RuntimeError:
        name, wanted, before = "fp32_precision", "tf32" if allowed else "ieee", matmul.fp32_precision
    setattr(matmul, name, wanted)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def device_for(wanted: str | Device, place: str, dtypes: Iterable[str] = ("f32",)) -> tuple[Device, bool]:
    """Return the ``wanted`` device, and whether a run at ``place`` ran on it.

    ``place`` is the device of an Environment: ``"cuda:0 (NVIDIA H100 80GB HBM3)"``. "auto" means the device of the run. If this
    device is not listed, its ceilings are measured for ``dtypes``. A Device that the user made is the device of the run if its name is the
    name that torch reports, e.g. by torch.cuda.get_device_name ("cpu" for the CPU).

    Raises InputError for a name that is not listed. The function also raises InputError for "auto" if the device is neither listed nor in
    this machine.
    """
    where, hardware = parts_of(place)
    if isinstance(wanted, Device):
        return wanted, wanted.is_called(hardware)
    if wanted == "auto":
        return listed(hardware) or _at_hand(where, hardware, dtypes), True
    if is_cpu(wanted):
        return measured("cpu", dtypes), where == "cpu"
    device = find_device(wanted)
    return device, device.is_called(hardware)


def is_cpu(wanted: str | Device) -> bool:
    """Return whether the wanted device is the CPU, whose ceilings are measured."""
    return str(wanted).lower() == "cpu"


def _at_hand(where: str, hardware: str, dtypes: Iterable[str]) -> Device:
    if where == "cpu":
        return measured("cpu", dtypes)
    accelerator = accelerator_of(where)
    if accelerator is not None and accelerator.name == hardware:
        return measured(where, dtypes)
    raise InputError(
        f'the report is for {hardware or where}, which cannot be measured here: name a device, as in roofline("H100"), '
        f"or pass a fxflops.roofline.devices.Device"
    )


def measured(where: str, dtypes: Iterable[str] = ("f32",)) -> Device:
    """Measure the peaks and the bandwidth of this machine's device ``where``.

    A peak is the FLOP/s of the fastest square GEMM. On a CPU, it may also be the FLOP/s of a 3 x 3 convolution. The bandwidth is the
    bytes/s of sums and copies of vectors. f32 is always measured. On a GPU, TF32 gets a separate peak if torch's settings allow TF32 for
    any operation. The default settings allow TF32 for convolutions.

    Results are cached for the process, by number of threads. A peak that is not reproducible is measured again after one minute. Measuring
    takes about 0.5 s per dtype (up to 2 s on a busy machine) and 0.5 s for the bandwidths.
    """
    threads, kind, accelerator = torch.get_num_threads(), _kind(where), accelerator_of(where)
    also = ["tf32"] if where.startswith("cuda") and any(tf32_allowed()) else []
    known = [dtype for dtype in dict.fromkeys(["f32", *also, *dtypes]) if dtype in DTYPES]
    sizes = FOOTPRINTS[kind]
    # Smaller footprints cannot have a lower bandwidth than larger footprints. So take the running maximum, starting at the largest footprint.
    slowest_first = accumulate((_bandwidth(where, threads, size) for size in reversed(sizes)), max)
    speeds = list(zip(sizes, reversed(list(slowest_first)), strict=True))
    peaks = {}
    for dtype in known:
        key, now = (where, threads, dtype), time.monotonic()
        was_tried = key in _PEAKS and now - _TRIED_AT.get(key, -RETRY_AFTER) < RETRY_AFTER
        with computed_in_tf32(dtype == "tf32") if kind == "accelerator" else nullcontext():
            peaks[dtype] = _PEAKS[key] if was_tried else _gemm(where, threads, dtype, SECONDS_CAP, _fastest)
        if not was_tried:
            _TRIED_AT[key] = time.monotonic()
    reproducible = all(peak.is_reproducible for peak in peaks.values())
    return Device(
        where if accelerator is None else accelerator.name,
        {dtype: peak.flops_per_second for dtype, peak in peaks.items()},
        speeds[-1][1],
        _launch(where, threads),
        (
            "measured by GEMMs, convolutions and copies" + f" in {threads} thread{'s' * (threads > 1)}"
            if kind == "cpu"
            else "measured by GEMMs and copies"
        )
        + ("" if reproducible else ", not reproducible because the machine is busy"),
        caches=tuple(speeds[:-1]),
        measured=True,
        reproducible=reproducible,
    )


def _gemm(
    where: str, threads: int, dtype: str, seconds_cap: float, fastest: Callable[[str, Callable[[], object]], float]
) -> Peak:
    """Measure the highest FLOP/s of n x n x n GEMMs. Each n is tried for which a GEMM takes little time, since e.g. bf16 is slow on many CPUs.

    On a CPU, also measure 3 x 3 convolutions with n channels. torch computes convolutions with another library than GEMMs; on some CPUs
    this library is twice as fast.

    Measurements repeat until the peak is reproducible. Other work on the machine can only slow measurements down. If threads wait for a
    thread that has no core, a measurement can take up to 100 times as long. A peak that is not reproducible is measured again at the next
    call. ``fastest`` is the clock: it returns the seconds of the fastest of several runs.
    """
    best, is_reproducible = _PEAKS.get((where, threads, dtype), Peak(0.0, False))
    speeds: list[tuple[float, int]] = []
    end = time.perf_counter() + seconds_cap
    while not is_reproducible and time.perf_counter() < end:
        seconds, last = 0.0, 1
        for n in GEMM_SIZES:
            if n > ALWAYS and seconds * (n / last) ** 3 > SECONDS_PER_SIZE:
                break
            a, b, out = (torch.ones(n, n, dtype=DTYPES[dtype], device=where) for _ in range(3))
            seconds, last = fastest(where, partial(torch.mm, a, b, out=out)), n
            speeds.append((2 * n**3 / seconds, n))
            flops = 2 * 9 * n**2 * SIDE**2
            if _kind(where) == "cpu" and seconds * flops / (2 * n**3) <= SECONDS_PER_SIZE:
                x = torch.ones(1, n, SIDE + 2, SIDE + 2, dtype=DTYPES[dtype]).to(memory_format=torch.channels_last)
                weight = torch.ones(n, n, 3, 3, dtype=DTYPES[dtype]).to(memory_format=torch.channels_last)
                speeds.append((flops / fastest(where, partial(F.conv2d, x, weight)), n))
        best = max(best, max(speeds)[0])
        near_best = [n for speed, n in speeds if speed > NEAR * best]
        is_reproducible = len(near_best) >= STEADY and len({*near_best}) > 1
    _PEAKS[where, threads, dtype] = found = Peak(best, is_reproducible)
    return found


def distrust_peaks() -> None:
    """Measure all peaks again at the next call. Called after a run exceeded a peak, so other work must have slowed the measurements."""
    _PEAKS.update({key: peak._replace(is_reproducible=False) for key, peak in _PEAKS.items()})
    _TRIED_AT.clear()


@cache
def _bandwidth(where: str, threads: int, footprint: int) -> float:
    """Measure the bytes/s (reads plus writes) of a sum and of a copy. Each moves ``footprint`` bytes. Return the higher speed."""
    vectors = torch.ones(footprint // 4, dtype=torch.float32, device=where)
    a, b, c = vectors[: footprint // 12 * 3].chunk(3)
    x, y = vectors.chunk(2)
    return footprint / min(_fastest(where, partial(torch.add, a, b, out=c)), _fastest(where, partial(x.copy_, y)))


@cache
def _launch(where: str, threads: int) -> float:
    """Measure the seconds of the smallest possible operation. On an accelerator, exclude the time in which the device waits for the host."""
    x = torch.ones(1, dtype=torch.float32, device=where)
    run, accelerator = partial(torch.neg, x, out=x), accelerator_of(where)
    by_host, queue = _fastest(where, run, 500), FullQueue.of(accelerator)
    return by_host if queue is None else min(by_host, *(_on_device(queue, run, by_host) for _ in range(REPEATS)))


def _on_device(queue: FullQueue, run: Callable[[], object], host_seconds: float) -> float:
    """Return the device's seconds per kernel. Several kernels are timed, and all of them are queued before the first starts."""
    accelerator = queue.accelerator
    start, end = accelerator.event(), accelerator.event()
    # Right after the queue was empty, the host takes longer to start kernels. So keep the device waiting for twice the host's usual time.
    queue.hold(2 * KERNELS * host_seconds)
    accelerator.record(start)
    with torch.no_grad():
        for _ in range(KERNELS):
            run()
    accelerator.record(end)
    accelerator.synchronize()
    return queue.seconds_between(start, end) / KERNELS


def _fastest(where: str, run: Callable[[], object], times: int = REPEATS) -> float:
    """Return the seconds of the fastest of several runs, after a warm-up run."""
    burst, wait = BURST[_kind(where)], waiter(where)
    seconds = []
    with torch.no_grad():
        for _ in range(times + 1):
            wait()
            start = time.perf_counter()
            for _ in range(burst):
                run()
            wait()
            seconds.append((time.perf_counter() - start) / burst)
    return min(seconds[1:])


def _kind(where: str) -> str:
    return "cpu" if accelerator_of(where) is None else "accelerator"

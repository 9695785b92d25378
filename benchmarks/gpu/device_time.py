"""The device's time of a call, without the host's, and calls whose data is not in the device's cache.

An event pair around an eager call also measures how long the device waits for the host to launch the next kernel. Here the
device is kept busy (``torch.cuda._sleep``) until the host has queued all calls of a sample, so that it runs them one
right after the other. A sample during which the device had to wait is discarded.

The stand-in has no queue; there the host's clock takes the time of each call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.bench import Bench

SAMPLE_SECONDS, MOST_CALLS = 2e-3, 64
"""A sample is as many calls as take 2 ms from an idle device to an idle device, and 64 at most: CUDA queues about 1,000
kernels, then the host has to wait."""
FEWEST_SAMPLES = 3
CYCLES_PER_SECOND = 2e9
"""At least the clock of current GPUs, in which ``torch.cuda._sleep`` counts. A slower clock only sleeps longer."""
ROTATED_BYTES, MOST_COPIES = 200_000_000, 32
"""Four times the L2 cache of an H100 or H200 (50 MB): data that was used so long ago is in the cache no more. With 32
copies that holds for calls from 6 MB; the memory of smaller ones takes less time than a launch, wherever it is."""


class DeviceTimes(NamedTuple):
    """``seconds`` has the device's time of one call, for each sample; ``calls`` is the number of calls in a sample.

    ``is_full`` is False if the device had to wait for the host, as it does in a call that synchronizes: then the times are
    an upper bound.
    """

    seconds: list[float]
    calls: int
    is_full: bool

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """The range of the times, without the fastest and the slowest tenth, as a share of their median."""
        ordered, cut = sorted(self.seconds), len(self.seconds) // 10
        return (ordered[-1 - cut] - ordered[cut]) / self.median


def device_seconds(bench: Bench, run: Callable[[], Any], repeats: int = 20) -> list[float]:
    """Return the device's time of a call in seconds, once for each sample; the device does not wait for the host meanwhile."""
    return device_times(bench, run, repeats).seconds


def device_times(bench: Bench, run: Callable[[], Any], repeats: int = 20, seconds: float = float("inf")) -> DeviceTimes:
    """Time calls of ``run`` on the device: ``repeats`` samples, or as many as fit into ``seconds``, but three at least.

    The calls before the samples warm up. With the stand-in a sample is one call.
    """
    end = time.perf_counter() + seconds
    run()
    bench.synchronize()
    if bench.stand_in:
        return DeviceTimes([bench.seconds(run) for _ in range(min(repeats, FEWEST_SAMPLES))], 1, True)
    start = time.perf_counter()
    run()
    queueing = time.perf_counter() - start
    bench.synchronize()
    calls = max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / (time.perf_counter() - start))))

    samples: list[float] = []
    waited: list[float] = []
    asleep = 1.5 * queueing * calls + 2e-4
    while len(samples) < repeats:
        sample, is_full = _sample(bench, run, calls, asleep)
        if is_full:
            samples.append(sample)
        else:
            waited.append(sample)
            asleep *= 2
            if len(waited) >= FEWEST_SAMPLES and not samples:
                return DeviceTimes(waited, calls, False)  # it waits however long the device sleeps
        if len(samples) >= FEWEST_SAMPLES and time.perf_counter() > end:
            break
        if len(waited) > repeats:
            break
    return DeviceTimes(samples, calls, True)


def _sample(bench: Bench, run: Callable[[], Any], calls: int, asleep: float) -> tuple[float, bool]:
    """Return the seconds of one of the calls, and True if all were queued before the first began."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(int(asleep * CYCLES_PER_SECOND))
    first.record()
    for _ in range(calls):
        run()
    last.record()
    is_full = not first.query()
    bench.synchronize()
    return first.elapsed_time(last) / 1000 / calls, is_full


def captured(bench: Bench, run: Callable[[], Any], calls: int) -> Callable[[], Any]:
    """Return a function that replays a CUDA graph of so many calls: the device's own order, with the least time between kernels.

    The stand-in has no graphs; there the function makes the calls.
    """

    def all_calls() -> None:
        for _ in range(calls):
            run()

    if bench.stand_in:
        return all_calls
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # libraries set themselves up in the first call, which a capture does not allow
    torch.cuda.current_stream().wait_stream(side)
    bench.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_calls()
    return graph.replay


def rotated(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> Callable[[], Any]:
    """Return a function of no arguments that calls ``function`` with the next of several sets of inputs.

    Inputs and results come from so many buffers that the cache holds none of them when it is used again
    (:data:`ROTATED_BYTES`). ``make`` makes a set of inputs.
    """
    first = make()
    result = function(*first)
    # A view, and an output that was written in place, share the storage of an input.
    sizes = {}
    for tensor in tree_leaves((first, result)):
        if isinstance(tensor, torch.Tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    copies = max(1, min(MOST_COPIES, -(-ROTATED_BYTES // max(1, sum(sizes.values())))))
    inputs = [first, *(make() for _ in range(copies - 1))]
    # All results exist from the beginning: a call that needs more memory from the driver waits for the device.
    results: list[Any] = [result, *(function(*each) for each in inputs[1:])]
    position = 0

    def next_call() -> Any:
        nonlocal position
        position = (position + 1) % copies
        # Freed first: its memory is for the new result, so the results rotate as the inputs do.
        results[position] = None
        results[position] = function(*inputs[position])
        return results[position]

    return next_call

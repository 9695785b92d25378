"""Measure the device time of a call without host overhead, and make calls whose data is not in the device's cache.

A pair of events around an eager call also measures how long the device waits for the host to launch the next kernel. Here the
device is kept busy (``torch.cuda._sleep``) until the host has queued all calls of a sample, so that it runs them back to back.
A sample in which the device had to wait is discarded.

The stand-in has no queue: there, each call is timed by the host's clock.
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
"""A sample has as many calls as fit into 2 ms (timed from idle device to idle device), but at most 64: CUDA queues about 1,000
kernels, then the host has to wait."""
FEWEST_SAMPLES = 3
CYCLES_PER_SECOND = 2e9
"""``torch.cuda._sleep`` counts clock cycles. This is at least the clock rate of current GPUs; a slower clock only sleeps longer."""
ROTATED_BYTES, MOST_COPIES = 200_000_000, 32
"""Four times the L2 cache of an H100 or H200 (50 MB), so the cache has evicted data by the time it is used again. With at most 32
copies, that works for calls that touch 6 MB or more. Smaller calls spend less time on memory than on a launch in any case."""


class DeviceTimes(NamedTuple):
    """``seconds`` has the device time of one call, for each sample; ``calls`` is the number of calls in a sample.

    ``is_full`` is False if the device had to wait for the host, e.g. because the call synchronizes. The times are then an upper
    bound.
    """

    seconds: list[float]
    calls: int
    is_full: bool

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """The range of the times without the fastest and slowest tenth, as a share of the median."""
        ordered, cut = sorted(self.seconds), len(self.seconds) // 10
        return (ordered[-1 - cut] - ordered[cut]) / self.median


def device_seconds(bench: Bench, run: Callable[[], Any], repeats: int = 20) -> list[float]:
    """Return the device time of a call in seconds, for each sample, without waits for the host."""
    return device_times(bench, run, repeats).seconds


def device_times(bench: Bench, run: Callable[[], Any], repeats: int = 20, seconds: float = float("inf")) -> DeviceTimes:
    """Time calls of ``run`` on the device: ``repeats`` samples, or as many as fit into ``seconds``, but at least three.

    Two warm-up calls come first. With the stand-in, there is one warm-up call, and a sample is one call.
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
                return DeviceTimes(waited, calls, False)  # the device waits no matter how long it sleeps first
        if len(samples) >= FEWEST_SAMPLES and time.perf_counter() > end:
            break
        if len(waited) > repeats:
            break
    return DeviceTimes(samples, calls, True)


def _sample(bench: Bench, run: Callable[[], Any], calls: int, asleep: float) -> tuple[float, bool]:
    """Return the seconds per call, and whether all calls were queued before the first one began."""
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
    """Return a function that replays a CUDA graph of ``calls`` calls, with the shortest possible gaps between kernels.

    The stand-in has no graphs: there, the function makes the calls directly.
    """

    def all_calls() -> None:
        for _ in range(calls):
            run()

    if bench.stand_in:
        return all_calls
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # libraries initialize in the first call, which a capture does not allow
    torch.cuda.current_stream().wait_stream(side)
    bench.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_calls()
    return graph.replay


def rotated(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> Callable[[], Any]:
    """Return a function without arguments that calls ``function`` with the next of several sets of inputs.

    ``make`` makes a set of inputs. There are so many sets that the cache no longer holds a set, or its result, when it is used
    again (:data:`ROTATED_BYTES`).
    """
    first = make()
    result = function(*first)
    # Count each storage once: a view, or an output written in place, shares the storage of an input.
    sizes = {}
    for tensor in tree_leaves((first, result)):
        if isinstance(tensor, torch.Tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    copies = max(1, min(MOST_COPIES, -(-ROTATED_BYTES // max(1, sum(sizes.values())))))
    inputs = [first, *(make() for _ in range(copies - 1))]
    # Allocate all results at the start: a call that needs more memory from the driver would wait for the device.
    results: list[Any] = [result, *(function(*each) for each in inputs[1:])]
    position = 0

    def next_call() -> Any:
        nonlocal position
        position = (position + 1) % copies
        # Free the old result first: the new result takes its memory, so the results rotate as the inputs do.
        results[position] = None
        results[position] = function(*inputs[position])
        return results[position]

    return next_call

"""Compare each call's measured time with the least time that a device needs for it; compute MFU and HFU.

The roofline model (Williams, Waterman, Patterson 2009, https://doi.org/10.1145/1498765.1498785): a call takes at least as
long as its FLOPs take at its dtype's peak, as its bytes take at the bandwidth, and as a kernel takes to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import no_calls, warn
from ..meters.timing import Timing
from ..records import PARTS, PHASES, Counted, per_operation
from .devices import Device
from .measured_peaks import TF32, device_for, distrust_peaks, tf32_allowed
from .result import KINDS, NOTHING, Roofline, Row, too_low
from .traffic import compute_dtype, traffic_of

CUDNN = ("conv", "lstm", "gru", "rnn")


def roofline(
    counted: Sequence[Counted],
    least: Sequence[Counted],
    place: str,
    device: str | Device = "auto",
    phase: str = "forward",
    timing: Timing | None = None,
) -> Roofline:
    """Compare the calls of a phase with the ceilings of a device.

    ``counted`` are the calls with the model's work, for the MFU. ``least`` are the same calls with the least work that a device
    must do, for attention only the pairs that its mask leaves. ``place`` is the device of the run's Environment; ``timing`` is
    the latency of the phase.

    Raises InputError if the run had no such phase.
    """
    each = [call for call in counted if call.call.phase in PARTS[phase]]
    rows = [call for call in least if call.call.phase in PARTS[phase]]
    if not rows:
        raise no_calls(phase)
    found, is_its_own = _device(device, place, rows)
    tf32, took = tf32_allowed(), timing if is_its_own else None
    row_of = per_operation(lambda call: _row(call, found, tf32))
    seconds_of = (call.call.seconds if is_its_own else None for call in rows)
    return Roofline(
        found,
        phase,
        tuple(row_of(call)._replace(path=call.call.path, seconds=s) for call, s in zip(rows, seconds_of, strict=True)),
        None if took is None else took.median,
        None if took is None else _utilization(each, found, took.median),
        sum(call.cost is None for call in rows),
    )


def mfu(
    counted: Sequence[Counted],
    place: str,
    device: str | Device,
    *timings: Timing | None,
    executed: bool = False,
    block: float | None = None,
    asked: bool = False,
) -> float | None:
    """Return the model FLOPs utilization (https://arxiv.org/abs/2204.02311, appendix B).

    It is the time that 2 x MACs of forward and backward need at the peaks of their dtypes, as a share of the time they
    took. ``timings`` are the forward's and the backward's. ``block`` is the seconds of a profiled block, including data
    loading and the optimizer's step; the work is then compared with it. ``executed`` adds the forward work that gradient
    checkpointing recomputes, which gives the hardware FLOPs utilization.

    Return None if a phase ran but was not timed, or ran on another device; with ``asked``, a warning says so. A value above 1
    is returned with a warning. If the peak was measured, it is measured again; if the value still exceeds 1, return None, with
    a warning.
    """
    if block is not None:  # calls without a time were captured into a graph and did not run in the block
        counted = [each for each in counted if each.call.seconds is not None]
    by_phase = [[each for each in counted if each.call.phase in PARTS[phase]] for phase in PHASES[: len(timings)]]
    ran = [timing for made, timing in zip(by_phase, timings, strict=True) if made]
    known = [timing.median for timing in ran if timing is not None]
    work = [each for made in by_phase for each in made]
    if executed:
        work += [each for each in counted if each.call.phase == "recompute"]
    found, is_its_own = _device(device, place, work) if work else (None, False)
    # Every phase that ran must be timed: with only a part of the time, the share would be too large.
    is_timed = block is not None or len(known) == len(ran)
    if found is None or not is_its_own or not is_timed:
        if asked:
            warn(f"no utilization is known: {_unknown(found, place, is_timed)}")
        return None
    share = _utilization(work, found, block or sum(known))
    if share > 1 and found.measured:
        distrust_peaks()
        share = _utilization(work, _device(device, place, work)[0], block or sum(known))
    if share > 1 and found.measured:
        said = f"the peak of {found.name}, measured now, is {1 / share:.0%} of what the run reached: other work slows the machine"
        warn(f"no utilization is known: {said}; name a device, or measure while nothing else runs")
        return None
    if share > 1:
        warn(f"a utilization of {share:.2f}: {too_low(found)}")
    else:
        warn_if_busy(found)
    return share


def _unknown(device: Device | None, place: str, is_timed: bool) -> str:
    """Return the reason why no time on the device is known."""
    if device is None:
        return "no operation was counted"
    if not is_timed:
        return "the run was not timed; use fxflops.analyze(model, args) or fxflops.profile"
    return f"the run was timed on {place}, not on {device.name}; report.roofline(device) has the least time there"


def warn_if_busy(device: Device) -> None:
    """Warn about utilizations if the device's peak was measured while other work slowed it down."""
    if not device.reproducible:
        said = f"the peak of {device.name} may be measured too low, and utilizations too high: the machine is busy"
        warn(f"{said}; name a device, or measure while nothing else runs")


def _utilization(counted: Iterable[Counted], device: Device, latency: float) -> float:
    return seconds_at_peak(counted, device) / latency


def seconds_at_peak(counted: Iterable[Counted], device: Device) -> float:
    """Return the seconds that 2 x MACs need on a device, each call at its dtype's peak."""
    tf32 = tf32_allowed()
    return sum(2 * each.macs / device.peak(_dtype(each, device, tf32)) for each in counted if each.macs)


def _device(device: str | Device, place: str, counted: Sequence[Counted]) -> tuple[Device, bool]:
    """Return the device, measured for the calls' dtypes if necessary, and whether the run was on it."""
    return device_for(device, place, (compute_dtype(each.call) for each in counted if each.flops))


def _row(counted: Counted, device: Device, tf32: TF32) -> Row:
    """Return a row with the device's least times for this call, without path and seconds."""
    traffic = traffic_of(counted)
    dtype, moved = _dtype(counted, device, tf32), sum(traffic)
    work = _work(counted) if moved else 0  # Python computes a call that touches no tensors, not the device
    # Except in matrix products, a narrow dtype may be computed as f32.
    peak = device.peak(dtype) if counted.macs else max(device.peak(dtype), device.peak("f32"))
    compute, memory = work / peak, moved / device.bandwidth_of(moved)
    launch = device.launch if moved else 0.0
    bound = max(compute, memory, launch)
    binds = KINDS[(compute, memory, launch).index(bound)] if bound else NOTHING
    flops = 0 if counted.count.integer else work
    return Row(counted.call.op, "", 1, dtype, flops, *traffic, compute, memory, launch, bound, binds)


def _work(counted: Counted) -> int:
    """Return the operations to divide by the peak: the FLOPs, or 2 x MACs if that is more (quantized and integer
    contractions)."""
    return max(2 * counted.macs, counted.flops)


def _dtype(counted: Counted, device: Device, tf32: TF32) -> str:
    dtype = compute_dtype(counted.call)
    allowed = tf32.cudnn if counted.call.op.startswith(CUDNN) else tf32.matmul
    return "tf32" if dtype == "f32" and counted.macs and allowed and "tf32" in device.peaks else dtype

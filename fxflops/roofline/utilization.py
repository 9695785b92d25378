"""Compare the measured time of each call with the least time that a device needs for the call. Compute MFU and HFU.

By the roofline model (Williams, Waterman, Patterson 2009, https://doi.org/10.1145/1498765.1498785), a call's least time is the
largest of three times: its FLOPs at the dtype's peak, its bytes at the bandwidth, and the time to start a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import no_calls, warn
from ..meters.timing import Timing
from ..records import ALL_PHASES, PARTS, PHASES, RECOMPUTE, Counted, per_operation
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
    """Compare the calls of a phase, or of all phases ("all"), with the ceilings of a device.

    ``counted`` are the calls with the model's work, for the MFU. ``least`` are the same calls, with only the work that a device must do.
    For example, attention covers only the pairs that the mask keeps. ``place`` is the device in the run's Environment. ``timing`` is the
    measured latency of the phase.

    Raises InputError if the run did not have this phase.
    """
    shown = PHASES if phase == ALL_PHASES else PARTS[phase]
    each = [call for call in counted if call.call.phase in shown]
    rows = [call for call in least if call.call.phase in shown]
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

    The MFU is a time divided by the measured time: the time that 2 x MACs of forward and backward need at the peaks of their dtypes.
    ``timings`` are the times of the forward and the backward. With ``block``, the time of a profiled block is used as the measured time.
    The time of a block includes data loading and the optimizer's step. With ``executed``, the forward work that gradient checkpointing
    recomputes is added. The result is then the hardware FLOPs utilization (HFU).

    Return None if a phase ran but was not timed, or if the run was on another device. With ``asked``, also warn in these cases. If the
    result is above 1 and the peak is from a table or from the user, warn and return the result. If the result is above 1 and the peak was
    measured, measure the peak again. If the result is still above 1, warn and return None.
    """
    if block is not None:  # calls without a time were captured into a CUDA graph and did not run in the block
        counted = [each for each in counted if each.call.seconds is not None]
    by_phase = [[each for each in counted if each.call.phase in PARTS[phase]] for phase in PHASES[: len(timings)]]
    ran = [timing for made, timing in zip(by_phase, timings, strict=True) if made]
    known = [timing.median for timing in ran if timing is not None]
    work = [each for made in by_phase for each in made]
    if executed:
        work += [each for each in counted if each.call.phase == RECOMPUTE]
    found, is_its_own = _device(device, place, work) if work else (None, False)
    # Every phase that ran must have a time: without the time of one phase, the utilization would be too high.
    is_timed = block is not None or len(known) == len(ran)
    if found is None or not is_its_own or not is_timed:
        if asked:
            warn(f"the utilization is unknown: {_unknown(found, place, is_timed)}")
        return None
    share = _utilization(work, found, block or sum(known))
    if share > 1 and found.measured:
        distrust_peaks()
        share = _utilization(work, _device(device, place, work)[0], block or sum(known))
    if share > 1 and found.measured:
        said = f"the run was faster than the peak of {found.name}, which was measured at {1 / share:.0%} of the run's speed while other work ran"
        warn(f"the utilization is unknown: {said}; name a device, or measure while nothing else runs")
        return None
    if share > 1:
        warn(f"the utilization is {share:.2f}, above 1: {too_low(found)}")
    else:
        warn_if_busy(found)
    return share


def _unknown(device: Device | None, place: str, is_timed: bool) -> str:
    """Return the reason why the utilization is unknown."""
    if device is None:
        return "no operation was counted"
    if not is_timed:
        return "the run was not timed; use fxflops.analyze(model, args) or fxflops.profile"
    return f"the run was timed on {place}, not on {device.name}; report.roofline(device) gives the least time on {device.name}"


def warn_if_busy(device: Device) -> None:
    """Warn if other work slowed the device while its peak was measured. Utilizations may then be too high."""
    if not device.reproducible:
        said = (
            f"the measured peak of {device.name} may be too low and utilizations too high, because the machine is busy"
        )
        warn(f"{said}; name a device, or measure while nothing else runs")


def _utilization(counted: Iterable[Counted], device: Device, latency: float) -> float:
    return seconds_at_peak(counted, device) / latency


def seconds_at_peak(counted: Iterable[Counted], device: Device) -> float:
    """Return the seconds that a device needs for 2 x MACs, if each call runs at the peak for its dtype."""
    tf32 = tf32_allowed()
    return sum(2 * each.macs / device.peak(_dtype(each, device, tf32)) for each in counted if each.macs)


def _device(device: str | Device, place: str, counted: Sequence[Counted]) -> tuple[Device, bool]:
    """Return the device, and whether the run was on this device. If necessary, measure its peaks for the calls' dtypes."""
    return device_for(device, place, (compute_dtype(each.call) for each in counted if each.flops))


def _row(counted: Counted, device: Device, tf32: TF32) -> Row:
    """Return a row with the least times that the device needs for this call. The caller fills in path and measured seconds."""
    traffic = traffic_of(counted)
    dtype, moved = _dtype(counted, device, tf32), sum(traffic)
    work = _work(counted) if moved else 0  # a call without tensors is computed by Python, not by the device
    # A kernel for a narrow dtype may compute in f32, except for matrix products.
    peak = device.peak(dtype) if counted.macs else max(device.peak(dtype), device.peak("f32"))
    compute, memory = work / peak, moved / device.bandwidth_of(moved)
    launch = device.launch if moved else 0.0
    bound = max(compute, memory, launch)
    binds = KINDS[(compute, memory, launch).index(bound)] if bound else NOTHING
    flops = 0 if counted.count.integer else work
    return Row(counted.call.op, "", 1, dtype, flops, *traffic, compute, memory, launch, bound, binds)


def _work(counted: Counted) -> int:
    """Return the number of operations to divide by the peak. The operations are the FLOPs or, if larger, 2 x MACs, as in quantized and
    integer contractions."""
    return max(2 * counted.macs, counted.flops)


def _dtype(counted: Counted, device: Device, tf32: TF32) -> str:
    dtype = compute_dtype(counted.call)
    allowed = tf32.cudnn if counted.call.op.startswith(CUDNN) else tf32.matmul
    return "tf32" if dtype == "f32" and counted.macs and allowed and "tf32" in device.peaks else dtype

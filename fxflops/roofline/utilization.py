"""Is it good, and what is it bound by? For each call the least time a device needs for it, and what it really took.

The roofline model (Williams, Waterman, Patterson 2009, https://doi.org/10.1145/1498765.1498785): a call takes at least as
long as its FLOPs take at the peak of its dtype, as its bytes take at the bandwidth, and as a kernel takes to start.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from ..errors import InputError
from ..meters.nodes import Timing
from ..records import PARTS, PHASES, Counted, per_operation
from .devices import Device
from .measured_peaks import TF32, device_for, tf32_allowed
from .result import KINDS, NOTHING, Roofline, Row, too_low
from .traffic import compute_dtype, traffic_of

CUDNN = ("conv", "lstm", "gru", "rnn")
BACKWARD_HINT = ": analyze(model, args, backward=True) makes them"


def roofline(
    counted: Sequence[Counted],
    exact: Sequence[Counted],
    dense: Sequence[Counted],
    place: str,
    device: str | Device = "auto",
    phase: str = "forward",
    timing: Timing | None = None,
) -> Roofline:
    """The calls of a phase against the ceilings of a device.

    ``counted`` tells the model's work, for its MFU; ``exact`` and ``dense`` are all operations of the same calls: what a
    mask leaves, where it is known, is the least that attention may compute. The run was made at ``place``, an
    Environment's device, and the phase took as long as ``timing`` says. InputError where it had no such phase.
    """
    least = [other if one.cost is None else one for one, other in zip(exact, dense, strict=True)]
    each = [call for call in counted if call.call.phase in PARTS[phase]]
    rows = [call for call in least if call.call.phase in PARTS[phase]]
    if not rows:
        raise InputError(f"the run made no calls in its {phase}" + (BACKWARD_HINT if phase == "backward" else ""))
    found, is_its_own = _device(device, place, rows)
    tf32, took = tf32_allowed(), timing if is_its_own else None
    row_of = per_operation(lambda call: _row(call, found, tf32))
    return Roofline(
        found,
        phase,
        tuple(
            row_of(each)._replace(path=each.call.path, seconds=each.call.seconds if is_its_own else None)
            for each in rows
        ),
        None if took is None else took.median,
        None if took is None else _utilization(each, found, took.median),
        sum(call.cost is None for call in rows),
    )


def mfu(
    counted: Sequence[Counted], place: str, device: str | Device, *timings: Timing | None, executed: bool = False
) -> float | None:
    """Model FLOPs utilization: what 2 x MACs of forward and backward take at the peaks of their dtypes, of the time they took.

    ``timings`` are of the forward and the backward; None where one that ran was not timed, or not on this device
    (https://arxiv.org/abs/2204.02311, appendix B). It is never cut off at 1: above, a warning says so. With ``executed``
    what the backward pass computes again of the forward is work too: hardware FLOPs utilization.
    """
    by_phase = [[each for each in counted if each.call.phase in PARTS[phase]] for phase in PHASES[: len(timings)]]
    ran = [timing for made, timing in zip(by_phase, timings, strict=True) if made]
    known = [timing.median for timing in ran if timing is not None]
    work = [each for made in by_phase for each in made]
    if executed:
        work += [each for each in counted if each.call.phase == "recompute"]
    found, is_its_own = _device(device, place, work)
    if not is_its_own or len(known) != len(ran) or not ran:
        return None
    share = _utilization(work, found, sum(known))
    if share > 1:
        warnings.warn(f"a utilization of {share:.2f}: {too_low(found)}", stacklevel=3)
    return share


def _utilization(counted: Iterable[Counted], device: Device, latency: float) -> float:
    tf32 = tf32_allowed()
    return sum(2 * each.macs / device.peak(_dtype(each, device, tf32)) for each in counted if each.macs) / latency


def _device(device: str | Device, place: str, counted: Sequence[Counted]) -> tuple[Device, bool]:
    """The device, and whether the run was made on it: its ceilings are none of the run's."""
    return device_for(device, place, (compute_dtype(each.call) for each in counted if each.flops))


def _row(counted: Counted, device: Device, tf32: TF32) -> Row:
    """What the device needs for a call like this, wherever it is made."""
    traffic = traffic_of(counted)
    dtype, moved = _dtype(counted, device, tf32), sum(traffic)
    work = _work(counted) if moved else 0  # what touches no tensor is done by Python
    # Where no matrices are multiplied, narrow dtypes may be computed as f32.
    peak = device.peak(dtype) if counted.macs else max(device.peak(dtype), device.peak("f32"))
    compute, memory = work / peak, moved / device.bandwidth_of(moved)
    launch = device.launch if moved else 0.0
    bound = max(compute, memory, launch)
    binds = KINDS[(compute, memory, launch).index(bound)] if bound else NOTHING
    flops = 0 if counted.count.integer else work
    return Row(counted.call.op, "", 1, dtype, flops, *traffic, compute, memory, launch, bound, binds)


def _work(counted: Counted) -> int:
    """Operations that a device's peak is for: 2 for each MAC, and all others; of integers the MACs' alone."""
    return max(2 * counted.macs, counted.flops)


def _dtype(counted: Counted, device: Device, tf32: TF32) -> str:
    dtype = compute_dtype(counted.call)
    allowed = tf32.cudnn if counted.call.op.startswith(CUDNN) else tf32.matmul
    return "tf32" if dtype == "f32" and counted.macs and allowed and "tf32" in device.peaks else dtype

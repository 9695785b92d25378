"""Predict the seconds that a device takes for counted calls. The time of a call follows from the formula for its family of kernels, or else
from its roofline bound."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import islice

import torch

from ..errors import InputError
from ..records import PARTS, Counted
from ..roofline.devices import Device, find_device
from ..roofline.result import Roofline
from .borrowed import Borrowed, family_of
from .calibration import Calibration, Family
from .calls import Kernel, kernels_of
from .chips import card_of
from .result import BOUND, Prediction, Row

LAUNCHES = ("graph", "eager")
HOST_SECONDS = 15e-6
"""Seconds that Python and torch are assumed to take per call on an unknown host. On the host of an H100 (torch 2.11), they take 12 to 17 us:
see the latencies in benchmarks/results/gpu/times.md of models whose kernels are faster than the host can launch them."""


def predict(
    counted: Sequence[Counted],
    rooflines: Sequence[Roofline],
    device: str | Device,
    calibration: Calibration | None = None,
    launch: str = "graph",
    without: Collection[str] = (),
) -> Prediction:
    """Return the predicted seconds of calls on a device. ``rooflines`` have the bounds of the calls on this device, one roofline per phase.

    Without ``calibration``, fxflops uses the calibrations that it ships. The shipped calibrations used are the card's own or, if there is
    none, those of the most similar cards. Cards in ``without`` are not used. If a formula gives less than a call's bound, the bound is
    used. With ``launch="eager"``, a kernel starts when the host has launched it. Raises InputError if ``launch`` is neither "graph" nor
    "eager".
    """
    if launch not in LAUNCHES:
        raise InputError(f"launch={launch!r}; expected one of {', '.join(map(repr, LAUNCHES))}")
    device = rooflines[0].device if rooflines else find_device(device)
    bounds = {
        part: iter_of for roofline in rooflines for iter_of in [iter(roofline.rows)] for part in PARTS[roofline.phase]
    }
    bound_rows = [next(bounds[each.call.phase]) for each in counted]
    kernels = [_computed_in(row.dtype, kernels_of(each)) for each, row in zip(counted, bound_rows, strict=True)]
    by_formula, families = seconds_of(
        [kernel for of_call in kernels for kernel in of_call], device, calibration, without
    )
    rows, at = [], iter(by_formula)
    for each, bound_row, of_call in zip(counted, bound_rows, kernels, strict=True):
        call, bound = each.call, bound_row.bound_seconds
        predicted = [seconds for seconds in islice(at, len(of_call)) if seconds is not None]
        if not of_call or len(predicted) < len(of_call):
            row = Row(call.op, call.path, call.phase, 1, bound, bound, BOUND, bound, call.seconds)
        else:
            seconds, basis = max(sum(predicted), bound), _named(of_call[0].family, of_call[0].dtype)
            row = Row(call.op, call.path, call.phase, 1, seconds, bound, basis, measured_seconds=call.seconds)
        rows.append(row)
    if launch == "eager":
        known = None if calibration is None else calibration.host_seconds
        rows = _launched(rows, HOST_SECONDS if known is None else known)
    return Prediction(device, tuple(rows), families, sum(each.cost is None for each in counted), launch=launch)


def _computed_in(dtype: str, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """If the dtype of the call's roofline row, ``dtype``, is tf32, return the kernels with dtype tf32. For any other dtype, return the
    kernels unchanged.

    Depthwise convolutions stay f32, because they use no tensor cores.
    """
    if dtype != "tf32" or any(kernel.family == "depthwise" for kernel in kernels):
        return kernels
    return tuple(kernel._replace(dtype=dtype) for kernel in kernels)


def _named(family: str, dtype: str) -> str:
    """Return the name of a family of kernels in a dtype. All integer dtypes except 8-bit ones share the name "int"."""
    return f"{family} {dtype or 'int'}"


def _launched(rows: Sequence[Row], host_seconds: float) -> list[Row]:
    """Add to each row the seconds that the device waits for the host. The host takes ``host_seconds`` per call."""
    host = device = 0.0
    launched = []
    for row in rows:
        host += host_seconds
        waiting = max(0.0, host - device) if row.seconds else 0.0
        device += waiting + row.seconds
        launched.append(row._replace(seconds=row.seconds + waiting, waiting_seconds=waiting))
    return launched


def seconds_of(
    kernels: Sequence[Kernel],
    device: Device,
    calibration: Calibration | None = None,
    without: Collection[str] = (),
) -> tuple[list[float | None], dict[str, Family | Borrowed]]:
    """Return the seconds of each kernel, and the families that were used. The seconds are None if no family covers the kernel."""
    seconds: list[float | None] = [None] * len(kernels)
    used: dict[str, Family | Borrowed] = {}
    card = card_of(device) if calibration is None else calibration.card(device)
    if card is None:
        return seconds, used
    places: dict[Kernel, list[int]] = {}  # equal kernels are computed once
    for place, kernel in enumerate(kernels):
        places.setdefault(kernel, []).append(place)
    by_family: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in places:
        by_family.setdefault((kernel.family, kernel.dtype), []).append(kernel)
    for (name, dtype), members in by_family.items():
        family = family_of(device, name, dtype, without) if calibration is None else calibration.family(name, dtype)
        if family is None:
            continue
        used[_named(name, dtype)] = family
        with torch.device("cpu"), torch.no_grad():  # override a default device of the caller
            features = torch.tensor([kernel.features for kernel in members], dtype=torch.float64)
            values = family.seconds(name, card, dtype, features).tolist()
        for kernel, value in zip(members, values, strict=True):
            for place in places[kernel]:
                seconds[place] = None if math.isnan(value) else value
    return seconds, used

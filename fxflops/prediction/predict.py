"""Predict how long a device takes for counted calls: each by its family's formula, or by its bound."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..records import PARTS, Counted
from ..roofline.devices import Device, find_device
from ..roofline.result import Roofline
from .calibration import Calibration, Family, calibration_of
from .calls import Kernel, kernel_of
from .result import BOUND, Prediction, Row


def predict(
    counted: Sequence[Counted],
    rooflines: Sequence[Roofline],
    device: str | Device,
    calibration: Calibration | None = None,
) -> Prediction:
    """Return the seconds of calls on a device; ``rooflines`` have their bounds there, phase by phase.

    Without a ``calibration`` the one that comes with fxflops is used, if there is one. Where a formula gives less than the
    bound, which comes from the device's ceilings, the bound holds.
    """
    device = find_device(device)
    calibration = calibration or calibration_of(device)
    bounds = {
        part: iter_of for roofline in rooflines for iter_of in [iter(roofline.rows)] for part in PARTS[roofline.phase]
    }
    kernels = [kernel_of(each) for each in counted]
    by_formula, families = _seconds(kernels, device, calibration)
    rows = []
    for each, kernel, predicted in zip(counted, kernels, by_formula, strict=True):
        call = each.call
        bound = next(bounds[call.phase]).bound_seconds
        if predicted is None or kernel is None:
            row = Row(call.op, call.path, call.phase, 1, bound, bound, BOUND, bound, call.seconds)
        else:
            basis = _name(kernel)
            row = Row(
                call.op, call.path, call.phase, 1, max(predicted, bound), bound, basis, measured_seconds=call.seconds
            )
        rows.append(row)
    return Prediction(device, tuple(rows), families, sum(each.cost is None for each in counted))


def _name(kernel: Kernel) -> str:
    return f"{kernel.family} {kernel.dtype}"


def _seconds(
    kernels: Sequence[Kernel | None], device: Device, calibration: Calibration | None
) -> tuple[list[float | None], dict[str, Family]]:
    """Return the seconds of each kernel, None where no family has it; and the families used."""
    seconds: list[float | None] = [None] * len(kernels)
    used: dict[str, Family] = {}
    if calibration is None:
        return seconds, used
    card = calibration.card(device)
    places: dict[Kernel, list[int]] = {}  # equal kernels are computed once
    for place, kernel in enumerate(kernels):
        if kernel is not None:
            places.setdefault(kernel, []).append(place)
    by_family: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in places:
        by_family.setdefault((kernel.family, kernel.dtype), []).append(kernel)
    for (name, dtype), members in by_family.items():
        family = calibration.family(name, dtype)
        if family is None:
            continue
        used[f"{name} {dtype}"] = family
        with torch.device("cpu"), torch.no_grad():  # whatever default device the caller has set
            features = torch.tensor([kernel.features for kernel in members], dtype=torch.float64)
            values = family.seconds(name, card, dtype, features).tolist()
        for kernel, value in zip(members, values, strict=True):
            for place in places[kernel]:
                seconds[place] = value
    return seconds, used

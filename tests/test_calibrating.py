"""calibrate: a device's own kernels, measured or from a report, and what predictions make of them."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import nn

import fxflops
from fxflops.errors import InputError
from fxflops.prediction import Calibration


@pytest.fixture(scope="module")
def of_cpu() -> Calibration:
    return fxflops.calibrate("cpu")


def test_the_cpu_is_measured_and_predicts_a_model(of_cpu: Calibration, tmp_path: Path) -> None:
    """Operations that were measured are predicted between half and twice the sum of their times; nothing is left as a bound."""
    assert {"linear f32", "batched f32", "attention f32", "elementwise f32", "norm f32", "softmax f32"} <= {
        *of_cpu.families
    }
    assert all(family.rows >= 3 for family in of_cpu.families.values())
    model, x = (
        nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 512)),
        torch.randn(256, 512),
    )
    prediction = fxflops.count(model, x).predict("cpu", calibration=of_cpu)
    assert prediction.share_of_bounds == 0
    assert prediction.seconds >= prediction.bound_seconds > 0
    assert "measured on this device" in str(prediction).replace("\n    ", " ")
    of_cpu.save(tmp_path / "cpu.json")
    assert Calibration.load(tmp_path / "cpu.json") == of_cpu


def test_the_times_of_a_report_are_taken() -> None:
    model = nn.Sequential(*[layer for n in (64, 128, 256, 512) for layer in (nn.Linear(64, n), nn.Linear(n, 64))])
    report = fxflops.analyze(model, torch.randn(32, 64))
    calibration = fxflops.calibrate(report)
    assert {*calibration.families} == {"linear f32"}
    assert calibration.families["linear f32"].rows >= 3
    # Their sum is what was measured, up to the formula's own error.
    prediction = report.predict("cpu", calibration=calibration)
    assert prediction.total.measured_seconds is not None
    assert prediction.seconds == pytest.approx(prediction.total.measured_seconds, rel=1.0)


def test_a_family_without_calibration_is_a_bound(of_cpu: Calibration) -> None:
    few = Calibration(
        of_cpu.device,
        of_cpu.multiprocessors,
        of_cpu.l2_bytes,
        MappingProxyType({"linear f32": of_cpu.families["linear f32"]}),
    )
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1)), torch.randn(32, 64)
    prediction = fxflops.count(model, x).predict("cpu", calibration=few)
    sums = prediction.by_operator()
    assert sums["softmax"].basis == "bound"
    assert prediction.share_of_bounds == pytest.approx(sums["softmax"].seconds / prediction.seconds)


def test_what_cannot_be_calibrated_is_an_error() -> None:
    with pytest.raises(InputError, match="no times"):
        fxflops.calibrate(fxflops.count(nn.Linear(4, 4), torch.ones(1, 4)))
    with pytest.raises(InputError, match="a device of torch's"):
        fxflops.calibrate("H100")
    with pytest.raises(InputError, match="no such device here"):
        fxflops.calibrate("meta")

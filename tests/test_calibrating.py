"""calibrate: measured kernel times of a device, or times from a report, and the predictions based on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import nn

import fxflops
from fxflops import calibrating
from fxflops.errors import InputError
from fxflops.prediction import Calibration
from fxflops.roofline.devices import Device, find_device

from .standin import NAME, StandIn

STEPS = 30
"""Steps of the fit: enough to tell short operations from long ones."""


@pytest.fixture(scope="module")
def of_cpu() -> Calibration:
    """A calibration that takes little time. docs/prediction.md has the call that users make."""
    return calibrating._by_operations(torch.device("cpu"), None, calibrating.OPERATIONS, seconds=0.0, steps=STEPS)


def test_the_cpu_is_measured_and_predicts_a_model(of_cpu: Calibration, tmp_path: Path) -> None:
    """A model whose kinds of operations were all measured has no bounds in its prediction. The calibration survives saving."""
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
    calibration = calibrating._by_report(report, STEPS)
    assert {*calibration.families} == {"linear f32"}
    assert calibration.families["linear f32"].rows >= 3
    # The sum is the measured time, up to the formula's own error.
    prediction = report.predict("cpu", calibration=calibration)
    assert prediction.total.measured_seconds is not None
    assert prediction.seconds == pytest.approx(prediction.total.measured_seconds, rel=1.0)


def test_the_times_of_a_trace_are_taken(tmp_path: Path) -> None:
    """A profiler trace has the shapes and times of every product: one row per shape, and longer products take longer."""
    sizes = (64, 128, 256, 512, 1024)
    model = nn.Sequential(*[layer for n in sizes for layer in (nn.Linear(256, n), nn.Linear(n, 256))])
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(5):
            model(torch.randn(256, 256))
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    calibration = calibrating._by_report(fxflops.read_trace(tmp_path / "trace.json"), STEPS)
    family = calibration.families["linear f32"]
    assert family.rows == 2 * len(sizes) - 1  # 256 to 256 occurs twice
    assert family.kernels == "a report's own times"
    seconds = [
        fxflops.count(nn.Linear(256, n), torch.empty(256, 256)).predict("cpu", calibration=calibration).seconds
        for n in (64, 4096)
    ]
    assert 0 < seconds[0] < seconds[1]


def test_an_accelerator_is_measured_with_its_host(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are measured in f32 and bf16 under the accelerator's own name, and so is host time, with synchronized clocks."""
    asked = []

    def device_for(wanted: str, place: str, dtypes: list[str]) -> tuple[Device, bool]:
        asked.append((wanted, place, dtypes))
        return replace(find_device("T4"), name=NAME), True

    monkeypatch.setattr(calibrating, "device_for", device_for)
    monkeypatch.setitem(calibrating.BURST, "accelerator", 1)
    products, vectors = calibrating.OPERATIONS[:3], calibrating.OPERATIONS[11:13] + calibrating.OPERATIONS[14:15]
    operations = *products, *vectors
    calibration = calibrating._by_operations(torch.device("cpu"), None, operations, seconds=0.0, least=2, steps=10)
    assert asked == [("auto", f"cpu ({NAME})", ["f32", "bf16"])]
    assert calibration.device == NAME
    kinds = {"linear", "elementwise"}
    assert {*calibration.families} == {f"{name} {dtype}" for name in kinds for dtype in ("f32", "bf16")}
    assert calibration.host_seconds is not None
    assert calibration.host_seconds > 0
    assert standin.synchronized > 2 * 2 * len(operations)


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
    with pytest.raises(InputError, match="a torch device"):
        fxflops.calibrate("H100")
    with pytest.raises(InputError, match="no such device here"):
        fxflops.calibrate("meta")

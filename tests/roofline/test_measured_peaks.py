"""Which device a run was made on. If the table does not have the device, its peaks are measured, once."""

from __future__ import annotations

import time
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fxflops.errors import InputError
from fxflops.meters.accelerator import accelerator_of
from fxflops.roofline import measured_peaks
from fxflops.roofline.devices import Device, find_device
from fxflops.roofline.measured_peaks import TF32, device_for, measured, tf32_allowed

from ..standin import NAME, StandIn

H100 = "cuda:0 (NVIDIA H100 80GB HBM3)"
MINE = Device("NVIDIA Mine", peaks={"f32": 1e12}, bandwidth=1e11)


@pytest.mark.parametrize(
    ("wanted", "place", "name", "is_its_own"),
    [
        ("auto", H100, "H100 SXM", True),
        ("H100", H100, "H100 SXM", True),
        ("H100 PCIe", H100, "H100 PCIe", False),
        ("A100", "cpu (2 cores)", "A100 80GB SXM", False),
        ("auto", "cpu (2 cores)", "cpu", True),
        ("CPU", H100, "cpu", False),
        (MINE, "cuda:1 (NVIDIA Mine)", "NVIDIA Mine", True),
        (MINE, "cpu (2 cores)", "NVIDIA Mine", False),
        (find_device("H100"), H100, "H100 SXM", True),
    ],
)
def test_device_of_a_run(wanted: str | Device, place: str, name: str, is_its_own: bool) -> None:
    device, own = device_for(wanted, place)
    assert (device.name, own) == (name, is_its_own)


@pytest.mark.parametrize("place", ["meta", "cuda:0 (NVIDIA Unheard Of)"])
def test_a_device_that_is_not_at_hand(place: str) -> None:
    with pytest.raises(InputError, match='cannot be measured here: name a device, as in roofline\\("H100"\\)'):
        device_for("auto", place)


def test_measured_once() -> None:
    start = time.perf_counter()
    device = measured("cpu", ["f32", "f64", "", "i8"])
    first = time.perf_counter() - start
    start = time.perf_counter()
    if "busy" not in device.source:
        assert measured("cpu", ["f32", "f64"]) == device
        assert time.perf_counter() - start < first / 10
    assert first < 6  # even on a busy machine
    assert device.measured
    assert device.source.startswith(f"measured by GEMMs, convolutions and copies in {torch.get_num_threads()} thread")
    assert set(device.peaks) == {"f32", "f64"}
    assert 1e8 < device.peaks["f32"] < 1e14
    assert 1e8 < device.bandwidth < 1e13
    assert 1e-8 < device.launch < 1e-3


def flops_of(run: partial[torch.Tensor]) -> int:
    """Two per multiply-accumulate of a matrix product or a convolution."""
    with FlopCounterMode(display=False) as counter:
        run.func(*(torch.empty_like(arg, device="meta") for arg in run.args))
    return int(counter.get_total_flops())


def test_a_slow_moment_is_no_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work delays all but one call in thirteen by 8 ms. Measuring goes on until several calls were fast."""
    monkeypatch.setattr(measured_peaks, "_PEAKS", {})
    taken = count()
    speed = 1e11

    def mostly_delayed(where: str, run: partial[object]) -> float:
        return flops_of(run) / speed + (0 if next(taken) % 13 == 12 else 8e-3)

    def always_delayed(where: str, run: partial[object]) -> float:
        return flops_of(run) / speed + 8e-3

    assert measured_peaks._gemm("cpu", 1, "f32", 5.0, mostly_delayed) == (pytest.approx(speed), True)
    assert not measured_peaks._gemm("cpu", 2, "f32", 0.05, always_delayed).is_reproducible
    assert measured_peaks._gemm("cpu", 2, "f32", 5.0, mostly_delayed) == (pytest.approx(speed), True)


def test_smaller_caches_are_not_slower() -> None:
    speeds = [speed for _, speed in measured("cpu").caches] + [measured("cpu").bandwidth]
    assert speeds == sorted(speeds, reverse=True)


def test_measuring_changes_nothing() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        measured("cpu", ["f32"])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_tf32_by_default() -> None:
    assert tf32_allowed() == (False, True)  # as PyTorch documents: on for convolutions, off for matrix products


def test_an_accelerator_is_measured_under_its_own_name(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measured_peaks.FOOTPRINTS, "accelerator", (2**20,))
    monkeypatch.setitem(measured_peaks.BURST, "accelerator", 2)
    monkeypatch.setattr(measured_peaks, "SECONDS_CAP", 0.1)
    monkeypatch.setattr(measured_peaks, "_PEAKS", {})
    for cached in (measured_peaks._bandwidth, measured_peaks._launch):
        cached.cache_clear()
    device = measured("cpu")
    assert device.name == NAME
    assert device.source.startswith("measured by GEMMs and copies")
    assert "thread" not in device.source
    assert not device.caches
    assert standin.synchronized > 20
    measured_peaks._bandwidth.cache_clear()
    measured_peaks._launch.cache_clear()


def test_an_accelerator_at_hand_is_measured(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_peaks, "measured", lambda where, dtypes: where)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    assert device_for("auto", f"xpu:0 ({NAME})") == ("xpu:0", True)
    with pytest.raises(InputError, match="the report is for Another, which cannot be measured here"):
        device_for("auto", "xpu:0 (Another)")
    with pytest.raises(InputError, match="which cannot be measured here"):
        device_for("auto", f"xpu:1 ({NAME})")


def test_a_launch_is_the_devices_time_not_the_hosts(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[float] = []

    class Queue:
        accelerator = accelerator_of("cpu")

        def hold(self, seconds: float) -> None:
            held.append(seconds)

        def seconds_between(self, start: object, end: object) -> float:
            return 1e-9 * measured_peaks.KERNELS

    monkeypatch.setattr(measured_peaks.FullQueue, "of", lambda accelerator: Queue())
    measured_peaks._launch.cache_clear()
    assert measured_peaks._launch("cpu", 1) == pytest.approx(1e-9)
    assert len(held) == measured_peaks.REPEATS
    measured_peaks._launch.cache_clear()


def test_the_peak_of_tf32_is_measured_in_it_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def peak(where: str, threads: int, dtype: str, *_: object) -> measured_peaks.Peak:
        return measured_peaks.Peak(8e12 if tf32_allowed().matmul else 1e12, True)

    settings = tf32_allowed()
    monkeypatch.setattr(measured_peaks, "accelerator_of", lambda where: SimpleNamespace(name="Mine"))
    monkeypatch.setattr(measured_peaks, "_gemm", peak)
    monkeypatch.setattr(measured_peaks, "_bandwidth", lambda where, threads, size: 1e12)
    monkeypatch.setattr(measured_peaks, "_launch", lambda where, threads: 1e-6)
    assert measured("cuda:0", ["bf16"]).peaks == {"f32": 1e12, "tf32": 8e12, "bf16": 1e12}
    with measured_peaks.computed_in_tf32(True):
        assert measured("cuda:0").peaks == {"f32": 1e12, "tf32": 8e12}
    monkeypatch.setattr(measured_peaks, "tf32_allowed", lambda: TF32(matmul=False, cudnn=False))
    assert "tf32" not in measured("cuda:0").peaks
    assert tf32_allowed() == settings


@pytest.mark.cuda
def test_measured_gpu() -> None:
    device = measured("cuda:0", ["bf16"])
    assert device.peaks["bf16"] > device.peaks["tf32"] > device.peaks["f32"] > 1e12
    assert device.launch < 5e-6  # the device's own launch: the host takes longer

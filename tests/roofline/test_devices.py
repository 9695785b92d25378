"""The table of devices: found by any of their names, with dense peaks and the makers' documents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import analyze
from fxflops.errors import InputError
from fxflops.integrations import Meter
from fxflops.roofline.devices import DEVICES, Device, find_device, listed


def test_others_of_a_name_are_not_taken_for_it() -> None:
    others = [
        "NVIDIA GeForce RTX 3090 Ti Laptop GPU",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "Orin",
    ]
    assert {name: device for name in others if (device := listed(name)) is not None} == {}


def test_unknown_device_lists_the_known_and_how_to_make_one() -> None:
    with pytest.raises(
        InputError, match=r"no device 'H900'.* \(did you mean H\d00.*(.|\n)*Device\('H900', peaks=.*memory="
    ):
        find_device("H900")


def test_a_number_is_no_device() -> None:
    report = analyze(nn.Linear(3, 3), torch.ones(1, 3), repeats=1)
    asked: list[Callable[..., Any]] = [report.mfu, report.hfu, report.roofline, partial(Meter, nn.Linear(3, 3))]
    for ask in asked:
        with pytest.raises(InputError, match=r"no device '1000000000000.0' in the table(.|\n)*Device\(.*, peaks="):
            ask(device=1e12)
    with pytest.raises(InputError, match="no device 'H900'"):
        Meter(nn.Linear(3, 3), device="H900")


def test_each_is_named_once_and_sourced() -> None:
    for device in DEVICES:
        assert find_device(device.name) is device
        assert [other for other in DEVICES if any(map(other.is_called, (device.name, *device.known_as)))] == [device]
        assert device.source.startswith(("NVIDIA", "AMD", "Intel"))
        assert not device.measured


def test_peaks_are_dense_and_without_tf32() -> None:
    h100 = find_device("H100 SXM")  # the datasheet: 1,979 TFLOPS in bf16, 3,958 in f8, 989 in TF32, all with sparsity
    assert (h100.peak("bf16"), h100.peak("f8"), h100.peak("tf32")) == (1979e12 / 2, 3958e12 / 2, 989e12 / 2)
    assert (h100.peak("f32"), h100.bandwidth) == (67e12, 3.35e12)
    a100 = find_device("A100")
    assert (a100.peak("f32"), a100.peak("tf32"), a100.peak("f16"), a100.bandwidth) == (19.5e12, 156e12, 312e12, 2039e9)
    for device in DEVICES:
        assert device.peak("f64") <= device.peak("f32") <= device.peak("f16")


def test_a_dtype_without_a_peak_is_computed_in_another() -> None:
    t4 = find_device("T4")
    assert t4.peak("bf16") == t4.peak("f32") == 8.1e12
    assert t4.peak("c64") == t4.peak("f32")
    assert t4.peak("f8") == t4.peak("f16") == 65e12
    assert t4.peak("") == t4.peak("i8") == 130e12  # without a dtype, the fastest peak


def test_bandwidth_of_caches() -> None:
    device = Device("mine", {"f32": 1e9}, bandwidth=10.0, caches=((100, 30.0), (1000, 20.0)))
    assert [device.bandwidth_of(n) for n in (0, 99, 100, 999, 1000, 1001)] == [30.0, 30.0, 30.0, 30.0, 20.0, 10.0]


@pytest.mark.parametrize(("peaks", "bandwidth"), [({}, 1.0), ({"f32": 0.0}, 1.0), ({"f32": 1.0}, 0.0)])
def test_devices_that_cannot_be(peaks: dict[str, float], bandwidth: float) -> None:
    with pytest.raises(InputError, match="must be above 0"):
        Device("mine", peaks, bandwidth)


def test_no_kernel_was_measured_faster_than_the_launch_of_a_listed_device() -> None:
    in_a_stream, in_a_graph = 1.13e-6, 1.0007e-6  # measured on an H100 SXM by benchmarks/gpu
    for device in DEVICES:
        assert 0 < device.launch < min(in_a_stream, in_a_graph)


TYPED = {  # what people type: the device, and the GB on its box
    "A100 SXM": ("A100 80GB SXM", 80),
    "A100 PCIe": ("A100 80GB PCIe", 80),
    "a100-40gb": ("A100 40GB", 40),
    "a100-sxm4-80gb": ("A100 80GB SXM", 80),
    "NVIDIA A100-SXM4-80GB": ("A100 80GB SXM", 80),
    "NVIDIA A100 80GB PCIe": ("A100 80GB PCIe", 80),
    "A100-PCIE-40GB": ("A100 40GB", 40),
    "A100 80GB": ("A100 80GB SXM", 80),
    "NVIDIA A100-PCIE-40GB": ("A100 40GB", 40),
    "A10": ("A10", 24),
    "NVIDIA A10G": ("A10G", 24),
    "A30": ("A30", 24),
    "A40": ("A40", 48),
    "A6000": ("RTX A6000", 48),
    "NVIDIA RTX A6000": ("RTX A6000", 48),
    "RTX 6000 Ada": ("RTX 6000 Ada", 48),
    "NVIDIA RTX 6000 Ada Generation": ("RTX 6000 Ada", 48),
    "RTX PRO 6000": ("RTX PRO 6000 Blackwell Server Edition", 96),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": ("RTX PRO 6000 Blackwell Server Edition", 96),
    "H100": ("H100 SXM", 80),
    "H100 SXM": ("H100 SXM", 80),
    "H100 SXM5": ("H100 SXM", 80),
    "h100_sxm": ("H100 SXM", 80),
    "H100 80GB": ("H100 SXM", 80),
    "NVIDIA H100 80GB HBM3": ("H100 SXM", 80),
    "h100-pcie": ("H100 PCIe", 80),
    "NVIDIA H100 PCIe": ("H100 PCIe", 80),
    "H100 NVL": ("H100 NVL", 94),
    "H20": ("H20", 96),
    "H200": ("H200", 141),
    "H800": ("H800 SXM", 80),
    "GH200": ("GH200", 96),
    "NVIDIA GH200 480GB": ("GH200", 96),  # the CPU has 480 GB
    "B200": ("B200", 180),
    "B300": ("B300", 288),
    "GB200": ("GB200", 186),
    "GB300": ("GB300", 288),
    "L4": ("L4", 24),
    "L20": ("L20", 48),
    "L40": ("L40", 48),
    "L40S": ("L40S", 48),
    "T4": ("T4", 16),
    "V100": ("V100 SXM2", 16),
    "Tesla V100-SXM2-16GB": ("V100 SXM2", 16),
    "Tesla V100-SXM2-32GB": ("V100 SXM2", 32),
    "Tesla V100-PCIE-32GB": ("V100 PCIe", 32),
    "P100": ("P100 PCIe", 16),
    "P4": ("P4", 8),
    "3060": ("RTX 3060", 12),
    "RTX 3080": ("RTX 3080", 10),
    "3080 Ti": ("RTX 3080 Ti", 12),
    "rtx3090": ("RTX 3090", 24),
    "RTX 4060 Ti 16GB": ("RTX 4060 Ti", 16),
    "4070 Ti SUPER": ("RTX 4070 Ti SUPER", 16),
    "NVIDIA GeForce RTX 4080": ("RTX 4080", 16),
    "4090": ("RTX 4090", 24),
    "rtx4090": ("RTX 4090", 24),
    "RTX 4090 24GB": ("RTX 4090", 24),
    "GeForce RTX 4090": ("RTX 4090", 24),
    "NVIDIA GeForce RTX 4090": ("RTX 4090", 24),
    "rtx_4090": ("RTX 4090", 24),
    "RTX 4070 Ti Super": ("RTX 4070 Ti SUPER", 16),
    "RTX 3080 10GB": ("RTX 3080", 10),
    "L40S 48GB": ("L40S", 48),
    "NVIDIA L4": ("L4", 24),
    "Tesla T4": ("T4", 16),
    "tesla p100": ("P100 PCIe", 16),
    "Tesla P100-PCIE-16GB": ("P100 PCIe", 16),
    "NVIDIA B200": ("B200", 180),
    "NVIDIA GB200": ("GB200", 186),
    "NVIDIA H200": ("H200", 141),
    "H200 SXM": ("H200", 141),
    "H200 141GB": ("H200", 141),
    "B200 SXM": ("B200", 180),
    "NVIDIA GeForce RTX 5090": ("RTX 5090", 32),
    "RTX5090": ("RTX 5090", 32),
    "RTX PRO 6000 Blackwell": ("RTX PRO 6000 Blackwell Server Edition", 96),
    "RTX-5080": ("RTX 5080", 16),
    "5090": ("RTX 5090", 32),
    "MI210": ("MI210", 64),
    "MI300X": ("MI300X", 192),
    "AMD Instinct MI300X": ("MI300X", 192),
    "AMD Instinct MI325X": ("MI325X", 256),
    "MI355X": ("MI355X", 288),
    "7900 XTX": ("RX 7900 XTX", 24),
    "Max 1550": ("Max 1550", 64),
    "Intel(R) Data Center GPU Max 1550": ("Max 1550", 64),
}


def test_names_that_people_type_with_the_memory_of_the_card() -> None:
    wrong = {}
    for typed, (name, gigabytes) in TYPED.items():
        device = find_device(typed)
        # GB on boxes mean GB or GiB. ECC takes a sixteenth on some cards, the driver a little on all.
        has_memory = device.memory and 0.91 * gigabytes * 1e9 <= device.memory <= gigabytes * 2**30
        if device.name != name or not has_memory:
            wrong[typed] = device.name, device.memory
    assert wrong == {}


def test_every_memory_is_sourced() -> None:
    for device in DEVICES:
        assert device.memory, device.name
        assert device.memory_source, device.name
    read = [device for device in DEVICES if "in full" not in device.memory_source]
    assert len(read) > len(DEVICES) // 3


def test_a_device_may_be_given_by_its_figures() -> None:
    device = find_device("name=Mine, bf16=400T, f32=1e2T, bandwidth=2TB/s, memory=96GB".replace("1e2", "100"))
    assert (device.name, device.peaks) == ("Mine", {"bf16": 4e14, "f32": 1e14})
    assert (device.bandwidth, device.memory) == (2e12, 96 * 10**9)
    assert find_device("bf16=1T,bandwidth=1GB").memory is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bf16=400T", "a peak and a bandwidth are required"),
        ("bandwidth=2TB", "a peak and a bandwidth are required"),
        ("bf16=400T,bandwidth=2TB,size=3", "unknown keys 'size'; expected name, bandwidth, memory, f64"),
        ("bf16=fast,bandwidth=2TB", "fast"),
    ],
)
def test_figures_that_are_wrong_are_told(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_device(text)

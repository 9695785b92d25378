"""The ceilings of devices as their makers state them: FLOP/s by dtype, and bytes/s.

The bandwidth is the memory's: bounds of listed GPUs are those of data that is in memory. A call whose data an earlier one has
left in the L2 cache may be faster (an H100 adds 8 MB of bf16 in 4.2 us there, from memory it takes at least 7.5 us), but no
datasheet says how fast an L2 cache is, and weights that are read once a step are not in it.

Peaks are dense ones: half of the figures that a datasheet gives "with sparsity". "f32" is without TF32, which is "tf32";
"f16" and "bf16" accumulate in f32, as is PyTorch's default; "i8" is in operations/s. If a device has matrix units for a
dtype, the figure is theirs, since no operation can be faster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InputError

LAUNCH = 0.9e-6
"""Seconds that a GPU needs for the smallest kernel, where the host keeps its queue full. No datasheet says it. An H100 SXM
(driver 580.159.04, torch 2.11.0+cu130) takes 1.13 us for a copy of 1 KB in a stream, and 1.00 us for a kernel in a CUDA graph;
benchmarks/gpu measures it. A tenth below that, as it is to be a lower bound for other cards too."""

STANDS_IN = {
    "c32": "f16", "c64": "f32", "c128": "f64", "f64": "f32", "bf16": "f32", "f16": "f32", "tf32": "f32", "f8": "f16",
}  # fmt: skip
"""The dtype in which a device computes one that it has no peak for."""


@dataclass(frozen=True, slots=True)
class Device:
    """The ceilings of a device.

    ``peaks`` are FLOP/s by dtype ("f32", "bf16" ...); ``bandwidth`` is that of its memory in bytes/s; ``launch`` is the
    least seconds of any kernel; ``source`` says where the figures are from; ``caches`` are pairs of a size in bytes and
    the bandwidth for data of that size, ascending; ``known_as`` are other names of the device; ``measured`` is True if
    the figures were measured on this machine, ``reproducible`` False if other work ran there meanwhile.

    >>> Device("mine", peaks={"f32": 1e12, "bf16": 4e12}, bandwidth=2e11).peak("bf16")
    4000000000000.0
    """

    name: str
    peaks: Mapping[str, float]
    bandwidth: float
    launch: float = LAUNCH
    source: str = "given"
    caches: tuple[tuple[int, float], ...] = ()
    known_as: tuple[str, ...] = ()
    measured: bool = False
    reproducible: bool = True

    def __post_init__(self) -> None:
        if not self.peaks or min(*self.peaks.values(), self.bandwidth) <= 0 or self.launch < 0:
            raise InputError(
                f"Device({self.name!r}): peaks (FLOP/s by dtype) and bandwidth (bytes/s) must be above 0, "
                f"not {dict(self.peaks)}, {self.bandwidth!r}"
            )

    def peak(self, dtype: str) -> float:
        """Return FLOP/s in a dtype; if none is stated, those of the dtype in :data:`STANDS_IN`, else the highest of all."""
        known: str | None = dtype
        while known is not None and known not in self.peaks:
            known = STANDS_IN.get(known)
        return max(self.peaks.values()) if known is None else self.peaks[known]

    def bandwidth_of(self, nbytes: int) -> float:
        """Return the most bytes/s for a call that moves ``nbytes``: those of the largest cache they fill, or of memory."""
        if not self.caches or nbytes > self.caches[-1][0]:
            return self.bandwidth
        filled = [speed for size, speed in self.caches if size <= nbytes]
        return filled[-1] if filled else self.caches[0][1]

    def is_called(self, name: str) -> bool:
        """Return True if ``name`` is one of the device's names, in any spelling: ``"NVIDIA A100-SXM4-80GB"``."""
        return _plain(name) in {_plain(known) for known in (self.name, *self.known_as)}


def find_device(name: str | Device) -> Device:
    """Return the device of this name from the table; InputError if it is not listed. Case and maker may be left out. A
    Device is returned as it is."""
    if isinstance(name, Device):
        return name
    name = str(name)  # a number: a peak is not enough
    found = listed(name)
    if found is None:
        raise InputError(
            f"no device {name!r} in the table: one of {', '.join(device.name for device in DEVICES)}\n"
            f"any other one:  from fxflops.roofline.devices import Device\n"
            f'  device=Device({name!r}, peaks={{"f32": 60e12, "bf16": 900e12}}, bandwidth=3.3e12)  # FLOP/s, bytes/s'
        )
    return found


def listed(name: str) -> Device | None:
    """Return the device of this name from the table; None if it is not listed."""
    return next((device for device in DEVICES if device.is_called(name)), None)


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|amd|instinct|[^a-z0-9]", "", name.lower())


def _device(name: str, source: str, tera: str, gigabytes: float, *known_as: str) -> Device:
    """Make a row of the table: peaks in tera-operations per second ("f32 67 bf16 989.5"), bandwidth in GB/s."""
    words = tera.split()
    peaks = {dtype: float(peak) * 1e12 for dtype, peak in zip(words[::2], words[1::2], strict=True)}
    return Device(name, peaks, gigabytes * 1e9, LAUNCH, source, known_as=known_as)


H100, A100 = "NVIDIA H100 Tensor Core GPU datasheet", "NVIDIA A100 Tensor Core GPU datasheet"
V100, GH200 = "NVIDIA V100 Tensor Core GPU datasheet", "NVIDIA GH200 Grace Hopper Superchip datasheet"
BLACKWELL = "NVIDIA Blackwell Architecture Technical Brief, HGX B200"
GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendix A"
AD102 = "NVIDIA Ada GPU Architecture whitepaper, appendix A"
GB202 = "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A"
ORIN = "NVIDIA Jetson AGX Orin Series Technical Brief; f16 as half of its i8"
MI300X = "AMD Instinct MI300X data sheet"
GCD = "AMD Instinct MI250X data sheet, halved: to PyTorch each of its two dies is a device"
HOPPER_SXM = "f64 67 f32 67 tf32 494.5 f16 989.5 bf16 989.5 f8 1979 i8 1979"
AMPERE = "f64 19.5 f32 19.5 tf32 156 f16 312 bf16 312 i8 624"

# The other names of a device are those that torch.cuda.get_device_name gives, and the usual short ones.
DEVICES = (
    _device("H100 SXM", H100, HOPPER_SXM, 3350, "H100", "H100 80GB HBM3", "H100 SXM5"),
    _device("H100 PCIe", H100, "f64 51 f32 51 tf32 378 f16 756.5 bf16 756.5 f8 1513 i8 1513", 2000),
    _device("H200", "NVIDIA H200 Tensor Core GPU datasheet", HOPPER_SXM, 4800, "H200 SXM"),
    _device("GH200", GH200, HOPPER_SXM, 4000, "GH200 480GB", "GH200 96GB"),
    _device("GH200 144GB", GH200, HOPPER_SXM, 4900, "GH200 144G HBM3e"),
    _device("B200", BLACKWELL, "f64 40 f32 80 tf32 1100 f16 2250 bf16 2250 f8 4500 i8 4500", 8000),
    _device(
        "B300",
        "NVIDIA HGX B300 datasheet",
        "f64 1.2 f32 75 tf32 1125 f16 2250 bf16 2250 f8 4500 i8 150",
        8000,
        "B300 SXM",
    ),
    _device(
        "GB200",
        "NVIDIA GB200 NVL72 datasheet, of one of its 72 GPUs",
        "f64 40 f32 80 tf32 1250 f16 2500 bf16 2500 f8 5000 i8 5000",
        8000,
    ),
    _device("A100 80GB SXM", A100, AMPERE, 2039, "A100", "A100 80GB", "A100-SXM4-80GB", "A100 SXM"),
    _device("A100 80GB PCIe", A100, AMPERE, 1935, "A100 PCIe"),
    _device("A100 40GB", A100, AMPERE, 1555, "A100-SXM4-40GB", "A100-PCIE-40GB"),
    _device("V100 SXM2", V100, "f64 7.8 f32 15.7 f16 125", 900, "V100", "V100-SXM2-16GB", "V100-SXM2-32GB"),
    _device("V100 PCIe", V100, "f64 7 f32 14 f16 112", 900, "V100-PCIE-16GB", "V100-PCIE-32GB"),
    _device("V100S", V100, "f64 8.2 f32 16.4 f16 130", 1134, "V100S-PCIE-32GB", "V100S PCIe"),
    _device("P100 PCIe", "NVIDIA Tesla P100 datasheet", "f64 4.7 f32 9.3 f16 18.7", 732, "P100", "P100-PCIE-16GB"),
    _device("P4", "NVIDIA Tesla P4 datasheet", "f32 5.5 i8 22", 192),
    _device("L4", "NVIDIA L4 datasheet", "f32 30.3 tf32 60 f16 121 bf16 121 f8 242.5 i8 242.5", 300),
    _device("L40S", "NVIDIA L40S datasheet", "f32 91.6 tf32 183 f16 362.05 bf16 362.05 f8 733 i8 733", 864),
    _device("A10", "NVIDIA A10 datasheet", "f32 31.2 tf32 62.5 f16 125 bf16 125 i8 250", 600),
    _device("T4", "NVIDIA T4 product brief", "f32 8.1 f16 65 i8 130", 320),
    _device("RTX 3090", GA102, "f32 35.6 tf32 35.6 f16 71 bf16 71 i8 284", 936),
    _device("RTX 4090", AD102, "f32 82.6 tf32 82.6 f16 165.2 bf16 165.2 f8 330.3 i8 660.6", 1008),
    _device("RTX 5090", GB202, "f32 104.8 tf32 104.8 f16 209.5 bf16 209.5 f8 419 i8 838", 1792),
    _device(
        "RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet and RTX Blackwell PRO whitepaper",
        "f32 120 tf32 251.9 f16 503.8 bf16 503.8 f8 1007.6 i8 1007.6",
        1597,
        "RTX PRO 6000 Server",
        "RTX PRO 6000",
    ),
    _device("MI250X", GCD, "f64 47.85 f32 47.85 f16 191.5 bf16 191.5 i8 191.5", 1638.4),
    _device("MI300X", MI300X, "f64 163.4 f32 163.4 tf32 653.7 f16 1307.4 bf16 1307.4 f8 2614.9 i8 2614.9", 5300),
    _device("Jetson AGX Orin 64GB", ORIN, "f32 5.3 f16 42.5 bf16 42.5 i8 85", 204.8, "Jetson AGX Orin", "Jetson Orin"),
)
"""The table of devices. torch calls every Orin "Orin", whatever its memory: its ceilings are measured instead."""


def listed_at(place: str) -> Device | None:
    """Return the device of a run made at ``place`` if the table lists it, as no device has to be measured for that."""
    return listed(parts_of(place)[1])


def parts_of(place: str) -> tuple[str, str]:
    """Return the device that torch calls so, and the name of its hardware."""
    where, _, described = place.partition(" (")
    return where, where if where == "cpu" else described.removesuffix(")") or where

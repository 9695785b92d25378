"""The ceilings of devices from datasheets: peak FLOP/s by dtype, memory bandwidth in bytes/s, and bytes of memory.

Bounds of listed GPUs assume that data comes from memory. A call whose data is still in the L2 cache may be faster than its bound. For
example, an H100 adds 8 MB of bf16 in 4.2 us from L2, but needs at least 7.5 us from memory. L2 speeds are not used, because datasheets do
not state them. Another reason is that weights that are read once per step are not in the L2 cache.

Peaks are dense: half of a datasheet's numbers "with sparsity". "f32" is the peak without TF32, "tf32" the peak with TF32. "f16" and
"bf16" accumulate in f32, as is PyTorch's default. "i8" is in operations/s. If a device has matrix units for a dtype, the peak is the peak
of the matrix units, because no operation can be faster than them.

The memory of a device is the size that a process can use (torch's ``total_memory``), if this size is public. The size in a datasheet is up
to 8% larger, because the driver and error correction take a part of the memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..errors import InputError, did_you_mean
from ..units import read_count, read_size

LAUNCH = 0.9e-6
"""Seconds that a GPU needs for the smallest kernel while the host keeps the GPU's queue full. Datasheets do not state this time. By
benchmarks/gpu, an H100 SXM (driver 580.159.04, torch 2.11.0+cu130) takes 1.13 us for a copy of 1 KB in a stream, and 1.00 us for
a kernel in a CUDA graph. ``LAUNCH`` is a tenth less, to be a lower bound for other cards too."""

STANDS_IN = {
    "c32": "f16", "c64": "f32", "c128": "f64", "f64": "f32", "bf16": "f32", "f16": "f32", "tf32": "f32", "f8": "f16",
}  # fmt: skip
"""By dtype, the dtype whose peak is used if a device has no peak for the first dtype."""


@dataclass(frozen=True, slots=True)
class Device:
    """The ceilings of a device.

    - ``peaks``: peak FLOP/s by dtype ("f32", "bf16" ...).
    - ``bandwidth``: bytes/s of the device's memory.
    - ``launch``: the least seconds of any kernel.
    - ``source``: where peaks and bandwidth come from.
    - ``caches``: pairs of a size in bytes and the bandwidth for data of that size, ascending by size.
    - ``known_as``: other names of the device.
    - ``measured``: True if peaks and bandwidth were measured on this machine.
    - ``reproducible``: False if repeated measurements disagreed because other work ran on the machine.
    - ``memory``: the bytes that a process can use, or None if unknown.
    - ``memory_source``: where ``memory`` comes from.
    - ``workspace``: the bytes that torch keeps for cuBLAS (hipBLAS) in each thread that multiplies matrices. The default is the size
      on most cards; 0 if torch keeps no workspace.

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
    memory: int | None = None
    memory_source: str = ""
    workspace: int = 8_519_680

    def __post_init__(self) -> None:
        if not self.peaks or min(*self.peaks.values(), self.bandwidth) <= 0 or self.launch < 0:
            raise InputError(
                f"Device({self.name!r}): peaks (FLOP/s by dtype) and bandwidth (bytes/s) must be above 0, "
                f"not {dict(self.peaks)}, {self.bandwidth!r}"
            )

    def peak(self, dtype: str) -> float:
        """Return the peak FLOP/s in a dtype. Without a peak for this dtype, use the dtype in :data:`STANDS_IN`, else the highest peak."""
        known: str | None = dtype
        while known is not None and known not in self.peaks:
            known = STANDS_IN.get(known)
        return max(self.peaks.values()) if known is None else self.peaks[known]

    def bandwidth_of(self, nbytes: int) -> float:
        """Return the highest bytes/s for a call that moves ``nbytes``. The highest speed is the speed of the largest cache that these bytes
        fill, or else of memory."""
        if not self.caches or nbytes > self.caches[-1][0]:
            return self.bandwidth
        filled = [speed for size, speed in self.caches if size <= nbytes]
        return filled[-1] if filled else self.caches[0][1]

    def is_called(self, name: str) -> bool:
        """Return whether ``name`` is one of the device's names, in any spelling, e.g. ``"NVIDIA A100-SXM4-80GB"``."""
        return _plain(name) in {_plain(known) for known in (self.name, *self.known_as)}


def find_device(name: str | Device) -> Device:
    """Return the device with this name from the table. Raise InputError if the table does not have the device. A Device is returned unchanged.

    Case does not matter. The maker and "RTX" may be omitted: "4090", "a100-sxm4-80gb", "NVIDIA H100 NVL".
    """
    if isinstance(name, Device):
        return name
    name = str(name)  # e.g. a number passed as a peak: the error below shows what a device needs
    found = listed(name)
    if found is None:
        raise InputError(
            f"no device {name!r} in the table{near_or_all(name)}\n"
            f"for another device:  from fxflops.roofline.devices import Device\n"
            f'  device=Device({name!r}, peaks={{"f32": 60e12, "bf16": 900e12}}, bandwidth=3.3e12, memory=24 * 2**30)'
            "  # FLOP/s, bytes/s, bytes"
        )
    return found


def near_or_all(name: str) -> str:
    """Return the end of the error message for a device that is not in the table: the similar names or, if there are none, all names."""
    names = [each.name for each in DEVICES]
    return did_you_mean(name, names) or f"; the table has {', '.join(names)}"


def listed(name: str) -> Device | None:
    """Return the device with this name from the table; None if the table has no such device.

    If ``name`` is the name of a variant, such as "V100 32GB", the device has the variant's memory. ``name`` may also describe an unlisted
    device: "bf16=400T,bandwidth=2TB,memory=96GB". Raises InputError if the description is wrong.
    """
    if "=" in name:
        return of_figures(name)
    found = next((device for device in DEVICES if device.is_called(name)), None)
    if found is None and (bare := _without_memory(name)) is not None and (found := listed(bare)) is not None:
        return found if _has_memory(found, name) else None  # "RTX 4090 24GB"
    larger = next((memory for variant, memory in VARIANTS.items() if _plain(variant) == _plain(name)), None)
    if found is None or larger is None:
        return found
    return replace(found, memory=larger * MIB, memory_source=IN_FULL)


def of_figures(text: str) -> Device:
    """Return the device described by a text such as "name=Mine,bf16=400T,f32=100T,bandwidth=2TB,memory=96GB".

    Units are FLOP/s for peaks, bytes/s for the bandwidth and bytes for the memory.
    """
    given = dict(part.strip().partition("=")[::2] for part in text.split(","))
    name = given.pop("name", "the given device")
    readers = {"bandwidth": read_size, "memory": read_size, **dict.fromkeys(PEAKS, read_count)}
    if unknown := [key for key in given if key not in readers]:
        raise InputError(
            f"device {text!r}: unknown keys {', '.join(map(repr, unknown))}; expected name, {', '.join(readers)}"
        )
    try:
        figures = {key: readers[key](value.removesuffix("/s")) for key, value in given.items()}
    except ValueError as error:
        raise InputError(f"device {text!r}: {error}") from None
    peaks = {key: float(figures[key]) for key in PEAKS if key in figures}
    if not peaks or "bandwidth" not in figures:
        raise InputError(f"device {text!r}: a peak and a bandwidth are required, such as bf16=400T,bandwidth=2TB")
    return Device(name, peaks, float(figures["bandwidth"]), memory=figures.get("memory"))


PEAKS = "f64", "f32", "tf32", "f16", "bf16", "f8", "i8"
"""The dtypes whose peaks :func:`of_figures` accepts."""
MEMORY = re.compile(r"[ _-]*\b(\d+) ?Gi?B\b *$", re.IGNORECASE)


def _without_memory(name: str) -> str | None:
    """Return a name without the memory size at its end; None if the name does not end with a memory size."""
    bare, taken = MEMORY.subn("", name)
    return bare if taken and bare else None


def _has_memory(device: Device, name: str) -> bool:
    """Return whether a device has the memory size that a name ends with. The device may have less by the part that the driver takes."""
    said = MEMORY.search(name)
    return said is not None and device.memory is not None and 0.9 <= device.memory / (int(said[1]) * 2**30) <= 1.01


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|quadro|rtx|amd|instinct|radeon|intel(\(r\))?|[^a-z0-9]", "", name.lower())


def _device(
    name: str,
    source: str,
    tera: str,
    gigabytes: float,
    *known_as: str,
    mebibytes: int,
    read: str = "",
    workspace: int = 8_519_680,
) -> Device:
    """Make a row of the table. Peaks are in tera-operations per second ("f32 67 bf16 989.5"), bandwidth is in GB/s, memory is in MiB.
    ``read`` names the source of the memory size; by default, the datasheet."""
    words = tera.split()
    peaks = {dtype: float(peak) * 1e12 for dtype, peak in zip(words[::2], words[1::2], strict=True)}
    return Device(
        name,
        peaks,
        gigabytes * 1e9,
        LAUNCH,
        source,
        known_as=known_as,
        memory=mebibytes * MIB,
        memory_source=read or IN_FULL,
        workspace=workspace,
    )


MIB = 2**20
NEWER, ROCM, CDNA3 = 32 * MIB, 32 * MIB, 128 * MIB
"""Sizes of workspaces: cuBLAS from Hopper on, hipBLAS, and hipBLAS from MI300 on. Other devices have the default of :func:`_device`
(``parseChosenWorkspaceSize`` in aten/src/ATen/cuda/CublasHandlePool.cpp of torch 2.11)."""
READ = "total_memory of torch.cuda.get_device_properties, in public logs"
XPU = "total_memory of torch.xpu.get_device_properties, in ALCF's user guides"
SMI = "nvidia-smi, in ai-dynamo/aiconfigurator systems/*.yaml (095f58a51c4c)"
HERE = "benchmarks/results/gpu/failures.md: the total capacity of 79.18 GiB in torch's message"
IN_FULL = "the full size in the datasheet, although the driver keeps a part"
H100, A100 = "NVIDIA H100 Tensor Core GPU datasheet", "NVIDIA A100 Tensor Core GPU datasheet"
V100, GH200 = "NVIDIA V100 Tensor Core GPU datasheet", "NVIDIA GH200 Grace Hopper Superchip datasheet"
BLACKWELL = "NVIDIA Blackwell Architecture Technical Brief, HGX B200"
GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendix A"
AD102 = "NVIDIA Ada GPU Architecture whitepaper, appendix A"
GB202 = "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A"
ORIN = "NVIDIA Jetson AGX Orin Series Technical Brief; the f16 peak is half of the i8 peak"
MI300X = "AMD Instinct MI300X data sheet"
GCD = "AMD Instinct MI250X data sheet, halved because PyTorch treats each of the two dies as a device"
HOPPER_SXM = "f64 67 f32 67 tf32 494.5 f16 989.5 bf16 989.5 f8 1979 i8 1979"
NVL = "f64 60 f32 60 tf32 417.5 f16 835.5 bf16 835.5 f8 1670.5 i8 1670.5"
RTX_PRO = "f32 {} tf32 251.9 f16 503.8 bf16 503.8 f8 1007.6 i8 1007.6"
CDNA3_PEAKS = "f64 163.4 f32 163.4 tf32 653.7 f16 1307.4 bf16 1307.4 f8 2614.9 i8 2614.9"
AMPERE = "f64 19.5 f32 19.5 tf32 156 f16 312 bf16 312 i8 624"

GA10X = "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendices"
ADA, RTX_BLACKWELL = (
    "NVIDIA Ada GPU Architecture whitepaper, appendices",
    "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendices",
)
SUPER = "NVIDIA GeForce RTX 40 SUPER specifications: cores x clock, as for the Ada whitepaper's other cards"
TURING = "NVIDIA Turing GPU Architecture whitepaper, appendices"
PASCAL = "NVIDIA Tesla P100 datasheet"
CDNA4 = "AMD Instinct MI350 series data sheets"

# A device's other names are the names that torch.cuda.get_device_name returns, and common short names.
DEVICES = (
    _device(
        "H100 SXM",
        H100,
        HOPPER_SXM,
        3350,
        "H100",
        "H100 80GB HBM3",
        "H100 80GB",
        "H100 SXM5",
        "H100-SXM5-80GB",
        mebibytes=81080,
        read=HERE,
        workspace=NEWER,
    ),
    _device(
        "H100 PCIe",
        H100,
        "f64 51 f32 51 tf32 378 f16 756.5 bf16 756.5 f8 1513 i8 1513",
        2000,
        mebibytes=81008,
        read=READ,
        workspace=NEWER,
    ),
    _device("H100 NVL", "NVIDIA H100 NVL datasheet", NVL, 3900, "H100 NVL 94GB", mebibytes=94 * 1024, workspace=NEWER),
    _device(
        "H800 SXM",
        "NVIDIA H800 specifications",
        "f64 1 f32 67 tf32 494.5 f16 989.5 bf16 989.5 f8 1979 i8 1979",
        3350,
        "H800",
        mebibytes=80 * 1024,
        workspace=NEWER,
    ),
    _device(
        "H20",
        "NVIDIA H20 specifications",
        "f64 1 f32 44 tf32 74 f16 148 bf16 148 f8 296 i8 296",
        4000,
        "H20 96GB",
        mebibytes=97285,
        read=READ,
        workspace=NEWER,
    ),
    _device(
        "H200",
        "NVIDIA H200 Tensor Core GPU datasheet",
        HOPPER_SXM,
        4800,
        "H200 SXM",
        "H200 141GB",
        mebibytes=143156,
        read=READ,
        workspace=NEWER,
    ),
    _device(
        "H200 NVL",
        "NVIDIA H200 Tensor Core GPU datasheet",
        NVL,
        4800,
        mebibytes=143156,
        read=READ + " of the H200",
        workspace=NEWER,
    ),
    _device("GH200", GH200, HOPPER_SXM, 4000, "GH200 480GB", "GH200 96GB", mebibytes=96 * 1024, workspace=NEWER),
    _device("GH200 144GB", GH200, HOPPER_SXM, 4900, "GH200 144G HBM3e", mebibytes=144 * 1024, workspace=NEWER),
    _device(
        "B200",
        BLACKWELL,
        "f64 40 f32 80 tf32 1100 f16 2250 bf16 2250 f8 4500 i8 4500",
        8000,
        "B200 SXM",
        mebibytes=182631,
        read=READ,
        workspace=NEWER,
    ),
    _device(
        "B300",
        "NVIDIA HGX B300 datasheet",
        "f64 1.2 f32 75 tf32 1125 f16 2250 bf16 2250 f8 4500 i8 150",
        8000,
        "B300 SXM",
        "B300 SXM6 AC",
        mebibytes=275040,
        read=SMI,
        workspace=NEWER,
    ),
    _device(
        "GB200",
        "NVIDIA GB200 NVL72 datasheet, for one of its 72 GPUs",
        "f64 40 f32 80 tf32 1250 f16 2500 bf16 2500 f8 5000 i8 5000",
        8000,
        "GB200 NVL72",
        mebibytes=189471,
        read=SMI,
        workspace=NEWER,
    ),
    _device(
        "GB300",
        "NVIDIA GB300 NVL72 datasheet, for one of its 72 GPUs",
        "f64 1.39 f32 83.3 tf32 1250 f16 2500 bf16 2500 f8 5000 i8 166.7",
        8000,
        "GB300 NVL72",
        mebibytes=284208,
        read=SMI,
        workspace=NEWER,
    ),
    _device(
        "A100 80GB SXM",
        A100,
        AMPERE,
        2039,
        "A100",
        "A100 80GB",
        "A100-SXM4-80GB",
        "A100 SXM",
        "A100 SXM4",
        mebibytes=81152,
        read=READ,
    ),
    _device(
        "A100 80GB PCIe",
        A100,
        AMPERE,
        1935,
        "A100 PCIe",
        "A100-PCIE-80GB",
        mebibytes=81152,
        read=READ + " of the A100 SXM",
    ),
    _device(
        "A100 40GB",
        A100,
        AMPERE,
        1555,
        "A100-SXM4-40GB",
        "A100-PCIE-40GB",
        "A100 SXM 40GB",
        "A100 PCIe 40GB",
        mebibytes=40326,
        read=READ,
    ),
    _device(
        "A800 80GB SXM",
        "NVIDIA A800 specifications",
        AMPERE,
        2039,
        "A800",
        "A800-SXM4-80GB",
        "A800 SXM",
        mebibytes=80 * 1024,
    ),
    _device(
        "A30",
        "NVIDIA A30 Tensor Core GPU datasheet",
        "f64 10.3 f32 10.3 tf32 82 f16 165 bf16 165 i8 330",
        933,
        "A30 24GB",
        mebibytes=24 * 1024,
    ),
    _device(
        "A40",
        "NVIDIA A40 datasheet",
        "f32 37.4 tf32 74.8 f16 149.7 bf16 149.7 i8 299.3",
        696,
        "A40 48GB",
        mebibytes=45416,
        read=READ,
    ),
    _device(
        "A10",
        "NVIDIA A10 datasheet",
        "f32 31.2 tf32 62.5 f16 125 bf16 125 i8 250",
        600,
        "A10 24GB",
        mebibytes=24 * 1024,
    ),
    _device("A10G", "NVIDIA A10G datasheet", "f32 31.5 tf32 35 f16 70 bf16 70 i8 140", 600, mebibytes=22587, read=READ),
    _device("A2", "NVIDIA A2 datasheet", "f32 4.5 tf32 9 f16 18 bf16 18 i8 36", 200, mebibytes=16 * 1024),
    _device(
        "V100 SXM2",
        V100,
        "f64 7.8 f32 15.7 f16 125",
        900,
        "V100",
        "V100 SXM",
        "V100-SXM2-16GB",
        "V100 16GB",
        "V100-SXM2-32GB",
        "V100 32GB",
        "V100-SXM3-32GB",
        mebibytes=16130,
        read=READ,
    ),
    _device(
        "V100 PCIe",
        V100
        + ", whose 14 TFLOP/s are rounded; the peak is 2 x 5,120 cores x 1.38 GHz boost clock, since matrix products of NeuSight reach 14.01",
        "f64 7.07 f32 14.13 f16 113",
        900,
        "V100-PCIE-16GB",
        "V100-PCIE-32GB",
        mebibytes=16130,
        read=READ + " of the V100 SXM2",
    ),
    _device("V100S", V100, "f64 8.2 f32 16.4 f16 130", 1134, "V100S-PCIE-32GB", "V100S PCIe", mebibytes=32 * 1024),
    _device(
        "P100 PCIe",
        PASCAL,
        "f64 4.7 f32 9.3 f16 18.7",
        732,
        "P100",
        "P100-PCIE-16GB",
        "P100 16GB",
        mebibytes=16280,
        read=READ,
    ),
    _device(
        "P100 SXM2",
        PASCAL,
        "f64 5.3 f32 10.6 f16 21.2",
        732,
        "P100-SXM2-16GB",
        mebibytes=16280,
        read=READ + " of the P100 PCIe",
    ),
    _device(
        "TITAN V",
        "NVIDIA TITAN V specifications, tensor cores at the boost clock",
        "f64 7.4 f32 14.9 f16 119.2",
        652.8,
        mebibytes=12 * 1024,
    ),
    _device("P40", "NVIDIA Tesla P40 datasheet", "f32 12 i8 47", 346, mebibytes=24 * 1024),
    _device("P4", "NVIDIA Tesla P4 datasheet", "f32 5.5 i8 22", 192, mebibytes=8 * 1024),
    _device("T4", "NVIDIA T4 product brief", "f32 8.1 f16 65 i8 130", 320, "T4 16GB", mebibytes=15079, read=READ),
    _device(
        "L4",
        "NVIDIA L4 datasheet",
        "f32 30.3 tf32 60 f16 121 bf16 121 f8 242.5 i8 242.5",
        300,
        "L4 24GB",
        mebibytes=22587,
        read=READ + " of the A10G, which has the same memory",
    ),
    _device(
        "L20",
        "NVIDIA L20 specifications",
        "f32 59.8 tf32 59.8 f16 119.5 bf16 119.5 f8 239 i8 239",
        864,
        mebibytes=45589,
        read=READ + " of the L40S",
    ),
    _device(
        "L40",
        "NVIDIA L40 datasheet",
        "f32 90.5 tf32 90.5 f16 181 bf16 181 f8 362 i8 362",
        864,
        mebibytes=45466,
        read=READ,
    ),
    _device(
        "L40S",
        "NVIDIA L40S datasheet",
        "f32 91.6 tf32 183 f16 362.05 bf16 362.05 f8 733 i8 733",
        864,
        "L40S 48GB",
        mebibytes=45589,
        read=READ,
    ),
    _device("RTX A6000", GA10X, "f32 38.7 tf32 77.4 f16 154.8 bf16 154.8 i8 309.7", 768, mebibytes=48676, read=READ),
    _device("RTX A5000", GA10X, "f32 27.8 tf32 55.6 f16 111.1 bf16 111.1 i8 222.2", 768, mebibytes=24114, read=READ),
    _device("RTX A4000", GA10X, "f32 19.2 tf32 38.3 f16 76.7 bf16 76.7 i8 153.4", 448, mebibytes=16 * 1024),
    _device(
        "RTX 6000 Ada",
        ADA,
        "f32 91.1 tf32 182.1 f16 364.2 bf16 364.2 f8 728.5 i8 728.5",
        960,
        "RTX 6000 Ada Generation",
        mebibytes=48 * 1024,
    ),
    _device(
        "RTX 5000 Ada",
        ADA,
        "f32 65.3 tf32 130.6 f16 261.1 bf16 261.1 f8 522.1 i8 522.1",
        576,
        "RTX 5000 Ada Generation",
        mebibytes=32 * 1024,
    ),
    _device("RTX 8000", TURING, "f32 16.3 f16 130.5 i8 261", 672, mebibytes=48 * 1024),
    _device("TITAN RTX", TURING, "f32 16.3 f16 130.5 i8 261", 672, "TITAN", mebibytes=24 * 1024),
    _device("RTX 2080", TURING, "f32 10.6 f16 42.4 i8 169.6", 448, mebibytes=8 * 1024),
    _device(
        "GTX 1080 Ti", "NVIDIA GeForce GTX 1080 Ti specifications", "f32 11.3", 484, "1080 Ti", mebibytes=11 * 1024
    ),
    _device(
        "RTX 2080 Ti",
        TURING,
        "f32 14.2 f16 56.9 i8 227.7",
        616,
        mebibytes=11 * 1024,
    ),
    _device(
        "RTX 3060",
        GA10X,
        "f32 12.7 tf32 12.7 f16 25.5 bf16 25.5 i8 102",
        360,
        "RTX 3060 12GB",
        mebibytes=11931,
        read=READ,
    ),
    _device("RTX 3060 Ti", GA10X, "f32 16.2 tf32 16.2 f16 32.4 bf16 32.4 i8 129.6", 448, mebibytes=8 * 1024),
    _device("RTX 3070", GA10X, "f32 20.3 tf32 20.3 f16 40.6 bf16 40.6 i8 162.6", 448, mebibytes=8 * 1024),
    _device("RTX 3070 Ti", GA10X, "f32 21.7 tf32 21.7 f16 43.5 bf16 43.5 i8 174", 608, mebibytes=8 * 1024),
    _device(
        "RTX 3080", GA10X, "f32 29.8 tf32 29.8 f16 59.5 bf16 59.5 i8 238", 760, "RTX 3080 10GB", mebibytes=10 * 1024
    ),
    _device("RTX 3080 Ti", GA10X, "f32 34.1 tf32 34.1 f16 68.2 bf16 68.2 i8 272.8", 912, mebibytes=12 * 1024),
    _device("RTX 3090", GA102, "f32 35.6 tf32 35.6 f16 71 bf16 71 i8 284", 936, mebibytes=24259, read=READ),
    _device(
        "RTX 3090 Ti",
        GA10X,
        "f32 40 tf32 40 f16 80 bf16 80 i8 320",
        1008,
        mebibytes=24259,
        read=READ + " of the RTX 3090",
    ),
    _device("RTX 4060", ADA, "f32 15.1 tf32 15.1 f16 30.2 bf16 30.2 f8 60.5 i8 121", 272, mebibytes=8 * 1024),
    _device(
        "RTX 4060 Ti",
        ADA,
        "f32 22.1 tf32 22.1 f16 44.1 bf16 44.1 f8 88.3 i8 176.5",
        288,
        "RTX 4060 Ti 8GB",
        "RTX 4060 Ti 16GB",
        mebibytes=8 * 1024,
    ),
    _device("RTX 4070", ADA, "f32 29.1 tf32 29.1 f16 58.3 bf16 58.3 f8 116.6 i8 233.2", 504, mebibytes=12 * 1024),
    _device("RTX 4070 SUPER", SUPER, "f32 35.5 tf32 35.5 f16 71 bf16 71 f8 141.9 i8 283.9", 504, mebibytes=12 * 1024),
    _device("RTX 4070 Ti", ADA, "f32 40.1 tf32 40.1 f16 80.2 bf16 80.2 f8 160.4 i8 320.7", 504, mebibytes=12 * 1024),
    _device(
        "RTX 4070 Ti SUPER",
        SUPER,
        "f32 44.1 tf32 44.1 f16 88.2 bf16 88.2 f8 176.4 i8 352.8",
        672,
        mebibytes=15974,
        read=READ,
    ),
    _device(
        "RTX 4080", ADA, "f32 48.7 tf32 48.7 f16 97.5 bf16 97.5 f8 194.9 i8 389.9", 717, mebibytes=16049, read=READ
    ),
    _device(
        "RTX 4080 SUPER",
        SUPER,
        "f32 52.2 tf32 52.2 f16 104.4 bf16 104.4 f8 208.9 i8 417.8",
        736,
        mebibytes=16049,
        read=READ + " of the RTX 4080",
    ),
    _device(
        "RTX 4090",
        AD102,
        "f32 82.6 tf32 82.6 f16 165.2 bf16 165.2 f8 330.3 i8 660.6",
        1008,
        mebibytes=24259,
        read=READ + " of the RTX 3090",
    ),
    _device(
        "RTX 5060 Ti",
        RTX_BLACKWELL,
        "f32 23.7 tf32 23.7 f16 47.4 bf16 47.4 f8 94.8 i8 189.6",
        448,
        "RTX 5060 Ti 16GB",
        mebibytes=15841,
        read=READ,
        workspace=NEWER,
    ),
    _device(
        "RTX 5070",
        RTX_BLACKWELL,
        "f32 30.9 tf32 30.9 f16 61.7 bf16 61.7 f8 123.5 i8 246.9",
        672,
        mebibytes=12 * 1024,
        workspace=NEWER,
    ),
    _device(
        "RTX 5070 Ti",
        RTX_BLACKWELL,
        "f32 43.9 tf32 43.9 f16 87.9 bf16 87.9 f8 175.8 i8 351.5",
        896,
        mebibytes=15841,
        read=READ + " of the RTX 5060 Ti",
        workspace=NEWER,
    ),
    _device(
        "RTX 5080",
        RTX_BLACKWELL,
        "f32 56.3 tf32 56.3 f16 112.6 bf16 112.6 f8 225.1 i8 450.2",
        960,
        mebibytes=15841,
        read=READ + " of the RTX 5060 Ti",
        workspace=NEWER,
    ),
    _device(
        "RTX 5090",
        GB202,
        "f32 104.8 tf32 104.8 f16 209.5 bf16 209.5 f8 419 i8 838",
        1792,
        mebibytes=32 * 1024,
        workspace=NEWER,
    ),
    _device(
        "RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet and RTX Blackwell PRO whitepaper",
        RTX_PRO.format(120),
        1597,
        "RTX PRO 6000 Server",
        "RTX PRO 6000",
        "RTX PRO 6000 Blackwell",
        mebibytes=97250,
        read=READ,
        workspace=NEWER,
    ),
    _device(
        "RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA RTX Blackwell PRO whitepaper",
        RTX_PRO.format(126),
        1792,
        "RTX PRO 6000 Workstation",
        mebibytes=97250,
        read=READ + " of the Server Edition",
        workspace=NEWER,
    ),
    _device(
        "MI100",
        "AMD Instinct MI100 data sheet",
        "f64 11.5 f32 46.1 f16 184.6 bf16 92.3 i8 184.6",
        1228.8,
        mebibytes=32 * 1024,
        workspace=ROCM,
    ),
    _device(
        "MI210",
        "AMD Instinct MI210 data sheet",
        "f64 45.3 f32 45.3 f16 181 bf16 181 i8 181",
        1638.4,
        mebibytes=65520,
        read=READ + " of the MI250X",
        workspace=ROCM,
    ),
    _device(
        "MI250",
        GCD.replace("MI250X", "MI250"),
        "f64 45.3 f32 45.3 f16 181 bf16 181 i8 181",
        1638.4,
        mebibytes=65520,
        read=READ + " of the MI250X",
        workspace=ROCM,
    ),
    _device(
        "MI250X",
        GCD,
        "f64 47.85 f32 47.85 f16 191.5 bf16 191.5 i8 191.5",
        1638.4,
        "MI250X/MI250",
        mebibytes=65520,
        read=READ,
        workspace=ROCM,
    ),
    _device(
        "MI300A",
        "AMD Instinct MI300A data sheet",
        "f64 122.6 f32 122.6 tf32 490.3 f16 980.6 bf16 980.6 f8 1961.2 i8 1961.2",
        5300,
        mebibytes=128 * 1024,
        workspace=CDNA3,
    ),
    _device("MI300X", MI300X, CDNA3_PEAKS, 5300, mebibytes=196592, read=READ, workspace=CDNA3),
    _device("MI325X", "AMD Instinct MI325X data sheet", CDNA3_PEAKS, 6000, mebibytes=256 * 1024, workspace=CDNA3),
    _device(
        "MI350X",
        CDNA4,
        "f64 72.1 f32 144.2 f16 2306.9 bf16 2306.9 f8 4613.7 i8 4613.7",
        8000,
        mebibytes=288 * 1024,
        workspace=CDNA3,
    ),
    _device(
        "MI355X",
        CDNA4,
        "f64 78.6 f32 157.3 f16 2516.6 bf16 2516.6 f8 5033.2 i8 5033.2",
        8000,
        mebibytes=288 * 1024,
        workspace=CDNA3,
    ),
    _device(
        "RX 7900 XTX",
        "AMD Radeon RX 7900 XTX specifications",
        "f32 61.4 f16 122.8 bf16 122.8 i8 122.8",
        960,
        "7900 XTX",
        mebibytes=24 * 1024,
        workspace=ROCM,
    ),
    _device(
        "Max 1550",
        "Intel Data Center GPU Max 1550 specifications, halved because PyTorch treats each of the two tiles as a device",
        "f64 26 f32 26 tf32 209.5 f16 419.5 bf16 419.5 i8 839",
        1638.4,
        "Data Center GPU Max 1550",
        "PVC",
        mebibytes=65536,
        read=XPU,
        workspace=0,
    ),
    _device(
        "Jetson AGX Orin 64GB",
        ORIN,
        "f32 5.3 f16 42.5 bf16 42.5 i8 85",
        204.8,
        "Jetson AGX Orin",
        "Jetson Orin",
        mebibytes=64 * 1024,
    ),
)
"""The table of devices. torch reports the name "Orin" for every Orin, whatever its memory, so a run's Orin is measured instead."""

VARIANTS = {"V100-SXM2-32GB": 32 * 1024, "V100 32GB": 32 * 1024, "V100-SXM3-32GB": 32 * 1024, "V100-PCIE-32GB": 32 * 1024, "RTX 4060 Ti 16GB": 16 * 1024}  # fmt: skip
"""Names of variants that differ from a listed device only in memory, with the variant's MiB."""


def listed_at(place: str) -> Device | None:
    """Return the device of a run at ``place`` from the table; None if it is not listed. Nothing is measured."""
    return listed(parts_of(place)[1])


def parts_of(place: str) -> tuple[str, str]:
    """Split a place such as "cuda:0 (NVIDIA H100 80GB HBM3)" into torch's device string and the hardware's name."""
    where, _, described = place.partition(" (")
    return where, where if where == "cpu" else described.removesuffix(")") or where


def counted_for_another(counted_for: str) -> str:
    """Return the note for a report that was not counted for a GPU."""
    return f'counted for {counted_for}, which runs other kernels than a GPU; to count for a GPU, use count(..., device="cuda")'

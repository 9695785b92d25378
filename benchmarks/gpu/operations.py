"""Measure the device time of a few hundred operations, for calibration, together with fxflops's counts for them.

``operations.csv`` has a row for each operation: family, dtype, shapes, layout, the median time in seconds, its spread, the number
of calls in a sample and of samples, fxflops's FLOPs, bytes and bound, and the clock and power of the card.

Inputs are random. Inputs and results rotate through more memory than the cache holds (see ``device_time.py``), except that calls that
touch less than 6 MB find some of it in the cache. The times exclude host overhead.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import traceback
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.bench import Bench, Case, Row, markdown, saved_rows
from benchmarks.gpu.calls import Operation, counts_of, device_of, values
from benchmarks.gpu.device_time import device_times, rotated

TITLE = "Times by operation"
NEEDS = ()
CHUNK = 10
"""Operations per case: if the part is stopped, it loses at most this many."""
SAMPLES, SECONDS = 15, 0.04
COLUMNS = (
    "family", "dtype", "shapes", "layout", "pass", "seconds", "spread", "calls", "samples", "queue_full",
    "flops", "bytes", "bound_seconds", "binds", "sm_mhz", "watts",
)  # fmt: skip
MIB = 2**20
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def cases(bench: Bench) -> list[Case]:
    """Return the operations in chunks of one family. The families take turns, so that a stopped run has some of each."""
    families = [family(bench) for family in FAMILIES]
    if bench.stand_in:
        families = [operations[:2] for operations in families]
    chunks = [[each[at : at + CHUNK] for at in range(0, len(each), CHUNK)] for each in families]
    made = []
    for number, turn in enumerate(zip_longest(*chunks)):
        for chunk in turn:
            if chunk:
                name = f"{chunk[0].family} {number + 1}"
                made.append(Case(name, partial(timed, bench, chunk), len(chunk)))
    return made


def timed(bench: Bench, operations: list[Operation]) -> Row:
    """Time some operations, and rewrite ``operations.csv`` with all times so far."""
    device, times, raised = device_of(bench), [], []
    for operation in operations:
        try:
            times.append(time_of(bench, operation, device))
        except Exception as error:
            # Keep the times of the other operations; the table lists this one as raised.
            raised.append(f"{operation.name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
            with (bench.out / "operations.errors.txt").open("a", encoding="utf8") as errors:
                errors.write(f"{operation.name}\n{traceback.format_exc()}\n")
    mhz, watts = clock_and_power(bench)
    for row in times:
        row.update(sm_mhz=mhz, watts=watts)
    known = [row for saved in saved_rows(bench.out / "operations.jsonl") for row in saved.get("times", ())]
    with (bench.out / "operations.csv").open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows([*known, *times])
    return {"family": operations[0].family, "times": times, "raised in it": raised}


def time_of(bench: Bench, operation: Operation, device: Any) -> Row:
    """Return the row of one operation."""
    function, make = operation.timed()
    with operation.context():
        run = rotated(function, make)
        times = device_times(bench, run, SAMPLES, SECONDS)
    del run  # free its buffers before the count allocates its own
    counts = counts_of(operation, device)
    return {
        "family": operation.family,
        "dtype": operation.dtype,
        "shapes": operation.shapes,
        "layout": operation.layout,
        "pass": "backward" if operation.backward else "forward",
        "seconds": float(f"{times.median:.5g}"),
        "spread": round(times.spread, 4),
        "calls": times.calls,
        "samples": len(times.seconds),
        "queue_full": times.is_full,
        "flops": counts.flops,
        "bytes": counts.bytes,
        "bound_seconds": float(f"{counts.bound:.5g}"),
        "binds": counts.binds,
    }


def clock_and_power(bench: Bench) -> tuple[float | None, float | None]:
    """Return the current SM clock in MHz and the power in W from nvidia-smi; (None, None) if it does not report them."""
    if bench.stand_in or not shutil.which("nvidia-smi"):
        return None, None
    command = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "--id=0"]
    cells = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.split(",")
    try:
        return float(cells[0]), float(cells[1])
    except (ValueError, IndexError):
        return None, None


def table(rows: list[Row]) -> list[str]:
    """Return the families with their number of calls and shares of the bound, then the calls that are faster than their bound."""
    times = [time for row in rows for time in row["times"]]
    raised = [line for row in rows for line in row["raised in it"]]
    families: dict[str, list[Row]] = {}
    for time in times:
        families.setdefault(f"{time['family']}, {time['pass']}", []).append(time)
    body = []
    for family, members in families.items():
        shares = sorted(time["bound_seconds"] / time["seconds"] for time in members)
        above = sum(share > 1 for share in shares)
        waited = sum(not time["queue_full"] for time in members)
        spread = median(time["spread"] for time in members)
        body.append([family, len(members), median(shares), shares[0], shares[-1], above, spread, waited])
    head = [
        "family",
        "calls",
        "median of bound / time",
        "lowest",
        "highest",
        "above 1",
        "median spread",
        "device waited",
    ]
    lines = [
        f"{len(times)} calls, in `operations.csv`. Inputs are random and rotate through 200 MB. A share above 1 is a call that "
        "was faster than fxflops's bound.",
        "",
        *markdown(head, body),
    ]
    fast = [time for time in times if time["seconds"] < time["bound_seconds"]]
    if fast:
        fast.sort(key=lambda time: time["seconds"] / time["bound_seconds"])
        shown = [
            [f"{t['family']} {t['shapes']} {t['layout']}", t["dtype"], t["pass"], t["seconds"] * 1e6, t["bound_seconds"] * 1e6, t["binds"]]
            for t in fast[:60]
        ]  # fmt: skip
        lines += ["", "## Below the bound", ""]
        lines += markdown(["call", "dtype", "pass", "time (us)", "bound (us)", "binds"], shown)
    if raised:
        lines += ["", "## Calls that raised", "", *(f"- {line}" for line in raised)]
    return lines


def gemms(bench: Bench) -> list[Operation]:
    """Matrix products: square ones, layers of language models, unaligned sizes, and transposed inputs."""
    small = bench.stand_in

    def gemm(m: int, n: int, k: int, dtype: str = "bf16", layout: str = "NT") -> Operation:
        # N and T are as in BLAS: "NT" multiplies by a transposed matrix, as a linear layer does with its weight.
        def make() -> tuple[torch.Tensor, torch.Tensor]:
            a = values(bench, m, k, dtype=dtype) if layout[0] == "N" else values(bench, k, m, dtype=dtype).t()
            b = values(bench, k, n, dtype=dtype) if layout[1] == "N" else values(bench, n, k, dtype=dtype).t()
            return a, b

        return Operation("gemm", f"m={m} n={n} k={k}", dtype, torch.mm, make, layout)

    if small:
        return [gemm(16, 16, 16), gemm(8, 16, 8, "f32", "NN")]
    weights = [
        (4096, 4096),
        (14336, 4096),
        (4096, 14336),
        (768, 768),
        (3072, 768),
        (768, 3072),
        (6144, 4096),
        (8192, 8192),
    ]
    found = [gemm(n, n, n) for n in (4096, 1024, 8192, 2048, 512, 256, 128)]
    found += [gemm(m, n, k) for m in (2048, 1, 128) for n, k in weights]
    found += [gemm(n, n, n, dtype) for dtype in ("f32", "tf32", "f16") for n in (4096, 1024, 2048)]
    found += [gemm(2048, n, k, layout=layout) for layout in ("NN", "TN", "TT") for n, k in ((4096, 4096), (3072, 768))]
    odd = [
        (1000, 1000, 1000),
        (1023, 1023, 1023),
        (4095, 4095, 4095),
        (4097, 4097, 4097),
        (2048, 4096, 4095),
        (2047, 768, 768),
    ]
    found += [gemm(*sizes) for sizes in odd]
    found += [gemm(m, n, k) for m in (512, 8192, 16) for n, k in weights[:7]]
    found += [gemm(m, n, k, dtype) for dtype in ("f32", "tf32") for m in (2048, 1, 128) for n, k in weights[:4:3]]
    found += [gemm(m, 128256, 4096) for m in (1, 128, 2048)]
    found += [gemm(n, n, n, dtype) for dtype in ("f32", "tf32", "f16") for n in (1023, 256, 4097)]
    found += [gemm(m, n, k, "f16") for m in (2048, 1) for n, k in weights[:4]]
    found += [
        gemm(2048, 64, 4096),
        gemm(64, 64, 65536),
        gemm(65536, 64, 64),
        gemm(32, 1000, 2048),
        gemm(32, 1000, 2048, "tf32"),
    ]
    return [*found, gemm(4096, 4096, 4096, "f64"), gemm(1024, 1024, 1024, "f64")]


def batched(bench: Bench) -> list[Operation]:
    """Batched matrix products, as in attention and mixtures of experts."""

    def bmm(b: int, m: int, n: int, k: int, dtype: str = "bf16", layout: str = "NN") -> Operation:
        def make() -> tuple[torch.Tensor, torch.Tensor]:
            other = values(bench, b, k, n, dtype=dtype)
            if layout == "NT":
                other = values(bench, b, n, k, dtype=dtype).transpose(1, 2)
            return values(bench, b, m, k, dtype=dtype), other

        return Operation("batched gemm", f"b={b} m={m} n={n} k={k}", dtype, torch.bmm, make, layout)

    if bench.stand_in:
        return [bmm(2, 8, 8, 8)]
    shapes = [
        (384, 512, 512, 64, "NT"),
        (384, 512, 64, 512, "NN"),
        (64, 1024, 1024, 128, "NT"),
        (8, 2048, 4096, 4096, "NN"),
    ]
    shapes += [(384, 197, 197, 64, "NT"), (384, 197, 64, 197, "NN"), (1024, 49, 49, 32, "NT"), (32, 1, 4096, 128, "NT")]
    found = [bmm(*sizes, "bf16", layout) for *sizes, layout in shapes]
    return found + [bmm(*sizes, dtype, layout) for dtype in ("tf32", "f32") for *sizes, layout in shapes[:6]]


def attentions(bench: Bench) -> list[Operation]:
    """scaled_dot_product_attention, forward and backward, by backend, head size, length and causality, and with grouped queries."""

    def attention(
        length: int, head: int = 128, causal: bool = False, backend: str = "flash", dtype: str = "bf16",
        heads: int = 0, grouped: int = 0, batch: int = 0, keys: int = 0, backward: bool = False,
    ) -> Operation:  # fmt: skip
        # By default, there are 16,384 tokens of width 2,048 in total.
        batch, heads, keys = batch or max(1, 16384 // length), heads or 2048 // head, keys or length

        def make() -> tuple[torch.Tensor, ...]:
            query = values(bench, batch, heads, length, head, dtype=dtype)
            key, value = (values(bench, batch, grouped or heads, keys, head, dtype=dtype) for _ in range(2))
            return query, key, value

        function = partial(F.scaled_dot_product_attention, is_causal=causal, enable_gqa=bool(grouped))
        shapes = f"b={batch} heads={heads}{f'/{grouped}' if grouped else ''} q={length} k={keys} d={head}"
        layout = backend + (" causal" if causal else "")
        around = partial(sdpa_kernel, BACKENDS[backend])
        return Operation("attention", shapes, dtype, function, make, layout, backward, around)

    if bench.stand_in:
        tiny = partial(attention, 8, 16, batch=1, heads=2, backend="math", dtype="f32")
        return [tiny(), tiny(backward=True)]
    lengths = (2048, 512, 8192, 1024, 4096, 128, 16384)
    found = [attention(length, 128, causal) for causal in (False, True) for length in lengths[:4]]
    found += [attention(length, 128, True, backward=True) for length in lengths[:3]]
    found += [attention(length, 64, causal) for causal in (False, True) for length in lengths[:4]]
    found += [attention(length, 128, True, "cudnn") for length in lengths[:3]]
    found += [attention(length, 128, True, "efficient") for length in lengths[:3]]
    found += [attention(1, 128, batch=b, heads=32, grouped=8, keys=keys) for b in (1, 32) for keys in (1024, 8192)]
    found += [attention(length, 128, True, heads=32, grouped=8) for length in lengths[:3]]
    found += [attention(length, 64, False, backward=True) for length in lengths[:2]]
    found += [attention(length, 64, False, "efficient", dtype) for dtype in ("f32", "tf32") for length in lengths[:2]]
    found += [attention(length, 128, True, "cudnn", backward=True) for length in lengths[:2]]
    found += [attention(length, 128, True, "efficient", backward=True) for length in lengths[:2]]
    found += [attention(length, 128, causal) for causal in (False, True) for length in lengths[4:]]
    found += [attention(length, 64, causal) for causal in (False, True) for length in lengths[4:]]
    found += [attention(197, 64, batch=64, heads=16), attention(197, 64, batch=64, heads=12, backend="efficient")]
    found += [attention(512, 64, backend="math"), attention(512, 64, backend="math", backward=True)]
    found += [attention(length, 128, backend="cudnn") for length in lengths[:3]]
    return [
        *found,
        attention(2048, 96, True, heads=16),
        attention(2048, 256, True),
        attention(2048, 128, True, dtype="f16"),
    ]


def convolutions(bench: Bench) -> list[Operation]:
    """Convolutions of ResNet-50, ConvNeXt, MobileNet and a VAE, in both layouts."""

    def conv(
        batch: int, channels: int, out: int, size: int, kernel: int, stride: int = 1, groups: int = 1,
        dtype: str = "bf16", last: bool = True, backward: bool = False,
    ) -> Operation:  # fmt: skip
        def make() -> tuple[torch.Tensor, torch.Tensor]:
            x = values(bench, batch, channels, size, size, dtype=dtype, channels_last=last)
            return x, values(bench, out, channels // groups, kernel, kernel, dtype=dtype, channels_last=last)

        padding = 0 if kernel == stride else kernel // 2
        function = partial(F.conv2d, stride=stride, padding=padding, groups=groups)
        shapes = f"b={batch} c={channels} out={out} hw={size} k={kernel} s={stride} g={groups}"
        layout = "channels_last" if last else "NCHW"
        return Operation("conv", shapes, dtype, function, make, layout, backward)

    if bench.stand_in:
        return [conv(1, 4, 4, 8, 3, dtype="f32"), conv(1, 4, 4, 8, 3, groups=4, dtype="f32", last=False)]
    resnet = [
        (64, 64, 56, 3),
        (256, 256, 14, 3),
        (64, 256, 56, 1),
        (512, 512, 7, 3),
        (1024, 256, 14, 1),
        (128, 128, 28, 3),
    ]
    resnet += [(3, 64, 224, 7, 2), (256, 512, 56, 1, 2), (512, 2048, 7, 1), (128, 128, 56, 3, 2)]
    found = [conv(32, *sizes) for sizes in resnet[:6]]
    depthwise = [(96, 56, 7), (384, 14, 7), (32, 112, 3), (768, 7, 7), (192, 28, 7), (144, 56, 3)]
    found += [conv(32, c, c, size, kernel, groups=c) for c, size, kernel in depthwise[:4]]
    found += [conv(32, *sizes, dtype="tf32", last=False) for sizes in resnet[:4]]
    found += [conv(32, *sizes, backward=True) for sizes in resnet[:3]]
    found += [conv(32, *sizes, dtype="f32", last=False) for sizes in resnet[:3]]
    found += [conv(32, *sizes, last=False) for sizes in resnet[:4]]
    found += [conv(32, *sizes) for sizes in resnet[6:]]
    found += [conv(32, c, c, size, kernel, groups=c, dtype="f32", last=False) for c, size, kernel in depthwise[:4]]
    found += [
        conv(64, 3, 1024, 224, 16, 16),
        conv(64, 3, 96, 224, 4, 4),
        conv(4, 512, 512, 64, 3),
        conv(1, 320, 320, 64, 3),
    ]
    found += [conv(32, c, c, size, kernel, groups=c) for c, size, kernel in depthwise[4:]]
    found += [
        conv(32, 384, 384, 14, 7, groups=384, backward=True),
        conv(32, 64, 64, 56, 3, dtype="tf32", last=False, backward=True),
    ]
    found += [
        conv(32, 256, 256, 14, 3, groups=32),
        conv(1, 64, 64, 56, 3),
        conv(1, 512, 512, 7, 3),
        conv(256, 64, 64, 56, 3),
    ]
    found += [conv(32, *sizes, dtype="tf32", last=True) for sizes in resnet[:3]]
    found += [conv(32, *sizes, dtype="f16") for sizes in resnet[:3]]
    return [*found, *(conv(32, *sizes, dtype="tf32", last=False) for sizes in resnet[4:])]


def elementwise(bench: Bench) -> list[Operation]:
    """Unary, binary and broadcast operations, with results of 1 KB to 1 GB."""

    def each(
        name: str, function: Callable[..., Any], inputs: int, nbytes: int, dtype: str = "bf16", last: int = 0
    ) -> Operation:
        # With last, the second input is a vector of that length, broadcast over the rows.
        def make() -> tuple[torch.Tensor, ...]:
            numel = nbytes // (2 if dtype in ("bf16", "f16") else 4)
            if last:
                return values(bench, numel // last, last, dtype=dtype), values(bench, last, dtype=dtype)
            return tuple(values(bench, numel, dtype=dtype) for _ in range(inputs))

        shapes = f"{name} {nbytes} B" + (f" with {last}" if last else "")
        return Operation("elementwise", shapes, dtype, function, make)

    if bench.stand_in:
        return [each("add", torch.add, 2, 1024), each("gelu", F.gelu, 1, 1024, "f32")]
    sizes = (64 * MIB, MIB, 2**30, 2**10, 16 * MIB, 256 * MIB, 2**14, 2**17)
    found = [each("add", torch.add, 2, size) for size in sizes[:4]]
    found += [each("gelu", F.gelu, 1, size) for size in sizes[:4]]
    found += [each("add", torch.add, 2, size, last=4096) for size in sizes[:2]]
    found += [each("add", torch.add, 2, size, "f32") for size in sizes[:4]]
    unary: dict[str, Callable[..., Any]] = {
        "silu": F.silu,
        "relu": F.relu,
        "exp": torch.exp,
        "mul by a number": partial(torch.mul, other=0.5),
        "to f32": lambda x: x.to(torch.float32),
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "rsqrt": torch.rsqrt,
        "gelu tanh": partial(F.gelu, approximate="tanh"),
        "pow 2": partial(torch.pow, exponent=2),
        "neg": torch.neg,
    }
    found += [each(name, function, 1, 64 * MIB) for name, function in unary.items()]
    found += [each("mul", torch.mul, 2, size) for size in sizes[:2]]
    found += [each("div", torch.div, 2, 64 * MIB), each("where", lambda x, y: torch.where(x > 0, x, y), 2, 64 * MIB)]
    found += [each("relu in place", lambda x: x.relu_(), 1, 64 * MIB), each("addcmul", torch.addcmul, 3, 64 * MIB)]
    found += [each("gelu", F.gelu, 1, size, "f32") for size in sizes[:4]]
    found += [each("add", torch.add, 2, size) for size in sizes[4:]]
    found += [each("gelu", F.gelu, 1, size) for size in sizes[4:]]
    found += [each("add", torch.add, 2, size, "f32") for size in sizes[4:]]
    return [
        *found,
        each("mul", torch.mul, 2, 64 * MIB, last=1024),
        each("add", torch.add, 2, 16 * MIB, "f32", last=768),
    ]


def norms(bench: Bench) -> list[Operation]:
    """Layer, RMS, batch and group normalization."""

    def layer(rows: int, width: int, dtype: str = "bf16", rms: bool = False, backward: bool = False) -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            weights = [values(bench, width, dtype=dtype) for _ in range(1 if rms else 2)]
            return (values(bench, rows, width, dtype=dtype), *weights)

        def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
            return F.rms_norm(x, (width,), *weights) if rms else F.layer_norm(x, (width,), *weights)

        name = "rms_norm" if rms else "layer_norm"
        shapes = f"{name} rows={rows} width={width}"
        # CUDA has one kernel for the gradients of rms_norm. On meta, they are a dozen operators.
        observed = rms and backward
        return Operation("norm", shapes, dtype, function, make, backward=backward, observed=observed)

    def batch(n: int, c: int, size: int, last: bool = True, dtype: str = "bf16", backward: bool = False) -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            # The weights have the input's dtype, as in a model that was cast; under autocast they would be f32.
            weights = [values(bench, c, dtype=dtype) for _ in range(2)]
            return (values(bench, n, c, size, size, dtype=dtype, channels_last=last), *weights)

        def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(x, None, None, weight, bias, training=True)

        shapes = f"batch_norm b={n} c={c} hw={size}"
        return Operation("norm", shapes, dtype, function, make, "channels_last" if last else "NCHW", backward)

    def group(n: int, c: int, size: int, groups: int = 32, dtype: str = "bf16", last: bool = False) -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            weights = [values(bench, c, dtype=dtype) for _ in range(2)]
            return (values(bench, n, c, size, size, dtype=dtype, channels_last=last), *weights)

        def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.group_norm(x, groups, weight, bias)

        shapes = f"group_norm b={n} c={c} hw={size} groups={groups}"
        return Operation("norm", shapes, dtype, function, make, "channels_last" if last else "NCHW")

    if bench.stand_in:
        return [layer(4, 16, "f32"), batch(2, 4, 4, False, "f32")]
    found = [layer(16384, 4096), layer(16384, 4096, rms=True), batch(32, 64, 112), group(4, 512, 64)]
    found += [layer(12608, 768), layer(16384, 4096, backward=True), batch(32, 256, 56, False), layer(1, 4096, rms=True)]
    found += [batch(32, 256, 56, False, "f32"), batch(32, 256, 56, backward=True), layer(16384, 4096, "f32")]
    found += [
        layer(2048, 4096, rms=True),
        layer(16384, 4096, rms=True, backward=True),
        layer(2048, 1024),
        group(1, 320, 64),
    ]
    found += [layer(128, 768), layer(65536, 256), layer(2048, 16384), layer(16384, 4097), batch(32, 2048, 7)]
    found += [batch(32, 1024, 14), batch(32, 1024, 14, False), group(4, 512, 64, last=True), group(4, 128, 256)]
    return [
        *found,
        layer(12608, 768, "f32"),
        layer(12608, 768, backward=True),
        layer(512, 8192, rms=True),
        layer(16384, 4096, "f16"),
    ]


def softmaxes(bench: Bench) -> list[Operation]:
    """Softmax, log_softmax and cross entropy."""

    def softmax(rows: int, width: int, dtype: str = "bf16", backward: bool = False, log: bool = False) -> Operation:
        function = partial(F.log_softmax if log else F.softmax, dim=-1)

        def make() -> tuple[torch.Tensor, ...]:
            return (values(bench, rows, width, dtype=dtype),)

        name = "log_softmax" if log else "softmax"
        return Operation("softmax", f"{name} rows={rows} width={width}", dtype, function, make, backward=backward)

    def cross_entropy(rows: int, width: int, dtype: str = "bf16") -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            return values(bench, rows, width, dtype=dtype), torch.randint(width, (rows,), device=bench.device)

        return Operation("softmax", f"cross_entropy rows={rows} width={width}", dtype, F.cross_entropy, make)

    if bench.stand_in:
        return [softmax(4, 16, "f32"), cross_entropy(4, 16, "f32")]
    found = [
        softmax(49152, 512),
        softmax(65536, 2048),
        softmax(4096, 128256, "f32"),
        softmax(49152, 512, backward=True),
    ]
    found += [
        cross_entropy(4096, 128256),
        softmax(49152, 512, "f32"),
        softmax(256, 1000),
        softmax(4096, 50257, log=True),
    ]
    return [
        *found,
        softmax(1, 128256),
        softmax(100864, 197),
        softmax(8192, 8192),
        softmax(4096, 50257, "f32", log=True),
    ]


def reductions(bench: Bench) -> list[Operation]:
    """Sums, means, maxima, scans, norms and sorts, over all dimensions or some of them."""

    def reduction(name: str, function: Callable[..., Any], *shape: int, dtype: str = "bf16") -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            return (values(bench, *shape, dtype=dtype),)

        return Operation("reduction", f"{name} of {'x'.join(map(str, shape))}", dtype, function, make)

    by_row, by_column = partial(torch.sum, dim=-1), partial(torch.sum, dim=0)
    if bench.stand_in:
        return [reduction("sum", torch.sum, 64, 64), reduction("sum of rows", by_row, 64, 64)]
    found = [reduction("sum", torch.sum, 8192, 8192), reduction("sum of rows", by_row, 16384, 4096)]
    found += [
        reduction("sum of columns", by_column, 16384, 4096),
        reduction("mean", torch.mean, 8192, 8192, dtype="f32"),
    ]
    found += [reduction("argmax of rows", partial(torch.argmax, dim=-1), 4096, 128256)]
    found += [
        reduction("cumsum of rows", partial(torch.cumsum, dim=-1), 16384, 4096),
        reduction("sum", torch.sum, 1024, 1024),
    ]
    found += [reduction("mean of pixels", partial(torch.mean, dim=(2, 3)), 32, 2048, 7, 7)]
    found += [
        reduction("max of rows", partial(torch.amax, dim=-1), 16384, 4096),
        reduction("norm", torch.linalg.vector_norm, 2**28),
    ]
    found += [
        reduction("variance of rows", partial(torch.var, dim=-1), 16384, 4096),
        reduction("sum", torch.sum, 32, 32),
    ]
    found += [reduction("top 50 of rows", lambda x: torch.topk(x, 50), 64, 128256, dtype="f32")]
    return [*found, reduction("sort of rows", partial(torch.sort, dim=-1), 1024, 4096, dtype="f32")]


def lookups(bench: Bench) -> list[Operation]:
    """Embedding, gather and index_select, at random indices."""

    def embedding(rows: int, width: int, taken: int, dtype: str = "bf16", backward: bool = False) -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            return torch.randint(rows, (taken,), device=bench.device), values(bench, rows, width, dtype=dtype)

        shapes = f"embedding rows={rows} width={width} taken={taken}"
        return Operation("lookup", shapes, dtype, F.embedding, make, backward=backward)

    def index_select(rows: int, width: int, taken: int) -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            return values(bench, rows, width), torch.randint(rows, (taken,), device=bench.device)

        def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return torch.index_select(x, 0, index)

        return Operation("lookup", f"index_select rows={rows} width={width} taken={taken}", "bf16", function, make)

    def gather(rows: int, width: int, taken: int) -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            return values(bench, rows, width), torch.randint(width, (rows, taken), device=bench.device)

        def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return torch.gather(x, 1, index)

        return Operation("lookup", f"gather rows={rows} width={width} taken={taken}", "bf16", function, make)

    if bench.stand_in:
        return [embedding(32, 8, 4, "f32"), gather(8, 8, 4)]
    found = [embedding(128256, 4096, 16384), embedding(50257, 768, 8192), embedding(128256, 4096, 1)]
    found += [index_select(65536, 1024, 32768), gather(16384, 4096, 1024), embedding(50257, 768, 8192, "f32")]
    return [*found, embedding(1_000_000, 128, 65536, "f32"), embedding(50257, 768, 8192, backward=True)]


def copies(bench: Bench) -> list[Operation]:
    """Copies, transposes, concatenation, padding, and changes of the memory format."""

    def copy(name: str, function: Callable[..., Any], *shape: int, inputs: int = 1, dtype: str = "bf16") -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            return tuple(values(bench, *shape, dtype=dtype) for _ in range(inputs))

        return Operation("copy", f"{name} of {'x'.join(map(str, shape))}", dtype, function, make)

    def transpose(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(-1, -2).contiguous()

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 1, 3).contiguous()

    def to_last(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last)

    def concatenated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y], -1)

    if bench.stand_in:
        return [copy("clone", torch.clone, 64, 64), copy("transpose", transpose, 64, 32)]
    found = [copy("clone", torch.clone, 8192, 8192), copy("transpose", transpose, 8192, 8192)]
    found += [copy("heads", heads, 8, 2048, 32, 128), copy("cat", concatenated, 16384, 4096, inputs=2)]
    found += [copy("to channels_last", to_last, 32, 256, 56, 56), copy("clone", torch.clone, 1024, 1024)]
    found += [copy("pad", lambda x: F.pad(x, (1, 1, 1, 1)), 32, 256, 56, 56), copy("clone", torch.clone, 32768, 16384)]
    found += [copy("transpose", transpose, 8192, 8192, dtype="f32"), copy("transpose", transpose, 512, 512)]
    found += [copy("flip", lambda x: x.flip(0), 8192, 8192), copy("roll", lambda x: x.roll(1, -1), 8192, 8192)]
    return [
        *found,
        copy("repeat", lambda x: x.repeat(2, 1), 8192, 4096),
        copy("fill", lambda x: x.fill_(1.5), 8192, 8192),
    ]


def pools(bench: Bench) -> list[Operation]:
    """Pooling and interpolation."""

    def pool(name: str, function: Callable[..., Any], *shape: int, dtype: str = "bf16", last: bool = True) -> Operation:
        def make() -> tuple[torch.Tensor, ...]:
            return (values(bench, *shape, dtype=dtype, channels_last=last),)

        layout = "channels_last" if last else "NCHW"
        return Operation("pool", f"{name} of {'x'.join(map(str, shape))}", dtype, function, make, layout)

    most = partial(F.max_pool2d, kernel_size=3, stride=2, padding=1)
    if bench.stand_in:
        return [pool("max 3x3", most, 1, 4, 8, 8, dtype="f32")]
    found = [pool("max 3x3", most, 32, 64, 112, 112), pool("max 3x3", most, 32, 64, 112, 112, last=False)]
    found += [pool("average 2x2", partial(F.avg_pool2d, kernel_size=2), 32, 256, 56, 56)]
    found += [pool("mean", partial(F.adaptive_avg_pool2d, output_size=1), 32, 2048, 7, 7)]
    nearest = partial(F.interpolate, scale_factor=2, mode="nearest")
    found += [pool("nearest x2", nearest, 4, 512, 64, 64), pool("nearest x2", nearest, 4, 512, 64, 64, last=False)]
    bilinear = partial(F.interpolate, scale_factor=2, mode="bilinear")
    return [
        *found,
        pool("bilinear x2", bilinear, 4, 256, 64, 64, last=False),
        pool("max 3x3", most, 32, 64, 112, 112, dtype="f32"),
    ]


FAMILIES = (gemms, attentions, convolutions, elementwise, norms, batched, softmaxes, reductions, copies, lookups, pools)

"""A single operation that the parts time: a function, its inputs, and its count by fxflops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

import fxflops
from benchmarks.gpu.bench import Bench
from fxflops.roofline.devices import Device, find_device, listed
from fxflops.roofline.measured_peaks import measured

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "tf32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
}
"""torch's dtypes. "tf32" is f32 for which matrix products and convolutions may use TF32."""


@dataclass(frozen=True)
class Operation:
    """A call of ``function`` on the inputs that ``make()`` returns, or its backward pass.

    ``around`` returns a context for the timed call, e.g. one that selects the attention kernel; fxflops counts without it.
    ``observed`` is True for a backward pass that is one kernel on the device but several operators on meta. ``count`` would count
    those operators, so the pass is counted from a run on the device instead.
    """

    family: str
    shapes: str
    dtype: str
    function: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    layout: str = ""
    backward: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    observed: bool = False

    @property
    def name(self) -> str:
        words = [self.family, self.shapes, self.dtype, self.layout, "backward" if self.backward else ""]
        return " ".join(word for word in words if word)

    @contextmanager
    def context(self) -> Iterator[None]:
        """The context in which the operation runs: its TF32 setting and ``around``."""
        with tf32(self.dtype == "tf32"), self.around():
            yield

    def timed(self) -> tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]:
        """Return the function to time, and the function that makes its inputs. For a backward pass, only the gradients are timed."""
        if not self.backward:
            return torch.no_grad()(self.function), self.make

        def make() -> tuple[Any, ...]:
            inputs = self.make_with_gradients()
            with torch.enable_grad():
                out = self.function(*inputs)
            wanted = [each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad]
            return (*wanted, out, torch.randn_like(out))

        def gradients(*values: Any) -> Any:
            *wanted, out, gradient = values
            return torch.autograd.grad(out, wanted, gradient, retain_graph=True)

        return gradients, make

    def make_with_gradients(self) -> tuple[Any, ...]:
        """Make inputs. Floating-point inputs require a gradient."""
        inputs = self.make()
        for each in inputs:
            if isinstance(each, torch.Tensor) and each.is_floating_point():
                each.requires_grad_(True)
        return inputs


class Called(nn.Module):
    """A module that calls a function, for fxflops to count."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Counts(NamedTuple):
    """The FLOPs, bytes and roofline bound (in seconds) of an operation, and the resource that binds it."""

    flops: int
    bytes: int
    bound: float
    binds: str


NOT_TIMED = ("copy", "detach", "t", "new_empty_strided", "expand", "ones_like", "clone")
"""Operations of a counted backward pass that the timed one lacks: it starts from a given gradient, and does not accumulate into .grad."""


def counts_of(operation: Operation, device: Device) -> Counts:
    """Return fxflops's counts for an operation, and its bound on a device."""
    inputs = operation.make_with_gradients() if operation.backward else operation.make()
    with tf32(operation.dtype == "tf32"):
        if operation.observed:
            report = observed(operation, inputs)
        else:
            report = fxflops.count(Called(operation.function), inputs, backward=operation.backward)
        phase = "backward" if operation.backward else "forward"
        rows = report.roofline(device, phase=phase).rows
    if operation.backward:
        rows = tuple(row for row in rows if row.op not in NOT_TIMED)
    largest = max(rows, key=lambda row: row.bound_seconds)
    return Counts(
        sum(row.flops for row in rows),
        sum(row.bytes for row in rows),
        sum(row.bound_seconds for row in rows),
        largest.binds,
    )


def observed(operation: Operation, inputs: tuple[Any, ...]) -> fxflops.Report:
    """Profile the call and its backward pass on the device, and return the report."""
    model = Called(operation.function)
    with fxflops.profile(model) as profiled:
        out = model(*inputs)
        out.backward(torch.ones_like(out))
    return profiled.report


def device_of(bench: Bench) -> Device:
    """Return the device's ceilings as a user would get them: from the table of devices, otherwise measured. The stand-in uses an H100's."""
    if bench.stand_in:
        return replace(find_device("H100 SXM"), name="cpu")  # as reports call it
    name = torch.cuda.get_device_name(bench.device)
    return listed(name) or measured(str(bench.device), ("bf16", "f16", "f32", "f64"))


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 for matrix products and cuDNN operations on f32."""
    # Use the older settings: once the newer ones (fp32_precision) are set, reading the older raises, and other libraries read them.
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def values(bench: Bench, *shape: int, dtype: str = "bf16", channels_last: bool = False) -> torch.Tensor:
    """Return random values on the device. With zeros, a GPU would draw less power and run faster than with real data."""
    kind = DTYPES[dtype]
    if kind is torch.int8:
        tensor = torch.randint(-128, 128, shape, dtype=kind, device=bench.device)
    else:
        tensor = torch.randn(shape, dtype=kind, device=bench.device)
    return tensor.to(memory_format=torch.channels_last) if channels_last else tensor

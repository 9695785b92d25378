"""The strides of results and gradients in a count are those of a real run on the CPU, if images are channels last or permuted.

``benchmarks/formats.py`` compares all operators of torch's operator database in the same way.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
IMAGE, VOLUME, SMALL = (2, 6, 8, 10), (2, 4, 6, 8, 10), (1, 6, 8, 1)
STATISTICS = torch.zeros(6), torch.ones(6)
Call = Callable[[torch.Tensor], torch.Tensor]
CALLS: dict[str, tuple[tuple[int, ...], Call]] = {
    "conv2d": (IMAGE, lambda x: F.conv2d(x, torch.ones(4, 6, 3, 3))),
    "conv2d of one channel": ((2, 1, 8, 10), lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3))),
    "conv2d in groups": (IMAGE, lambda x: F.conv2d(x, torch.ones(6, 1, 3, 3), groups=6)),
    "conv3d": (VOLUME, lambda x: F.conv3d(x, torch.ones(4, 4, 3, 3, 3))),
    "conv3d of one small volume": ((1, 2, 4, 4, 4), lambda x: F.conv3d(x, torch.ones(4, 2, 3, 3, 3))),
    "conv_transpose2d": (IMAGE, lambda x: F.conv_transpose2d(x, torch.ones(6, 4, 3, 3))),
    "conv_transpose3d": (VOLUME, lambda x: F.conv_transpose3d(x, torch.ones(4, 4, 3, 3, 3))),
    "conv_transpose3d of one small volume": (
        (1, 2, 4, 4, 4),
        lambda x: F.conv_transpose3d(x, torch.ones(2, 4, 3, 3, 3)),
    ),
    "group_norm": (IMAGE, lambda x: F.group_norm(x, 2)),
    "group_norm of volumes": (VOLUME, lambda x: F.group_norm(x, 2)),
    "batch_norm": (IMAGE, lambda x: F.batch_norm(x, *STATISTICS)),
    "batch_norm in training": (IMAGE, lambda x: F.batch_norm(x, None, None, training=True)),
    "reflection pad": (IMAGE, lambda x: F.pad(x, (1, 2, 1, 2), "reflect")),
    "replication pad": (IMAGE, lambda x: F.pad(x, (1, 2, 1, 2), "replicate")),
    "replication pad of volumes": (VOLUME, lambda x: F.pad(x, (1, 2, 1, 2, 1, 2), "replicate")),
    "constant pad": (IMAGE, lambda x: F.pad(x, (1, 2, 1, 2))),
    "max_unpool2d": (IMAGE, lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)),
    "pixel_shuffle": ((2, 8, 4, 6), lambda x: F.pixel_shuffle(x, 2)),
    "pixel_unshuffle": (IMAGE, lambda x: F.pixel_unshuffle(x, 2)),
    "channel_shuffle": (IMAGE, lambda x: F.channel_shuffle(x, 2)),
    "glu": (IMAGE, lambda x: F.glu(x, 1)),
    "interpolate": (IMAGE, lambda x: F.interpolate(x, scale_factor=2)),
    "avg_pool2d": (IMAGE, lambda x: F.avg_pool2d(x, 2)),
    "add": (IMAGE, lambda x: x + 1),
    "add and conv2d of images with dims of size 1": (
        SMALL,
        lambda x: F.conv2d(x + x.contiguous(), torch.ones(4, 6, 3, 1)),
    ),
}
Lying = tuple[tuple[int, ...], tuple[int, ...]]
NOTED: list[Lying] = []
"""What the models below note. It is no attribute of a model, since a count restores these."""


class Calling(nn.Module):
    """Makes a call, and notes how its result and the gradient of its input lie in memory."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        if x.requires_grad:
            x.register_hook(note)
        out = self.call(x)
        note(out)
        return (2 * out).sum()


def note(tensor: torch.Tensor) -> None:
    if tensor.ndim in FORMATS:
        # The strides of dims with one element say nothing.
        strides = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
        NOTED.append((tuple(tensor.shape), tuple(strides)))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_images_lie_as_on_the_cpu(name: str, backward: bool) -> None:
    shape, call = CALLS[name]
    model, x = Calling(call), torch.randn(shape).to(memory_format=FORMATS[len(shape)])
    NOTED.clear()
    with torch.set_grad_enabled(backward):
        out = model(x)
        if backward:
            out.backward()
    real = [*NOTED]
    NOTED.clear()
    report = fxflops.count(model, x, backward=backward)
    assert report.trace == "counted on the meta device", report.trace_reason
    assert real == NOTED[-len(real) :]  # a model that uses tensors from outside, such as STATISTICS, is run twice
    assert len(real) == 1 + backward


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("moved", ["image", "weight", "both"])
def test_a_convolution_is_channels_last_if_image_or_weight_is(moved: str, kernel: int, bias: bool) -> None:
    layer, image = nn.Conv2d(8, 6, kernel, bias=bias), torch.randn(2, 8, 9, 9)
    if moved != "weight":
        image = image.to(memory_format=torch.channels_last)
    if moved != "image":
        layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    seen: list[torch.Size] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x)
            seen.append(out.stride())
            return out.contiguous()

    report = fxflops.count(Net(), image)
    real = layer(image)
    assert seen == [real.stride()]
    assert not real.is_contiguous()
    assert report.memory["activations"] == 2 * real.numel() * 4  # contiguous() copies an image that is channels last


def test_a_counted_training_step_has_the_operators_of_a_real_one() -> None:
    """The gradient of a contiguous weight is channels last, like the image, so autograd copies it into the weight's layout."""
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.ReflectionPad2d(1), nn.Conv2d(8, 8, 3), nn.Flatten()
    )
    image = torch.randn(2, 4, 9, 9).to(memory_format=torch.channels_last)
    counted = fxflops.count(model, image, backward=True)
    with fxflops.profile(model) as profile:
        torch.autograd.backward(out := model(image), torch.ones_like(out))
    operators = [[call.op for call in report.calls if call.phase == "backward"] for report in (counted, profile.report)]
    assert operators[0] == operators[1]
    assert operators[0].count("copy") == 2


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dims", [(0, 2, 1), (2, 1, 0), (0, 3, 2, 1), (1, 0, 2, 3)])
def test_batch_norm_of_a_permuted_tensor_is_contiguous_or_channels_last(dims: tuple[int, ...], backward: bool) -> None:
    layer: type[nn.Module] = nn.BatchNorm1d if len(dims) == 3 else nn.BatchNorm2d
    x = torch.randn((4, 6, 5, 3)[: len(dims)]).permute(dims)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = layer(x.shape[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.norm(x)
            NOTED.append((tuple(out.shape), out.stride()))
            return out

    NOTED.clear()
    Net()(x)
    fxflops.count(Net(), x, backward=backward)
    assert NOTED[0] == NOTED[1]
    assert NOTED[0][1] != x.stride()

"""The strides of results and gradients in a count are those of a real run on the CPU, if images are channels last.

The calls are the samples of torch's operator database. The other operators of the database were compared in the same way: only results
with dims of size 1 differ, of ``median``, ``nanmedian``, ``cross_entropy`` and ``linalg.eig``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db  # type: ignore[import-untyped]
from torch.utils._pytree import tree_leaves, tree_map

import fxflops

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
OPERATORS = frozenset(
    "native_group_norm native_batch_norm nn.functional.group_norm nn.functional.batch_norm nn.functional.pad nn.functional.max_unpool2d "
    "nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.channel_shuffle nn.functional.glu nn.functional.interpolate "
    "nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose2d nn.functional.conv_transpose3d nn.functional.avg_pool2d "
    "nn.functional.max_pool2d nn.functional.adaptive_avg_pool2d nn.functional.dropout2d".split()
)
SAMPLES = 8

Lying = tuple[tuple[int, ...], tuple[int, ...]]
NOTED: list[Lying] = []
"""What the models below note. It is no attribute of a model, since a count restores these."""


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def channels_last(value: Any) -> Any:
    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        plain = leaf.detach()
        return plain.clone(memory_format=FORMATS[leaf.ndim]) if leaf.ndim in FORMATS else plain.clone()

    return tree_map(moved, value)


class Calling(nn.Module):
    """Calls an operator, and notes how its results and the gradient of its input lie in memory."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, input: Any, args: Any, kwargs: Any) -> torch.Tensor:
        if input.is_floating_point():
            input = input * self.scale
            if input.requires_grad:
                input.register_hook(note)
        results = tensors_in(self.operator(input, *args, **kwargs))
        for result in results:
            note(result)
        return self.scale * sum((2 * result.float()).sum() for result in results)


def note(tensor: torch.Tensor) -> None:
    if tensor.ndim in FORMATS:
        # The strides of dims with one element say nothing.
        strides = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
        NOTED.append((tuple(tensor.shape), tuple(strides)))


def run(model: Calling, inputs: Any, backward: bool) -> list[Lying]:
    NOTED.clear()
    with torch.set_grad_enabled(backward):
        out = model(*channels_last(inputs))
        if backward:
            out.backward()
    return [*NOTED]


def counted(model: Calling, inputs: Any, backward: bool) -> list[Lying]:
    NOTED.clear()
    report = fxflops.count(model, channels_last(inputs), backward=backward)
    assert report.trace == "counted on the meta device", report.trace_reason
    return [*NOTED]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backward", [False, True])
def test_images_lie_as_on_the_cpu(backward: bool) -> None:
    compared: set[str] = set()
    for operator in op_db:
        if operator.name not in OPERATORS or (backward and not operator.supports_autograd):
            continue
        samples = [
            s for s in operator.sample_inputs("cpu", torch.float32) if s.input.ndim in FORMATS and s.input.numel()
        ]
        for sample in samples[:SAMPLES]:
            inputs = sample.input, sample.args, sample.kwargs
            torch.manual_seed(0)
            real = run(Calling(operator), inputs, backward)
            assert counted(Calling(operator), inputs, backward) == real, (operator.name, inputs)
            compared.add(operator.name)
    assert compared == OPERATORS


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

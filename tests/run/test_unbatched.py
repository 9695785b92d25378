"""Inputs without a batch dimension: the error gives a shape with which the model runs, and only such a shape. Also inputs with
other wrong sizes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.errors import RunError


def cnn(device: str = "cpu") -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).to(device)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length = input_ids.shape
        return self.head(self.embedding(input_ids) * mask[:, :, None]).view(batch * length, -1)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_image(device: str) -> None:
    model, image = cnn(device), torch.ones(3, 8, 8, device=device)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for ask in (fxflops.count, fxflops.analyze)[: 2 - (device == "meta")]:
        with pytest.raises(RunError, match="in module '1'") as error:
            ask(model, image, mode="train")
        assert str(error.value).endswith(
            "\n  the model runs with a batch dimension: pass f32[1,3,8,8], e.g. with x.unsqueeze(0)"
        )
        assert isinstance(error.value, ValueError)  # like batch norm's own error
    assert fxflops.count(model, image.unsqueeze(0)).complete
    if device == "cpu":
        assert all(bool((tensor == before[name]).all()) for name, tensor in model.state_dict().items())


def test_token_ids() -> None:
    batch = {"input_ids": torch.arange(6), "mask": torch.ones(6)}
    with pytest.raises(RunError, match=r"pass i64\[1,6\] f32\[1,6\], e.g. with x"):
        fxflops.count(Tokens(), kwargs=batch)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (cnn(), torch.ones(1, 4, 8, 8)),  # the wrong number of channels
        (nn.Linear(3, 4), torch.ones(2)),
        (nn.Linear(3, 4), torch.ones(())),
        (nn.Linear(3, 4), torch.nested.nested_tensor([torch.ones(2, 5)], layout=torch.jagged)),
        (nn.Linear(3, 4), "text"),
    ],
)
def test_one_would_not_help(model: nn.Module, given: Any) -> None:
    with pytest.raises(RunError) as error:
        fxflops.count(model, given)
    assert "batch" not in str(error.value)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("sizes", [(2, 1, 8, 8), (2, 3, 8)])
def test_a_convolution_says_which_shapes_it_takes(device: str, sizes: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Identity(), nn.Conv2d(3, 4, 3)).to(device)
    with pytest.raises(RunError, match=r"\n  Conv2d\(3, 4, .*\) takes \[N, 3, \*, \*\] or \[3, \*, \*\]$"):
        fxflops.count(model, torch.ones(sizes))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("shape", [(8,), (2, 8), (2, 3, 8)])
def test_what_a_linear_layer_takes(shape: tuple[int, ...], device: str) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(5, 2)).to(device)
    with pytest.raises(RunError, match=r"\n  Linear\(in_features=5, out_features=2, bias=True\) takes \[\*, 5\]$"):
        fxflops.count(model, torch.ones(shape, device=device))


def test_a_product_of_the_model_itself_is_no_layers() -> None:
    class Product(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return torch.mm(super().forward(input), input)

    with pytest.raises(RunError, match=r"cannot be multiplied") as error:
        fxflops.count(nn.Sequential(Product(3, 4)), torch.ones(2, 3))
    assert "takes" not in str(error.value)


class Backward(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise ValueError("not this one")


class Raises(nn.Module):
    """Raises in the backward pass, or if its tensors have memory. Its layer accepts inputs with and without a batch dimension."""

    def __init__(self, in_backward: bool) -> None:
        super().__init__()
        self.layer, self.in_backward = nn.Linear(3, 4), in_backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_backward:
            return Backward.apply(self.layer(x))
        float(x.sum())
        raise ValueError("not this one")


@pytest.mark.parametrize("in_backward", [True, False])
def test_what_is_not_raised_over_the_inputs_has_no_advice(in_backward: bool) -> None:
    with pytest.raises(RunError, match="not this one") as error:
        fxflops.count(Raises(in_backward), torch.ones(2, 3), backward=in_backward)
    assert "batch dimension" not in str(error.value)


class Steps(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError("not this one")


def test_an_optimizer_that_raises_has_no_advice() -> None:
    model = nn.Linear(3, 4)
    with pytest.raises(RunError, match="not this one") as error:
        fxflops.count(model, torch.ones(2, 3), backward=True, optimizer=Steps(model.parameters(), lr=0.1))
    assert "batch dimension" not in str(error.value)

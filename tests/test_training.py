"""A model's own run: generators run to their end, gradient hooks are included, and every way to compute gradients counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops import InputError

ROWS, WIDTH, STEPS = 2, 8, 3
X = torch.randn(ROWS, WIDTH)
LAYER = ROWS * WIDTH * WIDTH


def analyzed(model: nn.Module, x: torch.Tensor, **settings: Any) -> fxflops.Report:
    return fxflops.analyze(model, x, repeats=1, progress=False, **settings)


WAYS = [fxflops.count, analyzed]
Way = Callable[..., Any]


class Stepwise(nn.Module):
    """A forward that is a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(STEPS):
            x = self.layer(x)
            yield x


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = Stepwise()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(self.steps(x)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", [Stepwise, Summed])
def test_a_generator_is_run_to_its_end(way: Way, model: Callable[[], nn.Module], device: str) -> None:
    report = way(model().to(device), X, backward=True)
    assert report.total_macs == STEPS * LAYER
    # The weights' gradients of all steps, and the inputs' gradients of all but the first.
    assert report.total_backward_macs == STEPS * LAYER + (STEPS - 1) * LAYER
    assert way(model().to(device), X).total_macs == STEPS * LAYER


def test_a_generator_in_a_loop_of_ones_own(device: str) -> None:
    model = Stepwise().to(device)
    with fxflops.profile(model) as p:
        for _ in model(X):
            pass
    assert p.report.total_macs == STEPS * LAYER


@pytest.mark.parametrize("way", WAYS)
def test_a_coroutine_is_refused(way: Way) -> None:
    class Awaited(nn.Module):
        async def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(InputError, match=r"the call returned a coroutine, which runs only when awaited"):
        fxflops.count(Awaited(), X)


def hooked(kind: str) -> nn.Module:
    model, mask = nn.Linear(WIDTH, WIDTH, bias=False).to(X.device), torch.ones(WIDTH, WIDTH, device=X.device)

    def double(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(2)

    if kind == "gradient":
        model.weight.register_hook(lambda gradient: gradient * mask)
    else:
        model.weight.register_post_accumulate_grad_hook(double)
    return model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["gradient", "accumulated"])
def test_what_hooks_of_parameters_compute_is_backward(way: Way, kind: str, device: str) -> None:
    report = way(hooked(kind), X, backward=True)
    assert report.total_backward_macs == LAYER
    products, sums = ROWS * WIDTH * WIDTH, (ROWS - 1) * WIDTH * WIDTH
    # The hook adds one multiply per element of the gradient.
    assert report.total_backward_flops == products + sums + WIDTH * WIDTH


def test_a_hook_that_asks_for_the_parameter_itself() -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    scales = {model.weight: 2.0}

    def scale(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(scales[parameter])

    model.weight.register_post_accumulate_grad_hook(scale)
    report = fxflops.count(model, X, backward=True)
    assert report.trace == "counted on real tensors"
    assert report.total_backward_flops == analyzed(model, X, backward=True).total_backward_flops


class Adjoint(torch.autograd.Function):
    """The forward has no graph. The backward evaluates the layer again and differentiates it, like an adjoint method."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, x: torch.Tensor, *params: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_(True)
            return None, *torch.autograd.grad(ctx.layer(x), (x, *ctx.layer.parameters()), gradient)


class Solved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = Adjoint.apply(self.layer, x, *self.layer.parameters())
        return y


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_that_a_function_evaluates_again_in_its_backward_is_recomputed(way: Way, device: str) -> None:
    report = way(Solved().to(device), X, backward=True)
    assert report.complete
    assert report.total_macs == LAYER
    assert report.total_backward_macs == 2 * LAYER  # its input's and its weight's gradient
    assert report.total_recompute_flops == report.total_flops


class Filled(nn.Module):
    """Writes its results into a preallocated tensor, while the next step uses the result itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(STEPS, ROWS, WIDTH, device=x.device)
        for i in range(STEPS):
            x = self.layer(x)
            out[i] = x
        return out


@pytest.mark.parametrize("way", WAYS)
def test_results_written_into_a_tensor_have_gradients(way: Way, device: str) -> None:
    report = way(Filled().to(device), X, backward=True)
    assert report.total_backward_macs == (2 * STEPS - 1) * LAYER


def test_what_learns_nothing_is_told() -> None:
    with pytest.raises(InputError, match="no output depends on a parameter or input that requires a gradient"):
        fxflops.count(nn.ReLU(), X, backward=True)


class Tangent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)).sum()

    def forward(self, x: torch.Tensor) -> Any:
        return torch.func.jvp(self.value, (x,), (torch.ones_like(x),)), torch.func.hessian(self.value)(x)


# torch scripts its jvp rules when it loads them.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
@pytest.mark.parametrize("way", WAYS)
def test_forward_derivatives_are_counted(way: Way) -> None:
    assert way(Tangent(), torch.randn(WIDTH)).complete


def test_gradients_that_are_there_cost_one_add_per_parameter(device: str) -> None:
    model, x = nn.Linear(5, 7).to(device), torch.ones(2, 5, device=device)

    def backward() -> int | None:
        with fxflops.profile(model) as p:
            model(x).sum().backward()
        return p.report.total_backward_flops

    first = backward()
    assert first is not None
    assert backward() == first + 7 * 5 + 7
    assert fxflops.count(model, x, backward=True).total_backward_flops == first


class Force(nn.Module):
    """Returns an energy and its derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        energy = self.layer(x).tanh().sum()
        return energy, torch.autograd.grad(energy, x)[0]


def test_a_forward_that_differentiates_needs_a_function() -> None:
    model, x = Force(), torch.randn(3, 4)
    with pytest.raises(fxflops.RunError, match="pass a function that calls the model") as error:
        fxflops.count(model, x)
    assert "does not require grad" in str(error.value)
    # Forward: 3 * 4 outputs of 4 products; gradient of the input: the same number of products.
    report = fxflops.count(lambda x: model(x), x)
    assert sum(each.macs or 0 for each in report.counted) == 2 * 3 * 4 * 4

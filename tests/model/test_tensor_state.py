"""Whatever a forward does to tensors, the model and its inputs must come back bit for bit, even if it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

import fxflops
from fxflops import TorchFLOPsByFX, analyze, count
from fxflops.model.tensor_state import TensorState


class Changing(nn.Module):
    """Changes itself or its input, and computes (3, 4) @ (4, 4): 48 MACs."""

    def __init__(self, change: Callable[[Any, torch.Tensor], Any], error: type[BaseException] | None = None) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("ids", torch.arange(4))
        self.register_buffer("mean", torch.zeros(4))
        both = torch.randn(8)
        self.left, self.right = nn.Parameter(both[:4]), nn.Parameter(both[4:])  # both on one storage
        self.spare = nn.Parameter(torch.randn(3))
        self.array = self.left.detach().numpy()
        self.change = change
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self, x)
        if self.error is not None:
            raise self.error
        return self.fc(x.reshape(-1, 4)) + self.mean


def set_data(model: Changing, x: torch.Tensor) -> None:
    model.fc.weight.data = model.fc.weight.data.clamp(-0.01, 0.01)


def clip_in_place(model: Changing, x: torch.Tensor) -> None:
    for parameter in [*model.parameters()]:
        parameter.data.clamp_(-0.01, 0.01)


def write_through_numpy(model: Changing, x: torch.Tensor) -> None:
    model.fc.weight.detach().numpy()[:] = 7


def write_through_an_array_interface(model: Changing, x: torch.Tensor) -> None:
    np.asarray(model.fc.weight.detach())[0] = -0.0


def write_integers_through_numpy(model: Changing, x: torch.Tensor) -> None:
    model.ids.numpy()[0] += 5


def write_to_an_array_from_before(model: Changing, x: torch.Tensor) -> None:
    model.array += 1


def write_to_the_storage(model: Changing, x: torch.Tensor) -> None:
    model.fc.weight.untyped_storage().fill_(1)


def free_the_storage(model: Changing, x: torch.Tensor) -> None:
    model.spare.untyped_storage().resize_(0)


def write_to_what_was_replaced(model: Changing, x: torch.Tensor) -> None:
    old = model.fc.weight.data
    model.fc.weight.data = old.clone()
    old.zero_()


def write_to_one_of_two_on_a_storage(model: Changing, x: torch.Tensor) -> None:
    model.left.data.zero_()


def freeze(model: Changing, x: torch.Tensor) -> None:
    model.fc.weight.requires_grad = False
    model.right.requires_grad_(False)
    model.left.requires_grad = False


def reshape_the_input(model: Changing, x: torch.Tensor) -> None:
    x.unsqueeze_(0)
    assert x.ndim == len(x.shape) == 3


def average(model: Changing, x: torch.Tensor) -> None:
    model.mean.mul_(0.9).add_(model.fc.bias)  # with gradients enabled, the buffer is then computed from a parameter


def note_on_a_parameter(model: Changing, x: torch.Tensor) -> None:
    model.fc.weight.grad_sample = x
    model.fc.weight.seen.append(x)


def drop_gradients(model: Changing, x: torch.Tensor) -> None:
    if model.left.grad is not None:
        model.left.grad.zero_()
    model.left.grad = None


def listen(model: Changing, x: torch.Tensor) -> None:
    if model.fc.weight.requires_grad:
        model.fc.weight.register_hook(lambda gradient: gradient)


CHANGES = [
    set_data, clip_in_place, write_through_numpy, write_through_an_array_interface, write_integers_through_numpy,
    write_to_an_array_from_before, write_to_the_storage, free_the_storage, write_to_what_was_replaced,
    write_to_one_of_two_on_a_storage, freeze, reshape_the_input, average, note_on_a_parameter, drop_gradients, listen,
]  # fmt: skip


def propagate(model: nn.Module, x: torch.Tensor) -> Any:
    return TorchFLOPsByFX(model).propagate(x)


def recorded(model: nn.Module, x: torch.Tensor) -> Any:
    return analyze(model, x, trace="record", repeats=1, progress=False)


def with_gradients(model: nn.Module, x: torch.Tensor) -> Any:
    return analyze(model, x, backward=True, repeats=1, progress=False)


def counted_with_gradients(model: nn.Module, x: torch.Tensor) -> Any:
    return count(model, x, backward=True)


WAYS = [count, counted_with_gradients, propagate, recorded, with_gradients]


def facts(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return all facts about tensors. Values are compared as bytes, so that -0.0 differs from 0.0."""
    return {
        name: (
            id(t), type(t), t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.requires_grad, t.is_leaf, t.grad_fn, id(t.grad), t.grad is None or t.grad.sum().item(),
            t.detach().clone().numpy().tobytes(), dict(vars(t)), [*vars(t).get("seen", ())], t._backward_hooks,
        )
        for name, t in tensors.items()
    }  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_tensors_come_back(way: Callable[..., Any], change: Any, error: type[BaseException] | None) -> None:
    model, x = Changing(change, error), torch.randn(3, 4)
    model.fc.weight.seen = [1]
    model.left.grad = torch.ones(4)
    tensors = dict([*model.named_parameters(), *model.named_buffers(), ("x", x)])
    before = facts(tensors)
    if error is None:
        assert way(model, x).total_macs == 48
    else:
        with pytest.raises((fxflops.RunError, KeyboardInterrupt)):
            way(model, x)
    assert facts(tensors) == before
    assert "array" in vars(model)


@pytest.mark.parametrize("way", [counted_with_gradients, with_gradients])
def test_what_the_user_computed_before(way: Callable[..., Any]) -> None:
    """An input with a history: the backward pass must end there, and must not change the gradient that the user computed."""
    base = torch.randn(3, 4, requires_grad=True)
    x = base * 2
    x.retain_grad()
    x.sum().backward(retain_graph=True)
    kept = x.grad, base.grad
    assert way(nn.Linear(4, 4), x).total_backward_macs == 2 * 48
    assert (x.grad, base.grad) == kept
    assert torch.equal(kept[0], torch.ones(3, 4))
    assert torch.equal(kept[1], torch.full((3, 4), 2.0))
    x.sum().backward()  # the graph is still there


@pytest.mark.parametrize("way", [counted_with_gradients, with_gradients])
def test_a_view_that_is_written_to(way: Callable[..., Any]) -> None:
    class Adds(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(self.bias)

    base = torch.zeros(2, 3, 4)
    x = base[0]
    assert way(Adds(4, 4), x).complete
    assert x.is_leaf
    assert not x.requires_grad
    assert not base.requires_grad
    assert not base.any()


class Wrapper(torch.Tensor):
    """A tensor without memory that does not show what it wraps."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Wrapper, lambda each: each.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapper, func(*args, **kwargs))


@pytest.mark.parametrize("way", [count, propagate, recorded])
def test_what_a_tensor_wraps_comes_back(way: Callable[..., Any]) -> None:
    x = Wrapper(torch.randn(3, 4))
    before = x.inner.clone()
    assert way(Changing(lambda model, x: x.mul_(2)), x).total_macs == 48
    assert torch.equal(x.inner, before)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([0.0, -0.0, float("nan")]),
        torch.randn(2, 1).expand(2, 5),
        torch.randn(9).as_strided((4, 3), (2, 1)),
        torch.randn(4, 6)[:, ::2],
        torch.randn(4, dtype=torch.complex128).conj(),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(4).to(torch.float8_e4m3fn),
        torch.zeros(0, 3),
        torch.tensor(True),
    ],
    ids="nan expanded overlapping strided conjugated complex float8 empty scalar".split(),
)
def test_bytes_of_any_tensor(tensor: torch.Tensor) -> None:
    def elements() -> list[int]:
        return tensor.resolve_conj().reshape(-1).contiguous().clone().view(torch.uint8).tolist()

    before, state = elements(), TensorState([tensor])
    state.before_write([tensor[..., :1] if tensor.ndim else tensor])
    for value in (3, 0):
        tensor.untyped_storage().fill_(value)
        state.rewind()
        assert elements() == before

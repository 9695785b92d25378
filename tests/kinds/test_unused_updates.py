"""A model that updates its own tensors while it computes its output is analyzed as it runs, and keeps its tensors.

The oracle is the model's own run: afterwards, a twin that was never analyzed runs the same way, to the same tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import fxflops

SIZE = 4


class Updating(nn.Module):
    """A linear layer that also updates something that its output does not need."""

    def __init__(self, update: Callable[[Updating, Tensor], object]) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.layer.seen = torch.zeros(SIZE)
        self.mean, self.calls = torch.zeros(SIZE), torch.zeros(())
        self.by_name, self.listed = {"mean": torch.zeros(SIZE)}, [torch.zeros(SIZE)]
        self.holder = SimpleNamespace(mean=torch.zeros(SIZE))
        self.register_buffer("running", torch.zeros(SIZE))
        self.update = update

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.update(self, x.detach().mean(0))
        return y

    def state(self) -> list[Tensor]:
        held = [self.mean, self.calls, self.layer.seen, self.by_name["mean"], self.listed[0], self.holder.mean]
        return [*held, self.running, *self.parameters()]


def _rebinds(self: Updating, m: Tensor) -> None:
    self.mean = self.mean * 0.9 + m * 0.1


def _adds_in_place(self: Updating, m: Tensor) -> None:
    self.mean += m


def _uses_twice(self: Updating, m: Tensor) -> None:
    self.mean = self.mean + m
    self.calls = self.calls + self.mean.sum()


def _deletes_first(self: Updating, m: Tensor) -> None:
    old = self.mean
    del self.mean
    self.mean = old + m


def _is_none_meanwhile(self: Updating, m: Tensor) -> None:
    old, self.mean = self.mean, None
    self.mean = torch.maximum(old, m)


def _swaps(self: Updating, m: Tensor) -> None:
    self.mean, self.calls = self.calls + m, self.mean.sum()


def _in_a_loop(self: Updating, m: Tensor) -> None:
    for i in range(3):
        self.mean = self.mean + m * i


def _of_a_child(self: Updating, m: Tensor) -> None:
    self.layer.seen = self.layer.seen + m


def _a_counter(self: Updating, m: Tensor) -> None:
    self.calls = self.calls + 1


def _in_a_dict(self: Updating, m: Tensor) -> None:
    self.by_name["mean"] = self.by_name["mean"] + m


def _in_a_list(self: Updating, m: Tensor) -> None:
    self.listed[0] = self.listed[0] + m


def _of_an_object(self: Updating, m: Tensor) -> None:
    self.holder.mean = self.holder.mean + m


def _by_dict_of_attributes(self: Updating, m: Tensor) -> None:
    vars(self)["mean"] = self.mean.lerp(m, 0.1)


UPDATES: list[Callable[[Updating, Tensor], object]] = [
    _rebinds,
    _adds_in_place,
    _uses_twice,
    _deletes_first,
    _is_none_meanwhile,
    _swaps,
    _in_a_loop,
    _of_a_child,
    _a_counter,
    _in_a_dict,
    _in_a_list,
    _of_an_object,
    _by_dict_of_attributes,
    lambda self, m: self.mean.mul_(0.9).add_(m, alpha=0.1),
    lambda self, m: self.mean.copy_(m),
    lambda self, m: self.mean.view(2, 2).add_(m.sum()),
    lambda self, m: self.mean.__setitem__(0, m.sum()),
    lambda self, m: torch.add(m, 1, out=self.mean),
    lambda self, m: self.running.mul_(0.9).add_(m),
    lambda self, m: setattr(self, "running", self.running * 0.9 + m),
    lambda self, m: setattr(self, "first_seen", m),
]


def _name(update: Callable[..., object]) -> str:
    return f"{update.__name__}{UPDATES.index(update)}"


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize("update", UPDATES, ids=_name)
def test_an_update_beside_the_output(update: Callable[[Updating, Tensor], object], inside: bool) -> None:
    updating = Updating(update)
    model: nn.Module = nn.Sequential(nn.Linear(SIZE, SIZE), updating) if inside else updating
    twin = copy.deepcopy(model)
    twin_updating: Updating = twin[1] if inside else twin
    before, names = updating.state(), [*vars(updating)]
    x = torch.randn(2, SIZE)

    for backward in (False, True):
        counted = fxflops.count(model, x, backward=backward)
        for trace in ("auto", "record"):
            report = fxflops.analyze(model, x, backward=backward, trace=trace, repeats=1)
            assert report.total_flops == counted.total_flops
            assert report.complete

    assert [*vars(updating)] == names
    assert all(now is then for now, then in zip(updating.state(), before, strict=True))
    assert torch.equal(model(x), twin(x))
    assert all(torch.equal(*pair) for pair in zip(updating.state(), twin_updating.state(), strict=True))


@pytest.mark.parametrize("update", [_rebinds, _adds_in_place, _deletes_first, _of_a_child, _swaps], ids=_name)
def test_the_symbolic_graph_reads_the_models_tensors(update: Callable[[Updating, Tensor], object]) -> None:
    model, x = Updating(update), torch.randn(2, SIZE)
    model.mean += 1
    flops = fxflops.TorchFLOPsByFX(model, trace="symbolic")
    flops.propagate(x)
    flops.propagate(x)  # the first call left nothing behind in the graph
    graph = flops.graph_model
    assert [*graph.graph.nodes][-1].op == "output"
    held = [getattr(graph, "mean", None)]
    assert all(type(tensor) is Tensor for tensor in held if tensor is not None)
    assert torch.equal(graph(x), model(x))

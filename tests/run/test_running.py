"""Runs that end because the device has too little memory: the error must say where, and must leave the model as it was."""

from __future__ import annotations

import contextlib
import copy
import gc
import re
import sys
from collections.abc import Iterator
from itertools import count

import pytest
import torch
from torch import nn

import fxflops
from fxflops.run.model_run import cap_of

from ..standin import GB, StandIn

X = torch.randn(16, 64)


class Greedy(nn.Module):
    """Runs ``runs`` times before it needs more memory than there is. A buffer counts its runs."""

    def __init__(self, runs: int, device: StandIn, backward: bool = False) -> None:
        super().__init__()
        self.fc, self.device, self.runs, self.backward = nn.Linear(64, 64), device, runs, backward
        self.number = count(1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        y = self.fc(x)
        is_last = next(self.number) > self.runs
        if self.backward:
            y.register_hook(lambda grad: self.want(grad) if is_last else grad)
            return y
        return self.want(y) if is_last else y

    def want(self, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("stand-in out of memory. Tried to allocate 64.00 GiB.")


class Late(nn.Module):
    """Needs more memory in the backward pass than there is."""

    def __init__(self, device: StandIn) -> None:
        super().__init__()
        self.device = device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y.register_hook(self.want)
        return y

    want = Greedy.want


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).exp()


@pytest.fixture
def full(standin: StandIn) -> Iterator[StandIn]:
    with standin.memory:
        yield standin


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("runs", range(4))  # the observed run, the allocator's run, and the timed runs
def test_each_pass_says_where_memory_ended_and_leaves_the_model_as_it_was(
    full: StandIn, runs: int, backward: bool
) -> None:
    model = full.to(Outer(Greedy(runs, full, backward))).train()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(fxflops.OutOfMemoryError, match="stand-in out of memory") as caught:
        fxflops.analyze(model, X, trace="record", backward=backward, repeats=3)
    error = caught.value
    assert isinstance(error, torch.OutOfMemoryError)
    assert re.search(
        r"were allocated on cpu: params .*\n  use fxflops.count\(model, args\), which predicts the peak",
        str(error),
        re.S,
    )
    assert ("activations and other" in str(error)) == (runs > 0)  # timed runs are not observed
    assert "the backward pass raised" in str(error) if backward else "module 'inner'" in str(error)
    assert isinstance(error.__cause__, torch.OutOfMemoryError)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert not model.inner._forward_hooks
    model.inner.runs = 10**9
    assert fxflops.analyze(model, X, trace="record", backward=backward, repeats=1).complete


def test_a_node_is_named(full: StandIn) -> None:
    """The allocator is full: the weights take 16 KiB, and each tensor 4 KiB."""
    model = full.to(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
    x = full.to(X.clone())
    full.memory.capacity = full.memory.live + 4096
    with pytest.raises(fxflops.OutOfMemoryError) as caught:
        fxflops.analyze(model, x, repeats=0)
    text = str(caught.value)
    assert "at node '_1' (call_module 1) in module '1' (ReLU)" in text
    assert "Tried to allocate 4096 bytes." in text
    assert caught.value.node == "_1"


def test_what_holds_the_memory_is_named(full: StandIn) -> None:
    """The program itself takes 12 KiB, the weight 32 KiB, the input 4 KiB, and each result 8 KiB."""
    own = full.to(torch.zeros(3 * 1024))
    model = full.to(nn.Sequential(nn.Linear(64, 128, bias=False), nn.Sigmoid()))
    x = full.to(X.clone())
    full.memory.capacity = full.memory.live + 8192
    with pytest.raises(fxflops.OutOfMemoryError) as caught:
        fxflops.analyze(model, x, repeats=0)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert (
        "56.00 KiB were allocated on cpu: params 32.00 KiB + inputs 4.00 KiB + activations 8.00 KiB + other 12.00 KiB, "
        "of which 12.00 KiB were allocated before fxflops ran"
    ) in lines
    assert "largest made by the run: activations f32[16,128] 8.00 KiB by linear in '0'" in lines
    live = caught.value.live
    assert [(each.category, each.bytes) for each in live] == [
        ("params", 32768),
        ("activations", 8192),
        ("inputs", 4096),
    ]
    assert own.numel() == 3 * 1024


def test_gradients_are_named(full: StandIn) -> None:
    """The gradient of the second weight, 16 KiB, exists when the gradient of the first weight is allocated."""
    model = full.to(nn.Sequential(nn.Linear(64, 64, bias=False), Late(full), nn.Linear(64, 64, bias=False)))
    with pytest.raises(fxflops.OutOfMemoryError) as caught:
        fxflops.analyze(model, X, backward=True, trace="record", repeats=0)
    assert "gradients 16.00 KiB" in str(caught.value)
    assert "gradients f32[64,64] 16.00 KiB" in str(caught.value)


@pytest.mark.parametrize("trace", ["symbolic", "record"])
@pytest.mark.parametrize("backward", [False, True])
def test_all_is_released_with_the_error(full: StandIn, trace: str, backward: bool) -> None:
    model = full.to(nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Sigmoid()))
    before = full.memory.live
    full.memory.capacity = before + (40960 if backward else 4096)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(fxflops.OutOfMemoryError):
            fxflops.analyze(model, X, trace=trace, backward=backward, repeats=0)
            pytest.fail("it had memory enough")
        assert full.memory.live == before
    finally:
        gc.enable()


def test_lazy_modules_that_find_no_memory_stay_lazy(standin: StandIn) -> None:
    model = nn.Sequential(nn.LazyLinear(64), Greedy(0, standin))
    with pytest.raises(fxflops.OutOfMemoryError, match="raised in the run that initializes its lazy modules"):
        fxflops.analyze(model, X)
    assert isinstance(model[0], nn.LazyLinear)


def test_a_count_needs_no_memory(full: StandIn) -> None:
    model = full.to(nn.Sequential(nn.Linear(64, 64), nn.ReLU()))
    full.memory.capacity = full.memory.live
    report = fxflops.count(model, X)
    assert report.max_memory == 4 * (64 * 64 + 64 + 3 * 16 * 64)


def test_a_count_that_needs_values_may_have_half_of_the_devices_memory(standin: StandIn) -> None:
    assert cap_of(standin.device) == 40 * GB


def test_without_an_allocator_that_knows_nothing_is_said_of_it() -> None:
    model = Greedy(0, StandIn())
    with pytest.raises(fxflops.OutOfMemoryError) as caught:
        fxflops.analyze(model, X, repeats=0, trace="record")
    assert "allocated on" not in str(caught.value)


def test_a_block_of_ones_own_raises_its_own_error(full: StandIn) -> None:
    model = Greedy(0, full)
    with pytest.raises(torch.OutOfMemoryError) as caught, fxflops.profile(model):
        model(X)
    assert type(caught.value) is torch.OutOfMemoryError
    if sys.version_info >= (3, 11):
        (note,) = caught.value.__notes__
        assert note.startswith("raised at Greedy in the root\n")
        assert "were allocated on cpu: params 16.25 KiB" in note
        assert "activations f32[16,64] 4.00 KiB by linear in 'fc'" in note
    assert not model._forward_hooks


def test_a_count_on_real_tensors_does_not_advise_to_count(full: StandIn) -> None:
    class Branches(Greedy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum() > -1e9 else x

    with pytest.raises(fxflops.OutOfMemoryError, match="\n  pass a smaller batch") as caught:
        fxflops.count(full.to(Branches(0, full)), X)
    assert "fxflops.count" not in str(caught.value)

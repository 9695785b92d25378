"""Predicted peaks of memory, held to the CPU allocator's own account; workspaces, which no tensor shows, are taken apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import fxflops
from benchmarks.allocator import Event, account, allocated
from benchmarks.memory_truth import bytes_of, checkpointed, step
from benchmarks.models.memory_zoo import Attention

N, WIDTH = 128, 64


class Written(Attention):
    """Attention by plain matrix products."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return super().forward(x)


class Dropped(nn.Module):
    """Attention with dropout in inference too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


class Strided(nn.Module):
    """A layer on what lies otherwise, whose rows have to be copied together first."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(N, 8, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x.transpose(1, 2))
        return result


class Inverse(nn.Module):
    """One by a tensor: its reciprocal, and a product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / x


class Mixed(nn.Module):
    """Products of operands whose batch dimensions have to be copied together first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x.unflatten(-1, (4, -1)).transpose(1, 2)
        return (q @ q.transpose(-1, -2)).softmax(-1) @ q


class Folded(nn.Module):
    """Windows that are added up again, in a storage as large as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = F.unfold(self.layer(x).unsqueeze(1), 3, padding=1)
        return F.fold(windows, (N, WIDTH), 3, padding=1)


class Unread(nn.Module):
    """A checkpoint whose result goes nowhere: it is not computed again, and nothing of it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.layer = nn.GRU(WIDTH, WIDTH, bidirectional=True), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        checkpoint(self.part, x, use_reentrant=False, preserve_rng_state=False)
        result: torch.Tensor = self.layer(x)
        return result


MODELS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Attention(16, 16),
    "latent": lambda: Attention(24, 16),
    "latent, causal": lambda: Attention(24, 16, causal=True),
    "dropout in training": lambda: Attention(16, 16, dropout=0.5),
    "written out": lambda: Written(16, 16),
    "LSTM": lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
    "LSTM both ways": lambda: nn.LSTM(WIDTH, 48, num_layers=2, bidirectional=True, dropout=0.5),
    "LSTM projected": lambda: nn.LSTM(WIDTH, WIDTH, proj_size=8),
    "RNN": lambda: nn.RNN(WIDTH, WIDTH),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, N)), nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    ),
    "folded": Folded,
    "unread": Unread,
}
INFERRED = MODELS | {"GRU": lambda: nn.GRU(WIDTH, WIDTH, num_layers=2), "dropout": Dropped, "products": Mixed}
INFERRED |= {"strided": lambda: Strided(False), "strided, biased": lambda: Strided(True), "inverse": Inverse}


class Resized(nn.Module):
    """A layer frees its result once the next one has it, and gives it memory and values again for the backward pass.

    So do Megatron's checkpoints without output, and FSDP with what it gathers. ``kept`` is the storage that it keeps, instead of
    asking for it again.
    """

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.kept = kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.first(x)
        storage, nbytes = middle.untyped_storage(), middle.nbytes
        result: torch.Tensor = self.second(middle)
        # The tensor itself: autograd saves it, and a hook that has it keeps it as long.
        middle = middle.detach()

        def restore(grad: torch.Tensor) -> None:
            (storage if self.kept else middle.untyped_storage()).resize_(nbytes)
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(middle):
                middle.copy_(self.first(x))

        if result.requires_grad:
            result.register_hook(restore)
        (storage if self.kept else middle.untyped_storage()).resize_(0)
        return result + torch.cat([result] * 8, -1).sum(-1, keepdim=True)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("is_training", [False, True])
def test_memory_that_is_freed_by_resizing_is_free(kept: bool, is_training: bool) -> None:
    x = torch.randn(N, WIDTH)
    models = [Resized(kept) for _ in range(3)]  # without gradients from before
    optimizers = [torch.optim.SGD(model.parameters()) if is_training else None for model in models]
    truth = allocated(partial(step, models[0], (x,), {}, optimizers[0]), bytes_of([*models[0].parameters(), x]))
    with fxflops.profile(models[1]) as p:
        step(models[1], (x,), {}, optimizers[1])
    assert p.report.max_memory == pytest.approx(truth.held, rel=0.002)
    counted = fxflops.count(models[2], x, backward=is_training, optimizer=optimizers[2])
    assert counted.max_memory == pytest.approx(truth.held, rel=0.002)


def test_weights_that_are_put_to_sleep() -> None:
    """As servers do between a training's steps: the model's own storages are resized."""
    model, x = nn.Linear(WIDTH, WIDTH, bias=False), torch.randn(N, WIDTH)
    nbytes = model.weight.nbytes
    with fxflops.profile(model) as p:
        y = model(x).relu()
        model.weight.untyped_storage().resize_(0)
        y = (y + 1).exp()
        model.weight.untyped_storage().resize_(nbytes)
        y = (y * 2).log()
    live = {moment.op: moment.live["params"] for moment in p.report.timeline}
    assert (live["linear"], live["add"], live["log"]) == (nbytes, 0, nbytes)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", INFERRED)
def test_inference_takes_what_the_allocator_gives(name: str) -> None:
    model, x = INFERRED[name]().eval(), heads(name)
    truth = allocated(partial(step, model, (x,), {}, None), bytes_of([*model.parameters(), *model.buffers(), x]))
    counted = fxflops.count(model, x)
    assert counted.trace == "counted on the meta device", counted.trace_reason
    assert counted.max_memory == pytest.approx(truth.held, rel=0.002)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "make", [partial(torch.optim.SGD, lr=1e-4, momentum=0.9), torch.optim.AdamW], ids=["SGD", "AdamW"]
)
def test_a_training_step_takes_what_the_allocator_gives(name: str, make: Any) -> None:
    model, x = MODELS[name]().train(), heads(name)
    optimizer = make(model.parameters())
    run = partial(step, model, (x,), {}, optimizer)
    run()
    model.zero_grad()
    states = [value for state in optimizer.state.values() for value in state.values() if value is not None]
    truth = allocated(run, bytes_of([*model.parameters(), *model.buffers(), x, *states]))
    model.zero_grad()
    counted = fxflops.count(model, x, backward=True, mode="train", optimizer=optimizer)
    assert counted.trace == "counted on the meta device", counted.trace_reason
    assert counted.max_memory == pytest.approx(truth.held, rel=0.005)


@pytest.mark.parametrize("name", ["attention", "latent", "LSTM", "LSTM both ways", "RNN"])
def test_a_checkpointed_step_takes_what_the_allocator_gives(name: str) -> None:
    """On meta too: what torch is asked about kernels there is none of what checkpoint counts. It keeps generators' states."""
    model, x = MODELS[name]().train(), heads(name)
    checkpointed(model)
    run = partial(step, model, (x,), {}, torch.optim.SGD(model.parameters(), lr=1e-4))
    run()
    model.zero_grad()
    truth = allocated(run, bytes_of([*model.parameters(), *model.buffers(), x]))
    model.zero_grad()
    counted = fxflops.count(model, x, backward=True, mode="train")
    assert counted.trace == "counted on the meta device", counted.trace_reason
    assert counted.max_memory == pytest.approx(truth.held, rel=0.002, abs=3 * torch.get_rng_state().nbytes)


def heads(name: str) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 4, N, 16) if name == "dropout" else torch.randn(2, N, WIDTH)


def test_the_weights_of_latent_attention_are_in_its_peak() -> None:
    """Two heads of n x n scores: at the peak there are the scores and their softmax, f32, beside what the layers made."""
    scores = 2 * 4 * N * N * 4
    report = fxflops.count(MODELS["latent"]().eval(), torch.randn(2, N, WIDTH))
    assert 2 * scores < report.max_memory < 3 * scores


def test_what_a_composite_makes_counts_each_time() -> None:
    """The second layer is counted from what is known of the first: at its peak there are the scores, their softmax and a copy."""
    x = torch.randn(2, N, WIDTH)
    layers = [
        fxflops.count(nn.Sequential(*(Dropped() for _ in range(n))), x.unflatten(-1, (4, -1)).transpose(1, 2))
        for n in (1, 2)
    ]
    assert layers[1].max_memory == layers[0].max_memory + x.nbytes


def test_the_kernel_changes_no_count() -> None:
    x = torch.randn(2, N, WIDTH)
    fused, written = (fxflops.count(kind(16, 16), x) for kind in (Attention, Written))
    assert fused.total_flops == written.total_flops
    assert fused.max_memory < written.max_memory


def test_a_workspace_is_what_one_operator_takes_and_gives_back() -> None:
    """Of 100 bytes before: 40 stay, 30 come and go in operator 2, 20 come in operator 2 and go in operator 3."""
    events = [
        Event(1, 40, (1,)),
        Event(2, 30, (2,), "aten::a"),
        Event(3, 20, (2,)),
        Event(2, -30, (2,)),
        Event(3, -20, (3,)),
    ]
    found = account(events, before=100)
    assert (found.peak, found.held, found.workspace) == (190, 160, 30)


def test_the_allocator_hears_of_a_composites_parts() -> None:
    """``aten::linear`` of three dimensions is no kernel: what it makes is no workspace."""
    x, layer = torch.randn(2, N, WIDTH), nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        found = allocated(lambda: layer(layer(x)))
    assert found.held == 2 * x.nbytes


class Offset(nn.Module):
    """A table that the model makes for itself meets what is computed, and is asked for as it lies before and after."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.zeros(N, WIDTH)
        shifted = x + table.contiguous()
        return torch.cat([shifted, x + table.contiguous()])


def test_a_table_is_held_once() -> None:
    """At the peak there are the input, the table, both sums and their copy."""
    x = torch.randn(2, N, WIDTH)
    assert fxflops.count(Offset(), x).max_memory == x.nbytes + N * WIDTH * 4 + 2 * x.nbytes + 2 * x.nbytes


def test_indices_of_a_pool_pass_each_time() -> None:
    """By hand: an image of 256 bytes, pools of 64, and while one is made its indices, which are twice as large."""

    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.MaxPool2d(2), nn.MaxPool2d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) + self.second(x)

    x = torch.zeros(1, 1, 8, 8)
    assert fxflops.count(nn.MaxPool2d(2), x).max_memory == 256 + 64 + 128
    assert fxflops.count(Pools(), x).max_memory == 256 + 64 + 64 + 128

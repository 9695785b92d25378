"""Predicted memory peaks agree with the CPU allocator's. Workspaces, which no tensor holds, are accounted for separately."""

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
    """Attention by plain matrix products instead of a fused kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return super().forward(x)


class Dropped(nn.Module):
    """Attention with dropout even in inference."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


class Strided(nn.Module):
    """A linear layer on a transposed input, whose rows must be copied first."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(N, 8, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x.transpose(1, 2))
        return result


class Inverse(nn.Module):
    """1 / x, which torch computes as a reciprocal and a product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / x


class Mixed(nn.Module):
    """Products of operands whose batch dimensions cannot be merged without a copy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x.unflatten(-1, (4, -1)).transpose(1, 2)
        return (q @ q.transpose(-1, -2)).softmax(-1) @ q


class Folded(nn.Module):
    """Windows that fold adds up again, in a storage as large as the windows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = F.unfold(self.layer(x).unsqueeze(1), 3, padding=1)
        return F.fold(windows, (N, WIDTH), 3, padding=1)


class Unread(nn.Module):
    """A checkpoint whose result is unused: it is not recomputed, and none of it is kept."""

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
    """A layer whose result is freed once the next layer has used it, then reallocated and recomputed for the backward pass.

    Megatron's checkpoints without output work like this, and so does FSDP with gathered weights. With ``kept`` the layer holds on to
    the storage instead of asking for it again.
    """

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.kept = kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.first(x)
        storage, nbytes = middle.untyped_storage(), middle.nbytes
        result: torch.Tensor = self.second(middle)
        # Detached: autograd saves the tensor itself, so a hook that held it would keep it alive.
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
    # One model each, so that none has gradients from an earlier run.
    models = [Resized(kept) for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters()) if is_training else None for model in models]
    truth = allocated(partial(step, models[0], (x,), {}, optimizers[0]), bytes_of([*models[0].parameters(), x]))
    with fxflops.profile(models[1]) as p:
        step(models[1], (x,), {}, optimizers[1])
    assert p.report.max_memory == pytest.approx(truth.held, rel=0.002)
    counted = fxflops.count(models[2], x, backward=is_training, optimizer=optimizers[2])
    assert counted.max_memory == pytest.approx(truth.held, rel=0.002)


def test_weights_that_are_put_to_sleep() -> None:
    """Servers free a model's weights between training steps by resizing the model's own storages."""
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
    """Counting on meta asks torch about kernels. checkpoint must not count those calls. It also keeps generator states."""
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
    """Scores of two samples and four heads, n x n: the peak has the scores and their softmax in f32, next to the layers' results."""
    scores = 2 * 4 * N * N * 4
    report = fxflops.count(MODELS["latent"]().eval(), torch.randn(2, N, WIDTH))
    assert 2 * scores < report.max_memory < 3 * scores


def test_what_a_composite_makes_counts_each_time() -> None:
    """The second layer is counted from the record of the first. At its peak there are the scores, their softmax and a copy."""
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
    """Start with 100 bytes. 40 stay; operator 2 takes and frees 30; another 20 are taken in operator 2 and freed in operator 3."""
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
    """``aten::linear`` on a 3-d input is not a kernel, so the tensors made in it are not workspace."""
    x, layer = torch.randn(2, N, WIDTH), nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        found = allocated(lambda: layer(layer(x)))
    assert found.held == 2 * x.nbytes


class Offset(nn.Module):
    """Adds a constant table that the model creates, and calls ``contiguous`` on it twice. Both calls return the same table."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.zeros(N, WIDTH)
        shifted = x + table.contiguous()
        return torch.cat([shifted, x + table.contiguous()])


def test_a_table_is_held_once() -> None:
    """At the peak there are the input, the table, both sums and their concatenation."""
    x = torch.randn(2, N, WIDTH)
    assert fxflops.count(Offset(), x).max_memory == x.nbytes + N * WIDTH * 4 + 2 * x.nbytes + 2 * x.nbytes


def test_indices_of_a_pool_pass_each_time() -> None:
    """By hand: the image has 256 bytes, each pool's result 64, and the indices 128 while a pool runs."""

    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.MaxPool2d(2), nn.MaxPool2d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) + self.second(x)

    x = torch.zeros(1, 1, 8, 8)
    assert fxflops.count(nn.MaxPool2d(2), x).max_memory == 256 + 64 + 128
    assert fxflops.count(Pools(), x).max_memory == 256 + 64 + 64 + 128

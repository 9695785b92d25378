"""Inputs of a ``profile`` block exist before the block, so they count from its beginning until the user frees them.

The oracle is a dispatch mode of this test, which tracks the bytes of every storage that the code touches. Storages that existed
when the block began count from its beginning, others from the operator that created them. Inputs are also added up by hand.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fxflops
from tests.kinds.live_bytes import Live

ROWS, WIDTH = 512, 64
BATCH = ROWS * WIDTH * 4
MODEL = (WIDTH * WIDTH + WIDTH) * 4


def batch() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())


@dataclass
class Sample:
    image: torch.Tensor
    label: str


class Nested(nn.Module):
    """A model that takes its inputs in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Any, *others: Any, **named: Any) -> torch.Tensor:
        if isinstance(given, torch.Tensor):
            return self.layer(given)  # type: ignore[no-any-return]
        if isinstance(given, list):
            return self.forward(*given)
        return self.forward(given.image if isinstance(given, Sample) else next(iter(dict(given).values())), *others)


Block = Callable[[nn.Module, list[torch.Tensor]], None]


def once(model: nn.Module, held: list[torch.Tensor]) -> None:
    model(held[0])


def several_and_kept(model: nn.Module, held: list[torch.Tensor]) -> None:
    for x in held:
        model(x)


def freed_one_by_one(model: nn.Module, held: list[torch.Tensor]) -> None:
    while held:
        model(held.pop())


def freed_in_the_middle(model: nn.Module, held: list[torch.Tensor]) -> None:
    out = model(held.pop(0))
    for _ in range(3):
        out = model(out)


def a_view(model: nn.Module, held: list[torch.Tensor]) -> None:
    for i in range(0, ROWS, 64):
        model(held[0][i : i + 64])


def picked(model: nn.Module, held: list[torch.Tensor]) -> None:
    model(held[0][torch.arange(32)])


def trained(model: nn.Module, held: list[torch.Tensor]) -> None:
    F.mse_loss(model(held[0]), held[1]).backward()


def trained_with_a_module_as_loss(model: nn.Module, held: list[torch.Tensor]) -> None:
    nn.MSELoss()(model(held[0]), held[1]).backward()


def made_inside(model: nn.Module, held: list[torch.Tensor]) -> None:
    for _ in range(3):
        model(torch.randn(ROWS, WIDTH))


def stacked_inside(model: nn.Module, held: list[torch.Tensor]) -> None:
    model(torch.cat([held[0], held[1]]))


BLOCKS: list[Block] = [
    once,
    several_and_kept,
    freed_one_by_one,
    freed_in_the_middle,
    a_view,
    picked,
    trained,
    trained_with_a_module_as_loss,
    made_inside,
    stacked_inside,
]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("number", [2, 3])
def test_the_peak_is_that_of_the_storages(block: Block, number: int) -> None:
    torch.manual_seed(0)
    model = net()

    def used() -> list[torch.Tensor]:
        """Return the batches that a block uses. A profile does not know of batches that the block never touches."""
        touched = {once: 1, freed_in_the_middle: 1, a_view: 1, picked: 1, made_inside: 0}.get(block, number)
        return [batch() for _ in range(2 if "train" in block.__name__ or block is stacked_inside else touched)]

    with torch.set_grad_enabled("train" in block.__name__):
        held = used()
        with Live([*model.parameters(), *held]) as expected:
            block(model, held)
        model.zero_grad()
        held = used()
        with fxflops.profile(model) as p:
            block(model, held)
    assert p.report.max_memory == expected.peak


@pytest.mark.parametrize(
    "given",
    [
        lambda x: ((x,), {}),
        lambda x: ((), {"given": x}),
        lambda x: (([x],), {}),
        lambda x: (({"x": x},), {}),
        lambda x: ((UserDict({"x": x}),), {}),
        lambda x: ((Sample(x, "cat"),), {}),
        lambda x: ((x, (x, [x])), {"again": {"x": x}}),
        lambda x: (({"x": {"y": x}},), {}),
    ],
)
def test_inputs_in_containers_count_once(given: Any) -> None:
    model, x = Nested(), batch()
    args, kwargs = given(x)
    with torch.no_grad(), fxflops.profile(model) as p:
        model(*args, **kwargs)
    assert p.report.memory["inputs"] == BATCH
    assert p.report.max_memory == MODEL + 2 * BATCH
    assert fxflops.count(model, args, kwargs).max_memory == p.report.max_memory


def test_count_analyze_and_profile_agree() -> None:
    model, x = net(), batch()
    with torch.no_grad(), fxflops.profile(model) as p:
        model(x)
    reports = [p.report, fxflops.count(model, x), fxflops.analyze(model, x, repeats=0, progress=False)]
    assert [report.max_memory for report in reports] == [MODEL + 3 * BATCH] * 3
    assert [report.memory["inputs"] for report in reports] == [BATCH] * 3


def test_what_one_model_gives_another_is_no_input() -> None:
    first, second, x = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), batch()
    with torch.no_grad(), fxflops.profile([first, second]) as p:
        between = first(x)
        second(between)
    assert p.report.memory["inputs"] == BATCH
    assert p.report.memory["activations"] == 2 * BATCH
    assert p.report.max_memory == 2 * MODEL + 3 * BATCH


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_a_loader_count_while_they_live(workers: int) -> None:
    data = TensorDataset(torch.randn(4 * ROWS, WIDTH))
    model = net()
    loader = DataLoader(data, batch_size=ROWS, num_workers=workers)
    with torch.no_grad(), fxflops.profile(model) as p:
        for (x,) in loader:
            model(x)
    # A batch, the rows that it was put together from, and the data set if this process reads it.
    assert p.report.memory["inputs"] <= 3 * BATCH + 4 * BATCH
    assert MODEL + 3 * BATCH <= p.report.max_memory <= MODEL + 9 * BATCH
    if workers:
        assert p.report.memory["inputs"] <= 2 * BATCH


def test_batches_from_numpy_count_while_they_live() -> None:
    model = net()
    arrays = [np.zeros((ROWS, WIDTH), np.float32) for _ in range(4)]
    with torch.no_grad(), fxflops.profile(model) as p:
        while arrays:
            x = torch.from_numpy(arrays.pop())
            model(x)
    assert p.report.memory["inputs"] == BATCH
    assert p.report.max_memory == MODEL + 3 * BATCH


def test_code_without_a_model() -> None:
    a, b = torch.randn(64, 32), torch.randn(32, 16)
    with fxflops.profile() as p:
        _ = a @ b
    assert p.report.memory["inputs"] == (64 * 32 + 32 * 16) * 4
    assert p.report.max_memory == (64 * 32 + 32 * 16 + 64 * 16) * 4


def test_a_model_that_is_not_profiled_has_parameters() -> None:
    teacher, student, x = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), batch()
    with torch.no_grad(), fxflops.profile(student) as p:
        F.mse_loss(student(x), teacher(x))
    assert p.report.memory["params"] == 2 * MODEL
    assert p.report.memory["inputs"] == BATCH


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_a_cache_from_before_is_a_cache() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=64, n_embd=WIDTH, n_layer=1, n_head=2, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        cache = model(torch.ones(2, 8, dtype=torch.long), use_cache=True).past_key_values
        with fxflops.profile(model) as p:
            model(torch.ones(2, 1, dtype=torch.long), past_key_values=cache)
    assert p.report.memory["cache"] >= 2 * (2 * 8 * WIDTH * 4)
    assert p.report.memory["inputs"] == 2 * 8


def test_steps_of_training_with_the_same_batches() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [(batch(), batch()) for _ in range(3)]

    def train() -> None:
        for x, y in batches:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()

    train()
    optimizer.zero_grad()
    states = [each["momentum_buffer"] for each in optimizer.state.values()]
    with Live([*model.parameters(), *states, *sum(batches, ())]) as expected:
        train()
    optimizer.zero_grad()
    with fxflops.profile(model, optimizer=optimizer) as p:
        train()
    assert p.report.max_memory == expected.peak
    assert p.report.memory["inputs"] == 6 * BATCH

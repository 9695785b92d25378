"""Checkpoint plans and batch sizes, compared with the CPU allocator and with counts of every set of checkpoints."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fxflops
from benchmarks.what_fits import Wide, least_of, measured, trained
from fxflops.prediction.batches import largest_batch as search

SGD = partial(torch.optim.SGD, lr=0.1)


class Normed(nn.Module):
    """Convolutions with batch norm and dropout. If recomputing them had a second effect, it would show in statistics or masks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Sigmoid())
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8, momentum=None),
            nn.GELU(),
            nn.Dropout(0.5),
            nn.Conv2d(8, 32, 3),
            nn.GELU(),
        )
        self.head = nn.Conv2d(32, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(F.silu(self.norm(self.first(x)))))  # type: ignore[no-any-return]


class Counter(nn.Module):
    """A layer that counts its calls in a buffer: recomputing it would count twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 256), nn.Linear(256, 16)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.down(self.up(x).tanh())  # type: ignore[no-any-return]


class Keeping(nn.Module):
    """A layer whose forward first calls a function on the layer. Recomputing the layer repeats whatever the function writes."""

    def __init__(self, note: Callable[[Any], Any]) -> None:
        super().__init__()
        self.up, self.down, self.note = nn.Linear(16, 256), nn.Linear(256, 16), note
        self.calls, self.seen, self.kept = 0, [0], SimpleNamespace(shapes={})
        self.constant: torch.Tensor | None = None
        if note is draws_of_its_own:
            self.own = random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.note(self)
        return self.down((self.up(x).tanh() * 0.5).sigmoid())  # type: ignore[no-any-return]


def counts(layer: Any) -> None:
    layer.calls += 1


def appends(layer: Any) -> None:
    layer.seen.append(1)


def keeps_more(layer: Any) -> None:
    layer.kept.shapes[len(layer.kept.shapes)] = 1


def draws(layer: Any) -> None:
    random.random()


def draws_with_numpy(layer: Any) -> None:
    np.random.rand()


def draws_of_its_own(layer: Any) -> None:
    layer.own.random()


def keeps_the_same(layer: Any) -> None:
    layer.kept.shapes["x"] = 16
    layer.seen[0] = 7
    layer.constant = torch.ones(3) if layer.constant is None else layer.constant


class OnlyOnce(nn.Module):
    """A layer that cannot be run again: its cache grows with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 256), nn.Linear(256, 16)
        self.cache: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.append(1)
        return self.down(self.up(x).tanh().repeat(1, len(self.cache))[:, :256] * torch.ones(len(self.cache), 1, 1))[0]  # type: ignore[no-any-return]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.twice, self.between, self.after = Wide(96), Wide(256), Wide(160)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.twice(self.between(self.twice(x))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(Wide(32), Wide(320), Wide(96), Wide(160)),
        lambda: nn.Sequential(nn.Sequential(Wide(64), Wide(256)), Wide(192), Wide(96)),
        Twice,
    ],
    ids=["sizes", "nested", "called twice"],
)
def test_no_set_of_modules_fits_and_recomputes_less(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, args, kwargs = build().train(), (torch.randn(512, 32),), None
    modules = [module for path, module in model.named_modules() if path]
    counted = []
    for size in range(len(modules) + 1):
        for chosen in combinations(modules, size):
            for module in chosen:
                module.forward = partial(checkpoint, module.forward, use_reentrant=False)
            report = fxflops.count(model, args, kwargs, backward=True)
            counted.append((report.max_memory or 0, report.total_recompute_flops or 0))
            for module in chosen:
                del module.forward
    least, without = min(counted)[0], counted[0][0]
    first = fxflops.plan_checkpoints(model, args, kwargs, memory=least)
    plans = [first, *(first.within(int(least + share * (without - least))) for share in (0.25, 0.5, 0.7, 0.9))]
    for plan in plans:
        assert plan.recompute_flops == min(flops for peak, flops in counted if peak <= plan.memory)
        assert plan.peak <= plan.memory
        assert plan.peak_before == without
    assert len({plan.modules for plan in plans}) >= 2
    with pytest.raises(fxflops.OutOfMemoryError, match=f"{least:,} bytes"):
        first.within(least - 1)


class Curve(nn.Module):
    """An activation of several steps, each saved by autograd. Recomputing it costs almost nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(64, 256), Curve(), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("settings", [{}, {"device": "cuda", "autocast": torch.bfloat16}], ids=["cpu", "autocast"])
def test_in_many_modules_cheap_ones_come_before_those_around_them(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layers = 4  # 16 modules: more than SMALL, the limit up to which a plan tries every set of them
    model, x = nn.Sequential(*(Block() for _ in range(layers))).to("meta").train(), torch.randn(512, 64).to("meta")
    counted = []
    for blocks in range(layers + 1):
        for acts in {0, layers - blocks, layers}:  # in none, in the other blocks, in all
            chosen = [model[i] for i in range(blocks)] + [model[-i - 1].act for i in range(acts)]
            for module in chosen:
                module.forward = partial(checkpoint, module.forward, use_reentrant=False)
            report = fxflops.count(model, x, backward=True, **settings)
            counted.append((report.max_memory or 0, report.total_recompute_flops or 0))
            for module in chosen:
                del module.forward
    least, without = min(counted)[0], counted[0][0]
    first = fxflops.plan_checkpoints(model, x, memory=without - 1, **settings)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        plan = first.within(int(least + share * (without - least)))
        assert plan.recompute_flops <= min(flops for peak, flops in counted if peak <= plan.memory)
        assert plan.peak <= plan.memory


def test_a_plan_applied_takes_what_it_says() -> None:
    torch.manual_seed(0)
    model, inputs = (
        nn.Sequential(*(nn.TransformerEncoderLayer(32, 2, 128, batch_first=True) for _ in range(3))),
        (
            (torch.randn(4, 64, 32),),
            {},
        ),
    )
    optimizer = trained(model, inputs)
    without = measured(model, inputs, optimizer)
    plan = fxflops.plan_checkpoints(model, *inputs, memory=int(without * 0.75), optimizer=optimizer)
    exec(plan.code, {"model": model})
    assert measured(model, inputs, optimizer) == pytest.approx(plan.peak, rel=0.005)
    assert plan.peak <= without * 0.75
    assert plan.curve[0].modules == ()
    assert plan.curve[0].peak == pytest.approx(without, rel=0.005)
    assert (plan.peak, plan.recompute_flops, plan.modules) in plan.curve


def test_the_code_changes_no_gradient_and_no_statistics() -> None:
    torch.manual_seed(0)
    model, x = Normed().train(), torch.randn(8, 3, 32, 32)
    before, state = {**vars(model)}, copy.deepcopy(model.state_dict())
    plan = fxflops.plan_checkpoints(model, x, memory="1GiB")
    plan = plan.within(least_of(plan))
    assert vars(model).keys() == before.keys()
    assert all("forward" not in vars(each) for each in model.modules())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())

    applied = copy.deepcopy(model)
    # Checkpoint everything that has statistics, whatever the plan says.
    code = plan.code.replace(repr([*plan.modules]), "['norm', 'body']")
    exec(code, {"model": applied})
    for each in (model, applied):
        for _ in range(2):
            torch.manual_seed(1)
            each(x).square().sum().backward()
    assert [*applied.state_dict()] == [*model.state_dict()]
    for (name, one), two in zip(model.named_parameters(), applied.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, msg=name)
    for (name, one), two in zip(model.named_buffers(), applied.buffers(), strict=True):
        torch.testing.assert_close(one, two, msg=name)


@pytest.mark.parametrize(("layer", "reason"), [(Counter, "buffer seen"), (OnlyOnce, "cannot be recomputed")])
def test_modules_that_may_not_run_again_are_left_out(layer: Callable[[], nn.Module], reason: str) -> None:
    others = (nn.Sequential(nn.Linear(16, 512), nn.Tanh(), nn.Linear(512, 16)) for _ in range(2))
    model, x = nn.Sequential(layer(), *others), torch.randn(256, 16)
    memory = (fxflops.count(model, x, backward=True).max_memory or 0) - 1
    plan = fxflops.plan_checkpoints(model, x, memory=memory)
    assert "0" not in plan.modules
    assert reason in plan.left_out["0"]
    assert reason in str(plan)


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (counts, "attribute calls"),
        (appends, "attribute seen"),
        (keeps_more, "attribute kept"),
        (draws, "Python's random"),
        (draws_with_numpy, "numpy's random"),
        (draws_of_its_own, "its own"),
        (keeps_the_same, ""),
    ],
)
def test_state_in_plain_attributes_that_a_recomputation_would_change(note: Callable[[Any], Any], reason: str) -> None:
    model, x = (
        nn.Sequential(nn.Linear(16, 32), Wide(256), Wide(256), nn.Linear(32, 16), Keeping(note)),
        torch.randn(1024, 16),
    )
    memory = (fxflops.count(model, x, backward=True).max_memory or 0) - 1
    plan = fxflops.plan_checkpoints(model, x, memory=memory)
    assert reason in plan.left_out.get("4", "")
    assert not (reason and "4" in plan.modules)
    assert reason or "4" not in plan.left_out
    assert (model[4].calls, model[4].seen[1:]) == (0, [])


def test_a_step_that_fits_needs_no_plan() -> None:
    plan = fxflops.plan_checkpoints(nn.Linear(4, 4), torch.randn(2, 4), memory="1MiB")
    assert (plan.modules, plan.code, plan.recompute_flops) == ((), "", 0)
    assert "fits without checkpoints" in str(plan)


def test_the_largest_batch_is_the_largest_that_measures_within() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = trained(model, ((torch.randn(2, 16),), {}))
    asked = []

    def make_inputs(batch: int) -> torch.Tensor:
        asked.append(batch)
        return torch.randn(batch, 16)

    memory = 300_000
    found = fxflops.largest_batch(model, make_inputs, memory=memory, backward=True, optimizer=optimizer)
    peaks = [measured(model, ((torch.randn(batch, 16),), {}), optimizer) for batch in (found, found + 1)]
    assert peaks[0] <= memory < peaks[1]
    assert asked[0] == 1  # batch norm refuses this size
    assert len(asked) < 20


def test_a_card_is_filled_with_context_and_segments() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 8192), nn.GELU(), nn.Linear(8192, 1024))
    found = fxflops.largest_batch(model, lambda batch: {"input": torch.empty(batch, 1024, device="meta")}, device="T4")

    def fits(batch: int) -> Any:
        return fxflops.count(model, torch.empty(batch, 1024, device="meta"), device="cuda").reserved("T4").fits

    assert fits(found)
    assert not fits(found + 1)


@pytest.mark.parametrize(
    ("peak", "refused"),
    [
        (lambda batch: 1000 + 37 * batch, lambda batch: False),
        (lambda batch: 1000 + 37 * batch, lambda batch: batch % 4),
        (lambda batch: 1000 + 37 * batch * batch, lambda batch: False),
        (lambda batch: 1000 + 37 * (-(-batch // 8) * 8), lambda batch: batch == 1),
        (lambda batch: max(5000 + 37 * batch, 3000 + 80 * batch), lambda batch: False),
        (lambda batch: -(-batch * 37 // 2**17) * 2**17, lambda batch: False),
        (lambda batch: 1000 + 37 * batch, lambda batch: batch > 20_000),
    ],
)
def test_searched_sizes_are_the_largest(peak: Callable[[int], int], refused: Callable[[int], bool]) -> None:
    def take(batch: int) -> int:
        if refused(batch):
            raise fxflops.errors.RunError("refused")
        return peak(batch)

    largest = max(batch for batch in range(30_000) if batch and not refused(batch) and peak(batch) <= 10**6)
    assert search(take, 10**6) == largest


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "give a limit, e.g. memory='16GiB', or a card, e.g. device='H100'"),
        ({"memory": "16"}, "add a unit"),
        ({"memory": "lots"}, "not a number"),
        ({"memory": 1.5}, "expected a whole number of bytes"),
        ({"device": "H1000"}, "a card's name"),
        ({"memory": 10**6, "optimizer": SGD}, "backward=True"),
    ],
)
def test_errors_say_what_to_give(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(fxflops.FxflopsError, match=said):
        fxflops.largest_batch(nn.Linear(4, 4), lambda batch: torch.randn(batch, 4), **settings)


def test_inputs_that_do_not_grow_or_cannot_be_made() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(fxflops.InputError, match="does not grow with the batch"):
        fxflops.largest_batch(model, lambda batch: torch.randn(2, 4), memory="1MiB")
    with pytest.raises(ZeroDivisionError, match=r"make_inputs\(1\) raised"):
        fxflops.largest_batch(model, lambda batch: torch.randn(batch // 0, 4), memory="1MiB")
    with pytest.raises(TypeError, match="function of the batch"):
        fxflops.largest_batch(model, torch.randn(1, 4), memory="1MiB")  # type: ignore[arg-type]
    assert fxflops.largest_batch(model, lambda batch: torch.randn(batch, 4), memory=100) == 0

"""Profiling leaves no trace: the model, its inputs and the random generators are bit for bit as before."""

from __future__ import annotations

import copy
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

import fxflops
from fxflops import TorchFLOPsByFX, analyze, count


class Messy(nn.Module):
    """Does everything that a model may do to itself and to its inputs while it runs."""

    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))
        self.plain = torch.zeros(3)
        self.seen: list[int] = []
        self.count = 0
        self.fail = fail
        self.fc.register_forward_hook(lambda module, args, out: out + 1)
        self.drop.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.seen.append(self.count)
        self.extra = self.count
        self.steps.add_(1)
        self.plain.add_(1)
        self.fc.weight.data.mul_(2)
        x.add_(1)
        noise = torch.rand_like(x)
        out = self.fc(self.drop(self.norm(x))) + noise
        if self.fail:
            out = out.view(-1, 7)
        return out


def everything(model: nn.Module) -> dict[str, Any]:
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "training": [m.training for m in model.modules()],
        "hooks": [
            (list(m._forward_hooks.items()), list(m._forward_pre_hooks.items()), list(m._forward_hooks_with_kwargs))
            for m in model.modules()
        ],
        "attributes": [{k: copy.copy(v) for k, v in vars(m).items() if k[0] != "_"} for m in model.modules()],
        "names": [list(vars(m)) for m in model.modules()],
        "rng": (torch.get_rng_state().clone(), random.getstate(), np.random.get_state()[1].copy()),
        "grad": (
            torch.is_grad_enabled(),
            [p.grad for p in model.parameters()],
            [p.requires_grad for p in model.parameters()],
        ),
    }


def assert_same(before: Any, after: Any) -> None:
    if isinstance(before, torch.Tensor):
        assert torch.equal(before, after)
    elif isinstance(before, np.ndarray):
        assert np.array_equal(before, after)
    elif isinstance(before, dict):
        assert list(before) == list(after)
        for key in before:
            assert_same(before[key], after[key])
    elif isinstance(before, (list, tuple)):
        assert len(before) == len(after)
        for a, b in zip(before, after, strict=True):
            assert_same(a, b)
    else:
        assert before == after or before is after


def propagate(model: nn.Module, x: torch.Tensor) -> Any:
    return TorchFLOPsByFX(model).propagate(x)


@pytest.mark.parametrize("run", [analyze, count, propagate])
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_nothing_is_left_behind(run: Any, fail: bool, training: bool) -> None:
    model, x = Messy(fail).train(training), torch.ones(2, 4)
    before, inputs = everything(model), x.clone()
    if fail:
        with pytest.raises(fxflops.RunError, match="view"):
            run(model, x)
    else:
        run(model, x)
    assert_same(before, everything(model))
    assert torch.equal(x, inputs)


class Anchors(nn.Module):
    """Sets its attributes while it runs, and computes indices whose number is unknown without values."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors = [torch.ones(3), torch.zeros(2)]
        self.by_size = {"small": torch.ones(2)}
        self.fixed = torch.zeros(2)
        self.runs = 0
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.anchors = [anchor.to(x.device) + 1 for anchor in self.anchors]
        self.by_size["large"] = self.by_size["small"].add_(1)
        self.fixed = self.fixed.to(x.device) - 1
        self.runs = self.runs + 1
        return self.fc(x)[torch.nonzero(x[:, 0] > 0)[:, 0]]


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script.*:DeprecationWarning", "ignore:.*torch.jit.script.*:FutureWarning"
)
@pytest.mark.parametrize("run", [analyze, count, propagate])
def test_attributes_of_scripts_are_restored(run: Any) -> None:
    """In torchvision's detection models, a first run on meta left the anchors on meta, so that the next run raised."""
    script, x = torch.jit.script(Anchors()), torch.ones(2, 4)
    report = run(script, x)
    assert report.total_macs == 2 * 4 * 4
    assert [anchor.tolist() for anchor in script.anchors] == [[1, 1, 1], [0, 0]]
    assert {name: each.tolist() for name, each in script.by_size.items()} == {"small": [1, 1]}
    assert (script.fixed.tolist(), script.runs) == ([0, 0], 0)
    script(x)
    assert script.runs == 1


def test_a_list_input_is_not_grown() -> None:
    class Cache(nn.Module):
        def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
            cache.append(x)
            return torch.cat(cache)

    cache = [torch.ones(1, 2)]
    report = count(Cache(), (torch.ones(1, 2), cache))
    assert len(cache) == 1
    assert report.calls[-1].out == (2, 2)


def test_the_global_modes_are_restored() -> None:
    with torch.no_grad():
        analyze(nn.Linear(2, 2), torch.ones(1, 2), repeats=1)
        assert not torch.is_grad_enabled()
    with torch.enable_grad():
        analyze(nn.Linear(2, 2), torch.ones(1, 2), repeats=1)
        assert torch.is_grad_enabled()


def test_threads_may_analyze_the_same_model() -> None:
    model, x = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)]), torch.ones(4, 8)
    totals: list[int] = []
    threads = [
        threading.Thread(target=lambda run=run: totals.append(run(model, x).total_flops))  # type: ignore[misc]
        for run in [lambda m, x: analyze(m, x, repeats=1), count] * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [20 * 2 * 4 * 8 * 8] * 8
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_train_mode_updates_no_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    before = everything(model)
    analyze(model, torch.randn(2, 3, 8, 8), mode="train", repeats=2)
    count(model, torch.randn(2, 3, 8, 8), mode="train")
    assert_same(
        {k: v for k, v in before.items() if k != "rng"}, {k: v for k, v in everything(model).items() if k != "rng"}
    )


class Notes(nn.Module):
    """Leaves a note on its input, on a buffer and on a tensor that it keeps, and changes the notes that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(4))
        self.kept = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for tensor in (x, self.table, self.kept):
            tensor.note = tensor.__dict__.get("note", 0) + 1
            tensor.__dict__.pop("former", None)
        return x * self.table * self.kept


@pytest.mark.parametrize("run", [count, lambda *args: analyze(*args, repeats=0, progress=False)])
@pytest.mark.parametrize("noted", [{}, {"note": 5, "former": "there"}])
def test_what_a_forward_notes_on_tensors_goes(run: Any, noted: dict[str, Any]) -> None:
    model, x = Notes(), torch.ones(4)
    tensors = x, model.table, model.kept
    for tensor in tensors:
        vars(tensor).update(noted)
    run(model, x)
    assert [vars(tensor) for tensor in tensors] == [noted] * 3


class Writes(nn.Module):
    """A torch function writes to a parameter although its name does not say so. The value of the result then selects the branch."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case = case
        self.table, self.mean, self.var = (nn.Parameter(torch.rand(*size) + 1) for size in ((10, 3), (3,), (3,)))
        self.embedding, self.bag = nn.Embedding(10, 3, max_norm=0.5), nn.EmbeddingBag(10, 3, max_norm=0.5)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        if self.case == "batch norm":
            y = F.batch_norm(torch.randn(4, 3), self.mean.data, self.var.data, training=True)
        elif self.case == "function":
            y = F.embedding(i, self.table, max_norm=0.5)
        else:
            y = self.embedding(i) if self.case == "module" else self.bag(i[None])
        return y * 2 if y.sum() > 100 else y


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("run", [count, lambda *args, **kw: analyze(*args, **kw, repeats=1, progress=False)])
@pytest.mark.parametrize("case", ["module", "bag", "function", "batch norm"])
def test_what_functions_write_without_a_word_is_undone(case: str, run: Any, backward: bool) -> None:
    model = Writes(case).eval()
    before = copy.deepcopy(model.state_dict())
    run(model, torch.tensor([1, 2, 3, 4]), backward=backward and case != "batch norm")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("run", [count, lambda *args: analyze(*args, repeats=1, progress=False)])
def test_weights_that_parametrize_caches_stay(run: Any) -> None:
    layer = nn.Linear(3, 4)
    parametrize.register_parametrization(layer, "weight", nn.Softmax(0))
    x = torch.randn(2, 3)
    wanted, linear, softmax = layer(x), 2 * 2 * 3 * 4, run(layer, x).total_flops - 2 * 2 * 3 * 4
    assert softmax > 0
    with parametrize.cached():
        assert [run(layer, x).total_flops for _ in range(2)] == [linear + softmax] * 2
        assert torch.equal(layer(x), wanted)
        assert [run(layer, x).total_flops for _ in range(2)] == [linear] * 2  # the weight is cached now
        assert torch.equal(layer(x), wanted)

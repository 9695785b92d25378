"""Blocks profiled by module or by step: what is seen, what is reported as unseen, and that nothing is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

import fxflops
from fxflops.errors import InputError

PAUSE = 0.01


def in_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(PAUSE)
        return x * x


class SlowGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        time.sleep(3 * PAUSE)
        return grad


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.slow = nn.Linear(4, 4), nn.Sequential(Slow(), Slow())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SlowGradient.apply(self.slow(self.linear(x)))


@pytest.fixture
def trained() -> Iterator[tuple[Net, torch.optim.Optimizer]]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    yield model, optimizer
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks


def test_a_training_loop_by_module(trained: tuple[Net, torch.optim.Optimizer]) -> None:
    model, optimizer = trained
    with fxflops.profile(model, detail="modules") as p:
        for _ in range(2):
            loss = model(torch.ones(2, 4)).sum()
            time.sleep(2 * PAUSE)
            loss.backward()
            optimizer.step()
    report = p.report
    rows = report.by_module()
    assert [rows[path].calls for path in ("", "linear", "slow", "slow.0", "slow.1")] == [2] * 5
    assert rows["slow"].total.seconds == pytest.approx(
        rows["slow.0"].total.seconds + rows["slow.1"].total.seconds, rel=0.2
    )
    assert all(rows[path].total.seconds >= 2 * PAUSE for path in ("slow.0", "slow.1"))
    times = report.step_times()
    assert list(times) == ["(outside)", "step 1", "step 2"]
    for step in (times["step 1"], times["step 2"]):
        assert step.forward >= 2 * PAUSE
        assert step.backward >= 3 * PAUSE
        assert step.between >= 2 * PAUSE
        assert 0 < step.optimizer < PAUSE
        assert step.seconds == pytest.approx(step.forward + step.backward + step.optimizer + step.between)
    assert report.block_time == pytest.approx(sum(step.seconds for step in times.values()))


@pytest.mark.parametrize("detail", ["modules", "steps"])
def test_optimizers_are_timed_in_the_thread_of_the_block_alone(detail: str) -> None:
    """The block is given no optimizer. A second optimizer steps in another thread; its time belongs to the code around it."""
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)

    class Slowly(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            time.sleep(PAUSE)
            return super().step(closure)

    optimizers = [Slowly(each.parameters(), lr=0.1) for each in (model, other)]
    for stepping, least, most in (
        (optimizers[0].step, PAUSE, 3 * PAUSE),
        (lambda: in_thread(optimizers[1].step), 0, 0),
    ):
        with fxflops.profile(model, detail=detail) as p:
            model(torch.ones(2, 4)).sum().backward()
            stepping()
        assert least <= p.report.step_times()["step 1"].optimizer <= most


def test_what_is_unseen_is_unknown(trained: tuple[Net, torch.optim.Optimizer]) -> None:
    with fxflops.profile(trained[0], detail="steps") as p:
        trained[0](torch.ones(2, 4))
    report = p.report
    assert not report.complete
    assert [(each.op, each.calls, each.reason) for each in report.missing] == [
        ("(not observed)", 1, "the observer did not see what this call computed")
    ]
    assert report.max_memory is None
    with pytest.warns(UserWarning, match="the utilization is unknown: no operation was counted"):
        assert report.mfu() is None
    assert report.total_params == 20
    assert report.trace == "steps profiled, no operations"
    assert "FLOP/s" not in str(report)
    assert "FLOPs    unknown     only times were measured" in str(report)
    assert "INCOMPLETE" not in str(report)
    assert "not counted" not in str(report)
    assert {path for path, row in report.by_module().items() if row.calls} == {""}
    strict = fxflops.profile(trained[0], detail="steps", strict=True)
    with pytest.raises(fxflops.FxflopsError, match="the observer did not see what this call computed"), strict:
        trained[0](torch.ones(2, 4))


@pytest.mark.parametrize("detail", ["modules", "steps"])
def test_no_convention_charges_a_module_that_was_only_timed(detail: str) -> None:
    """Conventions of hook-based tools charge a module by its shapes, which nobody saw here."""
    for model in (nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4))):
        with fxflops.profile(model, detail=detail) as p:
            model(torch.ones(2, 4))
        for report in (p.report, fxflops.Report.from_dict(p.report.to_dict())):
            for convention in fxflops.list_conventions():
                other = report.recount(convention)
                assert (other.total_flops, other.complete, other.missing) == (0, False, report.missing)
            assert "not counted: (not observed) x" in str(report.explain("fvcore", "thop"))


def test_no_module_hides_that_it_was_not_observed(trained: tuple[Net, torch.optim.Optimizer]) -> None:
    with fxflops.profile(trained[0], detail="modules") as p:
        for _ in range(2):
            trained[0](torch.ones(2, 4))
    assert {path: row.own.missing for path, row in p.report.by_module().items()} == {
        "": 1, "linear": 1, "slow": 1, "slow.0": 1, "slow.1": 1,
    }  # fmt: skip
    with fxflops.profile(detail="steps") as p:
        torch.ones(2, 4).sum()
    assert not p.report.complete


def test_steps_of_several_models_are_those_of_each() -> None:
    models = {"a": nn.Sequential(nn.Linear(2, 2)), "b": nn.Linear(2, 2)}
    with fxflops.profile(models, detail="steps") as p:
        models["b"](models["a"](torch.ones(1, 2)))
    assert [name for name in p.report.step_times() if name != "(outside)"] == ["a step 1", "b step 1"]


def test_other_threads_and_recomputation_belong_to_the_time_around_them(
    trained: tuple[Net, torch.optim.Optimizer],
) -> None:
    model = trained[0]
    with fxflops.profile(model, detail="modules") as p:
        checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum().backward()
        thread = threading.Thread(target=model, args=(torch.ones(2, 4),))
        thread.start()
        thread.join()
    assert p.report.by_module()[""].calls == 1
    assert p.report.step_times()["step 1"].backward >= 5 * PAUSE  # the forward's two again, and the gradient's three


def test_a_call_that_raises() -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    def by_user(*_: object) -> None:
        raise KeyError

    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), Raises()), nn.Linear(2, 2))
    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked[0].register_forward_pre_hook(by_user)
    with fxflops.profile([model, hooked], detail="modules") as p:
        for each, error in ((model, ValueError), (hooked, KeyError), (model, ValueError)):
            with pytest.raises(error):
                each(torch.ones(1, 2))
    assert {path: row.calls for path, row in p.report.by_module().items() if path.startswith("Sequential_0")} == {
        "Sequential_0": 2, "Sequential_0.0": 2, "Sequential_0.0.0": 2, "Sequential_0.0.1": 2, "Sequential_0.1": 0,
    }  # fmt: skip
    assert p.report.block_time == pytest.approx(sum(step.seconds for step in p.report.step_times().values()))


def test_generate_is_told_as_prefill_and_decode() -> None:
    class Generates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

        def generate(self, x: torch.Tensor) -> torch.Tensor:
            return self(self(x))

    model = Generates()
    with torch.no_grad(), fxflops.profile(model, detail="modules") as p:
        model.generate(torch.ones(1, 2))
    assert [name for name in p.report.step_times() if name != "(outside)"] == ["prefill", "decode 1"]


def test_a_detail_that_there_is_not() -> None:
    with pytest.raises(InputError, match="unknown detail 'layers'; expected one of 'operations', 'modules', 'steps'"):
        fxflops.profile(nn.Linear(2, 2), detail="layers")

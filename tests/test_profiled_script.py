"""Profiling scripts that create their own models: models are found at their first call, and nothing stays patched afterwards."""

from __future__ import annotations

import gc
import threading
import weakref

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import fxflops
from fxflops.profiled_script import ScriptProfile


class Trainer:
    """An object with a model, a teacher model and a loss as attributes."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        self.teacher = nn.Linear(8, 2)
        self.loss = nn.MSELoss()

    def step(self) -> None:
        x = torch.ones(3, 8)
        self.loss(self.net(x), self.teacher(x).detach()).backward()


def macs_by_module(run: ScriptProfile) -> dict[str, int]:
    return {path: row.macs for path, row in run.report.by_module().items()}


def test_the_models_of_an_object_have_the_names_of_its_attributes() -> None:
    trainer = Trainer()
    with ScriptProfile() as run:
        trainer.step()
    macs = macs_by_module(run)
    assert (macs["net.0"], macs["net.2"], macs["teacher"]) == (3 * 8 * 4, 3 * 4 * 2, 3 * 8 * 2)
    assert run.report.params.total == sum(p.numel() for m in (trainer.net, trainer.teacher) for p in m.parameters())


def test_one_model_is_profiled_as_if_it_had_been_given() -> None:
    with ScriptProfile() as run:
        model = Trainer().net
        torch.compile(model)(torch.ones(3, 8))
    assert (run.report.model, macs_by_module(run)["0"]) == ("Sequential", 3 * 8 * 4)


def test_a_model_that_no_variable_of_the_script_has_is_profiled_by_its_class() -> None:
    with ScriptProfile() as run:
        (lambda: nn.Linear(8, 4)(torch.ones(3, 8)))()
    assert (run.report.model, run.report.total_macs) == ("Linear", 96)


def test_code_without_a_model_is_profiled_from_its_beginning() -> None:
    with ScriptProfile() as run:
        nn.ReLU()(torch.ones(3, 8) @ torch.ones(8, 4))
    assert run.report.total_macs == 96


def test_a_model_called_below_a_mode_of_the_script_is_found_at_a_later_call() -> None:
    model = nn.Linear(8, 4)
    with ScriptProfile() as run:
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(1, 8))
        model(torch.ones(3, 8))
    assert counter.get_total_flops() == 2 * 8 * 4
    assert (run.report.model, run.report.total_macs) == ("Linear", 96)


def test_a_default_device_set_around_the_first_call_stays() -> None:
    model = nn.Linear(8, 4)
    with ScriptProfile() as run, torch.device("meta"):
        model(torch.ones(3, 8, device="cpu"))
        assert torch.ones(1).is_meta
    assert not torch.ones(1).is_meta
    assert run.report.total_macs == 96


class Seen(TorchFunctionMode):
    """A mode that records the names of the functions it sees, and runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_of_functions_that_end_before_the_block_are_left_alone() -> None:
    with ScriptProfile() as run:
        seen = Seen()
        with seen:
            Trainer().step()
        torch.ones(2) + 1
    assert "linear" in seen.names
    assert run.report.total_macs


def test_a_call_in_another_thread_begins_nothing() -> None:
    model = nn.Linear(8, 4)
    with ScriptProfile() as run:
        thread = threading.Thread(target=model, args=(torch.ones(1, 8),))
        thread.start()
        thread.join()
        model(torch.ones(3, 8))
    assert run.report.total_macs == 96


def test_modules_are_called_as_before_and_no_batch_is_kept() -> None:
    call = nn.Module.__call__
    model = nn.Linear(8, 4)

    def step() -> weakref.ref[torch.Tensor]:
        batch = torch.ones(3, 8)
        model(batch)
        return weakref.ref(batch)

    def loop() -> None:
        batch = torch.ones(3, 8)
        model(batch)
        first, batch = weakref.ref(batch), torch.ones(2, 8)
        assert first() is None
        del batch

    with ScriptProfile():
        loop()
        assert nn.Module.__call__ is call
        assert step()() is None
    gc.collect()
    assert nn.Module.__call__ is call


def test_state_of_an_optimizer_that_is_gone_by_the_end_is_its_own() -> None:
    def main() -> None:
        model = nn.Linear(8, 4, bias=False)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.ones(3, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()(torch.ones(3, 8))

    with ScriptProfile() as run:
        main()
    assert run.report.memory["optimizer"] >= 2 * 4 * 8 * 4
    assert "train and eval" in str(run.report)


def test_a_call_that_the_script_has_replaced_stays_replaced() -> None:
    before, called = nn.Module.__call__, list[str]()
    try:
        with ScriptProfile() as run:
            call = nn.Module.__call__

            def logged(module: nn.Module, /, *args: object) -> object:
                called.append(type(module).__name__)
                return call(module, *args)

            nn.Module.__call__ = logged  # type: ignore[method-assign]
            for _ in range(2):
                nn.Linear(8, 4)(torch.ones(3, 8))
        assert nn.Module.__call__ is logged
        assert (called, run.report.total_macs) == (["Linear", "Linear"], 2 * 96)
    finally:
        nn.Module.__call__ = before  # type: ignore[method-assign]


def test_an_optimizer_has_stepped_also_if_its_time_is_measured_as_0() -> None:
    with FakeTensorMode():  # calls on fake tensors are not timed
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fxflops.profile(model) as p:
            model(torch.ones(3, 8)).sum().backward()
            optimizer.step()
            model.eval()(torch.ones(3, 8))
    assert "train and eval" in str(p.report)

"""The meter of a plain loop: what is counted, over what time, at which peaks; and the model is left alone."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxflops
from fxflops.adapters.deepspeed import FlopsProfiler
from fxflops.integrations import Meter
from fxflops.integrations.clock import LapClock
from fxflops.roofline.devices import Device
from fxflops.units import amount
from tests.standin import StandIn

ROWS, IN, HIDDEN, OUT = 4, 8, 16, 3
FIRST, SECOND = IN * HIDDEN, HIDDEN * OUT  # multiply-accumulates per row
TRAINED = 2 * (2 * FIRST + 3 * SECOND)  # FLOPs per row: the input needs no gradient
DEVICE = Device("test", {"f32": 1e6, "bf16": 4e6}, 1e9)
SECONDS = 2.0


class FixedClock(LapClock):
    """A clock whose readings are one second apart."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        ticks = count()
        self._now = lambda: float(next(ticks))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x)))


def metered(model: nn.Module, **settings: Any) -> Meter:
    meter = Meter(model, device=DEVICE, **settings)
    meter.clock = FixedClock()
    return meter


def test_laps_on_a_device_are_its_own_time(standin: StandIn) -> None:
    """Two laps of 3 and 5 seconds, with work between them, and a start that is discarded: a single wait, at the end."""
    standin.host = lambda: 0.0
    clock = LapClock(standin.device)
    standin.work(100.0)
    for seconds in (3.0, 5.0):
        clock.start()
        standin.work(7.0)
        clock.start()
        standin.work(seconds)
        clock.lap()
        clock.lap()
        standin.work(11.0)
    assert standin.synchronized == 0
    assert clock.take() == 3.0 + 5.0
    assert standin.synchronized == 1
    assert clock.take() == 0.0


def flops(model: nn.Module, *batches: torch.Tensor) -> float:
    meter = metered(model)
    for x in batches:
        with meter.step(x):
            model(x).sum().backward()
    return meter.read()["flops_so_far"]


def test_forward_and_backward_of_each_shape() -> None:
    batches = [torch.randn(rows, IN) for rows in (ROWS, 1, ROWS, 1, 7)]
    assert flops(Net(), *batches) == TRAINED * sum(map(len, batches))


def test_two_meters_and_a_profiler() -> None:
    model, x = Net(), torch.randn(ROWS, IN)
    meters, profiler = [metered(model), metered(model)], FlopsProfiler(model)
    profiler.start_profile()
    with meters[0].step(x), meters[1].step(x):
        model(x).sum().backward()
        fxflops.count(model, x)
    assert [meter.read()["flops_so_far"] for meter in meters] == [ROWS * TRAINED] * 2
    assert profiler.get_total_macs() == ROWS * (FIRST + SECOND)


def test_a_frozen_part_has_no_gradients() -> None:
    model = Net()
    model.first.requires_grad_(False)
    assert flops(model, torch.randn(ROWS, IN)) == ROWS * 2 * (FIRST + 2 * SECOND)


def test_thawing_a_part_is_seen() -> None:
    model, x = Net(), torch.randn(ROWS, IN)
    meter = metered(model)
    for trained in (False, True, False):
        model.first.requires_grad_(trained)
        with meter.step(x):
            model(x).sum().backward()
    assert meter.read()["flops_so_far"] == ROWS * (TRAINED + 2 * 2 * (FIRST + 2 * SECOND))


def test_evaluation_is_not_counted_but_a_teacher_is() -> None:
    model, x = Net(), torch.randn(ROWS, IN)
    meter = metered(model)
    with meter.step(x), torch.no_grad():
        model.eval()(x)
        model.train()(x)
    assert meter.read()["flops_so_far"] == ROWS * 2 * (FIRST + SECOND)


def test_parts_are_counted_where_the_whole_is_not_called() -> None:
    model, x = Net(), torch.randn(ROWS, IN)
    meter = metered(model)
    with meter.step(x):
        model.second(F.relu(model.first(x))).sum().backward()
    assert meter.read()["flops_so_far"] == ROWS * TRAINED


def test_only_the_loss_is_taken_back() -> None:
    class WithLoss(Net):
        def forward(self, x: torch.Tensor) -> Any:
            hidden = self.first(x)
            return {"loss": self.second(hidden.detach()).sum(), "hidden": hidden}

    model, x = WithLoss(), torch.randn(ROWS, IN)
    meter = metered(model)
    with meter.step(x):
        model(x)["loss"].backward()
    assert meter.read()["flops_so_far"] == ROWS * 2 * (FIRST + 2 * SECOND)


def test_utilization_by_hand() -> None:
    """A step takes 2 s by the clock, which is read at both ends and twice around the count. The count's second is left out."""
    model, x = Net(), torch.randn(ROWS, IN)
    meter = metered(model)
    with meter.step(x):
        model(x).sum().backward()
    found = meter.read()
    assert found["mfu"] == found["hfu"] == pytest.approx(ROWS * TRAINED / 1e6 / SECONDS)
    assert found["tflops_per_device"] == ROWS * TRAINED / SECONDS / 1e12
    assert found["counting_seconds"] > 0
    assert "tokens_per_second" not in found  # floats are not tokens


def test_checkpointing_is_in_hfu_alone() -> None:
    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(super().forward, x, use_reentrant=False)

    model, x = Checkpointed(), torch.randn(ROWS, IN)
    meter = metered(model)
    with meter.step(x):
        model(x).sum().backward()
    found = meter.read()
    assert found["mfu"] == pytest.approx(ROWS * TRAINED / 1e6 / SECONDS)
    with fxflops.profile(model) as p:
        model(x).sum().backward()
    again = p.report.by_module("recompute")[""].total.macs
    assert found["hfu"] == pytest.approx((ROWS * TRAINED + 2 * again) / 1e6 / SECONDS)
    assert again


def test_each_operation_has_the_peak_of_its_dtype() -> None:
    class Mixed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                hidden = self.first(x)
            return self.second(hidden.float())

    model, x = Mixed(), torch.randn(ROWS, IN)
    meter = metered(model)
    with meter.step(x):
        model(x).sum().backward()
    narrow, wide = 2 * 2 * FIRST * ROWS, 2 * 3 * SECOND * ROWS
    assert meter.read()["mfu"] == pytest.approx((narrow / 4e6 + wide / 1e6) / SECONDS)


class InF8(torch.autograd.Function):
    """A product in FP8, whose gradients are computed in bf16, as in FP8 training."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        scale, f8 = torch.ones((), device=x.device), torch.float8_e4m3fn
        return torch._scaled_mm(x.to(f8), weight.to(f8).t(), scale, scale, out_dtype=torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].t() @ x


def test_fp8_has_its_own_peak() -> None:
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(32, 16, dtype=torch.bfloat16, device="meta"))

        def forward(self, x: torch.Tensor) -> Any:
            return InF8.apply(x, self.weight)

    meter = Meter(Narrow(), device=Device("test", {"f32": 1e6, "bf16": 2e6, "f8": 4e6}, 1e9))
    meter.clock = FixedClock()
    x = torch.empty(16, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with meter.step():
        meter._model(x).sum().backward()
    product = 2 * 16 * 16 * 32
    assert meter.read()["mfu"] == pytest.approx((product / 4e6 + 2 * product / 2e6) / SECONDS)


def test_tokens_and_the_time_left() -> None:
    class Language(Net):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return super().forward(F.one_hot(input_ids, IN).float())

    model, meter = Language(), None
    batch = {"attention_mask": torch.ones(2, 5, dtype=torch.long), "input_ids": torch.zeros(2, 5, dtype=torch.long)}
    meter = metered(model, target_tokens=100)
    for _ in range(2):  # 2 s, then 1 s, because the second step has no count
        with meter.step(batch):
            model(batch["input_ids"]).sum().backward()
    found = meter.read()
    assert found["tokens_per_second"] == 20 / 3
    assert found["seconds_left"] == pytest.approx(80 / (20 / 3))
    with meter.step(batch):
        model(batch["input_ids"])
    assert meter.read()["tokens_per_second"] == 10  # over the window since the last reading
    assert metered(model, tokens=lambda given: 7)._tokens_of(batch) == 7


def test_what_cannot_be_counted_is_unknown() -> None:
    class Strange(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.is_meta or torch.overrides._get_current_function_mode_stack():
                raise ValueError("not watched")
            return super().forward(x)

    model, x = Strange(), torch.randn(ROWS, IN)
    meter = metered(model)
    with pytest.warns(UserWarning, match="MFU and FLOPs are unknown"), meter.step(x):
        model(x).sum().backward()
    assert meter.read().keys() == {"counting_seconds"}


def test_a_step_without_a_call_is_unknown() -> None:
    meter = metered(Net())
    with pytest.warns(UserWarning, match="saw no call of its model"), meter.step():
        pass
    assert meter.read().keys() == {"counting_seconds"}


def test_an_operation_without_formula_makes_a_lower_bound() -> None:
    @torch.library.custom_op("meter_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)

    class Custom(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.ops.meter_test.twice(x))

    model, x = Custom(), torch.randn(ROWS, IN)
    meter = metered(model)
    with pytest.warns(UserWarning, match="a lower bound: no formula for meter_test::twice"), meter.step(x):
        model(x).sum().backward()
    assert meter.read()["flops_so_far"] == ROWS * TRAINED


def test_the_model_is_left_as_it_was() -> None:
    model, x = Net(), torch.randn(ROWS, IN)
    state = [dict(vars(module)) for module in model.modules()]
    model(x).sum().backward()
    gradient, random = model.first.weight.grad, torch.get_rng_state()
    with pytest.raises(RuntimeError), metered(model).step():
        model(x).backward()  # not a scalar, so it raises
    assert model.first.weight.grad is gradient
    assert torch.equal(random, torch.get_rng_state())
    assert [dict(vars(module)) for module in model.modules()] == state


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
@pytest.mark.filterwarnings("ignore")  # torch.distributed warns about its backends
def test_figures_of_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three equal ranks: each sum is three times one rank's figure."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.mul_(3))
    model, x = Net(), torch.zeros(ROWS, IN)
    meter = metered(model, tokens=len)
    with meter.step(x):
        model(x).sum().backward()
    found = meter.read()
    assert found["flops_so_far"] == 3 * ROWS * TRAINED
    assert found["tokens_per_second"] == 3 * ROWS / SECONDS
    assert found["mfu"] == pytest.approx(ROWS * TRAINED / 1e6 / SECONDS)


def test_a_sharded_model_is_refused() -> None:
    model = Net()
    model.first.weight.device_mesh = "a DTensor's"
    with pytest.raises(fxflops.InputError, match="sharded over ranks"):
        Meter(model)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.net = nn.Embedding(10, IN), Net()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        return self.net(torch.softmax(x @ x.mT, -1) @ x)


def test_a_closed_form_stands_for_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = Words(), torch.zeros(2, 6, dtype=torch.long)
    form = fxflops.closed_form(model, ids, dynamic_shapes={"ids": {0: "batch", 1: "seq"}}, backward=True)
    batches = [torch.zeros(rows, length, dtype=torch.long) for rows, length in ((1, 4), (3, 9), (2, 7))]
    counted = flops(model, *batches)
    monkeypatch.setattr("fxflops.integrations.meter.work_of", None)
    meter = metered(model, closed_form=form)
    for x in batches:
        with meter.step(x):
            model(x).sum().backward()
    found = meter.read()
    assert found["flops_so_far"] == counted
    assert found["mfu"] == pytest.approx(counted / 1e6 / (3 * SECONDS))


def test_a_sharded_model_needs_a_form_and_is_never_counted() -> None:
    model, ids = Words(), torch.zeros(2, 6, dtype=torch.long)
    form = fxflops.closed_form(model, ids, dynamic_shapes={"ids": {1: "seq"}}, backward=True)
    model.table.weight.device_mesh = "a DTensor's"
    meter = metered(model, closed_form=form, sizes=lambda given: {"seq": given[0].shape[1]})
    with meter.step():
        model(ids).sum().backward()
    assert meter.read()["flops_so_far"] > 0
    model.net.requires_grad_(False)
    with (
        pytest.warns(
            UserWarning, match="sharded over ranks, so it can only be counted by its closed form, which does not hold"
        ),
        meter.step(),
    ):
        model(ids).sum().backward()
    assert "mfu" not in meter.read()
    meter = metered(model, closed_form=form)
    with (
        pytest.warns(
            UserWarning, match="the closed form has the sizes seq, but the token tensor does not have one dim for each"
        ),
        meter.step(),
    ):
        model(ids).sum().backward()


def test_a_compiled_model_is_counted_as_it_is_written() -> None:
    model, x = Net(), torch.randn(ROWS, IN)
    assert flops(torch.compile(model, backend="eager"), x, x) == 2 * ROWS * TRAINED


def test_a_reading_prints_as_a_line_which_the_meter_repeats() -> None:
    model, ids = Net(), torch.zeros(ROWS, 1, dtype=torch.long)
    meter = metered(model, target_tokens=10 * ROWS)
    assert repr(meter) == "step 0"
    for loss in (torch.tensor(2.0), torch.tensor(0.5)):
        with meter.step(ids):
            model(torch.randn(ROWS, IN)).sum().backward()
        reading = meter.read(loss=loss)
    # The second step took one second by the clock.
    rate, mfu = amount(ROWS * TRAINED, "FLOP/s"), ROWS * TRAINED / 1e6
    left = timedelta(seconds=8)
    line = f"step 2  loss 0.5000  {ROWS} tokens/s  {rate}  MFU {mfu:.1%}  {left} left"
    assert str(reading) == repr(meter) == line


def test_a_share_above_a_peak_that_is_too_low_is_left_out_and_said_once() -> None:
    model = Net()
    meter = Meter(model, device=Device("slow", {"f32": 1.0}, bandwidth=1e9))

    def reading() -> Any:
        with meter.step():
            model(torch.randn(ROWS, IN)).sum().backward()
        return meter.read()

    with pytest.warns(UserWarning, match="is left out: the device's peak was given too low"):
        first = reading()
    assert "mfu" not in first
    assert "MFU" not in str(first)
    assert "mfu" not in reading()  # without another warning, which would be an error


@pytest.mark.cuda
def test_a_line_on_a_gpu_has_the_memory_reserved() -> None:
    model = Net().cuda()
    meter = Meter(model)
    with meter.step():
        model(torch.randn(ROWS, IN, device="cuda")).sum().backward()
    reading = meter.read()
    assert reading.memory == torch.cuda.max_memory_reserved()
    assert re.search(r"  memory [\d.]+ MiB \(\d+%\)", str(reading))

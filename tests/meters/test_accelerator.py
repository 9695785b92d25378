"""What is asked of an accelerator, with a stand-in: a run on it equals the run on the CPU, except for the device's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity
from torch.utils.checkpoint import checkpoint

import fxflops
from fxflops.meters.accelerator import Accelerator, accelerator_of, waiter

from ..standin import GB, NAME, StandIn

X = torch.randn(16, 64)
CPU = torch.device("cpu")
TIMES = "seconds timing backward_timing latency backward_latency total_time steps instruments".split()


class Attends(nn.Module):
    """Functions and methods, views, and a module that makes several calls."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]
        # There is no product with a number: autograd keeps it on the host, where a run on a GPU does not count it.
        return self.out(x + y.exp().neg())


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The random state stays on the host, where a run on the CPU counts it and a run on a GPU does not.
        return checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.BatchNorm1d(128), nn.Linear(128, 8)),
    "attention": Attends,
    "checkpointed": Checkpointed,
}


def said(report: fxflops.Report) -> Any:
    """All that a report says, except dates and times, where its memory figures come from, and what only accelerators report."""
    data = report.to_dict()
    data["environment"]["device"] = data["environment"]["date"] = data["memory"]["source"] = ""
    return without_times(data)


def without_times(value: Any, timed: bool = False) -> Any:
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if key != "host_timing"}
        return {key: without_times(part, timed or key in TIMES) for key, part in kept.items()}
    if isinstance(value, (list, tuple)):
        return [without_times(part, timed) for part in value]
    return "seconds" if timed and isinstance(value, float) else value


def trained(model: nn.Module) -> fxflops.Report:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    with fxflops.profile(model, optimizer=optimizer) as p:
        for _ in range(3):
            model(X).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return p.report


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("trace", ["auto", "record"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_an_analysis_says_the_same_on_the_stand_in(make: Callable[[], nn.Module], trace: str, backward: bool) -> None:
    model, x = make(), X.clone()
    settings = {"trace": trace, "backward": backward, "repeats": 2, "progress": False}
    on_cpu = fxflops.analyze(model, x, **settings)
    with pytest.MonkeyPatch.context() as patch:
        standin = StandIn()
        standin.take_over(patch)
        with standin.memory:
            report = fxflops.analyze(standin.to(model), standin.to(x), **settings)
    assert said(report) == said(on_cpu)
    assert report.environment.device == f"cpu ({NAME})"
    assert (report.memory.source, on_cpu.memory.source) == ("allocator", "storages")
    assert all(node.host_timing is not None for node in report.nodes)
    assert standin.events > 2 * len(report.nodes)
    assert standin.synchronized


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_profiled_block_says_the_same_on_the_stand_in(make: Callable[[], nn.Module]) -> None:
    model = make()
    on_cpu = trained(model)
    with pytest.MonkeyPatch.context() as patch:
        standin = StandIn()
        standin.take_over(patch)
        report = trained(model)
    assert said(report) == said(on_cpu)
    assert report.environment.device == f"cpu ({NAME})"
    assert standin.synchronized == 1
    assert report.block_time is not None
    assert sum(time.seconds for time in report.step_times().values()) == report.block_time
    assert {call.seconds is None for call in report.calls} == {False}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_count_says_the_same_on_the_stand_in(make: Callable[[], nn.Module], standin: StandIn) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
        on_cpu = fxflops.count(make(), X)
    assert said(fxflops.count(make(), X)) == said(on_cpu)


def test_the_stand_in_takes_what_torch_takes() -> None:
    names = "current_accelerator device_count current_stream synchronize".split()
    names += [name for name in MEMORY if hasattr(torch.accelerator, name)]
    theirs = {name: getattr(torch.accelerator, name) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        StandIn().take_over(patch)
        for name, function in theirs.items():
            given = () if name in ("current_accelerator", "device_count") else (CPU,)
            inspect.signature(function).bind(*given)
            inspect.signature(getattr(torch.accelerator, name)).bind(*given)
        inspect.signature(torch.Event).bind(CPU, enable_timing=True)
        assert all(hasattr(THEIR_EVENT, name) for name in ("record", "elapsed_time"))


THEIR_EVENT = torch.Event
MEMORY = "memory_allocated max_memory_allocated reset_peak_memory_stats".split()


def test_the_cpu_and_devices_of_other_machines_are_none() -> None:
    assert accelerator_of("cpu") is None
    assert accelerator_of(torch.device("meta")) is None
    assert accelerator_of("npu:3") is None
    assert accelerator_of("cuda:99") is None
    waiter("cpu")()


def test_what_it_tells(standin: StandIn) -> None:
    accelerator = accelerator_of("cpu")
    assert accelerator is not None
    assert (accelerator.name, accelerator.total_memory, accelerator.has_statistics) == (NAME, 80 * GB, True)
    with standin.memory:
        one = torch.ones(250)
        del one
        accelerator.reset_peak()
        two = torch.ones(500)
        assert (accelerator.live, accelerator.peak) == (2000, 2000)
        del two
    assert (accelerator.live, accelerator.peak) == (0, 2000)
    waiter(CPU)()
    assert standin.synchronized == 1


def test_up_to_torch_2_8_the_devices_module_tells_of_memory(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    module = standin.module
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: module)
    for name in MEMORY:
        monkeypatch.delattr(torch.accelerator, name)
    standin.memory.live, standin.memory.peak = 3, 5
    accelerator = Accelerator(CPU)
    assert (accelerator.live, accelerator.peak) == (3, 5)
    accelerator.reset_peak()
    assert accelerator.peak == 3


def test_a_device_that_knows_neither_its_peak_nor_its_name(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like Apple's."""
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: SimpleNamespace())
    report = fxflops.analyze(nn.Linear(64, 8), X, repeats=1)
    assert report.environment.device == "cpu"
    assert report.memory.source == "storages"
    assert all(node.host_timing is not None for node in report.nodes)


def test_the_profilers_name_for_a_device() -> None:
    kinds = [(name, Accelerator.activity.fget(SimpleNamespace(device=torch.device(name)))) for name in ("cuda", "xpu", "mps")]  # type: ignore[attr-defined]  # fmt: skip
    assert kinds == [("cuda", ProfilerActivity.CUDA), ("xpu", ProfilerActivity.XPU), ("mps", None)]


@pytest.mark.cuda
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("trace", ["auto", "record"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_an_analysis_counts_the_same_on_cuda(make: Callable[[], nn.Module], trace: str, backward: bool) -> None:
    model, x = make(), X.clone()
    settings = {"trace": trace, "backward": backward, "repeats": 2, "progress": False}

    def forward(report: fxflops.Report) -> list[tuple[str, str, str]]:
        return [(call.op, call.path, repr(call.out)) for call in report.calls if call.phase == "forward"]

    on_cpu = fxflops.analyze(model, x, **settings)
    on_cuda = fxflops.analyze(model.cuda(), x.cuda(), **settings)
    assert forward(on_cuda) == forward(on_cpu)
    assert on_cuda.total_flops == on_cpu.total_flops
    assert on_cuda.total_backward_macs == on_cpu.total_backward_macs
    assert on_cuda.complete
    assert (on_cuda.memory.source, on_cpu.memory.source) == ("allocator", "storages")
    assert on_cuda.latency is not None
    assert all(node.host_timing is not None for node in on_cuda.nodes)


@pytest.mark.cuda
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_profiled_block_says_the_same_on_cuda(make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    on_cpu = trained(model)
    monkeypatch.setitem(globals(), "X", X.cuda())
    report = trained(make().cuda())
    assert (report.total_flops, report.total_macs) == (on_cpu.total_flops, on_cpu.total_macs)
    assert report.block_time is not None
    assert 0.0 < sum(call.seconds or 0.0 for call in report.calls) <= 1.001 * report.block_time

"""analyze(kernels=True): what ran on the device for each node, from torch.profiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.meters.kernels import KernelMeter
from fxflops.meters.nodes import Node
from fxflops.meters.timing import Timing

from ..standin import StandIn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.conv(x).relu().mean((2, 3)))


def test_operators_stand_under_their_node_on_a_cpu() -> None:
    report = fxflops.analyze(Net(), torch.randn(2, 3, 32, 32), repeats=1, kernels=True)
    kernels = {node.name: {kernel.name: kernel for kernel in node.kernels} for node in report.nodes}
    assert "aten::addmm" in kernels["fc"]
    assert kernels["fc"]["aten::addmm"].calls == 1
    assert any("convolution" in name for name in kernels["conv"])
    assert not any("convolution" in name for name in kernels["fc"])
    assert kernels["x"] == {}
    assert all(kernel.seconds > 0 for node in report.nodes for kernel in node.kernels)
    assert [k.seconds for n in report.nodes for k in n.kernels[:1]] == [
        max(k.seconds for k in n.kernels) for n in report.nodes if n.kernels
    ]


def test_none_unless_asked_for() -> None:
    report = fxflops.analyze(Net(), torch.randn(2, 3, 32, 32), repeats=1)
    assert not any(node.kernels for node in report.nodes)


def test_the_profiler_is_ended_where_the_model_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    x, model = torch.randn(2, 3, 32, 32), Net()
    passes = []
    before = KernelMeter.before

    def fails(meter: KernelMeter, name: str) -> None:
        passes.append(name)
        if name == "fc":
            raise ValueError("no")
        before(meter, name)

    monkeypatch.setattr(KernelMeter, "before", fails)
    with pytest.raises(ValueError, match="no"):
        fxflops.analyze(model, x, repeats=1, kernels=True)
    assert passes[-1] == "fc"
    with torch.profiler.profile(acc_events=True) as other:  # it cannot start while another profiler runs
        torch.ones(2).add(1)
    assert any(event.name == "aten::add" for event in other.events() or ())


@pytest.mark.parametrize(
    ("device", "host", "bound"), [(1e-5, 2e-5, True), (3e-5, 2e-5, False), (2e-5, None, False)], ids=str
)
def test_launch_bound(device: float, host: float | None, bound: bool) -> None:
    host_timing = None if host is None else Timing(host, host, host, 3)
    node = Node(
        "a", "call_module", "a", "", "", "", range(1), Timing(device, device, device, 3), host_timing=host_timing
    )
    assert node.launch_bound is bound


def test_kernels_of_an_accelerator_are_those_of_its_events(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has one kernel per operator, which takes 3 us."""
    events = torch.profiler.profile.events

    def with_kernels(self: torch.profiler.profile) -> Any:
        found = events(self)
        for event in found or ():
            if event.name.startswith("aten::"):
                event.append_kernel(f"{event.name} on the device", 0, 3.0)
        return found

    monkeypatch.setattr(torch.profiler.profile, "events", with_kernels)
    report = fxflops.analyze(Net(), torch.randn(2, 3, 32, 32), repeats=1, kernels=True)
    kernels = [kernel for node in report.nodes for kernel in node.kernels]
    assert kernels
    assert {kernel.name.partition(" ")[2] for kernel in kernels} == {"on the device"}
    assert all(kernel.seconds == pytest.approx(3e-6 * kernel.calls) for kernel in kernels)
    assert "aten::addmm on the device" in {k.name for n in report.nodes if n.name == "fc" for k in n.kernels}


@pytest.mark.cuda
def test_device_and_host_are_timed_apart() -> None:
    report = fxflops.analyze(Net().cuda(), torch.randn(2, 3, 32, 32).cuda(), kernels=True)
    timed = [node for node in report.nodes if node.opcode == "call_module"]
    assert all(node.timing is not None and node.host_timing is not None for node in timed)
    assert any(node.launch_bound for node in timed)
    assert all(node.kernels for node in timed)

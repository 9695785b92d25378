"""Models on several processes: collectives move bytes and compute nothing; sharded layers cost what their shards do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

import fxflops
from fxflops.roofline.traffic import Traffic, traffic_of

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed"),
    pytest.mark.filterwarnings("ignore"),  # torch.distributed warns of its backends
]
ROWS, INPUTS, HIDDEN, OUTPUTS = 3, 8, 16, 4
X = torch.randn(ROWS, INPUTS)
FORWARD = ROWS * (INPUTS * HIDDEN + HIDDEN * OUTPUTS)
BACKWARD = ROWS * (INPUTS * HIDDEN + 2 * HIDDEN * OUTPUTS)
WEIGHTS = INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def trained(model: nn.Module) -> fxflops.Report:
    """A training step, profiled; the second one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with fxflops.profile(model) as p:
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return p.report


def test_a_replicated_model_sends_its_gradients(mesh: Any) -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(OUTPUTS))
    report = trained(nn.parallel.DistributedDataParallel(model))
    assert report.complete
    assert (report.total_macs, report.total_backward_macs) == (FORWARD, BACKWARD)
    sent = {each.call.op: traffic_of(each) for each in report.counted if each.how == "communication"}
    parameters = 4 * (WEIGHTS + 2 * OUTPUTS)
    assert sent["allreduce"] == Traffic(parameters, parameters)
    assert sent["broadcast"].read > 0
    assert report.roofline("H100", "backward").by_operator()["allreduce"].bytes == 2 * parameters


def sharded(mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def split(mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


@pytest.mark.parametrize("make", [sharded, split])
def test_sharded_layers(mesh: Any, make: Callable[[Any], nn.Module]) -> None:
    report = trained(make(mesh))
    assert report.complete
    assert (report.total_macs, report.total_backward_macs) == (FORWARD, BACKWARD)
    model = make(mesh)
    before = [parameter.detach().to_local().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]
    assert fxflops.count(model, X).total_macs == FORWARD
    assert fxflops.count(model, X, backward=True).total_backward_macs == BACKWARD
    assert fxflops.analyze(model, X, repeats=1, progress=False).total_macs == FORWARD
    analyzed = fxflops.analyze(model, X, backward=True, repeats=1, progress=False)
    assert (analyzed.total_macs, analyzed.total_backward_macs, analyzed.complete) == (FORWARD, BACKWARD, True)
    after = [parameter.to_local() for parameter in model.parameters()]  # type: ignore[attr-defined]
    assert all(map(torch.equal, before, after))


COLLECTIVES: dict[str, tuple[Callable[[], Any], Traffic]] = {
    "all_reduce": (lambda: dist.all_reduce(torch.ones(10)), Traffic(40, 40)),
    "broadcast": (lambda: dist.broadcast(torch.ones(10), 0), Traffic(40, 40)),
    "all_gather": (lambda: dist.all_gather([torch.ones(10)], torch.ones(10)), Traffic(40, 40)),
    "all_gather_into_tensor": (lambda: dist.all_gather_into_tensor(torch.ones(10), torch.ones(10)), Traffic(40, 40)),
    "reduce_scatter_tensor": (lambda: dist.reduce_scatter_tensor(torch.ones(10), torch.ones(10)), Traffic(40, 40)),
    "all_to_all": (lambda: dist.all_to_all_single(torch.ones(10), torch.ones(10)), Traffic(40, 40)),
    "barrier": (dist.barrier, Traffic(0, 0)),
}


@pytest.mark.parametrize(("run", "moved"), COLLECTIVES.values(), ids=COLLECTIVES)
def test_collectives_are_free_with_bytes(mesh: Any, run: Callable[[], Any], moved: Traffic) -> None:
    with fxflops.profile() as p:
        run()
    assert p.report.complete
    assert p.report.total_flops == 0
    sent = [traffic_of(each) for each in p.report.counted if str(each.call.target).startswith("c10d")]
    assert sent == ([] if moved == Traffic() else [moved])


TWO = f"""
import os, sys
import torch
import torch._dynamo  # which DistributedDataParallel loads
from torch import distributed as dist, nn
import fxflops

rank = 1 if os.fork() else 0  # each has torch loaded
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
model = nn.parallel.DistributedDataParallel(nn.Linear({INPUTS}, {OUTPUTS}))
x = torch.randn({ROWS}, {INPUTS})
model(x).sum().backward()
with fxflops.profile(model) as p:
    model(x).sum().backward()
with open(f"{{sys.argv[1]}}.{{rank}}", "w") as file:  # Gloo writes to the standard output
    print(p.report.complete, p.report.total_macs, p.report.total_backward_macs, file=file)
if rank:
    os.wait()
dist.destroy_process_group()
"""


def test_two_processes(tmp_path: Any) -> None:
    command = [sys.executable, "-W", "ignore", "-c", TWO, str(tmp_path / "store")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    macs = ROWS * INPUTS * OUTPUTS
    assert found.returncode == 0, found.stderr
    assert [(tmp_path / f"store.{rank}").read_text() for rank in (0, 1)] == [f"True {macs} {macs}\n"] * 2

"""A predicted step: the rank's own prediction, its collectives, and parts that are known only as a lower bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from fxflops import count
from fxflops.distributed import Links, rank_meshes, simulate, step_bound, step_prediction
from tests.distributed import simulates

pytestmark = simulates
WIDTH = 2048


def build(mesh: Any) -> Any:
    """A bf16 matrix product, then an all-reduce of 16 MiB over each mesh dimension."""
    layer = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
    x, y = torch.ones(WIDTH, WIDTH, dtype=torch.bfloat16), torch.ones(2**22)

    def step() -> None:
        with torch.no_grad():
            layer(x)
        for name in mesh.mesh_dim_names:
            dist.all_reduce(y, group=mesh.get_group(name))

    return layer, step


def test_a_rank_computes_what_the_model_alone_does() -> None:
    with torch.device("meta"):
        layer = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        alone = count(layer, torch.empty(WIDTH, WIDTH, dtype=torch.bfloat16)).predict("H100")
    found = step_prediction(simulate(build, {"tp": 2}, differs=()), "H100")
    assert found.compute == pytest.approx(alone.seconds, rel=0.05)
    assert found.worst == found.compute + found.communication
    assert found.best == max(found.compute, found.communication)


@pytest.mark.parametrize("device", ["H100 SXM", "A100 SXM", "B200", "H100 PCIe"])
def test_no_step_is_predicted_below_its_bound(device: str) -> None:
    simulation = simulate(build, {"dp": 2, "tp": 4}, differs=())
    predicted, bound = step_prediction(simulation, device), step_bound(simulation, device)
    assert predicted.best >= bound.best
    assert predicted.worst >= predicted.best


def test_products_in_an_optimizer_are_products() -> None:
    """Muon's updates are matrix products, which take longer than moving their bytes."""

    def muon(mesh: Any) -> Any:
        layer = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        optimizer = torch.optim.Muon(layer.parameters())
        x = torch.ones(1, WIDTH, dtype=torch.bfloat16)

        def step() -> None:
            layer(x).sum().backward()
            optimizer.step()

        return layer, step

    simulation = simulate(muon, {"dp": 2}, differs=())
    # Five Newton-Schulz steps with three products each.
    assert step_prediction(simulation, "H100").compute > 15 * 2 * WIDTH**3 / 989.5e12


def test_bytes_between_nodes_are_a_bound() -> None:
    simulation = simulate(build, {"dp": 2, "tp": 4}, differs=())
    inside = step_prediction(simulation, "H100")
    slow = Links(within=450e9, across=50e9, node=4)
    across = step_prediction(simulation, "H100", slow)
    assert inside.share_of_bounds < 0.1
    # Two nodes of four. The two ranks of a pair each send 2 * 1/2 of 16 MiB to the other node.
    assert across.bounds >= 2**24 / 50e9
    assert across.communication > inside.communication


def test_meshes_have_a_predicted_step_beside_the_bound() -> None:
    found = rank_meshes(build, [{"tp": 2}, {"tp": 4}], device="H100", memory="1GiB", differs=())
    assert len(found.predicted) == len(found.found) == 2
    for (simulation, bound), predicted in zip(found.found, found.predicted, strict=True):
        assert predicted == step_prediction(simulation, "H100")
        assert predicted.best >= bound.best

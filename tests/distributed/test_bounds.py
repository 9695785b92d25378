"""Lower bounds on step time, computed by hand: FLOPs over the peak, and bytes over the links that they must cross."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxflops.distributed import StepBound, simulate, step_bound
from fxflops.errors import InputError
from fxflops.roofline.devices import Device
from tests.distributed import simulates
from tests.distributed.steps import COMPUTE, DEVICE, LINKS, NUMBERS, build

pytestmark = simulates


def test_bytes_take_the_link_within_a_node_or_the_one_between_nodes() -> None:
    simulation = simulate(build, {"dp": 3, "tp": 4}, differs=())
    # tp: four ranks in one node, 2 * 3/4 of the bytes. dp: one rank in each of three nodes, 2 * 2/3, all to other nodes.
    tp, dp = 1.5 * 4 * NUMBERS / 1e6, 4 / 3 * 4 * NUMBERS / 1e4
    found = step_bound(simulation, DEVICE, LINKS)
    assert found == (pytest.approx(COMPUTE), pytest.approx(tp + dp), "all_reduce in dp")
    assert found.best == pytest.approx(tp + dp)
    assert found.worst == pytest.approx(tp + dp + COMPUTE)


def test_a_node_gets_the_bytes_of_others_once() -> None:
    simulation = simulate(build, {"dp": 8}, differs=())
    # Two nodes of 4. Half of the sum's parts are in the other node, and the node's 4 links carry them: 2 * 4/8 of the bytes / 4.
    found = step_bound(simulation, DEVICE, LINKS)
    assert found.communication == pytest.approx(2 * 4 / 8 * 4 * NUMBERS / 4 / 1e4)
    slow_within = step_bound(simulation, DEVICE, LINKS._replace(within=1e3))
    assert slow_within.communication == pytest.approx(2 * 7 / 8 * 4 * NUMBERS / 1e3)


def test_binds() -> None:
    assert StepBound(2.0, 1.0, "compute").best == 2.0
    assert str(StepBound(2.0, 1.0, "compute")).splitlines() == [
        "step            at least 2.00 s, limited by compute; 3.00 s if no communication runs during computing",
        "computing       2.00 s",
        "communication   1.00 s",
    ]
    fast = LINKS._replace(within=1e12, across=1e12)
    assert step_bound(simulate(build, {"dp": 2}, differs=()), DEVICE, fast).binds == "compute"


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_launches_are_those_of_modules(options: dict[str, bool]) -> None:
    """A GPU updates all parameters in a few kernels. So the optimizer's launches do not count, whatever the options make the
    simulated CPU do.
    """

    def small(mesh: Any) -> Any:
        model, x = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()), torch.ones(4, 8)
        optimizer = torch.optim.AdamW(model.parameters(), **options)

        def step() -> None:
            model(x).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return model, step

    slow = Device("mine", {"f32": 1e15}, bandwidth=1e15, launch=1.0)
    found = step_bound(simulate(small, {"dp": 2}, differs=()), slow, LINKS)
    assert found.compute == pytest.approx(4)  # a product and a ReLU, and the gradients of the weight and of the ReLU
    assert found.binds == "launch"


def test_what_is_not_in_a_table() -> None:
    simulation = simulate(build, {"dp": 2}, differs=())
    with pytest.raises(InputError, match="the links of 'mine' are not in the table"):
        step_bound(simulation, DEVICE)


@pytest.mark.parametrize("kind", ["all", "causal", "mask"])
def test_attention_takes_the_pairs_that_are_known_to_be_left(kind: str) -> None:
    """The mask of a simulated rank has no values. It may keep no pairs, so the bound counts none."""
    n, d = 32, 8

    def attends(mesh: Any) -> Any:
        q, model = torch.ones(1, 1, n, d), nn.Identity()
        mask = torch.ones(n, n, dtype=torch.bool).tril() if kind == "mask" else None

        def step() -> None:
            with torch.no_grad():
                nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask, is_causal=kind == "causal")

        return model, step

    pairs = {"all": n * n, "causal": n * (n + 1) // 2, "mask": 0}[kind]
    compute = step_bound(simulate(attends, {"dp": 2}, differs=()), DEVICE, LINKS).compute
    assert 4 * pairs * d - 2 * n * d <= compute * 1e9 <= pairs * (4 * d + 6) + 1

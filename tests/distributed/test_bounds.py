"""The least time of a step, by hand: FLOPs over the peak, and bytes over the links they have to take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from fxflops.distributed import Links, StepBound, rank_meshes, simulate, step_bound
from fxflops.errors import InputError
from fxflops.roofline.devices import Device
from tests.distributed import simulates

pytestmark = simulates
WIDTH, NUMBERS = 256, 6000
DEVICE = Device("mine", {"f32": 1e9}, bandwidth=1e15, launch=0.0)
LINKS = Links(within=1e6, across=1e4, node=4)  # bytes/s
COMPUTE = 2 * WIDTH**3 / 1e9  # a multiply and an add for each MAC


def build(mesh: Any) -> Any:
    """A product of matrices, then a sum of 24,000 bytes over each dimension."""
    layer, x = nn.Linear(WIDTH, WIDTH, bias=False), torch.ones(WIDTH, WIDTH)
    y = torch.ones(NUMBERS)

    def step() -> None:
        with torch.no_grad():
            layer(x)
        for name in mesh.mesh_dim_names:
            dist.all_reduce(y, group=mesh.get_group(name))

    return layer, step


def test_bytes_take_the_link_within_a_node_or_the_one_between_nodes() -> None:
    simulation = simulate(build, {"dp": 3, "tp": 4}, differs=())
    # tp: four neighbours in a node: 2 * 3/4 of the bytes. dp: one in each of three nodes: 2 * 2/3, all to other nodes.
    tp, dp = 1.5 * 4 * NUMBERS / 1e6, 4 / 3 * 4 * NUMBERS / 1e4
    found = step_bound(simulation, DEVICE, LINKS)
    assert found == (pytest.approx(COMPUTE), pytest.approx(tp + dp), "all_reduce in dp")
    assert found.best == pytest.approx(tp + dp)
    assert found.worst == pytest.approx(tp + dp + COMPUTE)


def test_a_node_gets_the_bytes_of_others_once() -> None:
    simulation = simulate(build, {"dp": 8}, differs=())
    # Two nodes of 4: half of the sum's parts are in the other node, and its 4 links bring them: 2 * 4/8 of the bytes / 4.
    found = step_bound(simulation, DEVICE, LINKS)
    assert found.communication == pytest.approx(2 * 4 / 8 * 4 * NUMBERS / 4 / 1e4)
    slow_within = step_bound(simulation, DEVICE, LINKS._replace(within=1e3))
    assert slow_within.communication == pytest.approx(2 * 7 / 8 * 4 * NUMBERS / 1e3)


def test_binds() -> None:
    assert StepBound(2.0, 1.0, "compute").best == 2.0
    fast = LINKS._replace(within=1e12, across=1e12)
    assert step_bound(simulate(build, {"dp": 2}, differs=()), DEVICE, fast).binds == "compute"


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_launches_are_those_of_modules(options: dict[str, bool]) -> None:
    """A GPU steps all parameters in few kernels, whatever the options say that the simulated CPU does with them."""

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


def test_meshes_in_the_order_of_their_times() -> None:
    def only_even(mesh: Any) -> Any:
        if mesh.size() % 2:
            raise ValueError("heads are even")
        return build(mesh)

    meshes = [{"dp": 8}, {"dp": 2, "tp": 4}, {"dp": 3}]
    found = rank_meshes(only_even, meshes, device=DEVICE, links=LINKS, memory="1MiB", differs=["pp"])
    assert [row[0] for row in found.table] == ["dp 8", "dp 2 x tp 4"]
    assert list(found.failed) == ["dp 3"]
    text = str(found)
    assert text == repr(found)
    assert [row["best"] for row in found.to_dicts()] == [bound.best for _, bound in found.found]
    assert found.found[0][0].provenance in str(found.to_markdown())
    assert "<p>dp 3: rank 0 (dp 0) raised ValueError: heads are even at " in found._repr_html_()
    assert text.startswith("predicted on mine, ")
    assert "dp 3: rank 0 (dp 0) raised ValueError: heads are even" in text
    none = rank_meshes(build, [{"dp": 2}], device=DEVICE, links=LINKS, memory=1000)
    assert (len(none.table), len(none.too_large)) == (0, 1)
    _, fits, above, hint = str(none).splitlines()
    assert fits == "no mesh fits"
    assert above.startswith("does not fit into 1,000 B: dp 2 (")
    assert hint.endswith("write 1000GiB")


@pytest.mark.usefixtures("_forks")
def test_meshes_in_copies_of_this_process() -> None:
    def only_even(mesh: Any) -> Any:
        if mesh.size() % 2:
            raise ValueError("heads are even")
        return build(mesh)

    meshes = [{"dp": 8}, {"dp": 2, "tp": 4}, {"dp": 3}, {"dp": 2}]
    limit = simulate(build, {"dp": 2}, differs=()).max_memory
    alone, several = (
        rank_meshes(only_even, iter(meshes), device=DEVICE, links=LINKS, memory=limit, processes=processes)
        for processes in (1, 3)
    )
    assert several == alone
    assert (len(several.found), list(several.failed)) == (3, ["dp 3"])
    assert several.failed["dp 3"].startswith("rank 0 (dp 0) raised ValueError: heads are even")


def test_what_is_not_in_a_table() -> None:
    simulation = simulate(build, {"dp": 2}, differs=())
    with pytest.raises(InputError, match="the links of 'mine' are not in the table"):
        step_bound(simulation, DEVICE)
    with pytest.raises(InputError, match="no device 'Z9'"):
        rank_meshes(build, [{"dp": 2}], device="Z9")
    with pytest.raises(InputError, match="memory 'much'"):
        rank_meshes(build, [{"dp": 2}], memory="much")
    with pytest.raises(InputError, match="memory '80' is in bytes; add a unit, such as '80GiB'"):
        rank_meshes(build, [{"dp": 2}], memory="80")
    with pytest.raises(InputError, match=r"meshes must be a list of meshes, such as \[\{'dp': 2\}\]"):
        rank_meshes(build, {"dp": 2})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="meshes is empty"):
        rank_meshes(build, [])


def test_meshes_of_unlike_work_are_ordered_by_tokens_per_second() -> None:
    meshes = [
        {"dp": 1, "tp": 4},
        {"dp": 4, "tp": 1},
    ]  # tp within a node is fast, but one of its steps has a fourth of the tokens
    by_step, by_token = (
        rank_meshes(build, meshes, device=DEVICE, links=LINKS._replace(node=2), differs=(), tokens=tokens)
        for tokens in (None, lambda mesh: 100 * mesh["dp"])
    )
    assert "rate" not in by_step.to_dicts()[0]
    rows = by_token.to_dicts()
    assert [row["mesh"] for row in rows] == ["dp 4 x tp 1", "dp 1 x tp 4"]
    assert [row["tokens"] for row in rows] == [400, 100]
    assert [row["rate"] * row["predicted_best"] for row in rows] == pytest.approx([400, 100])


def test_the_share_of_the_peak_by_hand() -> None:
    """A layer, forward and backward: three products of WIDTH^3 in the time of the step; what is computed again does not count."""

    def trains(mesh: Any) -> Any:
        layer, x = nn.Linear(WIDTH, WIDTH, bias=False), torch.ones(WIDTH, WIDTH, requires_grad=True)

        def step() -> None:
            checkpoint(layer, x, use_reentrant=False).sum().backward()

        return layer, step

    (row,) = rank_meshes(trains, [{"dp": 2}], device=DEVICE, links=LINKS, differs=()).to_dicts()
    assert row["mfu"] == pytest.approx(100 * 3 * COMPUTE / row["predicted_best"])


@pytest.mark.parametrize("kind", ["all", "causal", "mask"])
def test_attention_takes_the_pairs_that_are_known_to_be_left(kind: str) -> None:
    """A mask of a simulated rank has no values: it may leave no pairs."""
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

"""Meshes ranked by predicted time, meshes that fail, and meshes that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fxflops.distributed import rank_meshes, simulate
from fxflops.errors import InputError
from tests.distributed import simulates
from tests.distributed.steps import COMPUTE, DEVICE, LINKS, WIDTH, build

pytestmark = simulates


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


def test_meshes_of_unlike_work_are_ordered_by_tokens_per_second() -> None:
    meshes = [
        {"dp": 1, "tp": 4},
        {"dp": 4, "tp": 1},
    ]  # tp within a node is fast, but a step then has a fourth of the tokens
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
    """One layer, forward and backward: three products of WIDTH^3 in the time of the step. Recomputed work does not count."""

    def trains(mesh: Any) -> Any:
        layer, x = nn.Linear(WIDTH, WIDTH, bias=False), torch.ones(WIDTH, WIDTH, requires_grad=True)

        def step() -> None:
            checkpoint(layer, x, use_reentrant=False).sum().backward()

        return layer, step

    (row,) = rank_meshes(trains, [{"dp": 2}], device=DEVICE, links=LINKS, differs=()).to_dicts()
    assert row["mfu"] == pytest.approx(100 * 3 * COMPUTE / row["predicted_best"])


def test_wrong_devices_memories_and_meshes() -> None:
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

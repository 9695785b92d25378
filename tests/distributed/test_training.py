"""The meshes on which a language model can be trained. Each plan must be the best of all plans that are simulated one by one."""

from __future__ import annotations

from functools import cache

import pytest

from fxflops.distributed import Links, simulate, train_meshes
from fxflops.errors import InputError
from tests.distributed import simulates
from tests.distributed.test_causal_lm import TOKENS, model_of, step_of_passes

pytestmark = [simulates, pytest.mark.filterwarnings("ignore:FSDP2-wrapped module.*returned a view")]
LINKS = Links(within=1e9, across=1e8, node=1)  # a node has one device, so only data parallel is possible
SHARE = 6


@cache
def peak(batch: int, checkpointing: bool) -> int:
    step = step_of_passes(model_of("Llama", layers=1), SHARE // batch, batch=batch, checkpointing=checkpointing)
    return simulate(step, {"dp": 2, "tp": 1}, differs=()).max_memory


def test_the_largest_pass_that_fits() -> None:
    """The largest divisor of the share whose peak fits is chosen. The test simulates all passes of each divisor to find the peaks."""
    sizes = [1, 2, 3, 6]
    kept = {size: peak(size, False) for size in sizes}
    checkpointed = {size: peak(size, True) for size in sizes[:2]}
    for limit, peaks, checkpoint in (
        (kept[3], kept, False),
        (kept[3] - 1, kept, False),
        (checkpointed[1], checkpointed, True),
    ):
        done = list[None]()
        found = train_meshes(
            model_of("Llama", layers=1),
            2,
            seq=TOKENS,
            global_batch=2 * SHARE,
            checkpoint=checkpoint,
            memory=limit,
            links=LINKS,
            done=lambda done=done: done.append(None),
        )
        fitting = [size for size in peaks if peaks[size] <= limit]
        assert [row["batch"] for row in found.to_dicts()] == fitting[-1:]
        assert [row["memory"] for row in found.to_dicts()] == [peaks[size] for size in fitting[-1:]]
        assert len(found.too_large) == (not fitting)
        assert 1 <= len(done) <= len(sizes) + 1  # the first trial is checked with all layers


def test_the_faster_of_kept_and_checkpointed() -> None:
    limit = peak(3, False)
    rows = {}
    for checkpoint in (None, True, False):
        found = train_meshes(
            model_of("Llama", layers=1),
            2,
            seq=TOKENS,
            global_batch=2 * SHARE,
            checkpoint=checkpoint,
            memory=limit,
            links=LINKS,
        )
        (rows[checkpoint],) = found.to_dicts()
    assert rows[None] == max(rows[True], rows[False], key=lambda row: row["rate"])
    assert rows[False]["activations"] == "kept"


def test_a_batch_that_is_given_is_not_changed() -> None:
    found = train_meshes(model_of("Llama", layers=1), 2, seq=TOKENS, batch=3, global_batch=2 * SHARE, links=LINKS)
    (row,) = found.to_dicts()
    assert (row["batch"], row["passes"], row["tokens"]) == (3, 2, 2 * SHARE * TOKENS)
    assert "3 x 2" in str(found)
    with pytest.raises(
        InputError, match=r"a global batch of 12 cannot be divided .* in passes of 5; the meshes have 2"
    ):
        train_meshes(model_of("Llama", layers=1), 2, seq=TOKENS, batch=5, global_batch=2 * SHARE, links=LINKS)
    with pytest.raises(InputError, match="batch must be an integer of at least 1, not 0"):
        train_meshes(model_of("Llama", layers=1), 2, batch=0, links=LINKS)


def test_meshes_that_cannot_divide_the_batch_are_named() -> None:
    node = LINKS._replace(node=2)
    found = train_meshes(model_of("Llama", layers=1), 4, seq=TOKENS, global_batch=2, links=node)
    assert [row["mesh"] for row in found.to_dicts()] == ["dp 2 x tp 2"]
    assert found.notes == ("left out: dp 4, because 2 sequences cannot be divided evenly among the ranks",)


def test_experts_that_only_some_ranks_hold() -> None:
    experts = model_of("Mixtral", num_local_experts=2)
    found = train_meshes(experts, 4, seq=TOKENS, links=LINKS)
    assert "have 2 rows. fully_shard splits rows, so only 2 of 4 dp ranks hold these parameters" in str(found)
    held = train_meshes(experts, 2, seq=TOKENS, links=LINKS)
    assert "hold them" not in str(held)

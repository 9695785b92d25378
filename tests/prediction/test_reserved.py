"""Predicted reserved memory, against what an H100's allocator reserved for the same models, and its own bookkeeping."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu import memory
from fxflops import InputError, Report, count
from fxflops.prediction import CachingAllocator
from fxflops.prediction.reserved import CONTEXT
from fxflops.roofline.devices import Device
from tests.prediction.test_allocator import RECORDED

MIB, GIB = 2**20, 2**30


@cache
def recorded() -> dict[str, dict[str, Any]]:
    """Return the figures of torch.cuda.memory_stats of each recorded run on an H100."""
    with gzip.open(RECORDED, "rt") as file:
        return {line["case"]: line["figures"] for line in map(json.loads, file)}


def counted(case: str) -> Report:
    """Count a recorded run on meta."""
    name, way = case.split(", ", 1)
    make = memory.OPTIMIZERS.get(way.removesuffix(memory.CHECKPOINTED))
    with torch.device("meta"):
        bench: Any = SimpleNamespace(stand_in=False)
        return memory.predicted(*memory.built(bench, name, way), make, "cuda")


WITHOUT_KERNEL_BUFFERS = [
    "causal attention, inference",
    "attention with dropout, inference",
    "latent attention, inference",
    "latent attention, SGD",
]
"""Runs of plain torch where no kernel holds a buffer of its own at the peak."""


@pytest.mark.parametrize("case", WITHOUT_KERNEL_BUFFERS)
def test_within_three_percent_of_the_recorded_runs(case: str) -> None:
    if case not in recorded():
        pytest.skip("not recorded")
    found = counted(case).reserved("H100")
    assert found.reserved == pytest.approx(recorded()[case]["reserved"], rel=0.03)
    assert found.workspaces == recorded()[case]["other"]


class Mlp(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512, bias=bias) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Checkpointed(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(nn.Sequential(layer, nn.ReLU()), x, use_reentrant=False)
        return x


def report(model: nn.Module | None = None, rows: int = 4096, **more: Any) -> Report:
    with torch.device("meta"):
        return count(model or Mlp(), torch.empty(rows, 512), device="cuda", **more)


TRAINING = {"backward": True, "optimizer": torch.optim.AdamW}


@pytest.mark.parametrize(
    ("make", "given", "device", "workspaces"),
    [
        # What the 48 recorded runs used in addition to tensors: 32 MiB, and 1 MiB for a bias, in each thread that needs them.
        (Mlp, {}, "H100", 33 * MIB),
        (lambda: Mlp(bias=False), {}, "H100", 32 * MIB),
        (Mlp, TRAINING, "H100", 65 * MIB),
        (Checkpointed, TRAINING, "H100", 66 * MIB),
        (lambda: nn.Flatten(0), {}, "H100", 0),
        (Mlp, TRAINING, "A100", 2 * 8_519_680 + MIB),
        (lambda: Mlp(bias=False), TRAINING, "L4", 2 * 8_519_680),
    ],
)
def test_workspaces_of_cublas(make: Callable[[], nn.Module], given: Any, device: str, workspaces: int) -> None:
    with torch.device("meta"):
        model = make()
    assert report(model, **given).reserved(device).workspaces == workspaces


def test_the_figures_agree() -> None:
    counted = report(**TRAINING)
    found = counted.reserved("A100", gpus=8)
    assert counted.max_memory is not None
    assert counted.max_memory <= found.allocated <= found.reserved < found.total
    assert found.total == found.reserved + found.context + found.nccl
    assert found.nccl == 392 * MIB
    assert sum(segment.bytes for segment in found.segments) == found.reserved
    assert sum(pool.reserved for pool in found.pools) == found.reserved
    assert all(pool.reserved == pool.allocated + pool.free for pool in found.pools)
    assert found.fragmentation == 1 - found.allocated / found.reserved
    assert [row["reserved"] for row in found.to_dicts()] == [pool.reserved for pool in found.pools]


def test_the_second_step_has_the_state_that_the_first_made() -> None:
    """Weights, gradients and AdamW's two states exist at the same time, whatever else does."""
    weights = 4 * (512 * 512 + 512) * 4
    trained, learned = (report(rows=8, **given).reserved("A100") for given in (TRAINING, {"backward": True}))
    assert trained.allocated - trained.workspaces >= 4 * weights
    assert learned.allocated - learned.workspaces < 3 * weights


def test_it_fits_where_it_does() -> None:
    counted = report(rows=65536)
    total = counted.reserved("A100").total

    def device(memory: int | None) -> Device:
        return Device("mine", {"f32": 1e12}, 1e11, memory=memory, workspace=8_519_680)

    assert counted.reserved(device(total)).fits is True
    assert counted.reserved(device(total - 2 * MIB)).fits is False
    assert counted.reserved(device(None)).fits is None
    too_large = str(counted.reserved(device(total - 2 * MIB)))
    assert "mine: does not fit: 1.19 of 1.18 GiB (0.5 reserved, 0.7 CUDA context)" in too_large
    assert "does not fit: 1.2 of 0.4 GiB (0.5 reserved, 0.7 CUDA context)" in str(
        counted.reserved(device(int(0.4 * 2**30)))
    )
    assert "memory size of mine is unknown" in str(counted.reserved(device(None)))


def test_what_does_not_fit_names_the_next_call() -> None:
    """The batch can be made smaller. Weights, gradients and AdamW's two states, 16 bytes per parameter, cannot."""
    state = 16 * sum(p.numel() for p in Mlp().parameters())

    def lines(room: int, **given: Any) -> str:
        found = report(rows=65536, **given).reserved(Device("mine", {"f32": 1e12}, 1e11, memory=CONTEXT + room))
        assert found.fits is (room == 2**40)
        return " ".join(str(found).split())

    assert "fxflops.largest_batch" in lines(state + MIB, **TRAINING)
    assert "fxflops.plan_checkpoints" in lines(state + MIB, **TRAINING)
    assert "weights, gradients and the optimizer's state alone take" in lines(state - MIB, **TRAINING)
    assert "largest_batch" not in lines(state - MIB, **TRAINING)
    assert "fxflops.largest_batch finds" in lines(state // 4 + MIB)
    assert "plan_checkpoints" not in lines(state // 4 + MIB)
    assert "largest_batch" not in lines(2**40, **TRAINING)


def test_a_cpu_has_no_caching_allocator() -> None:
    with pytest.raises(InputError, match=r"cpu has no caching allocator: use report\.max_memory, the peak"):
        report().reserved("cpu")


@pytest.mark.parametrize(("card", "is_nvidia"), [("H100", True), ("MI300X", False), ("Max 1550", False)])
def test_what_was_never_measured_with_cuda_says_so(card: str, is_nvidia: bool) -> None:
    assert ("nothing was measured on" not in str(report().reserved(card))) is is_nvidia


class Growing(nn.Module):
    """Asks for more and more memory; no request fits into a block of an earlier one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for size in range(16, 160, 16):
            x = torch.empty(size * MIB, dtype=torch.uint8, device=x.device)
        return x


def test_free_segments_go_back_to_the_driver_before_it_does_not_fit() -> None:
    with torch.device("meta"):
        counted = count(Growing(), torch.empty(1), device="cuda")
    roomy = counted.reserved(Device("roomy", {"f32": 1e12}, 1e11, memory=8 * GIB))
    assert roomy.fits
    assert roomy.reserved > 2 * roomy.allocated
    tight = Device("tight", {"f32": 1e12}, 1e11, memory=roomy.context + roomy.allocated + 80 * MIB)
    found = counted.reserved(tight)
    assert found.total > tight.memory  # type: ignore[operator]
    assert found.fits is True
    assert "only if the allocator returns free segments" in str(found)


def test_settings_of_the_allocator() -> None:
    with torch.device("meta"):
        counted = count(Growing(), torch.empty(1), device="cuda")
    plain = counted.reserved("A100")
    expandable = counted.reserved("A100", allocator=CachingAllocator(expandable_segments=True))
    assert expandable.reserved < plain.reserved
    assert expandable.fragmentation < plain.fragmentation


def test_locals_that_live_to_the_end_of_a_layer_are_memory() -> None:
    class Attention(nn.Module):
        def __init__(self, keep: bool) -> None:
            super().__init__()
            self.keep = keep

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = x @ x.mT
            weights = scores.softmax(-1)
            if not self.keep:
                del scores
            return weights.relu() @ x

    with torch.device("meta"):
        kept, freed = (count(Attention(keep), torch.empty(8, 2048, 64), device="cuda") for keep in (True, False))
    scores = 8 * 2048 * 2048 * 4
    assert kept.reserved("A100").reserved - freed.reserved("A100").reserved == scores


def test_a_report_counted_for_another_device_says_so() -> None:
    with torch.device("meta"):
        for_cpu = count(Mlp(), torch.empty(8, 512))
    for found in (for_cpu.reserved("H100"), for_cpu.predict("H100")):
        assert 'to count for a GPU, use count(..., device="cuda")' in " ".join(str(found).split())
        assert found.counted_for == "cpu"
    for found in (report().reserved("H100"), report().predict("H100")):
        assert "counted for" not in str(found)


def test_what_cannot_be_known() -> None:
    with pytest.raises(InputError, match="not a report read from a file"):
        Report.from_dict(report().to_dict()).reserved("H100")
    with pytest.raises(InputError, match="no device 'H900'"):
        report().reserved("H900")
    with pytest.raises(InputError, match="at least 1, not 0"):
        report().reserved("H100", gpus=0)

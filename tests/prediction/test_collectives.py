"""Collectives within a node, against times measured with NCCL that no fit used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from fxflops.distributed import Links, StepPrediction, simulate, step_prediction
from tests.distributed import simulates

pytestmark = [simulates, pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")]
LINKS = Links(within=32e9, across=1e9, node=8)  # the table has no links of an L40S
MIB = 2**20
MEASURED = [  # from ai-dynamo/aiconfigurator 095f58a51c4c (Apache-2.0), in seconds, with the bytes of the whole tensor
    ("H100 SXM", "all_reduce", 4, 8 * MIB, 62.62e-6),
    ("H100 SXM", "all_reduce", 4, 256 * MIB, 1182.5e-6),
    ("H100 SXM", "all_gather", 8, 16 * MIB, 67.81e-6),
    ("H100 SXM", "reduce_scatter", 8, 8 * MIB, 43.82e-6),
    ("H100 SXM", "all_to_all", 4, 8 * MIB, 37.18e-6),
    ("A100 SXM", "all_gather", 4, 2 * MIB, 52.93e-6),
    ("A100 SXM", "all_reduce", 8, 32 * MIB, 367e-6),
    ("A100 SXM", "reduce_scatter", 8, 256 * MIB, 1149.5e-6),
    ("B200", "all_reduce", 4, 64 * MIB, 188.975e-6),
    ("B200", "all_to_all", 4, 16 * MIB, 47.085e-6),
    ("L40S", "all_reduce", 8, 32 * MIB, 38.854e-3),
    ("L40S", "reduce_scatter", 4, 8 * MIB, 1.3007e-3),
]


def predicted(device: str, op: str, ranks: int, nbytes: int) -> StepPrediction:
    """Predict a step that only makes this collective."""

    def build(mesh: Any) -> Any:
        layer = nn.Linear(1, 1)
        whole, part = torch.empty(nbytes, dtype=torch.int8), torch.empty(nbytes // ranks, dtype=torch.int8)
        group = mesh.get_group("tp")

        def step() -> None:
            if op == "all_reduce":
                dist.all_reduce(whole, group=group)
            elif op == "all_gather":
                dist.all_gather_into_tensor(whole, part, group=group)
            elif op == "reduce_scatter":
                dist.reduce_scatter_tensor(part, whole, group=group)
            else:
                dist.all_to_all_single(torch.empty_like(whole), whole, group=group)

        return layer, step

    links = LINKS if device == "L40S" else None
    return step_prediction(simulate(build, {"tp": ranks}, differs=()), device, links)


def test_what_nccl_took() -> None:
    errors = []
    for device, op, ranks, nbytes, seconds in MEASURED:
        found = predicted(device, op, ranks, nbytes)
        errors.append(abs(found.communication / seconds - 1))
        assert found.bounds < found.communication / 10
    assert max(errors) < 0.4
    assert sum(errors) / len(errors) < 0.12


def test_a_predicted_step_is_printed() -> None:
    assert str(StepPrediction(0.012, 0.02, 0.008, 0.11)).splitlines() == [
        "step            20.00 ms to 32.00 ms expected: with all communication during computing, or with none",
        "computing       12.00 ms, with a mean error of 11% per compute kernel",
        "communication   20.00 ms",
        "lower bounds    25% of the 32.00 ms are only a lower bound",
    ]
    assert "with an unknown error" in str(StepPrediction(0.012, 0.0, 0.012))


def test_more_bytes_or_more_ranks_never_take_less() -> None:
    for device in ("H100 SXM", "H200", "B200"):
        sizes = [predicted(device, "all_reduce", 4, nbytes).communication for nbytes in (4096, MIB, 64 * MIB, 2**30)]
        assert sizes == sorted(sizes)
    ranks = [predicted("A100 SXM", "all_reduce", number, 64 * MIB).communication for number in (2, 3, 4, 6, 8)]
    assert ranks[0] < ranks[-1]


def test_a_card_without_measured_links_takes_its_bound() -> None:
    """An H100 PCIe is a Hopper, but has no NVLink to all other cards."""
    known, unknown = (predicted(device, "all_reduce", 4, 64 * MIB) for device in ("H100 SXM", "H100 PCIe"))
    assert known.share_of_bounds < 0.1
    assert unknown.share_of_bounds > 0.9

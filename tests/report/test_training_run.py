"""GPU-hours of a training run, by hand from the products of a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxflops import InputError, count
from fxflops.roofline.devices import Device

DEVICE = Device("card", {"f32": 1e12}, bandwidth=1e11)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.last = nn.Embedding(11, 4), nn.Linear(4, 6), nn.Linear(6, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(self.table(ids)))


def test_gpu_hours_by_products_and_by_6nd() -> None:
    report = count(Words(), torch.zeros(2, 5, dtype=torch.long), backward=True)
    run = report.training_run(1e12, DEVICE, mfu=0.5)
    macs_of_a_token = 3 * (4 * 6 + 6 * 11)  # forward, the input's gradient and the weight's
    assert run.hours == pytest.approx(2 * macs_of_a_token * 1e12 / (0.5 * 1e12) / 3600)
    params = 11 * 4 + 4 * 6 + 6 + 6 * 11 + 11
    assert run.six_nd_hours == pytest.approx(6 * params * 1e12 / (0.5 * 1e12) / 3600)
    first, second = str(run).splitlines()
    assert first == "0 GPU-hours = 540 FLOPs/token x 1e+12 tokens / (0.5 MFU x 1.00 TFLOP/s of card in f32) / 3600"
    assert second.startswith("1 GPU-hours by 6ND, with N = 151 parameters: +67.8%")


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(11, 4), nn.Linear(4, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        return self.last(nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True))


def test_masked_attention_has_the_hours_of_the_pairs_that_the_mask_allows() -> None:
    report = count(Causal(), torch.zeros(1, 5, dtype=torch.long), backward=True)
    run = report.training_run(1e12, DEVICE, mfu=0.5)
    assert run.exact_hours == pytest.approx(report.recount(attention="exact").training_run(1e12, DEVICE, mfu=0.5).hours)
    # Per pair, queries with keys and weights with values: 2 x 4 MACs, and twice as many in the backward. All pairs are 25, causal ones 15.
    saved = 2 * 3 * (25 - 15) * 2 * 4 / 5
    assert run.exact_flops_per_token == pytest.approx(run.flops_per_token - saved)
    assert "pairs that the mask allows" in str(run).splitlines()[2]
    assert (
        count(Words(), torch.zeros(2, 5, dtype=torch.long), backward=True).training_run(1, DEVICE).exact_hours is None
    )


def test_what_is_needed() -> None:
    ids = torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(InputError, match="no backward pass of Words"):
        count(Words(), ids).training_run(1e9, DEVICE)
    with pytest.raises(InputError, match=r"mfu must be above 0 and at most 1, got 40: 40% is 0\.4"):
        count(Words(), ids, backward=True).training_run(1e9, DEVICE, mfu=40)


class Experts(nn.Module):
    """Two matrices; each token meets one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:5] @ self.weight[0], x[5:] @ self.weight[1]])


def test_of_experts_those_count_that_a_token_meets() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.experts = nn.Embedding(11, 4), Experts()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.experts(self.table(ids))

    report = count(Mixture(), torch.zeros(10, dtype=torch.long), backward=True)
    run = report.training_run(1e12, DEVICE, mfu=0.5)
    assert (run.params, run.active_params) == (44 + 32, 44 + 16)
    assert run.six_nd_hours == pytest.approx(6 * 60 * 1e12 / (0.5 * 1e12) / 3600)
    assert "N = 60 active parameters per token, of 76" in str(run)
    assert "60 active per token" in str(report)
    assert "active" not in str(count(Words(), torch.zeros(2, 5, dtype=torch.long)))

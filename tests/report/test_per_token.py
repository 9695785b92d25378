from __future__ import annotations

import pytest
import torch
from torch import nn

import fxflops


def language_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))


def test_the_sums_over_the_tokens_that_the_model_was_given() -> None:
    found = fxflops.count(language_model(), torch.zeros(2, 3, dtype=torch.long)).per_token()
    assert found == (6, 70.0, 40.0, None, None)  # per token, 10 outputs of 4 multiplies and 3 additions


def test_training_and_time() -> None:
    net = language_model()
    with fxflops.profile(net) as p:
        for _ in range(2):
            net(torch.zeros(1, 3, dtype=torch.long)).sum().backward()
    found = p.report.per_token()
    assert found.tokens == 6
    assert found.training_flops == p.report.total_training_flops / 6
    assert found.seconds == p.report.block_time / 6


def test_a_number_of_tokens_of_the_users_own() -> None:
    report = fxflops.count(nn.Linear(4, 10, bias=False), torch.zeros(6, 4))
    assert report.per_token(6).flops == 70.0
    with pytest.raises(fxflops.InputError, match="Linear got no tokens"):
        report.per_token()
    for wrong in (0, "6"):
        with pytest.raises(fxflops.InputError, match="an int of at least 1"):
            report.per_token(wrong)

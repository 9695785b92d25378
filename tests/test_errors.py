"""What an error names where a name is not known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxflops
from fxflops.errors import near


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("thopp", "; near: thop"),
        ("attn", "; near: blocks.0.attn, blocks.1.attn"),  # a part of these, and like none
        ("zebra", ""),
        ("", ""),
    ],
)
def test_names_like_it(name: str, said: str) -> None:
    assert near(name, ["", "thop", "blocks.0.attn", "blocks.1.attn"]) == said


def test_a_module_that_there_is_not() -> None:
    report = fxflops.count(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))), torch.ones(1, 4))
    with pytest.raises(fxflops.InputError, match=r"Sequential has no module '1\.1'; near: 1\.0; report\.by_module\(\)"):
        report["1.1"]

"""Random nets: a seeded sample of ``benchmarks/fuzz.py`` finds no disagreement, and a planted one is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import fuzz_counter
from benchmarks.fuzz import checked, drawn, kinds_of, shrunk
from benchmarks.fuzz_counter import Independent
from benchmarks.fuzz_nets import Line, Net, Part

NETS = 6


def test_nothing_disagrees_of_a_sample() -> None:
    nets: list[Net] = []
    drawn(4, nets.append, NETS)
    rows = [checked(net, 4, faults=i == NETS - 1, shrink=False) for i, net in enumerate(nets)]
    assert [row["text"] for row in rows if row["found"]] == []
    assert sum("does not run" not in row["notes"] for row in rows) > NETS // 2


def test_a_net_is_the_same_each_time() -> None:
    texts: list[list[str]] = [[], []]
    for each in texts:
        drawn(7, lambda net, each=each: each.append(net.text), 2)  # type: ignore[misc]
    assert texts[0] == texts[1]


def test_what_disagrees_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """When one of the counter's rules is wrong, shrinking leaves only the line that the rule counts."""
    monkeypatch.setitem(fuzz_counter.MACS, "mm", lambda a, b: 1)
    lines = [
        Line("function", "", "x1 = x0 * 2", "x1", "x0"),
        Line("layer", "self.m1 = nn.Linear(4, 4)", "x2 = self.m1(x1)", "x2", "x1"),
        Line("function", "", "x3 = x2 @ x2.T", "x3", "x2"),
    ]
    net = Net([Part("Net", "x0", lines, "", "x3")], "(torch.randn(3, 4),), {}")
    assert "MACs of count" in kinds_of(net)
    [line] = shrunk(net, "MACs of count").parts[0].lines
    assert line.body == "x3 = x0 @ x0.T"


Ran = Callable[[], torch.Tensor]
X = torch.randn(2, 3, 8, requires_grad=True)
IMAGE = torch.randn(2, 4, 6, 6, requires_grad=True)
BY_HAND: dict[str, tuple[Ran, int, int]] = {
    "linear": (lambda: nn.Linear(8, 5)(X), 6 * 8 * 5, 2 * 6 * 8 * 5),
    "products": (lambda: X @ X.mT, 2 * 3 * 8 * 3, 2 * 2 * 3 * 8 * 3),
    "convolution": (lambda: nn.Conv2d(4, 8, 3, groups=2)(IMAGE), 2 * 8 * 16 * 2 * 9, 2 * 2 * 8 * 16 * 2 * 9),
    "transposed": (lambda: nn.ConvTranspose2d(4, 8, 3)(IMAGE), IMAGE.numel() * 8 * 9, 2 * IMAGE.numel() * 8 * 9),
    "attention": (lambda: F.scaled_dot_product_attention(X, X, X), 2 * 2 * 9 * 8, 4 * 2 * 9 * 8),
    "outer": (lambda: torch.outer(X[0, 0], X[0, 1]), 8 * 8, 0),
}
"""Functions, with the MACs of their forward and of their gradients."""


@pytest.mark.parametrize("name", BY_HAND)
def test_the_independent_counter_by_hand(name: str) -> None:
    run, forward, backward = BY_HAND[name]
    with Independent() as counter:
        out = run()
        assert counter.macs == forward
        out.sum().backward()
    if name != "outer":
        assert counter.macs == forward + backward
    assert "fxflops" not in {
        value.__name__.partition(".")[0] for value in vars(fuzz_counter).values() if hasattr(value, "__file__")
    }

"""report.explain: its rows add up to the difference between two conventions, and say what each convention counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxflops
from fxflops.conventions import Convention, nothing
from fxflops.records import Scope


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(6, 6), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.fc(x))


MODEL = nn.Sequential(*[Block() for _ in range(3)], nn.Linear(6, 2))
REPORT = fxflops.count(MODEL, torch.randn(4, 6))


def test_rows_add_up_largest_first() -> None:
    found = REPORT.explain("torch", "torch_flops")
    # Linear: torch 2 * 6 * 6 per row; torch_flops 6 multiplies, 5 adds, 1 bias per output: the same.
    assert found.total_a == 2 * 4 * (3 * 36 + 12)
    assert found.total_b == found.total_a + 3 * 2 * 24
    assert {(row.op, row.calls, row.difference) for row in found.rows} == {("relu", 3, 72), ("add", 3, 72)}
    assert found.same == found.total_a
    assert sum(row.difference for row in found.rows) == found.total_b - found.total_a


def test_it_is_of_one_phase_the_forward_unless_asked() -> None:
    report = fxflops.count(MODEL, torch.randn(4, 6), backward=True)
    found = report.explain("torch", "torch_flops")
    assert (found.total_a, found.total_b) == (report.recount("torch").total_flops, report.total_flops)
    back = report.explain("torch", "torch_flops", phase="backward")
    assert (back.total_a, back.total_b) == (report.recount("torch").total_backward_flops, report.total_backward_flops)
    with pytest.raises(fxflops.InputError, match="unknown phase 'both'"):
        report.explain("torch", "fvcore", "both")


def test_rows_say_where_and_what() -> None:
    rows = {row.op: row for row in REPORT.explain("torch", "torch_flops").rows}
    assert rows["relu"].paths == ("0.act", "1.act", "2.act")
    assert rows["relu"].where == "*.act"
    assert (rows["relu"].how_a, rows["relu"].how_b) == ("not counted", "1 per output")
    assert rows["add"].where == "*"


def test_both_directions_and_the_same() -> None:
    there, back = REPORT.explain("torch", "torch_flops"), REPORT.explain("torch_flops", "torch")
    assert [row.difference for row in there.rows] == [-row.difference for row in back.rows]
    assert REPORT.explain("torch", "torch").rows == ()
    assert "both conventions count every call the same" in str(REPORT.explain("torch", "torch"))


def test_modules_that_one_convention_charges() -> None:
    def charge(scope: Scope) -> int | None:
        """10 per call of a block or a Linear."""
        return 10 if scope.cls in (Block, nn.Linear) else None

    hooked = Convention("hooked", "10 per call of a block or a Linear", of=nothing, modules=lambda cls: charge)
    report = REPORT.recount(hooked)
    assert report.total_flops == 10 * (3 + 1)  # a block's charge includes what is in it
    assert report.total_macs == REPORT.total_macs
    assert report["0"].own.flops == 10
    assert report["0.fc"].total.flops == 0
    found = REPORT.explain(hooked, "torch")
    block = next(row for row in found.rows if row.op == "Block")
    assert (block.flops_a, block.flops_b, block.calls) == (30, 0, 3)
    assert block.how_b == "no separate charge"
    assert sum(row.difference for row in found.rows) == found.total_b - found.total_a


def test_text() -> None:
    text = str(REPORT.explain("torch", "torch_flops"))
    assert text.splitlines()[0] == "torch 960   torch_flops 1,104   +144"
    assert "other calls: 960 under both" in text
    assert "<table" in REPORT.explain("torch", "torch_flops")._repr_html_()


def test_a_narrow_terminal_has_the_rows_below_each_other(columns: Callable[[int], None]) -> None:
    columns(40)
    assert str(REPORT.explain("torch", "torch_flops")).splitlines()[1:] == [
        "relu x3 in *.act   +72",
        "  torch         0  not counted",
        "  torch_flops  72  1 per output",
        "add x3 in *   +72",
        "  torch         0  not counted",
        "  torch_flops  72  1 add per output,",
        "                   plus 1 multiply if",
        "                   alpha is not 1",
        "other calls: 960 under both",
    ]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.proj(x)
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_work_that_neither_tool_counts_is_named() -> None:
    report = fxflops.count(Attention(), torch.ones(2, 4, 8))
    found = report.explain("fvcore", "ptflops")  # neither counts torch's attention function
    assert found.free == {"attention": 1}
    assert "counted as 0 by both, though with multiply-accumulates: attention x1" in str(found)
    assert not report.explain("fxflops", "torch").free


def test_a_published_number_has_its_conventions() -> None:
    macs = 4 * (3 * 36 + 12)  # of the linear layers of MODEL on four rows
    near = 481  # three digits: the linear layers have 480
    table = REPORT.by_convention(near=near)
    rows = {row["convention"]: row for row in table.to_dicts()}
    assert rows.keys() == {"fxflops MACs", *fxflops.list_conventions()}
    assert rows["fxflops MACs"]["flops"] == rows["fvcore"]["flops"] == macs
    assert rows["fxflops MACs"]["per_mac"] == 1
    assert (rows["torch"]["flops"], rows["torch"]["per_mac"]) == (2 * macs, 2)
    assert rows["torch"]["difference%"] == pytest.approx(100 * (2 * macs / near - 1))
    distances = [abs(row["flops"] - near) for row in table.to_dicts()]
    assert distances == sorted(distances)
    assert table.notes[0].startswith("no convention's total rounds to 481")
    [verdict] = REPORT.by_convention(near=480).notes  # two digits: 475 to 485
    assert verdict.startswith("rounds to 480: fxflops MACs, ")
    assert verdict.endswith("; a multiply-accumulate counts as 1")
    assert "difference%" not in REPORT.by_convention().to_dicts()[0]
    with pytest.raises(fxflops.InputError, match=r"near must be a number above 0, such as 4\.5e9; got 0"):
        REPORT.by_convention(near=0)


def test_unknown_convention() -> None:
    with pytest.raises(
        fxflops.FxflopsError, match=r"unknown convention 'thopp' \(did you mean thop\?\); expected one of 'fxflops', "
    ):
        REPORT.explain("thopp", "torch")


class Layers(nn.Module):
    """A convolution, a norm, an LSTM and a linear layer on its sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 8, 5, padding=2), nn.BatchNorm1d(8)
        self.rnn, self.fc = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(self.norm(self.conv(x)).transpose(1, 2))[0])


LAYERS = fxflops.count(Layers(), torch.randn(2, 3, 16))


def test_a_tool_that_counts_macs_is_compared_with_macs() -> None:
    found = LAYERS.explain("torchinfo")
    assert (found.a, found.total_a) == ("fxflops MACs", LAYERS.total_macs)
    assert found.total_b == LAYERS.recount("torchinfo").total_flops
    n, length, first = (
        2,
        16,
        "(weight + bias) times the batch size; other weights and biases times the first two sizes of the output",
    )
    rows = {row.op: (row.flops_a, row.flops_b, row.how_b) for row in found.rows}
    assert rows["linear"] == (n * length * 6 * 4, n * (6 * 4 + 4), first)
    assert rows["batch_norm"] == (0, n * (8 + 8), first)
    assert rows["conv"] == (
        n * length * 8 * 3 * 5,
        n * length * (8 * 3 * 5 + 8),
        "(weight + bias) times all output sizes but the second; other weights and biases times the first two output sizes",
    )
    gates = 4 * 6 * (8 + 6)
    assert rows["lstm"] == (
        n * length * gates,
        n * length * (gates + 2 * 4 * 6),
        "all weights and biases times the first two sizes of the output",
    )
    assert LAYERS.explain("fxflops", "torchinfo") == found
    assert LAYERS.explain("torchinfo", "fxflops").total_b == LAYERS.total_macs


def test_the_head_says_what_is_compared() -> None:
    heads = {
        ("fxflops", "thop"): "   in MACs",
        ("fvcore", "thop"): "   in MACs",
        ("deepspeed", "ptflops"): "   ptflops counts MACs, the other counts FLOPs",
        ("fxflops", "torch"): "",
    }
    for (a, b), said in heads.items():
        found = LAYERS.explain(a, b)
        assert str(found).splitlines()[0].endswith(f"   {found.total_b - found.total_a:+,}{said}")


@torch.library.custom_op("fxflops_explained::scan", mutates_args=())
def scan(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(0)


@scan.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_what_neither_counts_is_named_and_the_totals_are_bounds() -> None:
    class Scanned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scan(self.layer(x))

    report = fxflops.count(Scanned(), torch.ones(2, 4))
    first, second, last = str(report.explain("fvcore")).splitlines()
    assert first.startswith("fxflops MACs >= 32   fvcore >= 32   +0")
    assert (second, last) == (
        "both conventions count all other calls the same",
        "not counted: fxflops_explained::scan x1",
    )
    # A formula that returns a number gives no MACs: the report's MACs stay, and a tool that counts MACs uses the number.
    counted = fxflops.count(
        Scanned(), torch.ones(2, 4), formulas={"fxflops_explained::scan": lambda *, out: out.numel()}
    )
    found = counted.explain("fvcore")
    assert (counted.total_macs, found.total_a, found.total_b) == (32, 32, 40)
    assert (found.missing_a, found.missing_b) == ({}, {})


def test_three_conventions_are_too_many() -> None:
    with pytest.raises(fxflops.InputError, match="compares two conventions, got 'thop', 'fvcore' and 'torch'"):
        LAYERS.explain("thop", "fvcore", "torch")

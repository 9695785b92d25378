"""report.diff: what is larger, and where. The parts add up to the whole."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from fxflops import InputError, Report, analyze, count, profile
from fxflops.report.diff import Change, Diff


class Block(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


def model(blocks: int, hidden: int, head: bool = True) -> nn.Module:
    parts = nn.Sequential()
    parts.add_module("blocks", nn.Sequential(*(Block(16, hidden) for _ in range(blocks))))
    if head:
        parts.add_module("head", nn.Linear(16, 4))
    return parts


X = torch.randn(3, 16)
SMALL, LARGE = count(model(2, 32), X), count(model(4, 64, head=False), X)


def own_sum(found: Diff, key: str) -> float:
    return sum(getattr(row.own, key).difference or 0 for row in found.modules)


@pytest.mark.parametrize(("a", "b"), [(SMALL, LARGE), (LARGE, SMALL), (SMALL, SMALL)], ids=["grows", "shrinks", "same"])
def test_parts_add_up_to_the_difference_of_the_totals(a: Report, b: Report) -> None:
    found = a.diff(b)
    wanted = b.total_flops - a.total_flops
    assert found.totals["FLOPs"].difference == wanted
    assert own_sum(found, "flops") == wanted
    assert sum(row.total.flops.difference or 0 for row in found.operators) == wanted
    assert own_sum(found, "macs") == b.total_macs - a.total_macs
    assert own_sum(found, "params") == b.total_params - a.total_params == found.totals["params"].difference
    assert found.by_module()[""].total.flops == Change(a.total_flops, b.total_flops)


def test_numbers_by_hand() -> None:
    found = SMALL.diff(LARGE).by_module()
    one, two = 3 * 32 * 2 * 16, 3 * 64 * 2 * 16  # 16 multiplies, 15 adds and a bias for each of 3 x 32 outputs
    row = found["blocks.0.mlp.0"].total
    assert row.flops == Change(one, two)
    assert (row.flops.difference, row.flops.ratio) == (one, 2.0)
    assert row.params == Change(17 * 32, 17 * 64)
    assert row.seconds == Change(None, None)
    assert row.seconds.difference is None
    assert row.seconds.ratio is None


def test_what_only_one_has() -> None:
    found = SMALL.diff(LARGE).by_module()
    assert {key for key, row in found.items() if row.where == "only in b"} == {
        f"blocks.{i}{part}" for i in (2, 3) for part in ("", ".norm", ".mlp", ".mlp.0", ".mlp.1", ".mlp.2")
    }
    assert found["blocks.3.mlp.0"].total.flops == Change(0, 3 * 64 * 2 * 16)
    assert found["blocks.3.mlp.0"].total.flops.ratio is None
    assert found["head"].where == "only in a"
    assert found["head"].total.flops == Change(3 * 4 * 2 * 16, 0)
    assert found[""].where == "both"


def test_sorted_by_the_size_of_the_difference() -> None:
    for sort_by, key in (("flops", "flops"), ("params", "params"), ("macs", "macs")):
        rows = list(SMALL.diff(LARGE).by_module(sort_by).values())
        sizes = [abs(getattr(row.total, key).difference or 0) for row in rows]
        assert sizes == sorted(sizes, reverse=True)
    with pytest.raises(
        InputError, match="cannot sort by 'size'; expected one of 'flops', 'macs', 'params', 'time', 'memory'"
    ):
        SMALL.diff(LARGE).by_module("size")


def test_times_and_memory_where_they_were_measured() -> None:
    small, large = (analyze(model(2, hidden), X, repeats=2) for hidden in (32, 4096))
    found = small.diff(large)
    assert found.totals["latency"] == Change(small.latency, large.latency)
    assert found.totals["peak memory"].difference == large.max_memory - small.max_memory > 0
    row = found.by_module("time")["blocks"].total
    assert row.seconds == Change(small["blocks"].total.seconds, large["blocks"].total.seconds)
    assert row.bytes_peak.difference is not None
    assert row.bytes_peak.difference > 2 * 2 * 16 * 4000 * 4
    seconds = sum(row.own.seconds.difference or 0 for row in found.modules)
    assert seconds == pytest.approx((large.total_time or 0) - (small.total_time or 0))
    against_counted = small.diff(SMALL)
    assert against_counted.totals["latency"].difference is None
    assert against_counted.by_module()["head"].total.seconds.b is None


def test_a_phase() -> None:
    a, b = (count(model(n, 32), X, backward=True) for n in (1, 3))
    found = a.diff(b, "backward")
    assert b.total_backward_flops is not None
    assert a.total_backward_flops is not None
    assert own_sum(found, "flops") == b.total_backward_flops - a.total_backward_flops
    assert found.totals["backward FLOPs"].difference == own_sum(found, "flops")
    with pytest.raises(InputError, match="unknown phase"):
        a.diff(b, "sideways")


def test_one_screen() -> None:
    for a, b in ((SMALL, LARGE), (SMALL, SMALL), (SMALL, count(nn.Identity(), X))):
        text = str(a.diff(b))
        assert len(text.splitlines()) <= 40
        assert max(map(len, text.splitlines())) <= 120
    text = str(SMALL.diff(LARGE))
    assert "only in a" in text
    assert "x6, x12" in text
    assert "FLOPs by operator" in text
    assert "FLOPs by" not in str(SMALL.diff(SMALL))
    assert re.match(r"b compared with a: FLOPs [\d.]+x, params [\d.]+x, .*; most in .*, \+.* [kM]\na  ", text)
    assert str(SMALL.diff(SMALL)).startswith("no difference in the numbers that both reports have\n")
    assert "b compared with a: FLOPs" in SMALL.diff(LARGE)._repr_html_()


def test_many_kinds_of_modules_still_fit_one_screen() -> None:
    names = nn.ModuleDict({f"part_{a}{b}": nn.Linear(16, 16) for a in "abcdefgh" for b in "abcdefgh"})
    wide = count(nn.Sequential(*names.values()), X)
    chain = nn.Sequential()
    for name, part in names.items():
        chain.add_module(name, part)
    text = str(wide.diff(count(chain, X)))
    assert len(text.splitlines()) <= 40
    assert "more: " in text


def test_exports() -> None:
    found = SMALL.diff(LARGE)
    rows = found.to_dicts()
    assert [row["module"] for row in rows] == list(found.by_module())
    assert list(rows[0])[:6] == ["module", "where", "flops_a", "flops_b", "flops_difference", "flops_ratio"]
    assert str(found.to_csv()).startswith("module,where,flops_a,flops_b,flops_difference,flops_ratio,macs_a")
    assert len(str(found.by_operator().to_markdown()).splitlines()) == 2 + len(found.operators) + 2  # provenance


def test_reports_that_were_read(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "a.json")
    assert str(Report.load(tmp_path / "a.json").diff(LARGE)) == str(SMALL.diff(LARGE))


def test_another_optimizer_and_what_is_computed_again() -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]

    layers, x = [nn.Linear(4, 4), nn.Sigmoid()], torch.ones(2, 4)
    plain, again = nn.Sequential(*layers), Checkpointed(*layers)
    sgd = count(plain, x, backward=True, optimizer=torch.optim.SGD)
    adam = count(again, x, backward=True, optimizer=torch.optim.AdamW)
    found = sgd.diff(adam)
    assert found.totals["recompute FLOPs"] == (0, adam.total_recompute_flops)
    assert found.totals["optimizer FLOPs"] == (2 * (16 + 4), adam.total_optimizer_flops)  # weight -= lr * gradient
    assert "recompute FLOPs +" in str(found).replace("\n", " ")
    assert "; ;" not in str(found)
    with pytest.raises(InputError, match=r"use report.diff\(other, phase='backward'\) to compare this phase"):
        found.by_module("backward")


class Slow(Dataset[torch.Tensor]):
    """A dataset whose samples take a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.ones(8)


def test_two_loops_differ_in_the_phases_of_their_time() -> None:
    def profiled(seconds: float) -> Report:
        net = nn.Linear(8, 4)
        with profile(net) as p:
            for batch in DataLoader(Slow(seconds), batch_size=2):
                net(batch).sum().backward()
        return p.report

    slow, fast = profiled(0.05), profiled(0.0)
    found = slow.diff(fast)
    loading = sum(step.loading for step in slow.step_times().values())
    assert found.totals["data loading"].a == loading >= 0.2
    first, *_ = str(found).splitlines()
    assert re.search(r"block time 0\.\d+x; data loading -\d", first)
    assert "time by module, forward" in str(found)
    assert found.totals["data loading"].b is not None
    assert count(nn.Linear(8, 4), torch.ones(1, 8)).diff(slow).totals["forward time"].a is None


def test_what_is_no_report() -> None:
    with pytest.raises(InputError, match=r"expects a Report, got str; Report\.load\(path\)"):
        SMALL.diff("a.json")  # type: ignore[arg-type]


def test_lower_bounds_and_conventions_are_named() -> None:
    class Gone(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy() + 1) * 2

    text = str(analyze(Gone(), torch.randn(4), repeats=0).diff(SMALL.recount("thop")))
    assert "INCOMPLETE, a lower bound" in text
    assert "convention thop" in text


def test_as_a_page_both_reports_stand_side_by_side(tmp_path):
    small, large = (
        count(nn.Sequential(nn.Linear(8, n), nn.ReLU(), nn.Linear(n, 8)), torch.ones(4, 8)) for n in (16, 32)
    )
    small.diff(large).to_html(tmp_path / "diff.html", title="Twice as wide")
    text = (tmp_path / "diff.html").read_text(encoding="utf8")
    assert text == small.diff(large).to_html(title="Twice as wide")
    assert "<h1>Twice as wide</h1>" in text
    # 2 layers of 8 x n multiplies and adds for each of 4 rows; n biases and n ReLUs, and 8 biases less 8 sums.
    assert (
        '<td class="n">2.11 k</td><td class="n">4.22 k</td><td class="n">+2.11 k</td><td class="n">2.00x</td>' in text
    )
    assert "FLOPs by module" in text
    assert "params by operator" in text
    assert "time by module" not in text

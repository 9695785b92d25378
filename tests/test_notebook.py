"""TorchFLOPsByFX: torch_flops's README, row by row, and the features we add."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

from compare import SimpleModel
from fxflops import FxflopsError, TorchFLOPsByFX

X = torch.ones(1, 5)
HEADER = [
    "node_name", "node_op", "op_target", "which_module", "flops", "time(ms)", "mem_before_op(B)", "mem_after_op(B)",
    "mem_delta(B)",
]  # fmt: skip
PLAIN_ROWS = [
    ["x", "placeholder", "x", "", 0],
    ["layer", "call_module", "layer", "Linear", 40],
    ["output", "output", "output", "", 0],
]


def counted(model: nn.Module, *args: object, **kwargs: object) -> TorchFLOPsByFX:
    counter = TorchFLOPsByFX(model, *args, **kwargs)  # type: ignore[arg-type]
    counter.propagate(X)
    return counter


@pytest.mark.parametrize(("bias", "add_one", "flops"), [(True, False, 40), (True, True, 44), (False, False, 36)])
def test_the_simple_model_of_the_readme(bias: bool, add_one: bool, flops: int, device: str) -> None:
    counter = counted(SimpleModel(bias, add_one).to(device))
    assert counter.print_total_flops(show=False) == flops
    assert counter.report.total_flops == flops


def test_the_rows_of_the_readme() -> None:
    counter = counted(SimpleModel())
    assert counter.result_header == HEADER
    assert [row[:5] for row in counter.result_table] == PLAIN_ROWS
    rows = counted(SimpleModel(add_one=True)).result_table
    assert [row[0] for row in rows] == ["x", "layer", "add", "output"]
    assert [row[4] for row in rows] == [0, 40, 4, 0]
    assert rows[2][1] == "call_function"
    assert rows[2][2] == "<built-in function add>"


def test_every_cell_is_filled_on_the_cpu() -> None:
    rows = counted(SimpleModel(add_one=True)).result_table
    for row in rows:
        assert isinstance(row[5], float)
        assert row[8] == row[7] - row[6]
    weights, x, y = (5 * 4 + 4) * 4, 5 * 4, 4 * 4
    assert rows[0][6:] == [weights + x, weights + x, 0]
    assert rows[1][6:] == [weights + x, weights + x + y, y]
    assert rows[2][6:] == [weights + x + y, weights + x + 2 * y, y]


def test_the_printed_table(capsys: pytest.CaptureFixture[str]) -> None:
    counter = TorchFLOPsByFX(nn.Sequential(nn.Linear(1000, 1000)))
    counter.propagate(torch.ones(1, 1000))
    counter.print_result_table()
    out = capsys.readouterr().out
    assert "2,000,000" in out
    assert "+4,000" in out
    assert all(name in out for name in HEADER)
    counter.print_result_table(sort_by="flops", top=1, columns=["node_name", "flops"], tablefmt="github")
    out = capsys.readouterr().out
    assert "2,000,000" in out
    assert "placeholder" not in out
    assert "top 1 of 3" in out


def test_totals_are_printed_and_returned(capsys: pytest.CaptureFixture[str]) -> None:
    counter = counted(SimpleModel())
    assert counter.print_total_flops() == 40
    milliseconds, peak = counter.print_total_time(), counter.print_max_memory()
    assert milliseconds is not None
    assert milliseconds > 0
    assert peak == counter.report.max_memory == (24 + 5 + 4) * 4
    assert capsys.readouterr().out == (
        f"total_flops = 40\ntotal_time = {milliseconds:.3f} ms\nmax_memory = {peak:,} Bytes\n"
    )


def test_ignored_and_unknown_ops_have_torch_flops_words() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.GELU())
    counter = counted(model, ignore_ops=["GELU"])
    assert [row[4] for row in counter.result_table] == [0, 40, "ignored", 0]
    assert counter.print_total_flops(show=False) == 40
    counter = counted(SimpleModel(add_one=True), ignore_ops="add")
    assert counter.print_total_flops(show=False) == 40

    torch.library.define("fxflops_notebook::op", "(Tensor x) -> Tensor")
    torch.library.impl("fxflops_notebook::op", "default")(lambda x: x.clone())

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.fxflops_notebook.op(x)

    assert [row[4] for row in counted(Custom()).result_table] == [0, "not_recognized", 0]


def test_max_memory_allocated_is_the_peak_within_the_op() -> None:
    rows = counted(SimpleModel(), "max_memory_allocated").result_table
    assert rows[1][7] >= rows[1][6]
    with pytest.raises(FxflopsError, match="memory_allocated"):
        TorchFLOPsByFX(SimpleModel(), "memory")


def test_csv(tmp_path: Path) -> None:
    counter = counted(SimpleModel())
    file = tmp_path / "result.csv"
    counter.save_result_to_csv(file)
    counter.save_result_to_csv(str(file))
    rows = list(csv.reader(file.read_text().splitlines()))
    assert rows[0] == HEADER
    assert rows[2][:5] == ["layer", "call_module", "layer", "Linear", "40"]
    assert len(rows) == 2 * (1 + 3 + 1)


def test_before_propagate_it_says_what_to_do() -> None:
    counter = TorchFLOPsByFX(SimpleModel())
    for method in (counter.print_result_table, counter.print_total_flops, counter.print_total_time):
        with pytest.raises(FxflopsError, match="call propagate"):
            method()
    assert [node.op for node in counter.graph_model.graph.nodes] == ["placeholder", "call_module", "output"]


def test_it_runs_any_number_of_times() -> None:
    counter = counted(SimpleModel())
    counter.propagate(torch.ones(3, 5))
    assert counter.print_total_flops(show=False) == 3 * 40
    counter.propagate(x=torch.ones(2, 5))
    assert counter.print_total_flops(show=False) == 2 * 40


@pytest.mark.cuda
def test_the_same_columns_are_filled_on_cuda() -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).cuda()
    counter = TorchFLOPsByFX(model)
    counter.propagate(torch.ones(64, 512, device="cuda"))
    assert counter.print_total_flops(show=False) == 64 * 512 * (2 * 512) + 64 * 512
    for row in counter.result_table:
        assert isinstance(row[5], float)
        assert row[8] == row[7] - row[6]
    assert counter.result_table[1][8] >= 64 * 512 * 4
    assert counter.report.memory.source == "allocator"
    assert counter.report.max_memory >= 512 * 512 * 4


class Checked(nn.Module):
    """Asserts two sizes, like timm's patch embedding. torch_flops counts the comparisons."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.size(1) == 4, "four features")
        torch._assert(x.size(0) == 2, message="two rows")
        return self.fc(x)


@pytest.mark.parametrize("ignored", [(), ("eq",), ("_assert",)])
def test_a_checked_comparison_has_torch_flops_number(ignored: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    # torch_flops asks CUDA for memory on any device.
    for name in ("reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)
    theirs = pytest.importorskip("torch_flops").TorchFLOPsByFX(Checked(), ignore_ops=list(ignored))
    ours = TorchFLOPsByFX(Checked(), ignore_ops=ignored)
    found = []
    for counter in (theirs, ours):
        counter.propagate(torch.ones(2, 4))
        counter.print_result_table(show=False)
        rows = {row[0]: 0 if row[4] == "ignored" else row[4] for row in counter.result_table}
        found.append((rows, counter.print_total_flops(show=False)))
    assert found[0] == found[1]
    assert {found[1][0][name] for name in ("eq", "eq_1")} == ({0} if ignored == ("eq",) else {1})


def test_a_recorded_check_keeps_its_number() -> None:
    # Recording does the comparison in Python, so it has no node.
    counter = TorchFLOPsByFX(Checked(), trace="record")
    counter.propagate(torch.ones(2, 4))
    assert counter.print_total_flops(show=False) == 1 + 1 + 2 * 4 * (4 + 4 - 1 + 1)
    assert [row[4] for row in counter.result_table if "_assert" in row[0]] == [1, 1]

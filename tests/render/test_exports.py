"""Tables and their exports: every format returns the values that went in, and a module's name cannot do harm in any."""

from __future__ import annotations

import csv
import io
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import FxflopsError, InputError, Report, analyze, count, profile, trainers
from fxflops.render.columns import Column
from fxflops.render.exports import Rows, Table, Tabular, as_json

EVIL = "</script><img src=x onerror=alert(1)>"
COLUMNS = (Column("op", "op"), Column("flops", "FLOPs", "flops"), Column("seconds", "time", "s"))
TABLE = Table("ops", COLUMNS, (("linear", 2**60, 0.5), ("scan", None, None), ("a|b", -3, 1e-9)))


class Parsed(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") and "alert" in str(value) for name, value in attrs)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def named(*names: str) -> nn.Module:
    """A model whose modules have these names."""
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(4, 4))
    return model


@pytest.fixture(scope="module")
def evil() -> Report:
    model = named(EVIL, "=cmd|' /C calc'!A0", "{x} & 50% _a_ #^~$", "a](javascript:alert)|b")
    return analyze(model, torch.randn(2, 4), repeats=1)


def test_a_table_is_its_rows() -> None:
    assert len(TABLE) == 3
    assert list(TABLE) == list(TABLE.rows)
    assert TABLE.to_dicts()[0] == {"op": "linear", "flops": 2**60, "seconds": 0.5}


def test_csv_holds_raw_values() -> None:
    rows = list(csv.DictReader(io.StringIO(TABLE.to_csv())))
    assert rows[0] == {"op": "linear", "flops": str(2**60), "seconds": "0.5"}
    assert rows[1] == {"op": "scan", "flops": "", "seconds": ""}
    assert rows[2]["flops"] == "-3"  # a number is not a formula
    assert float(rows[2]["seconds"]) == 1e-9


@pytest.mark.parametrize("start", "= + - @ \t \r \n".split(" "))
def test_no_text_is_a_formula_in_a_spreadsheet(start: str) -> None:
    table = Table("t", (Column("a", "a"), Column("b", "b")), ((f"{start}1+1", f"x{start}1"),))
    [row] = csv.DictReader(io.StringIO(table.to_csv(), newline=""))
    assert row == {"a": f"'{start}1+1", "b": f"x{start}1"}


def test_json_holds_raw_values() -> None:
    assert json.loads(str(TABLE.to_json())) == TABLE.to_dicts()
    infinite = Table("t", COLUMNS[1:2], ((float("inf"),), (float("nan"),)))
    assert json.loads(str(infinite.to_json())) == [{"flops": None}, {"flops": None}]
    with pytest.raises(InputError, match="cannot be written as JSON"):
        as_json({"a": object()})


def test_markdown() -> None:
    assert str(TABLE.to_markdown()).splitlines() == [
        "| op | FLOPs (E) | time (ms) |",
        "| :--- | ---: | ---: |",
        "| linear | 1.15 | 500.0 |",  # 2^60 is 1.15 x 10^18
        "| scan | - | - |",
        r"| a\|b | &gt;-0.0001 | &lt;0.0001 |",
    ]


def test_a_small_model_in_a_paper_has_three_digits_beside_a_large_one() -> None:
    table = Table("t", COLUMNS[:2], (("large", 15_500_000_000), ("small", 4_123_456)))
    assert "| large | 15.50 |\n| small | 0.00412 |" in str(table.to_markdown())
    assert r"small & 4.12 \\" in str(replace(table, units="M").to_latex())


def test_a_column_without_values_has_no_unit_in_a_paper() -> None:
    table = Table("t", (COLUMNS[0], Column("latency", "latency", "s")), (("a", None),), chosen=True)
    assert str(table.to_markdown()).startswith("| op | latency |\n")


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("layer_norm", r"layer\_norm"),
        ("50% & $1 #2 {x}", r"50\% \& \$1 \#2 \{x\}"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("a<b>c|d~e^f", r"a\textless{}b\textgreater{}c\textbar{}d\textasciitilde{}e\textasciicircum{}f"),
        ("[1] f32[1,3]", "{}[1] f32[1,3]"),  # otherwise LaTeX takes it for an argument of the line break before it
        ("*", "{}*"),
        ("a\nb", r"a\textbackslash{}nb"),
    ],
)
def test_latex_escapes(text: str, latex: str) -> None:
    lines = str(Table("t", COLUMNS[:2], ((text, 5),)).to_latex()).splitlines()
    assert lines[:3] == [r"% \usepackage{booktabs}", r"\begin{tabular}{lr}", r"\toprule"]
    assert lines[4:6] == [r"\midrule", rf"{latex} & 5 \\"]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_a_long_path_breaks_at_its_dots_in_latex() -> None:
    path = "up_blocks.1.attentions.0.transformer_blocks.0"
    text = str(Table("t", COLUMNS[:2], ((path, 5), ("to_q", 3))).to_latex())
    assert r"\begin{tabular}{p{0.3\linewidth}r}" in text
    assert r"up\_blocks.\allowbreak{}1.\allowbreak{}att" in text
    assert "\nto\\_q & 3" in text


def test_a_paper_has_no_zeros_after_the_point_of_0_and_breaks_sentences() -> None:
    said = "2 (d + v) s per position of query, softmax free"
    table = Table("t", (*COLUMNS[1:], Column("how", "counts")), ((0, 0.0, said), (1, 0.5, "free")))
    assert r"0 & 0 & 2 (d + v) s" in str(table.to_latex())
    assert r"\begin{tabular}{rrp{0.15\linewidth}}" in str(table.to_latex())
    assert "| 0 | 0 | 2" in str(table.to_markdown())


@pytest.mark.parametrize("view", ["diff", "roofline", "roofline by_operator"])
def test_a_wide_comparison_has_few_columns_in_a_paper(view: str) -> None:
    plain = analyze(named("a"), torch.randn(2, 4), repeats=1, progress=False)
    header = str(VIEWS[view](plain).to_markdown()).splitlines()[0]
    assert header.count("|") <= 8
    assert "FLOPs" in header


def test_dataframe_holds_raw_values() -> None:
    pytest.importorskip("pandas")
    frame = TABLE.to_dataframe()
    assert list(frame.columns) == ["op", "flops", "seconds"]
    assert frame["flops"][0] == 2**60
    assert frame["flops"].isna().tolist() == [False, True, False]
    assert frame["flops"].sum() == 2**60 - 3  # floats would lose the 3
    assert frame["seconds"].sum() == 0.5 + 1e-9


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FxflopsError, match="pip install pandas"):
        TABLE.to_dataframe()


@pytest.mark.parametrize("form", ["csv", "json", "markdown", "latex", "html"])
def test_with_a_path_it_writes_that_file(form: str, tmp_path: Path) -> None:
    text = getattr(TABLE, f"to_{form}")()
    assert getattr(TABLE, f"to_{form}")(tmp_path / "t") is None
    assert (tmp_path / "t").read_bytes() == text.encode()


def test_select() -> None:
    assert TABLE.select("op", sort_by="flops", top=2).rows == (("linear",), ("a|b",))
    assert TABLE.select(["time", "op"], sort_by="time").rows == ((0.5, "linear"), (1e-9, "a|b"), (None, "scan"))
    with pytest.raises(InputError, match=r"no column 'bytes'; expected some of op, flops, seconds \(time\)"):
        TABLE.select(sort_by="bytes")


def test_text_is_for_people() -> None:
    lines = str(Table("ops", COLUMNS, (("relu", 1500, None),))).splitlines()
    assert [line.split() for line in lines] == [["op", "FLOPs"], ["----", "-------"], ["relu", "1.50", "k"]]
    many = Table("ops", COLUMNS[:2], tuple((f"op{i}", i) for i in range(100)))
    assert "first 60 of 100 ops" in str(many)
    assert "op59" in str(many)
    assert "op60" not in str(many)
    assert "first 60 of 100 ops" in many._repr_html_()
    assert str(many.to_html()).count("<tr>") == 101


def test_a_narrow_terminal_says_what_it_has_no_room_for(columns: Callable[[int], None]) -> None:
    table = count(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)).table
    for width in (200, 80, 60):
        columns(width)
        lines = str(table).splitlines()
        assert max(map(len, lines)) <= width
        shown = lines[0].split()
        left_out = lines[-1].removeprefix("no room for ").split(", ") if "no room" in lines[-1] else []
        assert {"op", "module", "FLOPs"} <= set(shown)
        assert "phase" not in shown  # all calls are of the forward
        assert {"target", "counts"} <= set(shown if width == 200 else left_out)


def test_a_key_that_is_not_there() -> None:
    rows = count(named("body", "head"), torch.randn(2, 4)).by_module()
    with pytest.raises(KeyError, match=r"no module 'bodi' \(did you mean body"):
        rows["bodi"]
    assert rows.get("bodi") is None
    assert "bodi" not in rows


def test_columns_go_by_what_stands_above_them_too() -> None:
    with pytest.raises(
        InputError, match=r"no column 'tiem' \(did you mean time\?\); expected some of op, flops, seconds \(time\)"
    ):
        TABLE.select("tiem")


def test_rows_are_a_mapping_and_a_table() -> None:
    report = count(named("a", "b"), torch.randn(2, 4))
    rows = report.by_module()
    assert isinstance(rows, dict)
    assert list(rows) == ["", "a", "b"]
    assert rows["a"] is report["a"]
    assert [row["module"] for row in rows.to_dicts()] == list(rows)
    assert sum(row["own_flops"] for row in rows.to_dicts()) == report.total_flops
    assert [row[:2] for row in report.by_module_and_operator().table] == [
        ("", "linear"), ("a", "linear"), ("b", "linear"),
    ]  # fmt: skip
    assert report.by_module_and_operator()["a"].table.rows == (("linear", 1, 32, 64, 0, 8, None, 0),)
    assert "(root)" in str(rows)
    assert "(root)" not in str(rows.to_csv())
    assert isinstance(report.by_step(), Rows)
    assert isinstance(report.by_dtype(), Rows)
    assert list(report.by_dtype().to_dicts()[0])[:2] == ["dtype", "calls"]


def test_the_time_of_the_host_is_explained() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4)
    with profile(model) as p:
        model(x)
    said = "(host): time between the operations, in Python and in torch before and after a kernel"
    assert str(p.report.by_operator()).count(said) == 1


def test_operations_in_run_order() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    report = analyze(model, torch.randn(2, 4), repeats=1)
    rows = report.table.to_dicts()
    assert [(row["op"], row["module"]) for row in rows if row["op"] != "(no op)"] == [
        ("linear", "0"),
        ("relu", "1"),
    ]
    assert sum(row["flops"] for row in rows) == report.total_flops
    assert sum(row["seconds"] for row in rows) == pytest.approx(report.total_time)
    said = "(no op): time outside all operations, e.g. for an input, an index into a tuple, or a shape query"
    for text in (
        str(report.table),
        str(report.by_operator()),
        report.table._repr_html_(),
        report.by_operator()._repr_html_(),
    ):
        assert text.count(said) == 1
    assert "(no op)" not in str(report.table.select("op", sort_by="flops", top=2))
    [linear] = [row for row in rows if row["op"] == "linear"]
    assert (linear["params"], linear["inputs"], linear["output"]) == (15, "f32[2,4]", "f32[2,3]")
    assert linear["bytes_after"] - linear["bytes_before"] == 2 * 3 * 4
    assert linear["target"] == "torch.nn.modules.linear:Linear"
    back = analyze(model, torch.randn(2, 4), repeats=1, backward=True).table.to_dicts()
    assert {row["phase"] for row in back} == {"forward", "backward"}


def test_an_unknown_operation_has_no_number() -> None:
    class Gone(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy() + 1) * 2

    rows = analyze(Gone(), torch.randn(4), repeats=1).table.to_dicts()
    [unknown] = [row for row in rows if row["op"] == "numpy"]
    assert (unknown["flops"], unknown["macs"]) == (None, None)
    assert "not counted" in unknown["counts"]


@pytest.mark.parametrize("form", ["to_html", "_repr_html_"])
def test_a_hostile_name_in_html(evil: Report, form: str) -> None:
    for shown in (evil.table, evil.by_module(), evil.by_module_and_operator()):
        page = Parsed(getattr(shown, form)())
        assert page.tags <= set("table thead tbody tr th td p div style button caption small".split())
        assert EVIL in page.text
    for shown in (evil, evil.tree(), evil.diff(evil), evil.roofline("H100"), evil.explain("torch", "thop")):
        page = Parsed(shown._repr_html_())
        assert not page.tags & {"img", "script"}


def test_a_hostile_name_in_a_file(evil: Report, tmp_path: Path) -> None:
    for text in (evil.to_json(), evil.to_chrome_trace(), evil.by_module().to_json()):
        assert "<" not in str(text)
        assert EVIL in json.dumps(json.loads(str(text)))
    assert "<" not in str(evil.to_markdown())
    assert "](" not in str(evil.to_markdown())
    *table, _, origin = str(evil.table.to_markdown()).splitlines()
    assert origin == evil.provenance.replace("_", r"\_")
    assert {line.count("|") - line.count(r"\|") for line in table} == {8}
    assert "<" not in str(evil.to_latex())
    assert r"\{x\} \& 50\% \_a\_ \#" in str(evil.to_latex())
    rows = list(csv.DictReader(io.StringIO(str(evil.to_csv()), newline="")))
    assert {row["module"] for row in rows} >= {EVIL, "'=cmd|' /C calc'!A0"}
    evil.save(tmp_path / "evil.json")
    assert Report.load(tmp_path / "evil.json") == evil


def test_explanations_and_rooflines_are_tables() -> None:
    report = count(named("a", "b"), torch.randn(2, 4))
    explained = report.explain("torch", "torch_flops")
    assert sum(row["difference"] for row in explained.to_dicts()) == explained.total_b - explained.total_a
    roofline = report.roofline("H100")
    assert [row["module"] for row in roofline.to_dicts()] == ["a", "b"]
    assert [row["key"] for row in roofline.by_module().to_dicts()] == ["", "a", "b"]
    for rows in (roofline.by_module(), report.by_operator(), report.step_times(), report.diff(report)):
        assert pickle.loads(pickle.dumps(rows)) == rows
    total = sum(row["bound_seconds"] for row in roofline.to_dicts())
    assert total == pytest.approx(roofline.bound_seconds)


VIEWS: dict[str, Callable[[Report], Tabular]] = {
    "table": lambda report: report.table,
    "select": lambda report: report.by_operator().select("operator, flops", top=1),
    "by_module": lambda report: report.by_module(),
    "by_operator": lambda report: report.by_operator(),
    "by_dtype": lambda report: report.by_dtype(),
    "by_step": lambda report: report.by_step(),
    "nested": lambda report: report.by_module_and_operator()["0"],
    "tree": lambda report: report.tree(),
    "roofline": lambda report: report.roofline("H100"),
    "roofline by_operator": lambda report: report.roofline("H100").by_operator(),
    "explain": lambda report: report.explain("torch"),
    "diff": lambda report: report.diff(report),
    "gather": lambda report: report.gather(),
    "trainers": lambda report: trainers.estimate("6nd", report, 8),
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_exports_its_provenance(view: str) -> None:
    report = count(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4)).with_name("=mine <1>")
    found = VIEWS[view](report)
    origin = f"a: {report.provenance}; b: {report.provenance}" if view == "diff" else report.provenance
    assert {row["provenance"] for row in json.loads(str(found.to_json()))} == {origin}
    cells = {row["provenance"] for row in csv.DictReader(io.StringIO(str(found.to_csv()), newline=""))}
    assert cells == {origin if view == "diff" else f"'{origin}"}  # quoted: not a formula for a spreadsheet
    assert "=mine &lt;1&gt; · fxflops" in str(found.to_markdown()).splitlines()[-1]
    assert str(found.to_latex()).startswith(f"% {origin}\n")
    for text in (str(found._as_table().to_html()), found._repr_html_()):
        assert text.count("=mine &lt;1&gt; · fxflops") == origin.count("=mine <1> · fxflops")


def test_a_name_with_a_line_break(tmp_path: Path) -> None:
    report = count(named("a\\input{x}\r\nb"), torch.randn(2, 4))
    assert [row["module"] for row in csv.DictReader(io.StringIO(str(report.to_csv()), newline=""))] == [
        "a\\input{x}\r\nb"
    ]
    assert r"\input" not in str(report.to_latex())
    table = report.table
    assert [len(str(text).splitlines()) for text in (table.to_markdown(), table.to_latex())] == [
        5,
        9,
    ]  # an empty line and the provenance
    *parts, _, _ = str(report.to_markdown()).splitlines()
    notes = [line for line in parts if line.startswith("- ")]  # what else the screen says, one line each
    assert len(parts) == 4 + 1 + len(notes)
    assert len(str(report.to_latex()).splitlines()) == 10 + len(notes)
    assert len(str(report.by_module()).splitlines()) == 4
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report


def test_a_report_for_a_paper_has_the_parts_that_cost_most(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1000, 500), nn.ReLU()) for _ in range(2)), nn.Linear(500, 10))
    model[1][0] = nn.Linear(500, 500)
    report = count(model, torch.randn(8, 1000)).with_name("mine")
    lines = str(report.to_markdown()).splitlines()
    assert lines[0] == "| module | class | modules | params (k) | MACs (M) | FLOPs (M) | FLOPs % |"
    # 8 x 500 outputs of 2000 FLOPs and as many of 1000; 8 x 10 of 1000
    assert lines[2] == "| 0..1 | Sequential | 2 | 751.0 | 6.00 | 12.01 | 99.3 |"
    assert lines[3] == "| 2 | Linear | 1 | 5.01 | 0.04 | 0.08 | 0.7 |"
    assert lines[4] == "| total | Sequential | 1 | 756.0 | 6.04 | 12.09 | 100.0 |"
    assert lines[-1] == report.provenance
    assert str(report.to_latex()).splitlines()[0] == f"% {report.provenance}"


def test_every_export_says_where_it_comes_from() -> None:
    report = count(named("a"), torch.randn(2, 4)).with_name("mine")
    texts = {
        form: str(getattr(report, f"to_{form}")()) for form in ("json", "csv", "markdown", "latex", "chrome_trace")
    }
    for part in ("mine", report.environment.date, report.environment.fxflops, torch.__version__):
        assert [form for form, text in texts.items() if part not in text] == []
    pytest.importorskip("pandas")
    assert report.to_dataframe().attrs == {"provenance": report.provenance}


def test_columns_that_were_chosen_stay() -> None:
    table = analyze(named("a"), torch.randn(2, 4), repeats=1, progress=False).table
    names = [column.key for column in table.columns]
    assert str(table.select(names).to_markdown()).splitlines()[0].count("|") == len(names) + 1
    assert str(table.to_markdown()).splitlines()[0].count("|") == 8

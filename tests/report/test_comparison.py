"""compare: the figures of several reports side by side, the same as in each report."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import fxflops
from fxflops import InputError, Report, analyze, compare, count

X = torch.rand(4, 8)


def reports() -> dict[str, Report]:
    return {"narrow": count(nn.Linear(8, 16), X), "wide": count(nn.Sequential(nn.Linear(8, 32), nn.ReLU()), X)}


def test_a_row_has_the_figures_of_its_report() -> None:
    both = reports()
    rows = compare(both).to_dicts()
    assert [row["model"] for row in rows] == ["narrow", "wide"]
    for row, report in zip(rows, both.values(), strict=True):
        assert row["params"] == report.total_params
        assert (row["macs"], row["flops"]) == (report.total_macs, report.total_flops)
        assert row["memory"] == report.max_memory
    # By hand: 4 x 8 x 16 multiply-accumulates, and as many weights as 8 x 16 with 16 biases.
    assert (rows[0]["macs"], rows[0]["params"]) == (512, 144)


def test_what_no_report_has_is_left_out_unless_it_is_asked_for() -> None:
    both = reports()
    assert "latency" not in compare(both).to_dicts()[0]
    assert "latency: not measured" in str(compare(both, "model, latency"))
    assert compare(both, "model, latency").to_dicts() == [
        {"model": "narrow", "latency": None},
        {"model": "wide", "latency": None},
    ]


def test_a_latency_is_the_reports_own() -> None:
    timed = analyze(nn.Linear(8, 16), X, repeats=2)
    one, other = compare([timed, reports()["wide"]]).to_dicts()
    assert one["latency"] == timed.latency
    assert other["latency"] is None


def test_inputs_are_a_column_where_they_differ_and_a_note_where_not() -> None:
    wide = nn.Linear(8, 16)
    same, different = compare([count(wide, X)] * 2), compare([count(wide, X), count(wide, X[:2])])
    assert "inputs f32[4,8]" in str(same)
    assert "inputs" not in same.to_dicts()[0]
    assert [row["inputs"] for row in different.to_dicts()] == ["f32[4,8]", "f32[2,8]"]
    chosen = compare([count(wide, X), count(wide, X[:2])], "model, flops")
    assert "inputs: Linear f32[4,8], Linear (2) f32[2,8]" in str(chosen)


def test_one_unit_for_the_columns_that_it_fits() -> None:
    table = compare(reports(), "model, params, macs, memory", units="k")
    first = str(table).splitlines()[2].split()
    assert first[:4] == ["narrow", "144", "0.51", "k"]
    assert first[-1] in ("B", "KiB")
    assert "MACs (k)" in str(table.to_latex())
    with pytest.raises(InputError, match="unknown units 'GB'"):
        compare(reports(), units="GB")


def test_models_of_one_class_have_rows_of_their_own() -> None:
    report = count(nn.Linear(8, 16), X)
    assert [*compare([report, report, report.with_name("mine")]).reports] == ["Linear", "Linear (2)", "mine"]


def test_each_convention_has_a_column_with_its_total() -> None:
    both = reports()
    rows = compare(both, conventions=("fvcore", "torch_flops")).to_dicts()
    for row, report in zip(rows, both.values(), strict=True):
        assert row["fvcore"] == report.recount("fvcore").total_flops
        assert row["torch_flops"] == report.recount("torch_flops").total_flops


def test_a_convention_may_stand_among_the_columns_and_is_added_to_those_chosen() -> None:
    both = reports()
    named = compare(both, "model, thop, flops").to_dicts()
    assert [*named[0]] == ["model", "thop", "flops"]
    added = compare(both, "model, flops", conventions="fvcore").to_dicts()
    assert [*added[0]] == ["model", "flops", "fvcore"]
    assert [row["fvcore"] for row in added] == [each.recount("fvcore").total_flops for each in both.values()]


def test_reports_of_two_conventions_are_refused() -> None:
    both = reports()
    with pytest.raises(InputError, match=r"fvcore and fxflops.*recount"):
        compare([both["narrow"], both["wide"].recount("fvcore")])


def test_an_incomplete_count_is_marked() -> None:
    wide = reports()["wide"]
    assert "missing" not in compare([wide]).to_dicts()[0]

    class Unknown(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.tests_comparison.unknown(x)

    library = torch.library.Library("tests_comparison", "DEF")
    library.define("unknown(Tensor x) -> Tensor")
    library.impl("unknown", torch.zeros_like, "CompositeExplicitAutograd")
    incomplete = count(Unknown(), X)
    compared = compare([wide, incomplete])
    assert [row["missing"] for row in compared.to_dicts()] == [0, 1]
    assert "lower bounds" in str(compared)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "at least one report, got none"),
        ([1], "expects reports, such as fxflops.count\\(model, args\\), got int"),
        (count(nn.Linear(8, 16), X), "expects several reports"),
    ],
)
def test_what_is_no_report_is_refused(given: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        compare(given)  # type: ignore[arg-type]


def test_an_unknown_column_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'parms' \(did you mean params\?\)"):
        compare(reports(), "model,parms")


def test_files_have_the_table(tmp_path: Path) -> None:
    comparison = compare(reports())
    for suffix in (".csv", ".json", ".md", ".tex", ".html", ".svg"):
        comparison.save(tmp_path / f"table{suffix}")
    with open(tmp_path / "table.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["flops"] for row in rows] == [str(report.total_flops) for report in comparison.reports.values()]
    assert [row["flops"] for row in json.loads((tmp_path / "table.json").read_text())] == [
        report.total_flops for report in comparison.reports.values()
    ]
    assert r"\toprule" in (tmp_path / "table.tex").read_text()
    with pytest.raises(InputError, match=r"unsupported suffix for a comparison; expected one of \.csv"):
        comparison.save(tmp_path / "table.pickle")


def test_a_figure_names_each_model_and_refuses_what_is_not_known() -> None:
    comparison = compare(reports())
    picture = comparison.to_svg() or ""
    assert ">narrow</text>" in picture
    assert ">wide</text>" in picture
    assert "inputs f32[4,8]" in picture
    with pytest.raises(InputError, match="cannot use 'latency' as an axis: the value is unknown for narrow, wide"):
        comparison.to_svg(y="latency")
    with pytest.raises(InputError, match="cannot use 'model' as an axis"):
        comparison.to_svg(x="model")


def test_a_figure_as_png(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="no resvg to make a PNG")
    compare(reports()).save(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes() == compare(reports()).to_png()


def test_a_row_with_a_name_of_its_own_says_which_model_it_is() -> None:
    one = count(nn.Linear(8, 16), torch.rand(4, 8)).with_name("library:linear")
    assert "A is library:linear" in compare({"A": one}).table.notes
    assert compare([one]).table.notes == compare({"library:linear": one}).table.notes


def test_a_page_has_the_table_and_a_figure_where_its_numbers_are_known() -> None:
    page = compare(reports()).to_html() or ""
    assert page.startswith("<!doctype html>")
    assert "<h1>2 models compared</h1>" in page
    assert ">narrow<" in page
    assert "params against FLOPs" in page
    assert "<title>Mine" in (compare(reports()).to_html(title="Mine") or "")


def test_the_point_of_unsteady_times_is_hollow_and_the_legend_says_why() -> None:
    one = analyze(nn.Linear(8, 16), torch.rand(4, 8), repeats=1)
    data = one.to_dict()
    shaky = Report.from_dict({**data, "latency": {**data["latency"], "unsteady": "the runs differ by 90%"}})
    assert shaky.unsteady
    picture = compare({"steady": one, "shaky": shaky}).to_svg() or ""
    assert (picture.count("<circle"), picture.count('fill="none"')) == (2, 1 + bool(one.unsteady))
    assert "unsteady times: measure again" in picture
    assert "unsteady times" not in (compare({"shaky": shaky}).to_svg(y="params") or "")


def test_a_comparison_of_reports_from_files_is_the_same(tmp_path: Path) -> None:
    both = reports()
    for name, report in both.items():
        report.save(tmp_path / f"{name}.json")
    read = {name: Report.load(tmp_path / f"{name}.json") for name in both}
    assert fxflops.compare(read).to_dicts() == compare(both).to_dicts()

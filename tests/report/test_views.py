"""Views display themselves at the end of an expression: as text at the prompt, as tables in a notebook."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.errors import InputError
from fxflops.meters.timing import Timing
from fxflops.render.exports import View


def kinds(cls: type) -> list[type]:
    """Return the class and all its subclasses."""
    return [cls, *(each for below in cls.__subclasses__() for each in kinds(below))]


def test_every_view_can_be_printed_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Sequential(nn.Linear(8, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))), torch.ones(2, 8)
    report = fxflops.analyze(net, x, repeats=1)
    counter = fxflops.TorchFLOPsByFX(net)
    counter.propagate(x)
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")  # as with PYTHONIOENCODING=ascii
    monkeypatch.setattr(sys, "stdout", out)
    for view in (
        report, report.tree(), report.table, report.by_module(), report.roofline("A100"), report.explain("thop"),
        report.diff(report), report.gather(), fxflops.summary(net, (2, 8)),
    ):  # fmt: skip
        print(view)
        print(repr(view))
    counter.print_result_table(tablefmt="fancy_grid")
    out.seek(0)
    assert "|- 0  Linear" in (text := out.read())
    assert "   |- 0  ReLU" in text
    assert " | eval | no_grad | " in text


def test_a_view_leaves_its_text_to_be_encoded() -> None:
    assert len(kinds(View)) > 15
    assert not [cls for cls in kinds(View)[1:] if "__str__" in vars(cls)]


class Tables(HTMLParser):
    """The rows of a page's tables, cell by cell, and whether each column is aligned to the right."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.numbers: list[list[bool]] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
            self.numbers.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.numbers[-1].append(("class", "n") in attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 8))


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.fixture(scope="module")
def report() -> fxflops.Report:
    return fxflops.count(model(16), torch.ones(2, 8))


@pytest.fixture(scope="module")
def views(report: fxflops.Report) -> dict[str, Any]:
    return {
        "tree": report.tree(),
        "diff": report.diff(fxflops.count(model(32), torch.ones(2, 8))),
        "explain": report.explain("fvcore", "thop"),
        "roofline": report.roofline("H100"),
        "table": report.table,
        "by_module": report.by_module(),
    }


@pytest.mark.parametrize("name", ["tree", "diff", "explain", "roofline", "table", "by_module"])
def test_a_view_is_its_text_at_the_prompt_and_tables_in_a_notebook(views: dict[str, Any], name: str) -> None:
    view = views[name]
    assert repr(view) == str(view)
    found = Tables(view._repr_html_())
    assert "table" in found.tags
    assert "pre" not in found.tags
    text = str(view)
    for cell in (cell.strip(" │├└─") for row in found.rows for cell in row):
        # A notebook shows another summary of a roofline, and marks missing numbers differently.
        assert name == "roofline" or cell in ("", "-") or cell.split("  ")[0].split()[0] in text


def test_numbers_have_units_and_stand_at_the_right(views: dict[str, Any]) -> None:
    # Linear(8, 16) on 2 rows: 2 x 16 outputs of 8 multiplies, 7 additions and the bias
    found = Tables(views["table"]._repr_html_())
    header, first = found.rows[:2]
    assert first[header.index("FLOPs")] == "512"
    assert found.numbers[1] == [title in ("params", "MACs", "FLOPs") for title in header]
    found = Tables(views["tree"]._repr_html_())
    assert found.rows[0] == ["module", "params", "MACs", "FLOPs", "%"]
    assert found.rows[1][:3] == ["Sequential ", "312", "512"]


def test_a_wide_table_chooses_its_columns_and_says_so(report: fxflops.Report) -> None:
    timed = fxflops.analyze(model(16), torch.ones(2, 8), repeats=1, progress=False)
    shown = timed.table._repr_html_()
    assert len(Tables(shown).rows[0]) == 7
    (note,) = re.findall(r"<p>(no room for .*?)</p>", shown)
    assert {"node", "target", "counts"} <= {*re.findall(r"\w+", note)}
    assert "no room" not in report.table.select("op, flops")._repr_html_()


def test_a_tree_is_exported_as_a_table_of_raw_values() -> None:
    net = nn.Sequential(nn.Linear(4, 8), *(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    tree = fxflops.count(net, torch.ones(2, 4)).tree()
    whole = 2 * 8 * (4 + 3 * 8)  # MACs: 2 rows, 8 outputs
    assert [(row["module"], row["count"], row["macs"], row["params"]) for row in tree.to_dicts()] == [
        ("", 1, whole, 5 * 8 + 3 * 9 * 8),
        ("0", 1, 64, 40),
        ("1..3", 3, 128, 72),  # for each
        ("1.0", 1, 128, 72),
        ("1.1", 1, 0, 0),
    ]
    assert [row["macs"] for row in json.loads(str(tree.to_json()))] == [whole, 64, 128, 128, 0]
    assert tree.to_dataframe()["flops%"].max() == 100.0
    assert str(tree.to_csv()).splitlines()[3].startswith("1..3,Sequential,3,72,128,")
    assert "| 1..3 | Sequential | 3 |" in str(tree.to_markdown())
    assert r"\toprule" in str(tree.to_latex())
    assert "<td>1..3</td>" in str(tree.to_html())
    assert tree.select("module, macs", sort_by="macs", top=1).rows == (("", whole),)


@pytest.mark.parametrize(("convention", "title"), [("fxflops", "FLOPs"), ("thop", "thop MACs")])
def test_the_shares_of_a_tree_are_headed_as_those_of_its_report(convention: str, title: str) -> None:
    counted = fxflops.count(nn.Sequential(nn.Linear(4, 8)), torch.ones(2, 4), convention=convention)
    for table in (counted, counted.tree()):
        assert f"| {title} | {title} % |" in str(table.to_markdown()).splitlines()[0]
    assert f">{title} %</th>" in str(counted.tree().to_html())
    assert [*counted.tree().to_dicts()[0]][-1] == "flops%"


def test_the_columns_of_a_tree_that_were_asked_for_are_those_exported(report: fxflops.Report) -> None:
    tree = report.tree(columns="output, calls", depth=1)
    assert [*tree.to_dicts()[0]] == ["module", "class", "output", "calls"]
    assert [row["class"] for row in tree.to_dicts()] == ["Sequential", "Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert "below depth 0: 4 more modules" in report.tree(depth=0)._repr_html_()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"columns": "flop"}, r"no column 'flop' \(did you mean flops\?\)"),
        ({"sort_by": "size"}, "no column 'size'"),
        ({"sort_by": "time"}, "cannot sort by 'time': this column was not measured"),
        ({"units": "GB"}, "unknown units 'GB'"),
        ({"depth": -1}, "depth must be an int of at least 0"),
    ],
)
def test_a_tree_that_cannot_be_shown_is_not_made(report: fxflops.Report, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        report.tree(**wrong)


def test_work_is_named_by_what_takes_its_time() -> None:
    net = nn.Linear(8, 4)
    with fxflops.profile(net) as p:
        torch.empty(2**23).copy_(torch.ones(2**23))
        net(torch.ones(2, 8)).add(1)
    outside = p.report.tree().root.children[-1]
    assert outside.name.startswith(("(outside: copy", "(outside: ones"))
    assert "add" in outside.name  # it is named too, however little time it takes
    assert "empty" not in outside.name


def test_a_loss_is_no_work_of_the_model() -> None:
    net = nn.Sequential(nn.Linear(8, 4))
    with fxflops.profile(net) as p:
        nn.functional.cross_entropy(net(torch.ones(2, 8)), torch.zeros(2, dtype=torch.long)).backward()
    text = str(p.report.tree())
    outside = next(line for line in text.splitlines() if "(outside: " in line)
    assert "cross_entropy" in outside
    assert "(own: " not in text
    assert sum(row.flops for row in p.report.tree().root.children) == p.report.total_flops


def test_a_profile_tells_its_state() -> None:
    net = nn.Linear(8, 4)
    p = fxflops.profile(net)
    assert repr(p) == "<profile of Linear: there is no report until the with block has ended>"
    with p:
        assert repr(p) == "<profile of Linear: its with block is running>"
        net(torch.ones(2, 8))
    assert repr(p) == f"<profile: {p.report!r} in p.report>"


def test_a_report_has_the_name_that_was_asked_for(report: fxflops.Report) -> None:
    named = report.with_name("timm:resnet18")
    assert str(named).startswith("Sequential (timm:resnet18)   input")
    assert repr(named).startswith("<Report Sequential (timm:resnet18): ")
    assert named.provenance.startswith("timm:resnet18 · fxflops ")
    assert fxflops.Report.from_dict(named.to_dict()).provenance == named.provenance
    assert named.model == report.model == "Sequential"


def test_provenance(report: fxflops.Report) -> None:
    where = report.environment
    assert (where.fxflops, where.torch, where.threads) == (
        fxflops.__version__,
        torch.__version__,
        torch.get_num_threads(),
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", where.date)
    assert where.processor
    assert report == fxflops.count(model(16), torch.ones(2, 8))  # whatever their dates


def test_attention_is_named_where_there_is_any(report: fxflops.Report) -> None:
    assert "attention" not in str(report)
    assert " · convention fxflops, attention dense · " in str(fxflops.count(Attention(), torch.ones(1, 2, 4, 8)))


def test_the_share_of_the_peak_is_said_of_a_device_that_is_listed() -> None:
    net = nn.Sequential(nn.Linear(1000, 1000, bias=False), nn.ReLU())
    report = fxflops.analyze(net, torch.ones(67, 1000), repeats=1, progress=False)
    place, timing = "cuda:0 (NVIDIA A100-SXM4-80GB)", Timing(1e-4, 1e-4, 1e-4, 1)
    run = replace(report._run, environment=report.environment._replace(device=place), latency=timing)
    on_gpu = fxflops.Report(run, report._convention, report._registry, None)
    # 2 x 67 MMACs in 0.1 ms are 1.34 TFLOP/s, of 19.5 in f32
    assert "; 7% of the device's peak; slowest: module 0," in str(on_gpu).replace("\n    ", "; ")
    assert "of peak" not in str(report)  # a CPU's peak would have to be measured first


def test_pages_and_pictures_say_where_they_come_from() -> None:
    report = fxflops.analyze(model(16), torch.ones(2, 8), repeats=0, progress=False).with_name("mine")
    assert report.provenance in str(report.to_html())
    assert report.provenance in str(report.to_svg())


def test_columns_are_headed_by_what_the_convention_counts() -> None:
    report = fxflops.count(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.ones(2, 4))
    thop, flops = report.recount("thop"), report.recount("deepspeed")
    for make in ("tree", "by_module", "by_operator", "by_step", "by_dtype", "by_module_and_operator"):
        shown = str(getattr(thop, make)()).splitlines()[0]
        assert "thop MACs" in shown
        assert "FLOPs" not in shown
        assert "FLOPs" in str(getattr(flops, make)()).splitlines()[0]
    assert "thop MACs" in str(thop.table).splitlines()[0]
    assert "thop MACs" in thop.to_markdown()
    assert "thop MACs" in thop.tree()._repr_html_()
    assert thop.tree(columns="flops").to_dicts()[0]["flops"] == thop.total_flops  # the keys of data stay the same


def test_a_module_of_a_report_shows_itself_as_a_line() -> None:
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU())
    report = fxflops.count(model, torch.ones(10, 10))
    macs = 10 * 10 * 20
    # 200 sums of ten products have nine additions each.
    layer = f"{2 * macs - 200:,} FLOPs, {macs:,} MACs, calls: 1"
    assert repr(report["0"]) == f"0 (Linear): 200 params, {layer}"
    assert str(report[""]) == f"(root) (Sequential): 200 params, {2 * macs:,} FLOPs, {macs:,} MACs, calls: 1"
    assert repr(report.by_operator()["linear"]) == f"linear: {layer}"
    assert (report["0"].macs, report.by_operator()["linear"].flops) == (macs, 2 * macs - 200)
    assert ("0" in report, "2" in report) == (True, False)
    with pytest.raises(TypeError, match=r"macs, params = report\.total_macs"):
        iter(report)


class OneOfThree(nn.Module):
    """Calls one layer twice, and never calls the other two."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(self.a(x))  # type: ignore[no-any-return]


def test_the_conclusion_is_of_modules_that_ran() -> None:
    assert "100% of FLOPs in a (Linear);" in str(fxflops.count(OneOfThree(), torch.ones(2, 8)))


def test_the_parameters_of_operations_add_up_where_a_module_is_called_twice() -> None:
    table = fxflops.count(OneOfThree(), torch.ones(2, 8)).table
    params = [column.key for column in table.columns].index("params")
    assert [row[params] for row in table] == [8 * 8 + 8, 0]


def test_a_model_that_computes_nothing_has_its_modules() -> None:
    class Idle(OneOfThree):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert str(fxflops.count(Idle(), torch.ones(2, 8)).tree()).count("(not called)") == 1  # all three in one line


def test_of_steps_alone_no_module_is_said_not_to_be_called() -> None:
    net = OneOfThree()
    with fxflops.profile(net, detail="steps") as p:
        net(torch.ones(2, 8))
    tree = str(p.report.tree())
    assert "OneOfThree" in tree
    assert "not called" not in tree


def test_a_convention_without_rules_for_the_backward_has_no_figure_of_it() -> None:
    report = fxflops.count(OneOfThree(), torch.ones(2, 8), backward=True)
    assert report.total_backward_flops
    forward = report.recount("deepspeed")
    assert (forward.total_backward_flops, forward.total_training_flops) == (None, None)
    assert "backward 0" not in str(forward)
    timed = fxflops.analyze(OneOfThree(), torch.ones(2, 8), backward=True, repeats=1, progress=False)
    assert timed.backward_timing
    assert " of the forward · " in str(timed.recount("deepspeed"))
    assert "training FLOPs -" not in str(forward.diff(report))
    # The weight's gradient twice, and the gradient between the two calls.
    assert report.recount("torch").total_backward_flops == 3 * (2 * 2 * 8 * 8)


def test_macs_that_a_convention_counts_as_zero_are_told_as_a_share() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.weight = nn.Linear(8, 8, bias=False), nn.Parameter(torch.ones(8, 24))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) @ self.weight

    for convention, said in (
        ("thop", "75% of the MACs count as 0"),
        ("fvcore", ""),
        ("fxflops", ""),
        ("torchinfo", "75%"),
    ):
        text = str(fxflops.count(Written(), torch.ones(4, 8), convention=convention))
        assert ("count as 0" in text) == bool(said), convention
        assert said in text

"""Reports written and read again are equal, with all of their views, also in a process that knows nothing of the model."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops import InputError, Report, analyze, count, profile
from fxflops.conventions import CONVENTIONS, Convention
from fxflops.meters.timing import Timing
from fxflops.names import Absent
from fxflops.records import PHASES, Cost, Count, Spec
from fxflops.report.budget import budgets_of
from fxflops.report.saved import VERSION
from fxflops.report.values import Named, encoded
from tests.fresh import Fresh

LIBRARY = torch.library.Library("fxflops_saved", "DEF")
LIBRARY.define("scan(Tensor x) -> Tensor")
LIBRARY.impl("scan", lambda x: x.cumsum(0), "CPU")
LIBRARY.impl("scan", torch.empty_like, "Meta")


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Unknown(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.fxflops_saved.scan(x @ x.T)


class Strange(nn.Module):
    """Calls with arguments of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.functional.gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[..., 1::2, None].to(torch.float64).clamp(min=-float("inf"), max=1.5)
        y = y.to(memory_format=torch.contiguous_format).new_zeros((2, 3), device=x.device)
        return self.act(y) + (y * (1 + 2j)).real.sum(dim=(0, 1), keepdim=True)


class Attention(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, mask)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self(x)[-1:]
        return x


class Own(nn.Linear):
    """Counted by a user's formula."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


class OwnConvention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.layer = Own(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.own(x))


def seven(module: Any, x: Spec, *, out: Spec) -> int:
    return 7


def trained() -> Report:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(model, optimizer=optimizer) as p:
        for _ in range(2):
            model(torch.randn(2, 3, 8, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return p.report


def generated() -> Report:
    model = Generator()
    with profile(model) as p:
        model.generate(torch.randn(4, 6))
    return p.report


BLOCKS = nn.Sequential(Block(8), Block(8), nn.Linear(8, 2))
SHARED = nn.Linear(4, 4)
RECURRENT = nn.LSTM(4, 5, num_layers=2, bidirectional=True, proj_size=2)


def on_a_gpu() -> Report:
    """A run with times as if from an H100, so that its utilization is known without a measurement."""
    report = analyze(nn.Linear(64, 64), torch.randn(8, 64), backward=True, repeats=1)
    took = Timing(1e-5, 1e-5, 1e-5, 1)
    where = report.environment._replace(device="cuda:0 (NVIDIA H100 80GB HBM3)")
    run = dataclasses.replace(report._run, environment=where, latency=took, backward_latency=took)
    return Report(run, report._convention, report._registry, None)


REPORTS: dict[str, Callable[[], Report]] = {
    "analyzed": lambda: analyze(BLOCKS, torch.randn(3, 8), repeats=2),
    "counted": lambda: count(BLOCKS, torch.randn(3, 8)),
    "on a gpu": on_a_gpu,
    "backward": lambda: analyze(BLOCKS, torch.randn(3, 8), backward=True, repeats=1),
    "counted backward": lambda: count(BLOCKS, torch.randn(3, 8), backward=True),
    "untimed": lambda: analyze(BLOCKS, torch.randn(3, 8), repeats=0),
    "incomplete": lambda: analyze(Unknown(), torch.randn(3, 8), repeats=1),
    "strange": lambda: analyze(Strange(), torch.randn(2, 6), repeats=1),
    "training": trained,
    "steps": generated,
    "exact": lambda: count(Attention(), (torch.randn(1, 2, 5, 4), torch.ones(5, 5).tril() > 0), attention="exact"),
    "recurrent": lambda: count(RECURRENT, torch.randn(7, 2, 4)),
    "shared": lambda: count(nn.Sequential(SHARED, nn.ReLU(), SHARED), torch.randn(2, 4)),
    "thop": lambda: count(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(2, 3, 8, 8), convention="thop"
    ),
    "ptflops": lambda: count(BLOCKS, torch.randn(3, 8), convention="ptflops"),
    "user's": lambda: count(OwnConvention(), torch.randn(2, 4), formulas={Own: seven}, convention="fvcore"),
    "nothing": lambda: count(nn.Identity(), torch.randn(2)),
    "quantities": lambda: count(nn.Embedding(9, 4), torch.tensor([[1, 2], [3, 4]])),
    "sparse": lambda: analyze(nn.Linear(4, 4), torch.eye(4).to_sparse(), repeats=1),
}
NUMBERS = [name for name in dir(Report) if name.startswith("total_")] + [
    "latency", "timing", "backward_timing", "max_memory", "memory", "live_at_peak", "timeline", "params", "nodes", "model",
    "inputs", "trace", "trace_reason", "environment", "convention", "attention", "complete", "missing",
]  # fmt: skip


def views(report: Report) -> dict[str, Any]:
    """Everything that a report shows, except its calls."""
    seen = {name: getattr(report, name) for name in NUMBERS}
    for phase in PHASES:
        for by in ("by_operator", "by_dtype", "by_module_and_operator"):
            seen[f"{by} {phase}"] = getattr(report, by)(phase)
        if phase == PHASES[0] or report.by_operator(phase):
            seen[f"by_module {phase}"] = report.by_module(phase)
    return seen | {
        "steps": report.by_step(),
        "text": str(report),
        "repr": repr(report),
        "tree": str(report.tree()),
        "html": report._repr_html_(),
        "recipe": report.recipe(),
        "csv": report.to_csv(),
        "markdown": report.to_markdown(),
        "latex": report.to_latex(),
        "trace file": report.to_chrome_trace(),
        "dict": report.to_dict(),
        "sources": (report.memory.source, report.memory.at),
    }


@pytest.fixture(scope="module", params=REPORTS, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report]:
    report = REPORTS[request.param]()
    path = tmp_path_factory.mktemp("saved") / "report.json"
    report.save(path)
    return report, Report.load(path)


def test_the_sample_is_of_all_kinds() -> None:
    assert not REPORTS["incomplete"]().complete
    assert {call.phase for call in REPORTS["training"]().calls} == {"forward", "backward", "optimizer"}
    assert list(REPORTS["steps"]().by_step())[:2] == ["prefill", "decode 1"]
    charged = REPORTS["thop"]()
    assert len(charged.counted) > 0
    assert charged.total_flops != charged.recount("fxflops").total_flops
    assert "pairs" in REPORTS["exact"]().calls[0].out.facts
    assert "nnz" in next(REPORTS["sparse"]().calls[0].inputs()).facts
    assert any(module.keeps for module in REPORTS["strange"]()._run.modules)
    assert REPORTS["analyzed"]().latency is not None


def test_a_report_read_again_is_equal_in_every_view(pair: tuple[Report, Report]) -> None:
    report, again = pair
    assert again == report
    assert hash(again) == hash(report)
    one, other = views(report), views(again)
    for name in one:
        assert other[name] == one[name], name
    assert [(c.op, c.path, c.out, c.seconds) for c in again.calls] == [
        (c.op, c.path, c.out, c.seconds) for c in report.calls
    ]
    assert [c.cost for c in again.counted] == [c.cost for c in report.counted]


def test_what_is_read_can_be_written_again(pair: tuple[Report, Report]) -> None:
    _, again = pair
    assert again.to_json() == Report.from_dict(json.loads(str(again.to_json()))).to_json()


def test_pickled_and_copied(pair: tuple[Report, Report]) -> None:
    report, _ = pair
    assert pickle.loads(pickle.dumps(report)) == report == copy.deepcopy(report)


def test_counted_anew(pair: tuple[Report, Report]) -> None:
    report, again = pair
    for name in CONVENTIONS:
        for attention in ("dense", "exact"):
            one, other = (each.recount(name, attention=attention) for each in pair)
            assert [c.cost for c in one.counted] == [c.cost for c in other.counted], (name, attention)
            assert one == other
    assert str(report.explain("fvcore", "thop")) == str(again.explain("fvcore", "thop"))


def test_roofline_and_difference(pair: tuple[Report, Report]) -> None:
    report, again = pair
    if report.calls:
        assert str(report.roofline("H100")) == str(again.roofline("H100"))
        assert report._mfu("H100") == again._mfu("H100")
    assert all(change.difference in (0, None) for change in report.diff(again).totals.values())


def test_reports_differ_where_a_time_does(tmp_path: Path) -> None:
    report = REPORTS["analyzed"]()
    data = report.to_dict()
    data["calls"][1]["seconds"] *= 2
    assert Report.from_dict(data) != report
    assert report != str(report)


def test_what_calls_share_is_written_and_read_once() -> None:
    """So that neither time nor memory grows with what many equal layers repeat."""
    report = count(nn.Sequential(*(nn.Linear(4, 4) for _ in range(9))), torch.randn(2, 4))
    data = report.to_dict()
    again = Report.from_dict(json.loads(json.dumps(data)))
    assert len({id(call["settings"]) for call in data["calls"]}) == 1
    assert len({id(part) for call in again.calls for part in (call.settings, call.out)}) == 2
    assert len({id(each.rule) for each in again.counted}) == 1


def test_what_is_equal_in_python_is_not_the_same_in_a_file() -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add(1).add(True).add(1.0)

    report = count(Adds(), torch.randn(2))
    again = Report.from_dict(json.loads(report.to_json() or ""))
    assert [type(call.args[1]) for call in again.calls] == [int, bool, float]


CODE = """
import json, sys
from fxflops import Report
report = Report.load(sys.argv[1])
assert report == Report.from_dict(report.to_dict())
assert "tests" not in " ".join(sys.modules) and "test_saved" not in sys.modules
print(json.dumps({
    "json": report.to_json(),
    "text": str(report),
    "flops": {c: report.recount(c).total_flops for c in sys.argv[2:]},
    "types": [c.target.__mro__[1].__name__ for c in report.calls if isinstance(c.target, type)],
}))
"""


def test_in_a_process_that_lacks_the_model_and_the_formulas(tmp_path: Path, fresh: Fresh) -> None:
    model = nn.Sequential(OwnConvention(), nn.Sequential(Own(4, 4)), Unknown())
    report = count(model, torch.randn(2, 4), formulas={Own: seven}, convention="thop")
    report.save(tmp_path / "report.json")
    run = fresh.run("-c", CODE, str(tmp_path / "report.json"), *CONVENTIONS)
    assert run.returncode == 0, run.stderr
    there = json.loads(run.stdout)
    assert there["json"] == report.to_json()
    assert there["text"] == str(report)
    assert there["flops"] == {c: report.recount(c).total_flops for c in CONVENTIONS}
    assert there["types"].count("Linear") == 2  # two calls of Own, whose base class is Linear


WITHOUT_TORCH = """
import json, sys
from fxflops.counting import steps
steps.TOO_FAR_APART = float("inf")  # as in this process
from fxflops.report.report import Report
from fxflops.report.budget import budgets_of
reports = {path: Report.load(path) for path in sys.argv[1:]}
first = next(iter(reports.values()))
seen = {path: [
    str(report), str(report.table), str(report.by_module()), str(report.by_operator()), str(report.by_dtype()),
    str(report.by_step()), str(report.tree()), report._repr_html_(), str(report.diff(first)), repr(report),
    report.to_json(), report.to_chrome_trace(), str(budgets_of(report, max_flops=1)),
] for path, report in reports.items()}
assert "torch" not in sys.modules
flops = {path: report.recount("torch").total_flops for path, report in reports.items()}
bounds = {path: str(report.roofline("H100")) for path, report in reports.items() if report.calls and report.complete}
assert "torch" in sys.modules
print(json.dumps([seen, flops, bounds]))
"""


def test_in_a_process_without_torch(tmp_path: Path) -> None:
    """Reports of all kinds show the same there. Views that need formulas load them, and torch with them."""
    reports = {}
    for number, make in enumerate(REPORTS.values()):
        reports[str(tmp_path / f"{number}.json")] = report = make()
        report.save(tmp_path / f"{number}.json")
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *reports],
        capture_output=True, text=True, check=False, cwd=Path(fxflops.__file__).parents[1],
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    seen, flops, bounds = json.loads(run.stdout)
    first = next(iter(reports.values()))
    for path, report in reports.items():
        views = (
            report, report.table, report.by_module(), report.by_operator(), report.by_dtype(), report.by_step(),
            report.tree(), report._repr_html_(), report.diff(first), repr(report), report.to_json(),
            report.to_chrome_trace(), budgets_of(report, max_flops=1),
        )  # fmt: skip
        for there, here in zip(seen[path], map(str, views), strict=True):
            assert there == here
        assert flops[path] == Report.load(path).recount("torch").total_flops
        if path in bounds:
            assert bounds[path] == str(report.roofline("H100"))
    assert len(bounds) > 10


def test_a_dtype_by_its_name_is_as_torch_s() -> None:
    dtypes = [dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)]
    assert len(dtypes) > 20
    for dtype in dtypes:
        named = Named(str(dtype).removeprefix("torch."))
        for fact in ("itemsize", "is_floating_point", "is_complex", "__str__"):
            there, here = getattr(dtype, fact), getattr(named, fact)
            assert (there() if callable(there) else there) == (here() if callable(here) else here), (dtype, fact)


def test_formulas_of_ones_own_for_a_report_that_was_read() -> None:
    report = count(OwnConvention(), torch.randn(2, 4), formulas={Own: seven})
    again = Report.from_dict(report.to_dict())
    linear = 2 * 4 * (4 + 4)
    assert again.total_flops == linear + 7
    assert again.recount("torch").total_flops == report.recount("torch").total_flops == 2 * (2 * 4 * 4) + 7
    nine = again.recount(formulas={Own: lambda module, x, *, out: 9})
    assert nine.total_flops == linear + 9
    assert Report.from_dict(nine.to_dict()).recount("torch").total_flops == 2 * (2 * 4 * 4) + 9


def test_what_only_the_model_knows() -> None:
    class Widened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width = 3
            self.table = {"a": 5}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    def by_width(module: Any, x: Spec, *, out: Spec) -> Cost:
        return Cost(muls=module.width * out.numel())

    def by_table(module: Any, x: Spec, *, out: Spec) -> Cost:
        return Cost(muls=module.table["a"] * out.numel())

    model = Widened()
    report = count(model, torch.randn(4), formulas={Widened: by_width})
    assert report.total_flops == 12
    # The class is local to a function, so it cannot be found by name. The file's stand-in takes its place.
    again = Report.from_dict(report.to_dict())
    [stand_in] = {call.target for call in again.calls}
    assert again.recount(formulas={stand_in: lambda module, x, *, out: module.width}).total_flops == 3
    with pytest.raises(
        fxflops.FormulaError, match=r"does not contain the attribute 'table'.*Report\.load\(path, model=model\)"
    ):
        again.recount(formulas={stand_in: by_table})
    live = Report.from_dict(report.to_dict(), model)
    [stand_in] = {call.target for call in live.calls}
    assert live.recount(formulas={stand_in: by_table}).total_flops == 20


def test_a_convention_of_ones_own_is_known_by_name() -> None:
    halves = Convention("halves", "half", of=lambda cost, call: Cost(macs=cost.macs, others=cost.macs // 2))
    report = count(BLOCKS, torch.randn(3, 8), convention=halves)
    again = Report.from_dict(report.to_dict())
    assert (again.convention, again.total_flops) == ("halves", report.total_macs // 2)
    with pytest.raises(InputError, match="only the name of the convention 'halves', not the convention's rules"):
        again.recount(attention="exact")
    assert again.recount(halves) == report


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "not an fxflops report"),
        ('{"traceEvents": []}', "not an fxflops report"),
        (f'{{"schema": "fxflops.report", "schema_version": {VERSION + 1}}}', f"reads only version {VERSION}"),
        ('{"schema": "fxflops.report"}', "schema_version None"),
        (f'{{"schema": "fxflops.report", "schema_version": {VERSION}}}', "damaged: KeyError: 'classes'"),
    ],
)
def test_what_is_no_report(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(InputError, match=said):
        Report.load(tmp_path / "report.json")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data["calls"][0].pop("op"),
        lambda data: data["calls"][0].update(args=[{"tensor": [[2], "no_dtype"]}]),
        lambda data: data["calls"][0].update(args=[{"dtype": "load"}]),
        lambda data: data["calls"][0].update(args=[{"unheard of": 1}]),
        lambda data: data["calls"][0].update(args=[{"device": "no such"}]),
        lambda data: (
            data["classes"].update({"a:A": {"bases": ["a:A"], "forward": None}}) or data["scopes"][0].update(cls="a:A")
        ),
        lambda data: data["calls"].append(5),
        lambda data: data["calls"].pop(),
        lambda data: data.update(environment={"device": "cpu"}),
        lambda data: data["charges"].append({}),
    ],
)
def test_a_damaged_report(spoil: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(json.dumps(REPORTS["counted"]().to_dict()))
    spoil(data)
    with pytest.raises(InputError, match="the report is damaged"):
        Report.from_dict(data)


def test_nothing_named_in_a_file_is_imported_or_called(tmp_path: Path) -> None:
    data = json.loads(json.dumps(REPORTS["counted"]().to_dict()))
    assert str(Report.from_dict(data).recount("thop"))  # this imports whatever reading a report imports
    for i, name in enumerate(["os:system", "antigravity:fly", "this:d", "subprocess:run", "__main__:x.y"]):
        data["calls"][i]["target"] = name
    data["scopes"][0]["cls"] = "antigravity:Fly"
    before = set(sys.modules)
    report = Report.from_dict(data)
    assert str(report)
    assert report.recount("thop").total_flops >= 0
    assert set(sys.modules) - before == set()


def test_suffixes(tmp_path: Path) -> None:
    report = REPORTS["counted"]()
    for name, begin in {
        "a.json": '{"schema":"fxflops.report"',
        "a.csv": "node,op,module",
        "a.md": "| module | class |",
        "a.tex": "% fxflops ",
        "a.trace.json": '{"traceEvents":',
        "A.PERFETTO": '{"traceEvents":',
    }.items():
        report.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf8").startswith(begin), name
    for name in ("report", "report.xlsx", "report.json.gz"):
        with pytest.raises(
            InputError,
            match=r"\.trace\.json, \.perfetto, \.json, \.csv, \.md, \.tex, \.html, \.svg, \.png, \.pdf, \.pickle",
        ):
            report.save(tmp_path / name)
        assert not (tmp_path / name).exists()


def test_totals_are_there_for_other_readers(tmp_path: Path) -> None:
    report = REPORTS["backward"]()
    report.save(tmp_path / "report.json")
    totals = json.loads((tmp_path / "report.json").read_text())["totals"]
    assert totals["total_flops"] == report.total_flops
    assert totals["total_backward_flops"] == report.total_backward_flops
    assert totals["latency"] == report.latency
    assert totals["mfu"] is None  # a CPU's peak would have to be measured
    # 2 MACs x 8 rows of 64 x 64 in the forward, and as many for the weight's gradient, in 2e-5 s at 67 TFLOP/s
    assert on_a_gpu().to_dict()["totals"]["mfu"] == pytest.approx(2 * 2 * 8 * 64 * 64 / 2e-5 / 67e12)
    assert "% of the device's peak" in str(on_a_gpu())
    assert set(NUMBERS) & {name for name in dir(Report) if name.startswith("total_")} <= set(totals)


def test_words_that_stand_for_objects_are_kept_words() -> None:
    class Text(str):
        __slots__ = ()

    assert encoded((Text("x"), True, 3, object())) == ["x", True, 3, "<object>"]


def test_two_formulas_of_one_name_keep_their_own_words() -> None:
    assert [Count(Cost(), Absent("lost:f", words)).how for words in ("one way", "another")] == [
        "one way",
        "another",
    ]

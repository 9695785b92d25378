from __future__ import annotations

import json
import re
from base64 import b64decode
from dataclasses import replace
from gzip import decompress
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import Report, analyze, count, profile, units
from fxflops.meters.history import CATEGORIES, Moment
from fxflops.render.data import Summary, TreeRow
from fxflops.render.page import cards, page, policy
from fxflops.render.page_data import (
    MOST_CALLS,
    MOST_MOMENTS,
    MOST_TILES,
    MemoryTimeline,
    Metric,
    Op,
    Page,
    Tile,
    payload,
    place_of_peak,
    shallow,
    thinned,
)
from fxflops.roofline.devices import Device

ATTACK = "</script><img src=x onerror=alert(1)>"
DEVICE = Device("cpu", peaks={"f32": 1e11}, bandwidth=1e10)


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


@pytest.fixture(scope="module")
def trained():
    model = nn.Sequential(Block(16), Block(16), nn.Linear(16, 4))
    return analyze(model, torch.randn(8, 16), backward=True, repeats=2)


@pytest.fixture(scope="module")
def data(trained):
    return payload(trained._page(DEVICE))


def totals(data, name):
    """Return the value of each tile, including the tiles inside it."""
    tiles = data["tiles"]
    found = list(tiles["own"][name])
    for i in range(len(found) - 1, 0, -1):
        found[tiles["parent"][i]] += found[i]
    return found


def at(data, path):
    words = data["words"]
    return next(
        i
        for i, (p, c) in enumerate(zip(data["tiles"]["path"], data["tiles"]["cls"], strict=True))
        if words[p] == path and words[c]
    )


# The data of the page


def test_tiles_add_up_to_the_reports_modules(trained, data):
    for path, row in trained.by_module().items():
        assert totals(data, "flops forward")[at(data, path)] == row.total.flops
        assert totals(data, "macs forward")[at(data, path)] == row.total.macs
        assert totals(data, "params")[at(data, path)] == row.params
        assert totals(data, "time forward")[at(data, path)] == pytest.approx(row.total.seconds or 0, rel=1e-4)
    for path, row in trained.by_module("backward").items():
        assert totals(data, "flops backward")[at(data, path)] == row.total.flops


def test_memory_of_the_tiles_is_the_peak(trained, data):
    assert totals(data, "memory")[0] == trained.max_memory
    assert totals(data, "memory")[at(data, "0")] >= 4 * trained["0"].params


def test_parameters_of_unequal_size_are_a_tile_of_their_own():
    report = count(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).half().float().double().float()), torch.ones(2, 8))
    assert "(params)" not in payload(report._page())["words"]
    mixed = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 7).double())
    mixed[1].forward = lambda x: nn.functional.linear(x.double(), mixed[1].weight, mixed[1].bias)
    report = analyze(mixed, torch.ones(2, 8), repeats=0, trace="record")
    found = payload(report._page())
    place = found["tiles"]["name"].index(found["words"].index("(params)"))
    assert found["tiles"]["own"]["memory"][place] == report.memory["params"]
    assert totals(found, "memory")[0] == report.max_memory


def test_calls_are_the_reports_in_run_order(trained, data):
    calls, words = data["calls"], data["words"]
    assert calls["n"] == list(range(len(trained.counted)))
    assert calls["flops"] == [each.flops for each in trained.counted]
    assert calls["macs"] == [each.macs for each in trained.counted]
    assert [words[i] for i in calls["op"]] == [each.call.op for each in trained.counted]
    assert [words[i] for i in calls["path"]] == [each.call.path for each in trained.counted]
    assert [words[i] for i in calls["phase"]] == [each.call.phase for each in trained.counted]
    assert calls["seconds"] == pytest.approx([each.call.seconds for each in trained.counted], rel=1e-4)


def test_calls_have_their_place_under_the_roofline(trained, data):
    for phase in ("forward", "backward"):
        found = trained.roofline(DEVICE, phase)
        mine = [i for i, p in enumerate(data["calls"]["phase"]) if data["words"][p] == phase]
        assert [data["calls"]["work"][i] for i in mine] == [row.flops for row in found.rows]
        assert [data["calls"]["bytes"][i] for i in mine] == [row.bytes for row in found.rows]
        assert [data["words"][data["calls"]["binds"][i]] for i in mine] == [row.binds for row in found.rows]
        bounds = {kind: row.bound_seconds for kind, row in found.by_bound().items()}
        roofline = trained._page(DEVICE).roofline
        assert {kind: values[0] for kind, values in roofline.bounds[phase].items()} == pytest.approx(bounds)
        assert roofline.peaks == {"f32": 1e11}
    assert data["is_prediction"] is False


def test_operators_are_summed_by_phase(trained, data):
    ops, words = data["operators"], data["words"]
    found = {(words[ops["phase"][i]], words[ops["op"][i]]): ops["flops"][i] for i in range(len(ops["op"]))}
    for phase in ("forward", "backward"):
        for name, row in trained.by_operator(phase).items():
            assert found[phase, name] == row.total.flops


def test_memory_has_its_course_and_its_owners(trained, data):
    shown, memory = trained._page(DEVICE).memory, data["memory"]
    assert (shown.peak, shown.peak_at) == (trained.max_memory, trained.memory.at)
    for name in CATEGORIES:
        if name in memory["live"]:
            assert memory["live"][name] == [moment.live[name] for moment in trained.timeline]
    assert sum(owner.bytes for owner in shown.owners) == trained.max_memory
    assert next(owner for owner in shown.owners if owner.category == "params").tensors == 14


def test_only_what_was_measured_can_be_chosen():
    with torch.device("meta"):
        model, x = nn.Linear(4, 4), torch.empty(2, 4)
    report = count(model, x)
    found = payload(report._page())
    assert [metric["key"] for metric in found["metrics"]] == ["flops", "macs", "params", "memory"]
    assert found["is_prediction"] is None
    assert "No roofline: nothing was timed." in page(report._page())


def test_a_device_named_gives_a_prediction_of_what_was_not_timed():
    report = count(nn.Linear(64, 64), torch.ones(8, 64))
    shown = report._page("H100")
    assert payload(shown)["is_prediction"]
    assert "least time" in [card.label for card in cards(shown)]


def test_several_models_and_steps_add_up_too():
    encoder, decoder = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 8)
    with torch.no_grad(), profile({"encoder": encoder, "decoder": decoder}) as p:
        for _ in range(2):
            decoder(encoder(torch.randn(1, 5, 8))[0] + 1)
    found = payload(p.report._page())
    assert totals(found, "flops forward")[0] == p.report.total_flops
    assert totals(found, "macs forward")[at(found, "encoder")] == p.report["encoder"].total.macs


# Pages with too much data


def many(tiles=2, calls=2, states=0) -> Page:
    metric = Metric("flops", "FLOPs", "count", "forward")
    listed = [Tile("M", "M", "", None, 1, "", {})]
    for i in range(tiles - 1):
        parent = 0 if i % 10 == 0 else len(listed) - 1  # chains of ten
        listed.append(Tile(f"m{i}", "Module", f"some.module.of.layer.m{i}", parent, 1, "linear", {metric.name: i}))
    ops = [
        Op("forward", "linear", f"some.module.of.layer.m{i}", 1, i, 2 * i, 1e-6 * i + 1e-9, f"f32[{i}] → f32[{i}]", 2 * i, 8 * i, 1e-7 * i, "f32", "memory")
        for i in range(calls)
    ]  # fmt: skip
    course = MemoryTimeline(
        [Moment("a", "b", "forward", {"params": i}) for i in range(states)], states, "a", (), "storages"
    )
    root = TreeRow("", "M", "", 1, 0, 0, sum(op.flops for op in ops))
    summary = Summary("M", "", "", root, "fxflops", "dense", calls, calls)
    return Page(summary, [metric], listed, ops, [], course)


def test_a_page_of_50_000_calls_stays_small_and_says_what_it_shows():
    shown = many(tiles=20_000, calls=50_000, states=50_000)
    found = payload(shown)
    assert len(found["calls"]["n"]) == MOST_CALLS
    assert found["calls_in_all"] == 50_000
    assert found["calls"]["n"] == list(range(45_000, 50_000))  # the longest
    assert found["calls_share"]["flops"] == pytest.approx(1 - 0.9**2, rel=1e-3)
    assert len(found["tiles"]["name"]) <= MOST_TILES
    assert "deeper modules are included in the tiles" in page(shown)
    assert sum(found["tiles"]["own"]["flops forward"]) == sum(range(19_999))
    assert len(found["memory"]["at"]) <= MOST_MOMENTS + 1
    assert len(page(shown)) < 500_000


def test_what_is_not_counted_is_never_left_out():
    ops = [Op("forward", "linear", "", 1, 1, 1, 1.0)] * MOST_CALLS
    ops += [Op("forward", "scan", "", 1, 0, 0, None, missing="no formula")]
    assert MOST_CALLS in payload(replace(many(), calls=ops))["calls"]["n"]


def test_modules_too_deep_are_added_to_those_they_are_in():
    tiles = [
        Tile("M", "M", "", None, 1, "", {}),
        Tile("a", "A", "a", 0, 1, "", {}),
        Tile("b", "B", "b", 0, 1, "relu", {"flops": 5}),
        Tile("c", "C", "a.c", 1, 1, "linear", {"flops": 7}),
        Tile("d", "D", "a.c.d", 3, 1, "conv", {"flops": 2, "params": 1}),
    ]
    kept = shallow(tiles, 3)
    assert [tile.name for tile in kept] == ["M", "a", "b"]
    assert kept[1].own == {"flops": 9, "params": 1}
    assert kept[1].op == "linear"
    assert shallow(tiles, 5) == tiles


def test_thinning_keeps_the_highest_and_the_peak():
    states = [Moment("", "", "forward", {"params": i % 7, "inputs": 1}) for i in range(1000)]
    kept = thinned(states, 10, always=3)
    assert 3 in kept
    assert len(kept) <= 11
    assert all(states[i].total == 7 for i in kept if i != 3)
    assert thinned([], 10, 0) == []


def test_the_peak_is_marked_in_its_module():
    states = [Moment(path, "", "forward", {"params": size}) for path, size in (("a", 9), ("b", 5), ("b", 7))]
    assert place_of_peak(MemoryTimeline(states, 10, "b", (), "")) == 2
    assert place_of_peak(MemoryTimeline(states, 10, "elsewhere", (), "")) == 0


# The page


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._data = self._in = ""
        self.feed(text)
        self.close()

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(decompress(b64decode(self._data)))

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        self._in = "data" if dict(attrs).get("id") == "data" else tag

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in == "data":
            self._data += data
        elif self._in not in ("script", "style"):
            self.text += data + "\n"


def test_the_summary_says_how_much_where_how_fast(trained):
    shown = trained._page(DEVICE)
    text = Elements(page(shown)).text
    labels = [card.label for card in cards(shown)]
    assert labels == [*("FLOPs", "MACs", "training FLOPs", "params", "latency", "peak memory", "speed", "utilization")]
    exact = {card.label: card.exact for card in cards(shown)}
    assert exact["FLOPs"] == f"{trained.total_flops:,}"
    assert exact["training FLOPs"] == f"{trained.total_training_flops:,}"
    assert exact["peak memory"] == f"{trained.max_memory:,} bytes"
    assert "complete:" in text
    assert "by operator" in text


def test_the_conclusion_and_a_title_come_first(trained):
    text = Elements(str(trained.to_html(device=DEVICE, title="Mine <1>"))).text
    assert text.index("Mine <1>") < text.index("Sequential ·") < text.index(" in the ") < text.index("training FLOPs")
    assert "<title>Mine &lt;1&gt; · fxflops</title>" in str(trained.to_html(title="Mine <1>"))


def test_the_lines_of_a_loop_are_on_its_page():
    with profile(nn.Linear(8, 8)) as p:
        torch.ones(2)
    lines = [["/home/me/train.py:7", "main", 0.5], ["<typed in>:2", "<module>", 0.25]]
    text = str(Report.from_dict({**p.report.to_dict(), "lines": lines}).to_html())
    assert "/home/me/train.py:7 <small>main</small>" in text
    assert '&lt;typed in&gt;:2 <small>&lt;module&gt;</small></th><td class="n">250.0 ms</td>' in text
    assert 'style="width:50.00%"' in text
    assert "Lines of code" not in str(p.report.to_html())


def test_steps_have_their_parts():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(model, optimizer=optimizer) as p:
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
    text = str(p.report.to_html())
    steps = p.report.step_times()
    longest = max(step.seconds for step in steps.values())
    for name, step in steps.items():
        assert f'<th scope="row">{name}</th>' in text
        if step.backward:
            assert f'class="part backward" style="width:{100 * step.backward / longest:.2f}%"' in text


def test_optimizer_state_is_listed_by_its_kinds():
    shown = count(nn.Linear(8, 8), torch.ones(2, 8), backward=True, optimizer=torch.optim.Adam)._page()
    kinds = {owner.op: (owner.bytes, owner.tensors) for owner in shown.memory.owners if owner.category == "optimizer"}
    assert kinds == {"exp_avg": (4 * 72, 2), "exp_avg_sq": (4 * 72, 2), "step": (4 * 2, 2)}


def test_it_loads_nothing_and_admits_only_its_own_scripts(trained):
    text = trained.to_html(device=DEVICE)
    found = Elements(text)
    links = [a[name] for _, a in found.seen for name in ("src", "href", "srcset", "data") if name in a]
    assert links == []
    rule = next(a["content"] for t, a in found.seen if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert rule is not None
    assert rule.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in rule
    assert "unsafe" not in rule.partition("style-src")[0]
    assert "http:" not in text
    assert "https:" not in text
    assert len(text.encode()) < 250_000


def test_the_policy_names_the_hash_of_each_script():
    assert "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='" in policy([""])  # the hash of an empty text


def named_badly() -> nn.Module:
    inner = type(ATTACK, (nn.Module,), {"forward": lambda self, x: x + 1})()
    outer = type(ATTACK, (nn.Sequential,), {})()
    outer.add_module(ATTACK, inner)
    outer.add_module("%{customdata[1]}<b>bold</b>", nn.Linear(4, 4))
    return outer


def test_every_chart_is_there_without_a_script(trained):
    text = str(trained.to_html(device=DEVICE))
    charts = re.findall(r'<svg class="chart"[^>]* aria-label="([^"]*)"', text)
    assert charts[:2] == ["FLOPs of the forward by module", "Sequential · FLOP/s on cpu"]
    assert {*charts[2:]} == {"memory over the run"}


def test_the_other_metrics_are_in_the_compressed_data(trained):
    page = Elements(str(trained.to_html(device=DEVICE)))
    places = [(a["data-key"], a["data-phase"], "hidden" in a) for _, a in page.seen if "data-key" in a]
    assert places[:3] == [("flops", "forward", False), ("flops", "backward", True), ("flops", "", True)]
    assert places[-2:] == [("params", "-", True), ("memory", "-", True)]
    icicles = page.data["icicles"]
    assert len(icicles) == len(places) - 1
    assert f"FLOPs of all phases: {units.count(trained.total_training_flops)} in all." in icicles[1]
    assert "params by module" in icicles[-2]


def test_names_of_the_model_stay_names():
    found = Elements(count(named_badly(), torch.ones(2, 4)).to_html())
    assert "img" not in [tag for tag, _ in found.seen]
    assert not any(name.startswith("on") for _, attributes in found.seen for name in attributes)
    assert ATTACK in found.data["words"]
    assert ATTACK in found.text


def test_control_characters_are_made_visible():
    model = nn.Sequential()
    model.add_module("a\u202eb\n\ud800", nn.Linear(4, 4))
    text = count(model, torch.ones(2, 4)).to_html()
    assert "a\\u202eb\\n\\ud800" in Elements(text).data["words"]
    text.encode()


def test_what_is_missing_comes_first_with_the_lines_to_paste():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.numpy() + 1) * 2

    report = analyze(nn.Sequential(nn.Linear(4, 4), Odd()), torch.ones(2, 4), repeats=1)
    assert not report.complete
    text = Elements(report.to_html()).text
    assert text.index("INCOMPLETE") < text.index("not counted:") < text.index("MACs")
    assert "≥" in text


def test_lines_to_paste_are_shown():
    from torch.library import custom_op

    @custom_op("fxpage::scan", mutates_args=())
    def scan(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    scan.register_fake(torch.empty_like)

    class Scanned(nn.Module):
        def forward(self, x):
            return torch.ops.fxpage.scan(x)

    report = count(Scanned(), torch.ones(2, 4))
    text = Elements(report.to_html()).text
    assert "To count it, paste where the model is made:" in text
    assert report.recipe() in text


def test_it_is_written_to_a_path_and_returned_without(tmp_path, trained):
    path = tmp_path / "report.html"
    assert trained.to_html(path, device=DEVICE) is None
    assert path.read_bytes().decode() == trained.to_html(device=DEVICE)


def test_notebooks_show_tree_operators_and_calls(trained):
    found = Elements(trained._repr_html_())
    tags = [tag for tag, _ in found.seen]
    assert tags.count("table") == 3
    assert "script" not in tags
    assert not any({"src", "href", "id"} & set(attributes) for _, attributes in found.seen)
    assert f"{trained.by_operator()['linear'].total.flops:,}" in trained._repr_html_()
    assert f"{len(trained.counted)} calls, most expensive first" in found.text


def test_remarks_are_on_the_page_and_in_a_notebook() -> None:
    model = nn.Linear(4, 4)
    with profile(model) as p:
        nn.functional.relu(torch.ones(2))
    said = "the model was never called in the block: all calls are outside the model"
    assert said in str(p.report)
    assert f'<p class="note remark">{said}</p>' in str(p.report.to_html())
    assert f"<p>{said}</p>" in p.report._repr_html_()

"""The page, and the block for notebooks, as a browser shows them; skipped where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from fxflops import analyze, count, units
from fxflops.render.data import Summary, TreeRow
from fxflops.render.page import page as rendered
from fxflops.render.page_data import Metric, Op, Page, Tile
from fxflops.report.html import plotly_script
from fxflops.roofline.devices import Device

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ATTACK = "</script><img src=x onerror=alert(1)>"
TEMPLATE = "%{customdata[1]}<b>bold</b>&lt;"
DEVICE = Device("cpu", peaks={"f32": 1e11}, bandwidth=1e10)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright to drive a browser")
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    with playwright.sync_playwright() as p:
        if found is None and not Path(p.chromium.executable_path).exists():
            pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
        launched = p.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


class Opened:
    """A page, and everything that went wrong in it or that it asked for."""

    def __init__(self, browser, text: str, path: Path, wait: str = "html[data-drawn]", scheme: str = "light") -> None:
        path.write_text(text, encoding="utf8")
        self.page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(wait, state="attached", timeout=60_000)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def column(self, name: str) -> list[str]:
        """The cells under a header of the table, as shown."""
        heads = [head.strip() for head in self.texts("#table th")]
        return self.texts(f"#table tbody tr:not(.gap) td:nth-child({heads.index(name) + 1})")

    def titles(self, name: str) -> list[str | None]:
        heads = [head.strip() for head in self.texts("#table th")]
        cells = self.page.locator(f"#table tbody tr:not(.gap) td:nth-child({heads.index(name) + 1})")
        return [cell.get_attribute("title") for cell in cells.all()]

    def choose(self, name: str, within: str) -> None:
        """By the keyboard: charts that are drawn as they come into sight may move a button from under the mouse."""
        radio = self.page.locator(within).get_by_role("radio", name=name, exact=True)
        radio.focus()
        radio.press("Space")
        self.page.wait_for_function("radio => radio.checked", arg=radio.element_handle())


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(36, 36), nn.GELU()) for _ in range(4)))

    def forward(self, x):
        return self.blocks(self.conv(x).flatten(2)) + 1


@pytest.fixture(scope="module")
def trained():
    return analyze(Small(), torch.randn(2, 3, 8, 8), backward=True, repeats=2)


@pytest.fixture(scope="module")
def opened(browser, trained, tmp_path_factory):
    return Opened(browser, trained.to_html(device=DEVICE), tmp_path_factory.mktemp("page") / "report.html")


def test_nothing_goes_wrong_and_nothing_is_loaded(opened):
    assert opened.wrong == []
    assert [url for url in opened.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in opened.asked if url.startswith("file:")]) == 1


def test_what_can_be_read_is_there_before_the_charts(opened):
    ready, drawn = (int(opened.page.locator("html").get_attribute(f"data-{name}")) for name in ("ready", "drawn"))
    assert ready < drawn


def test_every_chart_is_drawn(opened):
    for name in ("where", "roofline", "course"):
        opened.page.locator(f"#{name}").scroll_into_view_if_needed()
        opened.page.wait_for_selector(f"#{name} svg.main-svg")
        assert opened.page.locator(f"#{name} svg.main-svg").count() > 0
    assert any("0..3 x4" in text for text in opened.page.locator("#where text").all_text_contents())
    assert any("peak" in text for text in opened.page.locator("#course text").all_text_contents())
    assert not [
        title
        for title in opened.page.locator(".modebar-btn").all()
        if "Share" in str(title.get_attribute("data-title"))
    ]
    assert any("f32 100.0 GFLOP/s" in text for text in opened.page.locator("#roofline text").all_text_contents())


def test_a_metric_is_switched(opened, trained):
    opened.choose("params", "#where-controls")
    assert f"params: {units.count(trained.total_params)} in all" in opened.page.locator("#where-note").inner_text()
    opened.choose("treemap", "#where-controls")
    assert opened.page.locator("#where g.treemaplayer").count() == 1
    opened.choose("FLOPs", "#where-controls")
    opened.choose("backward", "#where-controls")
    shown = opened.page.locator("#where-note").inner_text()
    assert f"FLOPs of the backward: {units.count(trained.total_backward_flops)} in all" in shown
    opened.choose("each", "#where-controls")
    assert opened.wrong == []


def test_the_table_is_sorted_both_ways(opened, trained):
    opened.choose("calls", "#ops-controls")
    opened.choose("forward", "#ops-controls")
    exact = sorted((each.flops for each in trained.counted if each.call.phase == "forward"), reverse=True)
    opened.page.get_by_role("button", name="FLOPs", exact=True).click()
    assert opened.titles("FLOPs") == [f"{flops:,}" for flops in exact]
    assert opened.page.locator("#table th[aria-sort=descending]").inner_text().strip() == "FLOPs"
    opened.page.keyboard.press("Enter")  # the header has the focus
    assert opened.titles("FLOPs") == [f"{flops:,}" for flops in reversed(exact)]
    opened.page.get_by_role("button", name="operator", exact=True).click()
    assert opened.column("operator") == sorted(opened.column("operator"))


def test_the_table_is_searched(opened, trained):
    opened.choose("calls", "#ops-controls")
    opened.choose("forward", "#ops-controls")
    opened.page.get_by_label("search").fill("linear BLOCKS.2")
    assert opened.column("module") == ["blocks.2.0"]
    assert opened.column("operator") == ["linear"]
    row = next(each for each in trained.counted if each.call.path == "blocks.2.0")
    assert opened.titles("MACs") == [f"{row.macs:,}"]
    assert "1 of " in opened.page.locator("#ops-note").inner_text()
    opened.page.get_by_label("search").fill("")


def test_phases_and_views_of_the_table(opened, trained):
    opened.choose("by operator", "#ops-controls")
    opened.choose("backward", "#ops-controls")
    flops = dict(zip(opened.column("operator"), opened.titles("FLOPs"), strict=True))
    assert flops == {name: f"{row.total.flops:,}" for name, row in trained.by_operator("backward").items()}
    opened.choose("by module", "#ops-controls")
    opened.choose("forward", "#ops-controls")
    rows = dict(zip(opened.titles("module"), opened.titles("FLOPs"), strict=True))
    assert rows["blocks"] == f"{trained['blocks'].total.flops:,}"
    assert rows["Small"] == f"{trained.total_flops:,}"
    assert opened.wrong == []


def test_controls_are_worked_by_the_keyboard(opened):
    first = opened.page.locator("#where-controls").get_by_role("radio", name="FLOPs", exact=True)
    first.focus()
    first.check()
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.locator("#where-note").inner_text().startswith("MACs")
    assert opened.page.locator("#where-controls fieldset legend").first.inner_text() == "size by"


def test_it_follows_the_colours_of_the_system(browser, opened, trained, tmp_path):
    def back(shown):
        return shown.page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = Opened(browser, trained.to_html(device=DEVICE), tmp_path / "dark.html", scheme="dark")
    assert back(dark) != back(opened)
    dark.page.emulate_media(color_scheme="light")
    assert back(dark) == back(opened)
    assert dark.wrong == []


def test_names_from_the_model_do_no_harm(browser, tmp_path):
    inner = type(ATTACK, (nn.Module,), {"forward": lambda self, x: x + 1})()
    outer = type(ATTACK, (nn.Sequential,), {})()
    outer.add_module(ATTACK, inner)
    outer.add_module(TEMPLATE, nn.Linear(4, 4))
    opened = Opened(browser, count(outer, torch.ones(2, 4)).to_html(device="H100"), tmp_path / "attack.html")
    opened.page.wait_for_timeout(200)
    assert opened.wrong == []
    assert opened.page.locator("img").count() == 0
    assert (
        opened.page.evaluate("[...document.querySelectorAll('*')].filter(e => e.hasAttribute('onerror')).length") == 0
    )
    drawn = opened.page.locator("#where text").all_text_contents()
    assert any(text.startswith(ATTACK) for text in drawn)
    assert any(text.startswith(TEMPLATE) for text in drawn)
    opened.page.locator("#where g.slice", has_text="bold").last.hover()
    opened.page.wait_for_selector("#where .hoverlayer text")
    assert TEMPLATE in "".join(opened.page.locator("#where .hoverlayer text").all_text_contents())
    opened.choose("by module", "#ops-controls")
    assert ATTACK in opened.titles("module")


def test_a_big_table_has_only_the_rows_in_sight(browser, tmp_path):
    ops = [Op("forward", "linear", f"layer.{i}", 1, i, 2 * i) for i in range(50_000)]
    root = TreeRow("", "Big", "", 1, 0, 0, sum(op.flops for op in ops))
    summary = Summary("Big", "", "", root, "fxflops", "dense", 50_000, 50_000)
    tiles = [Tile("Big", "Big", "", None, 1, "", {"flops forward": 1})]
    data = Page(summary, [Metric("flops", "FLOPs", "count", "forward")], tiles, ops, ops[:1])
    opened = Opened(browser, rendered(data, plotly_script()), tmp_path / "big.html")
    assert opened.page.locator("#table tbody tr").count() < 100
    assert opened.column("module")[0] == "layer.49999"
    assert "Only the 5,000 most expensive of 50,000 calls" in opened.page.locator("#ops-note").inner_text()
    opened.page.locator("#table").evaluate("table => { table.scrollTop = table.scrollHeight }")
    opened.page.wait_for_selector("#table td[title='layer.45000']")
    assert opened.page.locator("#table tbody tr").count() < 100
    assert opened.wrong == []


def test_modules_alike_are_together_whatever_took_longest_in_them(browser, tmp_path):
    metric = Metric("flops", "FLOPs", "count", "forward")
    tiles = [Tile("M", "M", "", None, 1, "", {})]
    for i in range(3):
        place = len(tiles)
        tiles.append(Tile(str(i), "Block", str(i), 0, 1, "", {}))
        tiles.append(Tile("fc", "Linear", f"{i}.fc", place, 1, "linear", {metric.name: 80}))
        tiles.append(Tile(f"(own: {'add' if i else 'mul'} +1)", "", str(i), place, 0, "add", {metric.name: 20}))
    tiles.append(Tile("3", "Block", "3", 0, 1, "linear", {metric.name: 100}))
    summary = Summary("M", "", "", TreeRow("", "M", "", 1, 0, 0, 400), "fxflops", "dense", 1, 1)
    data = Page(summary, [metric], tiles, [], [Op("forward", "linear", "", 4, 0, 400)])
    opened = Opened(browser, rendered(data, plotly_script()), tmp_path / "alike.html")
    drawn = opened.page.locator("#where text").all_text_contents()
    assert "0..2 x3  75.0%" in drawn
    assert "fc  60.0%" in drawn
    opened.choose("each", "#where-controls")
    opened.page.wait_for_timeout(300)
    assert opened.page.locator("#where g.slice").count() == 11
    assert opened.wrong == []


def test_a_level_that_says_nothing_new_is_not_drawn(browser, tmp_path):
    net = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))), nn.Linear(4, 40))
    opened = Opened(browser, count(net, torch.ones(2, 4)).to_html(), tmp_path / "nested.html")
    drawn = opened.page.locator("#where text").all_text_contents()
    assert "0.0  28.6%" in drawn  # 2 x 4 x 8 + 2 x 8 x 4 = 128 products of 448
    assert opened.page.locator("#where g.slice").count() == 5
    assert opened.wrong == []


def test_tiles_are_entered_by_the_keyboard(opened):
    opened.choose("icicle", "#where-controls")
    opened.choose("FLOPs", "#where-controls")
    opened.page.wait_for_timeout(300)
    assert opened.page.locator("#where g.slice[tabindex='0']").count() == 1
    opened.page.locator("#where g.slice[tabindex='0']").focus()

    def label():
        return opened.page.evaluate("document.activeElement.getAttribute('aria-label')")

    assert label().startswith("Small")
    opened.page.keyboard.press("ArrowRight")
    first = label()
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowUp")
    assert label() == first != "Small"
    opened.page.keyboard.press("ArrowDown")
    entered = label()
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_timeout(1500)
    path = " ".join(opened.page.locator("#where g.pathbar text").all_text_contents())
    assert entered.split("  ")[0].split(" ")[0] in path + " ".join(
        opened.page.locator("#where g.slice").first.all_text_contents()
    )
    opened.page.keyboard.press("Enter")
    assert opened.wrong == []


def test_the_dearest_calls_are_labelled(opened, trained):
    opened.page.locator("#roofline").scroll_into_view_if_needed()
    opened.page.wait_for_selector("#roofline svg.main-svg")
    forward = [each for each in trained.counted if each.call.phase == "forward" and each.flops]
    dearest = max(forward, key=lambda each: each.call.seconds).call
    assert f"{dearest.op} {dearest.path}" in opened.page.locator("#roofline .annotation-text").all_text_contents()


def test_memory_begins_at_zero_and_has_the_constant_part(browser, tmp_path):
    big = nn.Sequential(nn.Linear(512, 512), nn.ReLU())
    opened = Opened(browser, count(big, torch.ones(1, 512)).to_html(), tmp_path / "big.html")
    opened.page.locator("#course").scroll_into_view_if_needed()
    opened.page.wait_for_selector("#course svg.main-svg")
    # 4 x (512 x 512 + 512) bytes of parameters, and 4 x 512 of the input.
    ticks = opened.page.locator("#course .ytick text").all_text_contents()
    assert ticks[:2] == ["0 B", "1 MiB"]
    assert any(
        "params 1.00 MiB · inputs 2.00 KiB" in t for t in opened.page.locator("#course text").all_text_contents()
    )
    opened.choose("everything", "#memory-controls")
    assert opened.page.locator("#course .ytick text").all_text_contents()[0] == "0 B"
    assert opened.wrong == []


def test_a_narrow_page_keeps_its_labels(browser, trained, tmp_path):
    opened = Opened(browser, trained.to_html(device=DEVICE), tmp_path / "narrow.html")
    opened.page.set_viewport_size({"width": 400, "height": 800})
    opened.page.reload()
    opened.page.locator("#where").scroll_into_view_if_needed()
    opened.page.wait_for_selector("#where g.slice text", state="attached")
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 400
    shown = opened.page.locator("#where g.slice text").evaluate_all(
        "texts => texts.filter(text => text.getBoundingClientRect().width > 0).map(text => text.textContent)"
    )
    assert any("100.0%" in text for text in shown)
    assert any("0..3" in text for text in shown)


def test_without_scripts_the_summary_can_be_read(browser, trained, tmp_path):
    path = tmp_path / "plain.html"
    path.write_text(trained.to_html(device=DEVICE), encoding="utf8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    text = page.locator("body").inner_text()
    assert "complete:" in text
    assert "% of peak; " in text.split("training FLOPs")[0]  # the conclusion comes first
    assert "training FLOPs" in text
    assert "does not run here" in text


def test_reports_in_one_notebook_are_sorted_each_for_itself(browser, trained, tmp_path):
    text = f"<!doctype html><meta charset=utf-8>{trained._repr_html_()}{count(Small(), torch.ones(1, 3, 8, 8))._repr_html_()}"
    opened = Opened(browser, text, tmp_path / "notebook.html", wait=".fxflops")
    first, second = (block.locator("table.ops").first for block in opened.page.locator(".fxflops").all())

    def names(table):
        return table.locator("tbody tr td:first-child").all_inner_texts()

    before = names(second)
    first.get_by_role("button", name="operator").click()
    assert names(first) == sorted(names(first))
    assert first.locator("th[aria-sort=ascending]").inner_text().startswith("operator")
    first.get_by_role("button", name="operator").click()
    assert names(first) == sorted(names(first), reverse=True)
    assert names(second) == before
    assert opened.wrong == []


def test_text_is_on_the_left_in_jupyter_too(browser, trained, tmp_path):
    theirs = ":not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td { text-align: right }"
    block = f'<div class="jp-RenderedHTMLCommon">{trained.tree()._repr_html_()}</div>'
    opened = Opened(browser, f"<!doctype html><style>{theirs}</style>{block}", tmp_path / "jupyter.html", wait=".tree")
    sides = opened.page.locator("tbody tr:first-child td").evaluate_all(
        "all => all.map(td => getComputedStyle(td).textAlign)"
    )
    assert sides == ["left"] + ["right"] * (len(sides) - 1)


def test_the_last_line_of_a_cell_shows_the_report(monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="no nbclient to run a notebook")
    pytest.importorskip("ipykernel", reason="no ipykernel to run a notebook")
    from nbformat.v4 import new_code_cell, new_notebook

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    cell = (
        "import torch\nfrom torch import nn\nfrom fxflops import TorchFLOPsByFX\n"
        "TorchFLOPsByFX(nn.Sequential(nn.Linear(4, 8), nn.GELU())).propagate(torch.ones(2, 4))"
    )
    notebook = new_notebook(cells=[new_code_cell(cell), new_code_cell(cell)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    for done in notebook.cells:
        shown = done.outputs[-1].data["text/html"]
        assert "<details open>" in shown
        assert 'class="bar"' in shown
        assert " operators</summary>" in shown
        assert "onclick" in shown
        assert "<script" not in shown
        assert done.outputs[-1].data["text/plain"].startswith("<Report Sequential")

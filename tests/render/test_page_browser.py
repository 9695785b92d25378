"""The page, and the block for notebooks, as a browser shows them. Skipped without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from fxflops import analyze, count, units
from fxflops.render.data import Summary, TreeRow
from fxflops.render.page import page as rendered
from fxflops.render.page_data import Metric, Op, Page, Tile
from fxflops.roofline.devices import Device
from tests.browsers import launched_browser

ATTACK = "</script><img src=x onerror=alert(1)>"
TEMPLATE = "%{customdata[1]}<b>bold</b>&lt;"
DEVICE = Device("cpu", peaks={"f32": 1e11}, bandwidth=1e10)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def browser():
    with launched_browser() as launched:
        yield launched


class Opened:
    """A page, with every error it logged and every request it made."""

    def __init__(self, browser, text: str, path: Path, wait: str = "html[data-ready]", scheme: str = "light") -> None:
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

    def drawn(self, selector: str) -> list[str]:
        """The visible texts of a chart; SVG has no inner text."""
        return self.page.locator(f"{selector} text:visible").all_text_contents()

    def column(self, name: str) -> list[str]:
        """Return the cells under a header of the table, as shown."""
        heads = [head.strip() for head in self.texts("#table th")]
        return self.texts(f"#table tbody tr:not(.gap) td:nth-child({heads.index(name) + 1})")

    def titles(self, name: str) -> list[str | None]:
        heads = [head.strip() for head in self.texts("#table th")]
        cells = self.page.locator(f"#table tbody tr:not(.gap) td:nth-child({heads.index(name) + 1})")
        return [cell.get_attribute("title") for cell in cells.all()]

    def choose(self, name: str, within: str) -> None:
        """Use the keyboard: a chart is drawn when it comes into view, which may move a button away from the mouse."""
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


def test_every_chart_is_drawn_with_a_script_or_without(browser, opened, trained, tmp_path):
    (tmp_path / "plain.html").write_text(trained.to_html(device=DEVICE), encoding="utf8")
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto((tmp_path / "plain.html").as_uri())
    for page in (opened.page, plain):
        for name, said in (("where", "0..3 x4"), ("course", "peak"), ("roofline", "f32 100.0 GFLOP/s")):
            chart = page.locator(f"#{name} svg.chart:visible")
            assert chart.count() == 1
            assert any(said in text for text in chart.locator("text").all_text_contents())
            assert chart.bounding_box()["width"] > 1000


def test_the_graph_unfolds(opened):
    opened.page.get_by_text("The graph, coloured by FLOPs").click()
    image = opened.page.locator("#graph")
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    opened.page.get_by_text("The graph, coloured by FLOPs").click()
    assert opened.wrong == []


def test_a_metric_is_switched(opened, trained):
    note = opened.page.locator("#where .note:visible")
    opened.choose("params", "#where-controls")
    assert f"params: {units.count(trained.total_params)} in all" in note.inner_text()
    assert not opened.page.locator("#where-controls").get_by_text("phase").is_visible()
    opened.choose("FLOPs", "#where-controls")
    opened.choose("backward", "#where-controls")
    assert f"FLOPs of the backward: {units.count(trained.total_backward_flops)} in all" in note.inner_text()
    opened.choose("all", "#where-controls")
    assert f"FLOPs of all phases: {units.count(trained.total_training_flops)} in all" in note.inner_text()
    opened.choose("forward", "#where-controls")
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
    assert opened.page.locator("#where .note:visible").inner_text().startswith("MACs")
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
    opened.page.locator("#where .tile:visible", has_text="bold").last.hover()
    assert TEMPLATE in opened.page.locator("#tip").inner_text()
    opened.choose("by module", "#ops-controls")
    assert ATTACK in opened.titles("module")


def test_a_big_table_has_only_the_rows_in_sight(browser, tmp_path):
    ops = [Op("forward", "linear", f"layer.{i}", 1, i, 2 * i) for i in range(50_000)]
    root = TreeRow("", "Big", "", 1, 0, 0, sum(op.flops for op in ops))
    summary = Summary("Big", "", "", root, "fxflops", "dense", 50_000, 50_000)
    tiles = [Tile("Big", "Big", "", None, 1, "", {"flops forward": 1})]
    data = Page(summary, [Metric("flops", "FLOPs", "count", "forward")], tiles, ops, ops[:1])
    opened = Opened(browser, rendered(data), tmp_path / "big.html")
    assert opened.page.locator("#table tbody tr").count() < 100
    assert opened.column("module")[0] == "layer.49999"
    assert "Only the 5,000 most expensive of 50,000 calls" in opened.page.locator("#ops-note").inner_text()
    opened.page.locator("#table").evaluate("table => { table.scrollTop = table.scrollHeight }")
    opened.page.wait_for_selector("#table td[title='layer.45000']")
    assert opened.page.locator("#table tbody tr").count() < 100
    assert opened.wrong == []


def test_a_module_is_entered_and_left(opened):
    opened.choose("FLOPs", "#where-controls")
    tiles = opened.page.locator("#where .tile:visible")
    before = tiles.count()
    block = opened.page.locator("#where .tile.module:visible", has_text="0..3 x4")
    block.click()
    assert tiles.count() < before
    assert block.bounding_box()["height"] > 400
    assert opened.texts("#where .path:visible button") == ["Small"]
    opened.page.locator("#where .path:visible button").click()
    assert tiles.count() == before
    assert opened.texts("#where .path button") == []
    block.click()
    block.click()  # the entered module itself leads out again
    assert tiles.count() == before
    assert opened.wrong == []


def test_a_tile_says_what_it_is_to_the_pointer_and_the_focus(opened):
    tip = opened.page.locator("#tip")
    conv = opened.page.locator("#where .tile:visible", has_text="conv").first
    conv.hover()
    assert tip.inner_text().startswith("conv\nConv2d\n")
    opened.page.mouse.move(5, 5)
    assert not tip.is_visible()
    opened.page.keyboard.press("Tab")
    opened.page.locator("#where .tile:visible[tabindex='0']").focus()
    opened.page.keyboard.press("ArrowRight")
    assert tip.is_visible()
    opened.page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_tiles_are_entered_by_the_keyboard(opened):
    def label():
        return opened.page.evaluate("document.activeElement.getAttribute('aria-label')")

    assert opened.page.locator("#where .tile:visible[tabindex='0']").count() == 1
    root = opened.page.locator("#where .tile:visible").first
    root.focus()
    assert label().startswith("Small")
    opened.page.keyboard.press("ArrowRight")
    first = label()
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowUp")
    assert label() == first
    opened.page.keyboard.press("ArrowDown")
    entered = label()
    opened.page.keyboard.press("Enter")
    assert opened.texts("#where .path:visible b")[0].startswith(entered.split(",")[0].split(".")[0])
    assert label() == entered
    opened.page.keyboard.press("Enter")
    assert opened.texts("#where .path button") == []
    assert opened.wrong == []


def test_the_calls_of_a_phase_are_shown_and_the_dearest_labelled(opened, trained):
    for phase in ("backward", "forward"):
        opened.choose(phase, "#speed-controls")
        rows = [row for row in trained.roofline(DEVICE, phase).rows if row.flops and row.bytes and row.seconds]
        assert opened.page.locator("#roofline .dot:visible").count() == len(rows)
        dearest = max(rows, key=lambda row: row.seconds)
        assert any(text.startswith(dearest.op) for text in opened.drawn("#roofline"))
    opened.page.locator("#roofline .dot:visible").first.hover()
    assert "FLOP/B" in opened.page.locator("#tip").inner_text()
    assert opened.wrong == []


def test_memory_says_what_is_alive(opened, trained):
    opened.choose("everything", "#memory-controls")
    chart = opened.page.locator("#course svg.chart:visible")
    chart.focus()
    opened.page.keyboard.press("End")
    last = trained.timeline[-1]
    assert chart.get_attribute("aria-valuetext").startswith(f"{units.size(last.total)} after {last.op} in ")
    opened.page.keyboard.press("Home")
    first = trained.timeline[0]
    assert chart.get_attribute("aria-valuetext").startswith(f"{units.size(first.total)} after {first.op} in ")
    chart.hover()
    assert "params" in opened.page.locator("#tip").inner_text()
    assert opened.wrong == []


def test_memory_begins_at_zero_and_has_the_constant_part(browser, tmp_path):
    big = nn.Sequential(nn.Linear(512, 512), nn.ReLU())
    opened = Opened(browser, count(big, torch.ones(1, 512)).to_html(), tmp_path / "big.html")
    # 4 x (512 x 512 + 512) bytes of parameters, and 4 x 512 of the input.
    texts = opened.drawn("#course")
    assert {"0 B", "1 MiB", "params 1.00 MiB · inputs 2.00 KiB, throughout (not to scale)"} <= {*texts}
    opened.choose("everything", "#memory-controls")
    assert {"0 B", "1 MiB"} <= {*opened.drawn("#course")}
    assert not any("throughout" in text for text in opened.drawn("#course"))
    assert opened.wrong == []


def test_a_narrow_page_keeps_its_labels(browser, trained, tmp_path):
    opened = Opened(browser, trained.to_html(device=DEVICE), tmp_path / "narrow.html")
    opened.page.set_viewport_size({"width": 400, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 400
    shown = opened.drawn("#where")
    assert any("100.0%" in text for text in shown)
    assert any("0..3" in text for text in shown)
    assert opened.page.locator("#where svg.chart:visible").bounding_box()["width"] < 400


def test_it_prints_on_a_few_pages_with_the_first_rows(browser, tmp_path):
    ops = [
        Op("forward", "linear", f"model.layers.{i}.mlp.down_proj", 1, i, 2 * i, 1e-3, "f32[1,128,256] → f32[1,128,688]")
        for i in range(2000)
    ]
    root = TreeRow("", "Big", "", 1, 0, 0, sum(op.flops for op in ops))
    summary = Summary("Big", "", "", root, "fxflops", "dense", 2000, 2000)
    tiles = [Tile("Big", "Big", "", None, 1, "", {"flops forward": 1})]
    data = Page(summary, [Metric("flops", "FLOPs", "count", "forward")], tiles, ops, ops[:1])
    opened = Opened(browser, rendered(data), tmp_path / "printed.html")
    pdf = opened.page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 3
    assert opened.page.locator("#table tbody tr:not(.gap)").count() < 100  # only the visible rows again
    opened.page.emulate_media(media="print")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.page.set_viewport_size({"width": 720, "height": 1000})  # A4 without margins
    assert opened.page.locator("#table tbody tr").count() == 40
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 720
    assert opened.wrong == []


def test_without_scripts_the_summary_can_be_read(browser, trained, tmp_path):
    path = tmp_path / "plain.html"
    path.write_text(trained.to_html(device=DEVICE), encoding="utf8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    text = page.locator("body").inner_text()
    assert "complete:" in text
    assert "% of the device's peak; " in text.split("training FLOPs")[0]  # the conclusion comes first
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

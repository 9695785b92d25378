"""The page of ranks: bars by hand, the rank that it names, escaped names."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fxflops.render.columns import Column
from fxflops.render.exports import Table
from fxflops.render.ranks_page import MOST_BARS, RankFigures, conclusion, ranks_page

GIB, MIB = 2**30, 2**20
PAIR = [
    RankFigures("rank 0", 1, 1000, 1.0, {"params": GIB, "activations": GIB}, {"dp": 3 * MIB, "tp": MIB}),
    RankFigures("rank 1", 1, 1000, 3.0, {"params": GIB, "activations": 3 * GIB}, {"dp": 3 * MIB, "tp": MIB}),
]
KINDS = [RankFigures("pp 0", 6, 100, None, {"params": 10}, {}), RankFigures("pp <b>", 2, 300, None, {}, {"pp": None})]
TABLE = Table(
    "ranks", (Column("rank", "rank"), Column("flops", "FLOPs", "flops"), Column("none", "none")), (("<i>", 1500, None),)
)


def page(ranks: list[RankFigures], **more: str) -> str:
    return ranks_page("", "Net on 2 processes", ranks, {"Ranks": TABLE}, complete=True, origin="torch 9", **more)


def bars(text: str, heading: str) -> list[list[float]]:
    """Return the widths of each rank's bars, in the section with this id."""
    section = text.partition(f'id="{heading}-title"')[2].partition("</section>")[0]
    return [[float(each) for each in re.findall(r"width:([\d.]+)%", row)] for row in section.split("</tr>")[:-1]]


def test_the_conclusion_names_the_rank_with_the_most_or_what_all_have() -> None:
    # The mean of 1 s and 3 s is 2 s, the mean of 2 GiB and 4 GiB is 3 GiB. 6 of 8 MiB are sent along dp.
    assert conclusion(PAIR, "400 FLOPs, most in mlp") == (
        "slowest: rank 1, 3.00 s, 1.50x the mean; each computes 1.00 kFLOPs; highest peak: rank 1, 4.00 GiB, 1.33x the mean; "
        "each sends 4.00 MiB, 75% of it in dp; repeated: 400 FLOPs, most in mlp"
    )
    # Six ranks of 100 and two of 300 FLOPs: the mean is 150.
    assert conclusion(KINDS) == "most work: pp <b>, 300 FLOPs, 2.00x the mean; the bytes sent are unknown"


def test_bars_are_as_long_as_the_numbers() -> None:
    text = page(PAIR)
    assert bars(text, "time") == [[33.33], [100.0]]
    assert bars(text, "peak-memory") == [[25.0, 25.0], [25.0, 75.0]]
    assert bars(text, "bytes-sent") == [[75.0, 25.0], [75.0, 25.0]]
    assert '<dd title="8,388,608">8.00 <small>MiB</small></dd>' in text
    kinds = page(KINDS)
    assert bars(kinds, "flops") == [[33.33], [100.0]]
    assert '<dd title="1,200">1.20 <small>kFLOPs</small></dd>' in kinds  # 6 x 100 + 2 x 300
    for unknown in ("time", "peak-memory", "bytes-sent"):
        assert f'id="{unknown}-title"' not in kinds


def test_names_are_escaped_and_no_script_may_run() -> None:
    text = page(KINDS)
    assert "<b>" not in text
    assert "<i>" not in text
    assert "pp &lt;b&gt; <small>x2</small>" in text
    assert "<script" not in text
    assert "onclick" not in text
    assert "script-src 'none'" in text
    assert '<th scope="col" class="n">FLOPs</th></tr>' in text  # columns without values are left out


def test_of_many_ranks_those_with_the_most_are_drawn() -> None:
    ranks = [RankFigures(f"rank {i}", 1, i, None, {}, {}) for i in range(2 * MOST_BARS)]
    text = page(ranks)
    assert len(bars(text, "flops")) == MOST_BARS
    assert ">rank 47<" in text
    assert ">rank 3<" not in text
    assert f"{MOST_BARS} of {2 * MOST_BARS} ranks are shown, those with the largest values." in text


def test_a_browser_finds_nothing_wrong_and_room_for_it(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright to drive a browser")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no browser is installed")
    (tmp_path / "ranks.html").write_text(page(PAIR), encoding="utf8")
    wrong: list[str] = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=found, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 400, "height": 800})
        tab.on("console", lambda message: wrong.append(message.text))
        tab.goto((tmp_path / "ranks.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") == 400
        widths = [each.bounding_box()["width"] for each in tab.locator("#time-title ~ div .part").all()]
        browser.close()
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.02)
    assert wrong == []

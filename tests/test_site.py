"""The documentation site builds without warnings, its links resolve, and it loads nothing from another host."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

import fxflops
from fxflops.counting.catalogue_page import catalogue, search

from .browsers import launched_browser
from .source_tree import needs_source_tree

pytestmark = needs_source_tree
ROOT = Path(__file__).parents[1]
LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src")}
"""Elements whose targets a browser loads without being asked to."""


class Page(HTMLParser):
    """The anchors of a page, its links, and the files it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.rows = 0
        self.feed(file.read_text(encoding="utf8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rows += tag == "tr"
        canonical = ("rel", "canonical") in attrs
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif value and (tag, name) in LOADED and not canonical:
                self.loads.append(value)
            elif value and (tag, name) == ("a", "href"):
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason="no mkdocs-material and mkdocstrings[python] to build the site")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # The links of 404.html begin with /.
    return {file: Page(file) for file in site.rglob("*.html") if file.name != "404.html"}


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for file, page in pages.items():
        for link in {*page.links, *page.loads}:
            if urlsplit(link).scheme:
                continue
            path, anchor = urldefrag(link)
            target = (file.parent / unquote(path.partition("?")[0])).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (anchor and target in pages and unquote(anchor) not in pages[target].anchors):
                broken.append(f"{file}: {link}")
    assert not broken


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    loaded = [load for page in pages.values() for load in page.loads]
    assert loaded
    assert not [load for load in loaded if urlsplit(load).netloc]


def test_the_reference_has_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    anchors = set().union(*(page.anchors for file, page in pages.items() if site / "reference" in file.parents))
    assert {f"fxflops.{name}" for name in fxflops.__all__} <= anchors


def test_the_table_has_every_operation(site: Path, pages: dict[Path, Page]) -> None:
    assert pages[site / "reference" / "operations" / "index.html"].rows == 1 + len(catalogue())


def test_operations_are_searched(site: Path) -> None:
    """The page finds the rows that ``fxflops ops`` finds, and also rows whose text contains the word."""
    with launched_browser() as browser:
        page = browser.new_page()
        page.goto((site / "reference" / "operations" / "index.html").as_uri() + "?op=conv2d")
        shown = page.locator("#operations tbody tr:visible")
        ops = set(shown.locator("td:first-child").all_inner_texts())
        assert {row.op for row in search("conv2d")} <= ops
        page.locator("#find").fill("conv2d nn.")
        fewer = set(shown.locator("td:first-child").all_inner_texts())
        assert "conv" in fewer < ops
        page.locator("#find").fill("no such operation")
        assert shown.count() == 0
        assert page.locator("#found").inner_text() == f"0 of {len(catalogue())}"

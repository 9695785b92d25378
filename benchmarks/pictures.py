"""The pictures of README and docs, made of real runs on the machine at hand.

    python benchmarks/pictures.py

Of the terminal (SVG, by rich) the summary and the tree of ViT-B/16, counted; of the page (PNG, by a headless Chromium through
playwright, or the one that ``CHROMIUM`` names) its report; and its graph. They are written to ``benchmarks/pictures``.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops

PICTURES = Path(__file__).parent / "pictures"
WIDTH = 104


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def taken(show: Callable[[], object], title: str, name: str) -> None:
    """A picture of what ``show`` prints on a terminal."""
    screen = Terminal()
    with mock.patch.dict(os.environ, {"COLUMNS": str(WIDTH)}), contextlib.redirect_stdout(screen):
        show()
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(screen.getvalue().rstrip()))
    svg = console.export_svg(title=title, unique_id=name)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # fonts from the network
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf8")


def page(report: fxflops.Report) -> None:
    """A picture of the page."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        path = Path(folder) / "report.html"
        report.to_html(path)
        browser = player.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 1000})
        tab.goto(path.as_uri())
        tab.wait_for_selector(".js-plotly-plot .main-svg")
        tab.wait_for_timeout(2000)
        tab.screenshot(path=PICTURES / "page.png")
        browser.close()


def main() -> None:
    import timm

    PICTURES.mkdir(exist_ok=True)
    model, image = timm.create_model("vit_base_patch16_224"), torch.randn(1, 3, 224, 224)
    counted = fxflops.count(copy.deepcopy(model).to("meta"), image)
    taken(lambda: print(counted, counted.tree(depth=3), sep="\n\n"), "ViT-B/16", "terminal")
    report = fxflops.analyze(model, image, progress=False)
    page(report)
    report.to_svg(PICTURES / "graph.svg")


if __name__ == "__main__":
    main()

"""Make the pictures of the README and the docs from real runs on this machine.

    python benchmarks/pictures.py

The pictures are written to ``benchmarks/pictures``:

- ``terminal.svg``: the summary and the tree of a count of ViT-B/16 in a terminal (drawn by rich).
- ``page.png``: the page of its report, in playwright's headless Chromium or the browser named by ``CHROMIUM``.
- ``graph.svg``: its graph.
- ``meshes.svg``: the meshes of 2,048 H100s for Llama-3 70B in a terminal.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
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
from fxflops.cli.app import app

PICTURES = Path(__file__).parent / "pictures"
WIDTH = 104


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def taken(show: Callable[[], object], title: str, name: str, width: int = WIDTH) -> None:
    """Save a picture of what ``show`` prints in a terminal."""
    screen = Terminal()
    with mock.patch.dict(os.environ, {"COLUMNS": str(width)}), contextlib.redirect_stdout(screen):
        show()
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text.from_ansi(screen.getvalue().rstrip()))
    svg = console.export_svg(title=title, unique_id=name)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # would load fonts from the network
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf8")


def meshes() -> None:
    """Save a picture of what ``fxflops mesh`` prints for Llama-3 70B (https://arxiv.org/abs/2407.21783, table 3)."""
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "vocab_size": 128256}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes, **heads}))
        asked = ["mesh", f"hf:{config}", *"--gpus 2048 --device H100 --memory 80GiB --seq 8192".split()]
        title = f"fxflops mesh hf:llama-3-70b/config.json {' '.join(asked[2:])}"
        taken(lambda: app(asked, standalone_mode=False), title, "meshes", width=190)


def page(report: fxflops.Report) -> None:
    """Save a screenshot of the report's page."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        path = Path(folder) / "report.html"
        report.to_html(path)
        browser = player.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 1000})
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
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
    report.to_svg(PICTURES / "graph.svg", chart="graph")
    meshes()


if __name__ == "__main__":
    main()

"""Time how long a browser takes to open a report's page from disk, for ViT-B/16 and ResNet-152 (over 600 modules and calls).

    python benchmarks/page_load.py [--times 5]

Each time, a headless Chromium (or the browser named by ``CHROMIUM``) starts with an empty profile and opens the file. The times
are read after ``PATIENCE`` seconds, when the page is done, because an attached debugger slows down the start of a page.
The table is ``benchmarks/results/page_load.md``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import timm
import torch
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor

RESULTS = Path(__file__).parent / "results"
MODELS = ("vit_base_patch16_224", "resnet152")
PORT, PATIENCE = 9333, 8.0
"""The port the browser listens on, and the seconds to wait before the times are read."""
BARE = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
)
MOMENTS = {
    "first paint": "performance.getEntriesByName('first-contentful-paint')[0].startTime",
    "load": "performance.getEntriesByType('navigation')[0].loadEventEnd",
    "table ready": "Number(document.documentElement.dataset.ready)",
}


def opened(page: Path) -> dict[str, float]:
    """Open the page once. Return the milliseconds from the start to each of ``MOMENTS``."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no chromium: install one, or name it in CHROMIUM")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            browser,
            *BARE,
            "--window-size=1280,900",
            f"--remote-debugging-port={PORT}",
            f"--user-data-dir={profile}",
        ]
        running = subprocess.Popen([*command, page.as_uri()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(PATIENCE)
            with sync_playwright() as player:
                asked: Any = player.chromium.connect_over_cdp(f"http://127.0.0.1:{PORT}").contexts[0].pages[0]
                return {name: asked.evaluate(moment) for name, moment in MOMENTS.items()}
        finally:
            running.terminate()
            running.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    lines = [
        "# Opening a report's page",
        "",
        f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, fxflops {fxflops.__version__}. Seconds from the start, "
        f"the least and the most of {options.times} times.",
        "",
        f"| model | modules | calls | MB | {' | '.join(MOMENTS)} |",
        "|---|" + "---:|" * (3 + len(MOMENTS)),
    ]
    for name in MODELS:
        report = fxflops.analyze(timm.create_model(name), torch.zeros(1, 3, 224, 224), progress=False)
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / f"{name}.html"
            report.to_html(page)
            found = [opened(page) for _ in range(options.times)]
            size = page.stat().st_size / 1e6
        spans = [[each[moment] / 1000 for each in found] for moment in MOMENTS]
        cells = [
            name,
            len(report.by_module()),
            len(report.calls),
            f"{size:.1f}",
            *(f"{min(s):.2f}-{max(s):.2f}" for s in spans),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        print(lines[-1], flush=True)
    (RESULTS / "page_load.md").write_text("\n".join(lines) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()

"""A browser for the tests of HTML pages: an installed one, or playwright's own. The tests are skipped if there is neither."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@contextmanager
def launched_browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright to drive a browser")
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    with playwright.sync_playwright() as p:
        if found is None and not Path(p.chromium.executable_path).exists():
            pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
        launched = p.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()

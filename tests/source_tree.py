"""Tests that need the repository's files, which an installed package, such as a wheel, does not include."""

from __future__ import annotations

from pathlib import Path

import pytest

needs_source_tree = pytest.mark.skipif(
    not (Path(__file__).parents[1] / "fxflops").is_dir(), reason="needs the source tree, not an installed package"
)

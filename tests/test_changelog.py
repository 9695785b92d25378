"""The files in changelog.d can be combined, and each ends up under its kind's heading."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADINGS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "counts": "Numbers that changed"}
EXAMPLE = re.compile(r"`changelog\.d/(\S+\.md)`")


def built(folder: Path, *options: str) -> str:
    """Build the changelog of a folder; return towncrier's output."""
    pytest.importorskip("towncrier", reason="no towncrier to build the change log")
    command = [sys.executable, "-m", "towncrier", "build", "--version", "9.9", "--date", "2026-01-02", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf8")
    assert done.returncode == 0, done.stderr  # e.g. for a file of an unknown kind
    return done.stdout


def sections(text: str) -> dict[str, str]:
    headings = re.split(r"^### (.*)\n", text, flags=re.M)
    return dict(zip(headings[1::2], headings[2::2], strict=True))


def words(text: str) -> str:
    return " ".join(text.split())


def test_each_change_is_under_its_heading() -> None:
    by_heading = sections(built(ROOT, "--draft"))
    for file in (ROOT / "changelog.d").glob("*.*.md"):
        kind = file.name.split(".")[-2]
        assert words(file.read_text(encoding="utf8")) in words(by_heading[HEADINGS[kind]]), file.name


def test_a_release_is_written_on_top(tmp_path: Path) -> None:
    """With CONTRIBUTING's example. Earlier entries stay below it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    before = (ROOT / "CHANGELOG.md").read_text(encoding="utf8")
    (tmp_path / "CHANGELOG.md").write_text(before, encoding="utf8")
    example = EXAMPLE.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf8"))
    assert example is not None
    fragment = tmp_path / "changelog.d" / example[1]
    fragment.parent.mkdir()
    fragment.write_text("`glu` counts 3 for each output, was 2.\n", encoding="utf8")
    built(tmp_path, "--yes")
    heading, _, rest = before.partition("\n## ")
    release = "\n## 9.9 (2026-01-02)\n\n### Numbers that changed\n\n- `glu` counts 3 for each output, was 2.\n"
    after = (tmp_path / "CHANGELOG.md").read_text(encoding="utf8")
    assert words(after) == words(f"{heading}{release}\n## {rest}")
    assert not fragment.exists()

"""README's code runs, block after block, and prints what the text block after it says.

python tests/test_readme.py    writes what it prints into README.md
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fxflops.ops import BASE, Table

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.S | re.M)


@pytest.fixture
def _formulas_as_before() -> Iterator[None]:
    entries = dict(BASE.entries)
    yield
    BASE.entries.clear()
    BASE.entries.update(entries)
    Table.changes += 1


def printed(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each python block with what it prints; all run in one namespace."""
    names: dict[str, Any] = {"__name__": "README"}
    for block in BLOCK.finditer(text):
        # Blank lines put the code at its own lines of the file.
        code = "\n" * text.count("\n", 0, block.start("code")) + block["code"]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(README), "exec"), names)
        yield block, "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


@pytest.mark.usefixtures("_formulas_as_before")
def test_the_code_prints_what_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # it writes files
    text = README.read_text(encoding="utf8")
    assert text.count("```python") == len(BLOCK.findall(text))
    for block, output in printed(text):
        assert output == (block["output"] or ""), block["code"]


def test_quick_start_holds_two_commands() -> None:
    section = re.search(r"^## Quick start\n(.*?)^## ", README.read_text(encoding="utf8"), re.S | re.M)
    assert section is not None
    blocks = re.findall(r"^```bash\n(.*?)^```", section[1], re.S | re.M)
    assert [len(block.splitlines()) for block in blocks] == [1, 1]


def test_links_lead_somewhere() -> None:
    for path in re.findall(r"\]\((?!http)([^)#]+)", README.read_text(encoding="utf8")):
        assert (README.parent / path).exists(), path


def refill() -> None:
    """Write what the blocks print into their text blocks."""
    text = README.read_text(encoding="utf8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        blocks = list(printed(text))
    for block, output in reversed(blocks):
        if block["output"] is not None:
            text = text[: block.start("output")] + output + text[block.end("output") :]
    README.write_text(text, encoding="utf8")


if __name__ == "__main__":
    refill()


def test_every_picture_is_there() -> None:
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", README.read_text(encoding="utf8"))
    assert pictures
    assert [name for name in pictures if not (README.parent / name).is_file()] == []

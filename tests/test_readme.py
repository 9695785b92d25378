"""README's code runs, block after block, and prints what the text block after it says; so do its command lines.

python tests/test_readme.py    writes what they print into README.md
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.pictures import Terminal
from fxflops.cli.app import app
from fxflops.ops import BASE

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.S | re.M)


CONSOLE = re.compile(
    r"^```console\n\$ fxflops (?P<command>[^\n]*)\n(?P<output>.*?)(?P<after>^\$ .*?)?^```\n", re.S | re.M
)
COMMANDS = list(CONSOLE.finditer(README.read_text(encoding="utf8")))
LEFT_OUT = "...\n\n"
"""Stands for the summary before a table."""
WIDTH = 120


@pytest.fixture
def _formulas_as_before() -> Iterator[None]:
    entries = dict(BASE.entries)
    yield
    BASE.entries.clear()
    BASE.entries.update(entries)


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


def typed(command: str) -> str:
    """What a command prints on a terminal."""
    screen = Terminal()
    with mock.patch.dict(os.environ, {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}), contextlib.redirect_stdout(screen):
        app(shlex.split(command), prog_name="fxflops", standalone_mode=False)
    return "".join(f"{line.rstrip()}\n" for line in screen.getvalue().splitlines())


def shortened(output: str, block: re.Match[str]) -> str:
    """The output as far as the block shows it."""
    return LEFT_OUT + output.rpartition("\n\n")[2] if block["output"].startswith(LEFT_OUT) else output


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block["command"])
def test_a_command_prints_what_is_written(block: re.Match[str]) -> None:
    for package in ("timm", "transformers"):
        pytest.importorskip(package)
    assert shortened(typed(block["command"]), block) == block["output"]


def test_quick_start_holds_two_commands() -> None:
    section = re.search(r"^## Quick start\n(.*?)^## ", README.read_text(encoding="utf8"), re.S | re.M)
    assert section is not None
    blocks = re.findall(r"^```bash\n(.*?)^```", section[1], re.S | re.M)
    assert [len(block.splitlines()) for block in blocks] == [1, 1]


def test_links_lead_somewhere() -> None:
    for path in re.findall(r"\]\((?!http)([^)#]+)", README.read_text(encoding="utf8")):
        assert (README.parent / path).exists(), path


def test_every_picture_is_there() -> None:
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", README.read_text(encoding="utf8"))
    assert pictures
    assert [name for name in pictures if not (README.parent / name).is_file()] == []


def refill() -> None:
    """Write what the blocks print into their text blocks."""
    text = README.read_text(encoding="utf8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        blocks = list(printed(text))
    for block, output in reversed(blocks):
        if block["output"] is not None:
            text = text[: block.start("output")] + output + text[block.end("output") :]
    for block in reversed(list(CONSOLE.finditer(text))):
        text = text[: block.start("output")] + shortened(typed(block["command"]), block) + text[block.end("output") :]
    README.write_text(text, encoding="utf8")


if __name__ == "__main__":
    refill()

"""The code and commands in README and the docs pages print exactly the output shown after them.

python tests/test_readme.py [PAGE ...]    writes what they print into these pages (default: all, and the notebook)
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.pictures import Terminal
from fxflops import calibrating
from fxflops.cli.app import app
from fxflops.ops import BASE
from tests.source_tree import needs_source_tree

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
TOUR = ROOT / "docs" / "tour.ipynb"

PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.S | re.M)
CONSOLE = re.compile(
    r"^```console\n\$ fxflops (?P<command>[^\n]*)\n(?P<output>.*?)(?P<after>^\$ .*?)?^```\n", re.S | re.M
)
BASH = re.compile(r"^```bash\n(?P<commands>(?:fxflops [^\n]*\n)+)```\n", re.M)
"""Commands shown without output; tests/cli/test_app.py runs each line."""
QUICK_START = re.compile(r"^## Quick start\n(.*?)(?=^## )", re.S | re.M)
LINK = re.compile(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```", re.S | re.M)
PROVENANCE = re.compile(r"fxflops \S+ · torch [^<]*")
LEFT_OUT = "...\n\n"
"""Replaces the summary above a table."""
WIDTH = 120
OVER_ON_PURPOSE = "--max-params 25M", "--device P4"


def read(page: Path) -> str:
    return page.read_text(encoding="utf8")


@pytest.fixture
def _formulas_as_before() -> Iterator[None]:
    entries = dict(BASE.entries)
    yield
    BASE.entries.clear()
    BASE.entries.update(entries)


def printed(page: Path) -> Iterator[tuple[re.Match[str], str]]:
    """Each python block of a page with its output. All blocks share one namespace."""
    names: dict[str, Any] = {"__name__": page.stem}
    text = read(page)
    for block in PYTHON.finditer(text):
        # Blank lines give the code the line numbers it has in the file.
        code = "\n" * text.count("\n", 0, block.start("code")) + block["code"]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(page), "exec"), names)
        yield block, "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


@pytest.fixture
def _short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the calibration in docs/prediction.md: its printed output does not depend on repeats or steps."""
    monkeypatch.setattr(calibrating, "_by_operations", partial(calibrating._by_operations, seconds=0.0, steps=30))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("_formulas_as_before", "_short_calibration")
def test_the_code_prints_what_is_written(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # the blocks write files
    for block, output in printed(page):
        assert output == (block["output"] or ""), block["code"]


def typed(command: str) -> str:
    """What a command prints on a terminal. It must succeed, except for commands that show how a limit is exceeded."""
    screen = Terminal()
    with mock.patch.dict(os.environ, {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}), contextlib.redirect_stdout(screen):
        status = app(shlex.split(command), prog_name="fxflops", standalone_mode=False)
    assert (status or 0) == int(any(each in command for each in OVER_ON_PURPOSE)), command
    return "".join(f"{line.rstrip()}\n" for line in screen.getvalue().splitlines())


def shortened(output: str, block: re.Match[str]) -> str:
    """The output, cut as in the block."""
    return LEFT_OUT + output.rpartition("\n\n")[2] if block["output"].startswith(LEFT_OUT) else output


@pytest.mark.parametrize(
    "block", [block for page in PAGES for block in CONSOLE.finditer(read(page))], ids=lambda block: block["command"]
)
def test_a_command_prints_what_is_written(block: re.Match[str]) -> None:
    for package in ("timm", "transformers"):
        pytest.importorskip(package)
    assert shortened(typed(block["command"]), block) == block["output"]


def test_no_block_is_left_out() -> None:
    fences, expected = {}, {}
    for page in PAGES:
        text = QUICK_START.sub("", read(page))
        shown = sum(block["output"] is not None for block in PYTHON.finditer(text))
        run = [len(kind.findall(text)) for kind in (PYTHON, CONSOLE, BASH)]
        fences[page.name], expected[page.name] = text.count("```"), 2 * (sum(run) + shown)
    assert fences == expected


def test_quick_start_holds_two_commands() -> None:
    section = QUICK_START.search(read(README))
    assert section is not None
    blocks = re.findall(r"^```bash\n(.*?)^```", section[1], re.S | re.M)
    assert [len(block.splitlines()) for block in blocks] == [1, 1]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", read(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@needs_source_tree
def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for path, anchor in LINK.findall(FENCED.sub("", read(page))):
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.name}: {path}#{anchor}")
    assert broken == []


def test_readme_is_a_front_page() -> None:
    text = read(README)
    linked = {(ROOT / path).resolve() for path, _ in LINK.findall(text)}
    assert {page for page in [*PAGES, TOUR] if page != README} <= linked


def test_every_picture_is_there() -> None:
    pictures = [(page, name) for page in PAGES for name in re.findall(r"!\[.+?\]\((.+?)\)", read(page))]
    assert README in {page for page, _ in pictures}
    assert [f"{page.name}: {name}" for page, name in pictures if not (page.parent / name).is_file()] == []


# The notebook


def executed(written: Any, folder: Path) -> Any:
    """The notebook with the outputs that its cells have now, without versions, date and machine."""
    nbclient = pytest.importorskip("nbclient", reason="no nbclient to run a notebook")
    pytest.importorskip("ipykernel", reason="no ipykernel to run a notebook")
    notebook = copy.deepcopy(written)
    place = {"metadata": {"path": str(folder)}}
    with mock.patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}):
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=place).execute()
    for out in (out for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out):
        out.data = {kind: PROVENANCE.sub("", shown) for kind, shown in out.data.items()}
    return notebook


def outputs(notebook: Any) -> list[tuple[str, list[Any]]]:
    """What each cell prints, which may arrive in pieces, and what it displays."""
    cells = [cell.get("outputs", []) for cell in notebook.cells]
    return [
        ("".join(out.get("text", "") for out in cell), [out.data for out in cell if "data" in out]) for cell in cells
    ]


def test_the_notebook_puts_out_what_is_written(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="no nbformat to read a notebook")
    written = nbformat.read(TOUR, as_version=4)
    assert outputs(executed(written, tmp_path)) == outputs(written), "run: python tests/test_readme.py docs/tour.ipynb"


# Writing outputs


def refill(page: Path) -> None:
    """Write the output of a page's blocks into its text blocks."""
    entries = dict(BASE.entries)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        blocks = list(printed(page))
    BASE.entries.clear()
    BASE.entries.update(entries)
    text = read(page)
    for block, output in reversed(blocks):
        if block["output"] is not None:
            text = text[: block.start("output")] + output + text[block.end("output") :]
    for block in reversed(list(CONSOLE.finditer(text))):
        text = text[: block.start("output")] + shortened(typed(block["command"]), block) + text[block.end("output") :]
    page.write_text(text, encoding="utf8")


def refill_notebook() -> None:
    import nbformat

    written = nbformat.read(TOUR, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(written, Path(folder))
    notebook.metadata = written.metadata  # without the Python version that ran it
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the time of day
    nbformat.write(notebook, TOUR)


if __name__ == "__main__":
    named = [Path(name).resolve() for name in sys.argv[1:]]
    for each in named or [*PAGES, TOUR]:
        refill_notebook() if each == TOUR else refill(each)

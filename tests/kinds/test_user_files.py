"""The command runs a user's file or module as Python would: with its own command line, package and sibling files.

The oracle is Python: the same file, run alone or as a module of its package, prints the width of the model.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.fresh import Fresh

WIDTH = 24
MODEL = f"""
from torch import nn
WIDTH = {WIDTH}
def make():
    return nn.Linear(WIDTH, 3)
if __name__ == "__main__":
    print(make().in_features)
"""
READERS = {
    "argparse": "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--width', type=int, default={W})\n"
    "WIDTH = parser.parse_args().width",
    "in the function": "import argparse\ndef width():\n    parser = argparse.ArgumentParser()\n"
    "    parser.add_argument('model', nargs='?')\n    assert parser.parse_args().model is None\n    return {W}\nWIDTH = width()",
    "argv": "import sys\nassert len(sys.argv) == 1 and sys.argv[0].endswith('.py'), sys.argv\nWIDTH = {W}",
    "a number": "import sys\nWIDTH = int(sys.argv[1]) if len(sys.argv) > 1 else {W}",
    "getopt": "import getopt, sys\noptions, rest = getopt.getopt(sys.argv[1:], 'w:')\nassert not rest\nWIDTH = {W}",
    "optparse": "import optparse\nWIDTH = optparse.OptionParser().parse_args()[1] or {W}",
}


def _command(fresh: Fresh, folder: Path, model: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "fxflops", "run", model, "--input", f"1,{WIDTH}", "--counts-only"]
    return fresh.run(*command, cwd=folder, COLUMNS="200")


@pytest.fixture
def loaded_argv() -> list[str]:
    """Return the command line of this process, which loading must not change."""
    return sys.argv


@pytest.mark.parametrize("name", READERS)
def test_a_file_reads_its_own_command_line(name: str, tmp_path: Path, loaded_argv: list[str], fresh: Fresh) -> None:
    from fxflops.cli.models import load

    file = tmp_path / f"model_{[*READERS].index(name)}.py"
    file.write_text(READERS[name].format(W=WIDTH) + MODEL.replace(f"WIDTH = {WIDTH}\n", ""))
    alone = fresh.run(str(file), cwd=tmp_path)
    assert alone.stdout.strip() == str(WIDTH), alone.stderr
    before = [*loaded_argv]
    assert load(f"{file}:make").model.in_features == WIDTH
    assert sys.argv is loaded_argv
    assert sys.argv == before


def test_the_command_runs_it(tmp_path: Path, fresh: Fresh) -> None:
    (tmp_path / "parses.py").write_text(READERS["argparse"].format(W=WIDTH) + MODEL.replace(f"WIDTH = {WIDTH}\n", ""))
    done = _command(fresh, tmp_path, "parses.py:make")
    assert done.returncode == 0, done.stderr
    assert "Linear" in done.stdout


def test_required_arguments_are_an_error_that_says_so(tmp_path: Path, fresh: Fresh) -> None:
    (tmp_path / "requires.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('width')\nparser.parse_args()\n"
        + MODEL
    )
    done = _command(fresh, tmp_path, "requires.py:make")
    assert done.returncode != 0
    assert "without command-line arguments" in done.stderr
    assert "Traceback" not in done.stderr


IMPORTS = {
    "from .layers import make": ("pack", "model", "layers"),
    "from . import layers; make = layers.make": ("pack", "model", "layers"),
    "from ..layers import make": ("pack/inner", "model", "../layers"),
    "from pack.layers import make": ("pack", "model", "layers"),
    "import pack.layers; make = pack.layers.make": ("pack", "model", "layers"),
}


@pytest.mark.parametrize("has_init", [True, False], ids=["package", "namespace"])
@pytest.mark.parametrize("line", IMPORTS)
def test_a_file_of_a_package_is_told_its_name_as_a_module(
    line: str, has_init: bool, tmp_path: Path, fresh: Fresh
) -> None:
    folder, name, other = IMPORTS[line]
    if not has_init and "/" in folder:
        pytest.skip("nothing says how far up a package without __init__.py begins")
    inside = tmp_path / folder
    inside.mkdir(parents=True)
    for each in (tmp_path / "pack", inside) if has_init else ():
        (each / "__init__.py").write_text("")
    (inside / f"{other}.py").write_text(dedent(MODEL))
    (inside / f"{name}.py").write_text(f"{line}\n")
    path = f"{folder}/{name}.py:make"
    done = _command(fresh, tmp_path, path)
    if done.returncode == 0:
        return
    module = f"{folder.replace('/', '.')}.{name}:make"
    assert f"give {module}" in done.stderr
    assert str(tmp_path) in done.stderr
    advised = _command(fresh, tmp_path, module)
    assert advised.returncode == 0, advised.stderr
    assert "Linear" in advised.stdout

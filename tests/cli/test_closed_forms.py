"""``fxflops closed-form`` prints formulas, and says what is wrong with its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fxflops.cli.app import app

SOURCE = """
from torch import nn


def make():
    print("a word on stdout")
    return nn.Linear(4, 6)
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "linear.py").write_text(SOURCE)
    return f"{tmp_path / 'linear.py'}:make"


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, ["closed-form", *args])


def test_the_formula_of_a_model(net: str) -> None:
    found = invoke(net, "--input", "2,3,4", "--dynamic", "batch, seq:512")
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0] == "Linear   in batch, seq   (convention fxflops, attention dense)"
    assert lines[1].startswith("holds for    batch from 1 to 4096, seq from 1 to 512;")
    assert "FLOPs             48 batch seq" in lines  # 6 outputs of 4 multiplies, 3 adds and the bias


def test_a_model_with_inputs_of_its_own(tmp_path: Path) -> None:
    source = "import torch\n\ndef make():\n    return torch.nn.Linear(4, 6), torch.ones(2, 3, 4)\n"
    (tmp_path / "own.py").write_text(source)
    found = invoke(f"{tmp_path / 'own.py'}:make", "--dynamic", "batch,seq")
    assert found.exit_code == 0, found.output
    assert "FLOPs             48 batch seq" in found.stdout.splitlines()


def test_python_and_latex(net: str) -> None:
    space: dict[str, Any] = {}
    exec(invoke(net, "--input", "2,3,4", "--dynamic", "_,seq", "--python").stdout, space)
    assert space["flops"](10) == 2 * 10 * 48
    latex = invoke(net, "--input", "2,3,4", "--dynamic", "batch,seq", "--latex", "--backward", "--convention", "torch")
    # The forward's products and those of the weight's gradient, 2 x 24 each. The input needs no gradient.
    assert latex.stdout.strip() == r"96 \mathrm{batch} \mathrm{seq}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dynamic", "batch,,x"], "names, such as batch,seq"),
        (["--dynamic", "batch", "--python", "--latex"], "not both"),
        (["--dynamic", "batch,seq,width,more"], "has no dim 3"),
    ],
)
def test_wrong_options(net: str, options: list[str], message: str) -> None:
    found = invoke(net, "--input", "2,3,4", *options)
    assert found.exit_code == 2
    assert message in found.stderr

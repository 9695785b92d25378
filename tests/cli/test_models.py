"""Users' files, loaded by the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from fxflops import InputError
from fxflops.cli.models import load

SOURCE = """
import functools
from pathlib import Path

from torch import nn

with Path("runs").open("a") as file:
    file.write("x")


def first():
    return nn.Linear(2, 3)


def second():
    return nn.Linear(2, 4)


def folded():
    return functools.singledispatch(lambda: 1)(0)


def indexed():
    return functools.reduce(max, [])


def wide():
    return nn.Linear(2**28, 2**28)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Path(tmp_path, "own_nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_nets", None)


def test_a_file_is_run_once_until_it_changes() -> None:
    for maker, width in (("first", 3), ("second", 4)):
        model = load(f"own_nets.py:{maker}").model
        assert isinstance(model, nn.Linear)
        assert model.out_features == width
    assert Path("runs").read_text() == "x"
    Path("own_nets.py").write_text(SOURCE.replace("nn.Linear(2, 3)", "nn.Linear(2, 30)"))
    model = load("own_nets.py:first").model
    assert isinstance(model, nn.Linear)
    assert model.out_features == 30


@pytest.mark.parametrize("maker", ["folded", "indexed"])
def test_the_line_that_is_told_is_of_no_library(maker: str) -> None:
    """The first raises in Python code of the standard library, the second in C."""
    line = next(i for i, text in enumerate(SOURCE.splitlines(), 1) if f"def {maker}" in text) + 1
    with pytest.raises(InputError, match=rf"\n  at .*own_nets\.py:{line}: return functools"):
        load(f"own_nets.py:{maker}")


def test_weights_that_there_is_no_room_for() -> None:
    with pytest.raises(InputError, match="--counts-only allocates no weights") as error:
        load("own_nets.py:wide")
    assert "\n  at " in str(error.value)
    assert sum(p.numel() for p in load("own_nets.py:wide", on_meta=True).model.parameters()) == 2**56 + 2**28


def test_a_type_of_transformers_that_is_misspelled() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match=r"'bertt' \(did you mean bert"):
        load("hf:bertt")
    with pytest.raises(InputError, match="'bert-base-uncased'; fxflops downloads nothing: hf:bert uses"):
        load("hf:bert-base-uncased")

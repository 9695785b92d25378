"""The files that exports write, and the error for a folder that does not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.render.files import FORMATS

NET, X = nn.Sequential(nn.Linear(3, 4)), torch.ones(2, 3)
REPORT = fxflops.count(NET, X)
COUNTER = fxflops.TorchFLOPsByFX(NET)
COUNTER.propagate(X)
WRITERS: dict[str, Callable[[Path], Any]] = {
    "save": REPORT.save,
    "a table": lambda path: REPORT.by_module().to_csv(path),
    "a tree": lambda path: REPORT.tree().to_markdown(path),
    "bytes": lambda path: REPORT.to_png(path, chart="modules"),
    "a comparison": lambda path: REPORT.diff(REPORT).to_html(path),
    "the notebook's": COUNTER.save_result_to_csv,
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_folder_that_is_not_there_is_named(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    if what == "bytes":
        pytest.importorskip("resvg_py")
    said = f"cannot write {str(folder / 'r.json')!r}: the folder {str(folder)!r} does not exist; create it"
    with pytest.raises(fxflops.InputError, match=re.escape(said)) as raised:
        WRITERS[what](folder / "r.json")
    assert isinstance(raised.value, FileNotFoundError)
    folder.mkdir(parents=True)
    WRITERS[what](folder / "r.json")
    assert (folder / "r.json").stat().st_size > 0


def test_every_format_is_a_method() -> None:
    assert all(callable(getattr(REPORT, method)) for method in FORMATS.values())

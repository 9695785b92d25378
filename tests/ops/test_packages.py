"""Formulas of other libraries: an installed package registers its own, and one that fails to load is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fresh import Fresh

COUNTS = """
import warnings
import torch, fxflops
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    class Scan(torch.nn.Module):
        def forward(self, x):
            import acme
            return torch.ops.acme.scan(x)
    BEFORE
    for _ in range(2):
        report = fxflops.count(Scan(), torch.ones(4, 8))
        print(report.total_flops, report.complete)
for each in caught:
    print(each.message)
"""
LIBRARY = """
import torch
torch.library.define("acme::scan", "(Tensor x) -> Tensor")
torch.library.impl("acme::scan", "default")(lambda x: x.cumsum(-1).clone())
"""
FORMULAS = """
import fxflops
import acme
@fxflops.formula("acme::scan")
def scan(x, *, out):
    return 5 * out.numel()
"""


PATH = """
import sys
sys.path.insert(0, FOLDER)
from fxflops.ops import packages
packages._found.cache_clear()  # this process is a copy of one that has looked
"""


def install(folder: Path, name: str, version: str, place: str, **modules: str) -> None:
    """Install a library into a folder: its modules, and metadata with its version and its entry point."""
    package = folder / name
    package.mkdir()
    for module, source in {"__init__": "", **modules}.items():
        (package / f"{module}.py").write_text(source)
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[fxflops.formulas]\n{name} = {place}\n")


def run(fresh: Fresh, folder: Path, before: str = "pass") -> list[str]:
    """Return the lines that a new process prints for two counts, with the folder on its path."""
    result = fresh.run("-c", PATH.replace("FOLDER", repr(str(folder))) + COUNTS.replace("BEFORE", before))
    assert not result.returncode, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("place", ["acme.flops", "acme.flops:register"])
def test_an_installed_library_counts(place: str, fresh: Fresh, tmp_path: Path) -> None:
    """The entry point names a module that registers its formula, or a function that does."""
    lines = FORMULAS.strip().splitlines()
    formulas = FORMULAS if place == "acme.flops" else "def register():\n" + "\n".join(f"    {line}" for line in lines)
    install(tmp_path, "acme", "1.2", place, __init__=LIBRARY, flops=formulas)
    assert run(fresh, tmp_path) == ["160 True", "160 True"]


def test_one_that_raises_is_named_and_counts_nothing(fresh: Fresh, tmp_path: Path) -> None:
    install(tmp_path, "acme", "1.2", "acme.flops", __init__=LIBRARY, flops=FORMULAS + "raise RuntimeError('no driver')")
    install(tmp_path, "other", "0.1", "nowhere.flops")
    counted, again, *warned = run(fresh, tmp_path)
    assert counted == again == "0 False"
    assert warned[0].startswith("could not load the formulas of acme 1.2 from acme.flops (entry point 'acme'")
    assert warned[0].endswith("RuntimeError: no driver")
    assert "could not load the formulas of other 0.1 from nowhere.flops" in warned[1]
    assert len(warned) == 2


def test_the_users_own_formula_comes_before_the_librarys(fresh: Fresh, tmp_path: Path) -> None:
    install(tmp_path, "acme", "1.2", "acme.flops", __init__=LIBRARY, flops=FORMULAS)
    own = 'fxflops.formula("acme::scan")(lambda x, *, out: 7)'
    assert run(fresh, tmp_path, own) == ["7 True", "7 True"]


def test_the_shell_lists_libraries(fresh: Fresh, tmp_path: Path) -> None:
    install(tmp_path, "acme", "1.2", "acme.flops", __init__=LIBRARY, flops=FORMULAS)
    install(tmp_path, "other", "0.1", "nowhere.flops")
    shell = "from fxflops.cli.app import app\napp(['ops', '--packages'])"
    result = fresh.run("-c", PATH.replace("FOLDER", repr(str(tmp_path))) + shell)
    lines = [line.split(maxsplit=3) for line in result.stdout.splitlines()]
    assert lines == [
        ["acme", "1.2", "acme.flops", "scan"],
        ["other", "0.1", "nowhere.flops", "failed to load: ModuleNotFoundError: No module named 'nowhere'"],
    ]
    assert not result.stderr

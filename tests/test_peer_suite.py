"""benchmarks/peer_suite.py on a fake thop: which of the package's own tests fail only with the adapter in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "peer_suite.py"
PACKAGE = """
from .inner import clever_format, helper
def profile(model, inputs):
    return "theirs"
"""
INNER = """
def clever_format(nums, format="%.2f"):
    return "theirs"
def helper():
    return "theirs"
def uses_it():
    return clever_format([2e9])
"""
TESTS = """
import pytest
import thop
from thop import helper
from thop.inner import clever_format, uses_it
def test_what_is_replaced():
    assert clever_format([2e9]) in ("theirs", "2.00G")
def test_that_it_is_replaced():
    assert thop.clever_format([2e9]) == "theirs"
def test_within_the_package():
    assert uses_it() == "theirs"
def test_what_is_not_replaced():
    assert helper() == "theirs"
def test_fails_with_both():
    assert not clever_format([2e9])
@pytest.fixture
def broken():
    yield
    assert thop.profile(1, 2) == "theirs"
def test_fails_when_it_is_over(broken):
    pass
"""


def test_what_fails_with_the_adapter_alone(tmp_path: Path) -> None:
    (tmp_path / "thop").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "thop" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "thop" / "inner.py").write_text(INNER)
    (tmp_path / "tests" / "test_thop.py").write_text(TESTS)
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--as", "thop", "tests/test_thop.py"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == "thop: 2 of the 5 tests that pass with the original"
    assert [line.split("::")[1].split("`")[0] for line in said[4:]] == [
        "test_that_it_is_replaced",
        "test_within_the_package",
        "test_fails_when_it_is_over",
    ]


def test_where_there_are_no_tests(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--as", "thop", "tests/none.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no test ran" in done.stderr

"""Record which test runs which line, and choose the tests for each mutant."""

from __future__ import annotations

import difflib
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import coverage
import pytest

from benchmarks.mutation.operators import Mutant

ROOT = Path(__file__).resolve().parents[2]
MUTATED = ("fxflops/ops/*.py", "fxflops/counting/*.py", "fxflops/trace/*.py")
ABOVE = ("render/", "adapters/", "cli/", "roofline/", "test_page", "test_notebook", "test_readme", "test_imports", "test_peer_suite",
         "test_style", "test_layering", "test_chrome_trace", "test_compare", "test_models", "test_large", "test_distributed",
         "test_stale", "test_passes")  # fmt: skip
"""Tests of layers above the mutated code, which are left out: they are slow, or run in processes of their own."""
OPTIONS = (
    "--capture=no",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)
TOO_LONG = 25.0
"""Seconds that a mutant's tests may take in addition to twice their recorded time."""

PAGE = "tests/test_catalogue.py::test_the_committed_page_is_the_generated_one"
"""The test for mutants of registrations: it checks everything that is registered. Registration runs at import, so coverage
attributes its lines to no test."""


def files() -> list[str]:
    return sorted(str(f.relative_to(ROOT)) for pattern in MUTATED for f in ROOT.glob(pattern))


def test_files() -> list[str]:
    found = sorted(str(f.relative_to(ROOT)) for f in (ROOT / "tests").rglob("test_*.py"))
    return [f for f in found if not any(f"/{name}" in f for name in ABOVE)]


class Recorder:
    """A pytest plugin that records how long each test takes, whether it fails, and (by coverage's contexts) the lines that it runs."""

    def __init__(self, cover: coverage.Coverage) -> None:
        self.cover = cover
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        for name in [n for n in sys.modules if n.startswith("fxflops")]:
            for value in list(vars(sys.modules[name]).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()  # with a warm cache, this test would not run the lines that filled it
        self.cover.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


class Record(NamedTuple):
    """One recorded run of the tests: test names, source texts, for each file and line the tests that run it (as indices into
    ``tests``; index 0 is the import), seconds by test, failed tests, and imported modules."""

    tests: list[str]
    sources: dict[str, str]
    lines: dict[str, dict[str, list[int]]]
    seconds: dict[str, float]
    failed: list[str]
    modules: list[str]


def record_tests(path: Path) -> None:
    cover = coverage.Coverage(data_file=None, include=[str(ROOT / f) for f in files()])
    cover.start()
    recorder = Recorder(cover)
    pytest.main([*OPTIONS, *test_files()], plugins=[recorder])
    cover.stop()
    data = cover.get_data()
    tests = {name: i for i, name in enumerate(["", *recorder.seconds])}
    by_line = {f: data.contexts_by_lineno(str(ROOT / f)) for f in files()}
    lines = {f: {str(n): [tests[t] for t in of if t in tests] for n, of in by_line[f].items()} for f in files()}
    own = ("fxflops", "benchmarks", "test", "conftest", "__main__")
    modules = [m for m in sys.modules if not m.startswith(own) and not m.rpartition(".")[2].startswith("test_")]
    sources = {f: (ROOT / f).read_text() for f in files()}
    kept = Record(list(tests), sources, lines, recorder.seconds, sorted(recorder.failed), modules)
    path.write_text(json.dumps(kept._asdict()))


class Choice:
    """Chooses the tests for each mutant, from a record that may be older than the sources."""

    def __init__(self, record: Record, seconds: float) -> None:
        """Give the tests of each mutant ``seconds`` of recorded time, at most two thirds of it to tests of the mirroring file."""
        self.record, self.seconds, given = record, seconds, set(test_files())
        self.passing = {t for t in record.seconds if t.partition("::")[0] in given and t not in record.failed}
        self.reached: dict[str, dict[int, list[str]]] = {}
        for file in files():
            old, new = record.sources.get(file, ""), (ROOT / file).read_text()
            blocks = difflib.SequenceMatcher(
                None, old.splitlines(), new.splitlines(), autojunk=False
            ).get_matching_blocks()
            moved = {b.a + i + 1: b.b + i + 1 for b in blocks for i in range(b.size)}
            lines = {int(n): [record.tests[i] for i in of] for n, of in record.lines.get(file, {}).items()}
            self.reached[file] = {moved[n]: tests for n, tests in lines.items() if n in moved}

    def at_import(self, mutant: Mutant) -> bool:
        return any("" in self.reached[mutant.file].get(n, ()) for n in mutant.lines)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run the mutant's lines, then those that run its function.

        Tests of the mirroring file come first, and within a file the quickest.
        """
        lines = self.reached[mutant.file]
        near: list[str] = []
        far: list[str] = []
        for wanted in (mutant.lines, mutant.around):
            found = dict.fromkeys(t for n in wanted for t in lines.get(n, ()) if t in self.passing)
            near += [t for t in found if self.mirrors(t, mutant.file) and t not in near]
            far += [t for t in found if not self.mirrors(t, mutant.file) and t not in far]
        near = near or [t for t in self.passing if self.mirrors(t, mutant.file)]
        # No test was seen here, e.g. because sys.setprofile calls the code: coverage cannot trace that. Take tests that run the file.
        if not far:
            some = {t for tests in lines.values() for t in tests}
            far = [t for t in self.passing if t in some and t not in near]
        near.sort(key=self.record.seconds.__getitem__)
        registers = mutant.file.startswith("fxflops/ops/") and self.at_import(mutant)
        chosen = [PAGE] if registers and PAGE in self.passing else []
        chosen += self.within(near, self.seconds * 2 / 3)
        return chosen + list(self.within(self.in_turn(far, mutant.file), self.seconds - self.total(chosen)))

    def mirrors(self, test: str, file: str) -> bool:
        return test.partition("::")[0] == mirror(file)

    def total(self, tests: Iterable[str]) -> float:
        return sum(self.record.seconds[t] + 0.003 for t in tests)

    def within(self, tests: Iterable[str], seconds: float) -> Iterator[str]:
        for test in tests:
            seconds -= self.total([test])
            if seconds > 0:
                yield test

    def in_turn(self, tests: Sequence[str], file: str) -> list[str]:
        """Order the tests so that the files take turns: each file's quickest test first, files of the mirroring folder before others."""
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=self.record.seconds.__getitem__):
            by_file[test.partition("::")[0]].append(test)
        folder = str(Path(mirror(file)).parent)
        ranked = [(i, str(Path(f).parent) != folder, t) for f, own in by_file.items() for i, t in enumerate(own)]
        return [t for *_, t in sorted(ranked)]


def mirror(file: str) -> str:
    path = Path(file)
    return str(Path("tests", *path.parts[1:-1], f"test_{path.stem}.py"))

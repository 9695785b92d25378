"""Mutation testing: find changes to ``fxflops/ops/``, ``fxflops/counting/`` and ``fxflops/trace/`` that no test notices.

    python benchmarks/mutants.py --sample 1000 --seed 0     # runs the mutants without a result, writes the table
    python benchmarks/mutants.py --again                    # reruns the survivors, after tests were written

Needs ``mutmut`` (its operators) and ``coverage`` (which test runs which line). The package's files are not changed. A mutant of a
function replaces the function's code object, in a process forked after all tests are collected. A mutant of code that runs at
import is compiled in place of its file, in a process forked before the package is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.mutation.choice import OPTIONS, ROOT, TOO_LONG, Choice, Record, files, mirror, record_tests, test_files
from benchmarks.mutation.operators import Mutant, mutants_of, mutated
from benchmarks.mutation.table import write

RESULTS = ROOT / "benchmarks" / "results"
KNOWN, RECORD = RESULTS / "mutants.jsonl", RESULTS / "mutants_record.jsonl"
SURVIVED, KILLED, LATE, BROKEN = 0, 1, 2, 3


def forked(body: Callable[[], int], seconds: float) -> int:
    """Run ``body`` in a forked process and return its result; LATE if it takes longer than ``seconds``, BROKEN if the process dies."""
    pid = os.fork()
    if not pid:
        os.setsid()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        code = BROKEN
        try:
            code = body()
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else BROKEN
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return LATE


class First:
    """A pytest plugin that runs the named tests in the given order, then the tests that are not in the record. The first failure
    ends the process."""

    def __init__(self, names: Sequence[str], known: Iterable[str]) -> None:
        self.place = {name: i for i, name in enumerate(names)}
        self.known = set(known)

    def chosen(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        fresh = [i for i in items if i.nodeid not in self.known]
        return sorted((i for i in items if i.nodeid in self.place), key=lambda i: self.place[i.nodeid]) + fresh

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = self.chosen(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os._exit(KILLED)


class InPlace(SourceFileLoader):
    """Imports the mutated text of one file in place of the file. Finds no other module."""

    def __init__(self, mutant: Mutant) -> None:
        name = ".".join(Path(mutant.file).with_suffix("").parts).removesuffix(".__init__")
        super().__init__(name, str(ROOT / mutant.file))
        self.text = mutated(mutant)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        inside = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        found = spec_from_file_location(name, self.path, loader=self, submodule_search_locations=inside)
        return found if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)


def run_imported(mutant: Mutant, tests: Sequence[str], choice: Choice) -> int:
    """Import the package with the mutant in it and run the mutant's tests, in this process."""
    sys.meta_path.insert(0, InPlace(mutant))
    own = mirror(mutant.file)
    files_of = dict.fromkeys([*([own] if (ROOT / own).exists() else []), *(t.partition("::")[0] for t in tests)])
    first = First(tests, choice.record.seconds)
    return SURVIVED if pytest.main([*OPTIONS, "-x", *list(files_of)[:3]], plugins=[first]) in (0, 5) else KILLED


def codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return all code objects inside another, by qualified name and the number of earlier ones with that name."""
    found: dict[tuple[str, int], CodeType] = {}
    before: dict[str, int] = defaultdict(int)
    for inner in (c for c in code.co_consts if isinstance(c, CodeType)):
        for (name, _), one in {(inner.co_qualname, 0): inner, **codes(inner)}.items():
            found[name, before[name]] = one
            before[name] += 1
    return found


class Server:
    """A pytest plugin that replaces the test loop: after collection, it forks a process for each mutant of a function's body."""

    def __init__(
        self, mutants: Sequence[Mutant], choice: Choice, keep: Callable[[Mutant, int, int, float], None]
    ) -> None:
        self.mutants, self.choice, self.keep = mutants, choice, keep

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import_all(self.choice.record.modules)
        functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        for found in gc.get_objects():
            if type(found) is FunctionType and found.__code__.co_filename.startswith(str(ROOT / "fxflops")):
                code = found.__code__
                functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(found)
        gc.freeze()
        for mutant in self.mutants:
            path = str(ROOT / mutant.file)
            old, new = (codes(compile(t, path, "exec", dont_inherit=True)) for t in (mutant.text, mutated(mutant)))
            one = old[mutant.function]
            live = functions.get((path, one.co_qualname, one.co_firstlineno), ())
            fits = mutant.function in new and new[mutant.function].co_freevars == one.co_freevars
            if live and fits:
                tests = self.choice.tests_of(mutant)
                run = self.body(session, live, new[mutant.function], tests)
                start = time.monotonic()
                code = forked(run, 2 * self.choice.total(tests) + TOO_LONG)
                self.keep(mutant, code, len(tests), time.monotonic() - start)
        return True

    def body(
        self, session: pytest.Session, live: Sequence[FunctionType], code: CodeType, tests: list[str]
    ) -> Callable[[], int]:
        def run() -> int:
            for function in live:
                function.__code__ = code
            first = First(tests, self.choice.record.seconds)
            session.config.pluginmanager.register(first)
            items = first.chosen(session.items)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            return SURVIVED

        return run


def run_mutants(wanted: Sequence[Mutant], choice: Choice) -> None:
    """Run each mutant's tests and append the results. Mutants of functions come first: they are quick, as tests are collected once."""

    def keep(mutant: Mutant, code: int, tests: int, seconds: float) -> None:
        row = {"key": mutant.key, "code": code, "tests": tests, "seconds": round(seconds, 2), "is": mutant.shown}
        with KNOWN.open("a") as out:
            out.write(json.dumps(row) + "\n")

    before = known()
    quick = [m for m in wanted if m.function and not choice.at_import(m)]
    if quick:
        forked_run(lambda: int(pytest.main([*OPTIONS, *test_files()], plugins=[Server(quick, choice, keep)])))
    now = known()
    left = [m for m in wanted if len(now.get(m.key, ())) == len(before.get(m.key, ()))]
    import_all(choice.record.modules if left else ())
    for mutant in left:
        tests = choice.tests_of(mutant)
        start = time.monotonic()
        code = forked(lambda m=mutant, t=tests: run_imported(m, t, choice), 2 * choice.total(tests) + 2 * TOO_LONG)
        keep(mutant, code, len(tests), time.monotonic() - start)


def import_all(modules: Iterable[str]) -> None:
    """Import the modules that the tests imported while they ran: once here, instead of in each forked process."""
    for name in modules:
        with contextlib.suppress(Exception):  # some modules cannot be imported on their own
            importlib.import_module(name)


def forked_run(body: Callable[[], int]) -> None:
    if not (pid := os.fork()):
        os._exit(body())
    os.waitpid(pid, 0)


def known() -> dict[str, list[dict[str, Any]]]:
    """Return each mutant's results by key, the latest run last."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in map(json.loads, KNOWN.read_text().splitlines() if KNOWN.exists() else ()):
        found[row["key"]].append(row)
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=8, help="of tests for each mutant, as long as they took once")
    parser.add_argument("--again", action="store_true", help="run the survivors of the sample once more")
    parser.add_argument("--only", default="", help="a part of the mutants' file names")
    parser.add_argument("--table", action="store_true", help="run nothing")
    args = parser.parse_args()
    every = [m for f in files() for m in mutants_of(ROOT, f, args.seed)]
    sample = sorted(every, key=lambda m: m.key)[: args.sample]
    if not RECORD.exists() and not args.table:
        forked_run(lambda: record_tests(RECORD) or 0)
    if not args.table:
        choice, seen = Choice(Record(**json.loads(RECORD.read_text())), args.seconds), known()
        survivors = {key for key, rows in seen.items() if not rows[-1]["code"]}
        wanted = [
            m for m in sample if args.only in m.file and (m.key in survivors if args.again else m.key not in seen)
        ]
        run_mutants(wanted, choice)
    write(sample, known(), len(every), args.seed, RESULTS)


if __name__ == "__main__":
    main()

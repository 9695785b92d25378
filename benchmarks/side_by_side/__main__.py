"""Old and new side by side: two states of the library count the same models, and every difference between their reports is listed.

    python -m benchmarks.side_by_side 74eede1 --sets odd,fuzz [--limit 100] [--only NAME] [--ways count] [--jobs 2]

The reference is a folder, or a commit that is checked out into a temporary ``git worktree``. The other side is this tree, or the tree
named by ``--new``; do not edit it during the run. Each side runs in its own processes and imports its own library. Both sides take the
models from this tree, with equal seeds. ``whole_zoos.py`` compares all models of a zoo, by digests alone.

A report's facts are everything that it shows except times (``facts.py``): calls, scopes, costs, memory over time, missing operators,
sums, warnings, and types of errors. They are written to ``OUT/WAYS/SIDE/SET.jsonl``, one line for each case. SIDE includes a digest of
the library, the cases and the installed packages. So an interrupted run resumes, and the reference needs to run only once.

The table is ``OUT/WAYS/table.md``. With ``--known``, the table has only cases that earlier runs have counted. One such table, with
checks by hand, is ``benchmarks/results/side_by_side.md``. An entry in ``causes.py`` explains a difference. The exit status is 1 if any
difference has no explanation.

Sets: odd and programs (``tests/trace``), fuzz (random nets), ranks (``tests/ranks.py``, and Llama-3 on meshes), timm, torchvision,
transformers, diffusers, and menagerie (needs ``MENAGERIE=path/to/torchlens``).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import platform
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.isolated import Isolated

from .cases import SETS, Case
from .causes import CAUSES, Matches
from .compare import Difference, differences
from .facts import facts_of, row_of, unpacked, use_library

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "side_by_side"
FUZZ = [ROOT / "benchmarks" / f"fuzz_{name}.py" for name in ("nets", "classes", "statements", "counter")]
CASES = (
    "benchmarks/side_by_side/facts.py",
    "benchmarks/side_by_side/cases.py",
    "benchmarks/models",
    "benchmarks/distributed.py",
    *(f"benchmarks/fuzz_{name}.py" for name in ("nets", "classes", "counter", "checks", "runs")),
    "tests/trace/odd_models.py",
    "tests/trace/programs.py",
    "tests/ranks.py",
)
"""The files, apart from the library, that cases and facts depend on."""
JOBS_PER_PROCESS, NETS, HANGS = 100, 5000, 1800
DEFAULT = "odd,programs,fuzz"


class Side:
    """One state of the library: its source tree, and the files with the facts that it reported."""

    def __init__(self, name: str, tree: Path, out: Path) -> None:
        self.name, self.tree = name, tree
        self.folder = out / f"{name}-{contents(tree)}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.places: dict[tuple[str, str], int] = {}
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.isolated = Isolated(use_library, str(tree), jobs=JOBS_PER_PROCESS)

    def read(self, group: str) -> None:
        """Read which cases of a set have been reported in earlier runs. The facts themselves stay in the file."""
        if (path := self.folder / f"{group}.jsonl").exists():
            with path.open("rb") as file:
                for line in iter(file.readline, b""):
                    if line.endswith(b"\n"):  # an interrupted run may leave a partial last line
                        self._know(group, json.loads(line), file.tell() - len(line))

    def _know(self, group: str, row: dict[str, Any], place: int) -> None:
        key = group, row["case"]
        self.places[key] = place
        self.rows[key] = {name: row[name] for name in ("digests", "seconds", "cut_off")}

    def run(self, group: str, case: Case, ways: list[str]) -> None:
        """Report a case in a process of this side, and save the row."""
        try:
            row = self.isolated(facts_of, group, *case, ways, str(self.tree), seconds=HANGS)
        except (BrokenProcessPool, TimeoutError) as error:
            if Isolated.ended:
                raise
            facts = {"process": {"raises": [type(error).__name__, "it ended or blocked the process"]}}
            row = row_of(case[0], facts, {})
        with _writing, (self.folder / f"{group}.jsonl").open("ab") as file:
            place = file.tell()
            file.write(json.dumps(row).encode() + b"\n")
        self._know(group, row, place)

    def facts(self, key: tuple[str, str]) -> dict[str, Any]:
        with (self.folder / f"{key[0]}.jsonl").open("rb") as file:
            file.seek(self.places[key])
            return unpacked(json.loads(file.readline())["facts"])


_writing = threading.Lock()


def contents(tree: Path) -> str:
    """Return a digest of everything that the facts depend on: this library, the cases, and the versions of the packages they use."""
    libraries = ("torch", "timm", "torchvision", "transformers", "diffusers")
    return sources(tree / "fxflops", *(ROOT / place for place in CASES), *map(installed, libraries))


def sources(*places: Path | str) -> str:
    """Return a digest of the contents of files, of the Python files in folders, and of strings."""
    found = hashlib.sha256()
    for place in places:
        if isinstance(place, str):
            found.update(place.encode())
        else:
            for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
                found.update(path.read_bytes())
    return found.hexdigest()[:12]


def installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except ImportError:
        return ""


@contextlib.contextmanager
def tree_of(reference: str) -> Iterator[Path]:
    """Yield the folder of a reference: the folder itself, or a temporary worktree of a commit."""
    if Path(reference).is_dir():
        yield Path(reference).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "reference"
        git("worktree", "add", "--detach", str(tree), reference)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*args: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *args], check=True, capture_output=True, text=True)


def cause_of(case: str, difference: Difference, causes: list[tuple[Matches, Matches, Matches, str]] = CAUSES) -> str:
    """Return the cause of a difference; "" if no entry explains it."""
    texts = (case, difference.way, str(difference).partition(": ")[2])
    for *each_matches, reason in causes:
        if all(_is_match(matches, text) for matches, text in zip(each_matches, texts, strict=True)):
            return reason
    return ""


def _is_match(matches: Matches, text: str) -> bool:
    return bool(re.fullmatch(matches, text)) if isinstance(matches, str) else matches(text)


class Comparison:
    """The results: for each set the number of cases, and the cases that differ, raise the same errors in all ways, or were cut off."""

    def __init__(self, sides: list[Side]) -> None:
        self.sides = sides
        self.cases: Counter[str] = Counter()
        self.reports: Counter[str] = Counter()
        self.raising: dict[str, list[str]] = {}
        self.cut_off: dict[str, dict[str, list[str]]] = {}
        self.differing: dict[str, dict[str, list[Difference]]] = {}
        self.seconds: dict[str, list[float]] = {}

    def compare(self, group: str, case: str, ways: list[str]) -> None:
        """Compare a case that both sides have reported."""
        key = group, case
        rows = [side.rows[key] for side in self.sides]
        self.cases[group] += 1
        self.reports[group] += min(len(row["seconds"]) for row in rows)
        sums = self.seconds.setdefault(group, [0.0, 0.0])
        for i, row in enumerate(rows):
            sums[i] += sum(row["seconds"].values())
        cut_off = sorted({way for row in rows for way in row["cut_off"]})
        if rows[0]["digests"] != rows[1]["digests"] and "process" not in cut_off:
            old, new = (chosen(side.facts(key), ways, cut_off) for side in self.sides)
            if found := differences(old, new):
                self.differing.setdefault(group, {})[case] = found
                for each in found:
                    print(f"{group} {case}: {each}  [{cause_of(f'{group}/{case}', each) or 'UNEXPLAINED'}]", flush=True)
                return
        if cut_off:
            self.cut_off.setdefault(group, {})[case] = cut_off
        elif not any(row["seconds"] for row in rows):
            self.raising.setdefault(group, []).append(case)

    @property
    def unexplained(self) -> list[str]:
        return [
            f"{group} {case}: {each}"
            for group, cases in self.differing.items()
            for case, found in cases.items()
            for each in found
            if not cause_of(f"{group}/{case}", each)
        ]

    def table(self) -> str:
        """Return the table: the sets with their cases and differences, and the differences by cause."""
        old, new = (side.name for side in self.sides)
        lines = [
            "# Old and new side by side",
            "",
            f"Reference {old}, beside {new}; {', '.join(filter(None, map(installed, ('torch', 'timm', 'torchvision', 'transformers', 'diffusers'))))}, "
            f"Python {platform.python_version()}. Seconds are those of the processor in the counts themselves.",
            "",
            f"| set | cases | reports | equal | different | raise alike | cut off | {old} s | {new} s |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for group, cases in self.cases.items():
            different, raising, cut_off = (
                len(found.get(group, ())) for found in (self.differing, self.raising, self.cut_off)
            )
            equal = cases - different - raising - cut_off
            numbers = (cases, self.reports[group], equal, different, raising, cut_off)
            seconds = [f"{each:.1f}" for each in self.seconds[group]]
            lines.append(f"| {' | '.join([group, *(f'{number:,}' for number in numbers), *seconds])} |")
        by_cause: dict[str, list[str]] = {}
        for group, found in self.differing.items():
            for case, each_of_case in found.items():
                for each in each_of_case:
                    by_cause.setdefault(cause_of(f"{group}/{case}", each), []).append(f"{group} {case}: {each}")
        unexplained = by_cause.pop("", [])
        if by_cause:
            lines += ["", "Explained:", ""]
            for cause, found in by_cause.items():
                cases = len({each.partition(": ")[0] for each in found})
                lines.append(f"- {cause}: {len(found):,} places in {cases:,} of the cases, e.g. {found[0]}")
        if unexplained:
            lines += ["", f"Not explained: {len(unexplained)}", "", *(f"- {each}" for each in unexplained)]
        for title, cases_by_set in (("Raise alike in all ways", self.raising), ("Cut off", self.cut_off)):
            for group, names in cases_by_set.items():
                lines += ["", f"{title}, {group}: {', '.join(names)}"]
        return "\n".join(lines) + "\n"


def chosen(facts: dict[str, Any], ways: list[str], cut_off: list[str]) -> dict[str, Any]:
    """Return the facts of the requested ways that were not cut off."""
    wanted = [way for way in facts if not ways or way.partition(" ")[0] in (*ways, "build")]
    return {way: facts[way] for way in wanted if way not in cut_off}


def run(sides: list[Side], groups: list[str], options: argparse.Namespace) -> Comparison:
    """Report all cases on both sides, and compare the reports as they come in."""
    comparison = Comparison(sides)
    ways = options.ways.split(",") if options.ways else []
    waiting: dict[Side, Waiting] = {side: queue.SimpleQueue() for side in sides}
    reported: queue.SimpleQueue[tuple[str, str] | BaseException] = queue.SimpleQueue()
    for side in sides:
        for group in groups:
            side.read(group)
        for _ in range(max(1, options.jobs // len(sides))):
            threading.Thread(target=_work, args=(side, waiting[side], ways, reported), daemon=True).start()
    left: set[tuple[str, str]] = set()
    for group in groups:
        for case in cases_of(group, options):
            key = group, case[0]
            left.add(key)
            lacking = [side for side in sides if key not in side.rows]
            if lacking and options.known:
                left.remove(key)
                continue
            for side in lacking:
                waiting[side].put((group, case))
            if not lacking:
                reported.put(key)
            while not reported.empty():
                _compare(comparison, reported.get(), left, ways)
    for side in sides:
        for _ in range(max(1, options.jobs // len(sides))):
            waiting[side].put(None)
    while left:
        _compare(comparison, reported.get(), left, ways)
    return comparison


def _compare(
    comparison: Comparison, key: tuple[str, str] | BaseException, left: set[tuple[str, str]], ways: list[str]
) -> None:
    if isinstance(key, BaseException):
        raise key
    if key in left and all(key in side.rows for side in comparison.sides):
        left.remove(key)
        comparison.compare(*key, ways)
        if comparison.cases.total() % 100 == 0:
            print(f"{time.strftime('%X')} {dict(comparison.cases)}", flush=True)


def cases_of(group: str, options: argparse.Namespace) -> Iterator[Case]:
    """Yield the chosen cases of a set. Drawing nets takes time, so the nets are saved in the same folder as the facts."""
    cases = SETS[group].names()
    if group == "fuzz":
        cases = kept(
            iter(()) if options.known else cases, options.limit or NETS, options.out / f"nets-{sources(*FUZZ)}.jsonl"
        )
    begin = tuple(options.only.split(","))
    return itertools.islice((case for case in cases if case[0].startswith(begin)), 0, options.limit, options.every)


def kept(cases: Iterator[Case], most: int, path: Path) -> Iterator[Case]:
    """Yield the first ``most`` cases: first the cases that the file has, then new ones, which are added to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known: list[Any] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    yield from known[:most]
    if len(known) >= most:
        return
    with path.open("a") as file:
        for case in itertools.islice(cases, len(known), most):
            file.write(json.dumps(case) + "\n")
            file.flush()
            yield case


Waiting = queue.SimpleQueue[tuple[str, Case] | None]


def _work(side: Side, waiting: Waiting, ways: list[str], reported: queue.SimpleQueue[Any]) -> None:
    try:
        while (job := waiting.get()) is not None:
            side.run(*job, ways)
            reported.put((job[0], job[1][0]))
        side.isolated.end()
    except BaseException as error:  # it is raised again where the reports are awaited
        reported.put(error)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", help="a commit or a folder")
    parser.add_argument("--new", default=str(ROOT), help="the other side; default this tree")
    parser.add_argument("--sets", default=DEFAULT, help=f"of {', '.join(SETS)}; default {DEFAULT}")
    parser.add_argument("--limit", type=int, help="the first so many cases of each set")
    parser.add_argument("--every", type=int, default=1, help="every n-th case")
    parser.add_argument(
        "--known", action="store_true", help="only cases of which both sides have reported in earlier runs"
    )
    parser.add_argument("--only", default="", help="cases whose names begin so, separated by commas")
    parser.add_argument("--ways", default="", help="of count, train, analyze and profile; default all that a set has")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once, of both sides together")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    groups = options.sets.split(",")
    if unknown := {*groups} - {*SETS}:
        parser.error(f"no set {', '.join(unknown)}; there are {', '.join(SETS)}")
    sys.path.insert(0, str(ROOT))
    # Remove the worktree and end the processes also when this process gets a signal to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    signal.signal(signal.SIGINT, lambda *_: sys.exit("interrupted"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    out = options.out / (options.ways.replace(",", "_") or "all")
    try:
        with tree_of(options.reference) as old, tree_of(options.new) as new:
            names = [options.reference, "new" if new == ROOT else options.new]
            sides = [
                Side(tree.name if Path(name).is_dir() else name.replace("/", "_"), tree, out)
                for name, tree in zip(names, (old, new), strict=True)
            ]
            comparison = run(sides, groups, options)
    finally:
        Isolated.end_all()
    (out / "table.md").write_text(comparison.table())
    print(comparison.table())
    return bool(comparison.unexplained)


if __name__ == "__main__":
    sys.exit(main())

"""Old and new side by side: the same models counted by two states of the library, and every difference in what they report.

    python -m benchmarks.side_by_side 74eede1 --sets fuzz,odd [--limit 100] [--only NAME] [--ways count] [--jobs 2]

The reference is a commit, of which a temporary ``git worktree`` is made, or a folder. Each side runs in processes of its own:
the library is the side's, the models are those of this tree, with equal seeds. What a side reports of a case (calls, scopes,
costs, memory over time, missing, sums, warnings, errors: see ``facts.py``) is a line in ``OUT/SIDE/SET.jsonl``, where SIDE names the
contents of the library, of the cases, and the versions. So a run goes on where one was stopped, and the reference is run once.
The table is ``OUT/table.md``. A difference needs a cause in ``causes.py``: one without makes the exit status 1.

The sets: fuzz (random nets), odd (``tests/trace``), timm, torchvision, transformers, diffusers, menagerie (``MENAGERIE=path/to/torchlens``).
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
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.isolated import Isolated

from .cases import SETS, Case
from .causes import CAUSES
from .compare import Difference, differences
from .facts import SECONDS, digest, facts_of, packed, unpacked, use_library

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "side_by_side"
CASES = ("benchmarks", "tests/trace/odd_models.py", "tests/trace/programs.py", "tests/ranks.py")
"""What decides on the cases and their facts, beside the library."""
JOBS_PER_PROCESS = 100
DEFAULT = "fuzz,odd"


class Side:
    """One state of the library: the tree that it is in, and the facts that it reported, in files."""

    def __init__(self, name: str, tree: Path, out: Path) -> None:
        self.name, self.tree = name, tree
        self.folder = out / f"{name}-{contents(tree)}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.places: dict[tuple[str, str], int] = {}
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.isolated = Isolated(use_library, str(tree), jobs=JOBS_PER_PROCESS)

    def read(self, group: str) -> None:
        """Read what is already known of a set; the facts themselves stay in the file."""
        if (path := self.folder / f"{group}.jsonl").exists():
            with path.open("rb") as file:
                for line in iter(file.readline, b""):
                    if line.endswith(b"\n"):  # one that was stopped while it wrote left a part of a line
                        self._know(group, json.loads(line), file.tell() - len(line))

    def _know(self, group: str, row: dict[str, Any], place: int) -> None:
        key = group, row["case"]
        self.places[key] = place
        self.rows[key] = {name: row[name] for name in ("digests", "seconds")}

    def run(self, group: str, case: Case, ways: list[str]) -> None:
        """Have a process of this side report of a case, and keep it."""
        try:
            row = self.isolated(facts_of, group, *case, ways, str(self.tree), seconds=SECONDS * 8)
        except (BrokenProcessPool, TimeoutError) as error:
            facts = {"process": {"raises": [type(error).__name__, "it ended the process"]}}
            digests = {way: {part: digest(value) for part, value in parts.items()} for way, parts in facts.items()}
            row = {"case": case[0], "digests": digests, "seconds": {}, "facts": packed(json.dumps(facts))}
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
    """Return a name for all that the facts depend on: this library, the cases, and the versions of what they use."""
    found = hashlib.sha256()
    files = sorted((tree / "fxflops").rglob("*.py"))
    for place in CASES:
        path = ROOT / place
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for path in files:
        if path.parent != Path(__file__).parent or path.name in ("facts.py", "cases.py"):
            found.update(path.read_bytes())
    for package in ("torch", "timm", "torchvision", "transformers", "diffusers"):
        found.update(installed(package).encode())
    return found.hexdigest()[:12]


def installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except ImportError:
        return ""


@contextlib.contextmanager
def tree_of(reference: str) -> Iterator[Path]:
    """Yield the folder of a reference: a folder as it is, or a temporary worktree of a commit."""
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


def cause_of(case: str, difference: Difference) -> str:
    """Return the cause of a difference; "" if none is known."""
    for *patterns, reason in CAUSES:
        texts = (case, difference.way, difference.place)
        if all(re.fullmatch(pattern, text) for pattern, text in zip(patterns, texts, strict=True)):
            return reason
    return ""


class Comparison:
    """What came out of comparing: of each set its cases and differences."""

    def __init__(self, sides: list[Side]) -> None:
        self.sides = sides
        self.cases: Counter[str] = Counter()
        self.unrun: Counter[str] = Counter()
        self.differing: dict[str, dict[str, list[Difference]]] = {}
        self.seconds: dict[str, list[float]] = {}

    def compare(self, group: str, case: str, ways: list[str]) -> None:
        """Compare a case of which both sides have reported."""
        key = group, case
        rows = [side.rows[key] for side in self.sides]
        self.cases[group] += 1
        sums = self.seconds.setdefault(group, [0.0, 0.0])
        for i, row in enumerate(rows):
            sums[i] += sum(row["seconds"].values())
        self.unrun[group] += not any(row["seconds"] for row in rows)
        if rows[0]["digests"] == rows[1]["digests"]:
            return
        old, new = (chosen(side.facts(key), ways) for side in self.sides)
        if found := differences(old, new):
            self.differing.setdefault(group, {})[case] = found
            for each in found:
                print(f"{group} {case}: {each}  [{cause_of(f'{group}/{case}', each) or 'UNEXPLAINED'}]", flush=True)

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
        """Return the sets with their cases and differences, and each difference with its cause."""
        old, new = (side.name for side in self.sides)
        lines = [
            "# Old and new side by side",
            "",
            f"Reference {old}, beside {new}; {', '.join(filter(None, map(installed, ('torch', 'timm', 'torchvision', 'transformers', 'diffusers'))))}, "
            f"Python {platform.python_version()}. Seconds are those of the processor in the counts themselves.",
            "",
            f"| set | cases | equal | different | neither runs | {old} s | {new} s |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for group, cases in self.cases.items():
            different = len(self.differing.get(group, ()))
            equal = cases - different - self.unrun[group]
            before, after = self.seconds[group]
            lines.append(
                f"| {group} | {cases:,} | {equal:,} | {different} | {self.unrun[group]} | {before:.1f} | {after:.1f} |"
            )
        by_cause: dict[str, list[str]] = {}
        for group, found in self.differing.items():
            for case, each_of_case in found.items():
                for each in each_of_case:
                    by_cause.setdefault(cause_of(f"{group}/{case}", each), []).append(f"{group} {case}: {each}")
        unexplained = by_cause.pop("", [])
        if by_cause:
            lines += ["", "Explained:", ""]
            lines += [f"- {cause}: {len(found)}, first {found[0]}" for cause, found in by_cause.items()]
        if unexplained:
            lines += ["", f"Not explained: {len(unexplained)}", "", *(f"- {each}" for each in unexplained)]
        return "\n".join(lines) + "\n"


def chosen(facts: dict[str, Any], ways: list[str]) -> dict[str, Any]:
    return {way: parts for way, parts in facts.items() if not ways or way in ways or way in ("build", "process")}


def run(sides: list[Side], groups: Iterable[str], options: argparse.Namespace) -> Comparison:
    """Have both sides report of all cases, and compare as reports come in."""
    comparison = Comparison(sides)
    ways = options.ways.split(",") if options.ways else []
    for group in groups:
        began = time.perf_counter()
        for side in sides:
            side.read(group)
        cases = [
            case for case in SETS[group].names(options.limit) if case[0].startswith(tuple(options.only.split(",")))
        ]
        cases = cases[:: options.every]
        done: queue.SimpleQueue[str] = queue.SimpleQueue()
        todo = [[case for case in cases if (group, case[0]) not in side.rows] for side in sides]
        busy = [side for side, its in zip(sides, todo, strict=True) if its]
        threads = []
        for side, its in zip(sides, todo, strict=True):
            waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
            for case in its:
                waiting.put(case)
            count = max(1, options.jobs // max(1, len(busy))) if its else 0
            threads += [
                threading.Thread(target=_work, args=(side, group, waiting, ways, done), daemon=True)
                for _ in range(count)
            ]
        for thread in threads:
            thread.start()
        left = {case[0] for case in cases}
        arrived = itertools.chain([case[0] for case in cases], (done.get() for _ in range(sum(map(len, todo)))))
        for number, name in enumerate(arrived):
            if name in left and all((group, name) in side.rows for side in sides):
                left.remove(name)
                comparison.compare(group, name, ways)
            if number >= len(cases) and number % 100 == 0:
                print(f"{group}: {len(cases) - len(left)} of {len(cases)}", flush=True)
        for thread in threads:
            thread.join()
        print(f"{group}: {len(cases)} cases in {time.perf_counter() - began:.0f} s", flush=True)
    return comparison


def _work(
    side: Side, group: str, waiting: queue.SimpleQueue[Case], ways: list[str], done: queue.SimpleQueue[str]
) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            case = waiting.get_nowait()
            side.run(group, case, ways)
            done.put(case[0])
    side.isolated.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", help="a commit or a folder")
    parser.add_argument("--sets", default=DEFAULT, help=f"of {', '.join(SETS)}; default {DEFAULT}")
    parser.add_argument("--limit", type=int, help="the first so many cases of each set")
    parser.add_argument("--every", type=int, default=1, help="every n-th case")
    parser.add_argument("--only", default="", help="cases whose names begin so, separated by commas")
    parser.add_argument("--ways", default="", help="of count, train, analyze and profile; default all that a set has")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once, of both sides together")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    out = options.out / (options.ways.replace(",", "_") or "all")
    with tree_of(options.reference) as tree:
        name = Path(options.reference).resolve().name if Path(options.reference).is_dir() else options.reference
        comparison = run([Side(name, tree, out), Side("new", ROOT, out)], options.sets.split(","), options)
    (out / "table.md").write_text(comparison.table())
    print(comparison.table())
    return bool(comparison.unexplained)


if __name__ == "__main__":
    sys.exit(main())

"""Run the test suite on other versions of torch, transformers and Python: build each environment, run the tests, write the table.

    python benchmarks/matrix.py                                  # every row without a result
    python benchmarks/matrix.py --torch 2.6 --workers 1 --keep   # the rows of one torch; keep the environment
    python benchmarks/matrix.py --torch 2.6 --in ENVIRONMENT     # in an existing environment
    python benchmarks/matrix.py --torch 2.6 --in ENVIRONMENT --again   # only the tests that failed there

Results are saved in ``benchmarks/results/matrix.json`` with the commit that was tested. Running a row again replaces its result.
With ``--again``, the new outcome of each failed test is recorded next to the old one, with the new commit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import tomllib

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import processor

ROOT = Path(__file__).resolve().parents[1]

RESULTS = ROOT / "benchmarks" / "results"
WANTED = (
    ("3.10", "2.6", "4"), ("3.11", "2.6", "4"), ("3.11", "2.8", "4"), ("3.12", "2.8", "5"), ("3.12", "2.10", "5"),
    ("3.11", "newest", "5"), ("3.13", "newest", "5"), ("3.10", "newest", "4"),
)  # fmt: skip
"""The rows: a version of Python, a version of torch, and a major version of transformers. Every version is in at least one row. The
last row combines the newest torch with the oldest Python and transformers."""
ASKED = ("torch", "torchvision", "transformers", "timm", "numpy", "pytest")
NOT_FOR_TESTS = ("ruff", "mypy", "types-tabulate")
VERSIONS = """
import importlib.metadata, json, sys
found = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
print(json.dumps({"python": sys.version.split()[0], **{n: found.get(n, "") for n in sys.argv[1:]}}))
"""


@dataclass
class Row:
    """One environment and the suite's results in it, or why it could not be built."""

    python: str
    torch: str
    transformers: str
    versions: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    again: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    missing: str = ""
    commit: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.python, self.torch, self.transformers


def requirements(torch: str, transformers: str) -> list[str]:
    """Return the dependencies of the project and of its tests, pinned to the row's versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    pinned = {"torch": "torch" if torch == "newest" else f"torch=={torch}.*",
              "transformers": f"transformers>={transformers}.0,<{int(transformers) + 1}"}  # fmt: skip
    names = {line: line.split(">")[0] for line in wanted}
    return [pinned.get(name, line) for line, name in names.items() if name not in NOT_FOR_TESTS]


def built(row: Row, folder: Path) -> Path | None:
    """Build a new environment and return its interpreter. If that fails, return None and set ``row.missing`` to the reason."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    base = next(pyenv.glob(f"versions/{row.python}.*/bin/python"), None) or shutil.which(f"python{row.python}")
    if base is None:
        row.missing = f"no Python {row.python} on the machine"
        return None
    subprocess.run([base, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = subprocess.run([python, "-m", "pip", "install", "-q", *requirements(row.torch, row.transformers)],
                         capture_output=True, text=True, check=False)  # fmt: skip
    if pip.returncode:
        errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")]
        row.missing = "not installable: " + " ".join(errors or pip.stderr.splitlines()[-1:])
        return None
    return python


def commit() -> str:
    """Return the current commit, marked if there are uncommitted changes outside benchmarks."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", ":!benchmarks"], cwd=ROOT, check=False)
    return head.stdout.strip() + " with changes" * bool(changed.returncode)


def cases_of(python: Path, *arguments: str) -> list[ElementTree.Element]:
    """Run tests of this checkout in an environment and return pytest's test cases."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
        return list(ElementTree.parse(report).iter("testcase"))


def name_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def place_of(module: str, name: str) -> str:
    """Return the pytest argument that runs one test. A file that could not be collected has no test name: run the whole file."""
    return f"{module.replace('.', '/')}.py::{name}" if module else f"{name.replace('.', '/')}.py"


def has_failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def run_suite(row: Row, python: Path, workers: int, tests: list[str]) -> None:
    """Run this checkout's tests in an environment and fill in the row."""
    asked = subprocess.run([python, "-c", VERSIONS, *ASKED], capture_output=True, text=True, check=True)
    row.versions, row.commit = json.loads(asked.stdout), commit()
    start = time.monotonic()
    cases = cases_of(python, "-n", str(workers), *tests)
    row.seconds = round(time.monotonic() - start)
    bad = [case for case in cases if has_failed(case)]
    skips = [s.get("message", "") for c in cases if (s := c.find("skipped")) is not None]
    row.failed = sorted({*map(name_of, bad)})
    row.skipped = dict(Counter(skips).most_common())
    row.passed = len(cases) - len(bad) - len(skips)


def run_again(row: Row, python: Path) -> None:
    """Rerun the tests that failed in this row, and record the new outcome of each."""
    files = {name: place_of(*name.split("::", 1)) for name in row.failed}
    at = commit()
    for case in cases_of(python, "-n", "0", *files.values()):
        skip = case.find("skipped")
        now = "fails" if has_failed(case) else "passes" if skip is None else f"skipped, {skip.get('message')}"
        row.again[name_of(case)] = f"{now} ({at})"


def kept() -> dict[tuple[str, str, str], Row]:
    path = RESULTS / "matrix.json"
    rows = [Row(**one) for one in json.loads(path.read_text())] if path.exists() else []
    return {row.key: row for row in rows}


def keep(row: Row) -> None:
    rows = {**kept(), row.key: row}
    order = sorted(
        rows.values(), key=lambda r: (r.torch == "newest", [int(n) for n in r.torch.split(".") if n.isdigit()], *r.key)
    )
    (RESULTS / "matrix.json").write_text(json.dumps([asdict(r) for r in order], indent=1) + "\n")
    (RESULTS / "matrix.md").write_text(page(order))


def page(rows: list[Row]) -> str:
    """Return the page: the table, the failures by name, and the skip reasons."""
    head = ("Python", *ASKED, "passed", "failed", "skipped", "minutes", "commit")
    lines = ["# The suite on other versions", "", f"`benchmarks/matrix.py`, on {processor()}, no GPU.", ""]
    lines += [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for row in (r for r in rows if not r.missing):
        versions = [row.versions[name] for name in ("python", *ASKED)]
        numbers = [row.passed, len(row.failed), sum(row.skipped.values()), round(row.seconds / 60, 1)]
        lines.append(f"| {' | '.join(map(str, [*versions, *numbers, row.commit]))} |")
    if missing := [r for r in rows if r.missing]:
        lines += ["", "Not run:", ""]
        whys: dict[str, list[str]] = {}
        for row in missing:
            whys.setdefault(row.missing, []).append(f"torch {row.torch} with transformers {row.transformers}")
        lines += [f"- {why}: {', '.join(which)}" for why, which in whys.items()]
    if any(r.failed for r in rows):
        lines += ["", "Failed, and what the same test did when it was run again at a later commit:", ""]
        lines += [
            f"- torch {r.versions['torch']}, Python {r.python}: `{name}`; {r.again.get(name, 'not run again')}"
            for r in rows
            for name in r.failed
        ]
    ran = [r for r in rows if not r.missing]
    reasons = Counter({why: n for r in ran for why, n in r.skipped.items()})
    names = [f"{r.torch}/{r.transformers}" for r in ran]
    lines += ["", "Skipped, by reason (columns: torch/transformers):", "", f"| reason | {' | '.join(names)} |"]
    lines += ["|" + " --- |" * (len(ran) + 1)]
    lines += [f"| {why} | {' | '.join(str(r.skipped.get(why, '')) for r in ran)} |" for why, _ in reasons.most_common()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="*", default=[], help="run these alone, known or not")
    parser.add_argument("--transformers", nargs="*", default=[], help="of those, these major versions alone")
    parser.add_argument("--python", nargs="*", default=[], help="of those, these versions alone")
    parser.add_argument("--in", dest="inside", type=Path, help="an environment that is there already")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where environments are built")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="do not delete the environment afterwards")
    parser.add_argument("--again", action="store_true", help="run the tests alone that failed in the row")
    parser.add_argument("tests", nargs="*", default=[])
    args = parser.parse_args()
    for python, torch, transformers in WANTED:
        row = Row(python, torch, transformers)
        choices = ((args.python, python), (args.torch, torch), (args.transformers, transformers))
        if any(given and name not in given for given, name in choices) or (not args.torch and row.key in kept()):
            continue
        folder = args.inside or args.folder / f"matrix-{python}-{torch}-{transformers}"
        interpreter = folder / "bin" / "python" if args.inside else built(row, folder)
        if interpreter is not None and args.again:
            row = kept()[row.key]
            run_again(row, interpreter)
        elif interpreter is not None:
            run_suite(row, interpreter, args.workers, args.tests)
        keep(row)
        if not args.inside and not args.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

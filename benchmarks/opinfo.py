"""Check fxflops on torch's own databases of operators, modules and optimizers: each is counted or listed, and all ways to count agree.

    python benchmarks/opinfo.py [--only op/div] [--samples 2] [--jobs 2]

Each entry of a database has a row. Its samples in several dtypes are checked (``opinfo_checks.py``) against the function's other
spellings, ``analyze``, FlopCounterMode, the CPU's allocator, vmap and autocast. Rows are saved in ``results/opinfo.jsonl``, so that a
stopped run can be resumed. The table is ``results/opinfo.md``. If a disagreement has no cause in ``opinfo_causes.py``, the exit
status is 1. The databases need ``pip install expecttest``.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
import warnings
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.isolated import Isolated
from benchmarks.opinfo_cases import cases, entries
from benchmarks.opinfo_causes import CAUSES
from benchmarks.opinfo_checks import Checked

KEPT = Path(__file__).parent / "results" / "opinfo.jsonl"
Row = dict[str, Any]


@cache
def known_entries() -> dict[str, Any]:
    return entries()


def checked(key: str, most: int, seconds: int) -> Row:
    """Check the samples of an entry and return its row."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    began, made, found, listed, samples = time.perf_counter(), Counter[str](), [], set[str](), 0
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(seconds)
    name = ""
    try:
        for case in cases(key, known_entries()[key], most):
            name = case.name
            result = Checked(case)
            samples += 1
            made += result.made
            found += [[kind, case.name, what] for kind, what in result.found]
            listed |= result.listed
    except _TimeIsUp:
        found.append(["in time", name, f"not done after {seconds} s"])
    except Exception as error:
        found.append(["the benchmark raises", name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"])
    finally:
        signal.alarm(0)
    took = round(time.perf_counter() - began, 2)
    return {"entry": key, "samples": samples, "made": made, "found": found, "listed": sorted(listed), "seconds": took}


class _TimeIsUp(BaseException):
    """Not an Exception, so that no check mistakes it for an error of the operator."""


def _raise_timeout(*_: Any) -> None:
    raise _TimeIsUp


def isolated_check(isolated: Isolated, job: tuple[str, int, int]) -> Row:
    try:
        row: Row = isolated(checked, *job)
    except BrokenProcessPool:
        found = [["it ended the process", "", ""]]
        row = {"entry": job[0], "samples": 0, "made": {}, "found": found, "listed": [], "seconds": 0}
    return row


def cause_of(entry: str, kind: str, case: str, what: str) -> str:
    """Return the cause of a disagreement; "" if none is known."""
    for *patterns, reason in CAUSES:
        if all(re.fullmatch(pattern, text) for pattern, text in zip(patterns, (entry, kind, case), strict=True)):
            return reason
    return ""


def known() -> dict[str, Row]:
    """Return the saved rows by entry, the newest row of each."""
    return {row["entry"]: row for row in map(json.loads, KEPT.read_text().splitlines())} if KEPT.exists() else {}


def table(rows: list[Row], entries: int) -> str:
    """Return the page: the numbers of entries, samples and checks, and every disagreement with its cause."""
    made = sum((Counter(row["made"]) for row in rows), Counter[str]())
    databases = Counter(row["entry"].partition("/")[0] for row in rows)
    apart = [(cause_of(row["entry"], *each), row["entry"], *each) for row in rows for each in row["found"]]
    kinds = Counter(kind for _, _, kind, _, _ in apart)
    causes: dict[str, list[tuple[str, ...]]] = {}
    for cause, *rest in apart:
        causes.setdefault(cause, []).append(tuple(rest))
    unnamed = causes.pop("", [])
    samples = sum(row["samples"] for row in rows)
    disagreeing = len({(entry, case) for _, entry, _, case, _ in apart})
    lines = [
        "# torch's own databases",
        "",
        f"torch {torch.__version__}, fxflops {fxflops.__version__}, on the CPU: {len(rows)} of {entries} entries "
        f"({', '.join(f'{name} {count}' for name, count in databases.items())}), {samples:,} samples. "
        f"On {samples - disagreeing:,} of them every check agrees; {disagreeing:,} have a disagreement, listed below by its cause.",
        "",
        f"Disagreements without a named cause: {len(unnamed)}.",
        "",
        *(f"- {entry}, {case}: {kind}: {what}" for entry, kind, case, what in unnamed),
        "",
        "| check | made | disagree |",
        "|---|---:|---:|",
        *(f"| {kind} | {max(made[kind], kinds[kind]):,} | {kinds[kind] or ''} |" for kind in sorted({*made, *kinds})),
        "",
        "## Disagreements by cause",
        "",
    ]
    for cause, each in sorted(causes.items(), key=lambda item: -len(item[1])):
        names = Counter(f"{entry.partition('/')[2]}: {kind}" for entry, kind, _, _ in each)
        lines += [
            f"### {cause}",
            "",
            f"{len(each)} checks of {len({(entry, case) for entry, _, case, _ in each})} samples:",
            "",
        ]
        lines += [f"- {name}{f' x{count}' if count > 1 else ''}" for name, count in names.items()] + [""]
    listed = Counter(op for row in rows for op in row["listed"])
    lines += ["## Listed as missing", "", *(f"- {op}, in {count} entries" for op, count in sorted(listed.items()))]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="entries that contain one of these, separated by commas")
    parser.add_argument("--samples", type=int, default=2, help="of each entry and dtype at most so many")
    parser.add_argument("--seconds", type=int, default=120, help="the time limit of an entry")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="check again what disagrees without a cause")
    options = parser.parse_args()
    rows = known()
    names = [key for key in entries() if any(part in key for part in options.only.split(","))]
    apart = {key for key, row in rows.items() if any(not cause_of(key, *each) for each in row["found"])}
    todo = [key for key in names if key not in rows or options.only or (options.again and key in apart)]
    KEPT.parent.mkdir(exist_ok=True)
    with ThreadPool(options.jobs) as threads, KEPT.open("a") as file:
        check = partial(isolated_check, Isolated())
        for row in threads.imap_unordered(check, [(key, options.samples, options.seconds) for key in todo]):
            rows[row["entry"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            for kind, case, what in row["found"]:
                if not cause_of(row["entry"], kind, case, what):
                    print(f"{row['entry']}, {case}: {kind}: {what}", flush=True)
    KEPT.with_suffix(".md").write_text(table([*known().values()], len(entries())))
    left = sum(not cause_of(key, *each) for key, row in rows.items() for each in row["found"])
    print(len(rows), "entries,", left, "disagreements without a named cause")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())

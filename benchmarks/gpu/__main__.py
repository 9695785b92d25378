"""Try the library on a GPU: tests, counts, times, memory, bounds, times by operation, errors and predictions, in one command.

    python -m benchmarks.gpu --out FOLDER [--minutes 9] [--parts counts,memory] [--stand-in] [--plan] [--needs]

The parts run in order of importance, each in its own process with its own time limit. The limits add up to ``--minutes``.
A part writes its table, ``FOLDER/PART.md``, as soon as it has a row. Its output is in ``PART.log``, and the traceback of a
case that raised is in ``PART.errors.txt``. ``FOLDER/summary.md`` says how far each part got. To resume, call it again with the
same folder: finished parts are skipped, and the others run their missing cases.

``--stand-in`` runs everything on the CPU at tiny sizes; the CPU stands in for a GPU. ``--plan`` shows the limits, with an
estimate of the time from the number of forwards. ``--needs`` lists the packages that are missing here, by their pip names.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

BEGAN = time.monotonic()
ROOT = Path(__file__).parents[2]
SHARES = {
    "suite": 0.12,
    "counts": 0.19,
    "times": 0.20,
    "memory": 0.17,
    "bounds": 0.11,
    "operations": 0.075,
    "failures": 0.065,
    "predictions": 0.07,
}
"""The parts in order of importance. A part's limit is this share of the total time."""
PIP_NAMES = {"xdist": "pytest-xdist"}
STARTING = 10.0
"""Seconds that a part needs to import its libraries and open the device, in a run on an H100."""
CASE_SECONDS, FORWARD_SECONDS = 0.39, 0.082
"""Seconds to build a case's model, and for one observed forward: a least-squares fit to the parts of the same run. The estimate
is within 10% for all parts together, and within 60% for a single part."""


def part_named(name: str) -> ModuleType:
    """Return the module of a part. A name with dots is the full name of a module outside this package."""
    return importlib.import_module(name if "." in name else f"benchmarks.gpu.{name}")


def needs(names: list[str]) -> list[str]:
    """Return the pip names of the packages that the parts import but that are not installed."""
    wanted = {"tabulate", "rich", "typer", *(package for name in names for package in part_named(name).NEEDS)}
    missing = [package for package in sorted(wanted) if importlib.util.find_spec(package) is None]
    return [PIP_NAMES.get(package, package) for package in missing]


def plan(names: list[str], minutes: float) -> list[str]:
    """Return a table of the parts: limit, cases, forwards, and an estimate of their seconds."""
    from benchmarks.gpu.bench import Bench, markdown

    rows: list[list[Any]] = []
    for name in names:
        bench = Bench(Path(), 0.0, stand_in=False)
        cases = part_named(name).cases(bench)
        forwards = sum(case.forwards for case in cases)
        estimate = STARTING + CASE_SECONDS * len(cases) + FORWARD_SECONDS * forwards
        rows.append([name, limit(name, minutes), len(cases), forwards, estimate])
    rows.append(["all", *(sum(row[column] for row in rows) for column in range(1, 5))])
    head = ["part", "limit (s)", "cases", "forwards", "estimate (s)"]
    return markdown(head, [[name, *map(round, numbers)] for name, *numbers in rows])


def limit(name: str, minutes: float) -> float:
    """Return the time limit of a part, in seconds."""
    return SHARES[name] * minutes * 60


def run_in_process(name: str, out: Path, seconds: float, stand_in: bool) -> str:
    """Run a part in its own process, which is killed at the time limit. Return a description of how it ended."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", name, "--out", str(out), "--seconds", str(seconds)]
    if stand_in:
        command.append("--stand-in")
    with (out / f"{name}.log").open("a", encoding="utf8") as log:
        # The part gets its own session, so that processes that it starts are killed with it.
        child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if status is None:
        return f"stopped after {seconds:.0f} s"
    if status:
        return f"failed with exit status {status}: see {name}.errors.txt and {name}.log"
    return (out / f"{name}.state").read_text(encoding="utf8")


def run_here(name: str, out: Path, seconds: float, stand_in: bool) -> None:
    """Run a part in this process, which :func:`run_in_process` started."""
    warnings.simplefilter("ignore")
    faulthandler.dump_traceback_later(max(seconds - 3, 1), exit=False)  # so the log says where a part hangs
    from benchmarks.gpu.bench import Bench, run_part

    bench = None
    try:
        # The limit includes imports. A tenth of it is reserved, so that the last case can finish.
        bench = Bench(out, 0.9 * seconds - 3 - (time.monotonic() - BEGAN), stand_in)
        state = run_part(part_named(name), name, bench)
    except Exception:
        (out / f"{name}.errors.txt").open("a", encoding="utf8").write(traceback.format_exc())
        raise
    finally:
        if bench is not None:
            bench.close()
    (out / f"{name}.state").write_text(state, encoding="utf8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for tables, rows, logs and tracebacks")
    parser.add_argument("--minutes", type=float, default=9.0, help="the limits of the parts add up to this")
    parser.add_argument("--parts", default=",".join(SHARES), help="the parts to run, by name")
    parser.add_argument("--stand-in", action="store_true", help="run on the CPU at tiny sizes")
    parser.add_argument("--needs", action="store_true", help="list the packages that are missing, and stop")
    parser.add_argument("--plan", action="store_true", help="show limits and estimates, and stop")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [name.strip() for name in options.parts.split(",")]
    if unknown := [name for name in names if name not in SHARES and not options.part]:
        parser.error(f"no part named {', '.join(unknown)}; the parts are {', '.join(SHARES)}")
    if options.needs:
        print("\n".join(needs(names)) or "none is missing")
        return 0
    if (shortest := min(SHARES.values()) * options.minutes * 60) < STARTING:
        parser.error(
            f"--minutes {options.minutes:g} gives a part {shortest:.0f} s, which is less than it takes to start"
        )
    if options.plan:
        print("\n".join(plan(names, options.minutes)))
        return 0
    if options.out is None:
        parser.error("give --out FOLDER")
    out = options.out.resolve()
    if options.part:
        run_here(options.part, out, options.seconds, options.stand_in)
        return 0
    device = STAND_IN if options.stand_in else gpu_name()
    if not device:
        parser.error("torch finds no CUDA device here; --stand-in runs everything on the CPU, at tiny sizes")
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the running part is killed too
    try:
        return run_all(names, out, options.minutes, options.stand_in, device)
    except OtherDeviceError as error:
        parser.error(str(error))


STAND_IN = "a stand-in"


class OtherDeviceError(Exception):
    """The folder has results from another device."""


def gpu_name() -> str:
    """Return the name of the GPU; "" if torch finds none."""
    import torch  # only here: the parts import it in their own processes

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""


def run_all(names: list[str], out: Path, minutes: float, stand_in: bool, device: str) -> int:
    """Run the parts that are not done. Return 0 if all parts are done, 1 if one is not, 130 after Ctrl-C."""
    file = out / "summary.json"
    state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"device": device, "parts": {}}
    if state["device"] != device:
        raise OtherDeviceError(f"{out} has the results of {state['device']}, not of {device}: give another --out")
    ended = state["parts"]
    for name in names:
        if ended.get(name, {}).get("done"):
            print(f"{name}: done before", flush=True)
            continue
        seconds, start = limit(name, minutes), time.monotonic()
        interrupted = False
        try:
            words = run_in_process(name, out, seconds, stand_in)
        except KeyboardInterrupt:
            words, interrupted = "interrupted", True
        done = (
            not words.startswith(("stopped", "failed", "interrupted")) and "over" not in words and "raised" not in words
        )
        ended[name] = {
            "ended": words,
            "done": done,
            "seconds": round(time.monotonic() - start),
            "limit": round(seconds),
        }
        file.write_text(json.dumps(state, indent=1))
        rows = [f"| {part} | {row['ended']} | {row['seconds']} | {row['limit']} |" for part, row in ended.items()]
        head = ["# The parts of the GPU run", "", f"On {device}. The seconds are those of a part's last call.", ""]
        head += ["| part | ended | seconds | limit |", "|---|---|---:|---:|"]
        (out / "summary.md").write_text("\n".join([*head, *rows]) + "\n", encoding="utf8")
        print(f"{name}: {words} ({ended[name]['seconds']} of {seconds:.0f} s)", flush=True)
        if interrupted:
            print("the same command goes on from here", flush=True)
            return 130
    return int(not all(ended[name]["done"] for name in names))


if __name__ == "__main__":
    sys.exit(main())

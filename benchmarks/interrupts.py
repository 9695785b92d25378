"""Press Ctrl-C at random moments while commands run. Record whether each ended, its exit code, how soon, and any traceback.

    python benchmarks/interrupts.py [--tries 200]

Each try starts a command in its own process and sends SIGINT after a random time, at most the time that an undisturbed run
takes. If the command ends before the signal, the try is repeated. The table is ``benchmarks/results/interrupts.md``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
COMMANDS = (
    "--help",
    "ops softmax",
    "run resnet18.json --tree",
    "run timm:resnet18",
    "run timm:resnet18 --counts-only",
)
PATIENCE = 20.0
"""Seconds after the signal before a process is reported as "did not end"."""


def started(command: str, folder: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "fxflops", *command.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        arguments, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def tried(command: str, folder: str, longest: float) -> tuple[str, float]:
    """Return how a process ended, and the seconds from the signal to its end.

    If the process ended before the signal, return "" and the seconds that it ran.
    """
    run, begun = started(command, folder), time.perf_counter()
    with suppress(subprocess.TimeoutExpired):
        run.communicate(timeout=random.uniform(0.0, longest))
        return "", time.perf_counter() - begun
    if not _lives(run.pid):
        return "", time.perf_counter() - begun
    run.send_signal(signal.SIGINT)
    begun = time.perf_counter()
    try:
        _, said = run.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        run.kill()
        run.communicate()
        return "did not end", PATIENCE
    if run.returncode == 0:
        return "exit code 0 after the signal", time.perf_counter() - begun
    # Otherwise Python was still starting, and the command had no handler yet.
    own = str(ROOT / "fxflops" / "cli") in said
    traceback = f" with a traceback{'' if own else ' of Python starting'}" if "Traceback" in said else ""
    return f"exit code {run.returncode}{traceback}", time.perf_counter() - begun


def _lives(pid: int) -> bool:
    """Return whether a process is still running, as far as /proc shows: its memory map is empty once its exit code is settled."""
    with suppress(OSError):
        return bool(Path(f"/proc/{pid}/maps").read_text())
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    random.seed(asked.seed)
    # A shell makes background jobs ignore SIGINT, and the commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        started("run timm:resnet18 --counts-only --save resnet18.json", folder).communicate()
        for number, command in enumerate(COMMANDS):
            begun = time.perf_counter()
            started(command, folder).communicate()
            longest = time.perf_counter() - begun
            found: Counter[str] = Counter()
            slowest = 0.0
            wanted = asked.tries // len(COMMANDS) + (number < asked.tries % len(COMMANDS))
            while found.total() < wanted:
                how, seconds = tried(command, folder, longest)
                if how:
                    found[how] += 1
                    slowest = max(slowest, seconds)
                else:
                    longest = min(longest, seconds)
            how = ", ".join(f"{kind} x{times}" for kind, times in found.most_common())
            rows.append(f"| `fxflops {command}` | {longest:.1f} s | {wanted} | {how} | {slowest:.2f} s |")
            print(rows[-1], flush=True)
    head = "| command | undisturbed | tries | ended with | slowest to end |\n| --- | --- | --- | --- | --- |\n"
    about = (
        f"SIGINT at random times: `python benchmarks/interrupts.py --tries {asked.tries}`, torch {torch.__version__}.\n"
    )
    (RESULTS / "interrupts.md").write_text(f"{about}\n{head}" + "\n".join(rows) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()

"""The command as a process: Ctrl-C ends it at any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fxflops

ROOT = Path(fxflops.__file__).parents[1]
# A stand-in for torch that runs code while it is imported, and that no KeyboardInterrupt would end.
DEAF = """
import ctypes, os, sys, time

def report(text):
    print(text, file=sys.__stderr__, flush=True)

class Slow:
    def __del__(self):  # Python ignores what is raised here
        report("deaf")
        while True:
            time.sleep(0.01)

@ctypes.CFUNCTYPE(None)
def callback():  # and here
    report("deaf")
    while True:
        time.sleep(0.01)

def deleted():
    Slow()

def called():
    callback()

def caught():
    report("deaf")
    while True:
        try:
            time.sleep(10)
        except BaseException:
            report("caught")

globals()[os.environ["DEAF"]]()
"""
READY = "import fxflops.__main__ as main, sys; print('ready', file=sys.stderr, flush=True); main.main()"


def started(*arguments: str, folder: Path = ROOT, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def test_code_that_catches_everything_is_ended_too(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(DEAF)
    names = ("deleted", "called", "caught")
    runs = [started("-m", "fxflops", "run", "package:model", folder=tmp_path, DEAF=name) for name in names]
    for run in runs:
        assert run.stderr is not None
        assert run.stderr.readline() == "deaf\n"
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=20)
        assert (run.returncode, said) == (-signal.SIGINT, "")


def test_a_command_is_ended_at_any_moment_of_its_life() -> None:
    """Six delays; benchmarks/interrupts.py tries 200."""
    pytest.importorskip("timm")
    delays = (0.02, 0.1, 0.3, 0.8, 1.5, 2.5)
    runs = [started("-c", READY, "run", "timm:resnet18", "--batch", "64") for _ in delays]
    for run in runs:
        assert run.stderr is not None
        assert run.stderr.readline() == "ready\n"
    begun = time.perf_counter()
    for run, delay in zip(runs, delays, strict=True):
        time.sleep(max(0.0, begun + delay - time.perf_counter()))
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=20)
        assert (run.returncode, said) == (-signal.SIGINT, "")


def test_a_process_that_ignores_ctrl_c_goes_on_doing_so() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from fxflops.__main__ import main; import sys; "
    )
    code += "sys.argv = ['fxflops', '--version']; exec('try: main()\\nexcept SystemExit: pass'); "
    code += "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    run = started("-c", code)
    assert (run.communicate(timeout=60)[1], run.returncode) == ("", 0)

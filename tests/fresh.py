"""Fresh processes that need not import torch and fxflops: copies of one that has, and has used neither, nor the compiler."""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def one_thread_after_fork() -> None:
    """Have each later child of a fork set its number of threads at once.

    A child makes torch's pool of threads anew when a thread of it first sets a number. Where that is left to the threads of a
    backward pass, two of them make it at once at times, and the process is aborted ("Invalid thread pool!").
    """
    import torch

    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


class Fresh:
    """Runs ``python ARGUMENTS``; the process that is copied starts at the first call."""

    def __init__(self) -> None:
        self._original: subprocess.Popen[str] | None = None

    def run(
        self, *arguments: str, cwd: Path | None = None, stdout: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A script, or ``-c`` or ``-m`` and what they take; with ``stdout`` its output goes to that file, a terminal perhaps."""
        if self._original is None:
            variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._original = subprocess.Popen([sys.executable, __file__], env=variables, **pipes)
        assert self._original.stdin is not None
        assert self._original.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            said = [stdout or f"{folder}/stdout", f"{folder}/stderr"]
            variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
            asked = [arguments, str(cwd or Path.cwd()), said, variables]
            print(json.dumps(asked), file=self._original.stdin, flush=True)
            code = int(self._original.stdout.readline())
            texts = ["" if file == stdout else Path(file).read_text("utf8") for file in said]
        return subprocess.CompletedProcess(arguments, code, *texts)

    def close(self) -> None:
        if self._original is not None:
            self._original.communicate()


def serve() -> list[str]:
    """Make the copies that are asked for, and say how they end. In a copy return what it is to run."""
    for line in sys.stdin:
        arguments, cwd, files, variables = json.loads(line)
        with warnings.catch_warnings():  # from Python 3.12 on, of any thread: those of OpenMP are idle
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        for number, file in enumerate([os.devnull, *files]):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOCTTY), number)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(variables)
        sys.path[1:1] = [each for each in variables.get("PYTHONPATH", "").split(os.pathsep) if each]
        return list(arguments)
    return []


def become(first: str, *others: str) -> None:
    """Go on as Python does that was started with these arguments."""
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *others[1:]], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(others[0], "<string>", "exec"), vars(main))
    elif first == "-m":
        sys.argv, sys.path[0] = list(others), ""
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *others], str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    import sympy  # noqa: F401  (a large part of what the compiler loads)
    import torch

    import fxflops._public
    import fxflops.cli.app  # noqa: F401

    assert "torch._dynamo" not in sys.modules
    torch.set_num_threads(1)
    one_thread_after_fork()
    gc.freeze()
    if asked := serve():
        become(*asked)

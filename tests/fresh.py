"""Fresh processes without the cost of importing torch and fxflops: forks of a process that imported both and used neither.

The compiler is not loaded in them.
"""

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
    """Make every later forked child set its number of threads at once.

    A child rebuilds torch's thread pool when one of its threads first sets a number. If that is left to the threads of a backward
    pass, two of them sometimes rebuild it at the same time, and the process aborts ("Invalid thread pool!").
    """
    import torch

    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


class Fresh:
    """Runs ``python ARGUMENTS`` in a fork. The process to fork starts at the first call."""

    def __init__(self) -> None:
        self._original: subprocess.Popen[str] | None = None

    def run(
        self, *arguments: str, cwd: Path | None = None, stdout: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script, ``-c CODE`` or ``-m MODULE``, with arguments. With ``stdout`` the output goes to that file, e.g. a terminal."""
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
    """Fork for each request and report the exit codes. In a fork, return the arguments to run."""
    for line in sys.stdin:
        arguments, cwd, files, variables = json.loads(line)
        # From Python 3.12 on, fork warns about any other thread. OpenMP's are idle.
        with warnings.catch_warnings():
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
    """Continue as ``python`` started with these arguments."""
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

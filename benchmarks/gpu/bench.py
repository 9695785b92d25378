"""The building blocks of a part of the GPU run: its cases, the device that they run on, and the table of their rows.

A part is a module of this package with::

    TITLE = "..."                                        the heading of its table
    NEEDS = ("timm",)                                    the packages that it imports, except torch and fxflops
    def cases(bench: Bench) -> list[Case]: ...           in order of importance
    def table(rows: list[Row]) -> list[str]: ...         the lines below the heading, made only from saved rows

:func:`run_part` runs the cases one after the other. Each row is saved at once, as a line of ``NAME.jsonl``, and the table
``NAME.md`` is rewritten. So a stopped part leaves the rows that it has; started again, it runs only the cases without a row.
If a case raises, its traceback is added to ``NAME.errors.txt``. Such a case runs again the next time, and so does a case whose
row says that its time was ``over``.
"""

from __future__ import annotations

import gc
import json
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map_only

import fxflops
from benchmarks.machine import processor

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """One row of a table. ``run()`` returns its columns; ``forwards`` is roughly how many times it runs its model."""

    name: str
    run: Callable[[], Row]
    forwards: int


class Bench:
    """The device that a part runs on, and the part's time limit.

    With ``stand_in``, the CPU stands in for an accelerator (``tests/standin.py``), and cases should use tiny sizes. ``out`` is the
    folder for the part's files.
    """

    def __init__(self, out: Path, seconds: float, stand_in: bool) -> None:
        self.out, self.stand_in = out, stand_in
        self._ends = time.monotonic() + seconds
        self._close = ExitStack()
        self.device = torch.device("cpu" if stand_in else "cuda:0")
        self._standin: Any = None
        if stand_in:
            torch.set_num_threads(1)  # for small models, more threads would mostly wait for each other
            import pytest  # only the stand-in needs it

            from tests.standin import StandIn

            self._standin = StandIn()
            self._standin.take_over(self._close.enter_context(pytest.MonkeyPatch.context()))
            self._close.enter_context(self._standin.memory)

    def close(self) -> None:
        """Put torch's own accelerator back, if a stand-in took its place."""
        self._close.close()

    @property
    def left(self) -> float:
        """The seconds left until the part's limit."""
        return self._ends - time.monotonic()

    @property
    def module(self) -> Any:
        """The device's module, e.g. ``torch.cuda``. The stand-in has only some of its functions: check with hasattr."""
        return torch.get_device_module(self.device)

    def to(self, value: T) -> T:
        """Move a module, or the tensors in a structure, to the device."""
        if isinstance(value, torch.nn.Module):
            value.to(self.device)
        else:
            value = tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device), value)
        if self._standin is not None:
            self._standin.to(value)
        return value

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        torch.accelerator.synchronize(self.device)

    def empty(self) -> None:
        """Free all unreferenced memory, so that the next case starts with an empty device."""
        gc.collect()
        if hasattr(self.module, "empty_cache"):
            self.synchronize()
            self.module.empty_cache()

    @property
    def allocated(self) -> int:
        """The bytes of live tensors, according to the device's allocator."""
        return int(self.module.memory_allocated(self.device))

    def peak(self, run: Callable[[], Any]) -> int:
        """Return the peak bytes of live tensors during a run, according to the device's allocator."""
        self.synchronize()
        self.module.reset_peak_memory_stats(self.device)
        run()
        self.synchronize()
        return int(self.module.max_memory_allocated(self.device))

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return the wall time of a run, from an idle device to an idle device."""
        self.synchronize()
        start = time.perf_counter()
        run()
        self.synchronize()
        return time.perf_counter() - start

    def versions(self) -> str:
        """Return card, driver and versions, for the line under a table's heading."""
        if self.stand_in:
            card = f"a stand-in on {processor()}"
        else:
            card = f"{torch.cuda.get_device_name(self.device)}, driver {driver()}"
        torch_version = f"torch {torch.__version__}"
        if torch.backends.cudnn.is_available() and not self.stand_in:
            torch_version += f", cuDNN {torch.backends.cudnn.version()}"
        return f"{card}, {torch_version}, fxflops {fxflops.__version__}, Python {platform.python_version()}"


def driver() -> str:
    """Return the version of NVIDIA's driver; "unknown" if nvidia-smi is not installed."""
    if not shutil.which("nvidia-smi"):
        return "unknown"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0].strip() or "unknown"


def saved_rows(file: Path) -> list[Row]:
    """Return the rows of a ``.jsonl`` file; an empty list if there is no such file."""
    return [json.loads(line) for line in file.read_text(encoding="utf8").splitlines()] if file.exists() else []


def markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table. None is shown as "-", and a float with three significant digits."""

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "\\|")

    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows]


def write_table(part: ModuleType, name: str, versions: str, bench_out: Path, note: str = "") -> None:
    """Write ``NAME.md`` from the saved rows."""
    rows = saved_rows(bench_out / f"{name}.jsonl")
    errors = [row for row in rows if "error" in row]
    lines = [f"# {part.TITLE}", "", versions + "." + (f" {note}" if note else ""), ""]
    lines += part.table([row for row in rows if "error" not in row])
    if errors:
        lines += ["", "## Cases that raised", "", *(f"- {row['case']}: {row['error']}" for row in errors)]
    text = "\n".join(lines).replace(f"{ROOT}/", "")  # error messages contain paths
    (bench_out / f"{name}.md").write_text(text + "\n", encoding="utf8")


def run_part(part: ModuleType, name: str, bench: Bench) -> str:
    """Run the cases of a part that have no row yet, while there is time. Return a description of how far it got."""
    file = bench.out / f"{name}.jsonl"
    kept = [row for row in saved_rows(file) if "error" not in row and not row.get("over")]
    file.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf8")
    known = {row["case"] for row in kept}
    cases, versions = part.cases(bench), bench.versions()
    failed = 0
    for case in cases:
        if case.name in known:
            continue
        if bench.left < 0:
            break
        start = time.monotonic()
        try:
            row = case.run()
        except Exception as error:
            failed += 1
            message = " ".join(str(error).split())[:300]
            row = {"error": f"{type(error).__name__}: {message}"}
            with (bench.out / f"{name}.errors.txt").open("a", encoding="utf8") as errors:
                errors.write(f"{case.name}\n{traceback.format_exc()}\n")
        row = {"case": case.name, **row, "seconds spent": round(time.monotonic() - start, 2)}
        if not row.get("over"):
            known.add(case.name)
        with file.open("a", encoding="utf8") as rows:
            rows.write(json.dumps(row) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)
        write_table(part, name, versions, bench.out)
        bench.empty()
    done = sum(case.name in known for case in cases)
    whole = f"{done} case{'s' * (done != 1)}"
    missing = f"{done} of {len(cases)} cases, the time was over" if done < len(cases) else whole
    write_table(part, name, versions, bench.out, f"{missing}." if done < len(cases) else "")
    return missing + (f", {failed} raised" if failed else "")

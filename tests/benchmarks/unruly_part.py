"""A part of the GPU run whose second case raises the first time, and whose third case never ends."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.gpu.bench import Bench, Case, Row, markdown

TITLE = "An unruly part"
NEEDS = ("no_such_package", "pytest")


def cases(bench: Bench) -> list[Case]:
    def good() -> Row:
        return {"number": 1.23456}

    def bad() -> Row:
        marker = bench.out / "ran before"
        if marker.exists():
            return {"number": None}
        marker.touch()
        raise ValueError("not | the first time")

    def endless() -> Row:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (bench.out / "pid of its child").write_text(str(child.pid))
        time.sleep(600)
        return {}

    return [Case("good", good, 1), Case("bad", bad, 1), *([Case("endless", endless, 1)] if bench.left > 1 else [])]


def table(rows: list[Row]) -> list[str]:
    return markdown(["case", "number"], [[row["case"], row["number"]] for row in rows])

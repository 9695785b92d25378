"""DeepSpeed's own profiler, for the tests that need it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.profiled import Clock

sys.path.insert(0, str(Path(__file__).parents[1] / "conventions"))
from tests.conventions.replaced import restored


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The profiler's module. Afterwards torch is restored, and the profiler's stacks are empty."""
    if "DS_ACCELERATOR" not in os.environ:
        monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: DS_BUILD_OPS=0 pip install deepspeed")
    from deepspeed.profiling.flops_profiler import profiler

    monkeypatch.setattr(profiler, "time", Clock())
    with restored():
        yield profiler
    profiler.module_flop_count.clear()
    profiler.module_mac_count.clear()

"""Copies of this process, wherever the tests run."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from fxflops.distributed import copies

LONG = 60
"""Seconds after which a test that waits for a copy is interrupted."""


@pytest.fixture
def _forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow forks on any number of cores and with any threads running. Check that no copy is left behind."""

    def late(*args: Any) -> None:
        raise TimeoutError("a copy hangs")

    monkeypatch.setattr(copies, "may_fork", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONG)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert multiprocessing.active_children() == []

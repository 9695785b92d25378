"""Work in copies of this process: results are the same as without copies, errors name the item, and no copy is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fxflops.distributed import copies
from fxflops.distributed.copies import map_in_copies, may_fork
from fxflops.errors import InputError, RunError
from tests.distributed import simulates

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux alone")
HERE = os.getpid()
LONG = 60.0


def product(n: int) -> tuple[int, float]:
    """Return the process id, and the sum of a matrix product that is large enough for several threads."""
    x = torch.full((n, n), 0.5)
    return os.getpid(), (x @ x).sum().item()


@pytest.mark.usefixtures("_forks")
def test_copies_compute_after_this_process_has_used_its_threads() -> None:
    """OpenMP's threads of this process do not exist in a copy. A copy that waited for them would hang."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sizes = [256, 320, 384, 448]
        alone = [product(n)[1] for n in sizes]
        told = map_in_copies(product, sizes, 2, str)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert [result for _, result in told] == alone == [n**3 / 4 for n in sizes]
    assert len({pid for pid, _ in told} | {HERE}) == 3


@pytest.mark.usefixtures("_forks")
def test_an_error_is_that_of_this_process() -> None:
    done: list[int] = []

    def work(item: int) -> int:
        if item == 2:
            raise ValueError("no such item")
        done.append(item)
        return item

    with pytest.raises(ValueError, match="no such item"):
        map_in_copies(work, range(5), 2, str)
    assert 3 not in done  # copies append to lists of their own; this process stops at item 2


@pytest.mark.usefixtures("_forks")
def test_a_result_that_cannot_be_sent_is_made_here() -> None:
    assert [result() for result in map_in_copies(lambda item: lambda: item, [1, 2], 2, str)] == [1, 2]


@pytest.mark.usefixtures("_forks")
def test_a_killed_copy_is_named() -> None:
    def work(item: int) -> int:
        if item == 2 and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LONG if item == 3 else 0)
        return item

    with pytest.raises(RunError, match="item 2: the process that ran this simulation ended early with exit code -9"):
        map_in_copies(work, range(4), 2, "item {}".format)


@pytest.mark.usefixtures("_forks")
def test_an_interrupt_ends_the_copies() -> None:
    def interrupt(item: int) -> None:
        if item:
            os.kill(os.getppid(), signal.SIGINT)
        time.sleep(LONG)

    with pytest.raises(KeyboardInterrupt):
        map_in_copies(interrupt, [0, 1], 2, str)


@simulates
def test_in_a_process_of_its_own() -> None:
    """A copy of a process in which autograd has threads cannot compute gradients, so ``may_fork`` refuses. After a simulation,
    copies do compute gradients. Copies end when their parent process is killed.
    """
    code = f"""if True:
        import os, signal, time, torch
        from fxflops.distributed import copies, simulate
        from torch._subclasses.fake_tensor import FakeTensorMode

        os.sched_getaffinity = lambda pid: {{0, 1}}
        if os.fork() == 0:
            with FakeTensorMode():
                torch.ones(3, requires_grad=True).sum().backward()
            names = [open(f"/proc/self/task/{{each}}/comm").read() for each in os.listdir("/proc/self/task")]
            os._exit(copies.may_fork() == any("autograd" in name for name in names))
        assert os.wait()[1] == 0

        def build(mesh):
            layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
            return layer, lambda: layer(x).sum().backward()

        def gradient(item):
            x = torch.ones(3, requires_grad=True)
            (x * item).sum().backward()
            return os.getpid(), x.grad.tolist()

        simulate(build, dict(dp=2))
        told = dict(copies.map_in_copies(gradient, [1, 2], 2, str))
        assert list(told.values()) == [[1.0] * 3, [2.0] * 3], told
        assert len(told.keys() - {{os.getpid()}}) == 2, told

        def kill(item):
            time.sleep(1 if item else 2 * {LONG})
            os.kill(os.getppid(), signal.SIGKILL)

        copies.map_in_copies(kill, [0, 1], 2, str)
    """
    # With an accelerator, no copies are made.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(  # waits until the last copy has closed its stdout
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, timeout=LONG, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("processes", [0, "2"])
def test_processes_are_a_number(processes: Any) -> None:
    with pytest.raises(InputError, match="processes must be an integer of at least 1, not "):
        map_in_copies(str, [1], processes, str)


def test_where_no_copy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(copies, "_backward_in_a_copy", lambda: True)
    assert may_fork()
    others: list[tuple[Any, str, Any]] = [
        (threading, "active_count", lambda: 2),
        (os, "sched_getaffinity", lambda pid: {0}),
        (torch.accelerator, "is_available", lambda: True),
        (copies, "_backward_in_a_copy", lambda: False),
        (sys, "platform", "darwin"),
    ]
    for owner, name, value in others:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert not may_fork(), name
            assert map_in_copies(lambda item: os.getpid(), [0, 1], 2, str) == [HERE, HERE]

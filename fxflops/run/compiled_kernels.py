"""The kernels of a compiled model and their modules, from a second compilation in a process of its own.

Inductor's kernels on a CPU are unseen by torch.profiler unless they are compiled to be seen. A copy of this process does that
and ends: neither the user's compiled code nor the compiler's cache knows of it. A model need not be picklable for it.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ..records import grouped
from ..torch_internals import GRAPH_CALL, compile_afresh
from ..trace.autocast import autocast_state
from .outcome import CompiledKernel

LIMIT = 600.0
"""Seconds after which the other process is ended."""
RUNS, SECONDS_CAP = 20, 5.0
"""Runs under the profiler, at most; no other begins after so many seconds."""
PREFIX = "graph_"
"""The beginning of a generated kernel's name in a profile: ``graph_3_cpp_fused_relu_0``."""


class Emitted(NamedTuple):
    """A call of a kernel, as inductor wrote it: the number of its graph, its name and modules."""

    graph: int | None
    name: str
    paths: tuple[str, ...]


def compiled_kernels(
    prepared: Callable[[], Callable[[], Any]], paths: Mapping[nn.Module, str]
) -> tuple[tuple[CompiledKernel, ...], str]:
    """Return the kernels that a run of the compiled model calls, in order, or none and the reason why they are not known.

    ``prepared()`` returns a function that runs it once; ``paths`` are those of its modules.
    """
    if not hasattr(os, "fork"):
        return (), "the system cannot copy a process"
    reader, writer = Pipe(duplex=False)
    with warnings.catch_warnings():  # of a lock that another thread may hold: the copy is ended if it waits for one
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        _in_copy(writer, prepared, paths)
    writer.close()
    try:
        if not reader.poll(LIMIT):
            return (), f"compiling it in a process of its own took longer than {LIMIT:.0f} s"
        found = reader.recv()
    except (EOFError, OSError):
        return (), "the process that compiled it ended early"
    finally:
        reader.close()
        os.kill(pid, signal.SIGKILL)  # it has told all, or takes too long
        os.waitpid(pid, 0)
    return ((), found) if isinstance(found, str) else (tuple(found), "")


def _in_copy(writer: Connection, prepared: Callable[[], Callable[[], Any]], paths: Mapping[nn.Module, str]) -> None:
    """Send the kernels, or the reason why there are none, and end this process, which is a copy."""
    try:
        warnings.simplefilter("ignore")
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        inference, grad, autocast = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), autocast_state()

        def work() -> Any:
            for device, (enabled, dtype) in autocast.items():
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                return [*_kernels_here(prepared, paths)] or "its backend writes no kernels of inductor's"

        # OpenMP's threads are not copied. Those of a new thread are started anew, those of this one would be waited for.
        with ThreadPoolExecutor(1) as thread:
            try:
                told = thread.submit(work).result()
            except Exception as error:
                told = f"compiling it again raised {words_of(error)}"
        writer.send(told)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)  # nothing of the original's is to be run at exit, nor written


def _kernels_here(
    prepared: Callable[[], Callable[[], Any]], paths: Mapping[nn.Module, str]
) -> Iterator[CompiledKernel]:
    """Compile the model in this process, run it under the profiler, and yield its kernels."""
    path_of = {str(id(module)): path for module, path in paths.items()}
    emitted: list[Emitted] = []

    def write(graph: int | None, name: str, origins: Iterable[Any]) -> None:
        stacks = (origin.meta.get("nn_module_stack") or {"": ""} for origin in origins)
        keys = (next(reversed(stack)).partition("@")[0] for stack in stacks)  # a module's id, and which call of it
        emitted.append(Emitted(graph, name, tuple(dict.fromkeys(path_of.get(key, "") for key in keys)) or ("",)))

    compile_afresh(write)
    for _ in range(2):
        prepared()()
    runs = list[list[CompiledKernel]]()
    end = time.monotonic() + SECONDS_CAP
    while len(runs) < RUNS and not (runs and time.monotonic() > end):
        call = prepared()
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
            call()
        runs.append([*called(seen.events() or (), emitted)])
    for calls in zip(*runs, strict=True):
        yield calls[0]._replace(seconds=statistics.median(call.seconds for call in calls))


def called(events: Iterable[Any], emitted: Iterable[Emitted]) -> Iterator[CompiledKernel]:
    """Yield each call of a kernel in a run, given the profiler's events and what inductor wrote.

    A graph calls its kernels in the order in which inductor wrote them. A generated kernel's name has the number of its
    graph; a graph without one is the next of those that have none. Raises LookupError if the two do not agree.
    """
    graphs = grouped((each.graph, each) for each in emitted)
    nameless = [number for number, found in graphs.items() if all("cpp_" not in each.name for each in found)]
    for event in events:
        if not event.name.startswith(GRAPH_CALL):
            continue
        ran = [child for child in event.cpu_children if child.name.startswith(PREFIX) or "::" in child.name]
        numbers = [int(child.name.split("_")[1]) for child in ran if child.name.startswith(PREFIX)]
        number = numbers[0] if numbers else nameless.pop(0) if nameless else -1
        for child, written in zip_longest(ran, graphs.get(number, [])):
            if child is None or written is None or not _is_same(child.name, written.name):
                got, wanted = child and child.name, written and written.name
                raise LookupError(f"a run calls {got} where inductor wrote {wanted}")
            yield CompiledKernel(child.name, child.cpu_time_total / 1e6, written.paths)


def _is_same(called: str, written: str) -> bool:
    """Return whether the profiler's name (aten::addmm, graph_3_cpp_fused_0) is that in inductor's code (extern_kernels.addmm)."""
    return called.endswith(written) or called.rpartition("::")[2] in written.split(".")


def words_of(error: Exception) -> str:
    """Return an error in a line. The compiler's own names what it raised in the second line of its text."""
    first, _, rest = str(error).strip().partition("\n")
    cause = f" {rest.strip().partition(chr(10))[0]}" if first.endswith(":") else ""
    return f"{type(error).__name__}: {first}{cause}"

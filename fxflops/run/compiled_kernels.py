"""Map the kernels of a compiled model to its modules, by a second compilation in a forked process.

torch.profiler records Inductor's CPU kernels only if they were compiled with a special option. The second compilation sets this
option in a forked process, so it does not change the user's compiled code and the compiler's cache, and the model need not be
picklable.
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
"""The forked process is killed after this many seconds."""
RUNS, SECONDS_CAP = 20, 5.0
"""The maximum number of runs under the profiler, and the number of seconds after which no further run begins."""
PREFIX = "graph_"
"""The prefix of a generated kernel's name in a profile: ``graph_3_cpp_fused_relu_0``."""


class Emitted(NamedTuple):
    """A kernel call in Inductor's generated code: the number of its graph, the kernel's name, and the paths of its modules."""

    graph: int | None
    name: str
    paths: tuple[str, ...]


def compiled_kernels(
    prepared: Callable[[], Callable[[], Any]], paths: Mapping[nn.Module, str], limit: float = LIMIT
) -> tuple[tuple[CompiledKernel, ...], str]:
    """Return the kernels that a run of the compiled model calls, in order, and ""; or () and the reason why they are unknown.

    ``prepared()`` returns a function that runs the model once; ``paths`` are the paths of the model's modules. After ``limit`` seconds
    the kernels are unknown.
    """
    if not hasattr(os, "fork"):
        return (), "this system cannot fork a process"
    reader, writer = Pipe(duplex=False)
    # Ignore Python's warning that other threads may hold locks: a fork that waits for such a lock is killed below.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        _in_copy(writer, prepared, paths)
    writer.close()
    try:
        if not reader.poll(limit):
            return (), f"compiling the model again in a forked process took longer than {limit:.0f} s"
        received = reader.recv()
    except (EOFError, OSError):
        return (), "the forked process that compiled the model again ended early"
    finally:
        reader.close()
        os.kill(pid, signal.SIGKILL)  # the fork has sent its result, or takes too long
        os.waitpid(pid, 0)
    return ((), received) if isinstance(received, str) else (tuple(received), "")


def _in_copy(writer: Connection, prepared: Callable[[], Callable[[], Any]], paths: Mapping[nn.Module, str]) -> None:
    """Send the kernels, or the reason why they are unknown. Then kill this process, which is the fork."""
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
                return [*_kernels_here(prepared, paths)] or "the model's backend generates no inductor kernels"

        # OpenMP's threads do not exist in a fork, and this thread would wait for them. Use a new thread, which starts its own OpenMP threads.
        with ThreadPoolExecutor(1) as thread:
            try:
                kernels_or_reason = thread.submit(work).result()
            except Exception as error:
                kernels_or_reason = f"compiling the model again raised {words_of(error)}"
        writer.send(kernels_or_reason)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)  # skips exit handlers and buffered output copied from the parent process


def _kernels_here(
    prepared: Callable[[], Callable[[], Any]], paths: Mapping[nn.Module, str]
) -> Iterator[CompiledKernel]:
    """Compile the model in this process, run the model under the profiler, and yield its kernels."""
    path_of = {str(id(module)): path for module, path in paths.items()}
    emitted: list[Emitted] = []

    def write(graph: int | None, name: str, origins: Iterable[Any]) -> None:
        stacks = (origin.meta.get("nn_module_stack") or {"": ""} for origin in origins)
        keys = (next(reversed(stack)).partition("@")[0] for stack in stacks)  # a module's id and the number of its call
        emitted.append(Emitted(graph, name, tuple(dict.fromkeys(path_of.get(key, "") for key in keys)) or ("",)))

    compile_afresh(write)
    for _ in range(2):
        prepared()()
    runs = list[list[CompiledKernel]]()
    end = time.monotonic() + SECONDS_CAP
    while len(runs) < RUNS and not (runs and time.monotonic() > end):
        call = prepared()
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            call()
        runs.append([*called(profiler.events() or (), emitted)])
    for calls in zip(*runs, strict=True):
        yield calls[0]._replace(seconds=statistics.median(call.seconds for call in calls))


def called(events: Iterable[Any], emitted: Iterable[Emitted]) -> Iterator[CompiledKernel]:
    """Yield the kernel calls of a run. This matches the profiler's events with the kernel calls in Inductor's code (``emitted``).

    A graph calls its kernels in the order of Inductor's code. The name of a generated kernel contains the number of the
    graph; graphs without generated kernels are matched in order. Raises LookupError if an event does not match Inductor's code.
    """
    graphs = grouped((kernel.graph, kernel) for kernel in emitted)
    nameless = [number for number, kernels in graphs.items() if all("cpp_" not in kernel.name for kernel in kernels)]
    for event in events:
        if not event.name.startswith(GRAPH_CALL):
            continue
        children = [child for child in event.cpu_children if child.name.startswith(PREFIX) or "::" in child.name]
        numbers = [int(child.name.split("_")[1]) for child in children if child.name.startswith(PREFIX)]
        number = numbers[0] if numbers else nameless.pop(0) if nameless else -1
        for child, written in zip_longest(children, graphs.get(number, [])):
            if child is None or written is None or not _is_same(child.name, written.name):
                got, wanted = child and child.name, written and written.name
                raise LookupError(f"a run calls {got}, but inductor's code calls {wanted}")
            yield CompiledKernel(child.name, child.cpu_time_total / 1e6, written.paths)


def _is_same(called: str, written: str) -> bool:
    """Return whether a kernel's name in the profiler (aten::addmm, graph_3_cpp_fused_0) matches Inductor's (extern_kernels.addmm)."""
    return called.endswith(written) or called.rpartition("::")[2] in written.split(".")


def words_of(error: Exception) -> str:
    """Return an error as a single line. If the first line ends with a colon, add the second line, where the compiler names the cause."""
    first, _, rest = str(error).strip().partition("\n")
    cause = f" {rest.strip().partition(chr(10))[0]}" if first.endswith(":") else ""
    return f"{type(error).__name__}: {first}{cause}"

"""Read a trace file of torch.profiler: the host's events by thread, and the device's events.

https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp writes these files.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import InputError, of_kind
from ..records import grouped
from ..torch_internals import GRAPH_CALL

ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
SHOWN_TWICE = frozenset({"gpu_user_annotation", "Trace"})
"""Categories of ranges that duplicate events of the host."""
SHAPES, CONCRETE = "Input Dims", "Concrete Inputs"
GZIP = b"\x1f\x8b"
HOW = """Record a trace with torch.profiler:
  with torch.profiler.profile(record_shapes=True, with_stack=True) as p:
      model(x)
  p.export_chrome_trace("trace.json")"""


class Event(NamedTuple):
    """An event of a trace, with its start and end in nanoseconds, and its process and thread (or stream)."""

    name: str
    category: str
    start: int
    end: int
    thread: tuple[Any, Any]
    args: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9

    @property
    def is_operator(self) -> bool:
        """True for an operator such as ``aten::mm``, False for autograd nodes and named ranges."""
        namespace, _, name = self.name.partition("::")
        is_named = namespace.isidentifier() and name.isidentifier() and namespace not in ("autograd", "torch")
        return self.category == "cpu_op" and is_named


class TraceFile(NamedTuple):
    """The events of a trace. ``threads`` are the host's events by thread, ordered by start; ``on_device`` are the device's events.

    ``hardware`` describes the device as in an Environment, e.g. "cuda:0 (NVIDIA H100 80GB HBM3)".
    """

    name: str
    threads: Mapping[tuple[Any, Any], list[Event]]
    on_device: list[Event]
    hardware: str


def read_file(path: str | os.PathLike[str]) -> TraceFile:
    """Return the events of a trace. Raises InputError if the file does not exist, or if it is not a trace with shapes."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise of_kind(InputError(f"cannot read the trace {name}: {error.strerror}"), type(error)) from error
    try:
        content = json.loads(gzip.decompress(data) if data.startswith(GZIP) else data)
    except (ValueError, EOFError, OSError, RecursionError) as error:
        raise InputError(f"{name} is not JSON: {error}") from error
    entries = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise InputError(f"{name} is not a trace: it has no traceEvents. {HOW}")
    events = [_event(entry) for entry in entries if _is_shown_range(entry)]
    if not any(event.is_operator or event.name.startswith(GRAPH_CALL) for event in events):
        raise InputError(f"{name} contains no operators. {HOW}")
    operators = [event for event in events if event.is_operator]
    if operators and not any(SHAPES in event.args for event in operators):
        raise InputError(f"{name} has no shapes: it was recorded without record_shapes=True. {HOW}")
    events.sort(key=lambda event: (event.start, -event.end))
    threads = grouped((event.thread, event) for event in events if event.category not in ON_DEVICE)
    on_device = [event for event in events if event.category in ON_DEVICE]
    described = content.get("deviceProperties") if isinstance(content, dict) else None
    return TraceFile(os.path.basename(name), threads, on_device, _hardware(on_device, described or []))


def _is_shown_range(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("ph") == "X" and entry.get("cat") not in SHOWN_TWICE and "ts" in entry


def _event(entry: Mapping[str, Any]) -> Event:
    # Round to whole nanoseconds, so that times that are equal in the file remain equal.
    start = round(float(entry["ts"]) * 1000)
    end = start + round(float(entry.get("dur", 0)) * 1000)
    thread = entry.get("pid"), entry.get("tid")
    return Event(str(entry.get("name")), str(entry.get("cat")), start, end, thread, entry.get("args") or {})


def _hardware(on_device: list[Event], described: list[Mapping[str, Any]]) -> str:
    """Return the description of the device of the first kernel, "cpu" if the trace has no kernels."""
    if not on_device:
        return "cpu"
    index = on_device[0].args.get("device", 0)
    names = {device.get("id"): device.get("name") for device in described}
    return f"cuda:{index} ({names[index]})" if names.get(index) else f"cuda:{index}"

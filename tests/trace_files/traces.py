"""Traces written by hand: events as torch.profiler writes them, and files that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
MM = {"Input type": ["float", "float"], "Input Dims": [[2, 3], [3, 5]], "Input Strides": [[3, 1], [5, 1]],
      "Concrete Inputs": ["", ""]}  # fmt: skip
"""The arguments of a product of 2 x 3 and 3 x 5: 30 MACs."""


def event(name: str, start: float, seconds: float, category: str = "cpu_op", thread: int = 1, **args: Any) -> Event:
    """Return an event. Times are in microseconds."""
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start,
        "dur": seconds,
        "pid": 1,
        "tid": thread,
        "args": args,
    }


def mm(start: float, seconds: float = 10, thread: int = 1, sequence: int | None = None) -> Event:
    """Return the event of a matrix product. With a sequence number, autograd has recorded it."""
    recorded = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": 0}
    return event("aten::mm", start, seconds, thread=thread, **MM, **recorded)


def node(name: str, start: float, seconds: float, sequence: int, thread: int = 1) -> Event:
    """Return the event of an autograd node that runs."""
    args = {"Sequence number": sequence, "Fwd thread id": 1}
    return event(f"autograd::engine::evaluate_function: {name}", start, seconds, thread=thread, **args)


def module(name: str, start: float, seconds: float, thread: int = 1) -> Event:
    return event(f"nn.Module: {name}", start, seconds, "python_function", thread)


def launch(number: int, start: float, thread: int = 1) -> Event:
    return event("cudaLaunchKernel", start, 1, "cuda_runtime", thread, correlation=number)


def kernel(number: int, start: float, seconds: float, name: str = "gemm", category: str = "kernel") -> Event:
    return event(name, start, seconds, category, 7, correlation=number, device=0)


def written(folder: Path, events: Sequence[Event], **others: Any) -> Path:
    """Write a trace with these events, and return its path."""
    path = folder / "trace.json"
    content: Mapping[str, Any] = {"traceEvents": list(events), **others}
    path.write_text(json.dumps(content))
    return path

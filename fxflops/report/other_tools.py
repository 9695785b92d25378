"""A report in the formats of other tools: Perfetto, torch's viewer of memory, Model Explorer."""

from __future__ import annotations

import pickle
from typing import Any

from ..render.exports import as_json
from ..render.files import Path, written, written_bytes
from .chrome_trace import chrome_trace
from .memory_snapshot import memory_snapshot
from .model_explorer import graph, node_data
from .tables import TabledRun


class OtherTools(TabledRun):
    """The part of a Report that other tools open."""

    def to_chrome_trace(self, path: Path | None = None) -> str | None:
        """Return a trace for Perfetto (ui.perfetto.dev) and chrome://tracing, or write it to ``path``.

        It shows the modules with their operations inside, laid end to end in run order, and the memory. If nothing was
        timed, 1 us stands for 1 MFLOP, and the trace says so.
        """
        return written(as_json(chrome_trace(self, self.table)), path)

    def to_memory_snapshot(self, path: Path | None = None) -> dict[str, Any] | None:
        """Return the run's allocations as :func:`torch.cuda.memory._snapshot` returns those of a device, or pickle them to
        ``path``, for pytorch.org/memory_viz and ``python -m torch.cuda._memory_viz``.

        No device is needed: those of :func:`~fxflops.count` are predicted. Raises InputError for a report read from a
        file, which does not hold single allocations.
        """
        snapshot = memory_snapshot(self)
        if path is None:
            return snapshot
        written_bytes(pickle.dumps(snapshot, protocol=4), path)  # the viewer reads no later protocol
        return None

    def to_model_explorer(self, path: Path | None = None, *, by: str | None = None) -> str | None:
        """Return the graph as JSON for Google's Model Explorer, or write it to ``path``: its layers are the modules.

        With ``by`` "flops", "macs", "time" or "memory" it is the node data for that graph instead, which colour it.
        Raises InputError for the report of a run without a graph, as that of :func:`~fxflops.count` is.
        """
        return written(as_json(graph(self) if by is None else node_data(self, by)), path)

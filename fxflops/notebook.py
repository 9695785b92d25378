"""TorchFLOPsByFX, a drop-in replacement for the class of torch_flops 0.4.1 (https://github.com/zugexiaodui/torch_flops), for notebooks."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from .api import Formulas, Model, analyzed
from .conventions import Convention
from .errors import FxflopsError, InputError, TraceError, of_kind
from .meters.nodes import Node
from .model.callables import as_model
from .model.inputs import checked_model
from .model.locks import locked_in_mode
from .model.modules import all_modules
from .model.snapshot import Snapshot
from .ops.packages import registry_with
from .render.columns import RESULT
from .render.files import writing
from .render.text import printable
from .report.report import Report
from .trace.symbolic import constants_of, symbolic

MEMORY_FUNCTIONS = ("memory_allocated", "max_memory_allocated")


class TorchFLOPsByFX:
    """Count the FLOPs, and measure the time and memory, of each node in a model's graph.

    >>> counter = TorchFLOPsByFX(model)          # doctest: +SKIP
    >>> counter.propagate(x)                     # doctest: +SKIP
    >>> counter.print_result_table()             # doctest: +SKIP

    Args:
        model: the model, or any callable, as for :func:`fxflops.analyze`. The model runs in eval mode on its own device, and is left
            unchanged.
        mem_func_name: the memory to show in a node's row: "memory_allocated" (the memory after the node) or "max_memory_allocated" (the
            peak while the node runs). On a CPU, memory is the bytes of live tensor storages.
        ignore_ops: names of module classes, functions or methods (``"GELU"``, ``"softmax"``) whose FLOPs are left out of the total.
        trace, formulas: as for :func:`fxflops.analyze`.
        convention: as for :func:`fxflops.analyze`; by default "torch_flops".
    """

    def __init__(
        self,
        model: Model,
        mem_func_name: str = "memory_allocated",
        ignore_ops: Sequence[str] | str = (),
        *,
        trace: str = "auto",
        convention: str | Convention = "torch_flops",
        formulas: Formulas | None = None,
    ) -> None:
        model = checked_model(as_model(model, None, (), None, AttributeError, TypeError))
        if mem_func_name not in MEMORY_FUNCTIONS:
            wrong = f"mem_func_name must be one of {', '.join(MEMORY_FUNCTIONS)}; got {mem_func_name!r}"
            raise of_kind(InputError(wrong), AssertionError)
        self.mem_func_name = mem_func_name
        self.ignore_ops = (ignore_ops,) if isinstance(ignore_ops, str) else tuple(ignore_ops)
        self.result_header = [column.header for column in RESULT]
        self.result_table: list[list[Any]] = []
        self._model = model
        self._settings: dict[str, Any] = {"trace": trace, "convention": convention, "formulas": formulas}
        self._report: Report | None = None
        self._graph: fx.GraphModule | None = None

    @property
    def graph_model(self) -> fx.GraphModule:
        """The graph of the last call of ``propagate``. Before the first call, the model is traced symbolically, with forward's default
        arguments.

        Raises TraceError if this tracing fails; then call ``propagate`` first, which records a run.
        """
        if self._graph is None:
            if self._settings["trace"] == "record":
                raise TraceError("there is no graph yet: call propagate(*inputs) first, which records a run")
            with locked_in_mode(all_modules(self._model), "eval"):
                before, constants = Snapshot(all_modules(self._model), ()), constants_of(self._model)
                try:
                    registry = registry_with(self._settings["formulas"])
                    self._graph = symbolic(self._model, registry, constants, before.before_write)
                except TraceError as error:
                    raise TraceError(f"{error}\ncall propagate(*inputs) first, which records a run") from error
                finally:
                    before.rewind()
        return self._graph

    @property
    def report(self) -> Report:
        """The Report of the last call of ``propagate``."""
        if self._report is None:
            raise of_kind(FxflopsError("nothing has run yet: call propagate(*inputs) first"), RuntimeError)
        return self._report

    def propagate(self, *args: Any, **kwargs: Any) -> Report:
        """Run the model on these inputs and measure every node. Each call replaces the results of the call before."""
        self._report, self._graph = analyzed(self._model, args, kwargs, **self._settings)
        self._calls_of = _shown_at(self._report.nodes, self._graph)
        self.result_table = [self._row(node) for node in self._report.nodes]
        return self._report

    def print_result_table(
        self,
        show: bool = True,
        *,
        sort_by: str | None = None,
        top: int | None = None,
        columns: Sequence[str] | None = None,
        where: Mapping[str, Any] | None = None,
        units: str | None = None,
        tablefmt: str = "rst",
    ) -> list[list[Any]]:
        """Print a table with a row for each node, in run order. Return all rows with raw values.

        ``sort_by`` is the column to sort by ("time", "flops", "mem_delta" ...), largest first. ``top`` is the number of rows to print.
        ``columns`` are the columns to print. ``where`` maps columns to conditions. A condition is a value that the row's cell must equal,
        or a function that must return True for the cell. Only rows that meet all conditions are printed. ``units="auto"`` prints readable
        numbers. ``tablefmt`` is a table format of tabulate.
        """
        from .render.table import result_table

        _ = self.report
        text = result_table(
            RESULT,
            self.result_table,
            sort_by=sort_by,
            top=top,
            columns=None if columns is None else list(columns),
            where=where,
            units=units,
            tablefmt=tablefmt,
        )
        if show:
            print(printable(text))
        return self.result_table

    def print_total_flops(self, show: bool = True) -> int:
        """Print and return the total FLOPs, without the nodes that ``ignore_ops`` names."""
        report = self.report
        left = [i for node in report.nodes if self._is_ignored(node) for i in self._calls_of[node.name]]
        total = report.total_flops - sum(report.counted[i].flops for i in left)
        left_out = sum(not isinstance(row[4], int) for row in self.result_table)
        note = f" ({left_out} operations are not included: they are ignored, or have no formula)" if left_out else ""
        if show:
            print(f"total_flops = {total:,}{note}")
        return total

    def print_total_time(self, show: bool = True) -> float | None:
        """Print and return the sum of the nodes' times in ms; None if nothing was timed, as on the meta device."""
        seconds = self.report.total_time
        total = None if seconds is None else seconds * 1000
        if show:
            why = f"  (unsteady: {self.report.unsteady})" if self.report.unsteady else ""
            print("total_time = not measured" if total is None else f"total_time = {total:.3f} ms{why}")
        return total

    def print_max_memory(self, show: bool = True) -> int:
        """Print and return the peak memory of the model's own run, in bytes."""
        peak = self.report.max_memory or 0
        if show:
            print(f"max_memory = {peak:,} Bytes")
        return peak

    def save_result_to_csv(self, file_path: str | Path, mode: str = "a") -> None:
        """Write the header, the rows and an empty line to a CSV file. ``mode`` "a" appends to an existing file, "w" replaces the file."""
        _ = self.report
        with writing(file_path), open(file_path, mode, newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.result_header)
            writer.writerows(self.result_table)
            file.write("\n")

    def _flops_of(self, node: Node) -> int | str:
        """Return a node's FLOPs, or "ignored" or "not_recognized" as torch_flops does."""
        if self._is_ignored(node):
            return "ignored"
        counted = [self.report.counted[i] for i in self._calls_of[node.name]]
        return "not_recognized" if any(c.cost is None for c in counted) else sum(c.flops for c in counted)

    def _is_ignored(self, node: Node) -> bool:
        names = {"call_module": node.module, "call_method": node.target, "call_function": node.function}
        return names.get(node.opcode) in self.ignore_ops

    def _row(self, node: Node) -> list[Any]:
        before = node.bytes_before
        after = node.bytes_after if self.mem_func_name == "memory_allocated" else node.bytes_peak
        delta = None if before is None or after is None else after - before
        milliseconds = None if node.timing is None else node.timing.median * 1000
        flops = self._flops_of(node)
        return [node.name, node.opcode, node.target, node.module, flops, milliseconds, before, after, delta]


def _shown_at(nodes: Iterable[Node], graph: fx.GraphModule) -> dict[str, range]:
    """For each node, by name, return the indices of the calls whose FLOPs are shown in the node's row.

    A comparison of Python numbers is not a call. The FLOP of the comparison is counted for the torch._assert that checks the comparison. As
    in torch_flops, this FLOP is shown in the row of the comparison, if the comparison is a node of the graph.
    """
    calls = {node.name: node.calls for node in nodes}
    for node in graph.graph.nodes:
        checked = (*node.args, *node.kwargs.values())[0] if getattr(node.target, "__name__", "") == "_assert" else None
        if isinstance(checked, fx.Node) and not calls[checked.name]:
            calls[checked.name], calls[node.name] = calls[node.name], calls[checked.name]
    return calls

"""Everything a report says about a run, for comparing it with another report."""

from __future__ import annotations

from typing import Any

from fxflops.report.report import Report


def facts_of(report: Report) -> dict[str, Any]:
    return {
        "flops": report.total_flops,
        "macs": report.total_macs,
        "backward_flops": report.total_backward_flops,
        "complete": report.complete,
        "max_memory": report.max_memory,
        "calls": [(c.op, repr((c.args, dict(c.kwargs))), repr(c.out), c.path, c.phase) for c in report.calls],
        "modules": {
            path: (row.calls, row.total.flops, row.total.macs, row.own.flops)
            for path, row in report.by_module().items()
        },
    }

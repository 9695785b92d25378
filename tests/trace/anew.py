"""What is counted from memory beside what is counted anew."""

from __future__ import annotations

from typing import Any

from torch import nn

import fxflops
from fxflops.report import Report
from fxflops.trace.plans import forget


def facts_of(report: Report) -> dict[str, Any]:
    """All that a report says of a run."""

    return {
        "calls": [
            (c.op, c.target, repr(c.args), repr(c.kwargs), repr(c.out), c.path, repr(dict(c.settings)), c.phase)
            for c in report.calls
        ],
        "scopes": [repr(scope) for scope in report.scopes],
        "flops": report.total_flops,
        "max_memory": report.max_memory,
        "memory": repr(report.memory),
        "timeline": [repr(moment) for moment in report.timeline],
        "live_at_peak": sorted(map(repr, report.live_at_peak)),
        "trace": report.trace,
        "missing": repr(report.missing),
        "params": report.params,
        "modules": report._run.modules,
    }


def assert_same(model: nn.Module, *args: Any, first: bool = True, **settings: Any) -> None:
    """What is counted with nothing remembered, and again from memory, is what is counted anew."""
    wanted = facts_of(fxflops.count(model, *args, **settings, reuse=False))
    if first:
        forget()
    for time in ("first", "second"):
        found = facts_of(fxflops.count(model, *args, **settings))
        for name, value in wanted.items():
            assert found[name] == value, (time, name)

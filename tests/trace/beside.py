"""The facts of a report, and two counts to compare with: one that runs the meta kernels, and one on real tensors."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import fxflops
from fxflops.api import counted
from fxflops.report.report import Report
from fxflops.run import model_run


def facts_of(report: Report) -> dict[str, Any]:
    """All that a report says about a run."""
    return {
        "calls": [
            (c.op, c.target, repr(c.args), repr(c.kwargs), repr(c.out), c.path, repr(dict(c.settings)), c.phase)
            for c in report.calls
        ],
        "scopes": [repr(scope) for scope in report.scopes],
        "flops": report.total_flops,
        "by_module": repr(report.by_module()),
        "max_memory": report.max_memory,
        "memory": repr(report.memory),
        "timeline": [repr(moment) for moment in report.timeline],
        "live_at_peak": sorted(map(repr, report.live_at_peak)),
        "trace": report.trace,
        "missing": repr(report.missing),
        "params": report.params,
    }


def kernels_asked(model: nn.Module, *args: Any, **settings: Any) -> Report:
    """Count with every call run by the meta kernels."""
    return counted(model, *args, memos=None, **settings)


def computed(model: nn.Module, *args: Any, **settings: Any) -> Report:
    """Count a run on the real tensors."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_run, "meta_run", refuse)
        return fxflops.count(model, *args, **settings)

"""What a count says, and what to hold beside it: a count that asks the kernels of meta, and one of a real run."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import fxflops
from fxflops.api import counted
from fxflops.report.report import Report
from fxflops.run import model_run


def facts_of(report: Report) -> dict[str, Any]:
    """All that a report says of a run."""
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
    """The count of a run in which every call goes to the kernels of meta."""
    return counted(model, *args, memos=None, **settings)


def computed(model: nn.Module, *args: Any, **settings: Any) -> Report:
    """The count of a run on the real tensors."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_run, "meta_run", refuse)
        return fxflops.count(model, *args, **settings)

"""Get the report for a command: read a saved report, which does not import torch, or let ``runs.py`` count or run a model."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..conventions import BASE_CONVENTION, check_attention, check_convention
from ..errors import InputError
from ..report.gathered import GatheredReport
from ..report.report import Report
from .libraries import SAVED, is_from_a_library
from .options import ATTENTION, Asked, given_by
from .shown import note


def report_of(target: str, asked: Asked, timed: Mapping[str, Any] | None = None) -> Report:
    """Return the report of a model or a saved report.

    A saved report is recounted if a convention or attention is given. A model is counted, or run and timed if ``timed`` has arguments for
    :func:`~fxflops.cli.runs.analyzed`. Raises InputError for unknown values, before the model is loaded.
    """
    check(asked)
    if is_saved(target):
        return _loaded(target, asked)
    from . import runs

    return runs.counted(target, asked) if timed is None else runs.analyzed(target, asked, **timed)


def both(a: str, b: str, asked: Asked) -> tuple[Report, Report]:
    """Return the reports of two targets. If one target is a saved report and the other is a model, the options for inputs apply only to the model."""
    one, other = (asked.of_saved() if is_saved(x) and not is_saved(y) else asked for x, y in ((a, b), (b, a)))
    return report_of(a, one), report_of(b, other)


def is_saved(target: str) -> bool:
    """Return True if a target is a saved report or a torch.profiler trace, not a model."""
    return target.endswith(SAVED) and not is_from_a_library(target)


def check(asked: Asked) -> None:
    """Raise InputError for an invalid input, convention or attention. Dtypes are checked later, since their check imports torch."""
    given_by(asked)
    check_convention(asked.convention or BASE_CONVENTION)
    check_attention(asked.attention or ATTENTION)


def _loaded(target: str, asked: Asked) -> Report:
    if not Path(target).is_file():
        raise InputError(f"{target!r} is a directory" if Path(target).is_dir() else f"file not found: {target!r}")
    if asked != asked.of_saved():
        raise InputError(
            f"{target} is read as a saved report, for which only the options --convention and --attention work; "
            f"if it is the config of a transformers model, give hf:{target}"
        )
    if _is_trace(target):
        from ..api import read_trace

        return read_trace(
            target, convention=asked.convention or BASE_CONVENTION, attention=asked.attention or ATTENTION
        )
    try:
        report = Report.load(target)
    except OSError as error:
        raise InputError(f"{target} cannot be read: {error.strerror or error}") from None
    if (asked.convention, asked.attention) == (None, None):
        return report
    return report.recount(asked.convention, attention=asked.attention)


def baseline_for(report: Report, path: Path) -> Report:
    """Load the baseline for a report, recounted with the report's convention and attention."""
    if not is_saved(str(path)) or _is_trace(str(path)):
        raise InputError(
            f"--baseline {path} is not a saved report; fxflops run MODEL --counts-only --save main.json writes a report"
        )
    earlier = Report.load(path)
    if earlier.inputs != report.inputs:
        raise InputError(
            f"the report of --baseline {path} is for inputs {earlier.inputs}, but this model was counted for inputs {report.inputs}: give the same inputs"
        )
    if not earlier.complete:
        note(f"the counts in {path} are lower bounds: {', '.join(each.op for each in earlier.missing)} had no formula")
    if (earlier.convention, earlier.attention) == (report.convention, report.attention):
        return earlier
    return earlier.recount(report.convention, attention=report.attention)


def _is_trace(target: str) -> bool:
    """Return whether a file is a torch.profiler trace. The events of a trace follow a header of less than 1 MiB."""
    opened = gzip.open if target.endswith(".gz") else open
    try:
        with opened(target, "rb") as file:
            return b'"traceEvents"' in file.read(1 << 20)
    except OSError as error:
        raise InputError(f"{target} cannot be read: {error.strerror or error}") from None


def gathered(report: Report) -> list[GatheredReport] | None:
    """Gather the reports of all processes, and destroy the process group.

    Returns a list with the gathered report in the first process, and None in all other processes. The list is empty if there is only one
    process. If torchrun started processes that joined no process group, each counts alone, and only the first prints.
    """
    from torch import distributed

    from ..trace.processes import processes

    if processes() == 1:
        started = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
        if started > 1 and os.environ["RANK"] != "0":
            return None
        if started > 1:
            note(
                f"the model does not initialize torch.distributed: each of the {started} processes counted the whole model, and only rank 0 prints"
            )
        return []
    whole, is_first = report.gather(), distributed.get_rank() == 0
    distributed.destroy_process_group()
    return [whole] if is_first else None

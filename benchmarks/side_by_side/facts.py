"""The facts of a case: one side's report of a model, as plain data without times and addresses.

This runs in a process of the side. The library is the side's own. The models and everything else come from this tree.
"""

from __future__ import annotations

import base64
import functools
import gc
import hashlib
import json
import logging
import os
import random
import re
import signal
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.isolated import bounded, deadline

Facts = dict[str, Any]
SECONDS, GIGABYTES = 180, 10
"""The limits for each way of a case: CPU seconds, and the memory of the process."""
DEVICE = "A100"
"""The device whose roofline gives the bytes that each call moves."""
TIMES = {
    "seconds", "own_seconds", "latency", "backward_latency", "instruments", "device_busy", "interrupted", "timing",
    "backward_timing", "host_timing", "date", "total_time", "unsteady", "mfu", "lines", "workers",
}  # fmt: skip
"""Keys that are left out of the facts: times, values that depend on times, and fields that only newer versions have."""
TRAFFIC = ("op", "module", "calls", "dtype", "flops", "bytes_read", "bytes_written", "bound_seconds", "binds")
ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def use_library(tree: str) -> None:
    """Import fxflops from ``tree``. Later imports, such as the models, come from the tree of this file."""
    assert "fxflops" not in sys.modules, "the cases would be counted by another library"
    sys.path.insert(0, tree)
    import fxflops

    sys.path.remove(tree)
    assert Path(fxflops.__file__ or "").resolve().parents[1] == Path(tree).resolve(), fxflops.__file__
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    bounded(GIGABYTES)
    for stream in (1, 2):  # some models print: discard it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def facts_of(group: str, name: str, data: Any, chosen: list[str], tree: str) -> Facts:
    """Count a case. Return its line for the file of facts: the digest of each way, the seconds, and the packed facts."""
    from benchmarks.side_by_side.cases import SETS

    ways: dict[str, Facts] = {}
    seconds: dict[str, float] = {}
    seeded()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with deadline(SECONDS, signal.ITIMER_PROF):
                case = SETS[group].make(name, data)
        except Exception as error:
            ways["build"] = raised(error)
            case = {}
    for way in [way for way in case if not chosen or way in chosen]:
        seeded()
        gc.collect()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            gc.disable()  # the sides make different amounts of garbage, so cycles in a model would be freed at different calls
            began = time.process_time()
            try:
                with deadline(SECONDS, signal.ITIMER_PROF):
                    reported = case[way]()
                seconds[way] = round(time.process_time() - began, 5)
            except Exception as error:
                reported = raised(error)
            finally:
                gc.enable()
        said = {"warnings": [[each.category.__name__, str(each.message)] for each in warned]}
        several = reported if isinstance(reported, Several) else {"": reported}
        for label, each in several.items():
            ways[f"{way} {label}".strip()] = (each if isinstance(each, dict) else of_report(each)) | said
        del reported, several
    return row_of(name, ways, seconds, (str(Path(tree).resolve()), tree, str(Path(__file__).parents[2])))


def row_of(name: str, ways: dict[str, Facts], seconds: dict[str, float], places: tuple[str, ...] = ()) -> Facts:
    """Return a line for the file of facts, without addresses and ``places``. Ways in ``cut_off`` took too long and are not compared."""
    texts = {}
    for way, facts in ways.items():
        text = json.dumps(facts, default=repr)
        for place in places:
            text = text.replace(place, "TREE")
        texts[way] = ADDRESS.sub("0x", text)
    whole = ", ".join(f"{json.dumps(way)}: {text}" for way, text in texts.items())
    return {
        "case": name,
        "digests": {way: hashlib.sha256(text.encode()).hexdigest()[:16] for way, text in texts.items()},
        "seconds": seconds,
        "cut_off": [way for way, facts in ways.items() if way == "process" or is_cut_off(facts)],
        "facts": base64.b64encode(zlib.compress(f"{{{whole}}}".encode())).decode(),
    }


def is_cut_off(facts: Facts) -> bool:
    kind, text = facts.get("raises", ("", ""))
    return kind == "TimeoutError" and text.startswith("not done after")


class Several(dict[str, Any]):
    """The result of a way that gives more than one report: reports or facts, by label."""


def seeded() -> None:
    import numpy
    import torch

    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def raised(error: BaseException) -> Facts:
    return {"raises": [type(error).__name__, str(error)]}


def of_report(report: Any) -> Facts:
    """Return the facts of a report, by part. They come only from its public functions and its file."""
    data = untimed(report.to_dict())
    memory, totals = data.pop("memory"), data.pop("totals")
    facts: Facts = {
        part: data.pop(part) for part in ("calls", "charges", "scopes", "nodes", "modules", "classes", "steps")
    }
    for each in (*facts["calls"], *facts["charges"]):
        if isinstance(each["rule"], dict):
            # Formulas may move to other files, so compare only their names and what they say they count.
            each["rule"]["formula"] = each["rule"]["formula"].rpartition(":")[2]
    facts["steps"] = [[*step[:3], sorted(step[3])] for step in facts["steps"]]  # the last item has seconds by phase
    made = {each["phase"] for each in facts["calls"]}
    phases = ["forward", *(phase for phase in ("backward", "recompute", "optimizer") if phase in made)]
    return facts | {
        "run": data,
        "totals": totals,
        "by_module": {phase: untimed(report.by_module(phase).to_dicts()) for phase in phases},
        "by_operator": {phase: untimed(report.by_operator(phase).to_dicts()) for phase in phases},
        "by_step": untimed(report.by_step().to_dicts()),
        "missing": [each._asdict() for each in report.missing],
        "remarks": sorted(report.remarks.values()),
        "timeline": memory.pop("timeline"),
        # The order of equally large tensors is not guaranteed.
        "live_at_peak": sorted(
            memory.pop("live_at_peak"), key=lambda each: (-each["bytes"], json.dumps(each, default=repr))
        ),
        "memory": memory,
        "traffic": traffic(report),
    }


def traffic(report: Any) -> Any:
    """Return the bytes that each call moves, and the lower bound of its time on ``DEVICE``."""
    try:
        rows = report.roofline(DEVICE).to_dicts()
    except Exception as error:
        return raised(error)
    return [{key: row.get(key) for key in TRAFFIC} for row in rows]


def untimed(value: Any) -> Any:
    """Return data without times."""
    if isinstance(value, dict):
        # In the versions of an environment, the version of fxflops differs between the sides.
        is_of_a_run = "fxflops" in value and "torch" in value
        return {
            key: untimed(item)
            for key, item in value.items()
            if key not in TIMES and not (key == "fxflops" and is_of_a_run and isinstance(item, str))
        }
    return [untimed(item) for item in value] if isinstance(value, (list, tuple)) else value


def unpacked(text: str) -> dict[str, Facts]:
    """Return the facts packed in a line."""
    return json.loads(zlib.decompress(base64.b64decode(text)))  # type: ignore[no-any-return]


Way = Callable[[], Any]


def ways_of(
    model: Any,
    args: Any,
    kwargs: Any,
    optimizer: Any = None,
    **settings: Any,
) -> dict[str, Way]:
    """Return the ways to get a report of a model, by name. Ways that change the model's state come last."""
    import fxflops

    count = functools.partial(fxflops.count, model, args, kwargs, **settings)

    def profiled() -> Any:
        import torch

        from benchmarks.fuzz_runs import stepped, tensors

        arguments = args if isinstance(args, tuple) else (args,)
        with fxflops.profile(model) as profile:
            out = stepped(model, arguments, kwargs or {}, training=False)
            roots = [t for t in tensors(out) if t.requires_grad]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
            del out, roots
        return profile.report

    return {
        "count": count,
        "train": functools.partial(count, **{"mode": "train", **settings}, backward=True, optimizer=optimizer),
        "analyze": functools.partial(fxflops.analyze, model, args, kwargs, repeats=0, progress=False, **settings),
        "profile": profiled,
    }

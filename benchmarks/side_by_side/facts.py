"""The facts of a case: what the library of one side reports of a model, as plain data without times and addresses.

This runs in a process of the side. The library is the side's own; the models and everything else are those of this tree.
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
import resource
import signal
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
SECONDS, GIGABYTES = 180, 10
DEVICE = "A100"
"""The device whose roofline tells the bytes that each call moves."""
TIMES = {
    "seconds", "latency", "backward_latency", "instruments", "device_busy", "interrupted", "timing", "backward_timing",
    "host_timing", "date", "total_time", "unsteady", "mfu",
}  # fmt: skip
"""The keys under which a report has times, and what follows from them."""
TRAFFIC = ("op", "module", "calls", "dtype", "flops", "bytes_read", "bytes_written", "bound_seconds", "binds")
ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def use_library(tree: str) -> None:
    """Import the library from this tree, and whatever is imported later from the tree of this file."""
    assert "fxflops" not in sys.modules, "the cases would be counted by another library"
    sys.path.insert(0, tree)
    import fxflops

    sys.path.remove(tree)
    assert Path(fxflops.__file__ or "").resolve().parents[1] == Path(tree).resolve(), fxflops.__file__
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    resource.setrlimit(resource.RLIMIT_DATA, (GIGABYTES * 10**9,) * 2)
    for stream in (1, 2):  # models print
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def facts_of(group: str, name: str, data: Any, chosen: list[str], tree: str) -> Facts:
    """Return a line for a file of facts: the digest of each part of each way, the seconds, and the facts themselves, packed."""
    from benchmarks.side_by_side.cases import SETS

    ways: dict[str, Facts] = {}
    seconds: dict[str, float] = {}
    seeded()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with deadline():
                case = SETS[group].make(name, data)
        except Exception as error:
            ways["build"] = raised(error)
            case = {}
    for way in [way for way in case if not chosen or way in chosen]:
        seeded()
        gc.collect()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            gc.disable()  # the sides make garbage at another pace, and cycles in a model would be freed at other calls
            began = time.process_time()
            try:
                with deadline():
                    reported = case[way]()
                took = time.process_time() - began
                facts = reported if isinstance(reported, dict) else of_report(reported)
                seconds[way] = round(took, 5)
                del reported
            except Exception as error:
                facts = raised(error)
            finally:
                gc.enable()
        ways[way] = facts | {"warnings": [[each.category.__name__, str(each.message)] for each in warned]}
    text = json.dumps(ways, default=repr)
    text = ADDRESS.sub("0x", text.replace(str(Path(tree).resolve()), "TREE").replace(tree, "TREE"))
    plain: dict[str, Facts] = json.loads(text)
    digests = {way: {part: digest(value) for part, value in facts.items()} for way, facts in plain.items()}
    return {"case": name, "digests": digests, "seconds": seconds, "facts": packed(text)}


def seeded() -> None:
    import numpy
    import torch

    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def raised(error: BaseException) -> Facts:
    return {"raises": [type(error).__name__, str(error)]}


@contextmanager
def deadline() -> Iterator[None]:
    """TimeoutError after some minutes."""

    def raise_timeout(*_: Any) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def of_report(report: Any) -> Facts:
    """Return the facts of a report, by part: only what its public functions and its file tell."""
    data = untimed(report.to_dict())
    memory, totals = data.pop("memory"), data.pop("totals")
    facts: Facts = {
        part: data.pop(part) for part in ("calls", "charges", "scopes", "nodes", "modules", "classes", "steps")
    }
    for each in (*facts["calls"], *facts["charges"]):
        if isinstance(each["rule"], dict):
            # Formulas may move to other files: their names count, and what they say that they count.
            each["rule"]["formula"] = each["rule"]["formula"].rpartition(":")[2]
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
        # Of equally large ones the order is nobody's promise.
        "live_at_peak": sorted(
            memory.pop("live_at_peak"), key=lambda each: (-each["bytes"], json.dumps(each, default=repr))
        ),
        "memory": memory,
        "traffic": traffic(report),
    }


def traffic(report: Any) -> Any:
    """Return the bytes that each call moves, and its least time on a device."""
    try:
        rows = report.roofline(DEVICE).to_dicts()
    except Exception as error:
        return raised(error)
    return [{key: row.get(key) for key in TRAFFIC} for row in rows]


def untimed(value: Any) -> Any:
    """Return data without times."""
    if isinstance(value, dict):
        return {key: untimed(item) for key, item in value.items() if key not in TIMES}
    return [untimed(item) for item in value] if isinstance(value, (list, tuple)) else value


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


def unpacked(text: str) -> dict[str, Facts]:
    return json.loads(zlib.decompress(base64.b64decode(text)))  # type: ignore[no-any-return]


Way = Callable[[], Any]


def ways_of(
    model: Any,
    args: Any,
    kwargs: Any,
    optimizer: Any = None,
    wanted: str = "count train analyze profile",
    **settings: Any,
) -> dict[str, Way]:
    """Return the ways to have a report of a model, by name; those that change its state are last."""
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

    ways: dict[str, Way] = {
        "count": count,
        "train": functools.partial(count, **{"mode": "train", **settings}, backward=True, optimizer=optimizer),
        "analyze": functools.partial(fxflops.analyze, model, args, kwargs, repeats=0, progress=False, **settings),
        "profile": profiled,
    }
    return {way: ways[way] for way in wanted.split()}

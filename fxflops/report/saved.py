"""Write reports as JSON, and read them. A file has the run and its counts, so the report read from it equals the saved report.

This is version 1 of the schema. Counts are ints, times are in seconds, and memory is in bytes. null means "not measured".

- ``schema`` is "fxflops.report" and ``schema_version`` is 1. A change that an older reader would misread gets a new version.
- ``model``, ``inputs``, ``trace``, ``trace_reason``, ``environment``, ``params``, ``convention``, ``attention``: the
  attributes of the Report with these names.
- ``totals``: the Report's ``total_*``, ``latency``, ``unsteady``, ``max_memory`` and ``complete``, for readers other
  than fxflops (loading a Report recomputes the sums). Also ``mfu``, for the device of the run if this device is listed.
- ``calls``: every call in run order, with ``op``, ``target``, ``args``, ``kwargs``, ``out``, ``settings``, ``path``, ``node``, ``site``,
  ``seconds``, ``phase`` and ``origin``. ``target`` is the name of the called function, ``{"class": name}``, or ``{"unseen": name}`` if the
  observer has only a description of the call. :mod:`fxflops.report.values` describes the form of arguments, results and settings.
  A call also has a count: ``cost`` is ``{macs, muls, adds, others}`` or null; ``rule`` is a reason or
  ``{"formula": name, "counts": description}``; ``missing`` is the reason why there is no cost; ``integer`` is a bool.
- ``charges``: the modules that the convention charges in addition to the calls, in the same form as ``calls``.
- ``users``: the counts by the user's formulas, by call index. Counts by the user's formulas are valid under every convention.
- ``scopes``: every call of a module: ``path``, ``cls``, ``params``, ``args``, ``kwargs``, ``out``, ``has_children``, ``settings``,
  ``seconds`` (under ``profile``, the time of the module without its submodules).
- ``modules``: ``path``, ``cls``, ``params`` (the number of parameters without submodules), ``keeps`` (the functions among the module's
  attributes), ``frozen`` (the number of frozen parameters among ``params``).
- ``aliases``: maps the second and further paths of a module to the module's first path.
- ``nodes``: the graph's nodes, each a :class:`~fxflops.meters.nodes.Node`; ``calls`` is ``[first, last + 1]``.
- ``latency``, ``backward_latency``: ``{median, low, high, repeats}`` or null.
- ``steps``: ``[name, first, last + 1, seconds by phase]``. ``instruments``: the seconds spent on observing the steps.
  ``device_busy``: the seconds for which an accelerator was busy. ``workers``: the number of workers of each DataLoader.
  ``lines``: ``[file and line, function, seconds]``, or null if lines were not sampled. ``captured``: the number of calls captured
  into a device graph.
- ``compiled``: the run of the compiled model, a :class:`~fxflops.run.outcome.Compiled`, or null.
- ``memory``: ``peak``, ``at`` (a module and a phase), ``source``, ``categories``, ``live_at_peak``, ``timeline``.
  ``live`` has one number for each of ``fxflops.meters.history.CATEGORIES``, in the order of ``CATEGORIES``.
- ``classes``: for each class outside torch, the names of its base classes and the names of its ``forward``'s parameters.
"""

from __future__ import annotations

import json
import marshal
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from ..conventions import CONVENTIONS, Convention, find_convention
from ..counting.counted_run import CountedRun
from ..counting.masked import without_mask
from ..errors import InputError
from ..meters.code_lines import CodeLine
from ..meters.history import CATEGORIES, LiveTensor, Moment, Place, Remembered
from ..meters.nodes import Kernel, Node
from ..meters.timing import Timing
from ..names import Absent, Classes, described, is_torch_loaded, name_of, target_of
from ..records import (
    FORWARD,
    PARTS,
    Call,
    Cost,
    Count,
    Counted,
    Module,
    Operation,
    Params,
    Scope,
    Step,
    per_operation,
)
from ..render.files import Path
from ..run.outcome import BlockFacts, Break, Compiled, CompiledKernel, Environment, Recompilation, Run, RunMemory
from .values import decoded, encoded

SCHEMA, VERSION = "fxflops.report", 1
NODE_TIMINGS = ("timing", "backward_timing", "host_timing")
COMPILED_TIMINGS = ("latency", "backward_latency")
COMPILED_RECORDS: dict[str, Any] = {"breaks": Break, "recompilations": Recompilation, "kernels": CompiledKernel}
TOTALS = (
    "total_flops",
    "total_macs",
    "total_params",
    "total_activations",
    "total_int_ops",
    "total_gradient_flops",
    "total_backward_flops",
    "total_backward_macs",
    "total_recompute_flops",
    "total_optimizer_flops",
    "total_training_flops",
    "total_time",
    "latency",
    "unsteady",
    "max_memory",
    "complete",
)
"""The attributes of a Report that a file stores only for readers other than fxflops."""
NAME_ONLY = "known by name alone"
"""The summary of a convention that a file names, but whose rules this process does not have."""
OPERATION_VALUES = itemgetter("args", "kwargs", "out", "settings")
PLACE = ("path", "node", "site", "seconds", "phase", "origin")
"""The fields of a call that say where and when the call was made."""


def to_json_data(
    counted_run: CountedRun, user_counts: Mapping[int, Counted], totals: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a counted run as JSON-compatible data.

    ``user_counts`` are the counts by the user's formulas, by call index.
    """
    run, counted = counted_run.run, counted_run.counted
    memory, block = run.memory, run.block
    # A convention may see a call of the run differently. Store the original call, so that the file can be recounted under any convention.
    calls = [each._replace(call=call) for each, call in zip(counted, run.calls, strict=False)]
    charges = counted[len(calls) :]
    call_data, operation_data = per_operation(_call), lru_cache(None)(_operation)
    entries = [call_data(each) | {name: getattr(each.call, name) for name in PLACE} for each in (*calls, *charges)]
    classes = {call.target for call in run.calls if isinstance(call.target, type)}
    classes |= {scope.cls for scope in run.scopes}
    return {
        "schema": SCHEMA,
        "schema_version": VERSION,
        "model": run.model,
        "inputs": run.inputs,
        "trace": run.recorded_as,
        "trace_reason": run.recorded_why,
        "convention": counted_run.convention,
        "attention": counted_run.attention,
        "environment": run.environment._asdict(),
        "params": None if run.params is None else run.params._asdict(),
        "totals": dict(totals),
        "calls": entries[: len(calls)],
        "charges": entries[len(calls) :],
        "users": {str(i): _counted(each) for i, each in user_counts.items()},
        "scopes": [
            {"path": scope.path, "cls": name_of(scope.cls), "params": encoded(dict(scope.params))}
            | operation_data(scope.operation)
            | {"has_children": scope.has_children, "seconds": scope.seconds}
            for scope in run.scopes
        ],
        "modules": [{**m._asdict(), "keeps": sorted(map(name_of, m.keeps))} for m in run.modules],
        "aliases": dict(run.aliases),
        "nodes": [*map(_plain, run.nodes)],
        "latency": _plain(run.latency),
        "backward_latency": _plain(run.backward_latency),
        "steps": [[step.name, step.calls.start, step.calls.stop, dict(step.parts)] for step in run.steps],
        "instruments": block.instrument_seconds,
        "device_busy": block.device_seconds,
        "interrupted": block.interrupted,
        "captured": run.captured_calls,
        "workers": block.workers,
        "lines": block.lines,
        "compiled": _plain(run.compiled),
        "memory": {
            "peak": memory.peak,
            "at": list(memory.history.peak_in),
            "source": memory.source,
            "categories": dict(memory.by_category),
            "live_at_peak": [{**t._asdict(), "spec": encoded(t.spec)} for t in memory.history.at_peak],
            "timeline": [{**m._asdict(), "live": list(m.live.values())} for m in memory.history.timeline],
        },
        "classes": described(classes),
    }


def _call(counted: Counted) -> dict[str, Any]:
    call = counted.call
    return {"op": call.op, "target": _spelled(call.target), **_operation(call.operation), **_counted(counted)}


def _spelled(target: Any) -> Any:
    if isinstance(target, str):
        return {"unseen": target}
    return {"class": name_of(target)} if isinstance(target, type) else name_of(target)


def _operation(operation: Operation) -> dict[str, Any]:
    """Return the values of an operation: its arguments, its result and its settings. The op and the target are left out."""
    values = {
        "args": operation.args,
        "kwargs": dict(operation.kwargs),
        "out": operation.out,
        "settings": dict(operation.settings),
    }
    return {name: encoded(value) for name, value in values.items()}


def _counted(counted: Counted) -> dict[str, Any]:
    cost, rule, missing, integer = counted.count
    return {
        "cost": None if cost is None else cost._asdict(),
        "rule": rule
        if isinstance(rule, str)
        else {"formula": name_of(rule), "counts": counted.count._replace(missing="").how},
        "missing": missing,
        "integer": integer,
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON data. A record becomes a dict by field name, a tuple becomes a list, and a range becomes a list of its start and end."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, range):
        return [value.start, value.stop]
    return [*map(_plain, value)] if isinstance(value, tuple) else value


def data_in(path: Path) -> Any:
    """Return the JSON data in a file. Raises InputError if the file is not JSON, and OSError if the file cannot be read."""
    with open(path, encoding="utf8") as file:
        try:
            return json.load(file)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{os.fspath(path)} is not JSON: {error}", advice="report") from error


class Saved:
    """The contents of a file: the run, the counts, the convention, and the way in which attention is counted.

    Raises InputError if the data is damaged, if it is not a report, or if its schema has another version.
    """

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            is_config = isinstance(data, dict) and "model_type" in data
            if isinstance(data, list) and data and isinstance(data[0], dict) and "provenance" in data[0]:
                raise InputError(
                    "this is a table that fxflops exported as JSON, such as a comparison of several models; it contains no report"
                )
            raise InputError("this is not an fxflops report", advice="config" if is_config else "report")
        if data.get("schema_version") != VERSION:
            raise InputError(
                f"the report has schema_version {data.get('schema_version')!r}, but this fxflops reads only version {VERSION}: "
                f"use the version of fxflops that wrote the report, or a newer version"
            )
        try:
            self._read(data)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise InputError(f"the report is damaged: {type(error).__name__}: {error}") from error

    def _read(self, data: dict[str, Any]) -> None:
        self._classes = Classes(data["classes"])
        self._decoded = partial(decoded, classes=self._classes)
        self._cache: dict[Any, Any] = {}
        calls = tuple(map(self._call, data["calls"]))
        memory = data["memory"]
        self.run = Run(
            model=data["model"],
            inputs=data["inputs"],
            calls=calls,
            scopes=tuple(map(self._scope, data["scopes"])),
            nodes=tuple(map(_node_from, data["nodes"])),
            latency=_timing_from(data["latency"]),
            backward_latency=_timing_from(data["backward_latency"]),
            memory=RunMemory(memory["peak"], self._history(memory), memory["source"]),
            steps=tuple(Step(name, range(first, end), *parts) for name, first, end, *parts in data["steps"]),
            captured_calls=data.get("captured", 0),
            block=BlockFacts(
                instrument_seconds=data.get("instruments"),
                device_seconds=data.get("device_busy"),
                interrupted=data.get("interrupted", ""),
                workers=tuple(data.get("workers", ())),
                lines=_lines_from(data.get("lines")),
            ),
            compiled=_compiled_from(data.get("compiled")),
            modules=tuple(Module(**{**m, "keeps": frozenset(map(target_of, m["keeps"]))}) for m in data["modules"]),
            aliases=dict(data.get("aliases", {})),
            params=None if data["params"] is None else Params(**data["params"]),
            environment=Environment(**data["environment"]),
            recorded_as=data["trace"],
            recorded_why=data["trace_reason"],
        )
        self.attention: str = data["attention"]
        # If this process does not have the convention, load only the convention's name. The counts are in the file anyway.
        name = data["convention"]
        has_rules = name in CONVENTIONS and is_torch_loaded()
        self.convention = find_convention(name) if has_rules else Convention(name, CONVENTIONS.get(name, NAME_ONLY))
        calls_as_counted = calls
        if self.attention == "dense":
            calls_as_counted = tuple(call._replace(operation=without_mask(call.operation)) for call in calls)
        charges = map(self._call, data["charges"])
        self.counted = tuple(
            self._counted(entry, call)
            for entry, call in zip([*data["calls"], *data["charges"]], [*calls_as_counted, *charges], strict=True)
        )
        self.user_counts = {int(i): self._counted(entry, calls[int(i)]) for i, entry in data["users"].items()}
        # If a file was edited by hand or written by another program, the calls may not add up to the total in the file.
        flops = sum(each.flops for each in self.counted if each.call.phase in PARTS[FORWARD])
        stated = data["totals"]["total_flops"]
        if flops != stated:
            raise ValueError(f"the calls add up to {flops:,} FLOPs, but total_flops is {stated:,}")

    def _history(self, memory: dict[str, Any]) -> Remembered:
        alive = (LiveTensor(**{**t, "spec": self._value(t["spec"])}) for t in memory["live_at_peak"])
        moments = (
            Moment(**{**m, "live": dict(zip_longest(CATEGORIES, m["live"], fillvalue=0))}) for m in memory["timeline"]
        )
        return Remembered(memory["peak"], Place(*memory["at"]), tuple(alive), tuple(moments))

    def _call(self, data: dict[str, Any]) -> Call:
        operation = self._cached(self._operation, [data["op"], data["target"], *OPERATION_VALUES(data)])
        return Call(operation, **{name: data.get(name, "") if name == "origin" else data[name] for name in PLACE})

    def _scope(self, data: dict[str, Any]) -> Scope:
        name = self._classes[data["cls"]].__name__
        operation = self._cached(self._operation, [name, {"class": data["cls"]}, *OPERATION_VALUES(data)])
        return Scope(data["path"], operation, self._value(data["params"]), data["has_children"], data.get("seconds"))

    def _operation(self, data: list[Any]) -> Operation:
        op, target, *values = data
        match target:
            case str():
                function = target_of(target)
            case {"unseen": name}:
                function = name
            case _:
                function = self._classes[target["class"]]
        return Operation(op, function, *map(self._value, values))

    def _counted(self, data: dict[str, Any], call: Call) -> Counted:
        return Counted(call, self._cached(_count_from, [data[name] for name in ("cost", "rule", "missing", "integer")]))

    def _value(self, data: Any) -> Any:
        return self._cached(self._decoded, data)

    def _cached(self, make: Callable[[Any], Any], data: Any) -> Any:
        """Return ``make(data)`` from a cache. Most data occurs many times in a file; equal data gives the same object.

        The key in the cache is the marshalled data instead of the data itself, because 1, 1.0 and True are equal in Python.
        """
        key = (
            make,
            marshal.dumps(data, 2),
        )  # version 2, because from version 3 on, the bytes also depend on which objects are identical
        if key not in self._cache:
            self._cache[key] = make(data)
        return self._cache[key]


def _count_from(data: list[Any]) -> Count:
    cost, rule, *others = data
    named_rule = rule if isinstance(rule, str) else Absent(rule["formula"], rule["counts"])
    return Count(None if cost is None else Cost(**cost), named_rule, *others)


def _node_from(data: dict[str, Any]) -> Node:
    times = {name: _timing_from(data[name]) for name in NODE_TIMINGS}
    kernels = tuple(Kernel(**kernel) for kernel in data["kernels"])
    inputs = tuple(data.get("inputs", ()))
    return Node(**{**data, **times, "calls": range(*data["calls"]), "kernels": kernels, "inputs": inputs})


def _compiled_from(data: dict[str, Any] | None) -> Compiled | None:
    if data is None:
        return None
    times = {name: _timing_from(data[name]) for name in COMPILED_TIMINGS}
    records = {name: tuple(kind(**each) for each in data[name]) for name, kind in COMPILED_RECORDS.items()}
    kernels = tuple(kernel._replace(paths=tuple(kernel.paths)) for kernel in records["kernels"])
    return Compiled(**{**data, **times, **records, "kernels": kernels})


def _lines_from(data: list[list[Any]] | None) -> tuple[CodeLine, ...] | None:
    return None if data is None else tuple(CodeLine(*line) for line in data)


def _timing_from(data: dict[str, Any] | None) -> Timing | None:
    return None if data is None else Timing(**data)

"""The public functions: the only place that knows the order of the stages: trace, run, count, roll up."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from .conventions import Convention, find_convention
from .errors import InputError, RunError, TraceError
from .inputs import as_call, checked_model
from .measure import Measured, Subject, author_lines, counted_run, measure, traced
from .ops import BASE
from .outcome import Environment, Memory, Params, Run
from .progress import progress_bar
from .records import FormulaFunction, spec_of, specs_in
from .report import Report
from .rollup import Module
from .state import RUNNING, Snapshot, training_flags
from .structure import tensors_in

MODES = ("eval", "train", "as_is")
Formulas = Mapping[Any, FormulaFunction]


def analyze(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    trace: str = "auto",
    convention: str | Convention = "torch_flops",
    formulas: Formulas | None = None,
    repeats: int | str = "auto",
    strict: bool = False,
    progress: bool | None = None,
) -> Report:
    """Trace ``model``, run it node by node on the real tensors; count, time and read the memory of every operation.

    Args:
        model: any ``nn.Module``, on CPU, CUDA or meta; left exactly as it was, also when something raises.
        args: a tuple is passed as positional inputs, anything else is one positional input.
        kwargs: keyword inputs.
        mode: "eval", "train" or "as_is"; default "eval". Runs under ``no_grad``.
        trace: "symbolic" (torch.fx.symbolic_trace), "record" (what a real run did, which works for any model that
            runs), or "auto": the first that succeeds.
        convention: what counts how much; see :func:`list_conventions`.
        formulas: ``{target: function}``, as :func:`formula` registers them, for this analysis alone.
        repeats: how often to time; "auto" until stable, at most about 2 s; 0 does not time. On meta nothing is timed.
        strict: raise when a call has no formula.
        progress: a progress bar on stderr; default: if it is a terminal.

    Raises:
        InputError: the model or the inputs do not fit. RunError: the model raised. TraceError: it cannot be traced.
        MissingFormulaError: with ``strict``. FormulaError: a formula does not fit a call.
    """
    return analyzed(
        model,
        args,
        kwargs,
        mode=mode,
        trace=trace,
        convention=convention,
        formulas=formulas,
        repeats=repeats,
        progress=progress,
    )[0].checked(strict)


def analyzed(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    *,
    trace: str,
    convention: str | Convention,
    formulas: Formulas | None,
    mode: str | None = None,
    repeats: int | str = "auto",
    progress: bool | None = None,
) -> tuple[Report, fx.GraphModule]:
    """What :func:`analyze` does, with the graph that it ran."""
    model = checked_model(model)
    if repeats != "auto" and (not isinstance(repeats, int) or repeats < 0):
        raise InputError(f"repeats must be 'auto' or a whole number from 0, not {repeats!r}")
    args, kwargs = as_call(model, args, kwargs)
    table, found = BASE.derive(formulas), find_convention(convention)
    with progress_bar(progress, type(model).__name__) as tick, _running(model, args, kwargs, mode) as (subject, mode):
        made = traced(subject, table, trace)
        try:
            try:
                measured = measure(subject, made, table, repeats, tick)
            except TraceError as error:  # what symbolic tracing made of the model is not what it does
                if trace != "auto":
                    raise
                made = traced(subject, table, "record", str(error).partition("\n")[0])
                measured = measure(subject, made, table, repeats, tick)
        except RunError as error:
            place = author_lines(subject, table, made).get(error.node) if error.node else None
            if place:
                error.args = (f"{error}\n  at {place}",)
            raise
        if any(call.site for call in measured.calls):
            measured = measured.with_sites(author_lines(subject, table, made))
    run = _run(subject, args, kwargs, measured, mode, f"{made.how} trace", made.why)
    return Report(run, found, table, weakref.ref(model)), made.graph


def count(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    convention: str | Convention = "torch_flops",
    formulas: Formulas | None = None,
    strict: bool = False,
) -> Report:
    """Count without computing: the model runs once on the meta device, whatever device it is on, and without a graph.

    No activation is allocated and the weights are not touched; nothing is timed; memory is predicted. Integers and
    booleans stay real, so that masks and positions have values. Where floating values are needed (``x.item()``, an
    operator that meta does not have) the model runs on its real tensors instead: ``report.trace`` says so and
    ``report.trace_reason`` why. Arguments and errors as for :func:`analyze`; InputError also where those real tensors
    pass half of the memory there is.
    """
    model = checked_model(model)
    args, kwargs = as_call(model, args, kwargs)
    table, found = BASE.derive(formulas), find_convention(convention)
    with _running(model, args, kwargs, mode) as (subject, mode):
        measured, why = counted_run(subject, table)
    trace = "observed on real tensors" if why else "observed on meta"
    run = _run(subject, args, kwargs, measured, mode, trace, why)
    return Report(run, found, table, weakref.ref(model)).checked(strict)


@contextmanager
def _running(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mode: str | None
) -> Iterator[tuple[Subject, str]]:
    """The model in its mode, without gradients, one analysis at a time; afterwards all is as it was before."""
    mode = mode or "eval"
    if mode not in MODES:
        raise InputError(f"unknown mode {mode!r}: one of {', '.join(map(repr, MODES))}")
    with RUNNING, torch.no_grad(), training_flags(model, mode):
        snapshot = Snapshot(model, (args, kwargs))
        try:
            yield Subject(model, args, kwargs, snapshot), mode
        finally:
            snapshot.rewind()


def _run(
    subject: Subject,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    measured: Measured,
    mode: str,
    trace: str,
    why: str = "",
) -> Run:
    model = subject.model
    device = subject.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} cores"
    place = f"{device} ({name})" if device.type in ("cpu", "cuda") else str(device)
    environment = Environment(place, mode, "no_grad", torch.__version__)
    inputs = " ".join(map(repr, specs_in(spec_of((args, kwargs)))))
    params = _params(model)
    held = {
        "params": params.bytes,
        "buffers": _bytes(model.buffers()),
        "inputs": _bytes(tensors_in((args, kwargs))),
    }
    memory = Memory(
        {**held, "activations": max(measured.peak - sum(held.values()), 0)}, measured.source, measured.peak_at
    )
    return Run(type(model).__name__, inputs, measured, _modules(model), params, memory, environment, trace, why)


def _params(model: nn.Module) -> Params:
    parameters = list(model.parameters())
    total = sum(p.numel() for p in parameters)
    trainable = sum(p.numel() for p in parameters if p.requires_grad)
    return Params(total, trainable, total - trainable, sum(b.numel() for b in model.buffers()), _bytes(parameters))


def _bytes(tensors: Any) -> int:
    """Bytes of the storages that tensors stand on, each once."""
    storages = {id(s): s for t in tensors if t.layout is torch.strided for s in [t.untyped_storage()]}
    return sum(storage.nbytes() for storage in storages.values())


def _modules(model: nn.Module) -> tuple[Module, ...]:
    """Every module with its own parameters, a shared one where it is met first."""
    seen: set[int] = set()
    modules = []
    for path, module in model.named_modules():
        own = [p for p in module._parameters.values() if p is not None and id(p) not in seen]
        seen.update(map(id, own))
        modules.append(Module(path, type(module).__name__, sum(p.numel() for p in own)))
    return tuple(modules)

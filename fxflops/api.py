"""The public functions: the only place that knows the order of the stages: trace, run, count, roll up."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import fx, nn

from .conventions import Convention, find_convention
from .counting.counts import check_attention
from .errors import InputError, RunError, TraceError, errors_of_kind
from .meters.progress import progress_bar
from .model.inputs import as_call, checked_model, shape_given
from .model.inventory import Inventory
from .model.optimizer import OptimizerLike, checked_optimizer
from .model.snapshot import holding
from .ops import BASE, FormulaRegistry
from .records import FormulaFunction
from .report.report import Report
from .run.lazy import initialized
from .run.model_run import Subject, counted_run
from .run.passes import Traced, author_lines, measure, traced
from .torch_internals import is_compiled
from .trace.compiler import unseen

MODES = ("eval", "train", "as_is")
Formulas = Mapping[Any, FormulaFunction]


def analyze(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    backward: bool = False,
    trace: str = "auto",
    convention: str | Convention = "fxflops",
    attention: str = "dense",
    formulas: Formulas | None = None,
    repeats: int | str = "auto",
    kernels: bool = False,
    strict: bool = False,
    progress: bool | None = None,
) -> Report:
    """Trace ``model``, run it node by node on the real tensors; count, time and read the memory of every operation.

    Args:
        model: any ``nn.Module``, on CPU, CUDA or meta; left exactly as it was, also when something raises.
        args: a tuple is passed as positional inputs, anything else is one positional input.
        kwargs: keyword inputs.
        mode: "eval", "train" or "as_is"; default "eval", "as_is" with ``backward``. Without it, runs under ``no_grad``.
        backward: also run the backward pass, from the sum of the floating outputs: count, time and read the memory of
            the part of each operation. Gradients are computed for the parameters that require them, and dropped.
        trace: "symbolic" (torch.fx.symbolic_trace), "record" (what a real run did, which works for any model that
            runs), or "auto": the first that succeeds.
        convention: what counts how much; see :func:`list_conventions`.
        attention: "dense" counts every query with every key; "exact" the pairs that a mask or causality leaves, in
            scaled_dot_product_attention, flex_attention and their kernels.
        formulas: ``{target: function}``, as :func:`formula` registers them, for this analysis alone.
        repeats: how often to time; "auto" until stable, at most about 2 s; 0 does not time. On meta nothing is timed.
        kernels: run once more under torch.profiler, and tell which kernels ran for each node and how long
            (``report.nodes[i].kernels``): on CUDA those that CUPTI saw, on a CPU the operators.
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
        backward=backward,
        trace=trace,
        convention=convention,
        attention=attention,
        formulas=formulas,
        repeats=repeats,
        kernels=kernels,
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
    attention: str = "dense",
    mode: str | None = None,
    backward: bool = False,
    repeats: int | str = "auto",
    kernels: bool = False,
    progress: bool | None = None,
) -> tuple[Report, fx.GraphModule]:
    """What :func:`analyze` does, with the graph that it ran."""
    if repeats != "auto" and (not isinstance(repeats, int) or repeats < 0):
        raise InputError(f"repeats must be 'auto' or a whole number from 0, not {repeats!r}")
    registry, found = BASE.derive(formulas), find_convention(convention)
    check_attention(attention)
    with (
        running(model, args, kwargs, mode, backward) as subject,
        progress_bar(progress, type(subject.model).__name__) as tick,
    ):
        made = traced(subject, registry, trace)
        try:
            try:
                run = measure(subject, made, registry, repeats, tick, kernels)
            except (TraceError, InputError) as error:  # symbolic tracing may make of a model what it does not do
                if trace != "auto" or made.how != "symbolic":
                    raise
                made = _recorded_instead(subject, registry, error)
                run = measure(subject, made, registry, repeats, tick, kernels)
        except RunError as error:
            place = author_lines(subject, registry, made).get(error.node) if error.node else None
            if place:
                error.args = (f"{error}\n  at {place}",)
            raise
    return Report(run, found, registry, weakref.ref(subject.model), attention), made.graph


def _recorded_instead(subject: Subject, registry: FormulaRegistry, error: TraceError | InputError) -> Traced:
    """The model recorded, where its symbolic graph does otherwise; where it raises itself, that error, at its node if
    the graph raised it too."""
    try:
        return traced(subject, registry, "record", str(error).partition("\n")[0])
    except RunError as raised:
        is_same = (type(raised.__cause__), str(raised.__cause__)) == (type(error.__cause__), str(error.__cause__))
        shown = error if is_same else raised
        raise shown from shown.__cause__


def count(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    backward: bool = False,
    optimizer: OptimizerLike | None = None,
    convention: str | Convention = "fxflops",
    attention: str = "dense",
    formulas: Formulas | None = None,
    strict: bool = False,
) -> Report:
    """Count without computing: the model runs once on the meta device, whatever device it is on, and without a graph.

    No activation is allocated and the weights are not touched; nothing is timed; memory is predicted. Integers and
    booleans stay real, so that masks and positions have values. Where floating values are needed (``x.item()``, an
    operator that meta does not have) the model runs on its real tensors instead: ``report.trace`` says so and
    ``report.trace_reason`` why. Arguments and errors as for :func:`analyze`; InputError also where those real tensors
    pass half of the memory there is.

    With ``backward=True`` and an ``optimizer`` (a ``torch.optim.Optimizer`` of the model's parameters, or what makes one:
    ``torch.optim.AdamW``) its step is counted too, and its state is in the predicted peak of the training step. The
    optimizer itself takes no step.
    """
    optimizer = checked_optimizer(optimizer, backward)
    registry, found = BASE.derive(formulas), find_convention(convention)
    check_attention(attention)
    with running(model, args, kwargs, mode, backward, lazy=True) as subject:
        subject.optimizer = optimizer
        run = counted_run(subject, registry, facts=attention == "exact")
    return Report(run, found, registry, weakref.ref(subject.model), attention).checked(strict)


@contextmanager
def running(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    mode: str | None,
    backward: bool,
    lazy: bool = False,
) -> Iterator[Subject]:
    """The model with its inputs, in its mode, with gradients only for a backward pass, one analysis of it at a time; afterwards all is as it
    was before."""
    given, model = model, checked_model(model)
    with errors_of_kind(TypeError):
        positional, named = as_call(model, args, kwargs)
    mode = mode or ("as_is" if backward else "eval")
    if mode not in MODES:
        raise InputError(f"unknown mode {mode!r}: one of {', '.join(map(repr, MODES))}")
    grad = torch.enable_grad() if backward else torch.no_grad()
    inventory = Inventory(model, lazy=True)
    with errors_of_kind(), grad, holding(inventory.paths, mode) as within, unseen() if within else nullcontext():
        try:
            with initialized(model, inventory, positional, named) as whole:
                subject = Subject(
                    model, whole, positional, named, mode, backward, lazy, is_compiled([given, *whole.paths])
                )
                try:
                    yield subject
                finally:
                    subject.rewind()
        except RunError as error:
            if (shape := shape_given(args, named)) is not None:
                raise shape from error
            raise

"""The public functions ``analyze``, ``count``, ``summary`` and ``read_trace``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, NoReturn

import torch
from torch import fx, nn

from .conventions import Convention, check_attention, find_convention
from .errors import (
    InputError,
    check_flags,
    did_you_mean,
    of_kind,
    unknown_arguments,
    worded,
)
from .model.callables import as_model, reference_to
from .model.inputs import (
    batch_dim_note,
    checked_autocast,
    checked_device,
    inputs_of_sizes,
    opened_model,
    signature_of,
    summary_words,
)
from .model.modules import parameters_of
from .model.optimizer import OptimizerLike, checked_optimizer
from .model.programs import Program
from .ops.packages import registry_with
from .records import FormulaFunction
from .report.model_summary import COLUMNS, DEPTH, ModelSummary
from .report.report import Report
from .run.model_run import run_model
from .run.outcome import Run
from .run.passes import TracedGraph, traced_run
from .run.progress import progress_bar
from .run.request import Request, rerun_if_own_backward
from .run.running import prepared_subject
from .trace.memo import Memos
from .trace_files.run import run_of_trace

NO_OPTIMIZER = """analyze() takes no optimizer; use instead:
  fxflops.count(model, args, backward=True, optimizer=optimizer) to count the optimizer's step without computing it
  fxflops.profile(model, optimizer=optimizer) to count your own training step in a with block"""
INPUTS = """pass the model's inputs themselves:
  {}(model, torch.zeros(1, 3, 224, 224)); several inputs as a tuple, keyword inputs as kwargs={{...}}
  fxflops.summary(model, input_size=(1, 3, 224, 224)) makes the inputs from their shapes"""
ADAPTER_TAKES = "fxflops.adapters.torchinfo.summary takes torchinfo's own arguments"
Formulas = Mapping[Any, FormulaFunction]
Model = nn.Module | Callable[..., Any] | str | PathLike[str]
"""A model, any other callable (also a torch.export program), or the path of a file or folder with a model."""
Models = nn.Module | Sequence[nn.Module] | Mapping[str, Any]


def analyze(
    model: Model,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    models: Models | None = None,
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
    optimizer: None = None,
    **unknown: NoReturn,
) -> Report:
    """Trace ``model`` and run it node by node on real tensors. Count every operation, and measure its time and memory.

    Args:
        model: any ``nn.Module``, on CPU, accelerator or meta. The model's state is restored at the end, also after an error. A
            model from ``torch.compile`` is counted and timed eagerly, and also timed compiled (``report.compiled``).
            ``model`` may also be any other callable: a function, a method (``model.generate``), a ``functools.partial``, an object such as
            a pipeline. fxflops looks for modules in the callable's object, closure and arguments, and in the global variables that the
            callable's code names. A module's path begins with the name of the variable or attribute that contains the module (``net``,
            ``pipe.unet``). For a module's method, paths are as in the module. Everything that the callable reaches is restored, also an
            optimizer that it steps. If the callable runs a backward pass itself, only that backward pass runs and is counted.
        args: the positional inputs as a tuple; anything else is passed as a single positional input.
        kwargs: keyword inputs.
        models: for a callable, the modules to show instead of the modules that the search finds: a single module (paths are as in
            that module), a list, or a mapping by name.
        mode: "eval", "train" or "as_is"; default "eval", or "as_is" with ``backward``.
        backward: also run, count and measure the backward pass. The backward pass starts at the loss if the model returns a loss. If the
            model returns no loss, the backward pass starts at the sum of the outputs that require a gradient. Gradients are computed for
            parameters that require gradients, and discarded. Without ``backward`` the model runs under ``no_grad``.
        trace: "symbolic" uses torch.fx.symbolic_trace, "record" records the calls of a real run, and "auto" tries "symbolic" first,
            then "record". If a recorded graph cannot be run again, the report describes the model's own run, without nodes.
        convention: the name of the counting rules; see :func:`list_conventions`.
        attention: "dense" counts every query with every key; "exact" counts only the pairs that a mask or causality
            keeps, in scaled_dot_product_attention, flex_attention and their kernels.
        formulas: formulas for this analysis only, ``{target: function}``, with functions as for :func:`formula`.
        repeats: the number of timed runs. 0 skips timing. "auto" repeats until times are stable, at least 5 times (3 times if a run
            takes 0.1 s), for at most about 2 s. If the model is on meta, nothing is timed, and peak memory is predicted for the CPU, as by
            :func:`count`.
        kernels: also run once under torch.profiler, and report each node's kernels with their times
            (``report.nodes[i].kernels``). On CUDA, kernels are from CUPTI; on CPU and mps, operators are reported instead. A compiled
            model is also compiled again in another process, to report its own kernels by module (``report.compiled.by_module()``).
        strict: raise MissingFormulaError if a call has no formula.
        progress: show a progress bar on stderr, with the remaining time of a long analysis; by default only if stderr is a terminal.
        optimizer: not supported here; pass an optimizer to :func:`count` or :class:`fxflops.profile`.

    Raises:
        InputError: the model or its inputs are invalid.
        RunError: the model raised an error.
        OutOfMemoryError: the model's device has too little memory.
        TraceError: the model cannot be traced.
        MissingFormulaError: with ``strict``, a call has no formula.
        FormulaError: a formula does not fit a call.
    """
    if optimizer is not None:
        raise of_kind(InputError(NO_OPTIMIZER), TypeError)
    if unknown:
        raise _not_taken("analyze", model, unknown, analyze.__kwdefaults__ or (), INPUTS.format("analyze"))
    check_flags(backward=backward, kernels=kernels, strict=strict)
    report, graph = analyzed(
        as_model(model, models, args, kwargs),
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
    )
    # A GraphModule and its graph reference each other. This cycle would keep the model's layers alive until garbage collection.
    for contents in (graph._modules, graph._parameters, graph._buffers):
        contents.clear()
    return report.checked(strict)


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
    """Analyze the model like :func:`analyze`; return the report and the graph that was run."""
    if repeats != "auto" and (not isinstance(repeats, int) or repeats < 0):
        raise InputError(f"repeats must be 'auto' or an integer of at least 0, not {repeats!r}")
    registry, counting_rules = registry_with(formulas), find_convention(convention)
    check_attention(attention)

    def run_prepared(request: Request) -> tuple[Run, TracedGraph]:
        with (
            prepared_subject(model, args, kwargs, request) as subject,
            progress_bar(progress, type(subject.model).__name__) as tick,
        ):
            device_types = {tensor.device.type for _, tensor in subject.named_tensors["inputs"]}
            if device_types == {"meta"} != {subject.device.type}:
                problem = (
                    f"the input is on meta, but the model is on {subject.device}: pass a real tensor, or use count()"
                )
                raise InputError(problem)
            return traced_run(subject, registry, tracer=trace, repeats=repeats, tick=tick, with_kernels=kernels)

    run, traced = rerun_if_own_backward(Request(mode, backward), type(model).__name__, run_prepared)
    return Report(run, counting_rules, registry, reference_to(model), attention), traced.graph_module


def count(
    model: Model,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    models: Models | None = None,
    mode: str | None = None,
    backward: bool = False,
    optimizer: OptimizerLike | None = None,
    device: str | torch.device | None = None,
    autocast: torch.dtype | None = None,
    convention: str | Convention = "fxflops",
    attention: str = "dense",
    formulas: Formulas | None = None,
    strict: bool = False,
    **unknown: NoReturn,
) -> Report:
    """Count a model's operations without computing them. The model runs once on the meta device, without a graph.

    ``device`` is the device to count for, "cpu" or "cuda". This machine does not need to have ``device``. The device decides which kernels
    attention, dropout, norms and recurrent layers use. The device also decides the autocast rules, and the device that the model's own code
    sees. The default is the model's own device, or the CPU for a model on meta. "cuda" is an NVIDIA GPU of compute capability 8.0 or higher
    (e.g. A100 or H100).

    ``autocast`` is torch.bfloat16 or torch.float16. The forward pass then runs as under ``torch.autocast(device, autocast)``, on
    any machine: with torch's cast lists for that device
    (https://pytorch.org/docs/stable/amp.html#autocast-op-reference) and with autocast's cache of cast weights. The backward pass
    runs outside the autocast region, as torch advises.

    No activations are allocated and weights are not read. Nothing is timed, and memory is predicted. Integers and
    booleans keep their values, for masks and positions. So do floating-point tensors of at most 2**20 elements that the model makes
    itself: calls on such tensors alone are computed. If other floating-point values are needed (``x.item()``, an operator without
    a meta kernel), the model runs on its real tensors instead: then ``report.trace`` says that real tensors were used,
    and ``report.trace_reason`` says why.

    ``optimizer`` needs ``backward=True``. ``optimizer`` is a ``torch.optim.Optimizer`` with the model's parameters, or a class or function
    that makes an optimizer, such as ``torch.optim.AdamW``. The optimizer's step is counted too, and the predicted peak memory includes the
    optimizer's state. The optimizer itself takes no step.

    Other arguments and errors are as for :func:`analyze`. InputError is also raised if a run on real tensors would need more than half of
    the device's memory.
    """
    if unknown:
        raise _not_taken("count", model, unknown, count.__kwdefaults__ or (), INPUTS.format("count"))
    return counted(
        model,
        args,
        kwargs,
        mode=mode,
        backward=backward,
        optimizer=optimizer,
        device=device,
        autocast=autocast,
        convention=convention,
        attention=attention,
        formulas=formulas,
        strict=strict,
        models=models,
        memos=Memos(),
    )


def counted(
    model: Model,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    backward: bool = False,
    optimizer: OptimizerLike | None = None,
    device: str | torch.device | None = None,
    autocast: torch.dtype | None = None,
    convention: str | Convention = "fxflops",
    attention: str = "dense",
    formulas: Formulas | None = None,
    strict: bool = False,
    models: Models | None = None,
    memos: Memos | None,
) -> Report:
    """Count the model like :func:`count`. Counts of the same model, device and formulas within one user call share ``memos``.

    Without ``memos``, the results of repeated calls are computed again. Counting without ``memos`` is slow; tests use it to check the
    results with ``memos``.
    """
    check_flags(backward=backward, strict=strict)
    optimizer = checked_optimizer(optimizer, backward)
    registry, counting_rules = registry_with(formulas), find_convention(convention)
    check_attention(attention)
    module = as_model(model, models, args, kwargs)
    count_for, cast_dtype = checked_device(device), checked_autocast(autocast)

    def run_prepared(request: Request) -> Run:
        with prepared_subject(module, args, kwargs, request) as subject:
            return run_model(subject, registry, must_read_masks=attention == "exact", memos=memos)

    request = Request(mode, backward, optimizer=optimizer, counts_only=True, count_for=count_for, autocast=cast_dtype)
    run = rerun_if_own_backward(request, type(module).__name__, run_prepared)
    # The Report counts the calls of the run.
    return Report(run, counting_rules, registry, reference_to(module), attention).checked(strict)


def summary(
    model: Model,
    input_size: Sequence[Any] | None = None,
    input_data: Any = None,
    *,
    dtypes: Sequence[torch.dtype] | torch.dtype | None = None,
    batch_dim: int | None = None,
    depth: int | None = DEPTH,
    columns: Sequence[str] | str = COLUMNS,
    mode: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    models: Models | None = None,
    **unknown: NoReturn,
) -> ModelSummary:
    """Return a table of the model's modules with input and output shapes, parameters and MACs. The run's totals follow the table.

    At the prompt and in a notebook, the table displays itself. In a script, print the table. The model runs as in :func:`count`. If several
    modules share a weight, the weight is counted once, in the first of these modules. torchinfo counts it in every module.

    Args:
        input_size: the shape of the input with its batch dimension, or a list of shapes. The inputs are random numbers from
            0 to 1, the same at each call; integers are 0, booleans True.
        input_data: the inputs, instead of ``input_size``: a tensor, a list or tuple of positional inputs, or a mapping by the
            names of forward's parameters.
        dtypes: with ``input_size``, a list with the dtype of each input, or a single dtype for all inputs; default torch.float32.
        batch_dim: the position at which a batch dimension of 1 is added to each shape.
        depth, columns: as for :meth:`Report.tree`.
        mode, kwargs, models: as for :func:`count`; the model may also be any callable.

    Raises:
        InputError: as for :func:`count`. InputError is also raised unless exactly one of ``input_size`` and ``input_data`` is passed, and
            for arguments of torchinfo that only ``fxflops.adapters.torchinfo.summary`` takes.
    """
    if unknown:
        argument_names = [*inspect.signature(summary).parameters][1:-1]
        advice = f"it takes {', '.join(argument_names)}; {ADAPTER_TAKES}"
        raise _not_taken("summary", model, unknown, argument_names, advice, ADAPTER_TAKES)
    model = opened_model(model)
    has_inputs = bool(kwargs) or isinstance(model, Program)
    if (input_size is None) == (input_data is None) and (input_size is not None or not has_inputs):
        wrong = "summary() needs either input_size, such as input_size=(1, 3, 224, 224), or input_data=x"
        unrun = "to list modules and parameters without inputs, use fxflops.adapters.torchinfo.summary(model)"
        raise of_kind(InputError(f"{wrong}; {unrun}"), TypeError)
    inputs, note = () if input_data is None else input_data, ""
    module = as_model(model, models, () if input_data is None else (input_data,), kwargs)
    if input_size is not None:
        inputs = inputs_of_sizes(
            input_size, dtypes, batch_dim, next(iter(parameters_of(module)), torch.empty(0, device="cpu")).device
        )
    elif isinstance(input_data, list):
        inputs = tuple(input_data)
    elif isinstance(input_data, Mapping):
        parameters = [*signature_of(module).parameters]
        unknown_names = [name for name in input_data if name not in parameters]
        if not unknown_names or (len(parameters) > 1 and len(unknown_names) < len(input_data)):
            inputs, kwargs = (), {**input_data, **(kwargs or {})}
        else:
            note = f"\n  the dict was passed as input {', '.join(parameters[:1])}: forward has no parameter {unknown_names[0]!r}"
            note += did_you_mean(str(unknown_names[0]), parameters)
    with worded(summary_words(module), batch_dim_note(input_size, batch_dim) + note):
        report = count(module, inputs, kwargs, mode=mode)
    return ModelSummary(report, report.tree(depth, columns=columns))


def _not_taken(
    function: str,
    model: Any,
    arguments: Mapping[str, Any],
    argument_names: Iterable[str],
    advice: str,
    *last: str,
) -> InputError:
    """Return the error for arguments that a function does not take. For inputs of the model, the error shows how to pass them."""
    parameters: Collection[str] = ()
    if callable(model) and not isinstance(model, type):
        parameters = signature_of(as_model(model)).parameters
    if "inputs" in arguments and "inputs" not in parameters:
        return unknown_arguments(function, arguments, (), advice)
    if inputs := [name for name, value in arguments.items() if name in parameters or isinstance(value, torch.Tensor)]:
        spelled = ", ".join(f'"{name}": {name}' for name in inputs)
        return unknown_arguments(
            function, inputs, (), f"pass inputs by name as {function}(model, kwargs={{{spelled}}})"
        )
    return unknown_arguments(function, arguments, argument_names, advice, *last)


def read_trace(
    path: str | PathLike[str],
    *,
    device: str | None = None,
    convention: str | Convention = "fxflops",
    attention: str = "dense",
    formulas: Formulas | None = None,
    strict: bool = False,
) -> Report:
    """Count the operators in a torch.profiler trace, a ``.json`` or ``.json.gz`` file. Nothing is run.

    The report's calls are the operators that a dispatch mode would have seen. The time of a call is the time of its kernels on the device.
    In a CPU trace, it is the time in the operator itself. A kernel that no operator launched is listed by name in ``report.missing``.
    Modules are shown only if the trace was recorded ``with_stack=True``. Parameters and memory are None.

    Args:
        path: the path of a trace that was recorded with ``record_shapes=True``.
        device: the name of the device, e.g. "H100", if the trace does not contain it.

    Other arguments are as for :func:`analyze`.

    Raises:
        InputError: the file does not exist, is not a trace, or has no shapes; or the convention counts no operators.
        MissingFormulaError: with ``strict``, an operator has no formula.
    """
    if not isinstance(path, str | PathLike):
        kind, written = type(path).__name__, "write a trace with profiler.export_chrome_trace('trace.json')"
        raise of_kind(InputError(f"read_trace() takes the path of a trace, not {kind}: {written}"), TypeError)
    check_flags(strict=strict)
    registry, counting_rules = registry_with(formulas), find_convention(convention)
    check_attention(attention)
    report = Report(run_of_trace(path, registry, device), counting_rules, registry, None, attention)
    return report.checked(strict)

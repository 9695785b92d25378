"""The text printed by DeepSpeed's profiler: numbers with units, the top classes at each depth, and the model with the results of each module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from ..model.modules import all_modules, parameters_of
from ._deepspeed_recording import Recording
from ._module_text import annotated_copy, largest_sums, levels_of, params_of

NOTATIONS = """\
Notations:
data parallel size (dp_size), model parallel size(mp_size),
number of parameters (params), number of multiply-accumulate operations(MACs),
number of floating-point operations (flops), floating-point operations per second (FLOPS),
fwd latency (forward propagation latency), bwd latency (backward propagation latency),
step (weights update latency), iter latency (sum of fwd, bwd and step latency)
"""
HEAD = """
-------------------------- DeepSpeed Flops Profiler --------------------------
Profile Summary at step {step}:
"""
AGGREGATED = "\n----------------------------- Aggregated Profile per {place} -----------------------------"
TOP = "Top {top} modules in terms of params, MACs or fwd latency at different model depths:"
DETAILED = """
------------------------------ Detailed Profile per {place} ------------------------------
Each module profile is listed after its name in the following order:\x20
params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd latency, fwd FLOPS

Note: 1. A module can have torch.nn.module or torch.nn.functional to compute logits (e.g. CrossEntropyLoss). They are not \
counted as submodules, thus not to be printed out. However they make up the difference between a parent's MACs (or latency) \
and the sum of its submodules'.
2. Number of floating-point operations is a theoretical estimation, thus FLOPS computed using that could be larger than the \
maximum system throughput.
3. The fwd latency listed in the top module's profile is directly captured at the module forward function in PyTorch"""
IN_DEEPSPEED = ", thus it's less than the fwd latency shown above which is captured in DeepSpeed.\n\n"
END = "------------------------------------------------------------------------------"
UNSTARTED = "no __flops__ attribute in the model, call this function after start_profile and before end_profile"

DEFAULT_PRECISION = 2
SIZES = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1, "m": 1e-3, "u": 1e-6}
Rows = Iterable[tuple[str, Any]]
Figures = dict[str, tuple[Callable[[nn.Module], float], Callable[[Any], str]]]


def number_to_string(num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Return a number in "T", "G", "M", "K", "", "m" or "u", by default in a suitable unit: ``22360 -> '22.36 K'``, ``7 -> '7 '``."""
    if units is None:
        units = next((unit for unit, size in SIZES.items() if num >= size), "u") if num else ""
    return f"{round(num / SIZES.get(units, 1), precision):g} {units}"


num_to_string = number_to_string  # flops-profiler formats totals differently


def macs_to_string(macs: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Return multiply-accumulates with a unit: ``22360 -> '22.36 KMACs'``."""
    return f"{number_to_string(macs, units, precision)}MACs"


def flops_to_string(flops: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Return FLOPs per second with a unit: ``22360 -> '22.36 KFLOPS'``."""
    return f"{number_to_string(flops, units, precision)}FLOPS"


def bytes_to_string(b: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Return bytes with a decimal unit: ``22360 -> '22.36 KB'``."""
    return f"{number_to_string(b, units, precision)}B"


def params_to_string(params_num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Return a number of parameters with a unit; the unit for 10**9 is "B": ``4.1e9 -> '4.1 B'``."""
    units = units.replace("B", "G") if units else units
    return number_to_string(params_num, units, precision).replace("G", "B").strip()


def duration_to_string(duration: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Return seconds with a unit: ``0.0125 -> '12.5 ms'``."""
    return f"{number_to_string(duration, units, precision)}s"


def expert_parallelism(parameter: nn.Parameter) -> int:
    """Return the number of ranks over which DeepSpeed spreads the experts of this parameter; 0 if the parameter belongs to no expert."""
    prefix, _, size = getattr(parameter, "group_name", "").partition("ep_size_")
    return int(size) if not prefix and size.isdecimal() else 0


def is_tensor_parallel(model: nn.Module) -> bool:
    """Return True if the model's first DeepSpeed mixture of experts splits each expert among ranks."""
    mixture = ("deepspeed.moe.layer", "MoE")
    experts = (
        module
        for module in all_modules(model)
        if any((cls.__module__, cls.__name__) == mixture for cls in type(module).__mro__)
    )
    settings = (getattr(module, "enable_expert_tensor_parallelism", None) for module in experts)
    return next((bool(setting) for setting in settings if setting is not None), False)


def page(recording: Recording, step: int, engine: Any, recomputed: float, depths: int, top: int, each: bool) -> str:
    """Return the text of a profile: the totals of the model, the engine's sizes (if any), the top classes and, if ``each``, every module."""
    rows = [*_sizes(recording.model, engine), *_forward(recording, engine), *_step(recording, engine, recomputed)]
    details = IN_DEEPSPEED + detailed(recording) if each else ""
    return joined(HEAD.format(step=step), rows, 70, "GPU", aggregated(recording, depths, top), details)


def joined(head: str, rows: Rows, width: int, place: str, top: str, details: str) -> str:
    """Join the parts of a profile, each under a title. ``width`` is the width of the column with the names of the rows."""
    return "\n".join(
        [
            f"{head}{NOTATIONS}",
            *(f"{name:<{width}}  {value:<8}" for name, value in rows),
            AGGREGATED.format(place=place),
            top,
            *([DETAILED.format(place=place) + details] if details else []),
            END,
        ]
    )


def _sizes(model: nn.Module, engine: Any) -> Rows:
    """Yield the rows for the sizes of the engine and the numbers of parameters."""
    experts = [(parameter.numel(), expert_parallelism(parameter)) for parameter in parameters_of(model)]
    of_experts = shared = nonexperts = 0
    if engine:
        nonexperts = engine.mp_world_size * sum(params for params, ranks in experts if not ranks)
        yield "world size: ", engine.world_size
        spread = engine.dp_world_size
        yield "data parallel size: ", engine.seq_dp_world_size if spread is None else spread
        yield "model parallel size: ", engine.mp_world_size
        yield "batch size per GPU: ", engine.train_micro_batch_size_per_gpu()
        if engine.has_moe_layers:
            shared = engine.mp_world_size if is_tensor_parallel(model) else 1
            of_experts = shared * sum(params * ranks for params, ranks in experts)
            yield "expert tensor parallelism enabled: ", shared > 1
    yield "params per GPU: ", params_to_string(params_of(model))
    if of_experts:
        yield "params of model: ", params_to_string(nonexperts + of_experts)
        yield "   non-expert params of model: ", params_to_string(nonexperts)
        yield "   expert params of model: ", params_to_string(of_experts)
    else:
        yield "params of model = params per GPU * mp_size: ", params_to_string(nonexperts)


def _forward(recording: Recording, engine: Any) -> Rows:
    usage = recording.total(recording.model)
    yield "fwd MACs per GPU: ", macs_to_string(usage.macs)
    yield "fwd flops per GPU: ", number_to_string(usage.flops)
    whole = usage.flops * (engine.mp_world_size if engine else 1)
    yield "fwd flops of model = fwd flops per GPU * mp_size: ", number_to_string(whole)
    seconds = elapsed(engine, "fwd") if is_timed(engine) else usage.duration
    yield "fwd latency: ", duration_to_string(seconds)
    if seconds:
        yield "fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ", flops_to_string(usage.flops / seconds)


def _step(recording: Recording, engine: Any, recomputed: float) -> Rows:
    """Yield the rows for the backward and for the optimizer's step, if the engine times its phases."""
    if not is_timed(engine):
        return
    flops, factor = recording.total(recording.model).flops, 2 + recomputed
    forward, backward, step = (elapsed(engine, timer) for timer in ("fwd", "bwd", "step"))
    both, whole = f"{factor + 1:g} * fwd flops per GPU", forward + backward + step
    yield "bwd latency: ", duration_to_string(backward)
    name = f"bwd FLOPS per GPU = {factor:g} * fwd flops per GPU / bwd latency: "
    yield name, flops_to_string(factor * flops / backward)
    name = f"fwd+bwd FLOPS per GPU = {both} / (fwd+bwd latency): "
    yield name, flops_to_string((factor + 1) * flops / (forward + backward))
    yield "step latency: ", duration_to_string(step)
    yield "iter latency: ", duration_to_string(whole)
    yield f"FLOPS per GPU = {both} / iter latency: ", flops_to_string((factor + 1) * flops / whole)
    samples = engine.train_micro_batch_size_per_gpu() * engine.world_size
    yield "samples/second: ", round(samples / whole, DEFAULT_PRECISION)


def is_timed(engine: Any) -> bool:
    return bool(engine) and hasattr(engine, "wall_clock_breakdown") and bool(engine.wall_clock_breakdown())


def elapsed(engine: Any, timer: str) -> float:
    """Return the seconds that a timer of the engine has measured."""
    return float(engine.timers(timer).elapsed(False)) / 1000.0


def aggregated(recording: Recording, depths: int, top: int) -> str:
    """Return the ``top`` module classes at each of the first ``depths`` depths (-1: all but the innermost depth), as text.

    The classes are ranked by parameters, by MACs and by time.
    """
    figures: Figures = {
        "params": (params_of, params_to_string),
        "MACs": (lambda module: recording.total(module).macs, macs_to_string),
        "fwd latency": (lambda module: recording.total(module).duration, duration_to_string),
    }
    return by_depth(TOP, recording.model, depths, top, figures)


def by_depth(title: str, model: nn.Module, depths: int, top: int, figures: Figures) -> str:
    levels, lines = levels_of(model), [title.format(top=top)]
    for depth, modules in enumerate(levels[: len(levels) - 1 if depths == -1 else depths]):
        largest = {name: largest_sums(modules, value, text, top) for name, (value, text) in figures.items()}
        lines += [f"depth {depth}:", *(f"    {name:<11} - {classes}" for name, classes in largest.items())]
    return "\n".join(lines)


def detailed(recording: Recording) -> str:
    """Return the model's repr. The results of each module come before the module's settings."""
    model = recording.model
    whole, params = recording.total(model), params_of(model)

    def line(module: nn.Module) -> str:
        usage = recording.total(module)
        speed = round(usage.flops / usage.duration, DEFAULT_PRECISION) if usage.duration else 0
        items = [
            f"{params_to_string(params_of(module))} = {_percent(params_of(module), params)} Params",
            f"{macs_to_string(usage.macs)} = {_percent(usage.macs, whole.macs)} MACs",
            f"{duration_to_string(usage.duration)} = {_percent(usage.duration, whole.duration)} latency",
            flops_to_string(speed),
            module.extra_repr(),
        ]
        return ", ".join(filter(None, items))

    return repr(annotated_copy(model, line))


def _percent(part: float, whole: float) -> str:
    return f"{round(100 * part / whole, DEFAULT_PRECISION) if whole else 0:g}%"

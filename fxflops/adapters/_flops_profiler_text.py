"""What DeepSpeed's profiler prints: numbers with their units, the classes of modules by depth, the model with its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from ._flops_profiler_recording import Recording, Usage
from .ptflops import largest_sums, scaled, twin

HEAD = """
-------------------------- Flops Profiler --------------------------
Profile on Device: {device}
Profile Summary at step {step}:
Notations:
data parallel size (dp_size), model parallel size(mp_size),
number of parameters (params), number of multiply-accumulate operations(MACs),
number of floating-point operations (flops), floating-point operations per second (FLOPS),
fwd latency (forward propagation latency), bwd latency (backward propagation latency),
step (weights update latency), iter latency (sum of fwd, bwd and step latency)
"""
AGGREGATED = "\n----------------------------- Aggregated Profile per Device -----------------------------"
DETAILED = """
------------------------------ Detailed Profile per Device ------------------------------
Each module profile is listed after its name in the following order:\x20
params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd latency, fwd FLOPS

Note: 1. A module can have torch.nn.module or torch.nn.functional to compute logits (e.g. CrossEntropyLoss). They are not \
counted as submodules, thus not to be printed out. However they make up the difference between a parent's MACs (or latency) \
and the sum of its submodules'.
2. Number of floating-point operations is a theoretical estimation, thus FLOPS computed using that could be larger than the \
maximum system throughput.
3. The fwd latency listed in the top module's profile is directly captured at the module forward function in PyTorch.
"""
END = "------------------------------------------------------------------------------"
UNSTARTED = "no __flops__ attribute in the model, call this function after start_profile and before end_profile"

SIZES = {"T": 10**12, "G": 10**9, "M": 10**6, "K": 10**3, "k": 10**3}
Rows = Iterable[tuple[str, str]]


def num_to_string(num: float, precision: int = 2) -> str:
    """A number in the unit that fits: ``22360 -> '22.36 K'``."""
    return _scaled(num, "GMK", "", None, precision, "")


def number_to_string(num: float, units: str | None = None, precision: int = 2) -> str:
    """A number in "G", "M", "K" or the one that fits; one too small for that ends in a space."""
    return _scaled(num, "GMK", "", units, precision, " ")


def macs_to_string(macs: float, units: str | None = None, precision: int = 2) -> str:
    """A number in "GMACs", "MMACs", "KMACs" or the one that fits."""
    return _scaled(macs, "GMK", "MACs", units, precision, " MACs")


def flops_to_string(flops: float, units: str | None = None, precision: int = 2) -> str:
    """FLOPs per second in "TFLOPS", "GFLOPS", "MFLOPS", "KFLOPS" or the one that fits."""
    return _scaled(flops, "TGMK", "FLOPS", units, precision, " FLOPS")


def params_to_string(params_num: float, units: str | None = None, precision: int = 2) -> str:
    """A number in "M", "K", or in the one that fits, M or k, then always with two digits."""
    return _scaled(params_num, "MK" if units else "Mk", "", units, precision if units else 2, "")


def duration_to_string(duration: float, units: str | None = None, precision: int = 2) -> str:
    """Seconds in "s", "ms", "us" or the one that fits."""
    for name, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6)):
        if units == name or (units is None and duration * per_second > 1):
            return f"{round(duration * per_second, precision)} {name}"
    return str(duration) if units is None else f"{round(duration, precision)} s"


def _scaled(number: float, prefixes: str, suffix: str, units: str | None, precision: int, plain: str) -> str:
    return scaled(number, {prefix + suffix: SIZES[prefix] for prefix in prefixes}, units, precision, plain)


def params_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def summary(recording: Recording, step: int, engine: Any) -> str:
    """The figures of the model, and of the DeepSpeed engine if there is one."""
    model, usage = recording.model, recording.total(recording.model)
    params, parallel = params_of(model), engine.mp_world_size if engine else 1
    device = next((str(parameter.device) for parameter in model.parameters()), "cpu")
    rows = [
        *(_sizes(engine) if engine else ()),
        ("params per device: ", params_to_string(params)),
        ("params of model = params per device * mp_size: ", params_to_string(params * parallel)),
        ("fwd MACs per device: ", macs_to_string(usage.macs)),
        ("fwd flops per device: ", num_to_string(usage.flops)),
        ("fwd flops of model = fwd flops per device * mp_size: ", num_to_string(usage.flops * parallel)),
        *_latencies(usage, engine),
    ]
    return "\n".join([HEAD.format(device=device, step=step), *(f"{name:<60}  {value:<8}" for name, value in rows)])


def _sizes(engine: Any) -> Rows:
    yield "world size: ", engine.world_size
    yield "data parallel size: ", engine.dp_world_size
    yield "model parallel size: ", engine.mp_world_size
    if hasattr(engine, "train_micro_batch_size_per_gpu"):
        yield "batch size per device: ", engine.train_micro_batch_size_per_gpu()


def _latencies(usage: Usage, engine: Any) -> Rows:
    """The forward's; with the timers of an engine the backward's and the step's too."""
    timed = bool(engine) and hasattr(engine, "wall_clock_breakdown") and engine.wall_clock_breakdown()
    if usage.duration:
        forward = _elapsed(engine, "forward") if timed else usage.duration
        yield "fwd latency: ", duration_to_string(forward)
        yield "fwd FLOPS per device = fwd flops per device / fwd latency: ", flops_to_string(usage.flops / forward)
    if not timed:
        return
    forward, backward, step = (_elapsed(engine, timer) for timer in ("forward", "backward", "step"))
    yield "bwd latency: ", duration_to_string(backward)
    yield "step latency: ", duration_to_string(step)
    yield "iter latency: ", duration_to_string(forward + backward + step)
    if hasattr(engine, "train_micro_batch_size_per_gpu"):
        samples = engine.train_micro_batch_size_per_gpu() * engine.world_size
        yield "samples/second: ", f"{samples / (forward + backward + step):<8.2f}"


def _elapsed(engine: Any, timer: str) -> float:
    """Seconds by a timer of the engine."""
    return float(engine.timers(timer).elapsed(False)) / 1000.0


def aggregated(recording: Recording, depths: int, top: int) -> str:
    """The ``top`` classes of modules by each figure at the first ``depths`` depths; -1: at all but the innermost."""
    levels = [[recording.model]]
    while children := [child for module in levels[-1] for child in module.children()]:
        levels.append(children)
    figures: tuple[tuple[str, Callable[[nn.Module], float], Callable[[Any], str]], ...] = (
        ("params", params_of, params_to_string),
        ("flops", lambda module: recording.total(module).flops, num_to_string),
        ("MACs", lambda module: recording.total(module).macs, macs_to_string),
        ("fwd latency", lambda module: recording.total(module).duration, duration_to_string),
    )
    lines = [f"Top {top} modules in terms of params, flops, MACs or duration at different model depths:"]
    for depth, modules in enumerate(levels[: len(levels) - 1 if depths == -1 else depths]):
        lines.append(f"depth {depth}:")
        for title, value, text in figures:
            largest = largest_sums(modules, value, top)
            lines.append(f"    {title:<11} - { {name: text(number) for name, number in largest.items()} }")
    return "\n".join(lines)


def detailed(recording: Recording) -> str:
    """The model as PyTorch prints it, each module with what it and its functions are charged."""
    model = recording.model
    whole, params = recording.total(model), params_of(model)
    in_functions = sum(usage.duration for usage in recording.functions(model).values())

    def line(module: nn.Module) -> str:
        usage, functions = recording.total(module), recording.functions(module)
        figures = {
            "param": params_to_string(params_of(module)),
            **_usage(usage),
            "params%": _share(params_of(module), params),
            **_shares(usage, whole),
            "duration%": _share(usage.duration, whole.duration),
        }
        of_functions = {
            name: {
                **_usage(each),
                **_shares(each, whole),
                "duration%/allfuncs": _share(each.duration, in_functions),
                "duration%/e2e": _share(each.duration, whole.duration),
            }
            for name, each in functions.items()
        }
        seconds = duration_to_string(sum((each.duration for each in functions.values()), 0.0))
        return (
            f"module = {figures}, functionals = {of_functions}, functionals_duration = {seconds}, {module.extra_repr()}"
        )

    return repr(twin(model, line))


def _usage(usage: Usage) -> dict[str, str]:
    return {
        "flops": num_to_string(usage.flops),
        "macs": macs_to_string(usage.macs),
        "duration": duration_to_string(usage.duration),
        "FLOPS": flops_to_string(usage.flops / usage.duration if usage.duration else 0.0),
    }


def _shares(usage: Usage, whole: Usage) -> dict[str, str]:
    return {"flops%": _share(usage.flops, whole.flops), "macs%": _share(usage.macs, whole.macs)}


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0:.2%}"

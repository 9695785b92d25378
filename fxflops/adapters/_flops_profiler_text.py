"""The text printed by flops-profiler: numbers with units, the top classes at each depth, and the model with the results of each module."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..model.modules import parameters_of
from ._deepspeed_recording import Usage
from ._deepspeed_text import Figures, Rows, by_depth, elapsed, is_timed, joined
from ._flops_profiler_recording import FunctionRecording
from ._module_text import annotated_copy, params_of, scaled

HEAD = """
-------------------------- Flops Profiler --------------------------
Profile on Device: {device}
Profile Summary at step {step}:
"""
TOP = "Top {top} modules in terms of params, flops, MACs or duration at different model depths:"

SIZES = {"T": 10**12, "G": 10**9, "M": 10**6, "K": 10**3, "k": 10**3}


def num_to_string(num: float, precision: int = 2) -> str:
    """Return a number with a suitable unit: ``22360 -> '22.36 K'``."""
    return _scaled(num, "GMK", "", None, precision, "")


def number_to_string(num: float, units: str | None = None, precision: int = 2) -> str:
    """Return a number in "G", "M" or "K", by default in a suitable unit; a number below 1000 ends in a space."""
    return _scaled(num, "GMK", "", units, precision, " ")


def macs_to_string(macs: float, units: str | None = None, precision: int = 2) -> str:
    """Return a number in "GMACs", "MMACs" or "KMACs", by default in a suitable unit."""
    return _scaled(macs, "GMK", "MACs", units, precision, " MACs")


def flops_to_string(flops: float, units: str | None = None, precision: int = 2) -> str:
    """Return FLOPs per second in "TFLOPS", "GFLOPS", "MFLOPS" or "KFLOPS", by default in a suitable unit."""
    return _scaled(flops, "TGMK", "FLOPS", units, precision, " FLOPS")


def params_to_string(params_num: float, units: str | None = None, precision: int = 2) -> str:
    """Return a number in ``units``, "M" or "K". Without ``units``, return it in "M" or "k", rounded to two decimals."""
    return _scaled(params_num, "MK" if units else "Mk", "", units, precision if units else 2, "")


def duration_to_string(duration: float, units: str | None = None, precision: int = 2) -> str:
    """Return seconds in "s", "ms" or "us", by default in a suitable unit."""
    for name, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6)):
        if units == name or (units is None and duration * per_second > 1):
            return f"{round(duration * per_second, precision)} {name}"
    return str(duration) if units is None else f"{round(duration, precision)} s"


def _scaled(number: float, prefixes: str, suffix: str, units: str | None, precision: int, plain: str) -> str:
    return scaled(number, {prefix + suffix: SIZES[prefix] for prefix in prefixes}, units, precision, plain)


def page(recording: FunctionRecording, step: int, engine: Any, depths: int, top: int, each: bool) -> str:
    """Return the text of a profile: the totals of the model, the engine's sizes (if any), the top classes and, if ``each``, every module."""
    model, usage = recording.model, recording.total(recording.model)
    params, parallel = params_of(model), engine.mp_world_size if engine else 1
    device = next((str(parameter.device) for parameter in parameters_of(model)), "cpu")
    rows = [
        *(_sizes(engine) if engine else ()),
        ("params per device: ", params_to_string(params)),
        ("params of model = params per device * mp_size: ", params_to_string(params * parallel)),
        ("fwd MACs per device: ", macs_to_string(usage.macs)),
        ("fwd flops per device: ", num_to_string(usage.flops)),
        ("fwd flops of model = fwd flops per device * mp_size: ", num_to_string(usage.flops * parallel)),
        *_latencies(usage, engine),
    ]
    head, details = HEAD.format(device=device, step=step), ".\n\n" + detailed(recording) if each else ""
    return joined(head, rows, 60, "Device", aggregated(recording, depths, top), details)


def _sizes(engine: Any) -> Rows:
    yield "world size: ", engine.world_size
    yield "data parallel size: ", engine.dp_world_size
    yield "model parallel size: ", engine.mp_world_size
    if hasattr(engine, "train_micro_batch_size_per_gpu"):
        yield "batch size per device: ", engine.train_micro_batch_size_per_gpu()


def _latencies(usage: Usage, engine: Any) -> Rows:
    """Yield the rows for the latency of the forward. If the engine times the backward and the step, yield their rows too."""
    if usage.duration:
        forward = elapsed(engine, "forward") if is_timed(engine) else usage.duration
        yield "fwd latency: ", duration_to_string(forward)
        yield "fwd FLOPS per device = fwd flops per device / fwd latency: ", flops_to_string(usage.flops / forward)
    if not is_timed(engine):
        return
    forward, backward, step = (elapsed(engine, timer) for timer in ("forward", "backward", "step"))
    yield "bwd latency: ", duration_to_string(backward)
    yield "step latency: ", duration_to_string(step)
    yield "iter latency: ", duration_to_string(forward + backward + step)
    if hasattr(engine, "train_micro_batch_size_per_gpu"):
        samples = engine.train_micro_batch_size_per_gpu() * engine.world_size
        yield "samples/second: ", f"{samples / (forward + backward + step):<8.2f}"


def aggregated(recording: FunctionRecording, depths: int, top: int) -> str:
    """Return the ``top`` module classes at each of the first ``depths`` depths (-1: all but the innermost depth), as text.

    The classes are ranked by parameters, by FLOPs, by MACs and by time.
    """
    figures: Figures = {
        "params": (params_of, params_to_string),
        "flops": (lambda module: recording.total(module).flops, num_to_string),
        "MACs": (lambda module: recording.total(module).macs, macs_to_string),
        "fwd latency": (lambda module: recording.total(module).duration, duration_to_string),
    }
    return by_depth(TOP, recording.model, depths, top, figures)


def detailed(recording: FunctionRecording) -> str:
    """Return the model's repr. The results of each module and of its functions come before the module's settings."""
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

    return repr(annotated_copy(model, line))


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

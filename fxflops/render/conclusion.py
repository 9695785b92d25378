"""A conclusion in one sentence. For one run, the conclusion says which modules cost most, which share of the device's peak was reached, and
which module was slowest. For two runs, it says what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..counting.steps import TIMED, StepTime
from ..records import BACKWARD, FORWARD, grouped
from ..units import percent, seconds
from .data import Summary, TreeRow
from .fold import pattern
from .parts import Part, parts_of
from .text import place, plain

*_, LOADING, BETWEEN = TIMED
NAMED = 0.1
"""The conclusion names each phase that takes at least this share of a block's time."""
RUNNER_UP, LEAD = 0.25, 1.1
"""RUNNER_UP: the second most expensive kind of module is also named if it has at least this share of the FLOPs. LEAD: a place is named
as the most expensive place if it costs more than this many times the next place."""


def conclusion(data: Summary, utilization: float | None = None) -> str:
    """Return ``64% of FLOPs in 12 Mlp (blocks.*.mlp); 35% of FLOPs in 12 Attention (blocks.*.attn); 41% of the device's peak;
    slowest: blocks.0.attn, 3.10 ms``; "" for an empty run.

    If the times are unsteady or missing, the text says so instead of naming the slowest module. ``utilization`` is the share of the
    device's peak that the model reached (MFU); None if unknown. For a training step, the sentence starts with the most expensive phase. The
    shares of the modules are then shares of the FLOPs of the forward and of the work outside the model; the backward is left out.
    """
    parts, phase = parts_of(data.root), _phase(data)
    where = _dearest(data, parts)
    is_timed = data.nodes_seconds is not None or _times(data)
    said = [
        f"{phase}; {data.forward}: {where}" if phase and where else phase or where,
        "" if utilization is None else f"{_share(utilization, 1)} of the device's peak",
        "the times are unsteady" if data.unsteady else _slowest(parts) if is_timed else where and "time not measured",
    ]
    return "; ".join(filter(None, said))


def _phase(data: Summary) -> str:
    """Return the phases that took most of a profiled block's time. For other runs, return the phase that took the most time, or that has
    the most FLOPs if times are missing or unsteady; "" if the run had no backward."""
    times = _times(data)
    if data.steps and times:
        return _parts_of_block(data, times)
    if not data.has_backward:
        return ""
    flops = {FORWARD: data.root.flops, BACKWARD: (data.backward_flops or 0) + (data.recompute_flops or 0)}
    of, costs = ("time", times) if times.get(BACKWARD) and not data.unsteady else (data.unit, flops)
    phase = max(costs, key=lambda name: costs[name])
    return f"{_share(costs[phase], sum(costs.values()))} of {of} in the {phase}"


def _parts_of_block(data: Summary, times: Mapping[str, float]) -> str:
    """Return ``backward 8.84 s (38%), forward 6.48 s (28%), data loading 5.97 s (26%, num_workers=0)``.

    The text lists the phases that take at least the share :data:`NAMED` of a block's time. The longest phase is first. Return "" if the
    forward is the only such phase.
    """
    whole = StepTime._make(map(sum, zip(*data.steps.values(), strict=True)))
    longest = sorted(times, key=lambda phase: -times[phase])
    named = [phase for phase in longest if times[phase] >= NAMED * whole.seconds > 0]
    said = {
        LOADING: loading(whole, data.workers),
        BETWEEN: f"outside model and optimizer (loss, Python) {_taken(times[BETWEEN], whole)}",
    }
    if named == [FORWARD]:
        return ""
    return ", ".join(said.get(phase, f"{phase} {_taken(times[phase], whole)}") for phase in named)


def _taken(part: float, whole: StepTime) -> str:
    return f"{seconds(part)} ({_share(part, whole.seconds)})"


def loading(whole: StepTime, workers: Sequence[int]) -> str:
    """Return the time that a loop waited for its batches, e.g. ``data loading 1.90 s (30%, num_workers=0)``."""
    named = "".join(f", num_workers={' and '.join(map(str, workers))}" for _ in workers[:1])
    return f"data loading {seconds(whole.loading)} ({_share(whole.loading, whole.seconds)}{named})"


def _times(data: Summary) -> Mapping[str, float]:
    """Return the seconds of each phase of a profiled block or of the model's run; {} if nothing was timed."""
    if data.steps:
        whole = StepTime._make(map(sum, zip(*data.steps.values(), strict=True)))
        return {name: getattr(whole, name) for name in TIMED}
    timings = {FORWARD: data.latency, BACKWARD: data.backward_latency}
    return {name: timing.median for name, timing in timings.items() if timing is not None}


def _dearest(data: Summary, parts: Sequence[Part]) -> str:
    """Return two kinds of module: the kind with the most FLOPs and the kind with the most time. Each kind has its shares of FLOPs and time."""
    if not parts:
        operators = {row.key: float(row.total.flops) for row in data.operators if row.total.flops}
        dearest = max(operators, key=lambda name: operators[name], default="")
        return f"{_share(operators[dearest], data.root.flops)} of {data.unit} in {plain(dearest)}" if dearest else ""
    kinds = grouped((part.kind, part) for part in parts)
    timed = any(part.row.seconds for part in parts) and not data.unsteady
    costs = {
        f"counted {data.unit}" if data.root.missing else data.unit: _flops,
        **({"time": _seconds} if timed else {}),
    }
    named, shares = dict[str, None](), {kind: list[str]() for kind in kinds}
    for name, cost in costs.items():
        sums = {kind: sum(cost(part.row) for part in same) for kind, same in kinds.items()}
        dearest, *others = sorted(sums, key=lambda kind: sums[kind], reverse=True)
        runners_up = others[:1] if cost is _flops and others and sums[others[0]] >= RUNNER_UP * cost(data.root) else []
        named.update(dict.fromkeys(kind for kind in (dearest, *runners_up) if sums[kind]))
        for kind in filter(sums.get, kinds):
            shares[kind].append(f"{_share(sums[kind], cost(data.root))} of {name}")
    *_, by = costs
    return "; ".join(f"{' and '.join(shares[kind])} in {_named(kinds[kind], by, costs[by])}" for kind in named)


def _named(kind: Sequence[Part], by: str, cost: Callable[[TreeRow], float]) -> str:
    """Return ``12 Mlp (blocks.*.mlp)``. If these modules are in several places, also name the place that clearly costs most."""
    modules = [module for part in kind for module in part.modules]
    if len(modules) < 2:
        label = kind[0].label
        own = f"the model itself {label}" if label.startswith("(own") else label
        return f"{place(kind[0].row.path)} ({plain(kind[0].row.cls)})" if modules else own
    places = {pattern(module.path) for module in modules} if len(kind) > 1 else {kind[0].row.path}
    is_one = len(places) == 1
    sums = grouped((part.row.path if is_one else pattern(part.row.path), cost(part.row)) for part in kind)
    dearest, *others = sorted(sums, key=lambda where: sum(sums[where]), reverse=True)
    is_most = others and sum(sums[dearest]) > LEAD * sum(sums[others[0]])
    where = f" ({plain(places.pop())})" if is_one and places != {"*"} else ""
    return f"{len(modules)} {plain(kind[0].row.cls)}{where}{f', most {by} in {place(dearest)}' * bool(is_most)}"


def _slowest(parts: Sequence[Part]) -> str:
    """Return the module that took the longest, with its time. Return "" if modules were not timed."""
    modules = [module for part in parts for module in part.modules if module.seconds]
    slowest = max(modules, key=_seconds, default=None)
    return "" if slowest is None else f"slowest: {place(slowest.path)}, {seconds(slowest.seconds)}"


def _flops(row: TreeRow) -> float:
    return row.flops


def _seconds(row: TreeRow) -> float:
    return row.seconds or 0.0


def _share(part: float, whole: float) -> str:
    share = percent(part, whole) or 0
    return "<1%" if 0 < share < 0.5 else f"{share:.0f}%"


FIRST = "FLOPs, training FLOPs, recompute FLOPs, optimizer FLOPs, params, latency, block time, peak memory".split(", ")
"""If any of these totals differs between two reports, the conclusion names only those of them that differ. Otherwise it names every total
that differs."""


PHASE_TIMES = "forward time", "backward time", "optimizer time", "data loading", "outside time"
"""The totals that add up to the time of a profiled block."""


class Compared(NamedTuple):
    """A quantity of two reports, a and b. ``shown`` has as text the quantity's name, both values, their difference, and their ratio.
    ``note`` says if only one of the reports has the quantity."""

    shown: Sequence[str]
    a: float | None
    b: float | None
    note: str = ""


def compared(totals: Sequence[Compared], parts: Mapping[str, Sequence[Compared]]) -> str:
    """Return ``b compared with a: FLOPs 2.25x, latency 1.80x; most in *.mlp.*, +2.01 G``: the totals that differ, and the part of the
    model with the largest difference."""
    differing = [each.shown for each in totals if each.a != each.b and None not in (each.a, each.b)]
    differing = [shown for shown in differing if shown[0] in FIRST] or differing
    changed = [f"{name} {ratio or difference}" for name, _, _, difference, ratio in differing if ratio or difference]
    largest = next((rows[0] for rows in parts.values() if rows), None)
    where = "" if largest is None else f"most in {largest.shown[0]}, {largest.shown[3]}"
    phases = [each for each in totals if each.shown[0] in PHASE_TIMES and each.a is not None and each.b is not None]
    if any(each.a != each.b for each in phases) and changed == [
        each for each in changed if each.startswith("block time")
    ]:
        # Only the time of the block differs: name the phases whose times differ most.
        phases.sort(key=lambda each: -abs((each.b or 0) - (each.a or 0)))
        where = ", ".join(f"{each.shown[0]} {each.shown[3]}" for each in phases[:3])
    said = "; ".join(filter(None, [", ".join(changed), where]))
    return f"b compared with a: {said}" if said else "no difference in the numbers that both reports have"

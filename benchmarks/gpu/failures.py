"""Check failures and unusual runs on a GPU: out of memory, errors, threads, streams, graphs, processes.

Each case checks a claim. ``checked`` states the claim, ``held`` says whether it holds, and ``seen`` has the observations. A claim that
does not hold gets its row, too. ``held`` is None if the machine cannot check it, e.g. for lack of a second device.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes

import fxflops
from benchmarks.gpu.bench import Bench, Case, Row, markdown
from benchmarks.gpu.memory import emptied

TITLE = "Failures and unusual runs on a GPU"
NEEDS: tuple[str, ...] = ()
WIDTH = 256
THREAD_SECONDS, PROCESS_SECONDS = 15.0, 25.0
"""Seconds before the threads, or the NCCL process, are reported as stuck."""
Seen = tuple[bool | None, dict[str, Any]]


def cases(bench: Bench) -> list[Case]:
    """Return the cases in order of importance. Graphs, which may leave the device in a bad state, and NCCL come last."""
    made: list[Case] = []

    def add(name: str, checked: str, run: Callable[[Bench], Seen], forwards: int, on_stand_in: bool = False) -> None:
        if on_stand_in or not bench.stand_in:
            made.append(Case(name, partial(verdict, bench, checked, run), forwards))

    for name, call in OUT_OF_MEMORY.items():
        said = (
            "the error is torch's OutOfMemoryError, names operation and module, says what is allocated; all is released"
        )
        add(f"out of memory: {name}", said, partial(out_of_memory, call=call), 2, on_stand_in=True)
    add("larger than the device", "a model on meta is counted, and nothing is allocated", larger_than_device, 1, True)
    for name, call in CALLS.items():
        said = "allocated bytes are as before once model and report are dropped; a report alone holds nothing"
        add(f"left behind: {name}", said, partial(left_behind, call=call), 8, on_stand_in=True)
    add(
        "two threads",
        "counts are those of one thread, times are known, none waits for the other",
        two_threads,
        12,
        True,
    )
    add("streams", "counts and results are those without side streams; times are known", streams, 8)
    for name, error in (("an exception", ValueError), ("Ctrl-C", KeyboardInterrupt)):
        for where, call in RAISING.items():
            said = "the error reaches the caller; no mode, hook or attribute is left; the model counts as before"
            add(f"{name} in {where}", said, partial(raised, call=call, error=error), 3, on_stand_in=True)
    add(
        "a value is read",
        "count, profile and analyze agree, and the report says why it ran on real tensors",
        reads_value,
        8,
        True,
    )
    add(
        "two devices in one model",
        "a model on CPU and device counts as on one; count, profile, analyze agree",
        split_model,
        8,
        True,
    )
    add(
        "inputs on the CPU",
        "count, which computes nothing, counts as with inputs on the device; the errors of analyze and profile name both devices; all is released",
        wrong_device,
        3,
    )
    add("a second device", "counts on the second device are those on the first; times are known", second_device, 8)
    add("pinned memory", "copies without waiting are observed; counts and results are as without", pinned, 3)
    add(
        "graphed callables",
        "a call of a graphed model is counted in full, or the report is not complete",
        graphed_callables,
        8,
    )
    add(
        "CUDA graph replayed",
        "a block that replays a graph has a report, its time and the graph's results",
        graph_replayed,
        4,
    )
    add(
        "CUDA graph captured",
        "a graph can be captured in a block; its calls are counted, its replay is right",
        graph_captured,
        4,
    )
    add("NCCL, one rank", "all_reduce, DDP and FSDP2 are counted: MACs as without, communication listed", one_rank, 10)
    return made


def verdict(bench: Bench, checked: str, run: Callable[[Bench], Seen]) -> Row:
    """Return the row of a claim. If checking it raises an unexpected error, the claim does not hold; the traceback is in the log."""
    try:
        held, seen = run(bench)
    except Exception as error:
        traceback.print_exc()
        held, seen = False, {"raised": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
    return {"checked": checked, "held": held, "seen": seen}


def table(rows: list[Row]) -> list[str]:
    """Return a line for each claim."""
    words = {True: "yes", False: "NO", None: "not here"}
    shown = [[row["case"], row["checked"], words[row["held"]], in_words(row["seen"])] for row in rows]
    lines = [f"{sum(row['held'] is True for row in rows)} of {len(rows)} claims hold.", ""]
    return lines + markdown(["case", "checked", "held", "seen"], shown)


def in_words(seen: dict[str, Any]) -> str:
    """Return the observations as "name value; ..." on one line."""
    parts = []
    for name, value in seen.items():
        text = f"{value:.3g}" if isinstance(value, float) else " ".join(str(value).split())
        parts.append(f"{name} {text[:300]}")
    return "; ".join(parts)


def net(bench: Bench, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    return bench.to(model.eval())


def inputs(bench: Bench, rows: int = 64) -> torch.Tensor:
    return bench.to(torch.randn(rows, WIDTH))


def profiled(model: nn.Module, run: Callable[[], Any]) -> fxflops.Report:
    with torch.no_grad(), fxflops.profile(model) as p:
        run()
    return p.report


# Out of memory


class Wide(nn.Module):
    """A module that needs more memory than there is, in an operation with a recognizable name (repeat)."""

    def __init__(self, times: int, reads: bool = False) -> None:
        super().__init__()
        self.times, self.reads = times, reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.reads and math.isnan(x.sum().item()):
            return x
        return x.repeat(1, self.times).sum(-1)


def counted_on_real(model: nn.Module, x: torch.Tensor) -> Any:
    return fxflops.count(model, x)


def analyzed(model: nn.Module, x: torch.Tensor) -> Any:
    return fxflops.analyze(model, x, repeats=1)


def analyzed_recorded(model: nn.Module, x: torch.Tensor) -> Any:
    return fxflops.analyze(model, x, repeats=1, trace="record")


def in_profile(model: nn.Module, x: torch.Tensor) -> Any:
    return profiled(model, lambda: model(x))


def by_fx(model: nn.Module, x: torch.Tensor) -> Any:
    return fxflops.TorchFLOPsByFX(model).propagate(x)


OUT_OF_MEMORY: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "analyze": analyzed,
    "analyze, recorded": analyzed_recorded,
    "count on real tensors": counted_on_real,
    "profile": in_profile,
    "TorchFLOPsByFX": by_fx,
}


@contextmanager
def limited(bench: Bench, more: int) -> Iterator[None]:
    """In the block, limit the device to ``more`` bytes beyond its current memory."""
    if bench.stand_in:
        memory = bench._standin.memory
        before, memory.capacity = memory.capacity, memory.live + more
        try:
            yield
        finally:
            memory.capacity = before
        return
    total = int(torch.cuda.get_device_properties(bench.device).total_memory)
    share = (torch.cuda.memory_reserved(bench.device) + more) / total  # cached memory counts too
    torch.cuda.set_per_process_memory_fraction(min(share, 1.0), bench.device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, bench.device)


def out_of_memory(bench: Bench, call: Callable[[nn.Module, torch.Tensor], Any]) -> Seen:
    """Run a model that needs four times the available memory, and check the error and that all memory is released."""
    rows = 16 if bench.stand_in else 4096
    emptied(bench)
    reads = call is counted_on_real  # reading a value forces a real run: a count on meta would need no memory
    model = bench.to(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), Wide(64, reads)).eval())
    x = inputs(bench, rows)
    with torch.no_grad():
        model[:2](x)  # make cuBLAS allocate its workspace
    bench.empty()
    before = bench.allocated
    with limited(bench, 16 * x.nbytes):
        seen = error_of(call, model, x)
    bench.empty()
    seen["bytes left"] = bench.allocated - before
    claims = [seen.get(name) for name in ("names the operation", "names the module", "says what is allocated")]
    ours = seen.get("ours") or call is in_profile  # in a profile() block, the error is torch's, unchanged
    return bool(all(claims) and ours and not seen["bytes left"]), seen


def error_of(call: Callable[[nn.Module, torch.Tensor], Any], model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Return what the error of a call says. The error itself is dropped, because it would keep tensors alive."""
    try:
        call(model, x)
    except torch.OutOfMemoryError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        return {
            "type": type(error).__name__,
            "ours": isinstance(error, fxflops.FxflopsError),
            "names the operation": "repeat" in text,
            "names the module": "'2'" in text,
            "says what is allocated": "allocated" in text,
            "message": text[:800],
        }
    return {"raised": "nothing"}


def larger_than_device(bench: Bench) -> Seen:
    """Count a model whose weights do not fit into the device's memory."""
    total = int(bench.module.get_device_properties(bench.device).total_memory)
    width = 32768
    layers = total // (4 * width * width) + 2
    baseline = emptied(bench)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        x = torch.empty(8, width)
    report = fxflops.count(model, x, backward=True, optimizer=torch.optim.AdamW)
    held = report.total_macs == layers * 8 * width * width and report.max_memory > total
    after = emptied(bench)
    seen = {
        "GB predicted": report.max_memory / 1e9,
        "GB of the device": total / 1e9,
        "bytes allocated": after - baseline,
    }
    return held and after == baseline, seen


# Memory left behind


def summed_up(model: nn.Module, x: torch.Tensor) -> Any:
    return fxflops.summary(model, input_data=x)


def counted_training(model: nn.Module, x: torch.Tensor) -> Any:
    return fxflops.count(model, x, backward=True, optimizer=torch.optim.AdamW)


def analyzed_training(model: nn.Module, x: torch.Tensor) -> Any:
    return fxflops.analyze(model, x, backward=True, repeats=1)


def profiled_training(model: nn.Module, x: torch.Tensor) -> Any:
    optimizer = torch.optim.AdamW(model.parameters())
    with fxflops.profile(model, optimizer=optimizer) as p:
        for _ in range(2):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return p.report


def propagated(model: nn.Module, x: torch.Tensor) -> Any:
    fxflops.TorchFLOPsByFX(model).propagate(x)  # the counter holds its model, so it is not returned


CALLS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "count": lambda model, x: fxflops.count(model, x),
    "count, training": counted_training,
    "analyze": analyzed,
    "analyze, recorded": analyzed_recorded,
    "analyze, training": analyzed_training,
    "profile": in_profile,
    "profile, training": profiled_training,
    "summary": summed_up,
    "TorchFLOPsByFX": propagated,
}


@cache
def worked(bench: Bench) -> None:
    """Make the device's libraries allocate the memory that they keep for the rest of the process, so that no call is blamed for it."""
    net(bench)(inputs(bench)).sum().backward()


def left_behind(bench: Bench, call: Callable[[nn.Module, torch.Tensor], Any]) -> Seen:
    worked(bench)
    baseline = emptied(bench)
    report = call(net(bench), inputs(bench))
    with_report = emptied(bench) - baseline
    del report
    left = emptied(bench) - baseline
    return with_report == left == 0, {"bytes with the report": with_report, "bytes without": left}


# Threads and streams


def two_threads(bench: Bench) -> Seen:
    """Count, profile and analyze two models: first one after the other, then each in its own thread."""
    models, x = [net(bench, seed) for seed in (0, 1)], inputs(bench)

    def work(model: nn.Module) -> tuple[list[int], list[float]]:
        flops, seconds = [], []
        for _ in range(3):
            report = in_profile(model, x)
            flops += [fxflops.count(model, x).total_flops, report.total_flops]
            seconds.append(report.block_time or 0.0)
        return [*flops, analyzed(model, x).total_flops], seconds

    alone = [work(model) for model in models]
    together: dict[int, Any] = {}

    def in_thread(number: int) -> None:
        try:
            together[number] = work(models[number])
        except Exception as error:
            traceback.print_exc()
            together[number] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=in_thread, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(THREAD_SECONDS)
    stuck = sum(thread.is_alive() for thread in threads)
    raised = [result for result in together.values() if isinstance(result, str)]
    seen: dict[str, Any] = {"threads stuck": stuck, "raised": raised}
    if stuck or raised:
        return False, seen
    flops = {tuple(result[0]) for result in [*alone, *together.values()]}
    seen |= {"FLOPs": sorted({each for all_of in flops for each in all_of})}
    seen |= {"ms alone": [1000 * min(seconds) for _, seconds in alone]}
    seen |= {"ms together": [1000 * min(seconds) for _, seconds in together.values()]}
    known = all(second > 0 for _, seconds in [*alone, *together.values()] for second in seconds)
    return len(seen["FLOPs"]) == 1 and known, seen


class Branches(nn.Module):
    """The sum of two branches. With ``aside``, the second branch runs on a side stream."""

    def __init__(self, aside: bool) -> None:
        super().__init__()
        self.left, self.right, self.aside = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), aside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.aside:
            return self.left(x) + self.right(x)
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            right = self.right(x)
        x.record_stream(side)
        left = self.left(x)
        current.wait_stream(side)
        right.record_stream(current)
        return left + right


def streams(bench: Bench) -> Seen:
    torch.manual_seed(0)
    plain, aside, x = bench.to(Branches(False).eval()), bench.to(Branches(True).eval()), inputs(bench)
    aside.load_state_dict(plain.state_dict())
    outputs: list[torch.Tensor] = []
    reports = {
        "count": fxflops.count(aside, x),
        "profile": profiled(aside, lambda: outputs.append(aside(x))),
        "analyze": fxflops.analyze(aside, x, repeats=3),
    }
    with torch.no_grad():
        same = torch.allclose(outputs[0], plain(x))
    flops = {name: report.total_flops for name, report in reports.items()}
    complete = {name: report.complete for name, report in reports.items()}
    seen = {"FLOPs plain": fxflops.count(plain, x).total_flops, "FLOPs": flops, "complete": complete}
    times = {"block": reports["profile"].block_time, "latency": reports["analyze"].latency}
    times["nodes"] = reports["analyze"].total_time
    seen |= {"same output": same, "ms": {name: 1000 * (value or 0.0) for name, value in times.items()}}
    seen |= {"traces": {name: report.trace for name, report in reports.items()}}
    held = same and {*flops.values()} == {seen["FLOPs plain"]} and all(complete.values()) and all(times.values())
    return held, seen


# Errors in the user's code


class Raises(nn.Module):
    error: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.error is not None:
            raise self.error("on purpose")
        return x


def raises_in_block(model: nn.Module, x: torch.Tensor) -> Any:
    with fxflops.profile(model):
        model[0](x)
        error = model[1].error
        if error is not None:
            raise error("on purpose")


RAISING: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "a block": raises_in_block,
    "a forward in a block": in_profile,
    "a forward in count": lambda model, x: fxflops.count(model, x),
    "a forward in analyze": analyzed,
}


def state_of(model: nn.Module) -> list[Any]:
    """Return everything that fxflops might leave behind: attributes, hooks, modes."""
    everywhere = vars(torch.nn.modules.module)
    global_hooks = {
        name: len(hooks) for name, hooks in everywhere.items() if name.startswith("_global_") and "hooks" in name
    }
    modules = [
        (name, type(module).__name__, module.training, sorted(vars(module)), hooks_of(module))
        for name, module in model.named_modules()
    ]
    return [modules, global_hooks, len(dispatch_modes()), len(function_modes()), torch.is_grad_enabled()]


def hooks_of(module: nn.Module) -> list[int]:
    """Return the number of hooks of each kind that a module has."""
    return [len(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks")]


def raised(bench: Bench, call: Callable[[nn.Module, torch.Tensor], Any], error: type[BaseException]) -> Seen:
    emptied(bench)
    model, x = nn.Sequential(net(bench), Raises()).eval(), inputs(bench)
    flops = fxflops.count(model, x).total_flops
    in_profile(model, x)  # make cuBLAS allocate its workspace
    bench.empty()
    before, allocated = state_of(model), bench.allocated
    model[1].error = error
    seen: dict[str, Any] = {"reached the caller": False}
    try:
        call(model, x)
    except error as caught:
        seen = {"reached the caller": True, "type": type(caught).__name__}
    del model[1].error
    bench.empty()
    seen |= {"state as before": state_of(model) == before, "bytes left": bench.allocated - allocated}
    seen["counts as before"] = fxflops.count(model, x).total_flops == in_profile(model, x).total_flops == flops
    held = (
        seen["reached the caller"] and seen["state as before"] and seen["counts as before"] and not seen["bytes left"]
    )
    return bool(held), seen


# Devices of tensors, and values that are read


class ReadsValue(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if x.abs().sum().item() > 0 else x


class Split(nn.Module):
    """Two layers on two devices."""

    def __init__(self, first: torch.device, last: torch.device) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH).to(first), nn.Linear(WIDTH, WIDTH).to(last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).to(self.last.weight.device))


def agreement(model: nn.Module, x: torch.Tensor, flops: int | None = None) -> Seen:
    """Return whether count, profile and analyze agree with each other and, if given, with ``flops``."""
    reports = {
        "count": fxflops.count(model, x),
        "profile": in_profile(model, x),
        "analyze": fxflops.analyze(model, x, repeats=3),
    }
    counts = {name: report.total_flops for name, report in reports.items()}
    seen: dict[str, Any] = {"FLOPs": counts, "complete": [report.complete for report in reports.values()]}
    seen |= {"traces": [report.trace for report in reports.values()], "reason": reports["count"].trace_reason[:200]}
    times = [reports["profile"].block_time, reports["analyze"].latency, reports["analyze"].total_time]
    seen["ms of block, model, nodes"] = [1000 * (each or 0.0) for each in times]
    expected = counts["count"] if flops is None else flops
    return {*counts.values()} == {expected} and all(seen["complete"]) and all(times), seen


def reads_value(bench: Bench) -> Seen:
    held, seen = agreement(bench.to(ReadsValue(net(bench)).eval()), inputs(bench))
    return held and bool(seen["reason"]), seen


def split_model(bench: Bench) -> Seen:
    cpu = torch.device("cpu")
    x = torch.randn(64, WIDTH)
    flops = fxflops.count(Split(cpu, cpu).eval(), x).total_flops
    held, seen = agreement(Split(cpu, bench.device).eval(), x, flops)
    held_back, back = agreement(Split(bench.device, cpu).eval(), bench.to(x), flops)
    return held and held_back, {"CPU first": seen, "device first": back}


def wrong_device(bench: Bench) -> Seen:
    model, x = net(bench), torch.randn(64, WIDTH)
    bench.empty()
    before = bench.allocated
    flops = {place: fxflops.count(model, x.to(place)).total_flops for place in ("cpu", bench.device)}
    held = len({*flops.values()}) == 1
    seen: dict[str, Any] = {"FLOPs by count": [*flops.values()]}
    for name, call in {"analyze": analyzed, "profile": in_profile}.items():
        try:
            call(model, x)
            seen[name] = "raised nothing"
        except Exception as error:
            seen[name] = f"{type(error).__name__}: {str(error)[:250]}"
        held &= "cpu" in seen[name] and "cuda" in seen[name]
    bench.empty()
    seen["bytes left"] = str(bench.allocated - before)
    return held and bench.allocated == before, seen


def second_device(bench: Bench) -> Seen:
    if torch.cuda.device_count() < 2:
        return None, {"devices": torch.cuda.device_count()}
    model, x = net(bench), inputs(bench)
    flops = fxflops.count(model, x).total_flops
    return agreement(model.to("cuda:1"), x.to("cuda:1"), flops)


def pinned(bench: Bench) -> Seen:
    model, host = net(bench), torch.randn(64, WIDTH).pin_memory()
    back = torch.empty(64, WIDTH).pin_memory()
    with torch.no_grad(), fxflops.profile(model) as p:
        out = model(host.to(bench.device, non_blocking=True))
        back.copy_(out, non_blocking=True)
        bench.synchronize()
    flops = fxflops.count(model, inputs(bench)).total_flops
    with torch.no_grad():
        same = torch.allclose(back, model(host.to(bench.device)).cpu())
    seen: dict[str, Any] = {
        "FLOPs": p.report.total_flops,
        "FLOPs plain": flops,
        "complete": p.report.complete,
        "same output": same,
    }
    seen["ms"] = 1000 * (p.report.block_time or 0.0)
    return same and p.report.total_flops == flops and p.report.complete and bool(p.report.block_time), seen


# CUDA graphs and processes


def captured(model: nn.Module, x: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """Capture a call of the model. Return the CUDA graph and the tensor that holds its result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x)
    return graph, out


def warmed_up(model: nn.Module, x: torch.Tensor) -> None:
    """Run the model on a side stream, which torch requires before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def graph_captured(bench: Bench) -> Seen:
    model, x = net(bench), inputs(bench)
    flops = fxflops.count(model, x).total_flops
    warmed_up(model, x)
    with torch.no_grad(), fxflops.profile(model) as p:
        graph, out = captured(model, x)
        graph.replay()
    with torch.no_grad():
        same = torch.allclose(out, model(x))
    seen: dict[str, Any] = {"FLOPs": p.report.total_flops, "FLOPs of one call": flops, "same output": same}
    seen["ms"] = 1000 * (p.report.block_time or 0.0)
    return same and p.report.total_flops == flops and bool(p.report.block_time), seen


def graph_replayed(bench: Bench) -> Seen:
    model, x = net(bench), inputs(bench)
    warmed_up(model, x)
    with torch.no_grad():
        graph, out = captured(model, x)
    x.copy_(torch.randn(64, WIDTH))
    with fxflops.profile(model) as p:
        graph.replay()
        torch.zeros(1, device=bench.device)  # a block needs at least one visible operation to have a report
    with torch.no_grad():
        same = torch.allclose(out, model(x))
    seen = {"same output": same, "ms": 1000 * (p.report.block_time or 0.0), "complete": p.report.complete}
    return same and bool(p.report.block_time), seen


def graphed_callables(bench: Bench) -> Seen:
    model, x = net(bench), inputs(bench)
    flops = fxflops.count(model, x).total_flops
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    seen: dict[str, Any] = {"FLOPs plain": flops}
    held = True
    calls = {"count": CALLS["count"], "profile": in_profile, "analyze": analyzed}
    for name, call in calls.items():
        try:
            report = call(graphed, x)
        except Exception as error:
            traceback.print_exc()
            seen[name] = f"{type(error).__name__}: {str(error)[:250]}"
            held = False
        else:
            seen[name] = {"FLOPs": report.total_flops, "complete": report.complete, "trace": report.trace}
            held &= report.total_flops == flops or not report.complete
    return held, seen


def one_rank(bench: Bench, backend: str = "nccl") -> Seen:
    """Run ``one_rank.py`` in its own process, which can be killed if it hangs."""
    limit = max(5.0, min(PROCESS_SECONDS, bench.left + 2))  # so that the row is saved before the part's time is over
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.gpu.one_rank", backend, folder]
        with open(f"{folder}/out", "w+") as out, open(f"{folder}/errors", "w+") as errors:
            try:
                status: Any = subprocess.run(command, stdout=out, stderr=errors, timeout=limit).returncode
            except subprocess.TimeoutExpired:
                status = f"ended after {limit:.0f} s"
            out.seek(0)
            errors.seek(0)
            lines = [json.loads(line) for line in out if line.startswith("{")]
            last_words = errors.read()
    seen: dict[str, Any] = {"status": status, **{line.pop("case"): line for line in lines}}
    if status:
        print(last_words, file=sys.stderr)
        seen["error"] = " ".join(last_words.split())[-400:]
    macs = [line["macs"] for line in lines if "macs" in line]
    same = all(each["alone"] == each["profiled"] == each["counted"] for each in macs)
    sent = seen.get("all_reduce", {}).get("sent") and seen.get("DDP", {}).get("sent")
    return status == 0 and len(macs) == 2 and same and bool(sent), seen

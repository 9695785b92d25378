"""Compare the predicted peak memory, the measured live storages, and the device allocator's statistics for the same step.

A case is a model run in one way: inference, or the second of two training steps, with or without activation checkpointing.
It starts on an empty device. Its row has these figures, in bytes:

    alive        allocated before the model is moved to the device: 0, unless an earlier case left memory behind
    own          parameters, buffers, inputs and the optimizer's state, before the step
    other        requested before the step for anything else: the workspace that cuBLAS keeps
    allocated    peak during the step, ``max_memory_allocated``; ``requested`` is the same without the allocator's rounding
    backward     peak until the optimizer's step, because ``analyze`` takes no optimizer step
    reserved     peak from the empty device to the end of the step, ``max_memory_reserved``
    held         requested, without memory that is allocated and freed within one operator (see ``benchmarks/allocator.py``)
    predicted    ``count()`` of the model on the device
    on meta      ``count()`` for the device, of the model built on meta
    storages     peak of the live storages in an observed run on the device
    analyze      ``max_memory`` of ``analyze()``, measured by the allocator
    left         allocated after the case, when everything is dropped, minus ``alive``

``snapshots.jsonl.gz`` has a line for each case: the allocator's own trace, from the empty device to the end of the step.
"""

from __future__ import annotations

import gc
import gzip
import json
import math
import statistics
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import fxflops
from benchmarks.allocator import Event, events_of, workspaces_in
from benchmarks.gpu.bench import Bench, Case, Row, markdown
from benchmarks.memory_truth import CHECKPOINTED, INFERENCE, OPTIMIZERS, WAYS, bytes_of, checkpointed, step
from benchmarks.models import memory_zoo
from fxflops.model.inventory import Inventory
from fxflops.model.pytree import tensors_in
from fxflops.ops import BASE
from fxflops.run.model_run import observe_on_own_tensors
from fxflops.run.request import Request
from fxflops.run.subject import Subject

TITLE = "Memory on a GPU: predicted, measured by storages, and allocated"
NEEDS = ("timm", "torchvision", "transformers")
# Neighbours are of different kinds, so that a stopped part has some of each.
MODELS = (
    "resnet18",
    "llama",
    "nn.TransformerEncoder",
    "torchvision:mobilenet_v2",
    "vit_tiny_patch16_224",
    "bert",
    "convnext_atto",
    "gpt2",
    "causal attention",
    "torchvision:squeezenet1_1",
    "t5",
    "attention with dropout",
    "mobilenetv3_small_100",
    "distilbert",
    "torchvision:shufflenet_v2_x0_5",
    "gemma",
    "latent attention",
    "repvgg_a0",
    # These come last: on meta, each of their time steps is counted separately, which takes long.
    "nn.LSTM",
    "nn.GRU",
)
LARGER = 16
"""The batch is this many times the zoo's, so that activations matter compared with weights and with cuBLAS's 32 MiB."""
ENTRIES, SNAPSHOT_BYTES = 200_000, 6 * 10**6
"""The maximum number of entries in the allocator's trace of a case, and the maximum size of the snapshot file in bytes."""
HISTORY = "_record_memory_history"
FAST_PATH = "_transformer_encoder_layer_fwd"
"""The operator of torch's fast path for an nn.TransformerEncoder layer in inference."""


def cases(bench: Bench) -> list[Case]:
    if bench.stand_in:
        some = [
            ("nn.MultiheadAttention", "SGD"),
            ("nn.TransformerEncoder", INFERENCE),
            ("latent attention", "AdamW" + CHECKPOINTED),
        ]
    else:
        some = [(name, way) for number, name in enumerate(MODELS) for way in ways(number)]
    return [Case(f"{name}, {way}", partial(case, bench, name, way), forwards_of(way)) for name, way in some]


def ways(number: int) -> list[str]:
    """Return the ways to run the model with this number: even ones train with SGD with momentum, odd ones with AdamW."""
    optimizer = [*OPTIMIZERS][number % 2]
    return [INFERENCE, optimizer, optimizer + CHECKPOINTED]


def forwards_of(way: str) -> int:
    """Return roughly how many forwards a case takes. A backward pass counts as two."""
    return 8 if way == INFERENCE else 20


def case(bench: Bench, name: str, way: str) -> Row:
    """Return the figures of one model run in one way, including the memory alive before and left afterwards."""
    if not bench.stand_in:
        libraries()
    alive = emptied(bench)
    row = figures(bench, name, way)
    return {"model": name, "way": way, "alive": alive, **row, "left": emptied(bench) - alive}


@cache
def libraries() -> None:
    """Import the model libraries beforehand, so that their objects do not count as part of a case."""
    import timm
    import torchvision
    import transformers

    del timm, torchvision, transformers


@cache
def settled() -> None:
    """Keep the garbage collector from traversing the libraries' objects several times in every case."""
    gc.collect()
    gc.freeze()


def emptied(bench: Bench) -> int:
    """Free all unreferenced memory and the workspaces that cuBLAS keeps. Return the bytes that are still allocated."""
    settled()
    bench.empty()
    if not bench.stand_in:
        torch._C._cuda_clearCublasWorkspaces()  # there is no public function
        torch.cuda.empty_cache()
    return bench.allocated


def figures(bench: Bench, name: str, way: str) -> Row:
    """Return the figures of a case. All its tensors on the device are freed on return."""
    torch.manual_seed(0)
    training, make = way != INFERENCE, OPTIMIZERS.get(way.removesuffix(CHECKPOINTED))
    with torch.device("meta"):
        on_meta = predicted(*built(bench, name, way), make, None if bench.stand_in else "cuda")
    trace = Trace(bench)
    with trace:
        model, args, kwargs = built(bench, name, way)
        model, (args, kwargs) = bench.to(model), bench.to((args, kwargs))
        optimizer = None if make is None else make(model.parameters())
        run = partial(step, model, args, kwargs, optimizer)
        trace.mark("built")
        run()
        model.zero_grad()
        bench.synchronize()
        gc.collect()  # so that "other" does not include garbage that is not collected yet
        trace.mark("first step")
        row = alive_before(bench, model, (args, kwargs), optimizer)
        events, measured = measured_step(bench, run, optimizer)
        trace.mark("second step")
    row |= measured
    row |= trace.save(bench.out / "snapshots.jsonl.gz", f"{name}, {way}", events, row)
    model.zero_grad()
    counted = predicted(model, args, kwargs, optimizer)
    row |= {"predicted": counted.max_memory, "on meta": on_meta.max_memory, "trace": counted.trace}
    row["why"] = counted.trace_reason[:200]
    row["storages"] = live_storages(model, args, kwargs, optimizer)
    if CHECKPOINTED not in way:  # analyze runs a graph, which has no checkpointing
        mode = "train" if training else "eval"
        report = fxflops.analyze(model, args, kwargs, mode=mode, backward=training, repeats=0)
        row |= {"analyze": report.max_memory, "analyze's source": report.memory.source}
    return row


def built(bench: Bench, name: str, way: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a model with its inputs, on torch's current default device."""
    model, args, kwargs = memory_zoo.build(name)
    if not bench.stand_in:
        batch = 1 if name == "nn.GRU" else 0  # its inputs are [sequence, batch, features]
        args = tuple(larger(tensor, batch) for tensor in args)
        kwargs = {key: larger(value, batch) for key, value in kwargs.items()}
    if way.endswith(CHECKPOINTED):
        checkpointed(model)
    model.train(way != INFERENCE)
    return model, args, kwargs


def larger(value: Any, batch: int) -> Any:
    """Return a tensor with LARGER times the batch, which is its dimension ``batch``. Return any other value unchanged."""
    return torch.cat([value] * LARGER, batch) if isinstance(value, torch.Tensor) else value


def predicted(
    model: torch.nn.Module, args: Any, kwargs: Any, optimizer: Any, device: str | None = None
) -> fxflops.Report:
    """Count the model, as a training step if ``optimizer`` is an optimizer or a function that makes one."""
    mode, training = ("eval", False) if optimizer is None else ("train", True)
    return fxflops.count(model, args, kwargs, mode=mode, backward=training, optimizer=optimizer, device=device)


def live_storages(model: torch.nn.Module, args: Any, kwargs: Any, optimizer: Any) -> int:
    """Return the peak bytes of live storages in an observed run on the model's device."""
    training = optimizer is not None
    with torch.set_grad_enabled(training):
        request = Request("train" if training else "eval", training, optimizer=optimizer)
        subject = Subject(model, Inventory(model), args, kwargs, request)
        most = observe_on_own_tensors(subject, BASE).instruments.storages.memory_log.most
        subject.snapshot.rewind()
    model.zero_grad()
    return most


def statistic(bench: Bench, name: str) -> int | None:
    """Return one of the allocator's statistics; None for the stand-in, which does not have them."""
    return bench.module.memory_stats(bench.device)[name] if hasattr(bench.module, "memory_stats") else None


def alive_before(bench: Bench, model: torch.nn.Module, inputs: Any, optimizer: torch.optim.Optimizer | None) -> Row:
    """Return the memory that is allocated before the step: the case's own tensors, and other memory."""
    states = tensors_in([*optimizer.state.values()]) if optimizer else []
    tensors = [*model.parameters(), *model.buffers(), *tensors_in(inputs), *states]
    own = bytes_of(tensor for tensor in tensors if tensor.device.type == bench.device.type)
    allocated, requested = bench.allocated, statistic(bench, "requested_bytes.all.current")
    # Use requested sizes: the allocator's blocks are often larger than their tensors.
    other = (allocated if requested is None else requested) - own
    return {"own": own, "other": other, "allocated before": allocated}


def measured_step(
    bench: Bench, run: Callable[[], None], optimizer: torch.optim.Optimizer | None
) -> tuple[list[Event], Row]:
    """Run a step. Return its allocations and the allocator's peaks."""
    before_step: list[int] = []

    def look(*_: Any) -> None:
        before_step.append(int(bench.module.max_memory_allocated(bench.device)))

    hook = None if optimizer is None else optimizer.register_step_pre_hook(look)
    reserved = None
    if hasattr(bench.module, "max_memory_reserved"):
        reserved = bench.module.max_memory_reserved(bench.device)
    bench.module.reset_peak_memory_stats(bench.device)
    events = events_of(run, bench.device.type)
    bench.synchronize()
    if hook is not None:
        hook.remove()
    allocated = int(bench.module.max_memory_allocated(bench.device))
    if reserved is not None:
        reserved = max(reserved, bench.module.max_memory_reserved(bench.device))
    row: Row = {"allocated": allocated, "backward": before_step[0] if before_step else allocated}
    row |= {"requested": statistic(bench, "requested_bytes.all.peak"), "reserved": reserved}
    return events, row


class Trace:
    """The allocator's trace of a with block: each allocation and free, and the segments that it takes from the driver.

    A stand-in has no trace. Stacks are not recorded: the names of operators come from torch.profiler.
    """

    def __init__(self, bench: Bench) -> None:
        memory = getattr(bench.module, "memory", None)
        self._memory: Any = memory if hasattr(memory, HISTORY) else None
        self._index = bench.device.index or 0
        self._marks: dict[str, int] = {}
        self._bench = bench

    def __enter__(self) -> Trace:
        if self._memory is not None:
            self._bench.module.reset_peak_memory_stats(self._bench.device)
            getattr(self._memory, HISTORY)("all", context=None, max_entries=ENTRIES)
            first = self._memory._snapshot()
            self._first = len(first["device_traces"][self._index])
            self._segments = [segment for segment in first["segments"] if segment.get("device", 0) == self._index]
        return self

    def mark(self, name: str) -> None:
        """Record the current length of the trace under this name."""
        if self._memory is not None:
            self._entries = self._memory._snapshot()["device_traces"][self._index][self._first :]
            self._marks[name] = len(self._entries)

    def __exit__(self, *error: object) -> None:
        if self._memory is not None:
            getattr(self._memory, HISTORY)(None)

    def save(self, file: Path, name: str, events: Sequence[Event], row: Row) -> Row:
        """Append the trace to a file, unless the file would get too large. Return the columns about the trace."""
        if self._memory is None:
            return {"snapshot": "the device records none"}
        line = {"case": name, "marks": self._marks, **columns(self._entries)}
        line["operators"] = operators(self._entries, self._marks, events)
        line["segments"] = [
            {
                **{key: segment.get(key) for key in ("address", "total_size", "stream", "segment_type")},
                "blocks": [
                    [block.get(key) for key in ("size", "requested_size", "state")] for block in segment["blocks"]
                ],
            }
            for segment in self._segments
        ]
        line["figures"] = {key: row[key] for key in ("own", "other", "allocated", "requested", "reserved")}
        packed = gzip.compress((json.dumps(line, separators=(",", ":")) + "\n").encode())
        peak, _ = peak_of(self._entries, self._marks)
        said: Row = {"entries": len(self._entries), "peak by trace": peak}
        said["operators known"] = line["operators"] is not None
        if line["operators"] is not None:
            said |= without_workspaces(self._entries, self._marks, events, peak)
            said["fast path"] = any(FAST_PATH in name for name in line["operators"]["names"])
        if (file.stat().st_size if file.exists() else 0) + len(packed) > SNAPSHOT_BYTES:
            return {**said, "snapshot": "left out, as the file has its size"}
        with file.open("ab") as out:  # concatenated gzip files are a valid gzip file
            out.write(packed)
        return {**said, "snapshot": len(packed)}


def columns(entries: Sequence[dict[str, Any]]) -> Row:
    """Return the trace as lists of numbers. An address is ``base + unit * number``; an action is an index into ``names``."""
    addresses = [entry.get("addr", 0) for entry in entries]
    known = [address for address in addresses if address]
    base = min(known, default=0)
    unit = math.gcd(*(address - base for address in known)) or 1
    names = [*dict.fromkeys(entry["action"] for entry in entries)]
    streams = sorted({entry.get("stream", 0) for entry in entries})
    return {
        "base": base,
        "unit": unit,
        "names": names,
        "actions": [names.index(entry["action"]) for entry in entries],
        "addresses": [(address - base) // unit if address else -1 for address in addresses],
        "sizes": [entry.get("size", 0) for entry in entries],
        "streams": streams,
        # Empty if there is only one stream, which is nearly always the case.
        "on streams": [streams.index(entry.get("stream", 0)) for entry in entries] if len(streams) > 1 else [],
    }


def entries_of(line: Row) -> list[dict[str, Any]]:
    """Return the trace entries from a line of the file: the inverse of :func:`columns`."""
    base, unit, streams = line["base"], line["unit"], line["streams"]
    on_streams = line["on streams"] or [0] * len(line["actions"])
    return [
        {
            "action": line["names"][action],
            "addr": base + unit * place if place >= 0 else 0,
            "size": size,
            "stream": streams[on_stream],
        }
        for action, place, size, on_stream in zip(
            line["actions"], line["addresses"], line["sizes"], on_streams, strict=True
        )
    ]


def operators(entries: Sequence[dict[str, Any]], marks: dict[str, int], events: Sequence[Event]) -> Row | None:
    """Return the operator of each allocation in the second step; None if the profiler's allocations differ from the trace's."""
    in_step = entries[marks["first step"] : marks["second step"]]
    in_trace = [entry["addr"] for entry in in_step if entry["action"] == "alloc"]
    made = [event for event in events if event.nbytes > 0]
    if in_trace != [event.address for event in made]:
        return None
    names = [*dict.fromkeys(event.operator for event in made)]
    return {"names": names, "of": [names.index(event.operator) for event in made]}


def peak_of(
    entries: Sequence[dict[str, Any]], marks: dict[str, int], passed_over: Container[int] = ()
) -> tuple[int, list[int]]:
    """Return the peak of the second step by the sizes in the trace, and the step's allocations that were live at the peak.

    Allocations are numbered within the step. Numbers in ``passed_over`` are not counted.
    """
    live = most = 0
    made = 0
    open_at: dict[int, int] = {}
    at_peak: list[int] = []
    for number, entry in enumerate(entries[: marks["second step"]]):
        if number == marks["first step"]:
            most = live
        in_step, address = number >= marks["first step"], entry.get("addr", 0)
        if entry["action"] == "alloc":
            if in_step:
                open_at[address] = made
                made += 1
            live += 0 if in_step and open_at[address] in passed_over else entry["size"]
        elif entry["action"] == "free_requested":
            live -= 0 if open_at.pop(address, -1) in passed_over else entry["size"]
        if live > most:
            most, at_peak = live, [*open_at.values()]
    return most, at_peak


def without_workspaces(
    entries: Sequence[dict[str, Any]], marks: dict[str, int], events: Sequence[Event], peak: int
) -> Row:
    """Return the peak of the second step without workspaces, and the operator of the largest workspace that was live at the peak.

    The profiler identifies workspaces: they are freed within an operator, where it records each free. It does not record frees
    between operators, so sizes and frees come from the trace.
    """
    every = list(events)
    numbers = [number for number, event in enumerate(every) if event.nbytes > 0]
    both = workspaces_in(every)
    workspaces = {position for position, number in enumerate(numbers) if number in both}
    held, _ = peak_of(entries, marks, workspaces)
    _, at_peak = peak_of(entries, marks)
    largest = max((every[numbers[made]] for made in at_peak if made in workspaces), key=_nbytes, default=None)
    return {"held": held, "workspace": peak - held, "workspace of": "" if largest is None else largest.operator}


def _nbytes(event: Event) -> int:
    return event.nbytes


def ratios(row: Row) -> dict[str, float | None]:
    """Return the ratios of a row's figures to the allocator's figures for the same thing, without other memory.

    If the device does not report requested bytes, allocated bytes take their place.
    """
    other = row["other"]
    allocated = row["allocated"] - other
    requested = allocated if row["requested"] is None else row["requested"] - other
    analyzed = None
    if "analyze" in row:
        # The allocator's figure includes other memory; live storages do not.
        its_own = row["analyze"] - (other if row["analyze's source"] == "allocator" else 0)
        analyzed = its_own / (row["backward"] - other)
    return {
        "predicted/requested": row["predicted"] / requested,
        "predicted/allocated": row["predicted"] / allocated,
        "predicted and other/with other": (row["predicted"] + other) / row["allocated"],
        "built on meta/requested": row["on meta"] / requested,
        "storages/requested": row["storages"] / requested,
        "analyze/backward": analyzed,
        "reserved/allocated": None if row["reserved"] is None else row["reserved"] / row["allocated"],
    }


BASELINE = """The baseline is an empty device: a case begins with nothing allocated. Requested is the allocator's peak of the bytes asked
for in the step (in training the second one, so the optimizer has its state), without other memory: what was allocated before
the step beside parameters, buffers, inputs and optimizer state, which is the workspace that cuBLAS keeps. Allocated is the same with
the allocator's rounding; with other is the peak as `torch.cuda.max_memory_allocated` has it. Analyze, which takes no
optimizer's step, is compared with the peak until that step. Reserved is `max_memory_reserved` from the empty device on, and is
compared with the peak with other memory. A workspace is allocated and freed within one operator that has a kernel of its own. A model
built on meta is counted for this device."""
MARGIN = 0.05
"""If a prediction is off by more than this share of the requested bytes, the table gives a cause."""


def cause_of(row: Row) -> str | None:
    """Return why a prediction is off ("unknown" if no cause is found); None if it is within MARGIN."""
    other = row["other"]
    requested = (row["allocated"] if row["requested"] is None else row["requested"]) - other
    if abs(row["predicted"] / requested - 1) <= MARGIN:
        return None
    causes = []
    held = row.get("held")
    if row.get("fast path"):
        causes.append(f"the fast path is one kernel, {FAST_PATH}, where the prediction has the layer's operators")
    elif held is not None and abs(row["predicted"] / (held - other) - 1) <= MARGIN:
        causes.append(f"workspace of {row['workspace of'] or 'an operator'}")
    elif row.get("workspace"):
        causes.append(f"in part the workspace of {row['workspace of'] or 'an operator'}")
    return "; ".join(causes) or "unknown"


def table(rows: list[Row]) -> list[str]:
    """Return the median and worst ratios for each way, then every row."""
    lines = [BASELINE.replace("\n", " "), ""]
    lines += [
        "All bytes are in MB. Alive: allocated before the case began; left: after it, beside that. A cause is given from 5% on.",
        "",
    ]
    lines += markdown(["way", "runs", *(f"{name}: median, worst" for name in ratios_of(rows))], summed(rows))
    head = [
        "model",
        "way",
        "requested (MB)",
        "other (MB)",
        "reserved (MB)",
        "workspace (MB)",
        *ratios_of(rows),
        "alive (MB)",
        "left (MB)",
        "cause",
    ]
    lines += ["", "## Every run", "", *markdown(head, [line_of(row) for row in rows])]
    on_real = [f"- {row['model']}, {row['way']}: {' '.join(row['why'].split())}" for row in rows if row["why"]]
    lines += ["", "## Counted on real tensors", "", *(on_real or ["none"])]
    lines += ["", "## The snapshots", "", *snapshots(rows)]
    return lines


def ratios_of(rows: Iterable[Row]) -> list[str]:
    """Return the names of the ratios."""
    return [*next((ratios(row) for row in rows), {})]


def summed(rows: list[Row]) -> list[list[Any]]:
    """Return a line for each way: the number of runs, and for each ratio the median and the value farthest from 1."""
    lines = []
    for way in [way for way in WAYS if any(row["way"] == way for row in rows)]:
        of_way = [(row["model"], ratios(row)) for row in rows if row["way"] == way]
        line: list[Any] = [way, len(of_way)]
        for name in ratios_of(rows):
            known = [(ratio, model) for model, all_of in of_way if (ratio := all_of[name]) is not None]
            if known:
                worst, model = max(known, key=lambda each: abs(math.log(each[0])) if each[0] > 0 else math.inf)
                line.append(f"{statistics.median(ratio for ratio, _ in known):.3f}, {worst:.3f} ({model})")
            else:
                line.append(None)
        lines.append(line)
    return lines


def line_of(row: Row) -> list[Any]:
    """Return the cells of a row, sizes in MB."""

    def megabytes(value: int | None) -> str | None:
        return None if value is None else f"{value / 1e6:.2f}"

    requested = row["allocated"] if row["requested"] is None else row["requested"]
    sizes = [requested - row["other"], row["other"], row["reserved"], row.get("workspace")]
    shown = [None if ratio is None else f"{ratio:.3f}" for ratio in ratios(row).values()]
    cells = [row["model"], row["way"], *map(megabytes, sizes)]
    return [*cells, *shown, megabytes(row["alive"]), megabytes(row["left"]), cause_of(row)]


def snapshots(rows: list[Row]) -> list[str]:
    """Return how many traces were saved, and how many agree with the allocator's statistics and with the profiler."""
    traced = [row for row in rows if "entries" in row]
    if not traced:
        return ["none: the device records none"]
    agree = sum(row["peak by trace"] == row["requested"] - row["alive"] for row in traced)
    known = sum(row["operators known"] for row in traced)
    kept = sum(isinstance(row["snapshot"], int) for row in traced)
    return [
        f"`snapshots.jsonl.gz` has {kept} of {len(traced)} traces. The peak of requested bytes by the trace is the allocator's in "
        f"{agree}; the profiler names the operator of each allocation in {known}."
    ]

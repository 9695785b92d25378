"""Compare fxflops's times with independent ones: nodes with the model's device time, profiled loops with the same loops without fxflops.

- A row of kind "analyze" has the device time of a model (all its kernels in a full stream, and as a replayed CUDA graph), its
  latency without fxflops, and ``analyze()``'s figures for both. The device times are the oracle for the sum of the nodes, as they
  are taken without fxflops's events. The gap between two kernels is about a microsecond longer in a stream than in a graph.
- "backward" compares the sum of the nodes' backward times with the latency of the backward pass.
- "kernels" compares each node's time with the time of its kernels, measured by CUPTI through torch's profiler.
- "loop" has a loop's wall time without fxflops and inside ``profile()``, at each level of detail, and ``block_time``.
- "graph" captures and replays a CUDA graph inside ``profile()``, and "compiled" analyzes a compiled model.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import fxflops
from benchmarks.gpu.bench import Bench, Case, Row, markdown
from benchmarks.gpu.device_time import captured, device_seconds, device_times

TITLE = "Times on a GPU"
NEEDS = ("timm", "transformers")
STEPS = 8
Model = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def image(name: str, batch: int, size: int = 224) -> Model:
    import timm

    return timm.create_model(name), (torch.randn(batch, 3, size, size),), {}


def gpt2(batch: int, layers: int = 12, width: int = 768) -> Model:
    import transformers as hf

    config = hf.GPT2Config(n_layer=layers, n_embd=width, n_head=max(1, width // 64), use_cache=False)
    return hf.GPT2LMHeadModel(config), (), {"input_ids": torch.randint(5, 900, (batch, 128))}


def llama(batch: int) -> Model:
    import transformers as hf

    config = hf.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        use_cache=False,
    )
    return hf.LlamaForCausalLM(config), (), {"input_ids": torch.randint(5, 900, (batch, 512))}


def mlp(batch: int, width: int = 512) -> Model:
    layers = [part for _ in range(8) for part in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(batch, width),), {}


def lstm(batch: int) -> Model:
    return nn.LSTM(256, 256, num_layers=2, batch_first=True), (torch.randn(batch, 64, 256),), {}


MODELS: dict[str, Callable[[], Model]] = {
    "resnet50, batch 1": partial(image, "resnet50", 1),
    "resnet50, batch 64": partial(image, "resnet50", 64),
    "vit_base, batch 1": partial(image, "vit_base_patch16_224", 1),
    "vit_base, batch 32": partial(image, "vit_base_patch16_224", 32),
    "gpt2, batch 1": partial(gpt2, 1),
    "gpt2, batch 16": partial(gpt2, 16),
    "llama of 4 layers, batch 4": partial(llama, 4),
    "efficientnet_b0, batch 32": partial(image, "efficientnet_b0", 32),
    "swin_tiny, batch 16": partial(image, "swin_tiny_patch4_window7_224", 16),
    "mlp, batch 16": partial(mlp, 16),
    "mlp, batch 8192": partial(mlp, 8192, 4096),
    "lstm, batch 16": partial(lstm, 16),
}
TINY: dict[str, Callable[[], Model]] = {"mlp, batch 16": partial(mlp, 16, 32), "lstm, batch 2": partial(lstm, 2)}


def on_device(bench: Bench, make: Callable[[], Model]) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    model, args, kwargs = make()
    return bench.to(model.eval()), bench.to(args), bench.to(kwargs)


def analyzed(bench: Bench, make: Callable[[], Model]) -> Row:
    """Compare the sum of the nodes with the device time, and the report's latency with the model's latency without fxflops."""
    model, args, kwargs = on_device(bench, make)
    run = partial(model, *args, **kwargs)
    with torch.no_grad():
        for _ in range(3):
            run()
        latency = statistics.median(bench.seconds(run) for _ in range(15))
        in_stream = device_times(bench, run, 10)
        try:
            device = statistics.median(device_seconds(bench, captured(bench, run, 1), 10))
            graph = ""
        except Exception as error:
            device, graph = None, f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
        start = time.perf_counter()
        report = fxflops.analyze(model, args, kwargs, progress=False)
        took = time.perf_counter() - start
    idle = [node.timing.median for node in report.nodes if node.opcode in ("placeholder", "output") and node.timing]
    hosts = [node.host_timing.median for node in report.nodes if node.host_timing]
    return {
        "kind": "analyze",
        "nodes": len(report.nodes),
        "device": device,
        "stream": in_stream.median if in_stream.is_full else None,
        "graph": graph,
        "latency": latency,
        "sum of nodes": report.total_time,
        "its latency": report.latency,
        "host of nodes": sum(hosts),
        "an empty node": statistics.median(idle),
        "launch bound": sum(node.launch_bound for node in report.nodes),
        "trace": report.trace,
        "unsteady": report.unsteady,
        "analyze took": took,
    }


def backwards(bench: Bench, make: Callable[[], Model]) -> Row:
    """Compare the sum of the nodes' backward times with the latency of the backward pass."""
    model, args, kwargs = on_device(bench, make)
    report = fxflops.analyze(model, args, kwargs, backward=True, progress=False)
    parts = [node.backward_timing.median for node in report.nodes if node.backward_timing]
    return {
        "kind": "backward",
        "sum of nodes": sum(parts),
        "its latency": report.backward_timing.median if report.backward_timing else None,
        "forward": report.total_time,
        "forward's latency": report.latency,
    }


def by_kernels(bench: Bench, make: Callable[[], Model]) -> Row:
    """Compare each node's time with the time of its kernels."""
    model, args, kwargs = on_device(bench, make)
    report = fxflops.analyze(model, args, kwargs, kernels=True, progress=False)
    pairs = [
        (sum(kernel.seconds for kernel in node.kernels), node.timing.median)
        for node in report.nodes
        if node.kernels and node.timing
    ]
    ratios = sorted(node / kernels for kernels, node in pairs if kernels)
    return {
        "kind": "kernels",
        "nodes": len(pairs),
        "kernels": sum(kernels for kernels, _ in pairs),
        "sum of nodes": sum(node for _, node in pairs),
        "least": ratios[0] if ratios else None,
        "middle": statistics.median(ratios) if ratios else None,
        "most": ratios[-1] if ratios else None,
        "beyond": sum(node - kernels for kernels, node in pairs) / max(len(pairs), 1),
    }


class Training:
    """A training loop that can restart from the same weights. ``steps`` runs it and returns the losses."""

    def __init__(self, bench: Bench, make: Callable[[], Model], reads: bool, autocast: bool) -> None:
        self.bench, self.reads, self.autocast = bench, reads, autocast
        self.model, self.args, self.kwargs = on_device(bench, make)
        self.model.train()
        self.initial = copy.deepcopy(self.model.state_dict())

    def restart(self) -> torch.optim.Optimizer:
        self.model.load_state_dict(self.initial)
        self.model.zero_grad()
        torch.manual_seed(0)
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=not self.bench.stand_in)

    def steps(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        losses = []
        for _ in range(STEPS):
            with torch.autocast(self.bench.device.type, torch.bfloat16, enabled=self.autocast):
                out = self.model(*self.args, **self.kwargs)
            out = getattr(out, "logits", out)
            loss = out.float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item() if self.reads else loss.detach())
        return losses


def trained(bench: Bench, make: Callable[[], Model], reads: bool = True, autocast: bool = False) -> Row:
    """Time a training loop without fxflops, and inside ``profile()`` at each level of detail."""
    loop = Training(bench, make, reads, autocast)
    bare = []
    for _ in range(3):  # the first run warms up
        optimizer = loop.restart()
        losses: list[Any] = []
        bare.append(bench.seconds(lambda loop=loop, optimizer=optimizer, losses=losses: losses.extend(loop.steps(optimizer))))  # type: ignore[misc]  # fmt: skip
    expected = [float(loss) for loss in losses]
    row: Row = {"kind": "loop", "bare": min(bare[1:]), "steps": STEPS}
    for detail in ("operations", "modules", "steps"):
        optimizer, losses = loop.restart(), []

        def profiled(optimizer: Any = optimizer, losses: list[Any] = losses, detail: str = detail) -> None:
            with fxflops.profile(loop.model, optimizer=optimizer, detail=detail) as p:
                losses.extend(loop.steps(optimizer))
            row["report"] = p.report

        row[f"{detail} wall"] = bench.seconds(profiled)
        report = row.pop("report")
        row[f"{detail} block"] = report.block_time
        times = [step.seconds for name, step in report.step_times().items() if name != "(outside)"]
        row[f"{detail} step"] = statistics.median(times)
        row[f"{detail} equal"] = [float(loss) for loss in losses] == expected
        if detail == "operations":
            row["calls"] = len(report.calls)
            row["complete"] = report.complete
            phases = [step for name, step in report.step_times().items() if name != "(outside)"]
            for phase in ("forward", "backward", "optimizer", "between"):
                row[phase] = statistics.median(getattr(step, phase) for step in phases)
            row["mfu"] = report.mfu() if not bench.stand_in else None
    return row


def generated(bench: Bench, layers: int = 12, width: int = 768, tokens: int = 24) -> Row:
    """Time GPT-2 generating tokens, without fxflops and inside ``profile()``."""
    model, _, kwargs = on_device(bench, partial(gpt2, 4, layers, width))
    model.config.use_cache = True

    def run() -> torch.Tensor:
        return model.generate(**kwargs, max_new_tokens=tokens, do_sample=False, pad_token_id=0)

    expected = run()
    bare = min(bench.seconds(run) for _ in range(2))
    row: Row = {"kind": "loop", "bare": bare, "steps": tokens}
    for detail in ("operations", "modules", "steps"):
        outs: list[Any] = []

        def profiled(outs: list[Any] = outs, detail: str = detail) -> None:
            with fxflops.profile(model, detail=detail) as p:
                outs.append(run())
            outs.append(p.report)

        row[f"{detail} wall"] = bench.seconds(profiled)
        out, report = outs
        row[f"{detail} block"] = report.block_time
        times = [step.seconds for name, step in report.step_times().items() if name != "(outside)"]
        row[f"{detail} step"] = statistics.median(times)
        row[f"{detail} equal"] = torch.equal(out, expected)
        if detail == "operations":
            row["calls"], row["complete"] = len(report.calls), report.complete
    return row


def graphed(bench: Bench) -> Row:
    """Capture and replay a model as a CUDA graph inside ``profile()``."""
    model, args, _ = on_device(bench, partial(mlp, 64))
    with torch.no_grad():
        replay = captured(bench, partial(model, *args), 1)
        bare = bench.seconds(lambda: [replay() for _ in range(20)])
        with fxflops.profile(model) as p:
            again = captured(bench, partial(model, *args), 1)
            for _ in range(20):
                again()
    report = p.report
    said = [line for line in str(report).splitlines() if "captur" in line or "graph" in line]
    return {"kind": "graph", "bare": bare, "block": report.block_time, "calls": len(report.calls), "flops": report.total_flops, "said": said}  # fmt: skip


def compiled(bench: Bench, make: Callable[[], Model]) -> Row:
    """Analyze a compiled model: its latency, and how many of inductor's kernels are mapped to modules."""
    model, args, kwargs = on_device(bench, make)
    run = torch.compile(model)
    with torch.no_grad():
        for _ in range(3):
            run(*args, **kwargs)
        bare = statistics.median(bench.seconds(partial(run, *args, **kwargs)) for _ in range(15))
    report = fxflops.analyze(run, args, kwargs, kernels=True, progress=False)
    view = report.compiled
    row: Row = {"kind": "compiled", "bare": bare, "eager": report.latency, "compiled": view.latency}
    row["kernels"] = len(view.kernels)
    row["mapped"] = sum(any(kernel.paths) for kernel in view.kernels)
    row["missing"] = view.missing or view.run.kernels_missing
    return row


def cases(bench: Bench) -> list[Case]:
    if bench.stand_in:  # the stand-in has no graphs, no kernels and no compiler
        small, other = TINY.items()
        return [
            Case(f"analyze {small[0]}", partial(analyzed, bench, small[1]), 40),
            Case("train mlp", partial(trained, bench, small[1]), 6 * STEPS),
            Case("generate, gpt2", partial(generated, bench, 1, 64, 3), 15),
            Case(f"kernels {small[0]}", partial(by_kernels, bench, small[1]), 30),
            Case(f"backward {other[0]}", partial(backwards, bench, other[1]), 60),
        ]
    resnet, small = partial(image, "resnet50", 64), partial(mlp, 16)
    loops: dict[str, Callable[[], Row]] = {
        "train mlp, losses read": partial(trained, bench, small),
        "train resnet50, bf16, losses read": partial(trained, bench, resnet, autocast=True),
        "train resnet50, bf16": partial(trained, bench, resnet, reads=False, autocast=True),
        "train gpt2": partial(trained, bench, partial(gpt2, 8)),
        "generate, gpt2": partial(generated, bench),
    }
    names = [*MODELS]
    # Some of each kind first, then the rest: if the time runs out, only repetitions are lost.
    analyses = [Case(f"analyze {name}", partial(analyzed, bench, MODELS[name]), 40) for name in names]
    kernels = [Case(f"kernels {name}", partial(by_kernels, bench, MODELS[name]), 30) for name in names[::3]]
    passes = [Case(f"backward {name}", partial(backwards, bench, MODELS[name]), 60) for name in names[1::3]]
    compilations = [
        Case("compiled mlp", partial(compiled, bench, partial(mlp, 256)), 40),
        Case("compiled vit", partial(compiled, bench, partial(image, "vit_tiny_patch16_224", 8)), 40),
    ]
    found = [*analyses[:2], *(Case(name, run, 6 * STEPS) for name, run in loops.items())]
    found += [Case("a CUDA graph", partial(graphed, bench), 40), *passes[:2], *kernels[:2], compilations[0]]
    found += [*analyses[2:], *passes[2:], *kernels[2:], compilations[1]]
    return found


def table(rows: list[Row]) -> list[str]:
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
    lines: list[str] = []
    if found := kinds.get("analyze"):
        lines += [
            "## The sum of the nodes beside the device's own time of the model",
            "",
            "Stream: the model's kernels one after the other in a stream that never waits for the host (- where it has more kernels "
            "than the stream's queue holds). Graph: a replay of the model as a CUDA graph. Latency: the model's wall time without "
            "fxflops, from an idle device to an idle device; fxflops's latency is the one that its report has. An empty node is an "
            "input or the output: what the events themselves add to a node. Launch bound are the nodes that the host takes longer to "
            "start than the device to run. Times are in milliseconds, where nothing else is said.",
            "",
            *markdown(
                ["model", "nodes", "stream", "graph", "sum of nodes", "sum / stream", "sum / graph", "latency", "fxflops's latency", "fxflops's / latency", "an empty node (us)", "launch bound", "analyze took (s)", "why no graph"],
                [
                    [r["case"], r["nodes"], ms(r["stream"]), ms(r["device"]), ms(r["sum of nodes"]), ratio(r["sum of nodes"], r["stream"]), ratio(r["sum of nodes"], r["device"]), ms(r["latency"]), ms(r["its latency"]), ratio(r["its latency"], r["latency"]), 1e6 * r["an empty node"], r["launch bound"], r["analyze took"], r["graph"]]
                    for r in found
                ],
            ),
        ]  # fmt: skip
    if found := kinds.get("loop"):
        lines += ["", "## Profiled loops beside their time without fxflops", "", "Milliseconds for the whole loop. Bare: without fxflops. Block: `report.block_time`. Wall: what the block really took. A call costs what the profiled loop takes longer, per call.", ""]  # fmt: skip
        head = ["loop", "bare", "block", "block / bare", "wall", "calls", "us per call", "modules: block / bare", "modules: wall / bare", "steps: block / bare", "steps: wall / bare", "equal results"]  # fmt: skip
        body = [
            [
                r["case"], ms(r["bare"]), ms(r["operations block"]), ratio(r["operations block"], r["bare"]), ms(r["operations wall"]), r["calls"],
                1e6 * (r["operations wall"] - r["bare"]) / max(r["calls"], 1),
                ratio(r["modules block"], r["bare"]), ratio(r["modules wall"], r["bare"]), ratio(r["steps block"], r["bare"]), ratio(r["steps wall"], r["bare"]),
                all(r[f"{detail} equal"] for detail in ("operations", "modules", "steps")),
            ]
            for r in found
        ]  # fmt: skip
        lines += markdown(head, body)
    if found := kinds.get("backward"):
        lines += ["", "## Backward passes", "", *markdown(["model", "sum of nodes (ms)", "latency (ms)", "ratio"], [[r["case"], ms(r["sum of nodes"]), ms(r["its latency"]), ratio(r["sum of nodes"], r["its latency"])] for r in found])]  # fmt: skip
    if found := kinds.get("kernels"):
        lines += ["", "## Nodes beside their kernels by CUPTI", "", *markdown(["model", "nodes", "kernels (ms)", "sum of nodes (ms)", "node / kernels: least", "middle", "most", "more per node (us)"], [[r["case"], r["nodes"], ms(r["kernels"]), ms(r["sum of nodes"]), r["least"], r["middle"], r["most"], 1e6 * r["beyond"]] for r in found])]  # fmt: skip
    if found := kinds.get("graph"):
        lines += ["", "## CUDA graphs", "", *markdown(["case", "bare (ms)", "block (ms)", "calls", "FLOPs", "said"], [[r["case"], ms(r["bare"]), ms(r["block"]), r["calls"], r["flops"], "; ".join(r["said"])] for r in found])]  # fmt: skip
    if found := kinds.get("compiled"):
        lines += ["", "## Compiled models", "", *markdown(["case", "bare (ms)", "compiled (ms)", "eager (ms)", "kernels", "with modules", "missing"], [[r["case"], ms(r["bare"]), ms(r["compiled"]), ms(r["eager"]), r["kernels"], r["mapped"], r["missing"]] for r in found])]  # fmt: skip
    return lines


def ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None

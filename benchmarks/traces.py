"""Check ``fxflops.read_trace`` on torch.profiler traces of models built here, and on the traces that TraceLens publishes.

    python benchmarks/traces.py [--models resnet18,...] [--published TraceLens/tests/traces]

The MACs of our own traces are compared with ``fxflops.analyze``. The published traces are compared with TraceLens's own tables
(https://github.com/AMD-AGI/TraceLens). The table is ``benchmarks/results/traces.md``.
"""

from __future__ import annotations

import argparse
import ast
import csv
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops

RESULTS = Path(__file__).parent / "results" / "traces.md"
PHASES = ("forward", "backward", "recompute")
TABLES = ("GEMM", "CONV_fwd", "CONV_bwd", "SDPA_fwd", "SDPA_bwd")
NEAR = 2e-3
"""Tolerance for FLOP/s. TraceLens's kernel times are imprecise: they come from floats of microseconds since the machine started."""


class Case(NamedTuple):
    """A model, its inputs, and the path of the module that is checkpointed in the checkpoint runs."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: str


class Checkpointed(nn.Module):
    """A module whose forward is run again in the backward pass."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(partial(self.inner, **kwargs), *args, use_reentrant=self.reentrant)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)


class Recurrent(nn.Module):
    """An embedding, an LSTM and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = (
            nn.Embedding(100, 32),
            nn.LSTM(32, 48, 2, batch_first=True),
            nn.Linear(48, 100),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def image(batch: int, size: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, size, size),)


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 100, (batch, length))


def of_torchvision(name: str, part: str) -> Case:
    import torchvision

    return Case(torchvision.models.get_model(name), image(2, 64), {}, part)


def of_timm(name: str, part: str) -> Case:
    import timm

    return Case(timm.create_model(name), image(1, 224), {}, part)


def of_transformers(kind: str, part: str, **sizes: int) -> Case:
    import transformers as hf

    model = getattr(hf, kind)(getattr(hf, f"{kind.removesuffix('Model').removesuffix('ForCausalLM')}Config")(**sizes))
    kwargs = {"input_ids": tokens(2, 24)} | ({"decoder_input_ids": tokens(2, 8)} if kind == "T5Model" else {})
    return Case(model, (), {**kwargs, **({} if kind == "BertModel" else {"use_cache": False})}, part)


def encoder() -> Case:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return Case(nn.TransformerEncoder(layer, 2), (torch.randn(2, 20, 64),), {}, "layers.1")


SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
CASES: dict[str, Callable[[], Case]] = {
    "resnet18": partial(of_torchvision, "resnet18", "layer3"),
    "mobilenet_v2": partial(of_torchvision, "mobilenet_v2", "features.5"),
    "convnext_atto": partial(of_timm, "convnext_atto", "stages.1"),
    "vit_tiny": partial(of_timm, "vit_tiny_patch16_224", "blocks.3"),
    "swin_tiny": partial(of_timm, "swin_tiny_patch4_window7_224", "layers.1"),
    "bert": partial(of_transformers, "BertModel", "encoder.layer.0", **SMALL),
    "gpt2": partial(of_transformers, "GPT2Model", "h.0", n_embd=64, n_layer=2, n_head=4, vocab_size=100),
    "t5": partial(of_transformers, "T5Model", "encoder.block.0", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                  vocab_size=100),
    "llama": partial(of_transformers, "LlamaForCausalLM", "model.layers.0", **SMALL),
    "lstm": lambda: Case(Recurrent(), (tokens(2, 20),), {}, "lstm"),
    "encoder": encoder,
}  # fmt: skip


def traced(run: Callable[[], object], with_stack: bool) -> fxflops.Report:
    """Trace a run and return the report of the trace."""
    run()  # warm-up: the first run creates state that later runs reuse
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=with_stack) as profiler:
            run()
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return fxflops.read_trace(path)


def forward(case: Case) -> None:
    with torch.no_grad():
        case.model(*case.args, **case.kwargs)


def training_step(case: Case) -> None:
    case.model.zero_grad()
    out = tree_leaves(dict(enumerate(tree_leaves(case.model(*case.args, **case.kwargs)))))
    roots = [each.sum() for each in out if isinstance(each, torch.Tensor) and each.requires_grad]
    torch.autograd.backward(roots)


def macs_of(report: fxflops.Report) -> dict[str, int]:
    return {phase: sum(row.macs for row in report.by_operator(phase).values()) for phase in PHASES}


def compared(name: str, kind: str) -> tuple[dict[str, int], dict[str, int], fxflops.Report]:
    """Return the MACs of each phase according to the trace and according to ``analyze``, and the trace's report.

    ``kind`` is "forward", "training", "checkpoint" or "reentrant". The last two are training steps with a part of the model checkpointed.
    """
    torch.manual_seed(0)
    case = CASES[name]()
    if kind in ("checkpoint", "reentrant"):
        parent, _, child = case.part.rpartition(".")
        part = case.model.get_submodule(case.part)
        case.model.get_submodule(parent)._modules[child] = Checkpointed(part, kind == "reentrant")
    train = kind != "forward"
    case.model.train(train)
    report = traced(partial(training_step if train else forward, case), with_stack=kind in ("forward", "reentrant"))
    mode = "train" if train else "eval"
    ours = fxflops.analyze(
        case.model, case.args, case.kwargs, mode=mode, backward=train, repeats=0, trace="record", progress=False
    )
    return macs_of(report), macs_of(ours), report


class Published(NamedTuple):
    """A row of a TraceLens table, and our values for the same operator and shapes."""

    name: str
    dims: Any
    gflops: float
    tflops: float
    count: int
    macs: int
    bias: int
    found: int
    tflops_found: float

    @property
    def has_equal_work(self) -> bool:
        flops = 2 * self.macs + self.bias  # TraceLens counts adding a bias as one more FLOP for each output
        return abs(flops / 1e9 - self.gflops) < 1e-9 and self.found == self.count

    @property
    def has_equal_speed(self) -> bool:
        return abs(self.tflops_found / self.tflops - 1) < NEAR


def published(trace: Path, tables: Path, device: str | None) -> Iterator[Published]:
    """Yield the rows of TraceLens's tables of contractions for a published trace."""
    report = fxflops.read_trace(trace, device=device)
    functions = {node.name: node.function for node in report.nodes}
    found: dict[Any, list[Any]] = {}
    for each in report.counted:
        key = functions.get(each.call.node), tuple(map(tuple, each.call.inputs())), each.call.phase == "recompute"
        found.setdefault(key, []).append(each)
    for table in (tables / f"{name}.csv" for name in TABLES):
        for row in csv.DictReader(table.open()) if table.exists() else ():
            shapes, types = (ast.literal_eval(row[column]) for column in ("Input Dims_first", "Input type_first"))
            dims = tuple(
                tuple(shape) for shape, kind in zip(shapes, types, strict=True) if kind and "Scalar" not in kind
            )
            calls = found.get((row["name"], dims, row.get("is_recompute") == "True"), [])
            gflops, macs = float(row["GFLOPS_first"]), calls[0].macs if calls else 0
            bias = calls[0].call.out.numel() if calls and row["name"] == "aten::addmm" else 0
            speeds = [gflops / 1e3 / each.call.seconds for each in calls]
            speed = sum(speeds) / len(speeds) if speeds else 0.0
            yield Published(
                row["name"],
                dims,
                gflops,
                float(row["TFLOPS/s_mean"]),
                int(row["name_count"]),
                macs,
                bias,
                len(calls),
                speed,
            )


def published_lines(folder: Path) -> Iterator[str]:
    yield "| trace | rows | FLOPs equal | FLOP/s equal | the others: FLOPs and calls there, here |"
    yield "|---|---:|---:|---:|---|"
    for tables in sorted(folder.glob("*/*_perf_report_csvs")):
        stem = tables.name.removesuffix("_perf_report_csvs")
        traces = [tables.with_name(f"{name}.json.gz") for name in (stem, stem.removesuffix("_recompute"))]
        trace = next((path for path in traces if path.exists() and path.stat().st_size > 1000), None)
        if trace is None or not any((tables / f"{name}.csv").exists() for name in TABLES):
            continue
        rows = list(published(trace, tables, "MI300X" if tables.parent.name == "mi300" else None))
        others = [
            f"{row.name} {row.dims[0]}: {row.gflops:.3f} G x{row.count}, {2 * row.macs / 1e9:.3f} G x{row.found}"
            for row in rows
            if not row.has_equal_work
        ]
        equal = len(rows) - len(others), sum(row.has_equal_speed for row in rows)
        said = "; ".join(dict.fromkeys(others[:4])) + (f"; {len(others) - 4} more" if len(others) > 4 else "")
        yield f"| {tables.parent.name}/{stem} | {len(rows)} | {equal[0]} | {equal[1]} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--published", type=Path, help="the folder tests/traces of a checkout of TraceLens")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [
        "# Traces of torch.profiler",
        "",
        f"torch {torch.__version__}, fxflops {fxflops.__version__}, on a CPU. MACs of each phase by the trace; equal if those of "
        "`analyze` are the same in each phase. `checkpoint` runs a part of the model again in the backward pass, `reentrant` "
        "does by the older way; `forward` and `reentrant` were traced with stacks. The kernel of an LSTM's backward computes the "
        "gradient of the first state too, which a trace cannot tell to be unasked for; `analyze` counts what is asked for.",
        "",
        "| model | run | forward | backward | recompute | equal | complete |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for name in options.models.split(","):
        for kind in ("forward", "training", "checkpoint", "reentrant"):
            traces, ours, report = compared(name, kind)
            equal = "yes" if traces == ours else f"NO: {ours}"
            complete = "yes" if report.complete else ", ".join(each.op for each in report.missing)
            lines.append(
                f"| {name} | {kind} | {' | '.join(f'{n:,}' for n in traces.values())} | {equal} | {complete} |"
            )
            print(lines[-1], flush=True)
    if options.published:
        lines += [
            "",
            "# Published tables",
            "",
            "Rows of contractions in TraceLens' tables of its own traces: FLOPs (2 a MAC) and number of calls, forward and "
            f"recomputation apart; and the mean FLOP/s, equal within {NEAR:.1%}. There causal attention is half of the dense one; a "
            "convolution's backward counts the gradient of an input that needs none; and on the MI300X the fills of memory that an "
            "operator launches are not in its time, as they are on the H100.",
            "",
        ]
        for line in published_lines(options.published):
            lines.append(line)
            print(line, flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

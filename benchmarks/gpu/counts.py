"""Check that a model has the same FLOPs, MACs and calls on the CPU, on the device, on meta, and in a real run on the device.

Models are counted in training, and some also forward only, in four ways: ``count`` on the CPU, on the device and on meta, and
``analyze`` on the device, which runs every operation. FlopCounterMode on meta is an oracle that is independent of fxflops's
formulas. There are also cases for attention kernels, optimizers, autocast, half precision, channels_last, ``torch.compile`` and a
CUDA graph.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

import fxflops
from benchmarks.gpu.bench import Bench, Case, Row, markdown
from benchmarks.models import memory_zoo
from fxflops.trace.autograd_owners import roots_of

TITLE = "Counts: one model, one count on every device"
NEEDS = ("timm", "torchvision", "transformers", "diffusers")
Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
COMPARED = (
    "FLOPs",
    "MACs",
    "backward FLOPs",
    "backward MACs",
    "optimizer FLOPs",
    "complete",
    "calls",
    "dtypes",
    "kernels",
    "raises",
)
"""The facts that must be equal in all ways of a row that have them."""
MIB = 2**20


def image(name: str, size: int = 64, **settings: Any) -> Built:
    """Build a timm model with a batch of two small images."""
    import timm

    return timm.create_model(name, **settings), (torch.randn(2, 3, size, size),), {}


def video() -> Built:
    import torchvision

    return torchvision.models.get_model("r3d_18", weights=None), (torch.randn(2, 3, 4, 32, 32),), {}


def recurrent(cls: type[nn.Module], **settings: Any) -> Built:
    """Build a recurrent layer with few time steps, because on meta its backward pass is counted step by step."""
    return cls(64, 64, **settings), (torch.randn(16, 4, 64),), {}


def diffusion(name: str) -> Built:
    from benchmarks.models import diffusers_zoo

    return diffusers_zoo.build(name)


MODELS: dict[str, Callable[[], Built]] = {
    "timm: resnet10t": partial(image, "resnet10t"),
    "transformers: llama": partial(memory_zoo.build, "llama"),
    "torch: nn.LSTM": partial(recurrent, nn.LSTM),
    "torch: nn.TransformerEncoder": partial(memory_zoo.build, "nn.TransformerEncoder"),
    "diffusers: UNet2DModel": partial(diffusion, "UNet2DModel"),
    "torchvision: shufflenet_v2_x0_5": partial(memory_zoo.build, "torchvision:shufflenet_v2_x0_5"),
    "timm: vit_tiny_patch16_224": partial(image, "vit_tiny_patch16_224", 224, depth=2),
    "transformers: bert": partial(memory_zoo.build, "bert"),
    "torch: nn.GRU": partial(recurrent, nn.GRU, num_layers=2),
    "diffusers: FluxTransformer2DModel": partial(diffusion, "FluxTransformer2DModel"),
    "torchvision: resnet18": partial(memory_zoo.build, "torchvision:resnet18"),
    "timm: convnext_atto": partial(image, "convnext_atto", depths=(1, 1, 2, 1)),
    "transformers: gpt2": partial(memory_zoo.build, "gpt2"),
    "torch: nn.MultiheadAttention": partial(memory_zoo.build, "nn.MultiheadAttention"),
    "diffusers: AutoencoderKL": partial(diffusion, "AutoencoderKL"),
    "torchvision: r3d_18": video,
    "timm: mobilenetv3_small_100": partial(image, "mobilenetv3_small_100"),
    "transformers: t5": partial(memory_zoo.build, "t5"),
    "torch: nn.LSTM, two layers both ways": partial(recurrent, nn.LSTM, num_layers=2, bidirectional=True),
    "diffusers: DiTTransformer2DModel": partial(diffusion, "DiTTransformer2DModel"),
    "torchvision: lraspp_mobilenet_v3_large": partial(memory_zoo.build, "torchvision:lraspp_mobilenet_v3_large"),
    "timm: swin_tiny_patch4_window7_224": partial(image, "swin_tiny_patch4_window7_224", 224, depths=(2, 1, 1, 1)),
    "transformers: mistral": partial(memory_zoo.build, "mistral"),
    "torch: nn.RNN": partial(recurrent, nn.RNN),
    "diffusers: SD3Transformer2DModel": partial(diffusion, "SD3Transformer2DModel"),
    "torchvision: squeezenet1_1": partial(memory_zoo.build, "torchvision:squeezenet1_1"),
    "timm: densenet121": partial(image, "densenet121", block_config=(2, 2, 2, 2)),
    "transformers: deepseek_v3": partial(memory_zoo.build, "deepseek_v3"),
    "torch: latent attention": partial(memory_zoo.build, "latent attention"),
    "timm: eva02_tiny_patch14_224": partial(image, "eva02_tiny_patch14_224", 224, depth=2),
    "transformers: gemma": partial(memory_zoo.build, "gemma"),
    "torchvision: mobilenet_v2": partial(memory_zoo.build, "torchvision:mobilenet_v2"),
    "timm: regnety_002": partial(image, "regnety_002"),
    "transformers: distilbert": partial(memory_zoo.build, "distilbert"),
}
"""The libraries take turns, so that a stopped run has covered each of them."""
FIRST = (*MODELS,)[:10]
"""The models that come first, and are also counted forward only."""


def facts_of(report: fxflops.Report, training: bool, exact: bool = True, dtypes: bool = False) -> Row:
    """Return the facts of a report to compare, and its peak. Calls need ``exact``; dtypes need ``exact`` and ``dtypes``."""
    forward = [call for call in report.calls if call.phase in ("forward", "gradient")]
    row: Row = {"FLOPs": report.total_flops, "MACs": report.total_macs, "complete": report.complete}
    if training:
        row |= {"backward FLOPs": report.total_backward_flops, "backward MACs": report.total_backward_macs}
        row["backward calls"] = sum(call.phase == "backward" for call in report.calls)
        row["backward by op"] = {op: sums.flops for op, sums in report.by_operator("backward").items() if sums.flops}
    if exact:
        row["calls"] = len(forward)
    if exact and dtypes:
        # A graph and a run may spell a cast differently, so casts are left out. The other results must have equal dtypes.
        results = Counter(
            name for call in forward if call.op != "to" for name in re.findall(r"(\w+)\[", repr(call.out))
        )
        row["dtypes"] = " ".join(f"{name} x{number}" for name, number in sorted(results.items()))
    if report.missing:
        row["missing"] = [missing.op for missing in report.missing]
    return row | {"peak": report.max_memory, "trace": report.trace.partition(",")[0]}


class Ways:
    """The ways in which one model is counted, each with its facts.

    If a way raises, the error is its only fact, so that the other ways are still compared. The row shows it as a difference.
    """

    def __init__(self, bench: Bench, case: str, training: bool) -> None:
        self.bench, self.case, self.training = bench, case, training
        self.rows: dict[str, Row] = {}

    def add(self, name: str, run: Callable[[], fxflops.Report], **settings: bool) -> fxflops.Report | None:
        """Count in one way, and save the facts under this name. Return the report; None if the way raises."""
        try:
            report = run()
        except Exception as error:
            self.rows[name] = {"raises": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
            with (self.bench.out / "counts.errors.txt").open("a", encoding="utf8") as errors:
                errors.write(f"{self.case}, {name}\n{traceback.format_exc()}\n")
            return None
        self.rows[name] = facts_of(report, self.training, **settings)
        return report

    def row(self, **more: Any) -> Row:
        """Return the row of the case: the ways, and every fact that differs between them."""
        lines = differences(self.rows)
        keep_what_differs(self.rows)
        if more.get("ours", more.get("FlopCounterMode")) != more.get("FlopCounterMode"):
            lines.append(f"MACs by FlopCounterMode: {more['FlopCounterMode']}; under its convention {more['ours']}")
        return {"ways": self.rows, "differences": lines, **more}


def differences(ways: dict[str, Row]) -> list[str]:
    """Return a line for each fact that differs: its name, and each value with the ways that have it."""
    lines = []
    for fact in COMPARED:
        values: dict[Any, list[str]] = {}
        for name, row in ways.items():
            # "raises" is the only fact of a way that raised. The other ways do not have it, and count as None.
            if fact in row or fact == "raises":
                values.setdefault(row.get(fact), []).append(name)
        if len(values) > 1 or (fact == "raises" and any(values)):
            lines.append(f"{fact}: " + "; ".join(f"{value} ({', '.join(names)})" for value, names in values.items()))
    return lines


def keep_what_differs(ways: dict[str, Row]) -> None:
    """Remove the operators whose backward FLOPs are equal in all ways from each way's "backward by op"."""
    sums = [row["backward by op"] for row in ways.values() if "backward by op" in row]
    same = {op for each in sums for op in each if len({other.get(op) for other in sums}) == 1}
    for row in ways.values():
        if "backward by op" in row:
            left = {op: flops for op, flops in row.pop("backward by op").items() if op not in same}
            if left:
                row["backward by op"] = left


CAUSES = {
    "attention_backward": "attention by plain products, where the other has one kernel",
    "rnn_backward": "a recurrent layer step by step, where the other has one kernel",
    "lstm_cell_backward": "a recurrent layer by a kernel for each step's gates",
}
"""Why operators differ, by an operator that only some of the ways have."""


def by_op(ways: dict[str, Row]) -> list[str]:
    """Return a line for each distinct set of backward FLOPs by operator, and a line for each known cause of the difference."""
    sets: dict[str, list[str]] = {}
    for name, row in ways.items():
        if "backward by op" in row:
            text = ", ".join(f"{op} {flops:,}" for op, flops in sorted(row["backward by op"].items()))
            sets.setdefault(text or "none of these", []).append(name)
    lines = [f"{text} ({', '.join(names)})" for text, names in sets.items()] if len(sets) > 1 else []
    found = [set(row["backward by op"]) for row in ways.values() if "backward by op" in row]
    for op, cause in CAUSES.items():
        if any(op in each for each in found) and not all(op in each for each in found):
            lines.append(f"cause: {cause}")
    return lines


def by_flop_counter(model: nn.Module, args: Any, kwargs: Any, training: bool) -> int:
    """Return the MACs that FlopCounterMode counts. The fast path of attention is off, because FlopCounterMode does not know it."""
    model.train(training)
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
            out = model(*args, **kwargs)
            if training:
                torch.autograd.backward(*roots_of(out))
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
    model.zero_grad()
    return counter.get_total_flops() // 2


@cache
def libraries() -> None:
    """Import the models' libraries, and keep the garbage collector from traversing their objects after every case."""
    import timm
    import torchvision
    import transformers

    del timm, torchvision, transformers
    gc.collect()
    gc.freeze()


def on_meta(value: Any) -> Any:
    """Return a copy of a module, or of the tensors in a structure, on meta."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).to("meta")
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), value)


def analyzed(model: nn.Module, args: Any, kwargs: Any, **settings: Any) -> fxflops.Report:
    return fxflops.analyze(model, args, kwargs, repeats=1, progress=False, **settings)


def counted_everywhere(bench: Bench, name: str, both: bool = True) -> Row:
    """Count a model on the CPU, on meta and on the device, and run it on the device: in training, and with ``both`` also forward."""
    if not bench.stand_in:
        libraries()
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    abstract = on_meta(model), on_meta(args), on_meta(kwargs)
    passes = {"training": Ways(bench, f"{name}, training", True)}
    if both:
        passes = {"forward": Ways(bench, f"{name}, forward", False), **passes}
    oracles: dict[str, Row] = {}
    for name_of_pass, ways in passes.items():
        settings = pass_settings(ways.training)
        ways.add("count, cpu", partial(fxflops.count, model, args, kwargs, **settings))
        meta = ways.add("count, meta", partial(fxflops.count, *abstract, **settings))
        oracles[name_of_pass] = oracle_of(abstract, ways.training, meta)
    bench.to(model)
    args, kwargs = bench.to(args), bench.to(kwargs)
    for ways in passes.values():
        settings = pass_settings(ways.training)
        ways.add("count, device", partial(fxflops.count, model, args, kwargs, **settings))
        ways.add("analyze, device", partial(analyzed, model, args, kwargs, **settings))
    return {"parts": {name: ways.row(**oracles[name]) for name, ways in passes.items()}}


def pass_settings(training: bool) -> Row:
    return {"backward": True, "mode": "train"} if training else {"mode": "eval"}


def oracle_of(abstract: tuple[nn.Module, Any, Any], training: bool, report: fxflops.Report | None) -> Row:
    """Return the MACs that FlopCounterMode counts on meta, and the report's MACs under the same convention."""
    oracle: Row = {}
    try:
        macs = by_flop_counter(*abstract, training)
    except Exception as error:  # some models read values, which meta tensors do not have
        oracle["why no FlopCounterMode"] = raised(error)
    else:
        oracle["FlopCounterMode"] = macs
        if report is not None:
            # This convention counts the weight gradient of a grouped convolution as FlopCounterMode does.
            ours = report.recount("torch")
            oracle["ours"] = (ours.total_training_flops if training else ours.total_flops) // 2
    return oracle


def raised(error: Exception) -> str:
    return f"FlopCounterMode raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"


class Attention(nn.Module):
    """Attention with projections, by one of torch's kernels, or (``backend=None``) by the kernel that torch chooses."""

    def __init__(
        self,
        backend: SDPBackend | None,
        width: int,
        heads: int,
        causal: bool = False,
        groups: int = 1,
        masked: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(width, width // groups), nn.Linear(width, width // groups)
        self.backend, self.head = backend, width // heads
        self.causal, self.groups, self.masked, self.dropout = causal, groups, masked, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        settings: dict[str, Any] = {"enable_gqa": True} if self.groups > 1 else {}
        if self.masked:
            settings["attn_mask"] = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        with contextlib.nullcontext() if self.backend is None else sdpa_kernel(self.backend):
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.causal, **settings)
        result: torch.Tensor = self.out(out.transpose(1, 2).flatten(2))
        return result


BACKENDS = {
    "torch's choice": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "grouped, causal": {"groups": 4, "causal": True},
    "mask": {"masked": True},
    "dropout": {"dropout": 0.1},
}


def attention(bench: Bench, backend: str, kind: str) -> Row:
    """Count attention by one kernel, forward and backward. If torch refuses the kernel, the row says so."""
    width, heads, length = (32, 4, 16) if bench.stand_in else (512, 8, 256)
    settings = {"width": width, "heads": heads, **KINDS[kind]}
    torch.manual_seed(0)
    dtype = torch.bfloat16  # flash and cuDNN take no float32
    # The CPU lacks some kernels, and meta lacks all. There, the same model uses the kernel that torch chooses.
    plain, x = Attention(None, **settings).to(dtype), torch.randn(2, length, width, dtype=dtype)
    model, x_there = bench.to(Attention(BACKENDS[backend], **settings).to(dtype)), bench.to(x.clone())
    try:
        model(x_there).sum().backward()
    except RuntimeError as error:
        return {"differences": [], "ways": {}, "refused by torch": " ".join(str(error).split())[:200]}
    model.zero_grad()
    ways = Ways(bench, f"attention: {backend}, {kind}", training=True)
    ways.add("count, cpu", lambda: fxflops.count(plain, x, backward=True))
    abstract = on_meta(plain), on_meta(x)
    ways.add("count, meta", lambda: fxflops.count(*abstract, backward=True))
    device = ways.add("count, device", lambda: fxflops.count(model, x_there, backward=True), dtypes=True)
    ran = ways.add("analyze, device", lambda: analyzed(model, x_there, None, backward=True), dtypes=True)
    for name, report in (("count, device", device), ("analyze, device", ran)):
        if report is not None:
            ways.rows[name]["kernels"] = attention_kernels(report)
    if bench.stand_in or ran is None:  # FlopCounterMode does not know the CPU's kernel in all versions
        return ways.row()
    # FlopCounterMode counts the kernels that ran: most recompute the scores in the backward pass.
    try:
        with FlopCounterMode(display=False) as counter:
            model(x_there).sum().backward()
    except Exception as error:  # it asserts that queries have as many heads as keys
        return ways.row(**{"why no FlopCounterMode": raised(error)})
    finally:
        model.zero_grad()
    ours = ran.recount("torch").total_training_flops // 2
    return ways.row(FlopCounterMode=counter.get_total_flops() // 2, ours=ours)


def attention_kernels(report: fxflops.Report) -> str:
    """Return the names of the attention operators in the backward pass; "" if it has plain matrix products."""
    names = {str(call.target) for call in report.calls if call.phase == "backward"}
    return ", ".join(sorted(name for name in names if "attention" in name))


class Casting(nn.Module):
    """Runs its body under autocast."""

    def __init__(self, body: nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self.device_type, self.dtype = body, device, dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device_type, self.dtype):
            return self.body(*args, **kwargs)


def autocast(bench: Bench, name: str, dtype: torch.dtype) -> Row:
    """Check that autocast does not change a count, because casts are free, and that counted dtypes match the run on the device."""
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    settings: Row = {"backward": True, "mode": "train"}
    ways = Ways(bench, f"{name} autocast", training=True)
    ways.add("count without, cpu", lambda: fxflops.count(model, args, kwargs, **settings), exact=False)
    casting = Casting(model, "cpu", dtype)
    ways.add("count, cpu", lambda: fxflops.count(casting, args, kwargs, **settings), exact=False)
    there = Casting(bench.to(model), bench.device.type, dtype)
    args, kwargs = bench.to(args), bench.to(kwargs)
    ways.add("count, device", lambda: fxflops.count(there, args, kwargs, **settings), dtypes=True)
    ways.add("analyze, device", lambda: analyzed(there, args, kwargs, trace="record", **settings), dtypes=True)
    return ways.row()


def as_dtype(dtype: torch.dtype, model: nn.Module, args: Any) -> tuple[nn.Module, Any]:
    """Return the model and the floating-point inputs in this dtype."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return model.to(dtype), tree_map_only(torch.Tensor, cast, args)


def as_channels_last(model: nn.Module, args: Any) -> tuple[nn.Module, Any]:
    """Return the model and its images in the channels_last memory format."""
    images = tree_map_only(torch.Tensor, lambda tensor: tensor.to(memory_format=torch.channels_last), args)
    return model.to(memory_format=torch.channels_last), images  # type: ignore[call-overload]


def as_compiled(model: nn.Module, args: Any) -> tuple[nn.Module, Any]:
    """Return the model compiled with the eager backend: generating code would take most of the time here."""
    return torch.compile(model, backend="eager"), args  # type: ignore[return-value]


CHANGES: dict[str, Callable[[nn.Module, Any], tuple[nn.Module, Any]]] = {
    "channels_last": as_channels_last,
    "bf16 weights": partial(as_dtype, torch.bfloat16),
    "fp16 weights": partial(as_dtype, torch.float16),
    "compiled": as_compiled,
}


def changed(bench: Bench, name: str, change: str) -> Row:
    """Count a model after a change that must not change its count. The expected count is the unchanged model's on the CPU."""
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    settings: Row = {"backward": True, "mode": "train"}
    ways = Ways(bench, f"{name} {change}", training=True)
    ways.add("count without, cpu", lambda: fxflops.count(model, args, kwargs, **settings))
    there, (args, kwargs) = CHANGES[change](bench.to(model), bench.to((args, kwargs)))
    ways.add("count, device", lambda: fxflops.count(there, args, kwargs, **settings), dtypes=True)
    ways.add("analyze, device", lambda: analyzed(there, args, kwargs, **settings), dtypes=True)
    return ways.row()


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": partial(torch.optim.AdamW, lr=1e-4),
    "SGD with momentum": partial(torch.optim.SGD, lr=1e-4, momentum=0.9),
}
STEPS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "plain": {"foreach": False},
}


def optimizers(bench: Bench, name: str, optimizer: str, step: str) -> Row:
    """Count a training step with its optimizer. The truth is a profiled real step, after a first step that creates the state."""
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    make = partial(OPTIMIZERS[optimizer], **STEPS[step])
    ways = Ways(bench, f"{name} {optimizer} {step}", training=True)

    def add(way: str, run: Callable[[], fxflops.Report]) -> None:
        report = ways.add(way, run, exact=False)
        if report is not None:
            ways.rows[way]["optimizer FLOPs"] = report.total_optimizer_flops

    settings: Row = {"backward": True, "mode": "train"}
    add("count, cpu", lambda: fxflops.count(model, args, kwargs, optimizer=make, **settings))
    if step != "fused":  # torch cannot create a fused optimizer for meta tensors
        abstract = on_meta(model), on_meta(args), on_meta(kwargs)
        add("count, meta", lambda: fxflops.count(*abstract, optimizer=make, **settings))
    bench.to(model).train()
    args, kwargs = bench.to(args), bench.to(kwargs)
    add("count, device", lambda: fxflops.count(model, args, kwargs, optimizer=make, **settings))
    mine = make(model.parameters())

    def train() -> None:
        torch.autograd.backward(*roots_of(model(*args, **kwargs)))
        mine.step()
        mine.zero_grad()

    train()
    add("count of one that has stepped, device", lambda: fxflops.count(model, args, kwargs, optimizer=mine, **settings))

    def profiled() -> fxflops.Report:
        with fxflops.profile(model, optimizer=mine) as profile:
            train()
        return profile.report

    add("profile of a step, device", profiled)
    return ways.row()


def graphed(bench: Bench) -> Row:
    """Count a model whose forward replays a CUDA graph. Operations in a graph are not seen, and must not be reported as 0 FLOPs."""
    model, x = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)), torch.randn(32, 256)
    ways = Ways(bench, "a CUDA graph", training=False)
    ways.add("count without, cpu", lambda: fxflops.count(model, x))
    bench.to(model).eval()
    x = bench.to(x)
    replayed = torch.cuda.make_graphed_callables(model, (x,))  # replaces the model's forward
    ways.add("count, device", lambda: fxflops.count(replayed, x))
    ways.add("analyze, device", lambda: analyzed(replayed, x, None))
    return ways.row()


def cases(bench: Bench) -> list[Case]:
    """Return the cases: the first models, attention kernels, variants of a few models, then the other models and CUDA graphs."""
    names = [*MODELS]
    if bench.stand_in:
        torch.set_num_threads(1)  # the models are small, and other processes run at the same time
        names = ["timm: resnet10t", "torch: nn.MultiheadAttention"]
    # A training step includes a forward pass. Only the first models are also counted forward only, to leave time for all models.
    models = [
        Case(name, partial(counted_everywhere, bench, name, number < len(FIRST)), 14 if number < len(FIRST) else 10)
        for number, name in enumerate(names)
    ]
    backends = ["torch's choice"] if bench.stand_in else [*BACKENDS]
    kinds = ["causal"] if bench.stand_in else [*KINDS]
    kernels = [
        Case(f"attention: {backend}, {kind}", partial(attention, bench, backend, kind), 3)
        for kind in kinds
        for backend in backends
    ]
    return [*models[: len(FIRST)], *kernels, *variants(bench), *models[len(FIRST) :], *graphs(bench)]


def variants(bench: Bench) -> Iterator[Case]:
    """Yield the cases for optimizers, autocast, half precision, channels_last and torch.compile."""
    if bench.stand_in:
        name = "torch: nn.MultiheadAttention"
        yield Case(f"{name}, AdamW, plain", partial(optimizers, bench, name, "AdamW", "plain"), 6)
        yield Case(f"{name}, autocast bfloat16", partial(autocast, bench, name, torch.bfloat16), 5)
        yield Case(f"{name}, bf16 weights", partial(changed, bench, name, "bf16 weights"), 5)
        return
    conv, language, recurrent = "timm: resnet10t", "transformers: llama", "torch: nn.LSTM"
    for optimizer in OPTIMIZERS:
        for step in STEPS:
            case = partial(optimizers, bench, language, optimizer, step)
            yield Case(f"{language}, {optimizer}, {step}", case, 6)
    for name in (conv, language, recurrent):
        for dtype in (torch.bfloat16, torch.float16):
            yield Case(f"{name}, autocast {str(dtype)[6:]}", partial(autocast, bench, name, dtype), 5)
    changes = [("channels_last", conv), ("compiled", language)]
    changes += [(f"{half} weights", name) for half in ("bf16", "fp16") for name in (conv, language, recurrent)]
    for change, name in changes:
        yield Case(f"{name}, {change}", partial(changed, bench, name, change), 5)


def graphs(bench: Bench) -> list[Case]:
    """Return the CUDA graph case, which must run last because it could leave the device unusable. The stand-in has no graphs."""
    return [] if bench.stand_in else [Case("a CUDA graph", partial(graphed, bench), 3)]


def table(rows: list[Row]) -> list[str]:
    """Return the rows that differ, then every row."""
    # A model's case has a row for each pass.
    rows = [
        {**part, "case": ", ".join(filter(None, (row["case"], name)))}
        for row in rows
        for name, part in row.get("parts", {"": row}).items()
    ]
    compared = [row for row in rows if row["ways"]]
    refused = [row for row in rows if not row["ways"]]
    kinds = {row["case"]: kind_of(row) for row in compared}
    equal = sum(kind == "" for kind in kinds.values())
    lines = [
        f"The same in every way: {equal} of {len(compared)} rows (a model's case has one for each pass). Compared are "
        "FLOPs, MACs, completeness and calls of the forward pass, FLOPs and MACs of the backward pass and of the optimizer's step.",
        "",
    ]
    for kind, text in KINDS_OF_DIFFERENCES.items():
        differ = [row for row in compared if kinds[row["case"]] == kind]
        lines += [f"## {kind}: {len(differ)}", "", text, ""]
        for row in differ:
            lines += [f"- {row['case']}", *(f"  - {line}" for line in [*row["differences"], *by_op(row["ways"])])]
        lines += [""] if differ else []
    lines = lines[:-1]
    lines += ["", "## Kernels that torch refuses", ""] if refused else []
    lines += [f"- {row['case']}: {row['refused by torch']}" for row in refused]
    lines += ["", "## All cases", ""]
    lines += markdown(
        ["case", "equal", "FLOPs", "MACs", "backward FLOPs", "optimizer FLOPs", "complete", "FlopCounterMode's MACs", "calls", "backward calls", "peak (MiB)"],
        [cells(row) for row in compared],
    )  # fmt: skip
    return [
        *lines,
        "",
        "Several numbers in a cell are those of the ways, where they differ: count on the CPU, on meta and on the device, then "
        "analyze on the device, or a profiled step. Autocast and the other changes have the plain model on the CPU first.",
        "FlopCounterMode's MACs of a training row have the backward pass in them, and a grouped convolution's weight gradient `groups` times.",
        "Backward calls and peaks may differ: each device has its own kernels. The last peak was measured, the others predicted.",
    ]


KINDS_OF_DIFFERENCES = {
    "Different on the device itself": "`count` of the model on the device, `analyze` there, and a profiled step are to have one count.",
    "Different from the CPU": "The device's own ways agree. Its kernels are others than the CPU's: beside the totals are the sums of the "
    "backward pass's operators that are not the same.",
    "Different on meta alone": "CPU and device agree. On meta the backward passes of attention and recurrent layers are plain "
    "products, without a kernel.",
    "Different from FlopCounterMode": "All ways agree, but the oracle does not, under its own convention.",
}


def kind_of(row: Row) -> str:
    """Return the first kind in KINDS_OF_DIFFERENCES that fits a case's differences; "" for a case without differences."""
    ways = row["ways"]
    if not row["differences"]:
        return ""
    itself, *kinds = KINDS_OF_DIFFERENCES
    if differences({name: way for name, way in ways.items() if "device" in name}):
        return itself
    if differences({name: way for name, way in ways.items() if "meta" not in name}):
        return kinds[0]
    return kinds[1] if differences(ways) else kinds[2]


def cells(row: Row) -> list[Any]:
    """Return a case's cells: one value if all ways agree, otherwise one for each way."""
    ways = [*row["ways"].values()]

    def one(fact: str, show: Callable[[Any], str] = lambda value: f"{value:,}") -> str | None:
        values = [show(way[fact]) for way in ways if way.get(fact) is not None]
        if not values:
            return None
        return values[0] if len(set(values)) == 1 else " / ".join(values)

    counter = row.get("FlopCounterMode")
    return [
        row["case"],
        kind_of(row).lower() or "yes",
        one("FLOPs"),
        one("MACs"),
        one("backward FLOPs"),
        one("optimizer FLOPs"),
        one("complete", str),
        row.get("why no FlopCounterMode") if counter is None else f"{counter:,}",
        one("calls"),
        one("backward calls"),
        one("peak", lambda value: f"{value / MIB:.2f}"),
    ]

"""Compare predicted times to first token and per output token with aiconfigurator's measured runs of vLLM, TensorRT-LLM and SGLang.

One layer of one rank is built here from the model's config, with fused products and norms as in servers, and counted on meta. It stands
for all layers. Tensor parallelism divides heads, columns and experts; its collectives are NCCL's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from fxflops import Report, count
from fxflops.prediction.borrowed import family_of
from fxflops.prediction.calls import Kernel, collective_of, kernels_of
from fxflops.prediction.chips import card_of
from fxflops.prediction.hardware import Card
from fxflops.prediction.predict import seconds_of
from fxflops.records.facts import ATTENTION
from fxflops.roofline.devices import Device, find_device

from .tables import LINKED, SYSTEMS

NODE = 8
"""GPUs in a node. Collectives over more GPUs were not measured."""
ELEMENT = {"bf16": 2.0, "f8": 1.0, "f4": 0.5}
QUANTIZED = {"fp8": "f8", "fp8_block": "f8", "nvfp4": "f4"}
"""The table's names for the formats of weights, and our dtypes. Products with any other format are in bf16."""
F4_PEAKS = {"B200": 9e15, "GB200": 10e15, "B300": 13.5e15}
"""FLOP/s of dense products in FP4. https://www.nvidia.com/en-us/data-center/hgx/ states 72 and 108 PFLOPS for eight B200 and eight B300.
NVIDIA's GB200 NVL72 page states 720 for 72 GPUs. https://glennklockwood.com/garden/processors/B200 has the figures of one GPU."""


class Config(NamedTuple):
    """The sizes of a language model, from its config.json."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    experts: int = 0
    per_token: int = 0
    window: int = 0
    """The attention window of every second layer; 0 if no layer has one."""


LLAMA_8B = Config(4096, 32, 32, 8, 128, 14336, 128256)
LLAMA_70B = Config(8192, 80, 64, 8, 128, 28672, 128256)
QWEN_32B = Config(5120, 64, 64, 8, 128, 25600, 151936)
CONFIGS = {
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_8B,
    "nvidia/Llama-3.1-8B-Instruct-FP8": LLAMA_8B,
    "meta-llama/Llama-3.1-70B": LLAMA_70B,
    "Qwen/Qwen3-32B": QWEN_32B,
    "nvidia/Qwen3-32B-NVFP4": QWEN_32B,
    "Qwen/Qwen3-235B-A22B-FP8": Config(4096, 94, 64, 4, 128, 1536, 151936, 128, 8),
    "MiniMaxAI/MiniMax-M2.5": Config(3072, 62, 48, 8, 128, 1536, 200064, 256, 8),
    "openai/gpt-oss-120b": Config(2880, 36, 64, 8, 64, 2880, 201088, 128, 4, 128),
}
LATENT = "multi-head latent attention, of which no kernel was measured"
NOT_BUILT = {
    "deepseek-ai/DeepSeek-R1": LATENT,
    "deepseek-ai/DeepSeek-V3": LATENT,
    "nvidia/DeepSeek-R1-NVFP4": LATENT,
    "nvidia/DeepSeek-V3.1-NVFP4": LATENT,
    "moonshotai/Kimi-K2.5": LATENT,
    "zhipuai/GLM-5": "sparse attention over an index, of which no kernel was measured",
    "Qwen/Qwen3.5-397B-A17B": "three layers of four are linear attention, of which no kernel was measured",
}


class Parallel(NamedTuple):
    """How a server is spread over GPUs. Attention: over ``tp`` GPUs in each of ``dp`` groups. Experts: each expert is split over
    ``expert_tp`` GPUs, and the experts are divided among ``expert_ep`` groups."""

    tp: int
    dp: int
    expert_tp: int
    expert_ep: int

    @property
    def gpus(self) -> int:
        return self.tp * self.dp


class Step(NamedTuple):
    """A step of all sequences of a server: each gets ``queries`` new tokens and then has ``keys`` tokens."""

    sequences: int
    queries: int
    keys: int


class Seconds(NamedTuple):
    """A rank's predicted time, and the lower bound from the card's peaks and bandwidth."""

    predicted: float
    bound: float

    def __add__(self, other: Seconds) -> Seconds:  # type: ignore[override]
        return Seconds(self.predicted + other.predicted, self.bound + other.bound)

    def times(self, number: float) -> Seconds:
        return Seconds(self.predicted * number, self.bound * number)


class Layer(nn.Module):
    """One rank's share of a layer."""

    def __init__(self, config: Config, parallel: Parallel, step: Step, window: int) -> None:
        super().__init__()
        self.config, self.step, self.window = config, step, window
        self.heads = config.heads // parallel.tp
        self.key_heads = max(1, config.key_heads // parallel.tp)
        self.sequences = math.ceil(step.sequences / parallel.dp)
        rows = (self.heads + 2 * self.key_heads) * config.head_size
        self.qkv = nn.Linear(config.hidden, rows, bias=False)
        self.out = nn.Linear(self.heads * config.head_size, config.hidden, bias=False)
        self.norm = nn.Parameter(torch.empty(config.hidden))
        columns = config.intermediate // (parallel.expert_tp if config.experts else parallel.gpus // parallel.dp)
        if config.experts:
            self.router = nn.Linear(config.hidden, config.experts, bias=False)
            slots = step.sequences * step.queries * config.per_token / parallel.expert_ep
            held = config.experts // parallel.expert_ep
            # The share of the experts here that gets a token if tokens are spread evenly.
            share = 1 - (1 - config.per_token / config.experts) ** (step.sequences * step.queries)
            self.reached = max(1, round(held * share))
            self.rows = max(1, round(slots / self.reached))
            self.slots = nn.Parameter(torch.empty(self.reached, self.rows, config.hidden))
            self.up = nn.Parameter(torch.empty(self.reached, config.hidden, 2 * columns))
            self.down = nn.Parameter(torch.empty(self.reached, columns, config.hidden))
        else:
            self.gate_up = nn.Linear(config.hidden, 2 * columns, bias=False)
            self.back = nn.Linear(columns, config.hidden, bias=False)
        keys = min(step.keys, window) if window else step.keys
        if step.queries == 1:
            self.cache = nn.Parameter(torch.empty(self.sequences, self.key_heads, keys, config.head_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        config = self.config
        qkv = self.qkv(F.rms_norm(x, x.shape[-1:], self.norm))
        q, k, v = qkv.split([each * config.head_size for each in (self.heads, self.key_heads, self.key_heads)], -1)
        q, k = q.neg(), k.neg()  # stands in for rotary embeddings: one read, one write
        seen = self.attention(q, k, v)
        x = x[: len(seen)] + self.out(seen)
        h = F.rms_norm(x, x.shape[-1:], self.norm)
        if not config.experts:
            return x + self.back(gated(self.gate_up(h)))
        self.router(h)
        torch.bmm(gated(torch.bmm(self.slots, self.up)), self.down)
        return x + x

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        queries, size = self.step.queries, self.config.head_size
        sequences = self.sequences
        if queries > 1:
            if self.window and queries > 2 * self.window:
                # Windowed attention has about as many pairs per query as causal attention over twice the window.
                sequences, queries = sequences * queries // (2 * self.window), 2 * self.window
            rows = sequences * queries
            q, k, v = (
                each[:rows].view(sequences, queries, heads, size).transpose(1, 2)
                for each, heads in ((q, self.heads), (k, self.key_heads), (v, self.key_heads))
            )
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out.view(rows, self.heads * size)  # a view on meta, without a copy: kernels write this layout
        q = q.view(sequences, self.heads, 1, size)
        return F.scaled_dot_product_attention(q, self.cache, self.cache, enable_gqa=True).view(sequences, -1)


def gated(both: torch.Tensor) -> torch.Tensor:
    """Stand in for a fused SwiGLU kernel, which reads two tensors and writes one."""
    gate, up = both.chunk(2, -1)
    return torch.mul(gate, up)


@cache
def counted(config: Config, parallel: Parallel, step: Step, window: int) -> Report:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            layer = Layer(config, parallel, step, window)
            return count(layer, torch.empty(layer.sequences * step.queries, config.hidden))
    finally:
        torch.set_default_dtype(before)


@cache
def head(config: Config, parallel: Parallel, sequences: int) -> Report:
    with torch.device("meta"):
        linear = nn.Linear(config.hidden, config.vocabulary // parallel.tp, bias=False, dtype=torch.bfloat16)
        return count(linear, torch.empty(math.ceil(sequences / parallel.dp), config.hidden, dtype=torch.bfloat16))


@cache
def step_seconds(config: Config, parallel: Parallel, step: Step, name: str, dense: str, experts: str) -> Seconds:
    """Return the seconds of a step. Dense layers and experts have these dtypes; attention and the head are in bf16."""
    device = find_device(name)
    dtypes = {"linear": dense, "batched": experts}
    windows = [0, config.window] if config.window else [0]
    total = Seconds(0.0, 0.0)
    for window in windows:
        layer = kernels_seconds(counted(config, parallel, step, window), device, dtypes, parallel, config)
        total += layer.times(config.layers / len(windows))
    total += kernels_seconds(head(config, parallel, step.sequences), device, {}, parallel, config)
    return total + collectives(config, parallel, step, device).times(config.layers)


def kernels_seconds(
    report: Report, device: Device, dtypes: dict[str, str], parallel: Parallel, config: Config
) -> Seconds:
    """Return the seconds of a report's calls: the times of ``report.predict``, except for products in other dtypes than bf16.

    No product in FP8 or FP4 was measured, so it is assumed to reach the same shares of peak and bandwidth as a bf16 product. A bound must
    hold for any choice of experts, so it reads only the weights of one token's experts. It also assumes that the cache may be in FP8
    where weights are quantized.
    """
    least = max(1, config.per_token // parallel.expert_ep)
    cache = 0.5 if dtypes.get("linear", "bf16") != "bf16" else 1.0
    total = Seconds(0.0, 0.0)
    for each, row in zip(report.counted, report.predict(device).rows, strict=True):
        kernels = kernels_of(each)
        dtype = dtypes.get(kernels[0].family, "bf16") if kernels else "bf16"
        if dtype == "bf16":
            total += Seconds(row.seconds, row.bound_seconds * (cache if row.op == ATTENTION else 1))
        else:
            total += quantized(kernels[0], device, dtype, least)
    return total


def quantized(kernel: Kernel, device: Device, dtype: str, least: int) -> Seconds:
    """Return the seconds of a product with quantized weights. The bound reads the weights of only ``least`` products of a batch."""
    batch, m, n, k, _ = kernel.features
    element = ELEMENT[dtype]
    # Cards without FP4 arithmetic, such as Hopper, unpack the weights to bf16.
    computed = "bf16" if dtype == "f4" and device.name not in F4_PEAKS else dtype
    if computed == "f4":
        device = replace(device, peaks={**device.peaks, "f4": F4_PEAKS[device.name]})
    moved = (
        element * min(batch, least) * k * n + (2 if computed == "bf16" else element) * batch * m * k + 2 * batch * m * n
    )
    bound = max(2 * batch * m * n * k / device.peak(computed), moved / device.bandwidth)
    family = family_of(find_device(device.name), kernel.family, "bf16")
    card = card_of(device)
    if family is None or card is None:
        return Seconds(bound, bound)
    features = torch.tensor([(batch, m, n, k, element)], dtype=torch.float64)
    predicted = family.seconds(kernel.family, Card(device, card.multiprocessors, card.l2_bytes), computed, features)
    return Seconds(max(bound, float(predicted)), bound)


def collectives(config: Config, parallel: Parallel, step: Step, device: Device) -> Seconds:
    """Return the seconds of a layer's collectives: an all_reduce after attention, and another one after the feed-forward. If attention has
    several groups, an all_gather and a reduce_scatter of the tokens replace the second all_reduce."""
    nbytes = 2 * config.hidden * step.sequences * step.queries
    sent: list[tuple[str, int, float]] = []
    if parallel.tp > 1:
        sent.append(("all_reduce", parallel.tp, 2 * nbytes / parallel.dp))
    if parallel.dp > 1:
        sent += [(op, parallel.gpus, nbytes) for op in ("all_gather", "reduce_scatter")]
    elif parallel.tp > 1:
        sent.append(("all_reduce", parallel.tp, 2 * nbytes))
    kernels: list[Kernel | None] = [
        collective_of(op, ranks, round((ranks - 1) / ranks * size)) for op, ranks, size in sent
    ]
    seconds, _ = seconds_of(kernels, device)
    return Seconds(sum(each or 0.0 for each in seconds), 0.0)


class Served(NamedTuple):
    """A measured run, and its predictions in seconds. ``first`` and ``per_token`` are measured.

    ``alone`` is the prefill of one prompt, ``together`` the prefill of all prompts. ``step`` is a decoding step of all sequences;
    ``token`` adds each output token's share of the prefills. ``least`` is the bound of a step with only as many sequences as were
    decoded at once.
    """

    model: str
    card: str
    precision: str
    first: float
    per_token: float
    alone: Seconds
    together: Seconds
    token: Seconds
    step: Seconds
    least: float


def runs(folder: Path) -> Iterator[Served]:
    """Yield the aggregated runs on at most one node, for the models that can be built here."""
    for row in rows_of(folder).itertuples():
        config = CONFIGS.get(row.model_path)
        parallel = parallel_of(row)
        if config is None or parallel.gpus > NODE:
            continue
        name = (SYSTEMS | LINKED)[row.system]
        dense, experts = (QUANTIZED.get(each, "bf16") for each in (row.gemm_quant_mode, row.moe_quant_mode))
        batch, prompt, tokens = int(row.batch_size), int(row.isl), int(row.osl)
        alone, together, step = (
            step_seconds(config, parallel, each, name, dense, experts)
            for each in (
                Step(1, prompt, prompt),
                Step(batch, prompt, prompt),
                Step(batch, 1, prompt + tokens // 2),
            )
        )
        token = step + alone.times(batch / tokens)
        first, per_token = row.silicon_ttft_ms / 1e3, row.silicon_tpot_ms / 1e3
        decoded = Step(decoding(batch, tokens, first, per_token), 1, prompt + tokens // 2)
        least = step_seconds(config, parallel, decoded, name, dense, experts).bound
        precision = experts if config.experts else dense
        yield Served(
            row.model_path,
            name,
            precision,
            first,
            per_token,
            alone,
            together,
            token,
            step,
            least,
        )


def decoding(batch: int, tokens: int, first: float, per_token: float) -> int:
    """Return how many of ``batch`` requests are decoded at once, on average and rounded down.

    The client keeps ``batch`` requests open. Each one waits or is prefilled until its first token, and is decoded for the rest of its
    time. By Little's law (Operations Research 9, 1961), the share of requests in decoding is the share of time spent in decoding. The
    bound of a step is convex in the number of sequences, so the mean bound is at least the bound at the mean number of sequences.
    """
    decoded = tokens * per_token
    return max(1, int(batch * decoded / (first + decoded)))


def rows_of(folder: Path) -> pd.DataFrame:
    table = pd.read_csv(folder / "aiconfigurator_silicon_ttft_tpot.csv.gz")
    return table[table["mode"] == "agg"]


def parallel_of(row: Any) -> Parallel:
    """Return how a run is spread over GPUs. An empty column or a 0 counts as 1. If the experts' columns do not make up ``tp * dp``
    GPUs, ``expert_tp`` is chosen so that they do."""
    tp, dp, expert_tp, expert_ep = (
        1 if pd.isna(value) or value < 1 else int(value)
        for value in (row.tp_size, row.attention_dp_size, row.moe_tp_size, row.moe_ep_size)
    )
    if expert_tp * expert_ep != tp * dp:
        expert_tp, expert_ep = max(1, tp * dp // expert_ep), expert_ep
    return Parallel(tp, dp, expert_tp, expert_ep)


def table(folder: Path) -> str:
    """Return the section of the results about serving."""
    groups: dict[tuple[str, str, str], list[Served]] = {}
    for run in runs(folder):
        groups.setdefault((run.model, run.card, run.precision), []).append(run)
    lines = []
    for (model, card, precision), members in sorted(groups.items()):
        exact = "yes" if precision == "bf16" and card in MEASURED_BF16 else NO_CARD if precision == "bf16" else "no"
        first = [
            mean_error((each.alone.predicted, each.first) for each in members),
            mean_error((each.together.predicted, each.first) for each in members),
            mean_error((each.alone.bound, each.first) for each in members),
        ]
        between = sum(each.alone.predicted <= each.first <= each.together.predicted for each in members)
        token = [
            mean_error((each.token.predicted, each.per_token) for each in members),
            mean_error((each.step.predicted, each.per_token) for each in members),
            mean_error((each.least, each.per_token) for each in members),
        ]
        faster = sum(each.least > each.per_token or each.alone.bound > each.first for each in members)
        errors = " | ".join(f"{error:.0%}" for error in first)
        lines.append(
            f"| {model} | {card} | {precision} | {exact} | {len(members)} | {errors} | {between} "
            f"| {' | '.join(f'{error:.0%}' for error in token)} | {faster} |"
        )
    return "\n".join([*HEAD.strip().splitlines(), *lines, "", *overall(groups), "", *left_out(folder), ""])


def mean_error(pairs: Any) -> float:
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return sum(errors) / len(errors)


def overall(groups: dict[tuple[str, str, str], list[Served]]) -> list[str]:
    """Return a line for each precision, with the mean errors over all runs."""
    lines = []
    for precision in ELEMENT:
        members = [run for (_, _, each), found in groups.items() if each == precision for run in found]
        if not members:
            continue
        token = mean_error((each.token.predicted, each.per_token) for each in members)
        bound = mean_error((each.least, each.per_token) for each in members)
        alone = mean_error((each.alone.predicted, each.first) for each in members)
        together = mean_error((each.together.predicted, each.first) for each in members)
        least = mean_error((each.alone.bound, each.first) for each in members)
        lines.append(
            f"- {precision}: {len(members)} runs; per output token {token:.1%}, its bound {bound:.1%}; to the first token "
            f"{alone:.1%} by the prompt alone, {together:.1%} by all prompts together, the bound {least:.1%}"
        )
    return lines


def left_out(folder: Path) -> list[str]:
    """Return the lines about the runs that are not predicted."""
    rows = rows_of(folder)
    lines = []
    for model, reason in NOT_BUILT.items():
        lines.append(f"| {model} | {int((rows.model_path == model).sum())} | {reason} |")
    built = rows[rows.model_path.isin(CONFIGS)]
    wide = sum(parallel_of(row).gpus > NODE for row in built.itertuples())
    if wide:
        lines.append(f"| the models above | {wide} | more than {NODE} GPUs, of which no collective was measured |")
    return ["Not predicted:", "", "| model | runs | why |", "|---|---:|---|", *lines]


MEASURED_BF16 = ("A100 80GB SXM", "H100 SXM", "B200", "B300", "GB200", "L40S")
NO_CARD = "no, H100's"
HEAD = """
## Serving

Aggregated runs of ai-dynamo/aiconfigurator's silicon_sample.csv (095f58a51c4c, Apache-2.0), by vLLM, TensorRT-LLM and SGLang, none of which a fit used: mean
errors by model, card and the precision of the weights (of the experts, where there are any). One rank is written as servers compute it, and counted on
meta ([serving.py](../prediction/serving.py)).

- **First token.** The table has no times of arrival. "Alone" is the prefill of the one prompt, "together" that of as many prompts as the server
  has sequences. What was measured should lie between; the column counts the runs that do.
- **Output token.** A step of all sequences at the middle of their output, and beside it the prefills that a server in its steady state has to make: each
  sequence that ends is followed by a prompt, so there are sequences / new tokens prompts for each step. "Step" leaves these out.
- **Bound**: that of the prompt alone, and of a step alone, without communication, with the experts of one token and the cache in the precision of the
  weights. The step has the sequences that were decoded at once, which the table does not say: its batch is the requests that a client kept open. By
  Little's law their share is that of decoding in the whole time of a request. Llama-70B in FP8 on one H200 with 128 requests waits 369 s for the first
  token and decodes for 249 s, so that 51 are decoded at once; the caches of all 128, 107 GB, would not fit beside 71 GB of weights. "Faster" counts the
  runs below either bound: by a step of all requests there were two, this one and gpt-oss on four H100s, with 95 of 512 requests at once.
- **Table**: whether products of this precision were measured on the card. There are no tables of FP8 and FP4: such products take the shares of their peak
  and bandwidth that bf16 products have, which nothing checks. Attention and the cache are in bf16, and attention of one query over a cache takes its bytes at the
  speed of elementwise kernels. Runs without a stated precision are taken to be in bf16.
- Experts get even shares of the tokens, and are batched products. All-reduces are NCCL's; servers have faster ones for small messages. The host's time,
  sampling and scheduling are in no prediction.

| model | card | precision | table | runs | first token: alone | together | bound | between | output token | step | bound | faster |
|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
"""

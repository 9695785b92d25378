"""Reports of whole kinds of models, at minimal size: routed experts, adapters, graphs, state spaces, optimizers, quantized."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.test_reports import Case, check, every_way, f, ints, of, quietly

t, d, w, e = 7, 5, 11, 3  # tokens, width, width of an expert, experts


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(d, w), nn.GELU(), nn.Linear(w, d))


class Routed(nn.Module):
    """A mixture of experts, each run on the tokens routed to it, two experts per token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(d, e, bias=False)
        self.experts = nn.ModuleList(expert() for _ in range(e))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, run in enumerate(self.experts):
            rows, slot = (chosen == number).nonzero(as_tuple=True)
            out.index_add_(0, rows, run(x[rows]) * weights[rows, slot, None])
        return out


class Assigned(nn.Module):
    """The same with one given expert per token; an expert without tokens is not run."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(expert() for _ in range(e))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            rows = torch.where(chosen == number)[0]
            out[rows] = self.experts[number](x[rows])
        return out


def all_experts(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("td,edw->etw", x, m.up).relu() @ m.down


def grouped(m: Any, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return F.grouped_mm(x, m.weights, offs=ends)


class LoRA(nn.Module):
    """A frozen layer with two low-rank layers in parallel."""

    def __init__(self, i: int, o: int, r: int) -> None:
        super().__init__()
        self.base = nn.Linear(i, o).requires_grad_(False)
        self.a, self.b = nn.Linear(i, r, bias=False), nn.Linear(r, o, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 0.5 * self.b(self.a(x))


class GraphLayer(nn.Module):
    """Messages along edges, summed at their destination."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * i, o), nn.Linear(i + o, i)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        messages = self.message(torch.cat([x[source], x[target]], -1))
        arrived = torch.zeros(x.shape[0], messages.shape[1], device=x.device)
        arrived = arrived.scatter_add(0, target[:, None].expand_as(messages), messages)
        return self.update(torch.cat([x, arrived], -1))


class Scan(nn.Module):
    """A selective state space model in Python: n states for each of d channels."""

    def __init__(self, d: int, n: int, k: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(d, d, k, padding=k - 1, groups=d)
        self.parts = nn.Linear(d, 2 * n + d)
        self.log_a = nn.Parameter(f(d, n))
        self.n = n

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        x = F.silu(self.conv(x)[..., :length]).mT
        delta, b, c = self.parts(x).split([x.shape[-1], self.n, self.n], -1)
        state, outs = torch.zeros_like(self.log_a), []
        for s in range(length):
            step = F.softplus(delta[:, s])[..., None]
            state = torch.exp(-step * self.log_a.exp()) * state + step * b[:, s, None] * x[:, s, :, None]
            outs.append(torch.einsum("bdn,bn->bd", state, c[:, s]))
        return torch.stack(outs, 1)


class TrainsItself(nn.Module):
    """An optimizer step inside the forward, as in test-time training; the gradient is an input."""

    def __init__(self, optimizer: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(d, w, bias=False)
        self.optimizer, self.options = optimizer, options

    def forward(self, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        self.linear.weight.grad = grad
        self.optimizer(self.linear.parameters(), lr=0.5, **self.options).step()
        self.linear.weight.grad = None
        return self.linear(x)


def patches(m: Any, image: torch.Tensor) -> torch.Tensor:
    return m.embed(F.unfold(image, 4, stride=4).mT)


def contrastive(m: Any, image: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    x, y = F.normalize(m.image(image), dim=-1), F.normalize(m.text(tokens).mean(1), dim=-1)
    return x @ y.mT * 10.0


def squeezed(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x * m.gate(x.mean((2, 3)))[..., None, None].sigmoid()


def nearest(m: Any, x: torch.Tensor) -> torch.Tensor:
    """The nearest codebook entry for each token, by |x|^2 - 2 x c + |c|^2."""
    distances = x.pow(2).sum(-1, keepdim=True) - 2 * x @ m.codes.mT + m.codes.pow(2).sum(-1)
    return F.embedding(distances.argmin(-1), m.codes)


ROUTER, EXPERT = t * d * e, 2 * d * w  # for all tokens; for one token
edges = ints([0, 1, 2, 3, 3, 1], [1, 2, 3, 0, 2, 0])

CASES = [
    # prime-rl PR#803, ArcticTraining PR#289, OLMo-core PR#511: count the routed tokens, not all tokens times all experts.
    Case("experts-by-value", Routed(), f(t, d), macs=ROUTER + 2 * t * EXPERT, without=("meta",)),
    Case("experts-given", Assigned(), (f(t, d), ints(0, 2, 2, 0, 2, 2, 2)), macs=t * EXPERT, without=("meta",)),
    # VeOmni PR#125: experts in one call; 16 tokens in two groups of 5 and 11.
    Case(
        "experts-grouped",
        of(grouped, weights=f(2, 16, 24).bfloat16()),
        (f(16, 16).bfloat16(), torch.tensor([5, 16], dtype=torch.int32)),
        macs=16 * 16 * 24,
    ),
    Case("experts-all", of(all_experts, up=f(e, d, w), down=f(e, w, d)), f(t, d), macs=e * t * EXPERT),
    # calflops#30, thop#194, ptflops#103, LlamaFactory#3763: frozen or not, the forward is the same.
    Case("lora", LoRA(d, w, 2), f(t, d), macs=t * (d * w + d * 2 + 2 * w), params=d * w + w + d * 2 + 2 * w),
    # ptflops#71, calflops#37, PyG#9717: 6 edges between 4 nodes; a scatter is adds.
    Case("graph-layer", GraphLayer(d, w), (f(4, d), edges), macs=6 * (2 * d) * w + 4 * (d + w) * d),
    Case(
        "graph-index-add",
        of(lambda m, x, s, t: torch.zeros(4, w, device=x.device).index_add(0, t, m.l(x)[s]), l=nn.Linear(d, w)),
        (f(4, d), *edges),
        macs=4 * d * w,
    ),
    # mamba#110, LocalMamba#36, VMamba#296: 9 steps, convolved with 8 + 4 windows; n products for each channel's output.
    Case("state-space", Scan(d, 3, 4), f(2, d, 9), macs=2 * d * 4 * (9 + 3) + 2 * 9 * d * (2 * 3 + d) + 2 * 9 * d * 3),
    # pytorch#69782: an optimizer step is 1 multiply and 1 add per weight, not a matrix product.
    Case(
        "optimizer-sgd",
        TrainsItself(torch.optim.SGD),
        (f(t, d), f(w, d)),
        macs=t * d * w,
        flops=t * w * (2 * d - 1) + 2 * w * d,
    ),
    Case(
        "optimizer-sgd-foreach",
        TrainsItself(torch.optim.SGD, foreach=True),
        (f(t, d), f(w, d)),
        macs=t * d * w,
        flops=t * w * (2 * d - 1) + 2 * w * d,
    ),
    Case("optimizer-adamw", TrainsItself(torch.optim.AdamW), (f(t, d), f(w, d)), macs=t * d * w),
    # thop#197, Restormer#42: parts of well-known models.
    Case("patches", of(patches, embed=nn.Linear(3 * 16, d)), f(2, 3, 12, 8), macs=2 * (3 * 2) * 48 * d),
    Case("squeeze-excite", of(squeezed, gate=nn.Linear(d, d)), f(2, d, 4, 6), macs=2 * d * d),
    Case(
        "contrastive",
        of(contrastive, image=nn.Linear(w, d), text=nn.Embedding(13, d)),
        (f(2, w), ints([1, 2], [3, 4], [5, 6])),
        macs=2 * w * d + 2 * 3 * d,
    ),
    Case("codebook", of(nearest, codes=f(13, d)), f(t, d), macs=t * 13 * d),
    Case(
        "pixel-shuffle",
        nn.Sequential(nn.Conv2d(d, 4 * d, 3, padding=1), nn.PixelShuffle(2)),
        f(1, d, 4, 6),
        macs=(4 * d) * (4 * 6) * d * 9,
    ),
    # thop#202: 8-bit weights are multiplied just as often.
    Case(
        "quantized-dynamic",
        nn.Sequential(quietly(torch.ao.nn.quantized.dynamic.Linear, d, w)),
        f(t, d),
        macs=t * d * w,
        without=("meta",),
    ),
]


if not hasattr(F, "grouped_mm"):  # an older torch
    CASES = [case for case in CASES if case.id != "experts-grouped"]


@pytest.mark.filterwarnings("ignore:.*quantiz")
@every_way(CASES)
def test_models(case: Case, way: str) -> None:
    check(case, way)

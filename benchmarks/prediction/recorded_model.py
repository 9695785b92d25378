"""A reimplementation of the language model whose CUDA allocations were recorded (Wedsonlin/assignment2-systems, MIT).

24 layers of width 1,024 with 16 heads, feed-forward 4,096, vocabulary 10,000: RMSNorm, RoPE, SwiGLU, all made of plain operators. The
local variables that a function keeps until it returns matter, because they hold memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

VOCABULARY, LAYERS, WIDTH, HEADS, INNER = 10_000, 24, 1_024, 16, 4_096
BATCH = 4


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # In the recorded version of torch, einsum was a product of views, and autocast does not cache casts of views. Later
        # versions cast the weight that einsum gets, and cache that.
        return torch.bmm(x.flatten(0, -2)[None], self.weight.t()[None])[0].unflatten(0, x.shape[:-1])


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCABULARY, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids, :]


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        rms = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * rms
        return (self.weight * x).to(dtype)


class Rope(nn.Module):
    """Rotates pairs of features. A buffer holds the cosines and sines of all positions."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.register_buffer("turns", torch.empty(2, length, WIDTH // HEADS // 2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x1, x2 = x.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.turns[:, : x.shape[-2]]
        one = cos * x1 - sin * x2
        two = sin * x1 + cos * x2
        return torch.stack((one, two), -1).flatten(-2).contiguous()


def softmax(x: torch.Tensor) -> torch.Tensor:
    x = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(x)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("...qd,...kd->...qk", q, k) / q.shape[-1] ** 0.5
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)  # the scores stay alive until the function returns
    return torch.einsum("...qk,...kd->...qd", weights, v)


class Attention(nn.Module):
    def __init__(self, rope: Rope) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.rope = rope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-2]
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(-2, -3) for each in (q, k, v))
        q = self.rope(q)
        k = self.rope(k)
        positions = torch.arange(length, device=x.device)
        mask = positions[None, None, :, None] >= positions[None, None, None, :]
        heads = attention(q, k, v, mask)
        heads = heads.transpose(-2, -3).flatten(-2).contiguous()
        return self.out(heads)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(WIDTH, INNER), Linear(INNER, WIDTH), Linear(WIDTH, INNER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class Block(nn.Module):
    def __init__(self, rope: Rope) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(rope), FeedForward()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = self.attention(self.norm1(x))
        between = x + attended
        forwarded = self.feed_forward(self.norm2(between))
        return between + forwarded


class LanguageModel(nn.Module):
    """tokens[batch, length] -> logits[batch, length, vocabulary], or the mean cross-entropy if targets are given."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embedding = Embedding()
        rope = Rope(length)
        self.layers = nn.ModuleList([Block(rope) for _ in range(LAYERS)])
        self.norm, self.head = RMSNorm(), Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.logits(tokens)
        return logits if targets is None else cross_entropy(logits, targets)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(tokens)
        x = embedded
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x)  # type: ignore[no-any-return]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    losses = -log_softmax(logits)
    return torch.mean(torch.gather(losses, -1, targets.unsqueeze(-1)))


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    x = x - torch.max(x, dim=-1, keepdim=True)[0]
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


class AdamW(torch.optim.Optimizer):
    """AdamW that updates one parameter after the other. Each step of the arithmetic makes a new tensor."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad.data, self.state[p]
                p.data -= lr * group["weight_decay"] * p.data
                before = state.get("m", torch.zeros_like(grad))
                before2 = state.get("v", torch.zeros_like(grad))
                m = beta1 * before + (1 - beta1) * grad
                v = beta2 * before2 + (1 - beta2) * torch.square(grad)
                p.data -= lr * m / (torch.sqrt(v) + group["eps"])
                state["m"], state["v"] = m, v

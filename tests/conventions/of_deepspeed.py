"""DeepSpeed's own numbers for small models and single ops, if it is installed. Run as a script, it writes them to a file.

    DS_BUILD_OPS=0 pip install deepspeed
    DS_ACCELERATOR=cpu python tests/conventions/of_deepspeed.py

Each case runs in its own process, because DeepSpeed does not restore everything that it replaces in torch.
"""

from __future__ import annotations

import json
import multiprocessing
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.conventions.pool import POOL, copied, lent
from tests.conventions.replaced import CASES, CHANGING_SIZES, Runs, W, module, of

WRITTEN = Path(__file__).with_name("of_deepspeed.json")
Numbers = tuple[int, int, int]

K = torch.randn(2, 3, 6, 4)


class Attends(nn.Module):
    """Rotary positions, grouped heads and attention as in language models, with the rotary product as an ``@``."""

    def __init__(self, heads: int = 4, groups: int = 2, size: int = 8) -> None:
        super().__init__()
        self.heads, self.groups, self.size, wide = heads, groups, size, heads * size
        self.q, self.kv = nn.Linear(wide, wide, bias=False), nn.Linear(wide, 2 * groups * size, bias=False)
        self.norm, self.gate, self.down = nn.RMSNorm(wide), nn.Linear(wide, 2 * wide), nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, wide = x.shape
        frequencies = torch.ones(self.size, 1) @ torch.arange(length).float()[None]
        q = self.q(self.norm(x)).view(n, length, self.heads, self.size).transpose(1, 2) * frequencies.T.cos()
        k, v = self.kv(x).view(n, length, self.groups, 2 * self.size).transpose(1, 2).chunk(2, -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        gate, up = self.gate(y.transpose(1, 2).reshape(n, length, wide) + x).chunk(2, -1)
        return self.down(F.silu(gate) * up) + x


MORE: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    **CHANGING_SIZES,
    "a block of a language model": lambda: (Attends(), torch.randn(2, 6, 32)),
    # Products
    "@": lambda: of(lambda x: (x @ W, W @ x[0, :, :, None], x[0, 0] @ x[0, 1], x @ W[0]), 2, 3, 4),
    "@ of a parameter": lambda: (
        Runs(lambda part, x: (x @ part.weight, part.weight @ x.T), nn.Linear(4, 4)), torch.randn(3, 4),
    ),
    "@ broadcast": lambda: of(lambda x: (x @ torch.ones(5, 1, 4, 6), torch.ones(3, 4) @ x.mT), 2, 3, 4),
    "@ of a float and an int matrix": lambda: of(lambda x: x.long() @ x.long().T, 3, 4),
    "operator.matmul": lambda: of(lambda x: operator.imatmul(operator.matmul(x, W), W), 3, 4),
    "other products": lambda: of(
        lambda x: (torch.linalg.matmul(x, W), torch.mv(x, W[0]), x.mv(W[0]), torch.dot(x[0], x[1]), torch.outer(x[0], x[1])),
        3, 4,
    ),
    "more products": lambda: of(
        lambda x: (torch.inner(x, x), torch.tensordot(x, W, 1), torch.chain_matmul(x, W, W), torch.linalg.multi_dot([x, W, W])),
        3, 4,
    ),
    "in place": lambda: of(lambda x: x.clone().addmm_(x, W).mm(W).add_(x).mul_(2), 4, 4),
    "out": lambda: of(lambda x: (torch.mm(x, W, out=torch.empty(3, 4)), torch.addmm(x, x, W, out=torch.empty(3, 4))), 3, 4),
    "baddbmm, method": lambda: of(lambda x: x.baddbmm(x, x), 2, 4, 4),
    "addmv, addr": lambda: of(lambda x: (torch.addmv(x[0], x, x[0]), torch.addr(x, x[0], x[1])), 4, 4),
    # Attention
    "sdpa, other sizes": lambda: of(lambda x: F.scaled_dot_product_attention(x, K, torch.randn(2, 3, 6, 5)), 2, 3, 7, 4),
    "sdpa, a mask": lambda: of(lambda x: F.scaled_dot_product_attention(x, K, K, torch.zeros(7, 6), 0.0, False), 2, 3, 7, 4),
    "sdpa, causal": lambda: of(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=1.0), 2, 3, 7, 4),
    "sdpa, groups": lambda: of(lambda x: F.scaled_dot_product_attention(x, K, K, enable_gqa=True), 2, 6, 7, 4),
    "sdpa of three dims": lambda: of(lambda x: F.scaled_dot_product_attention(x, x, x), 3, 7, 4),
    # Sizes
    "interpolate, positions": lambda: of(lambda x: (F.interpolate(x, (5, 7)), F.interpolate(x, None, 2)), 1, 4, 16, 8),
    "interpolate, factors": lambda: of(
        lambda x: (F.interpolate(x, scale_factor=(2, 3)), F.interpolate(x, scale_factor=[0.5, 1.5])), 1, 4, 16, 8
    ),
    "interpolate, a float": lambda: of(lambda x: F.interpolate(x, scale_factor=1.3, mode="bicubic"), 1, 3, 7, 5),
    "interpolate, computed": lambda: of(
        lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear", recompute_scale_factor=True, antialias=True),
        1, 3, 7, 5,
    ),
    "interpolate, one dim": lambda: of(
        lambda x: (F.interpolate(x, scale_factor=3, mode="linear"), F.interpolate(x, 9), F.interpolate(x, [9])), 1, 4, 6
    ),
    "interpolate, three dims": lambda: of(
        lambda x: (F.interpolate(x, scale_factor=2, mode="trilinear"), F.interpolate(x, [3, 4, 5])), 1, 2, 3, 4, 5
    ),
    "interpolate, area": lambda: of(
        lambda x: (F.interpolate(x, (5, 7), mode="area"), F.interpolate(x, scale_factor=1.5, mode="area")), 1, 4, 16, 8
    ),
    "Upsample, factors": lambda: module(nn.Upsample(scale_factor=(2, 3), mode="bilinear"), 1, 2, 3, 3),
    "Upsample, area": lambda: module(nn.Upsample(size=(7, 8), mode="area"), 1, 2, 3, 3),
    "UpsamplingBilinear2d": lambda: module(nn.UpsamplingBilinear2d(size=(7, 8)), 1, 2, 3, 3),
    "ConvTranspose2d to a size": lambda: (
        Runs(lambda part, x: part(x, output_size=(10, 11)), nn.ConvTranspose2d(4, 6, 3, stride=2)), torch.randn(1, 4, 4, 5),
    ),
    "ConvTranspose1d depthwise": lambda: module(nn.ConvTranspose1d(4, 4, 3, groups=4, output_padding=1, stride=2), 2, 4, 5),
    # Elementwise
    "operators, elementwise": lambda: of(
        lambda x: (x + x, x - 1, 2 * x, x / 3, x**2, -x, x % 2, x // 2, x == x, x > 0, 1 - x, abs(x)), 3, 4
    ),
    "add, mul of a table": lambda: of(lambda x: (torch.add(x, W[0]), x.mul(W[:1]), torch.mul(W[0], x), x.add(W[:, :1])), 2, 4, 4),
    "methods, elementwise": lambda: of(lambda x: x.sub(1).div(2).pow(2).exp().sigmoid().addcmul(x, x).square().multiply(x), 3, 4),
    # Recurrent
    "LSTM": lambda: module(nn.LSTM(8, 16), 4, 16, 8),
    "LSTM batch first": lambda: module(nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), 6, 2, 4),
    "GRU": lambda: module(nn.GRU(4, 5), 6, 2, 4),
    "RNN relu": lambda: module(nn.RNN(4, 5, nonlinearity="relu", bias=False), 6, 2, 4),
    # Layers of several
    "TransformerDecoderLayer": lambda: (
        Runs(lambda part, x: part(x, x), nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)), torch.randn(2, 5, 8),
    ),
    "Bilinear": lambda: (Runs(lambda part, x: part(x, x), nn.Bilinear(4, 4, 3)), torch.randn(2, 4)),
    "CosineSimilarity": lambda: (Runs(lambda part, x: part(x, x), nn.CosineSimilarity()), torch.randn(2, 4)),
    "cross entropy": lambda: of(lambda x: F.cross_entropy(F.linear(x, W), torch.zeros(3).long()), 3, 4),
    "BatchNorm2d in training": lambda: of(lambda x: F.batch_norm(x, None, None, torch.ones(4), training=True), 2, 4, 3, 3),
    "Embedding, module": lambda: (Runs(lambda part, x: part((x > 0).long()), nn.Embedding(9, 4)), torch.randn(5)),
    "EmbeddingBag": lambda: (Runs(lambda part, x: part((x > 0).long()), nn.EmbeddingBag(9, 4)), torch.randn(2, 5)),
}  # fmt: skip
"""Cases that DeepSpeed counts and flops-profiler does not, or counts differently."""

OPS = {**CASES, **MORE}
BY_TORCH = (
    "alexnet", "squeezenet", "shufflenet", "mnasnet", "video r3d", "swin torchvision", "lstm",
    "bidirectional lstm", "gru", "rnn", "cells", "nn.Transformer", "unet", "products", "lraspp",
)  # fmt: skip
"""The models of the pool whose numbers are written down. The others' numbers change with the versions of timm and transformers."""


def theirs(model: nn.Module, args: Any, kwargs: Any) -> Numbers:
    """(flops, macs, params) from DeepSpeed. What it leaves in torch is not removed."""
    from deepspeed.profiling.flops_profiler import profiler

    model, args, kwargs = copied(model, args, kwargs)
    return profiler.get_model_profile(model, args=args, kwargs=kwargs, print_profile=False, as_string=False, warm_up=0)


def case(name: str) -> tuple[nn.Module, Any, Any]:
    """A model of the pool, or an op."""
    if name in POOL:
        return lent(name)
    model, x = OPS[name]()
    return model, (x,), {}


def main() -> None:
    import deepspeed  # noqa: F401  # loaded once, before the processes fork

    torch.set_num_threads(1)
    names = [*BY_TORCH, *OPS]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as processes:
        numbers = processes.map(numbers_of, names, chunksize=1)
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in zip(names, numbers, strict=True))
    WRITTEN.write_text("{\n" + rows + "\n}\n", encoding="utf8")


def numbers_of(name: str) -> Numbers:
    return theirs(*case(name))


if __name__ == "__main__":
    main()

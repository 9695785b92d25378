"""The figures of a small vision transformer, as renderers receive them: four equal blocks, a head, and the model's own work."""

from __future__ import annotations

import pytest

from fxflops.counting.rollup import OperatorRow, Sums
from fxflops.meters.timing import Timing
from fxflops.records import Params
from fxflops.render.data import Summary, TreeRow

MIB = 2**20


def block(i: int, seconds: float) -> TreeRow:
    path = f"blocks.{i}"
    attn = TreeRow("attn", "Attention", f"{path}.attn", 1, 2_000_000, 500_000_000, 1_000_000_000, seconds=seconds / 4)
    mlp = TreeRow("mlp", "Mlp", f"{path}.mlp", 1, 4_000_000, 900_000_000, 1_800_000_000, seconds=seconds / 2)
    return TreeRow(
        name=str(i),
        cls="Block",
        path=path,
        calls=1,
        params=6_000_000,
        macs=1_400_000_000,
        flops=2_800_300_000,
        own_flops=300_000,
        own_ops={"add": 2},
        seconds=seconds,
        own_seconds=seconds / 4,
        bytes_peak=(100 + i) * MIB,
        children=(attn, mlp),
    )


@pytest.fixture
def root() -> TreeRow:
    blocks = TreeRow(
        "blocks",
        "Sequential",
        "blocks",
        1,
        24_000_000,
        5_600_000_000,
        11_201_200_000,
        seconds=0.060,
        bytes_peak=103 * MIB,
        children=tuple(block(i, 0.012 + 0.002 * i) for i in range(4)),
    )
    embed = TreeRow("embed", "Conv2d", "embed", 1, 590_000, 115_000_000, 231_000_000, seconds=0.002)
    head = TreeRow("head", "Linear", "head", 1, 769_000, 768_000, 1_537_000, seconds=0.0001)
    return TreeRow(
        name="",
        cls="ViT",
        path="",
        calls=1,
        params=25_511_000,
        macs=5_715_768_000,
        flops=11_433_937_000,
        own_params=152_000,
        own_flops=200_000,
        own_ops={"add": 1, "cat": 1},
        seconds=0.0625,
        own_seconds=0.0004,
        bytes_peak=103 * MIB,
        children=(embed, blocks, head),
    )


@pytest.fixture
def vit(root: TreeRow) -> Summary:
    return Summary(
        title="ViT",
        inputs="f32[1,3,224,224]",
        setting="cpu (2 cores) · eval · no_grad · symbolic trace",
        root=root,
        convention="fxflops",
        attention="dense",
        provenance="fxflops 0.1.0 · torch 2.9.0 · 2026-01-02 03:04:05 UTC · cpu (2 cores) · 2 threads",
        counted_calls=41,
        calls=41,
        params=Params(root.params, root.params, 0, 0, 4 * root.params),
        latency=Timing(0.060, 0.058, 0.066, 10),
        nodes_seconds=root.seconds,
        bytes_peak=103 * MIB,
        memory={"params": 97 * MIB, "activations": 6 * MIB},
        peak_at="blocks.3.mlp.act",
        operators=(
            OperatorRow("linear", 17, Sums(17, 10_000_000_000, seconds=0.045)),
            OperatorRow("attention", 4, Sums(4, 1_200_000_000, seconds=0.012)),
            OperatorRow("conv", 1, Sums(1, 231_000_000, seconds=0.002)),
            OperatorRow("layer_norm", 9, Sums(9, 2_000_000, seconds=0.003)),
            OperatorRow("add", 9, Sums(9, 937_000, seconds=0.0005)),
        ),
    )

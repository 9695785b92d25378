"""Two meshes worked out by hand: a rank's parameters, gradients, optimizer state, FLOPs, and the bytes of each collective.

The step is benchmarks/models/llama_ranks.py, which the benchmarks run as Llama-3 405B. Here it is a Llama with two layers and
without checkpointing.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from fxflops.distributed import RankKind, simulate
from tests.distributed import simulates

pytestmark = [
    simulates,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),  # from torch.distributed itself
]
LAYERS, WIDTH, HEADS, KEY_HEADS, HIDDEN, VOCABULARY, TOKENS = 2, 32, 4, 2, 48, 64, 16
KEYS = KEY_HEADS * WIDTH // HEADS  # the width of keys, which is also the width of values
LAYER = 2 * WIDTH * WIDTH + 2 * WIDTH * KEYS + 3 * WIDTH * HIDDEN  # query and output, key and value, gate, up and down
EMBEDDING = HEAD = VOCABULARY * WIDTH
BF16, F32 = 2, 4

Moved = dict[tuple[str, str], tuple[int, int]]  # calls, and bytes that a rank sends, by collective and mesh dimension


def kinds(mesh: dict[str, int], sequences: int) -> tuple[RankKind, ...]:
    from benchmarks.models.llama_ranks import Layout, Shape, build

    shape = Shape(LAYERS, WIDTH, HEADS, HIDDEN, KEY_HEADS, VOCABULARY)
    layout = Layout("", mesh, sequences, "none", microbatch=1)
    return simulate(partial(build, layout, shape, tokens=TOKENS), mesh, differs=[n for n in mesh if n == "pp"]).kinds


def products(tp: int, layers: int, head: bool) -> tuple[int, int]:
    """Return the FLOPs of the matrix products of one sequence on a rank, forward and backward. A sum over k takes k multiplies and
    k - 1 adds.
    """

    def product(rows: int, k: int, columns: int) -> int:
        return rows * columns * (2 * k - 1)

    def split(inputs: int, outputs: int) -> tuple[int, int]:
        """x[TOKENS, inputs] @ weight.T, then the gradient of x, and the gradient of the weight."""
        backward = product(TOKENS, outputs, inputs) + product(outputs, TOKENS, inputs)
        return product(TOKENS, inputs, outputs), backward

    of_layer = [
        split(WIDTH, WIDTH // tp),  # query
        split(WIDTH, KEYS // tp),  # key
        split(WIDTH, KEYS // tp),  # value
        split(WIDTH // tp, WIDTH),  # output
        split(WIDTH, HIDDEN // tp),  # gate
        split(WIDTH, HIDDEN // tp),  # up
        split(HIDDEN // tp, WIDTH),  # down
    ]
    found = of_layer * layers + [split(WIDTH, VOCABULARY // tp)] * head
    return sum(forward for forward, _ in found), sum(backward for _, backward in found)


def check(kind: RankKind, params: int, tensors: int, macs: int, flops: tuple[int, int], moved: Moved) -> None:
    """Check a rank's parameters and their number of tensors, the MACs of its forward, the FLOPs of its products, and its
    collectives.
    """
    report = kind.report
    assert report.complete
    assert report.total_params == params
    assert report.memory["params"] == F32 * params
    in_optimizer = [moment.live for moment in report.timeline if moment.phase == "optimizer"]
    assert {live["gradients"] for live in in_optimizer} == {F32 * params}
    # AdamW keeps two moments for each parameter, and a step count for each tensor.
    assert {live["optimizer"] for live in in_optimizer} == {2 * F32 * params + F32 * tensors}

    assert (report.total_macs, report.total_backward_macs) == (macs, 2 * macs)
    found: Counter[Any] = Counter()
    for each in report.counted:
        found[each.call.phase, each.call.op == "matmul"] += each.flops
    assert (found["forward", True], found["backward", True]) == flops
    # AdamW, per parameter: decay 1; moments m + (g - m) b 3, v b 1 and + g g b 3; root, quotient and epsilon 3; p + m / r s 3. Plus
    # 1 per tensor for the step count.
    assert found["optimizer", False] == 14 * params + tensors

    sent = {(row.op, row.group): (row.calls, row.sent) for row in kind.collectives if row.op != "recv"}
    received = {(row.op, row.group): (row.calls, row.received) for row in kind.collectives if row.op != "send"}
    assert sent == {name: each for name, each in moved.items() if name[0] != "recv"}
    assert received == {name: each for name, each in moved.items() if name[0] != "send"}


def test_dp_4_tp_2() -> None:
    """One sequence for each dp rank."""
    dp, tp = 4, 2
    (kind,) = kinds({"dp": dp, "tp": tp}, sequences=1)
    assert kind.ranks == dp * tp
    # Weights are sharded over both dimensions. The norms, two per layer and the last one, are sharded over dp alone.
    norms = 2 * LAYERS + 1
    params = (LAYERS * LAYER + EMBEDDING + HEAD) // (dp * tp) + norms * WIDTH // dp
    tensors = LAYERS * 7 + norms + 2
    macs = (TOKENS * (LAYERS * LAYER + HEAD) + LAYERS * 2 * TOKENS * TOKENS * WIDTH) // tp

    layer, root = LAYER // tp + 2 * WIDTH, (EMBEDDING + HEAD) // tp + WIDTH  # elements that FSDP gathers together
    others = TOKENS * WIDTH * BF16 * (tp - 1) // tp  # activations of the other ranks' tokens
    # Forward: the inputs of attention, gate and up in each layer, and of the head. Backward: the gradients of the outputs of each
    # layer and of its attention, and of the embedding.
    gathers = (3 * LAYERS + 1) + (2 * LAYERS + 1)
    # Forward: the embedding's rows, the sums of attention and down. Backward: the gradients of the inputs of head, up, gate,
    # attention.
    scatters = (1 + 2 * LAYERS) + (1 + 3 * LAYERS)
    loss = TOKENS * F32  # per token, each of three: the largest logit, the sum, and the target's logit
    summed = (
        BF16 if torch.__version__ < (2, 15) else F32
    )  # from 2.15 on, FSDP casts gradients before it sums them over replicas
    moved: Moved = {
        # bf16: the root and each layer, in forward and in backward. The last layer stays gathered in between. Three of four parts
        # come from other ranks.
        ("all_gather", "dp"): (5, (2 * root + (2 * LAYERS - 1) * layer) * BF16 * (dp - 1) // dp),
        ("reduce_scatter", "dp"): (1 + LAYERS, (root + LAYERS * layer) * F32 * (dp - 1) // dp),
        ("all_gather", "tp"): (gathers, gathers * others),
        ("reduce_scatter", "tp"): (scatters, scatters * others),
        # Gradients of norms come from a rank's own tokens, so they are summed. A sum sends 2 (n - 1) / n of its bytes.
        ("all_reduce", "tp"): (3 + norms, (3 * loss + norms * WIDTH * summed) * 2 * (tp - 1) // tp),
    }
    check(kind, params, tensors, macs, products(tp, LAYERS, head=True), moved)


def test_pp_2_dp_2_tp_2() -> None:
    """One layer per stage, the embedding on the first stage, the head on the last. Two sequences, each a microbatch, scheduled by
    1F1B.
    """
    pp, dp, tp, micro = 2, 2, 2, 2
    first, last = kinds({"pp": pp, "dp": dp, "tp": tp}, sequences=micro)
    assert [(kind.at["pp"], kind.ranks) for kind in (first, last)] == [(0, dp * tp), (1, dp * tp)]
    layer_macs = (TOKENS * LAYER + 2 * TOKENS * TOKENS * WIDTH) // tp
    head_macs = TOKENS * HEAD // tp
    layer = LAYER // tp + 2 * WIDTH  # elements that FSDP gathers together, once for all microbatches
    others = TOKENS * WIDTH * BF16 * (tp - 1) // tp
    between = (
        micro * (TOKENS // tp) * WIDTH * BF16
    )  # a rank's tokens go to the next stage, and their gradients come back

    root = EMBEDDING // tp
    gathers = micro * (3 + 2 + 1)  # attention, gate, up; gradients of the outputs of down, attention and the embedding
    scatters = micro * (1 + 2 + 3)  # the embedding, attention, down; gradients of the inputs of up, gate and attention
    moved: Moved = {
        ("all_gather", "dp"): (2, (root + layer) * BF16 * (dp - 1) // dp),
        ("reduce_scatter", "dp"): (2, (root + layer) * F32 * (dp - 1) // dp),
        ("all_gather", "tp"): (gathers, gathers * others),
        ("reduce_scatter", "tp"): (scatters, scatters * others),
        ("all_reduce", "tp"): (2, 2 * WIDTH * F32 * 2 * (tp - 1) // tp),
        ("send", "pp"): (micro, between),
        ("recv", "pp"): (micro, between),
    }
    params, tensors = (EMBEDDING + LAYER) // (dp * tp) + 2 * WIDTH // dp, 1 + 7 + 2
    forward, backward = products(tp, 1, head=False)
    check(first, params, tensors, micro * layer_macs, (micro * forward, micro * backward), moved)

    root = HEAD // tp + WIDTH  # including the last norm
    gathers = micro * (3 + 1 + 2)  # attention, gate, up, the head; the gradients of the outputs of down and attention
    scatters = micro * (2 + 1 + 3)  # attention, down; gradients of the inputs of the head, up, gate and attention
    loss = TOKENS * F32
    moved |= {
        ("all_gather", "dp"): (2, (root + layer) * BF16 * (dp - 1) // dp),
        ("reduce_scatter", "dp"): (2, (root + layer) * F32 * (dp - 1) // dp),
        ("all_gather", "tp"): (gathers, gathers * others),
        ("reduce_scatter", "tp"): (scatters, scatters * others),
        ("all_reduce", "tp"): (micro * 3 + 3, (micro * 3 * loss + 3 * WIDTH * F32) * 2 * (tp - 1) // tp),
    }
    params, tensors = (HEAD + LAYER) // (dp * tp) + 3 * WIDTH // dp, 1 + 7 + 3
    forward, backward = products(tp, 1, head=True)
    check(last, params, tensors, micro * (layer_macs + head_macs), (micro * forward, micro * backward), moved)

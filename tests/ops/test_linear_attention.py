"""flash-linear-attention, by the names of its functions: the recurrences of its ``naive.py``, run on a tape that differentiates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fxflops.records import Cost
from tests.library_stand_ins import counts, library, tensors
from tests.tape import Tape, Variable

OPS = "fla.ops"
REST = "scale=None, initial_state=None, output_final_state=False"
L2 = "use_qk_l2norm_in_kernel=False, cu_seqlens=None"
FUNCTIONS = {
    f"{OPS}.linear_attn.chunk:chunk_linear_attn": f"q, k, v, {REST}, normalize=True, cu_seqlens=None",
    f"{OPS}.linear_attn.fused_recurrent:fused_recurrent_linear_attn": f"q, k, v, {REST}, reverse=False, normalize=False, cu_seqlens=None",
    f"{OPS}.retention.chunk:chunk_retention": f"q, k, v, {REST}, cu_seqlens=None, **kwargs",
    f"{OPS}.simple_gla.chunk:chunk_simple_gla": f"q, k, v, g=None, g_gamma=None, {REST}, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, **kwargs",
    f"{OPS}.gla.chunk:chunk_gla": f"q, k, v, g, {REST}, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None",
    f"{OPS}.gla.fused_recurrent:fused_recurrent_gla": f"q, k, v, gk=None, gv=None, {REST}, reverse=False, state_v_first=False, cu_seqlens=None, **kwargs",
    f"{OPS}.delta_rule.chunk:chunk_delta_rule": f"q, k, v, beta, {REST}, {L2}, cu_seqlens_cpu=None, **kwargs",
    f"{OPS}.gated_delta_rule.chunk:chunk_gated_delta_rule": f"q, k, v, g, beta, {REST}, {L2}, **kwargs",
    f"{OPS}.gated_delta_rule.fused_recurrent:fused_recurrent_gated_delta_rule": f"q, k, v, g=None, gk=None, gv=None, beta=None, {REST}, {L2}, **kwargs",
    f"{OPS}.kda.chunk:chunk_kda": f"q, k, v, g, beta, {REST}, {L2}, **kwargs",
}  # fmt: skip
LINEAR, RECURRENT, RETENTION, SIMPLE, GLA, GLA_RECURRENT, DELTA, GATED, GATED_RECURRENT, KDA = FUNCTIONS
# batch, length, heads, key width, value width
SHAPES = [(1, 1, 1, 1, 1), (2, 3, 2, 4, 4), (1, 5, 3, 2, 6), (3, 2, 1, 5, 3), (2, 4, 4, 3, 2)]


@pytest.fixture(scope="module")
def fla() -> Iterator[Any]:
    with library(FUNCTIONS) as find:
        yield find


def unit(tape: Tape, x: Variable) -> Variable:
    """x * rsqrt(sum of x * x + eps). With X = x * r its gradient is (grad - X * sum of grad * X) * r."""
    rows, k = x.size // x.shape[-1], x.shape[-1]
    return tape.pointwise_rows(
        x, Cost(muls=2 * rows * k, adds=rows * k, others=rows), Cost(muls=3 * rows * k, adds=rows * (k - 1) + rows * k)
    )


def recurrence(tape: Tape, b: int, t: int, h: int, k: int, v: int, decay: str = "", delta: bool = False, l2: bool = False, normalize: bool = False) -> list[Variable]:  # fmt: skip
    """S = g S + k v', o = S' (scale * q). The delta rule replaces v by (v - S' k) times beta."""
    state, fixed = tape.leaf(b, h, k, v, needs=False), tape.leaf(1, h, 1, 1, needs=False)
    keys: Variable | None = None
    outs = []
    for _ in range(t):
        query, key, value = tape.leaf(b, h, k), tape.leaf(b, h, k), tape.leaf(b, h, v)
        if l2:
            query, key = unit(tape, query), unit(tape, key)
        query = tape.scale(query)
        if decay == "fixed":
            state = tape.multiply(state, fixed)
        elif decay:
            g = tape.exp(tape.leaf(b, h, *({"head": (1, 1), "keys": (k, 1), "values": (1, v)}[decay])))
            state = tape.multiply(state, g)
        if delta:
            value = tape.add(value, tape.contract("bhkv,bhk->bhv", state, key))
            value = tape.multiply(value, tape.leaf(b, h, 1))
        state = tape.accumulate(state, "bhk,bhv->bhkv", key, value)
        out = tape.contract("bhkv,bhk->bhv", state, query)
        if normalize:
            keys = tape.add(key, tape.leaf(b, h, k, needs=False) if keys is None else keys)
            divisor = tape.contract("bhk,bhk->bh", query, keys)
            divisor = tape.add(divisor, tape.leaf(b, h, needs=False))
            out = tape.divide(out, tape.view(divisor, b, h, 1))
        outs.append(out)
    return outs


@pytest.mark.parametrize(
    ("name", "options", "decay", "others"),
    [
        (RECURRENT, {}, "", {}),
        (LINEAR, {}, "", {"normalize": False}),
        (RETENTION, {"decay": "fixed"}, "", {}),
        (SIMPLE, {"decay": "head"}, "g", {}),
        (GLA, {"decay": "keys"}, "g", {}),
        (GLA_RECURRENT, {"decay": "keys"}, "gk", {}),
        (GLA_RECURRENT, {"decay": "values"}, "gv", {}),
        (DELTA, {"delta": True}, "", {}),
        (DELTA, {"delta": True, "l2": True}, "", {"use_qk_l2norm_in_kernel": True}),
        (GATED, {"delta": True, "decay": "head"}, "g", {}),
        (GATED_RECURRENT, {"delta": True, "decay": "head"}, "g", {}),
        (KDA, {"delta": True, "decay": "keys"}, "g", {}),
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_kernel_is_its_recurrence(fla: Any, shape: tuple[int, ...], name: str, options: dict[str, Any], decay: str, others: dict[str, Any]) -> None:  # fmt: skip
    b, t, h, k, v = shape
    tape = Tape()
    outs = recurrence(tape, *shape, **options)
    widths = {"head": (), "keys": (k,), "values": (v,)}
    shapes: dict[str, Any] = {"q": (b, t, h, k), "k": (b, t, h, k), "v": (b, t, h, v)}
    if decay:
        shapes[decay] = (b, t, h, *widths[options["decay"]])
    if options.get("delta"):
        shapes["beta"] = (b, t, h)
    counted = counts(fla(name), tensors(shapes), **others)
    assert counted.out[0] == (b, t, h, v)
    assert counted.forward == tape.forward
    assert counted.backward == tape.backward(*outs)
    assert counted.forward.macs == (2 + bool(options.get("delta"))) * b * t * h * k * v


@pytest.mark.parametrize("shape", SHAPES)
def test_normalized_by_the_keys_so_far(fla: Any, shape: tuple[int, ...]) -> None:
    b, t, h, k, v = shape
    tape = Tape()
    recurrence(tape, *shape, normalize=True)
    given = tensors({"q": (b, t, h, k), "k": (b, t, h, k), "v": (b, t, h, v)})
    counted = counts(fla(LINEAR), given, output_final_state=True)
    assert counted.forward == tape.forward
    plain = counts(fla(RECURRENT), given)
    assert counted.backward.macs == plain.backward.macs
    assert counted.backward.flops > plain.backward.flops


def test_fewer_heads_of_keys_share_their_gradients(fla: Any) -> None:
    """Two query and key heads serve six value heads: queries are scaled before they are shared, and gradients add up three by three."""
    b, t, g, h, k, v = 2, 3, 2, 6, 4, 5
    given = tensors({"q": (b, t, g, k), "k": (b, t, g, k), "v": (b, t, h, v), "g": (b, t, h), "beta": (b, t, h)})
    shared = counts(fla(GATED), given)
    own = counts(fla(GATED), given | tensors({"q": (b, t, h, k), "k": (b, t, h, k)}))
    less = b * t * (h - g) * k
    assert own.forward.muls - shared.forward.muls == less  # the scale
    assert shared.backward == own.backward.plus(Cost(muls=-less, adds=2 * less))


def test_states_of_packed_sequences(fla: Any) -> None:
    given = tensors({"q": (1, 7, 2, 4), "k": (1, 7, 2, 4), "v": (1, 7, 2, 4)}) | {"cu_seqlens": torch.tensor([0, 3, 7])}
    counted = counts(fla(RETENTION), given, output_final_state=True)
    assert counted.out == ((1, 7, 2, 4), (2, 2, 4, 4))

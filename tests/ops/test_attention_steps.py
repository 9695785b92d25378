"""Shape rules that follow the steps of a call (attention, einsum) against the CPU: they must give its result, and the peak of
live bytes found from the storages of the operators that torch dispatches."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from fxflops.ops._rules import RULES, Result
from fxflops.ops.shapes import shape_of
from fxflops.records import Operation
from fxflops.records.tensors import spec_of
from tests.kinds.live_bytes import Live
from tests.ops.draws import FLOATS, FUNCTION, Draw, Made, draws, tensor
from tests.ops.test_copies import placed

EXAMPLES, QUERY_KEY_VALUE = 300, 3


class LiveInside(Live):
    """Also see what the softmax of masked scores makes inside one operator, as the CPU's allocator shows it: ``eq`` of the scores,
    ``all`` of each row, and the zero that is written into rows where the mask keeps nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten._safe_softmax.default:
            return super().__torch_dispatch__(func, types, args, kwargs)
        scores, dim, *_ = args
        with self:
            out = scores.softmax(dim)
            is_left_out = scores == float("-inf")
            empty_rows = is_left_out.all(dim, keepdim=True)
            return out.masked_fill_(empty_rows, torch.zeros((), dtype=out.dtype))


def told(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result | None:
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    ran = Operation("", target, spec_of(args), spec_of(kwargs), None)
    return shape_of(RULES[target], ran, [(t.shape, t.stride()) for t in tensors], "cpu")


def check(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Compare the rule with a call. Return whether the rule had an answer, or None if the call raises."""
    rule = told(target, args, kwargs)
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    try:
        is_masked = target is F.scaled_dot_product_attention and len(tensors) > QUERY_KEY_VALUE
        with torch.no_grad(), (LiveInside if is_masked else Live)(tensors) as live:
            before = live.live
            out = target(*args, **kwargs)
    except RuntimeError:
        assert rule is None, (args, kwargs)
        return None
    if rule is None:
        return False
    shown = (
        [(t.shape, t.stride(), t.dtype) for t in tensors],
        [each for each in args if not isinstance(each, torch.Tensor)],
        kwargs.keys(),
    )
    assert (tuple(rule.out), rule.out.dtype, rule.strides) == (tuple(out.shape), out.dtype, out.stride()), shown
    assert out.untyped_storage().nbytes() == rule.out.nbytes, shown
    peak = sum(spec.nbytes for spec in rule.alive_at_peak) or rule.out.nbytes
    assert peak == live.peak - before, shown
    return True


def equation(draw: random.Random) -> str:
    letters = draw.sample("abcdEXyz", draw.randint(2, 6))
    left = draw.sample(letters, draw.randint(1, min(4, len(letters))))
    right = draw.sample(letters, draw.randint(1, min(4, len(letters))))
    both = [letter for letter in letters if letter in left or letter in right]
    result = draw.sample(both, draw.randint(0, len(both)))
    if draw.random() < 0.6:  # both operands have the summed letters
        result = [letter for letter in both if letter not in left or letter not in right or letter in result]
        draw.shuffle(result)
    terms = ["".join(left), "".join(right)]
    out = "".join(result)
    if draw.random() < 0.2:
        terms, out = [f"...{term}" for term in terms], f"...{out}"
    return ",".join(terms) + (f"->{out}" if draw.random() < 0.9 else "")


def operands(draw: random.Random, written: str) -> list[torch.Tensor]:
    sizes = {letter: draw.choice([1, 2, 3, 4, 5]) for letter in written}
    tensors = []
    for term in written.partition("->")[0].split(","):
        batch = [draw.choice([1, 3]) for _ in range(draw.randint(0, 2))] if "..." in term else []
        own = [sizes[letter] if draw.random() < 0.95 else 1 for letter in term.replace(".", "")]
        tensors.append(placed(draw, [*batch, *own]))
    return tensors


def test_einsum() -> None:
    draw, answers = random.Random(1), []
    for _ in range(EXAMPLES):
        written = equation(draw)
        answers.append(check(torch.einsum, (written, *operands(draw, written)), {}))
    known = [answer for answer in answers if answer is not None]
    assert sum(known) > 0.35 * len(known) > 0


def attended(draw: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    batch = [draw.choice([1, 2, 3]) for _ in range(draw.choice([1, 2, 2, 2]))]
    n, s, d = (draw.choice([1, 2, 5, 8]) for _ in range(3))
    v = d if draw.random() < 0.8 else d + 3
    dtype = draw.choice([torch.float32] * 4 + [torch.float64, torch.bfloat16, torch.float16])
    query, key, value = (placed(draw, sizes, dtype) for sizes in ([*batch, n, d], [*batch, s, d], [*batch, s, v]))
    if draw.random() < 0.2:  # transposed, as in maxvit
        query, key, value = (
            placed(draw, [*t.shape[:-2], *t.shape[:-3:-1]], dtype).transpose(-1, -2) for t in (query, key, value)
        )
    kwargs: dict[str, Any] = {}
    if draw.random() < 0.5:
        broadcast = [size if draw.random() < 0.7 else 1 for size in batch]
        kind = draw.choice([dtype, dtype, torch.bool, torch.float64])
        kwargs["attn_mask"] = placed(draw, draw.choice([[*broadcast, n, s], [n, s], [*broadcast, 1, s]]), kind)
    elif draw.random() < 0.4:
        kwargs["is_causal"] = True
    if draw.random() < 0.2:
        kwargs["scale"] = draw.choice([0.5, -0.5, None])
    return (query, key, value), kwargs


@pytest.mark.parametrize("backend", ["any", "math"])
def test_attention(backend: str) -> None:
    draw, answers = random.Random(2), []
    allowed = [torch.nn.attention.SDPBackend.MATH] + [torch.nn.attention.SDPBackend.FLASH_ATTENTION] * (
        backend == "any"
    )
    with torch.nn.attention.sdpa_kernel(allowed):
        for _ in range(EXAMPLES):
            args, kwargs = attended(draw)
            answers.append(check(F.scaled_dot_product_attention, args, kwargs))
    known = [answer for answer in answers if answer is not None]
    assert sum(known) > 0.5 * len(known) > 0


@draws("einsum")
def multiplied(draw: Draw, target: Any) -> Made:
    written = equation(random.Random(draw(st.integers(0, 10**6))))
    sizes = {letter: draw(st.integers(1, 4)) for letter in written}
    left, right = (
        [sizes[letter] for letter in term if letter != "."] for term in written.partition("->")[0].split(",")
    )
    dtype = draw(st.sampled_from(FLOATS))
    return (written, tensor(draw, left, dtype), tensor(draw, right, dtype)), {}


@draws("attention", of=FUNCTION)
def attention(draw: Draw, target: Any) -> Made:
    batch, dtype = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)), draw(st.sampled_from(FLOATS))
    n, s, d = (draw(st.integers(1, 5)) for _ in range(3))
    query, *others = (tensor(draw, (*batch, size, d), dtype) for size in (n, s, s))
    return (query, *others), draw(
        st.sampled_from([{}, {"is_causal": True}, {"attn_mask": tensor(draw, (n, s), dtype)}])
    )

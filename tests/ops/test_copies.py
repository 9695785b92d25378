"""Shape rules of copying ops, on CPU tensors: the CPU's kernels decide between a copy, a view and the input itself."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from fxflops.ops._rules import RULES
from fxflops.ops.shapes import shape_of
from fxflops.records import Operation
from fxflops.records.tensors import spec_of
from tests.ops.draws import DTYPES, META, Draw, Made, dims, draws, tensor


def placed(draw: random.Random, sizes: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A CPU tensor with random strides: permuted, sliced, expanded or channels-last."""
    order = draw.sample(range(len(sizes)), len(sizes))
    wider = [sizes[dim] + draw.choice([0, 0, 0, 1, 2]) for dim in order]
    whole = torch.zeros(wider, dtype=dtype).permute([order.index(dim) for dim in range(len(sizes))])
    x = whole[tuple(slice(size) for size in sizes)]
    if draw.random() < 0.2:
        at = draw.randrange(len(sizes))
        x = x.narrow(at, 0, min(1, sizes[at])).expand(sizes)
    if len(sizes) == 4 and draw.random() < 0.2:
        x = x.contiguous(memory_format=torch.channels_last)
    return x


def sizes_of(draw: random.Random) -> list[int]:
    return [
        draw.choice([1, 1, 2, 3, 4, 6, 0] if draw.random() < 0.1 else [1, 2, 3, 4, 6])
        for _ in range(draw.randint(1, 5))
    ]


def split_at_random(draw: random.Random, count: int) -> list[int]:
    """Random sizes with ``count`` elements."""
    sizes = []
    for _ in range(draw.randint(1, 4)):
        factor = draw.choice([f for f in (1, 2, 3, 4, 6) if count % f == 0])
        sizes.append(factor)
        count //= factor
    sizes.insert(draw.randrange(len(sizes) + 1), count)
    return sizes


def merged(draw: random.Random, sizes: list[int]) -> list[int]:
    """Merge two neighboring sizes."""
    at = draw.randrange(len(sizes))
    return [*sizes[:at], torch.Size(sizes[at : at + 2]).numel(), *sizes[at + 2 :]]


def case(target: Any, draw: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    sizes = sizes_of(draw)
    x = placed(draw, sizes)
    if target in (torch.reshape, torch.Tensor.reshape):
        new = draw.choice([split_at_random, lambda d, n: merged(d, sizes)])(draw, x.numel())
        if x.numel() and draw.random() < 0.3:
            new[draw.randrange(len(new))] = -1
        return (x, *new) if target is torch.Tensor.reshape and draw.random() < 0.5 else (x, tuple(new)), {}
    if target in (torch.flatten, torch.Tensor.flatten):
        return (x, *[draw.randint(-3, 3) for _ in range(draw.randint(0, 2))]), {}
    if target is F.pad:
        return (
            x,
            [draw.choice([0, 0, 1, -1]) for _ in range(2 * draw.randint(1, len(sizes)))]
            if draw.random() < 0.5
            else [0, 0],
        ), {}
    if target is torch.Tensor.__getitem__:
        index = torch.zeros(sizes_of(draw)[:2], dtype=draw.choice([torch.int64] * 3 + [torch.int32, torch.bool]))
        return (x, draw.choice([index, index, 0, slice(1), (0, index)])), {}
    if target in (torch.index_select, torch.Tensor.index_select):
        return (x, draw.randint(-len(sizes), len(sizes)), torch.zeros(draw.randint(0, 4), dtype=torch.int64)), {}
    formats = (
        [torch.contiguous_format, torch.channels_last] if target is torch.Tensor.contiguous else [torch.preserve_format]
    )
    return (x,), draw.choice([{}, {"memory_format": draw.choice(formats)}])


COPIES = [target for target, rule in RULES.items() if rule.function.__module__ == "fxflops.ops.copies"]


@pytest.mark.parametrize("target", COPIES)
def test_a_rule_says_what_the_cpu_does(target: Any) -> None:
    draw, told, copies = random.Random(0), 0, 0
    for _ in range(600):
        args, kwargs = case(target, draw)
        x = args[0]
        lying = [(t.shape, t.stride()) for t in args if isinstance(t, torch.Tensor)]
        lying += (
            [(t.shape, t.stride()) for t in args[-1] if isinstance(t, torch.Tensor)] if type(args[-1]) is tuple else []
        )
        rule = shape_of(RULES[target], Operation("", target, spec_of(args), spec_of(kwargs), None), lying, "cpu")
        try:
            out = target(*args, **kwargs)
        except (RuntimeError, IndexError, TypeError):
            assert rule is None or rule.out.numel(), (
                args,
                kwargs,
            )  # an index out of range, which only the kernel reads
            continue
        is_copy = out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() and out.numel() > 0
        copies += is_copy
        if rule is None:
            continue
        told += is_copy
        if rule.strides is None:
            assert out is x, (args, kwargs)
            continue
        facts = tuple(out.shape), out.dtype, out.stride(), out.untyped_storage().nbytes(), is_copy
        assert (tuple(rule.out), rule.out.dtype, rule.strides, rule.out.nbytes, True) == facts, (
            x.shape,
            x.stride(),
            args[1:],
        )
    assert told > 0.1 * copies > 0


@draws("reshape", "flatten", "contiguous", "clone")
def moved(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 1, 4), draw(st.sampled_from(DTYPES)))
    if target.__name__ == "flatten" and draw(st.booleans()):
        x = x.transpose(0, -1)  # otherwise it is mostly a view, for which the rule has no answer
    if "reshape" in target.__name__:
        x = tensor(draw, draw(st.lists(st.integers(2, 4), min_size=2, max_size=4)), x.dtype)
        at = draw(st.integers(0, x.ndim - 1))
        return (x.transpose(0, -1), draw(st.sampled_from([[-1], [*x.shape[:at], -1, *x.shape[at + 2 :]]]))), {}
    return (x,), {}


@draws("pad")
def padded(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 1, 4), draw(st.sampled_from(DTYPES)))
    return (x, draw(st.lists(st.integers(-1, 2), min_size=2, max_size=6))), {}


@draws("rows", "index_select")
def rows(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 1, 4), draw(st.sampled_from(DTYPES)), odd=draw(st.booleans()))
    index = torch.empty(draw(st.integers(1, 4)), dtype=torch.int64, device=META)
    return (x, index) if target is torch.Tensor.__getitem__ else (x, draw(st.integers(-2, 2)), index), {}


@pytest.mark.parametrize(
    ("pad", "sizes"),
    [([1, 2], (3, 7)), ([1, 0, 0, 2], (5, 5)), ([0, 0], (3, 4)), ([1], None), ([1, -5], None), ([-1, 0], None)],
)
def test_sizes_of_padding(pad: list[int], sizes: tuple[int, ...] | None) -> None:
    x = torch.zeros(3, 4)
    rule = shape_of(RULES[F.pad], Operation("", F.pad, spec_of((x, pad)), {}, None), [(x.shape, x.stride())], "cpu")
    assert (rule and tuple(rule.out)) == sizes

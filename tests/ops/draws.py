"""Random arguments for the targets of shape rules. Each family's arguments are drawn in that family's test, under :func:`draws`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fxflops.ops._rules import RULES

META = torch.device("meta")
FLOATS = [*[torch.float32] * 4, torch.float16, torch.bfloat16, torch.float64, torch.float64]
DTYPES = [*FLOATS, *FLOATS, torch.int64, torch.bool, torch.complex64]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
WAYS = ["plain"] * 4 + ["permuted", "sliced", "first", "later", "expanded", "last"]
Draw = Callable[..., Any]
Made = tuple[tuple[Any, ...], dict[str, Any]]


def dims(draw: Draw, least: int = 1, most: int = 4) -> list[int]:
    """Random sizes; now and then one of them is 0."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=least, max_size=most))
    if sizes and not draw(st.integers(0, 19)):
        sizes[draw(st.integers(0, len(sizes) - 1))] = 0
    return sizes


def tensor(draw: Draw, sizes: Any, dtype: torch.dtype = torch.float32, odd: bool = True) -> torch.Tensor:
    """A tensor of these sizes; with ``odd`` it is not always contiguous."""
    sizes = tuple(sizes)
    way = draw(st.sampled_from(WAYS)) if odd else "plain"
    if way == "permuted" and sizes:
        order = draw(st.permutations(range(len(sizes))))
        lying = torch.empty([sizes[dim] for dim in order], dtype=dtype, device=META)
        return lying.permute([order.index(dim) for dim in range(len(sizes))])
    if way == "last" and len(sizes) in LAST:
        return torch.empty(sizes, dtype=dtype, device=META, memory_format=LAST[len(sizes)])
    if way == "sliced" and sizes:
        return torch.empty(*sizes[:-1], sizes[-1] * 2, dtype=dtype, device=META)[..., ::2]
    if way == "first" and len(sizes) > 1:
        return torch.empty(sizes[0], sizes[1] + 2, *sizes[2:], dtype=dtype, device=META)[:, : sizes[1]]
    if way == "later" and sizes:
        return torch.empty(sizes[0] + 1, *sizes[1:], dtype=dtype, device=META)[1:]
    if way == "expanded" and sizes:
        at = draw(st.integers(0, len(sizes) - 1))
        return torch.empty(*sizes[:at], 1, *sizes[at + 1 :], dtype=dtype, device=META).expand(sizes)
    return torch.empty(sizes, dtype=dtype, device=META)


def partner(draw: Draw, other: torch.Tensor) -> torch.Tensor:
    """A tensor that usually broadcasts with another."""
    sizes = [size if draw(st.integers(0, 3)) else 1 for size in other.shape][draw(st.integers(0, other.ndim)) :]
    if not draw(st.integers(0, 2)):
        sizes = list(other.shape)
    if not draw(st.integers(0, 15)):
        sizes = [size + 1 for size in sizes]
    dtype = other.dtype if draw(st.integers(0, 7)) else draw(st.sampled_from(DTYPES))
    return tensor(draw, sizes, dtype)


MODULE, FUNCTION, OTHER = "module", "function of F", "any other"
Case = Callable[[Draw, Any], Made]
CASES: dict[tuple[str, str], Case] = {}
KINDS: dict[Case, Callable[[Any], object]] = {}
"""For cases whose arguments do not depend on the target itself: a function of the target that they depend on."""


def same(target: Any) -> None:
    """Give all targets the same kind, for arguments that do not depend on the target."""


def draws(*rules: str, of: str = OTHER, kind: Callable[[Any], object] | None = None) -> Callable[[Case], Case]:
    """Use the decorated function to draw arguments for every target of these rules (named without ``_shape``).

    Modules, or functions of F, may have a case of their own. Targets of one ``kind`` share their arguments, which are drawn
    only once.
    """

    def enter(case: Case) -> Case:
        CASES.update({(rule, of): case for rule in rules})
        if kind is not None:
            KINDS[case] = kind
        return case

    return enter


@cache
def enter_all() -> None:
    """Import the test files, which register their cases."""
    for test in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"tests.ops.{test.stem}")


def case_of(target: Any) -> Case:
    """Return the function that draws a target's arguments."""
    enter_all()
    rule, kind = rule_of(target).__name__.removesuffix("_shape"), OTHER
    if isinstance(target, type):
        kind = MODULE
    elif any(target is value for value in vars(F).values()) and target is not F.gelu:
        kind = FUNCTION
    return CASES.get((rule, kind)) or CASES[rule, OTHER]


def rule_of(target: Any) -> Any:
    """Return a target's shape rule."""
    return RULES[target].function


EXAMPLES = 30
_shared: dict[tuple[Case, object], list[Made]] = {}


def examples_of(target: Any) -> list[Made]:
    """Return the arguments drawn for a target. They are the same in each run, and targets of one kind get the same tensors."""
    case = case_of(target)
    if case not in KINDS:
        return _drawn(case, target)
    key = case, KINDS[case](target)
    if key not in _shared:
        _shared[key] = _drawn(case, target)
    return _shared[key]


def _drawn(case: Case, target: Any) -> list[Made]:
    made: list[Made] = []

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def draw_one(data: Any) -> None:
        made.append(case(data.draw, target))

    draw_one()
    return made


@draws("same", "in_place", kind=same)
def unary(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 0), draw(st.sampled_from(DTYPES)))
    return (x,), {}


@draws("same", "dropout", "softmax", "identity", of=MODULE)
def module(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 2), draw(st.sampled_from(DTYPES)))
    given: tuple[Any, ...] = {nn.Threshold: (0.1, 2.0), nn.Softmax: (-1,), nn.LogSoftmax: (0,)}.get(target, ())
    made = target(*given)
    if hasattr(made, "inplace"):
        made.inplace = draw(st.booleans())
    return (made.train(draw(st.booleans())), x), {}


@draws("conv", "conv_transpose")
def convolved(draw: Draw, target: Any) -> Made:
    count, transposed = int(str(target.__name__)[-2]), "ranspose" in target.__name__
    groups, kernel = (
        draw(st.sampled_from([1, 1, 2, 3])),
        draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)),
    )
    i, o = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    x = tensor(
        draw,
        (draw(st.integers(1, 2)), i, *(draw(st.integers(1, 9)) for _ in range(count))),
        draw(st.sampled_from(DTYPES)),
    )
    each = st.one_of(st.integers(1, 3), st.lists(st.integers(1, 3), min_size=count, max_size=count).map(tuple))
    kwargs: dict[str, Any] = {"groups": groups, "stride": draw(each), "dilation": draw(st.sampled_from([1, 1, 2]))}
    paddings = [0, 1, (1,) * count] if transposed else [0, 1, (1,) * count, "valid", "same"]
    kwargs["padding"] = draw(st.sampled_from(paddings))
    if kwargs["padding"] == "same":
        kwargs["stride"] = 1
    if transposed:
        kwargs["output_padding"] = draw(st.sampled_from([0, 0, 1]))
    bias = draw(st.booleans())
    if isinstance(target, type):
        own = torch.float32 if x.dtype in (torch.int64, torch.bool) else x.dtype
        made = target(i, o, tuple(kernel), bias=bias, device=META, dtype=own, **kwargs)
        if count == 2 and not draw(st.integers(0, 3)):
            made = made.to(memory_format=torch.channels_last)
        return (made, x), {}
    weight = tensor(draw, (i, o // groups, *kernel) if transposed else (o, i // groups, *kernel), x.dtype)
    return (x, weight, torch.empty(o, dtype=x.dtype, device=META) if bias else None), kwargs


@draws("batch_norm", "group_norm")
def normalized(draw: Draw, target: Any) -> Made:
    """Batch and group norms, with two or four channels."""
    count = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4, 4), nn.BatchNorm3d: (5, 5)}.get(target)
    count = count or ((3, 5) if draw(st.integers(0, 4)) else (2, 2))
    c, training = draw(st.sampled_from([2, 4])), draw(st.booleans())
    sizes = dims(draw, count[0], count[1] + (not draw(st.integers(0, 9))))
    if draw(st.integers(0, 9)):
        sizes[1] = c
    x = tensor(draw, sizes, draw(st.sampled_from(DTYPES)), odd=draw(st.booleans()))
    own = x.dtype if x.dtype.is_floating_point and draw(st.integers(0, 3)) else torch.float32
    weights = [torch.empty(c, dtype=own, device=META)] * 2
    if target is nn.GroupNorm:
        return (nn.GroupNorm(2, c, affine=draw(st.booleans()), device=META, dtype=own), x), {}
    if target is F.group_norm:
        return (x, 2, *draw(st.sampled_from([(), weights]))), {}
    if target is F.batch_norm:
        statistics = [None, None] if training and draw(st.booleans()) else weights
        return (x, *statistics), {
            **dict(zip(("weight", "bias"), draw(st.sampled_from([(), weights])), strict=False)),
            "training": training,
        }
    made = target(c, affine=draw(st.booleans()), track_running_stats=draw(st.booleans()), device=META)
    return (made.train(training), x), {}

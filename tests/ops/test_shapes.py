"""Shape rules against the kernels on meta, which do not know them: shape, dtype, strides, bytes and place in the storage, and
whether it is the input or shares its storage."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fxflops.ops  # noqa: F401
from fxflops.model.pytree import tensors_in
from fxflops.ops._rules import RULES
from fxflops.ops.shapes import rule_for, shape_of
from fxflops.records import Operation, spec_of
from fxflops.torch_internals import TorchDispatchMode
from fxflops.trace.leaves import settings_of

META = torch.device("meta")
FLOATS = [*[torch.float32] * 4, torch.float16, torch.bfloat16, torch.float64, torch.float64]
DTYPES = [*FLOATS, *FLOATS, torch.int64, torch.bool, torch.complex64]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
WAYS = ["plain"] * 4 + ["permuted", "sliced", "first", "later", "expanded", "last"]
Draw = Callable[..., Any]
Made = tuple[tuple[Any, ...], dict[str, Any]]


def dims(draw: Draw, least: int = 1, most: int = 4) -> list[int]:
    """Sizes, of which now and then one is 0."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=least, max_size=most))
    if sizes and not draw(st.integers(0, 19)):
        sizes[draw(st.integers(0, len(sizes) - 1))] = 0
    return sizes


def tensor(draw: Draw, sizes: Any, dtype: torch.dtype = torch.float32, odd: bool = True) -> torch.Tensor:
    """A tensor of these sizes; with ``odd`` not always contiguous."""
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
    """A tensor that broadcasts with another, mostly."""
    sizes = [size if draw(st.integers(0, 3)) else 1 for size in other.shape][draw(st.integers(0, other.ndim)) :]
    if not draw(st.integers(0, 2)):
        sizes = list(other.shape)
    if not draw(st.integers(0, 15)):
        sizes = [size + 1 for size in sizes]
    dtype = other.dtype if draw(st.integers(0, 7)) else draw(st.sampled_from(DTYPES))
    return tensor(draw, sizes, dtype)


def unary(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 0), draw(st.sampled_from(DTYPES)))
    return (x,), {}


def activation(draw: Draw, target: Any) -> Made:
    args, _ = unary(draw, target)
    return args, draw(st.sampled_from([{}, {"inplace": False}, {"inplace": True}]))


def positional(draw: Draw, target: Any) -> Made:
    """Settings before ``inplace``, by position."""
    (x,), _ = unary(draw, target)
    before = (0.5, 0.75) if rule_of(target).__name__ == "bounded" else (0.5,)
    return (x, *before, draw(st.booleans())), {}


def module(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 2), draw(st.sampled_from(DTYPES)))
    given: tuple[Any, ...] = {nn.Threshold: (0.1, 2.0), nn.Softmax: (-1,), nn.LogSoftmax: (0,)}.get(target, ())
    made = target(*given)
    if hasattr(made, "inplace"):
        made.inplace = draw(st.booleans())
    return (made.train(draw(st.booleans())), x), {}


def clamped(draw: Draw, target: Any) -> Made:
    (x,), _ = unary(draw, target)
    bounds = draw(st.sampled_from([(0,), (0.5,)]))
    if target.__name__ in ("clamp", "clip"):
        bounds = draw(st.sampled_from([(0,), (0, 1), (None, 2.5), (None, None), (torch.ones(x.shape, device=META),)]))
    return (x, *bounds), {}


def dropped(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw), draw(st.sampled_from(DTYPES)))
    return (x, draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])), draw(st.booleans()), draw(st.booleans())), {}


def softmaxed(draw: Draw, target: Any) -> Made:
    (x,), _ = unary(draw, target)
    return (x, draw(st.integers(-4, 3))), draw(st.sampled_from([{}, {"dtype": torch.float32}]))


def binary(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 0), draw(st.sampled_from(DTYPES)))
    y = partner(draw, x)
    number = draw(st.sampled_from([2, 0.5, True, 1j]))
    if target.__name__ in ("maximum", "minimum", "atan2"):
        return draw(st.sampled_from([(x, y), (y, x)])), {}
    return draw(st.sampled_from([(x, y), (y, x), (x, y), (x, number)])), {}


def by_a_number(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 0), draw(st.sampled_from(DTYPES)))
    return (x, draw(st.sampled_from([2, 0.5, 1.5, partner(draw, x)]))), {}


def ternary(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw), draw(st.sampled_from(DTYPES)))
    return (x, partner(draw, x), partner(draw, x)), {}


def chosen(draw: Draw, target: Any) -> Made:
    (x, y, z), _ = ternary(draw, target)
    condition = tensor(draw, z.shape, torch.bool if draw(st.integers(0, 5)) else torch.float32)
    return draw(st.sampled_from([(condition, x, y), (condition, y, x), (condition, x, 0.5)])), {}


def filled(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw), draw(st.sampled_from(DTYPES)))
    return (x, tensor(draw, partner(draw, x).shape, torch.bool), draw(st.sampled_from([0, -math.inf]))), {}


def linear(draw: Draw, target: Any) -> Made:
    *batch, i, o = dims(draw, 2, 5)
    dtype = draw(st.sampled_from(DTYPES))
    x = tensor(draw, (*batch, i + (not draw(st.integers(0, 15)))), dtype)
    if not draw(st.integers(0, 7)):
        x = x.as_strided(x.shape, [7 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)])
    if isinstance(target, type):
        own = torch.float32 if dtype in (torch.int64, torch.bool) else dtype
        return (target(i, o, bias=draw(st.booleans()), device=META, dtype=own), x), {}
    bias = draw(st.sampled_from([(), (torch.empty(o, dtype=dtype, device=META),)]))
    return (x, tensor(draw, (o, i), dtype), *bias), {}


def contracted(draw: Draw, target: Any) -> Made:
    least = {"bmm": 3, "mm": 2}.get(target.__name__)
    *batch, m, k = dims(draw, least or 1, least or 5) if least else dims(draw, 2, 5)
    dtype, n = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 5))
    other = (
        (*batch, k, n)
        if least or draw(st.booleans())
        else draw(st.sampled_from([(k, n), (k,), (1, k, n), (2, k + 1, n)]))
    )
    return (tensor(draw, (*batch, m, k), dtype), tensor(draw, other, dtype)), {}


def contracted_and_added(draw: Draw, target: Any) -> Made:
    *batch, m, k, n = dims(draw, 3, 3) if target.__name__ == "addmm" else dims(draw, 4, 4)
    given = draw(st.sampled_from([(n,), (*batch, m, n), (1, n), (m + 1, n)]))
    dtype = draw(st.sampled_from(DTYPES))
    return tuple(tensor(draw, sizes, dtype) for sizes in (given, (*batch, m, k), (*batch, k, n))), {}


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


def normalized(draw: Draw, target: Any) -> Made:
    """Batch and group norms, of two features or four."""
    count = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4, 4), nn.BatchNorm3d: (5, 5)}.get(target, (2, 5))
    c, training = draw(st.sampled_from([2, 4])), draw(st.booleans())
    sizes = dims(draw, count[0], count[1] + (not draw(st.integers(0, 9))))
    if draw(st.integers(0, 9)):
        sizes[1] = c
    x = tensor(draw, sizes, draw(st.sampled_from(DTYPES)))
    weights = [torch.empty(c, device=META)] * 2
    if target is nn.GroupNorm:
        return (nn.GroupNorm(2, c, affine=draw(st.booleans()), device=META), x), {}
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


def layer_normed(draw: Draw, target: Any) -> Made:
    sizes = dims(draw, 1, 5)
    x = tensor(draw, sizes, draw(st.sampled_from(DTYPES)))
    last = sizes[-draw(st.integers(1, len(sizes))) :]
    if not draw(st.integers(0, 9)):
        last = [size + 1 for size in last]
    if isinstance(target, type):
        return (target(last, elementwise_affine=draw(st.booleans()), device=META), x), {}
    return (x, last, *draw(st.sampled_from([(), (torch.empty(last, device=META),)]))), {}


def attended(draw: Draw, target: Any) -> Made:
    b, h, q, s, e, v = dims(draw, 6, 6)
    dtype = draw(st.sampled_from(DTYPES))
    v = e if draw(st.integers(0, 3)) else v
    masks = [None, None, tensor(draw, (q, s), torch.bool), tensor(draw, (b, 1, q, s), dtype), tensor(draw, (q, s + 1))]
    given = [tensor(draw, sizes, dtype) for sizes in [(b, h, q, e), (b, h, s, e), (b, h, s, v)]]
    return (*given, draw(st.sampled_from(masks))), {"is_causal": not draw(st.integers(0, 3))}


def embedded(draw: Draw, target: Any) -> Made:
    ids = tensor(draw, dims(draw, 0, 3), draw(st.sampled_from([torch.int64, torch.int32, torch.float32])))
    if isinstance(target, type):
        return (target(7, 5, padding_idx=draw(st.sampled_from([None, 0])), device=META), ids), {}
    return (ids, tensor(draw, (7, 5), draw(st.sampled_from(FLOATS))), draw(st.sampled_from([None, 3, 9]))), {}


def pooled(draw: Draw, target: Any) -> Made:
    sizes = [*dims(draw, 2, 2), *(draw(st.integers(1, 12)) for _ in range(2))]
    x = tensor(draw, sizes[draw(st.integers(0, 9)) == 0 :], draw(st.sampled_from(DTYPES)))
    windows = st.one_of(st.integers(1, 4), st.tuples(st.integers(1, 4), st.integers(1, 4)))
    kwargs: dict[str, Any] = {"ceil_mode": draw(st.booleans()), "padding": draw(st.sampled_from([0, 0, 1]))}
    if not draw(st.booleans()):
        kwargs["stride"] = draw(windows)
    if isinstance(target, type):
        return (target(draw(windows), **kwargs), x), {}
    return (x, draw(windows)), kwargs


def pooled_to(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 3 + (draw(st.integers(0, 9)) > 0), 4), draw(st.sampled_from(DTYPES)))
    size = draw(st.sampled_from([1, 2, (3, None), (1, 4)]))
    return ((target(size), x), {}) if isinstance(target, type) else ((x, size), {})


def resampled(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 3, 5), draw(st.sampled_from(DTYPES)))
    modes = {
        3: ["nearest", "linear"],
        4: ["nearest", "bilinear", "bicubic", "nearest-exact"],
        5: ["nearest", "trilinear"],
    }
    kwargs: dict[str, Any] = {"mode": draw(st.sampled_from(modes[x.ndim]))}
    kwargs |= draw(st.sampled_from([{"size": 7}, {"scale_factor": 2}, {"scale_factor": 1.3}, {"scale_factor": 0.5}]))
    if "linear" in kwargs["mode"]:
        kwargs["align_corners"] = draw(st.sampled_from([None, False, True]))
    if "scale_factor" in kwargs and draw(st.booleans()):
        kwargs["recompute_scale_factor"] = draw(st.booleans())
    return ((target(**kwargs), x), {}) if isinstance(target, type) else ((x,), kwargs)


def reduced(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 0, 4), draw(st.sampled_from(DTYPES)))
    dim = draw(st.sampled_from([0, -1, (0,), (-1, -2), (0, -1), (1, 2), [0, 1]]))
    return (x, dim), {"keepdim": draw(st.booleans())}


def normed(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 1, 4), draw(st.sampled_from(DTYPES)))
    dim = draw(st.sampled_from([0, 1, -1, -2, (0,), (1, 2), (0, -1), [-1]]))
    return (x, draw(st.sampled_from([2, 2.0, 1])), dim), {"keepdim": draw(st.booleans())}


def joined(draw: Draw, target: Any) -> Made:
    sizes, dim = dims(draw, 1, 4), draw(st.integers(-2, 2))
    tensors, dtype = [], draw(st.sampled_from(DTYPES))
    for _ in range(draw(st.integers(1, 3))):
        each = list(sizes)
        if target is not torch.stack and dim < len(each):
            each[dim % len(each)] = draw(st.integers(1, 4))
        tensors.append(tensor(draw, each, dtype if draw(st.integers(0, 9)) else torch.float64))
    return (tensors, dim), {}


def rolled(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 1, 4), draw(st.sampled_from(DTYPES)))
    return (x, *draw(st.sampled_from([(1, 0), ((1, 2), (0, 1)), (3,), ((-1,), (-1,))]))), {}


def padded(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 1, 4), draw(st.sampled_from(DTYPES)))
    return (x, draw(st.lists(st.integers(-1, 2), min_size=2, max_size=6))), {}


def gated(draw: Draw, target: Any) -> Made:
    sizes = dims(draw)
    dim = draw(st.integers(-len(sizes), len(sizes) - 1))
    sizes[dim] *= draw(st.sampled_from([1, 2, 2, 2]))
    x = tensor(draw, sizes, draw(st.sampled_from(FLOATS)))
    return ((nn.GLU(dim), x), {}) if target is nn.GLU else ((x, dim), {})


CASES: dict[str, Callable[[Draw, Any], Made]] = {
    "in_place": unary, "sloped": positional, "bounded": positional, "clamp": clamped, "identity": module,
    "softmax_function": softmaxed, "arithmetic": binary, "arithmetic_reversed": by_a_number, "arithmetic_in_place": binary, "comparison": binary,
    "addcmul": ternary, "where": chosen, "masked_fill": filled, "linear": linear, "matmul": contracted, "bmm": contracted,
    "addmm": contracted_and_added, "conv": convolved, "conv_transpose": convolved, "batch_norm": normalized,
    "group_norm": normalized, "layer_norm": layer_normed, "rms_norm": layer_normed, "attention": attended,
    "embedding": embedded, "max_pool2d": pooled, "avg_pool2d": pooled, "adaptive_avg_pool2d": pooled_to,
    "interpolate": resampled, "mean": reduced, "amax": reduced, "norm": normed, "cat": joined, "stack": joined,
    "roll": rolled, "pad": padded, "glu": gated,
}  # fmt: skip
"""How the arguments of a rule's targets are made, by the rule's name."""
OF_MODULES = {
    "same": (module, activation, unary),
    "dropout": (module, dropped, dropped),
    "softmax": (module, softmaxed, softmaxed),
}
"""The same of rules that are of modules, functions of F, and others."""


def rule_of(target: Any) -> Any:
    return RULES[target].function


def case_of(target: Any) -> Callable[[Draw, Any], Made]:
    name = rule_of(target).__name__.removesuffix("_shape")
    if name not in OF_MODULES:
        return CASES[name]
    of_module, of_function, other = OF_MODULES[name]
    if isinstance(target, type):
        return of_module
    in_f = any(target is value for value in vars(F).values())
    return of_function if in_f and target not in (F.gelu,) else other


class Meanwhile(TorchDispatchMode):
    """The bytes of the storages that operators make, as many as are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {t.untyped_storage()._cdata for t in tensors_in((args, kwargs))}
        for storage in {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors_in(out)}.values():
            if storage._cdata not in known:
                self.live += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out

    def _gone(self, nbytes: int) -> None:
        self.live -= nbytes


def run(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """What the kernel and the rule say; None for a call that raises, or a rule that cannot tell."""
    with torch.no_grad():
        if isinstance(target, type):
            made, *rest = args
            own = [*made._parameters.values(), *made._buffers.values()]
            known = all(t is None or t.is_contiguous() for t in own)
            ran = Operation("", target, spec_of(tuple(rest)), {}, None, settings_of(made))
            told = shape_of(RULES[target], ran, lying(rest)) if known else None
            given, function = rest, made
        else:
            ran = Operation("", target, spec_of(args), spec_of(kwargs), None)
            told, given, function = shape_of(RULES[target], ran, lying((args, kwargs))), args, target
        before = [facts_of(each) for each in tensors_in(given)]
        try:
            with Meanwhile() as meanwhile:
                out = function(*given, **kwargs)
        except Exception:
            return None, told
    if told is None:
        return out, None
    spec, strides, passing = told
    if strides is None:
        return (out if out is not given[0] or facts_of(out) != before[0] else "its input"), "its input"
    if not isinstance(out, torch.Tensor):
        return "no tensor", spec
    storage = out.untyped_storage()
    shared = [i for i, t in enumerate(tensors_in((given, kwargs))) if t.untyped_storage()._cdata == storage._cdata]
    peak = meanwhile.peak if RULES[target].passing is not None else storage.nbytes()
    told_peak = sum(each.nbytes for each in passing) or spec.nbytes
    return (*facts_of(out), storage.nbytes(), shared, peak), (
        tuple(spec),
        spec.dtype,
        strides,
        0,
        spec.nbytes,
        [],
        told_peak,
    )


def lying(value: Any) -> list[tuple[Any, Any]]:
    return [(tensor.shape, tensor.stride()) for tensor in tensors_in(value)]


def facts_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.stride(), tensor.storage_offset()


def spelled(target: Any) -> str:
    return f"{getattr(target, '__qualname__', target)} of {rule_of(target).__name__}"


def is_empty(out: Any, args: tuple[Any, ...]) -> bool:
    """Return True if a result, as :func:`run` returns it, has no elements: of those a rule answers more easily."""
    tensors = tensors_in(args)[:1] if isinstance(out, str) else tensors_in(out)
    shapes = [tensor.shape for tensor in tensors] or [out[0] if isinstance(out, tuple) else ()]
    return any(0 in shape for shape in shapes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", RULES, ids=spelled)
def test_a_rule_says_what_the_kernel_does(target: Any) -> None:
    made, told = [], []

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def check(data: Any) -> None:
        args, kwargs = case_of(target)(data.draw, target)
        out, rule = run(target, args, kwargs)
        if rule is not None:
            assert rule == out, (args, kwargs)
        if out is not None and not is_empty(out, args):
            made.append(out)
            told.extend([] if rule is None else [rule])

    check()
    assert len(told) >= LEAST * len(made) > 0


EXAMPLES = 30
LEAST = 0.2
"""The share of a kernel's calls that a rule answers at least: of those with elements in their result, odd ones among them."""


def lying_at(sizes: tuple[int, ...], strides: tuple[int, ...] | None = None, dtype: Any = None) -> torch.Tensor:
    x = torch.empty(sizes, device=META, dtype=dtype)
    return x if strides is None else torch.empty_strided(sizes, strides, device=META, dtype=dtype)


COLUMN, ROW = lying_at((3, 1)), lying_at((3, 4))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.add, (COLUMN, 2, ROW)),
        (torch.Tensor.add, (COLUMN, 2, ROW)),
        (torch.Tensor.sub, (COLUMN, 2, ROW)),
        (torch.Tensor.add_, (COLUMN, 2, ROW)),
        (torch.addcmul, (COLUMN, 2, COLUMN, ROW)),
        (nn.RMSNorm, (nn.RMSNorm(4, device=META), lying_at((4, 2, 2, 4), (16, 1, 8, 2)))),
        (nn.RMSNorm, (nn.RMSNorm(3, elementwise_affine=False), lying_at((1, 4, 4, 3), (48, 1, 12, 4)))),
        (nn.ReLU, (nn.ReLU(), lying_at((1, 4, 6), (96, 1, 4)))),
        (torch.remainder, (lying_at((4, 6, 1, 1), (1, 4, 24, 0)), 2)),
        (torch.Tensor.__rsub__, (lying_at((1, 1, 2, 2)), lying_at((1, 2, 2), (1, 1, 2)))),
        (torch.true_divide, tuple(lying_at((5, 3, 1), each, torch.bfloat16) for each in ((1, 0, 1), (1, 5, 1)))),
        (F.pad, (lying_at((6, 2, 4, 2), (16, 2, 4, 1)), [-1, 0, -1, -1])),
        (nn.GroupNorm, (nn.GroupNorm(2, 4, device=META), lying_at((5, 4, 4, 4), (64, 1, 16, 4)))),
        (F.dropout, (lying_at((1,), dtype=torch.int64), 0.1, True, True)),
        (torch.mm, (lying_at((6, 2, 4, 2)), lying_at((2, 2)))),
        (F.conv2d, (lying_at((1, 2)), lying_at((1, 2)))),
    ],
)
def test_what_is_rare(target: Any, args: Any) -> None:
    out, rule = run(target, args, {})
    assert rule is None or rule == out


def test_a_subclass_that_replaces_forward_has_no_rule() -> None:
    class Own(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input

    class Inherits(nn.Linear):
        pass

    assert rule_for(Own) is None
    assert rule_for(Inherits) is rule_for(nn.Linear)

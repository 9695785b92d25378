"""Pooling and its gradients against loops over windows of counting numbers. The gradients also give torch's values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from fxflops.ops.pool import adaptive_avg_pool2d_shape, avg_pool2d_shape, max_pool2d_shape
from fxflops.records import Cost, Spec
from tests.ops.draws import DTYPES, Draw, Made, dims, draws, tensor
from tests.ops.textbook import Sums, agrees
from tests.oracle import Tally, cost_by_name, cost_of, numbers, tallying

aten = torch.ops.aten


def largest(window):
    """The maximum of a window, one compare at a time."""
    first, *rest = window.ravel()
    for other in rest:
        first = first.compare(other)
    return first


def average(window):
    return np.sum(window) / window.size


def norm(window):
    return np.sum(window**2) ** 0.5


def pool(step, batch: int, size: tuple[int, ...], windows: list[list[slice]]) -> Tally:
    """Run ``step`` on each window. ``windows`` has the slices of each dim's outputs; ``batch`` is batch times channels."""
    x = numbers(batch, *size)
    with tallying() as tally:
        for b, window in itertools.product(range(batch), itertools.product(*windows)):
            step(x[(b, *window)])
    return tally


def strided(n: int, k: int, stride: int) -> list[slice]:
    return [slice(start, start + k) for start in range(0, n - k + 1, stride)]


def adaptive(n: int, m: int) -> list[slice]:
    return [slice(int(np.floor(i * n / m)), int(np.ceil((i + 1) * n / m))) for i in range(m)]


@pytest.mark.parametrize(
    ("step", "modules"),
    [
        (average, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)),
        (largest, (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)),
        (norm, (nn.LPPool1d, nn.LPPool2d, getattr(nn, "LPPool3d", None))),
    ],
)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_plain_kernel_size_is_one_length_for_every_dim(step, modules, dims):
    module = modules[dims - 1]
    if module is None:
        pytest.skip("this torch has no such module")
    size, norm_type = (7, 6, 5)[:dims], (2,) if step is norm else ()
    expected = pool(step, 2 * 3, size, [strided(n, 3, 2) for n in size])
    assert expected == cost_of(module(*norm_type, 3, stride=2), torch.zeros(2, 3, *size))
    assert expected == cost_of(module(*norm_type, 3, stride=2), torch.zeros(6, *size))
    if dims > 1:
        assert expected == cost_of(module(*norm_type, (3,) * dims, stride=2), torch.zeros(2, 3, *size))


def test_windows_that_are_not_square():
    expected = pool(average, 3, (6, 8), [strided(6, 2, 2), strided(8, 3, 3)])
    assert expected == cost_of(nn.AvgPool2d((2, 3)), torch.zeros(1, 3, 6, 8))


def test_padded_windows_are_counted_whole():
    expected = pool(largest, 3, (6 + 2, 6 + 2), [strided(8, 3, 2)] * 2)
    assert expected == cost_of(nn.MaxPool2d(3, 2, padding=1), torch.zeros(1, 3, 6, 6))


def test_average_in_every_spelling():
    x = torch.zeros(2, 3, 6, 6)
    expected = pool(average, 6, (6, 6), [strided(6, 2, 2)] * 2)
    assert expected == cost_of(F.avg_pool2d, x, 2)
    assert expected == cost_of(F.avg_pool2d, x, kernel_size=2, count_include_pad=False)
    assert expected == cost_of(aten.avg_pool2d.default, x, [2])
    assert pool(average, 3 * 6, (6,), [strided(6, 2, 2)]) == cost_of(F.avg_pool1d, x[0], 2)
    assert pool(average, 2, (3, 6, 6), [strided(3, 3, 3), *[strided(6, 3, 3)] * 2]) == cost_of(F.avg_pool3d, x, 3)


def test_maximum_in_every_spelling():
    x = torch.zeros(2, 3, 6, 6)
    expected = pool(largest, 6, (6, 6), [strided(6, 2, 2)] * 2)
    assert expected == cost_of(F.max_pool2d, x, 2)
    assert expected == cost_of(F.max_pool2d, x, 2, return_indices=True)
    assert expected == cost_of(F.max_pool2d_with_indices, x, 2)
    assert expected == cost_of(torch.max_pool2d, x, 2)
    assert expected == cost_of(nn.MaxPool2d(2, return_indices=True), x)
    assert expected == cost_of(aten.max_pool2d_with_indices.default, x, [2, 2])
    assert pool(largest, 6, (6,), [strided(6, 2, 2)]) == cost_of(F.max_pool1d, x[:, :, 0], 2)
    volume = pool(largest, 2, (3, 6, 6), [strided(3, 2, 2), *[strided(6, 2, 2)] * 2])
    assert volume == cost_of(F.max_pool3d, x, 2)


@pytest.mark.parametrize("m", [(1, 1), (3, 3), (5, 2), (7, 6), (9, 4)])
def test_adaptive_windows_may_be_odd_and_overlap(m):
    x = torch.zeros(2, 3, 7, 6)
    windows = [adaptive(7, m[0]), adaptive(6, m[1])]
    means, maxima = pool(average, 6, (7, 6), windows), pool(largest, 6, (7, 6), windows)
    assert means == cost_of(nn.AdaptiveAvgPool2d(m), x) == cost_of(F.adaptive_avg_pool2d, x, m)
    assert means == cost_of(aten._adaptive_avg_pool2d.default, x, m)
    assert maxima == cost_of(nn.AdaptiveMaxPool2d(m), x) == cost_of(F.adaptive_max_pool2d, x, m)
    assert maxima == cost_of(F.adaptive_max_pool2d, x, m, return_indices=True)
    assert maxima == cost_of(aten.adaptive_max_pool2d.default, x, m)


def test_adaptive_pooling_of_one_and_three_dims():
    line, volume = torch.zeros(3, 7), torch.zeros(2, 3, 7, 6)
    assert pool(average, 3, (7,), [adaptive(7, 3)]) == cost_of(nn.AdaptiveAvgPool1d(3), line)
    assert pool(largest, 3, (7,), [adaptive(7, 3)]) == cost_of(nn.AdaptiveMaxPool1d(3), line)
    windows = [adaptive(3, 2), adaptive(7, 7), adaptive(6, 4)]
    assert pool(average, 2, (3, 7, 6), windows) == cost_of(nn.AdaptiveAvgPool3d((2, None, 4)), volume)
    assert pool(largest, 2, (3, 7, 6), windows) == cost_of(nn.AdaptiveMaxPool3d((2, None, 4)), volume)


def test_a_norm_as_function():
    expected = pool(norm, 6, (6, 6), [strided(6, 2, 2)] * 2)
    assert expected == cost_of(F.lp_pool2d, torch.zeros(2, 3, 6, 6), 2, 2)
    assert pool(norm, 6, (6,), [strided(6, 3, 3)]) == cost_of(F.lp_pool1d, torch.zeros(2, 3, 6), 2, 3)


def test_the_largest_of_the_absolute_values():
    """An infinite norm: 4 absolute values and 3 compares for each of 3 x 3 outputs in 6 planes."""
    assert cost_of(nn.LPPool2d(float("inf"), 2), torch.zeros(2, 3, 6, 6)).flops == 6 * (3 * 3) * (4 + 3)


def test_fractional_windows_are_compared_whole():
    """4 x 4 (x 4) outputs in 6 planes, with 2*2 - 1 or 2*2*2 - 1 compares each."""
    x = torch.zeros(2, 3, 9, 9)
    assert cost_of(nn.FractionalMaxPool2d(2, output_size=4), x).flops == 6 * (4 * 4) * 3
    assert cost_of(F.fractional_max_pool2d, x, 2, output_size=4, return_indices=True).flops == 6 * (4 * 4) * 3
    volume = torch.zeros(2, 3, 9, 9, 9)
    assert cost_of(nn.FractionalMaxPool3d(2, output_size=4), volume).flops == 6 * (4 * 4 * 4) * 7


def test_unpooling_moves_values():
    values, places = F.max_pool2d(torch.rand(1, 2, 4, 4), 2, return_indices=True)
    assert cost_of(F.max_unpool2d, values, places, 2).flops == 0
    assert cost_of(nn.MaxUnpool2d(2), values, places).flops == 0


X = torch.randn(2, 3, 6, 6, dtype=torch.double)
VOLUME = torch.randn(1, 2, 6, 4, 4, dtype=torch.double)


def averages_backward(g, size, windows: Any) -> Any:
    """Spread each output's gradient, divided by the size of its window, over the window."""
    out = Sums(*size)
    for at in np.ndindex(g.shape[2:]):
        places = windows(at)
        k = np.prod([place.stop - place.start for place in places])
        each = g[(..., *at)] / k
        out.add((..., *places), each[(..., *[None] * len(places))])
    return out.result()


def average_backward(g, x, kernel, stride, *settings):
    return averages_backward(
        g, x.shape, lambda at: [slice(p * s, p * s + k) for p, s, k in zip(at, stride, kernel, strict=True)]
    )


@pytest.mark.parametrize(("kernel", "stride"), [([2, 2], [2, 2]), ([3, 2], [1, 2]), ([2, 2], [1, 1])])
def test_the_gradient_of_an_average(kernel: list[int], stride: list[int]) -> None:
    settings = kernel, stride, [0, 0], False, True, None
    g = torch.randn_like(aten.avg_pool2d(X, *settings))
    agrees(aten.avg_pool2d_backward.default, average_backward, g, X, *settings)


def test_the_gradient_of_an_average_of_volumes() -> None:
    settings = [3, 2, 2], [1, 2, 2], [0, 0, 0], False, True, None
    g = torch.randn_like(aten.avg_pool3d(VOLUME, *settings))
    agrees(aten.avg_pool3d_backward.default, average_backward, g, VOLUME, *settings)


def adaptive_backward(g, x):
    def windows(at: tuple[int, ...]) -> Iterator[slice]:
        sizes = zip(at, x.shape[2:], g.shape[2:], strict=True)
        return [slice(i * n // m, -(-(i + 1) * n // m)) for i, n, m in sizes]

    return averages_backward(g, x.shape, windows)


def test_the_gradient_of_an_adaptive_average() -> None:
    g = torch.randn(2, 3, 4, 2, dtype=torch.double)
    agrees(aten._adaptive_avg_pool2d_backward.default, adaptive_backward, g, X)
    expected = cost_of(aten._adaptive_avg_pool2d_backward.default, g, X)
    args = Spec(g.shape), Spec(X.shape)
    assert expected == cost_by_name("aten::mkldnn_adaptive_avg_pool2d_backward", *args, out=args[1])
    g = torch.randn(1, 2, 4, 3, 1, dtype=torch.double)
    agrees(aten._adaptive_avg_pool3d_backward.default, adaptive_backward, g, VOLUME)


def maximum_backward(g, x, indices):
    """Add each output's gradient to the place of its maximum; several windows may share one."""
    out = Sums(*x.shape[:2], int(np.prod(x.shape[2:])), starts=True)
    for b, c, *at in np.ndindex(g.shape):
        out.add((b, c, indices[(b, c, *at)]), g[(b, c, *at)])
    return out.array.reshape(x.shape)


def test_the_gradient_of_a_maximum() -> None:
    settings = [3, 3], [1, 1], [0, 0], [1, 1], False
    pooled, indices = aten.max_pool2d_with_indices(X, *settings)
    overload = aten.max_pool2d_with_indices_backward.default
    agrees(
        overload, lambda g, x, *rest: maximum_backward(g, x, rest[-1]), torch.randn_like(pooled), X, *settings, indices
    )
    pooled, indices = F.max_pool3d(VOLUME, 2, return_indices=True)
    settings = [2] * 3, [2] * 3, [0] * 3, [1] * 3, False
    overload = aten.max_pool3d_with_indices_backward.default
    agrees(
        overload,
        lambda g, x, *rest: maximum_backward(g, x, rest[-1]),
        torch.randn_like(pooled),
        VOLUME,
        *settings,
        indices,
    )


def test_the_gradients_of_adaptive_and_fractional_maxima() -> None:
    pooled, indices = F.adaptive_max_pool2d(X, 4, return_indices=True)
    agrees(aten.adaptive_max_pool2d_backward.default, maximum_backward, torch.randn_like(pooled), X, indices)
    pooled, indices = F.fractional_max_pool2d(X, 2, output_size=(3, 3), return_indices=True)
    args = torch.randn_like(pooled), X, [2, 2], [3, 3], indices
    agrees(aten.fractional_max_pool2d_backward.default, lambda g, x, *rest: maximum_backward(g, x, rest[-1]), *args)


def test_the_gradient_of_a_maximum_by_other_kernels() -> None:
    g, x = Spec((2, 3, 4, 4)), Spec((2, 3, 6, 6))
    for name, args in [("max_pool2d_backward", (g, x)), ("mkldnn_max_pool2d_backward", (g, g, x))]:
        assert cost_by_name(f"aten::{name}", *args, [3, 3], out=x) == Cost(adds=2 * 3 * 4 * 4)


IMAGE = Spec((1, 2, 4, 4), torch.float32)


@pytest.mark.parametrize(
    ("rule", "args", "sizes"),
    [
        (avg_pool2d_shape, (IMAGE, 4), (1, 2, 1, 1)),
        (avg_pool2d_shape, (IMAGE, (3, 2), 1), (1, 2, 2, 3)),
        (avg_pool2d_shape, (IMAGE, 5), None),
        (max_pool2d_shape, (IMAGE, 1, 2, 0, 1, True), (1, 2, 2, 2)),
        (max_pool2d_shape, (IMAGE, 1, 3, 0, 1, True), (1, 2, 2, 2)),
        (max_pool2d_shape, (IMAGE, 2, 3, 1, 1, True), (1, 2, 2, 2)),
        (adaptive_avg_pool2d_shape, (IMAGE, (1, None)), (1, 2, 1, 4)),
        (adaptive_avg_pool2d_shape, (Spec((1, 2, 4, 4), torch.int64), 1), None),
        (adaptive_avg_pool2d_shape, (Spec((0, 2, 4, 4), torch.float32), 1), None),
    ],
)
def test_the_shape_rules_answer(rule: Any, args: Any, sizes: Any) -> None:
    told = rule(*args)
    assert (told if told is None else tuple(told)) == sizes


@draws("max_pool2d", "avg_pool2d")
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


@draws("adaptive_avg_pool2d")
def pooled_to(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 3 + (draw(st.integers(0, 9)) > 0), 4), draw(st.sampled_from(DTYPES)))
    size = draw(st.sampled_from([1, 2, (3, None), (1, 4)]))
    return ((target(size), x), {}) if isinstance(target, type) else ((x, size), {})

"""Shape rules against kernels on meta, which run without them: shape, dtype, strides, bytes, storage offset, and whether the
result is the input or shares its storage. tests/kinds/test_temporaries.py compares the memory held during a call with the
allocator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops.ops  # noqa: F401
from fxflops.model.pytree import tensors_in
from fxflops.ops._rules import RULES
from fxflops.ops.shapes import rule_for, shape_of
from fxflops.records import Operation
from fxflops.records.tensors import spec_of
from fxflops.trace.leaves import _is_contiguous as is_plain
from fxflops.trace.leaves import settings_of
from tests.ops.draws import META, examples_of, rule_of

OF_THE_CPU = (
    *(nn.LayerNorm, F.layer_norm, F.scaled_dot_product_attention),
    *(nn.Conv2d, F.conv2d, nn.ConvTranspose2d, F.conv_transpose2d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, F.batch_norm),
)
"""These must run on the CPU, because meta is different: attention has no fused kernel there, layer norm keeps the strides of
size-1 dims, which no device does, a convolution is never channels last, and batch norm keeps any strides."""


def on_the_cpu(value: Any) -> Any:
    """The same value, with its tensors and modules on the CPU."""
    if isinstance(value, nn.Module):
        return value.to_empty(device="cpu")
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return tuple(map(on_the_cpu, value)) if isinstance(value, tuple) else value


def run(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return the kernel's result and the rule's; None for a call that raises, or for a rule without an answer."""
    if target in OF_THE_CPU:
        args, kwargs = on_the_cpu(args), {name: on_the_cpu(value) for name, value in kwargs.items()}
    with torch.no_grad():
        if isinstance(target, type):
            made, *rest = args
            own = [*made._parameters.values(), *made._buffers.values()]
            known = all(t is None or is_plain(t) for t in own)
            ran = Operation("", target, spec_of(tuple(rest)), {}, None, settings_of(made))
            told = shape_of(RULES[target], ran, lying(rest), "cpu") if known else None
            given, function = rest, made
        else:
            ran = Operation("", target, spec_of(args), spec_of(kwargs), None)
            told, given, function = shape_of(RULES[target], ran, lying((args, kwargs)), "cpu"), args, target
        before = [facts_of(each) for each in tensors_in(given)]
        try:
            out = function(*given, **kwargs)
        except Exception:
            return None, told
    if told is None:
        return out, None
    spec, strides, _ = told
    if strides is None:
        return (out if out is not given[0] or facts_of(out) != before[0] else "its input"), "its input"
    if not isinstance(out, torch.Tensor):
        return "no tensor", spec
    storage = out.untyped_storage()
    shared = [i for i, t in enumerate(tensors_in((given, kwargs))) if t.untyped_storage()._cdata == storage._cdata]
    return (*facts_of(out), storage.nbytes(), shared), (
        tuple(spec),
        spec.dtype,
        strides,
        0,
        spec.nbytes,
        [],
    )


def lying(value: Any) -> list[tuple[Any, Any]]:
    return [(tensor.shape, tensor.stride()) for tensor in tensors_in(value)]


def facts_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.stride(), tensor.storage_offset()


def spelled(target: Any) -> str:
    return f"{getattr(target, '__qualname__', target)} of {rule_of(target).__name__}"


def is_empty(out: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a result of :func:`run` has no elements: rules answer for these more easily."""
    tensors = tensors_in(args)[:1] if isinstance(out, str) else tensors_in(out)
    shapes = [tensor.shape for tensor in tensors] or [out[0] if isinstance(out, tuple) else ()]
    return any(0 in shape for shape in shapes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", RULES, ids=spelled)
def test_a_rule_says_what_the_kernel_does(target: Any) -> None:
    made, told = [], []
    for args, kwargs in examples_of(target):
        out, rule = run(target, args, kwargs)
        if rule is not None:
            assert rule == out, (args, kwargs)
        if out is not None and not is_empty(out, args):
            made.append(out)
            told.extend([] if rule is None else [rule])
    assert all(type(size) is int for rule in told if rule != "its input" for size in rule[0]), (
        "a tensor is made of them"
    )
    assert len(told) >= LEAST * len(made) > 0


LEAST = 0.2
"""The share of calls that a rule must at least answer. Only results with elements count; arguments often have odd strides."""


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

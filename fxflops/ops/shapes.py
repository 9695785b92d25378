"""Shape rules compute the result of a call without running it, for the most common ops. Other ops run their kernel.

Like a formula, a rule takes its op's parameters by name, with tensors as Specs. A rule returns the Spec of the op's only new
tensor, or ``input`` itself if the op returns its input. A rule returns None if the result is unknown or the kernel would raise.
The rule's layout determines the new tensor's strides. Property tests (tests/ops/test_shapes.py) compare rules with kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ..records import Operation, Spec
from ._apply import arguments
from ._rules import (
    ANY,
    CONTIGUOUS,
    CONVOLVED,
    EVEN,
    FORMAT,
    KEPT,
    ORDERED,
    POINTWISE,
    RULES,
    UNWATCHED,
    WHOLE,
    Placed,
    Result,
    Rule,
    Specs,
    Strides,
)

Sizes = int | Sequence[int]
"""One setting for all dims, or one setting per dim."""

SINGLE = 4
"""The bytes of an element in single precision. A result with smaller elements may have operands with smaller elements, too."""
DOUBLE = 8
"""The bytes of an element in double precision."""
LAST = (0, 2, 3, 1)
"""The dims of a channels-last image in memory order."""


Strided = tuple[Sequence[int], Strides]
"""The sizes of a tensor and its strides."""


def rule_for(target: Any) -> Rule | None:
    """Return the shape rule for a call's target, or None if it has no rule. A module class uses the rule of a base class with the same forward."""
    for cls in target.__mro__ if isinstance(target, type) else ():
        if cls in RULES or "forward" in vars(cls):
            return RULES.get(cls)
    return RULES.get(target)


def shape_of(rule: Rule, operation: Operation, tensors: Sequence[Strided], device: str) -> Result | None:
    """Return an operation's result by its rule, with strides and the tensors alive at the peak, or None if the rule does not apply.

    ``tensors`` are the sizes and strides of the tensors among the arguments. ``device`` is the device type. If the result is the
    first argument, its strides are None.
    """
    if operation.kwargs and "out" in operation.kwargs:
        return None
    by_device = {"device": device} if rule.by_device else {}
    try:
        if rule.layout is WHOLE:
            args, kwargs = arguments(rule.parameters, _placed(operation, tensors))
            result: Result | None = rule.function(*args, **kwargs, **by_device)
            if result is None or result.strides is not None:
                return result
            return Result(operation.args[0], None) if result.out is args[0] else None
        args, kwargs = arguments(rule.parameters, operation)
        out: Spec | None = rule.function(*args, **kwargs)
    except Exception:  # the rule does not handle these arguments; the kernel will show whether they are valid
        return None
    if out is None:
        return None
    if operation.args and out is operation.args[0]:
        return Result(out, None)
    if operation.kwargs and any(out is value for value in operation.kwargs.values()):
        return None
    strides = _strides(rule.layout, out, tensors, device)
    if strides is None:
        return None
    alive_at_peak: Specs | None = ()
    if rule.alive_at_peak is not None:
        alive_at_peak = rule.alive_at_peak(tensors, out, *args, **kwargs, **by_device)
    return None if alive_at_peak is None else Result(out, strides, alive_at_peak)


def _placed(operation: Operation, tensors: Sequence[Strided]) -> Operation:
    """Return the operation, with strides added to its tensors. ``tensors`` are in the order of the operation's arguments."""
    strides = iter([strides for _, strides in tensors])
    args = tuple([_with_strides(value, strides) for value in operation.args])
    kwargs = {name: _with_strides(value, strides) for name, value in operation.kwargs.items()}
    return tuple.__new__(Operation, (operation.op, operation.target, args, kwargs, None, operation.settings))


def _with_strides(value: Any, strides: Iterator[Strides]) -> Any:
    if isinstance(value, Spec):
        return placed(value, next(strides))
    if isinstance(value, (tuple, list)) and value and not isinstance(value[0], int):
        return tuple([_with_strides(item, strides) for item in value])
    return value


def unseen_temporaries(operation: Operation, tensors: Sequence[Strided], device: str, needs_grad: bool) -> Specs | None:
    """Return the tensors, besides the result, alive at the peak of a call that a dispatch mode would change; None for any other call."""
    rule, parameters = UNWATCHED[operation.target]
    if operation.kwargs and operation.kwargs.get("out") is not None:  # torch.norm calls itself again with out=None
        return None
    try:
        args, kwargs = arguments(parameters, operation)
        return rule(tensors, *args, **kwargs, device=device, needs_grad=needs_grad)
    except Exception:  # arguments that the kernel refuses
        return None


def _strides(layout: str, out: Spec, tensors: Sequence[Strided], device: str) -> Strides | None:
    """Return the strides of the result, or None if they are unknown."""
    if layout is FORMAT:
        return in_format(out, tensors)
    if layout is CONVOLVED:
        return convolved(out, tensors, device)
    if layout is CONTIGUOUS and len(tensors) == 1:
        return contiguous(out)
    if layout in (EVEN, KEPT, ORDERED) and any(is_odd(sizes, strides) for sizes, strides in tensors):
        return None
    if layout is ANY or layout is EVEN:
        return contiguous(out)
    if layout is POINTWISE or layout is ORDERED:
        return pointwise(out, tensors, layout is POINTWISE, may_cast=out.dtype.itemsize < SINGLE)
    if not all(strides == contiguous(sizes) for sizes, strides in tensors[1:]):
        return None
    given = tensors[:1]
    if layout is CONTIGUOUS or all(strides == contiguous(sizes) for sizes, strides in given):
        return contiguous(out)
    if layout is KEPT and device == "cpu":
        return in_layout(out, is_channels_last(*tensors[0]))
    return pointwise(out, given) if layout is KEPT else None


def is_one(sizes: Sequence[int], strides: Strides) -> bool:
    """Return True if the leading dims, with these sizes, can be viewed as one dim."""
    outer = None
    for size, stride in zip(reversed(sizes), reversed(strides[: len(sizes)]), strict=True):
        if size != 1:
            if outer is not None and stride != outer:
                return False
            outer = size * stride
    return True


def is_odd(sizes: Sequence[int], strides: Strides) -> bool:
    """Return True if size-1 dims have unusual strides, which kernels treat in different ways.

    Such strides differ from the strides of a dense tensor, or fit both contiguous and channels-last layouts.
    """
    if 1 not in sizes or strides == contiguous(sizes):
        return False
    if lies_in(sizes, strides, range(len(sizes))):
        return True
    if lies_in(sizes, strides, LAST):
        return strides != in_order(sizes, LAST) or 1 in sizes[1:]
    return strides != in_order(sizes, sorted(range(len(sizes)), key=lambda dim: -strides[dim]))


def in_format(out: Spec, tensors: Sequence[Strided]) -> Strides | None:
    """Return channels-last strides if all images are channels last, else contiguous strides.

    Return None for images whose layout is ambiguous, and for volumes that are not contiguous.
    """
    if out.ndim == 4:
        if any(1 in sizes[1:] and strides != contiguous(sizes) for sizes, strides in tensors):
            return None
        last = all(is_channels_last(sizes, strides) for sizes, strides in tensors if len(sizes) == 4)
        return in_layout(out, last)
    plain = out.ndim < 4 or all(strides == contiguous(sizes) for sizes, strides in tensors)
    return contiguous(out) if plain else None


def convolved(out: Spec, tensors: Sequence[Strided], device: str) -> Strides | None:
    """Return channels-last strides if the input or the weight of a 2-D convolution is channels last, else contiguous strides.

    The first two tensors are input and weight. Return None for volumes that are channels last: the kernel decides, see ``formats.py``.
    """
    # Contiguous tensors are never channels last, and comparing with their strides is faster.
    images = [(sizes, strides) for sizes, strides in tensors[:2] if strides != contiguous(sizes)]
    if not any(is_channels_last(*image) for image in images):
        return contiguous(out)
    # cuDNN has no channels-last kernels for double precision.
    return in_order(out, LAST) if out.ndim == 4 and (device == "cpu" or out.dtype.itemsize < DOUBLE) else None


def last_order(ndim: int) -> tuple[int, ...]:
    """Return the dims of a channels-last image or volume in memory order."""
    return (0, *range(2, ndim), 1)


def in_layout(sizes: Sequence[int], is_last: bool) -> Strides:
    """Return the strides of a channels-last or a contiguous tensor."""
    return in_order(sizes, last_order(len(sizes))) if is_last else contiguous(sizes)


def is_channels_last(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if an image (4 dims) or a volume (5 dims) is channels last by the rules of torch's ``suggest_memory_format``."""
    least = 0
    if len(sizes) not in (4, 5) or not strides[1]:
        return False
    for dim in reversed(last_order(len(sizes))):
        if not sizes[dim] or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(sizes[dim], 1)
    return True


def contiguous(sizes: Sequence[int]) -> Strides:
    """Return the strides of a contiguous tensor."""
    return _contiguous(tuple(sizes))


@lru_cache(maxsize=4096)
def _contiguous(sizes: tuple[int, ...]) -> Strides:
    return in_order(sizes, range(len(sizes)))


def in_order(sizes: Sequence[int], order: Sequence[int]) -> Strides:
    """Return the strides of a dense tensor whose dims have this memory order."""
    strides, step = [1] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(sizes[dim], 1)
    return tuple(strides)


def pointwise(
    out: Sequence[int], operands: Sequence[Strided], fast: bool = True, may_cast: bool = True
) -> Strides | None:
    """Return the strides that TensorIterator gives a result, whose dims have the operands' memory order, or None if unknown.

    With ``fast``, operands of the same size that are all contiguous, or all channels last, give a result of the same layout.
    ``may_cast``: the operands may have a 16-bit dtype.
    """
    plain, alike = contiguous(out), all(tuple(sizes) == tuple(out) for sizes, _ in operands)
    if alike and all(strides == plain for _, strides in operands):
        return plain
    if 0 in out or (not alike and len(operands) == 1):
        return None
    if alike and fast:
        in_rows, last = (
            all(lies_in(out, strides, order) for _, strides in operands) for order in (range(len(out)), LAST)
        )
        if in_rows is not last:
            return plain if in_rows else in_order(out, LAST)
    if _is_ambiguous(operands, may_cast):
        return None
    return in_order(out, order_of(out, [expanded(out, sizes, strides) for sizes, strides in operands]))


def _is_ambiguous(operands: Sequence[Strided], may_cast: bool) -> bool:
    """Return True if kernels treat the strides of 0 in different ways: those in dims of one element, and all if meta casts the operands."""
    if not any(0 in strides for _, strides in operands) or not any(is_odd(*operand) for operand in operands):
        return False
    return may_cast or any((1, 0) in zip(sizes, strides, strict=True) for sizes, strides in operands)


def placed(spec: Spec, strides: Sequence[int]) -> Placed:
    """Return the tensor with these strides."""
    new = tuple.__new__(Placed, spec)
    new.dtype, new.layout, new.facts, new.strides = spec.dtype, spec.layout, spec.facts, tuple(strides)
    return new


def viewed(input: Placed, sizes: Sequence[int]) -> Strides | None:
    """Return the strides of a view, with these sizes, of a non-empty tensor, or None if only a copy can have these sizes."""
    if not input:
        return (1,) * len(sizes)
    strides, at = [0] * len(sizes), len(sizes) - 1
    # From the last dim to the first: merge neighboring dims that are contiguous in memory, then split the merged dim into the new dims.
    stride, elements, cut = input.strides[-1], 1, 1
    for dim in reversed(range(len(input))):
        elements *= input[dim]
        if dim and (input[dim - 1] == 1 or input.strides[dim - 1] == elements * stride):
            continue
        while at >= 0 and (cut < elements or sizes[at] == 1):
            strides[at] = cut * stride
            cut *= sizes[at]
            at -= 1
        if cut != elements:
            return None
        if dim:
            stride, elements, cut = input.strides[dim - 1], 1, 1
    return tuple(strides) if at == -1 else None


def is_contiguous(input: Placed, order: Sequence[int] | None = None) -> bool:
    """Return True if torch considers the tensor contiguous. With ``order``, the dims must be contiguous in this order."""
    return 0 in input or lies_in(input, input.strides, range(len(input)) if order is None else order)


def like(input: Placed) -> Strides | None:
    """Return the strides of a copy with torch.preserve_format: the tensor's own strides if it is dense, else dense strides in the same dim order."""
    if 0 in input:
        return None
    step = 1
    for stride, size in sorted(
        [(stride, size) for size, stride in zip(input, input.strides, strict=True) if size != 1]
    ):
        if stride != step:
            return pointwise(input, [(input, input.strides)], fast=False)
        step *= size
    return input.strides


def lies_in(sizes: Sequence[int], strides: Strides, order: Sequence[int]) -> bool:
    """Return True if the tensor is dense with its dims in this order, ignoring size-1 dims."""
    if len(order) != len(sizes):
        return False
    dense = in_order(sizes, order)
    return all(size == 1 or stride == wanted for size, stride, wanted in zip(sizes, strides, dense, strict=True))


def expanded(out: Sequence[int], sizes: Sequence[int], strides: Strides) -> Strides:
    """Return the strides of a tensor expanded to the sizes of the result."""
    new = len(out) - len(sizes)
    result = [0] * len(out)
    for dim in reversed(range(len(out))):
        if dim >= new:
            result[dim] = strides[dim - new] if sizes[dim - new] != 1 or out[dim] == 1 else 0
        elif out[dim] == 1:
            result[dim] = out[dim + 1] * result[dim + 1] if dim + 1 < len(out) else 1
    return tuple(result)


def order_of(sizes: Sequence[int], lying: Sequence[Strides]) -> list[int]:
    """Return the memory order of the operands' dims. The first operand whose strides differ in two dims decides the order of these dims."""

    def compared(a: int, b: int) -> int:
        for strides in lying:
            if strides[a] and strides[b]:
                if strides[a] != strides[b]:
                    return -1 if strides[a] < strides[b] else 1
                if sizes[a] > sizes[b]:
                    return 1
        return 0

    order = list(reversed(range(len(sizes))))
    for i in range(1, len(order)):
        at = i
        for before in reversed(range(i)):
            comparison = compared(order[before], order[at])
            if comparison > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif comparison < 0:
                break
    return order[::-1]


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the broadcast shape, or None if the shapes do not broadcast."""
    if len({*map(tuple, shapes)}) == 1:
        return tuple(shapes[0])
    out: list[int] = []
    for dims in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {shape[-dims] for shape in shapes if len(shape) >= dims} - {1}
        if len(sizes) > 1:
            return None
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def each(value: Sizes, dims: int) -> Sequence[int]:
    """Return a setting as a sequence with one value per dim."""
    return (value,) * dims if isinstance(value, int) else tuple(value) * dims if len(value) == 1 else tuple(value)


def fits(weight: Spec | None, size: int, input: Spec) -> bool:
    """Return True if ``weight`` is None or a vector with this size and the input's dtype."""
    return weight is None or (tuple(weight) == (size,) and weight.dtype is input.dtype)

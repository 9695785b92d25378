"""torch.einsum, counted as products of two operands at a time, in torch's order.

Without opt_einsum the order is left to right; if opt_einsum is installed and enabled (``torch.backends.opt_einsum``), opt_einsum
chooses the order of three or more operands.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from types import EllipsisType
from typing import Any

import torch
import torch.backends.opt_einsum as optimizer

from ..records.facts import fact_in
from ..torch_internals import DisableTorchFunction, disable_current_modes
from ._extend import (
    WHOLE,
    Cost,
    Placed,
    Result,
    Spec,
    broadcast,
    contiguous,
    contraction,
    formula,
    is_odd,
    named,
    placed,
    pointwise,
    specs_in,
    summed,
    viewed,
)
from ._lifetimes import Lifetimes

PATH = "path"
"""The name of a result's fact: the order in which torch multiplies the operands, recorded if it is not left to right."""
Label = str | tuple[EllipsisType, int]
Sizes = dict[Label, int]


@formula(*named("einsum"))
def einsum(*operands: Any, path: Sequence[int] | None = None, out: Spec) -> Cost:
    """a[m, k], b[k, n] -> out[m, n]: k multiplies and k-1 adds per result of each product, where k is the size of the summed dims.

    A dim of one operand that is neither in another operand nor in the result is summed first, with adds only. Taking a diagonal
    or broadcasting a dim of length 1 makes a view and costs nothing. Elementwise and outer products take 1 multiply per result.
    """
    return summed(*steps(operands, path, out))


def steps(operands: Sequence[Any], path: Sequence[int] | None, out: Spec) -> Iterator[Cost]:
    """Yield the cost of each step: the sums over dims that only one operand of a product has, then the product.

    ``path`` is torch's own argument: the positions of the two operands of each product. The result of a product is appended to the
    operands, see https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/Linear.cpp. Without ``path``, the order is the
    one recorded with ``out``, or left to right if none is recorded.
    """
    terms, output = _parse(operands)
    in_order = [(0, 1), *((0, left - 1) for left in range(len(terms) - 1, 1, -1))] if len(terms) > 1 else [(0,)]
    positions = path or fact_in(out, PATH, ())
    for pair in [*zip(positions[::2], positions[1::2], strict=True)] or in_order:
        taken = [terms[position] for position in pair]
        terms = [term for position, term in enumerate(terms) if position not in pair]
        needed = output.union(*terms)
        for position, term in enumerate(taken):
            others = needed.union(*taken[:position], *taken[position + 1 :])
            taken[position] = {label: size for label, size in term.items() if label in others}
            yield Cost(adds=max(_numel(term) - _numel(taken[position]), 0))
        both = {label: size for term in taken for label, size in term.items()}
        terms.append({label: size for label, size in both.items() if label in needed})
        if len(pair) > 1:
            yield contraction(math.prod(size for label, size in both.items() if label not in needed), _numel(terms[-1]))


def order_now() -> tuple[Any, ...]:
    """Return the torch setting that decides the order of the products; empty if the order is left to right."""
    return (optimizer.strategy,) if optimizer.is_available() and optimizer.enabled else ()


def path_taken(operands: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the path that ``torch.einsum`` passes to its kernel for these specs, or None if the order is left to right.

    The path comes from opt_einsum, like in torch: https://github.com/pytorch/pytorch/blob/main/torch/functional.py
    """
    given, order = list(specs_in(tuple(operands))), order_now()
    if len(given) < 3 or not order:
        return None
    contract_path = optimizer.get_opt_einsum().contract_path
    state = random.getstate()  # some strategies use Python's global random generator
    try:
        pairs = contract_path(operands[0], *map(tuple, given), shapes=True, optimize=order[0])[0]
    finally:
        random.setstate(state)
    return tuple([position for pair in pairs for position in pair])


def _numel(sizes: Sizes) -> int:
    return math.prod(sizes.values())


def _parse(operands: Sequence[Any]) -> tuple[list[Sizes], set[Label]]:
    """Return each operand's sizes by label, and the result's labels.

    An einsum written with lists of numbers is already an equation here: torch converts it before the call.
    """
    inputs, arrow, result = operands[0].replace(" ", "").partition("->")
    subscripts = [_tokens(term) for term in inputs.split(",")]
    output = _tokens(result) if arrow else None
    specs = list(specs_in(tuple(operands[1:])))
    labels = [_labels(tokens, spec.ndim) for tokens, spec in zip(subscripts, specs, strict=True)]
    counts = Counter(chain(*labels))
    broadcast = {label for label in counts if isinstance(label, tuple)}
    if output is None:
        kept = broadcast.union(label for label, times in counts.items() if times == 1)
    else:
        kept = {token for token in output if token is not ...} | (broadcast if ... in output else set())
    # A dim of length 1 broadcasts, so it takes part in no product.
    sizes = [
        {label: size for label, size in zip(dims, spec, strict=True) if size != 1}
        for dims, spec in zip(labels, specs, strict=True)
    ]
    return sizes, kept


def _tokens(term: str) -> list[Any]:
    """Return the letters of one operand's term in an equation, with three dots as one Ellipsis."""
    before, dots, after = term.partition("...")
    return [*before, *([...] if dots else []), *after]


def _labels(tokens: Sequence[Any], ndim: int) -> list[Label]:
    """Return one label per dim. The dims of an Ellipsis are labelled by their distance from the end of the Ellipsis."""
    spanned: list[Label] = [(..., -i) for i in range(ndim - len(tokens) + 1, 0, -1)]
    return [label for token in tokens for label in (spanned if token is ... else [token])]


# The shape rule


@einsum.shape(torch.einsum, layout=WHOLE)
def einsum_shape(equation: Any, *operands: Any) -> Result | None:
    """a[m, k], b[k, n] -> out[m, n], in torch's steps, or None if there is no equation or not two operands.

    Torch gives both operands all dims, first the result's dims, then the summed dims, and multiplies them as batches of matrices:
    https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/Linear.cpp
    """
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple) else operands
    if not isinstance(equation, str) or len(tensors) != 2 or any(0 in each for each in tensors):
        return None
    if tensors[0].dtype is not tensors[1].dtype or not tensors[0].dtype.is_floating_point:
        return None
    left, right, kept = _aligned(equation, tensors)
    sizes = broadcast(left, right)
    if sizes is None:
        return None
    dims = range(len(sizes))
    sums = [dim for dim in dims if dim >= kept and left[dim] != 1 != right[dim]]
    if any(left[dim] != right[dim] for dim in dims[kept:]):  # torch first sums a dim that only one operand has
        return None
    out = Spec(sizes[:kept], left.dtype)
    if not sums:
        if any(is_odd(each, each.strides) for each in (left, right)):
            return None
        lying = pointwise(sizes, [(each, each.strides) for each in (left, right)])
        lying = lying if lying is None or len(sizes) == kept else viewed(placed(Spec(sizes), lying), out)
        return None if lying is None else Result(out, lying)
    both = [dim for dim in dims[:kept] if left[dim] != 1 != right[dim]]
    of_left = [dim for dim in dims[:kept] if left[dim] != 1 == right[dim]]
    of_right = [dim for dim in dims if dim not in (*both, *of_left, *sums)]
    if of_left and of_right and of_right[-1] < of_left[0] and swaps():
        left, right, of_left, of_right = right, left, of_right, of_left
    # The product has size 1 in the summed dims, and in dims where both operands have size 1.
    product_of = both, of_left, of_right
    batch, rows, columns, inner = (
        math.prod(max(left[dim], right[dim]) for dim in dims) for dims in (*product_of, sums)
    )
    lifetimes = Lifetimes()
    copies = [
        lifetimes.make(Spec(sizes, left.dtype))
        for operand, order, sizes in (
            (left, (*both, *of_left, *sums), (batch, rows, inner)),
            (right, (*both, *sums, *of_right), (batch, inner, columns)),
        )
        if viewed(placed(Spec(tuple([operand[dim] for dim in order])), [operand.strides[dim] for dim in order]), sizes)
        is None
    ]
    lifetimes.make(out)
    lifetimes.free(*copies)
    order = [*both, *of_left, *sums, *of_right]
    shape = [1 if dim in sums else sizes[dim] for dim in order]
    lying = viewed(placed(Spec((batch, rows, columns)), contiguous((batch, rows, columns))), shape)
    if lying is None:
        return None
    strides = dict(zip(order, lying, strict=True))
    aligned = placed(Spec(tuple([1 if dim in sums else sizes[dim] for dim in dims])), [strides[dim] for dim in dims])
    final = viewed(aligned, out) if len(dims) > kept else aligned.strides
    return None if final is None else Result(out, final, lifetimes.alive_at_peak(out))


def _aligned(equation: str, tensors: Sequence[Placed]) -> tuple[Placed, Placed, int]:
    """Return both operands with all dims in the same order, and the number of dims of the result. Raises ValueError for a diagonal."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    terms = [_labels(_tokens(term), spec.ndim) for term, spec in zip(inputs.split(","), tensors, strict=True)]
    counts = Counter(chain(*terms))
    spanned = sorted((label for label in counts if isinstance(label, tuple)), key=lambda label: label[1])
    letters = sorted(label for label in counts if isinstance(label, str))
    if arrow:
        output = [label for token in _tokens(result) for label in (spanned if token is ... else [token])]
    else:
        output = [*spanned, *(letter for letter in letters if counts[letter] == 1)]
    labels: list[Any] = [*output, *(label for label in (*spanned, *letters) if label not in output)]
    if len({*labels}) < len(labels) or len(labels) != len(counts):
        raise ValueError("a label of the result is repeated, or is missing in all operands")
    operands = []
    for term, tensor in zip(terms, tensors, strict=True):
        if len({*term}) < len(term):
            raise ValueError("an operand repeats a label: diagonals, as in 'ii->i', are not supported here")
        # If an operand lacks a dim, torch appends the dim with size 1 and stride 1.
        sizes: dict[Any, int] = dict(zip(term, tensor, strict=True))
        strides: dict[Any, int] = dict(zip(term, tensor.strides, strict=True))
        operands.append(
            placed(
                Spec(tuple([sizes.get(label, 1) for label in labels]), tensor.dtype),
                [strides.get(label, 1) for label in labels],
            )
        )
    return operands[0], operands[1], len(output)


@cache
def swaps() -> bool:
    """Return True if this version of torch swaps the operands when the result has their dims in the opposite order."""
    with DisableTorchFunction(), disable_current_modes():
        x = torch.empty(2, 2, device="meta")
        return bool(torch.einsum("ij,jk->ki", x, x).is_contiguous())

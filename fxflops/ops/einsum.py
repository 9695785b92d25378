"""torch.einsum, by one fixed path: from left to right, two operands at a time, whatever optimizer is installed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from types import EllipsisType
from typing import Any

import torch.backends.opt_einsum as optimizer

from ._extend import Cost, Spec, contraction, formula, named, specs_in, summed

Label = str | tuple[EllipsisType, int]
Sizes = dict[Label, int]


@formula(*named("einsum"))
def einsum(*operands: Any, out: Spec) -> Cost:
    """a[m, k], b[k, n] -> out[m, n]: k multiplies and k-1 adds per result of each product, k being what ends in it.

    What one operand has alone and the result lacks is summed first (adds only). A diagonal is a view, and so is a dim
    of length 1, which broadcasts. Elementwise and outer products are contractions over nothing: 1 multiply per result.
    """
    return summed(*steps(operands))


def steps(operands: Sequence[Any], path: Sequence[Sequence[int]] = ()) -> Iterator[Cost]:
    """The cost of each step: first the sums over dims of one operand alone, then each product of two.

    ``path`` are the positions of the two, whose product then comes last; without it they go from left to right.
    """
    terms, output = _parse(operands)
    in_order = [(0, 1), *((0, left - 1) for left in range(len(terms) - 1, 1, -1))] if len(terms) > 1 else [(0,)]
    for pair in path or in_order:
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


def path_taken(operands: Sequence[Any], strategy: str) -> Sequence[Sequence[int]]:
    """The path on which torch takes the products by opt_einsum; none where it is not installed here, or leaves no choice."""
    given = list(specs_in(tuple(operands)))
    if len(given) < 3 or not optimizer.is_available():
        return ()
    contract_path = optimizer.get_opt_einsum().contract_path
    path: Sequence[Sequence[int]] = contract_path(operands[0], *map(tuple, given), shapes=True, optimize=strategy)[0]
    return path


def by_path(operands: Sequence[Any], path: Sequence[Sequence[int]]) -> Cost:
    """The cost of the products on this path."""
    return summed(*steps(operands, path))


def _numel(sizes: Sizes) -> int:
    return math.prod(sizes.values())


def _parse(operands: Sequence[Any]) -> tuple[list[Sizes], set[Label]]:
    """The labelled sizes of each operand, and the labels of the result. An einsum written with lists of numbers torch itself
    writes as an equation before it calls."""
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
    # A dim of length 1 broadcasts: it is in no product.
    sizes = [
        {label: size for label, size in zip(dims, spec, strict=True) if size != 1}
        for dims, spec in zip(labels, specs, strict=True)
    ]
    return sizes, kept


def _tokens(term: str) -> list[Any]:
    """The letters of one operand, its three dots as one Ellipsis."""
    before, dots, after = term.partition("...")
    return [*before, *([...] if dots else []), *after]


def _labels(tokens: Sequence[Any], ndim: int) -> list[Label]:
    """One label per dim: those of an Ellipsis are told by their distance from its last."""
    spanned: list[Label] = [(..., -i) for i in range(ndim - len(tokens) + 1, 0, -1)]
    return [label for token in tokens for label in (spanned if token is ... else [token])]

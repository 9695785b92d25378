"""spconv's sparse convolutions. A rulebook pairs each output point with input points, which are multiplied by weights and summed.

Each pair takes a product [1, i] x [i, o]: https://github.com/traveller59/spconv/blob/master/spconv/pytorch/functional.py, after
https://arxiv.org/abs/1711.10275, section 3. The number of pairs is read where the rulebook is built. A run on meta builds no rulebook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..records.facts import fact_in
from ..torch_internals import DisableTorchFunction, disable_current_modes
from ._extend import Cost, Spec, added_up, first, summed, when
from ._libraries import Values, gradients_of, library

FUNCTIONS, OPS = "spconv.pytorch.functional", "spconv.pytorch.ops"
PAIRS, PLACES = "points", "places"
"""The names of a rulebook's facts: the number of pairs of points, and the number of kernel positions with at least one pair."""
INDICES = (
    *(f"{FUNCTIONS}:{name}" for name in ("indice_conv", "indice_subm_conv", "indice_inverse_conv", "implicit_gemm")),
    *(f"{OPS}:{name}" for name in ("indice_conv", "implicit_gemm")),
)


def facts(values: Values) -> Mapping[str, int]:
    """Return the number of pairs of all kernel positions, and the number of positions with at least one pair."""
    # inputs[place, point] is the index of an input point, or -1.
    with DisableTorchFunction(), disable_current_modes():
        inputs = values["indice_pairs"][0] if values.get("pair_fwd") is None else values["pair_fwd"]
        pairs = (inputs >= 0).sum(-1)
        return {PAIRS: int(pairs.sum()), PLACES: int((pairs > 0).sum())}


@library(*INDICES, op="sparse_conv", facts=facts)
def sparse_conv(*, features: Spec, filters: Spec, bias: Spec | None = None, out: Any) -> Cost:
    """features[n, i], filters[o, *, i], pairs -> out[m, o]: i * o multiply-accumulates per pair, minus 1 add per output."""
    outputs = first(out).numel()
    products = fact_in(out, PAIRS, 0) * features[-1] * filters[0]
    return added_up(products, outputs).plus(Cost(adds=outputs * (bias is not None)))


@sparse_conv.backward(*gradients_of(*INDICES), op="sparse_conv_backward")
def sparse_conv_backward(*, grad: Any, features: Spec, filters: Spec, needs: Sequence[str], out: Any) -> Cost:
    """grad[m, o], features[n, i], filters[o, *, i] -> out[n, i], out_filters[o, *, i]: i * o multiply-accumulates per pair for each gradient."""
    outputs = first(grad).numel()
    products = fact_in(grad, PAIRS, 0) * features[-1] * filters[0]
    return summed(
        when("features" in needs, added_up(products, features.numel())),
        when("filters" in needs, added_up(products, fact_in(grad, PLACES, 0) * features[-1] * filters[0])),
        when("bias" in needs, Cost(adds=outputs - filters[0])),
    )

"""Matrix products of many groups in one call (mixture of experts), and of scaled low-precision matrices."""

from __future__ import annotations

from ._extend import Cost, Spec, added_up, contraction, formula, named


@formula(*named("grouped_mm", "_grouped_mm"))
def grouped_mm(input: Spec, mat2: Spec, *, bias: Spec | None = None, out: Spec) -> Cost:
    """input[t, k] or [g, t, k] @ mat2[g, k, n] or [k, n] -> out[*, n]: k multiplies and k-1 adds per output, plus 1 add with a bias.

    If neither operand has a group dim, the groups split k, and out is [g, t, n].
    """
    if input.ndim == mat2.ndim == 2:
        cost = added_up(input.numel() * mat2[-1], out.numel())
    else:
        cost = contraction(input[-1], out.numel())
    return cost.plus(Cost(adds=out.numel() if bias is not None else 0))


@formula(*named("_scaled_grouped_mm", "_scaled_grouped_mm_v2"), op="grouped_mm")
def scaled_grouped_mm(input: Spec, mat2: Spec, *, bias: Spec | None = None, out: Spec) -> Cost:
    """input[t, k] or [g, t, k] @ mat2[g, k, n] or [k, n] -> out[*, n]: counted like grouped_mm, plus 2 multiplies by scales per output."""
    return grouped_mm(input, mat2, bias=bias, out=out).plus(Cost(muls=2 * out.numel()))


@formula(*named("_scaled_mm", "_scaled_mm_v2"))
def scaled_mm(input: Spec, mat2: Spec, *, bias: Spec | None = None, out: Spec) -> Cost:
    """input[m, k] @ mat2[k, n] -> out[m, n]: per output, k multiplies, k-1 adds and 2 multiplies by scales, plus 1 add with a bias."""
    return contraction(input[-1], out.numel(), bias is not None).plus(Cost(muls=2 * out.numel()))

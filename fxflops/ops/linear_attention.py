"""flash-linear-attention: linear attention, retention, gated linear attention and delta rules, counted as recurrences.

For each token and head, the state S[k, v] decays, and a key times a value is added; then a query reads the state: S = g S + k v',
o = S' (scale * q): https://arxiv.org/abs/2312.06635, equation 3. In the delta rule, the value is (v - S' k) times beta:
https://arxiv.org/abs/2406.06484. The library's reference code, ``naive.py`` of each op, computes the same:
https://github.com/fla-org/flash-linear-attention/tree/main/fla/ops. Chunked kernels multiply more to use matrix units; the count does
not depend on the chunk size. Gradients are those of the recurrence; recomputing its states is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._extend import Cost, Spec, contraction, summed, times, when
from ._libraries import gradients_of, library

OPS = "fla.ops"


class Recurrence:
    """The sizes of a recurrence. ``states`` is the number of state elements of all tokens and heads; each output sums ``k`` state elements.

    ``decays`` are the decay tensors. ``fixed`` means that each head has a constant decay, which gets no gradient.
    """

    def __init__(
        self, q: Spec, v: Spec, decays: Sequence[Spec] = (), fixed: bool = False, beta: Spec | None = None, unit: bool = False,
        sequences: int | None = None,
    ) -> None:  # fmt: skip
        self.k, self.values, self.queries = q[-1], v.numel(), q.numel()
        self.keys = v.numel() // v[-1] * q[-1]
        self.states = self.values * q[-1]
        self.first = self.states // (v[0] * v[1]) * (sequences or v[0])
        self.decays = [decay.numel() for decay in decays]
        self.fixed, self.beta = fixed, 0 if beta is None else v.numel() // v[-1]
        self.unit, self.rows = unit, q.numel() // q[-1]

    def forward(self) -> Cost:
        states = self.states
        return summed(
            when(self.unit, times(2, unit_rows(self.rows, self.k))),
            Cost(muls=self.queries),
            *(Cost(muls=states, others=number) for number in self.decays),
            Cost(muls=states * self.fixed),
            when(self.beta, contraction(self.k, self.values).plus(Cost(muls=self.values, adds=self.values))),
            Cost(macs=states, muls=states, adds=states),
            contraction(self.k, self.values),
        )

    def backward(self) -> Cost:
        states, keys, values = self.states, self.keys, self.values
        later = states - self.first
        decayed = len(self.decays) + self.fixed
        taken = states if self.decays else later  # the initial state needs a gradient only for its decay
        delta = summed(
            Cost(muls=values),  # the value, times beta
            Cost(muls=values, adds=values - self.beta),  # beta
            Cost(
                macs=states, muls=states, adds=states - keys + keys
            ),  # the key through S' k, added to its other gradient
            Cost(macs=taken, muls=taken, adds=taken),  # the state through S' k
        )
        return summed(
            when(self.unit, times(2, unit_rows_backward(self.rows, self.k))),
            Cost(macs=states, muls=states, adds=states - keys),  # queries
            Cost(muls=self.queries, adds=keys - self.queries),  # their scale, and sums over heads that share a query
            Cost(macs=states, muls=states, adds=later),  # the state: through its output, plus through the next token
            times(decayed, Cost(muls=later)),
            Cost(macs=states, muls=states, adds=states - keys),  # keys
            Cost(adds=keys - self.queries),
            Cost(macs=states, muls=states, adds=states - values),  # values
            *(Cost(muls=states + number, adds=states - number) for number in self.decays),
            when(self.beta, delta),
        )


def unit_rows(rows: int, k: int) -> Cost:
    """Return the cost of x * rsqrt(sum of x * x + eps) for each row."""
    return Cost(muls=2 * rows * k, adds=rows * k, others=rows)


def unit_rows_backward(rows: int, k: int) -> Cost:
    """Return the cost of (grad - X * sum of grad * X) * r for each row, with X = x * r saved."""
    return Cost(muls=3 * rows * k, adds=rows * (k - 1) + rows * k)


def result(q: Spec, v: Spec, initial_state: Any = None, output_final_state: bool = False, cu_seqlens: Any = None, normalize: bool = False) -> Any:  # fmt: skip
    """Return o[b, t, h, v], and the last state [b, h, k, v] if requested."""
    sequences = v[0] if cu_seqlens is None else cu_seqlens[0] - 1
    state = Spec((sequences, v[2], q[-1], v[-1]), torch.float32) if output_final_state else None
    if normalize and state is not None:
        return Spec(v, v.dtype), (state, Spec((v[0], 1, *q[2:]), torch.float32))
    return Spec(v, v.dtype), state


def of(q: Spec, v: Spec, cu_seqlens: Any = None, **options: Any) -> Recurrence:
    return Recurrence(q, v, sequences=None if cu_seqlens is None else cu_seqlens[0] - 1, **options)


LINEAR = tuple(f"{OPS}.linear_attn.{each}:{each}_linear_attn" for each in ("chunk", "fused_chunk", "fused_recurrent"))


@library(*LINEAR, op="linear_attention", result=result)
def linear_attention(*, q: Spec, v: Spec, normalize: bool = False, cu_seqlens: Any = None, out: Any) -> Cost:
    """q[b, t, h, k], k[b, t, h, k], v[b, t, h, v] -> out[b, t, h, v]: 2k multiply-accumulates per output; q is scaled."""
    n, rows = q.numel(), v.numel() // v[-1]
    # o / (sum of q * scale * the keys so far + eps)
    divided = summed(Cost(adds=n), contraction(q[-1], rows), Cost(adds=rows, others=v.numel()))
    return of(q, v, cu_seqlens).forward().plus(when(normalize, divided))


@linear_attention.backward(*gradients_of(*LINEAR), op="linear_attention_backward")
def linear_attention_backward(*, q: Spec, v: Spec, normalize: bool = False, cu_seqlens: Any = None, out: Any) -> Cost:
    """grad[b, t, h, v], q[b, t, h, k], k[b, t, h, k], v[b, t, h, v] -> out_q, out_k, out_v: 4k multiply-accumulates per output."""
    n, values, rows = q.numel(), v.numel(), v.numel() // v[-1]
    # With o = x / d, the gradient of x is grad / d, and the gradient of d is -sum of grad * o / d.
    # The gradient of d flows to q and to the keys so far. Each key sums this gradient over all later tokens.
    divided = summed(
        Cost(others=values),
        Cost(muls=values, adds=values - rows, others=2 * rows),
        Cost(muls=2 * n, adds=n),
        Cost(adds=2 * n),
    )
    return of(q, v, cu_seqlens).backward().plus(when(normalize, divided))


RETENTION = tuple(f"{OPS}.retention.{each}:{each}_retention" for each in ("chunk", "fused_chunk", "fused_recurrent"))
LIGHTNING = tuple(f"{OPS}.lightning_attn.{each}:{each}_lightning_attn" for each in ("chunk", "fused_recurrent"))


@library(*RETENTION, *LIGHTNING, op="linear_attention", result=result)
def retention(*, q: Spec, v: Spec, cu_seqlens: Any = None, out: Any) -> Cost:
    """q[b, t, h, k], k[b, t, h, k], v[b, t, h, v] -> out[b, t, h, v]: counted like linear_attention, plus k multiplies per output by the head's decay."""
    return of(q, v, cu_seqlens, fixed=True).forward()


@retention.backward(*gradients_of(*RETENTION, *LIGHTNING), op="linear_attention_backward")
def retention_backward(*, q: Spec, v: Spec, cu_seqlens: Any = None, out: Any) -> Cost:
    """grad[b, t, h, v], q[b, t, h, k], k[b, t, h, k], v[b, t, h, v] -> out_q, out_k, out_v: counted like linear_attention_backward, plus the decay of the state's gradient."""
    return of(q, v, cu_seqlens, fixed=True).backward()


def decays_in(given: dict[str, Any]) -> dict[str, Any]:
    """Return the decay tensors among the arguments, and whether each head has a fixed decay."""
    decays = [given[name] for name in ("g", "gk", "gv") if given.get(name) is not None]
    return {"decays": decays, "fixed": given.get("g_gamma") is not None}


GATED = (
    *(f"{OPS}.simple_gla.{each}:{each}_simple_gla" for each in ("chunk", "fused_chunk", "fused_recurrent")),
    *(f"{OPS}.gla.{each}:{each}_gla" for each in ("chunk", "fused_recurrent")),
)


@library(*GATED, op="linear_attention", result=result)
def gated_linear_attention(*, q: Spec, v: Spec, cu_seqlens: Any = None, out: Any, **given: Any) -> Cost:
    """q[b, t, h, k], v[b, t, h, v], g[b, t, h] or g[b, t, h, k] -> out[b, t, h, v]: counted like linear_attention, plus exp(g) and the products of exp(g) with the state."""
    return of(q, v, cu_seqlens, **decays_in(given)).forward()


@gated_linear_attention.backward(*gradients_of(*GATED), op="linear_attention_backward")
def gated_linear_attention_backward(*, q: Spec, v: Spec, cu_seqlens: Any = None, out: Any, **given: Any) -> Cost:
    """grad[b, t, h, v], q[b, t, h, k], v[b, t, h, v], g[*] -> out_q, out_k, out_v, out_g: 4k multiply-accumulates per output."""
    return of(q, v, cu_seqlens, **decays_in(given)).backward()


DELTA = (
    *(f"{OPS}.delta_rule.{each}:{each}_delta_rule" for each in ("chunk", "fused_recurrent")),
    *(f"{OPS}.gated_delta_rule.{each}:{each}_gated_delta_rule" for each in ("chunk", "fused_recurrent")),
    *(f"{OPS}.kda.{each}:{each}_kda" for each in ("chunk", "fused_recurrent")),
)


@library(*DELTA, op="delta_rule", result=result)
def delta_rule(*, q: Spec, v: Spec, beta: Spec | None = None, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None, out: Any, **given: Any) -> Cost:  # fmt: skip
    """q[b, t, h, k], v[b, t, h, v], beta[b, t, h] -> out[b, t, h, v]: 3k multiply-accumulates per output; q is scaled; g decays the state."""
    options = {**decays_in(given), "beta": v if beta is None else beta, "unit": use_qk_l2norm_in_kernel}
    return of(q, v, cu_seqlens, **options).forward()


@delta_rule.backward(*gradients_of(*DELTA), op="delta_rule_backward")
def delta_rule_backward(*, q: Spec, v: Spec, beta: Spec | None = None, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None, out: Any, **given: Any) -> Cost:  # fmt: skip
    """grad[b, t, h, v], q[b, t, h, k], v[b, t, h, v], beta[b, t, h] -> out_q, out_k, out_v, out_beta: 6k multiply-accumulates per output."""
    options = {**decays_in(given), "beta": v if beta is None else beta, "unit": use_qk_l2norm_in_kernel}
    return of(q, v, cu_seqlens, **options).backward()

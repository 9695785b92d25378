"""Connectionist temporal classification: the recursion over times and states on counting numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops.records import Cost, Spec
from tests.oracle import Number, cost_by_name, cost_of, tallying

T, N, C, S = 6, 2, 5, 2
LOG_PROBS = torch.rand(T, N, C).log_softmax(2)
TARGETS = torch.ones(N, S, dtype=torch.long)
LENGTHS, LABELS = (6, 4), (2, 1)


def state(a: Number, b: Number, c: Number, log_prob: Number) -> Number:
    """The logarithm of the sum of three, relative to the largest, and the label's own."""
    m = a.maximum(b).maximum(c)
    return ((a - m).exp() + (b - m).exp() + (c - m).exp()).log() + m + log_prob


def recursion(lengths: tuple[int, ...], labels: tuple[int, ...]) -> Cost:
    with tallying() as tally:
        for t, s in zip(lengths, labels, strict=True):
            for _ in range(t * (2 * s + 1)):
                state(Number(), Number(), Number(), Number())
    return Cost(muls=tally.muls, adds=tally.adds, others=tally.others)


def test_lengths_as_numbers() -> None:
    expected = recursion(LENGTHS, LABELS)
    assert cost_of(F.ctc_loss, LOG_PROBS, TARGETS, LENGTHS, LABELS, reduction="none") == expected
    assert cost_of(torch.ctc_loss, LOG_PROBS, TARGETS, LENGTHS, LABELS, 0, 0) == expected
    assert cost_of(torch.ops.aten._ctc_loss.default, LOG_PROBS, TARGETS, LENGTHS, LABELS) == expected
    for name in ("_cudnn_ctc_loss", "miopen_ctc_loss"):
        args = Spec((T, N, C)), Spec((N, S)), LENGTHS, LABELS, 0, False, False
        assert cost_by_name(f"aten::{name}", *args, out=None) == expected


@pytest.mark.parametrize(("reduction", "number"), [("mean", 1), ("sum", 2)])
def test_reductions(reduction: str, number: int) -> None:
    """The sum; the mean divides each loss by its labels first."""
    expected = recursion(LENGTHS, LABELS).plus(Cost(adds=N - 1, others=N + 1 if reduction == "mean" else 0))
    assert cost_of(F.ctc_loss, LOG_PROBS, TARGETS, LENGTHS, LABELS, reduction=reduction) == expected
    assert cost_of(torch.ctc_loss, LOG_PROBS, TARGETS, LENGTHS, LABELS, 0, number) == expected
    if reduction == "mean":
        assert cost_of(F.ctc_loss, LOG_PROBS, TARGETS, LENGTHS, LABELS) == expected


def test_lengths_as_tensors_are_taken_for_the_longest() -> None:
    expected = recursion((T, T), (S, S))
    lengths = torch.tensor(LENGTHS), torch.tensor(LABELS)
    assert cost_of(nn.CTCLoss(reduction="none"), LOG_PROBS, TARGETS, *lengths) == expected
    flat = torch.ones(4, dtype=torch.long), torch.tensor(LENGTHS), torch.tensor([2, 2])
    assert cost_of(F.ctc_loss, LOG_PROBS, *flat, reduction="none") == expected
    one = LOG_PROBS[:, 0], TARGETS[0], torch.tensor(T), torch.tensor(S)
    assert cost_of(F.ctc_loss, *one, reduction="none") == recursion((T,), (S,))
    assert cost_of(F.ctc_loss, *one) == recursion((T,), (S,)).plus(Cost(others=2)), "the mean, of one"

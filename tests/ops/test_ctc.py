"""Connectionist temporal classification on counting numbers: the recursion over times and states, and its gradient from the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops.records import Cost, Spec
from tests.ops.textbook import agrees, is_counting
from tests.oracle import Number, cost_by_name, cost_of, tallying

aten = torch.ops.aten
T, N, C, S = 6, 2, 5, 2
LOG_PROBS = torch.rand(T, N, C).log_softmax(2)
TARGETS = torch.ones(N, S, dtype=torch.long)
LENGTHS, LABELS = (6, 4), (2, 1)


def state(a: Number, b: Number, c: Number, log_prob: Number) -> Number:
    """log(exp(a) + exp(b) + exp(c)), computed relative to the largest, plus the label's log probability."""
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
    assert cost_of(aten._ctc_loss.default, LOG_PROBS, TARGETS, LENGTHS, LABELS) == expected
    for name in ("_cudnn_ctc_loss", "miopen_ctc_loss"):
        args = Spec((T, N, C)), Spec((N, S)), LENGTHS, LABELS, 0, False, False
        assert cost_by_name(f"aten::{name}", *args, out=None) == expected


@pytest.mark.parametrize(("reduction", "number"), [("mean", 1), ("sum", 2)])
def test_reductions(reduction: str, number: int) -> None:
    """A sum adds the losses; a mean first divides each loss by its number of labels."""
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


def log_sum(*terms: Any) -> Any:
    """The logarithm of a sum of exponentials, computed relative to the largest."""
    if not is_counting(terms[0]):
        return np.logaddexp.reduce(terms)
    largest, total = terms[0], (terms[0] - terms[0]).exp()
    for term in terms[1:]:
        largest, total = largest.maximum(term), total + (term - largest).exp()
    return total.log() + largest


def gradient_from_the_end(g, log_probs, targets, steps, labels, loss, log_alpha, blank):
    """Run the recursion from the end, as the forward runs it from the start. Then add up, per class, what passes through each state."""
    times, rows, classes = log_probs.shape
    never = log_probs.flat[0] if is_counting(log_probs) else -1e30
    out = np.full(log_probs.shape, 0.0, dtype=object)
    for n in range(rows):
        path = [label for target in targets[n] for label in (blank, target)] + [blank]
        beta = [never] * (len(path) - 1) + [0.0 if never == -1e30 else never]
        for t in reversed(range(times)):
            skips = [s + 2 < len(path) and path[s + 2] not in (blank, path[s]) for s in range(len(path))]
            later = [*beta, never, never]
            beta = [
                log_sum(later[s], later[s + 1], later[s + 2] if skips[s] else never) + log_probs[t, n, path[s]]
                for s in range(len(path))
            ]
            through = [never] * classes
            for s, label in enumerate(path):
                through[label] = log_sum(through[label], log_alpha[n, t, s] + beta[s])
            for c in range(classes):
                log_prob = log_probs[t, n, c]
                out[t, n, c] = (np.exp(log_prob) - np.exp(through[c] + loss[n] - log_prob)) * g[n]
    return out


def test_the_gradient() -> None:
    log_probs = torch.randn(6, 2, 5, dtype=torch.double).log_softmax(2)
    targets, lengths = torch.tensor([[1, 3], [2, 2]]), ([6, 6], [2, 2])
    loss, log_alpha = aten._ctc_loss(log_probs, targets, *lengths)
    g = torch.randn(2, dtype=torch.double)
    agrees(aten._ctc_loss_backward.default, gradient_from_the_end, g, log_probs, targets, *lengths, loss, log_alpha, 0)

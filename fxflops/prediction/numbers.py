"""Fit the numbers of a family's formula to measured times."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType

import torch
from torch import Tensor

from .hardware import Card

STEPS, BATCH, RATE = 300, 500, 0.08


def fitted_numbers(
    formula: ModuleType,
    card: Card,
    dtype: str,
    features: Tensor,
    seconds: Tensor,
    fixed: Collection[str] = (),
    steps: int = STEPS,
) -> dict[str, float]:
    """Return the numbers of ``formula`` that minimise the mean absolute error of the logarithm of the seconds. Adam runs for ``steps`` steps.

    ``features[rows, ...]`` and ``seconds[rows]`` are the measurements. Adam starts from the values in ``formula.NUMBERS``. Numbers in
    ``fixed`` keep these values. If the formula has ``FREE``, numbers that are not in ``FREE`` keep them too.
    """
    start = torch.tensor([*formula.NUMBERS.values()], dtype=torch.float64, device="cpu")
    fitted = {*getattr(formula, "FREE", formula.NUMBERS)} - {*fixed}
    free = torch.tensor([name in fitted for name in formula.NUMBERS], device="cpu")
    logarithms = start.log().requires_grad_()
    optimizer = torch.optim.Adam([logarithms], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = torch.randperm(len(seconds), generator=generator, device="cpu")[:BATCH]
        numbers = dict(zip(formula.NUMBERS, logarithms.exp(), strict=True))
        predicted = formula.seconds(numbers, card, dtype, features[batch])
        loss = (predicted.log() - seconds[batch].log()).abs().mean()
        [gradient] = torch.autograd.grad(loss, [logarithms])
        logarithms.grad = gradient * free
        optimizer.step()
        schedule.step()
    values = zip(formula.NUMBERS, logarithms.exp().tolist(), strict=True)
    return {name: float(f"{value:.4g}") for name, value in values}

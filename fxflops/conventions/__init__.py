"""Conventions: what counts how much, as tables over the base formulas, keyed by op or by exact spelling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from ..records import Call, Cost, FormulaFunction
from .torch import ROWS as TORCH
from .torch import doubled
from .torch_flops import ROWS as TORCH_FLOPS


@dataclass(frozen=True, slots=True)
class Convention:
    """A name, a line that says what it counts, and how it differs from the base formulas.

    ``rows`` are formulas of its own, by op or exact spelling; what has none is valued by ``of`` from the base cost and the call.
    ``integers`` tells that it makes no difference between integers and real numbers. MACs stay the base formulas'.
    """

    name: str
    summary: str
    rows: Mapping[Any, FormulaFunction] = field(default_factory=dict)
    of: Callable[[Cost, Call], Cost] | None = None
    integers: bool = False


CONVENTIONS = {
    convention.name: convention
    for convention in [
        Convention(
            "torch_flops", "every arithmetic operation of the forward; the totals torch_flops publishes", TORCH_FLOPS
        ),
        Convention(
            "torch",
            "torch.utils.flop_counter.FlopCounterMode: 2 per multiply-accumulate of products, convolutions, attention",
            TORCH,
            of=doubled,
            integers=True,
        ),
    ]
}


def find_convention(name: str | Convention) -> Convention:
    """The convention of this name (or the one given); InputError names those there are."""
    if isinstance(name, Convention):
        return name
    if name not in CONVENTIONS:
        raise InputError(f"unknown convention {name!r}: one of {', '.join(map(repr, CONVENTIONS))}")
    return CONVENTIONS[name]


def list_conventions() -> dict[str, str]:
    """Each convention's name with a line that says what it counts."""
    return {name: convention.summary for name, convention in CONVENTIONS.items()}

"""The FLOPs of a step by a trainer's formula, term by term. The module also compares the terms of two trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from ..errors import InputError
from ..render.columns import Column
from ..render.exports import Table, Tabular
from ..render.table import grid
from ..roofline.devices import Device, find_device
from ._source import Source

TERMS = (
    "input table", "attention projections", "attention scores", "linear attention", "mlp", "router", "experts",
    "shared experts", "norms", "vision", "output layer", "other",
)  # fmt: skip
"""The parts of a model that trainers count or ignore, in the order in which they are printed."""
NOT_COUNTED = "nothing"
Terms = Mapping[str, float | Fraction]
"""FLOPs by :data:`TERMS`."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """The formula of a trainer.

    ``terms`` returns the FLOPs of forward and backward for a batch with these sequence lengths. ``how`` describes what each term counts.
    """

    name: str
    summary: str
    terms: Callable[[Source, tuple[int, ...]], Terms]
    how: Mapping[str, str]


class Term(NamedTuple):
    """A term of a trainer's formula: the part of the model, its FLOPs, and a description of what is counted."""

    name: str
    flops: int
    how: str


@dataclass(frozen=True, slots=True)
class Estimate(Tabular):
    """A trainer's estimate of the FLOPs of a batch, forward and backward, term by term.

    ``lengths`` are the lengths of the batch's sequences, ``tokens`` their sum.
    """

    trainer: str
    lengths: tuple[int, ...]
    terms: tuple[Term, ...]
    provenance: str = field(default="", compare=False)

    @property
    def total(self) -> int:
        return sum(term.flops for term in self.terms)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def per_token(self) -> float:
        return self.total / self.tokens

    def mfu(self, tokens_per_second: float, device: str | Device, dtype: str = "bf16") -> float:
        """Return the MFU that the trainer would print for this number of tokens/s on one device, as a share of the device's peak."""
        return self.per_token * tokens_per_second / find_device(device).peak(dtype)

    @property
    def table(self) -> Table:
        columns = Column("term", "term"), Column("flops", self.trainer, "flops"), Column("how", "counts")
        return Table("estimate", columns, self.terms, provenance=self.provenance)

    def _text(self) -> str:
        top = f"{self.trainer} {self.total:,} FLOPs for {self.tokens:,} tokens: {self.per_token:,.0f} per token"
        return f"{top}\n{grid(self.table.columns, self.table.rows, elidable=('how',))}"


class Difference(NamedTuple):
    """A term for which two trainers differ. The term has the FLOPs by each trainer's formula, and what each trainer counts."""

    term: str
    flops_a: int
    flops_b: int
    how_a: str
    how_b: str

    @property
    def difference(self) -> int:
        return self.flops_b - self.flops_a


@dataclass(frozen=True, slots=True)
class Comparison(Tabular):
    """The terms for which two estimates of a batch differ, the largest difference first. Their differences add up to the difference of the
    totals."""

    a: Estimate
    b: Estimate

    @property
    def rows(self) -> tuple[Difference, ...]:
        of_a, of_b = ({term.name: term for term in each.terms} for each in (self.a, self.b))
        found = []
        for name in TERMS:
            one, other = (of.get(name, Term(name, 0, NOT_COUNTED)) for of in (of_a, of_b))
            if one.flops != other.flops:
                found.append(Difference(name, one.flops, other.flops, one.how, other.how))
        return tuple(sorted(found, key=lambda row: -abs(row.difference)))

    @property
    def table(self) -> Table:
        a, b = self.a.trainer, self.b.trainer
        columns = (
            Column("term", "term"), Column("flops_a", a, "flops"), Column("flops_b", b, "flops"),
            Column("difference", "difference", "flops"), Column("counts_a", f"{a} counts"), Column("counts_b", f"{b} counts"),
        )  # fmt: skip
        rows = [(row.term, row.flops_a, row.flops_b, row.difference, row.how_a, row.how_b) for row in self.rows]
        return Table("differences", columns, tuple(rows), provenance=self.a.provenance)

    def _text(self) -> str:
        a, b = self.a, self.b
        share = f" ({b.total / a.total - 1:+.1%})" if a.total else ""
        top = f"{a.trainer} {a.total:,}   {b.trainer} {b.total:,}   {b.total - a.total:+,}{share}"
        if not self.rows:
            return f"{top}\nno term differs"
        return f"{top}\n{grid(self.table.columns, self.table.rows, elidable=('counts_a', 'counts_b'))}"


def estimated(trainer: Trainer, source: Source, lengths: tuple[int, ...]) -> Estimate:
    """Return a trainer's estimate for a batch with these sequence lengths. Raises InputError if the lengths are invalid, or if the config
    does not have a field that the formula reads."""
    if not lengths or min(lengths) < 1:
        raise InputError(
            f"lengths must list the length of each sequence in the batch, such as [512, 1024], not {[*lengths]!r:.80}"
        )
    try:
        flops = trainer.terms(source, lengths)
    except (AttributeError, RuntimeError) as error:  # transformers raises RuntimeError for fields that vary by layer
        raise InputError(f"{trainer.name}'s formula reads a field that the config lacks: {error}") from error
    terms = (Term(name, round(flops[name]), trainer.how.get(name, NOT_COUNTED)) for name in TERMS if flops.get(name))
    return Estimate(trainer.name, lengths, tuple(terms), source.provenance)

"""The formulas of trainers: how each trainer estimates the FLOPs of a training step, and why two estimates differ.

>>> from fxflops import trainers
>>> print(trainers.estimate("verl", config, lengths=[512, 1024]))            # doctest: +SKIP
>>> print(trainers.explain("verl", "fxflops", config, lengths=[512, 1024]))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import InputError, did_you_mean
from ..symbolic.forms import ClosedForm
from . import hugging_face, maxtext, megatron, palm, six_nd, torchtitan, true_count, verl
from ._source import Source
from ._terms import Comparison, Difference, Estimate, Term, Trainer, estimated
from .active import ActiveParameters, active_parameters

__all__ = [
    "ActiveParameters", "Comparison", "Difference", "Estimate", "Term", "active_parameters", "estimate", "explain", "list_trainers",
]  # fmt: skip

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        *(true_count.TRAINER, six_nd.TRAINER, palm.TRAINER, hugging_face.TRAINER),
        *(torchtitan.TRAINER, torchtitan.WITH_WINDOWS),
        *(megatron.TRAINER, maxtext.TRAINER, verl.TRAINER),
    )
}


def list_trainers() -> dict[str, str]:
    """Return a description of each trainer's formula, by the trainer's name. "fxflops" is the true count."""
    return {name: trainer.summary for name, trainer in TRAINERS.items()}


def estimate(
    trainer: str,
    source: Any,
    lengths: Iterable[int] | int | None = None,
    *,
    images: Iterable[int] = (),
    closed_form: ClosedForm | None = None,
) -> Estimate:
    """Return a trainer's estimate of the FLOPs of a batch, forward and backward, term by term.

    Args:
        trainer: a name in :func:`list_trainers`.
        source: a Report from ``count(..., backward=True)``, a model, or a transformers config, which may be the dict in config.json.
            If a formula needs the parameter count, the config's model is built on the meta device. For the trainer "fxflops", this model is counted.
        lengths: the lengths of the batch's sequences, or an int for a batch of one sequence. The default is the lengths in the report's inputs.
        images: the number of patches of each image in the batch. Only verl counts the vision encoder.
        closed_form: the model's closed form with ``backward=True``. Its sizes are batch and sequence length, or only the sequence length.
            For the trainer "fxflops", the closed form is then evaluated for each length, instead of counting the model.

    Raises InputError for an unknown trainer. The function also raises InputError if the source does not have the data that the trainer's
    formula needs.
    """
    return _estimates([trainer], Source(source, images, closed_form), lengths)[0]


def explain(
    a: str,
    b: str,
    source: Any,
    lengths: Iterable[int] | int | None = None,
    *,
    images: Iterable[int] = (),
    closed_form: ClosedForm | None = None,
) -> Comparison:
    """Explain why two trainers estimate different FLOPs for a batch. The result lists the terms that differ, and what each trainer counts for them.

    See :func:`estimate` for the arguments.
    """
    return Comparison(*_estimates([a, b], Source(source, images, closed_form), lengths))


def _estimates(names: Iterable[str], source: Source, lengths: Iterable[int] | int | None) -> list[Estimate]:
    known = source.lengths if lengths is None else (lengths,) if isinstance(lengths, int) else tuple(lengths)
    return [estimated(_trainer(name), source, known) for name in names]


def _trainer(name: str) -> Trainer:
    if name not in TRAINERS:
        raise InputError(
            f"unknown trainer {name!r}{did_you_mean(name, TRAINERS) or '; expected one of ' + ', '.join(TRAINERS)}"
        )
    return TRAINERS[name]

"""The true count of a training step, split into the terms of trainers' formulas: 2 FLOPs per multiply-accumulate that ran."""

from __future__ import annotations

from collections import Counter

from ._source import Source, module_term
from ._terms import TERMS, Terms, Trainer

WITH_WEIGHTS = ("linear", "grouped_mm", "conv")


def terms(source: Source, lengths: tuple[int, ...]) -> Terms:
    """Return 2 x MACs of forward and backward by term. FLOPs of other operations are in the term "other"."""
    terms_of = {module.path: module_term(module) for module in source.modules}
    weighed = {module.path for module in source.modules if module.params}
    found: Counter[str] = Counter()
    for times, products, flops in source.training_of(lengths):
        for path, op, macs in products:
            term = terms_of.get(path, "other")
            if term == "attention projections" and path not in weighed and op not in WITH_WEIGHTS:
                term = "attention scores"
            found[term] += times * 2 * macs
        found["other"] += times * (flops - 2 * sum(macs for _, _, macs in products))
    return found


HOW = dict.fromkeys(TERMS, "2 x multiply-accumulates that ran") | {
    "input table": "the additions that accumulate the gradient of the table",
    "experts": "2 x multiply-accumulates for the tokens sent to each expert",
    "other": "all other operations, e.g. norms, activations, softmax, loss",
}
TRAINER = Trainer("fxflops", "the true count: 2 x MACs that run, plus all other operations", terms, HOW)

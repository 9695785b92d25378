"""Classify a call's arithmetic: integer, real or complex. The dtype in which torch computes decides, not the dtype of ``out=``."""

from __future__ import annotations

from typing import Any

import torch

from ..names import name_of, target_of
from ..ops._apply import tensors
from ..records import Operation, Spec, specs_in
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, OpOverload, disable_current_modes

COMPARISONS = frozenset("eq ne lt le gt ge isin bucketize searchsorted".split())
"""Ops that compare in the operands' common dtype; their results, booleans and indices, do not show it."""
TOLERANT = frozenset("isclose allclose".split())
"""Comparisons with a fractional tolerance, for which torch converts integers to floats."""
CONVERTING = frozenset("sum nansum prod cumsum cumprod mean nanmean softmax log_softmax".split())
"""Ops that first convert their input to the result's dtype: ``dtype=``, or the dtype of ``out=``."""
TORCHS = "aten::", "torch:", "torch."
"""Name prefixes of torch's own functions. A count calls no others."""


def is_integral(ran: Operation) -> bool:
    """Return whether an operation computes with integers or booleans; False if it has no tensors."""
    given = operands(ran)
    if ran.op in CONVERTING:
        return _all_integral([*specs_in(ran.out)] or given)
    if any(not spec.is_integral for spec in given):
        return False
    if ran.op in COMPARISONS:
        numbers = [value for value in (*ran.args, *ran.kwargs.values()) if isinstance(value, float | complex)]
        return bool(given) and not numbers
    if ran.op in TOLERANT:
        return False
    return _all_integral([*given, *results(ran)])


def is_complex(ran: Operation) -> bool:
    """Return whether an operation computes with complex numbers. torch converts real operands if any operand is complex."""
    given = operands(ran)
    if ran.op in CONVERTING:
        given = [*specs_in(ran.out)] or given
    return any(spec.dtype.is_complex for spec in (*given, *results(ran)))


def operands(ran: Operation) -> list[Spec]:
    """Return the tensors that an operation computes with, including a module's own, except those that it only writes to."""
    written = _written(ran)
    kwargs = {name: value for name, value in ran.kwargs.items() if name not in written}
    own = [value for value in ran.settings.values() if type(value) is Spec]
    return [*specs_in(ran.args), *specs_in(kwargs), *own]


def results(ran: Operation) -> list[Spec]:
    """Return the results in the dtypes in which they are computed; with ``out=``, the dtypes that the call returns without it."""
    written = _written(ran)
    out = _without(written, ran) if written else ran.out
    return [*specs_in(out)]


def _all_integral(specs: list[Spec]) -> bool:
    return bool(specs) and all(spec.is_integral for spec in specs)


def _written(ran: Operation) -> frozenset[str]:
    """Return the names of the keyword arguments that an operation writes its results to."""
    if not ran.kwargs:
        return frozenset()
    names = {"out"}
    if isinstance(ran.target, OpOverload):
        names |= {each.name for each in ran.target._schema.arguments if each.is_out}
    return frozenset(names.intersection(ran.kwargs))


def _without(written: frozenset[str], ran: Operation) -> Any:
    """Return the specs of the results that the call would return without these arguments, from the meta kernels."""
    kwargs = {name: value for name, value in ran.kwargs.items() if name not in written and name != "device"}
    target = target_of(ran.target) if isinstance(ran.target, str) else ran.target
    if not operands(ran) or not name_of(target).startswith(TORCHS):
        return ran.out
    if isinstance(target, OpOverload):
        target = target.overloadpacket
    try:
        with DisableTorchFunction(), disable_current_modes(), torch.no_grad():
            return spec_of(target(*tensors(ran.args), **tensors(kwargs)))
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return ran.out  # no meta kernel, e.g. for nonzero, whose results are indices anyway

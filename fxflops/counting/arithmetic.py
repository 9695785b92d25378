"""Decide whether the arithmetic of a call is integer, real or complex. The kind of arithmetic depends on the dtype in which torch computes
the call. The dtype of ``out=`` may differ."""

from __future__ import annotations

from typing import Any

import torch

from ..names import name_of, target_of
from ..ops._apply import tensors
from ..records import Operation, Spec, specs_in
from ..records.tensors import spec_of
from ..torch_internals import DisableTorchFunction, OpOverload, disable_current_modes

COMPARISONS = frozenset("eq ne lt le gt ge isin bucketize searchsorted".split())
"""Ops that compare in the operands' common dtype. The results are booleans or indices, so they do not show this dtype."""
TOLERANT = frozenset("isclose allclose".split())
"""Comparisons with a fractional tolerance, for which torch converts integers to floats."""
CONVERTING = frozenset("sum nansum prod cumsum cumprod mean nanmean softmax log_softmax".split())
"""Ops that first convert the input to the result's dtype, which is ``dtype=`` or the dtype of ``out=``."""
TORCHS = "aten::", "torch:", "torch."
"""Name prefixes of torch's own functions. Only these functions are called while counting."""


def is_integral(operation: Operation) -> bool:
    """Return whether an operation computes with integers or booleans; False if the operation has no tensors."""
    # Check the first argument first: in most operations it is a floating-point tensor, so the operation is not integral.
    first = operation.args[0] if operation.args else None
    if type(first) is Spec and first.dtype.is_floating_point and operation.op not in CONVERTING:
        return False
    inputs = operands(operation)
    if operation.op in CONVERTING:
        return _all_integral([*specs_in(operation.out)] or inputs)
    if any(not spec.is_integral for spec in inputs):
        return False
    if operation.op in COMPARISONS:
        numbers = [
            value for value in (*operation.args, *operation.kwargs.values()) if isinstance(value, float | complex)
        ]
        return bool(inputs) and not numbers
    if operation.op in TOLERANT:
        return False
    return _all_integral([*inputs, *results(operation)])


def is_complex(operation: Operation) -> bool:
    """Return whether an operation computes with complex numbers. If one operand is complex,
    torch converts real operands to complex numbers."""
    inputs = operands(operation)
    if operation.op in CONVERTING:
        inputs = [*specs_in(operation.out)] or inputs
    return any(spec.dtype.is_complex for spec in (*inputs, *results(operation)))


def operands(operation: Operation) -> list[Spec]:
    """Return the tensors that an operation reads, including the tensors of a called module. Tensors that the operation only writes to are
    left out."""
    written = output_arguments(operation)
    kwargs = {name: value for name, value in operation.kwargs.items() if name not in written}
    module_tensors = [value for value in operation.settings.values() if type(value) is Spec]
    return [*specs_in(operation.args), *specs_in(kwargs), *module_tensors]


def results(operation: Operation) -> list[Spec]:
    """Return the results with the dtypes in which torch computes them. For a call with ``out=``, these are the results of the
    same call without ``out=``."""
    written = output_arguments(operation)
    out = _without(written, operation) if written else operation.out
    return [*specs_in(out)]


def output_arguments(operation: Operation) -> frozenset[str]:
    """Return the names of the keyword arguments that an operation writes its results to."""
    if not operation.kwargs:
        return frozenset()
    names = {"out"}
    if isinstance(operation.target, OpOverload):
        names |= {argument.name for argument in operation.target._schema.arguments if argument.is_out}
    return frozenset(names.intersection(operation.kwargs))


def _all_integral(specs: list[Spec]) -> bool:
    return bool(specs) and all(spec.is_integral for spec in specs)


def _without(written: frozenset[str], operation: Operation) -> Any:
    """Run the call on the meta device, and return the specs of its results. Arguments in ``written`` are left out."""
    kwargs = {name: value for name, value in operation.kwargs.items() if name not in written and name != "device"}
    target = target_of(operation.target) if isinstance(operation.target, str) else operation.target
    if not operands(operation) or not name_of(target).startswith(TORCHS):
        return operation.out
    if isinstance(target, OpOverload):
        target = target.overloadpacket
    try:
        with DisableTorchFunction(), disable_current_modes(), torch.no_grad():
            return spec_of(target(*tensors(operation.args), **tensors(kwargs)))
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return operation.out  # there is no meta kernel, e.g. for nonzero, which returns indices anyway

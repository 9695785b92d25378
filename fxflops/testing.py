"""Check a formula against a reference in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from .api import count
from .errors import InputError
from .records import Cost
from .records.tensors import spec_of
from .render.text import align
from .report.report import Report

PHASES = ("forward", "backward")


def check_formula(
    op: Callable[..., Any],
    reference: Callable[..., Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backward: bool = False,
    rtol: float = 0.0,
) -> None:
    """Check the formula of an operation against a reference function that computes the same result in plain torch.

    ``op`` and ``reference`` are both called with ``args`` and ``kwargs``, and both calls are counted, on the meta device if possible. The
    formula must count a call of ``op`` as one operation. The MACs and FLOPs of this operation must equal those of the reference under the
    convention "fxflops". The results of ``op`` and ``reference`` must have the same shapes and dtypes.

    Args:
        op: the operation that has the formula: a function, an operator of ``torch.ops``, or a module.
        reference: a function with the textbook definition, written with operations that fxflops can count.
        args: the positional arguments as a tuple; anything else is passed as a single argument.
        backward: whether to check the costs of the backward pass, too.
        rtol: the largest difference in FLOPs that is allowed, as a share of the reference's FLOPs. MACs must be equal.

    Raises AssertionError, with both costs, if the costs differ. The function also raises AssertionError if no formula counts ``op``, or if
    the results do not match. InputError if the reference has calls without a formula.

    >>> check_formula(torch.ops.mylib.scan, lambda x: x.cumsum(-1), torch.ones(4, 8))
    """
    ours, out = _counted(op, args, kwargs, backward)
    theirs, expected = _counted(reference, args, kwargs, backward)
    name = getattr(op, "_qualified_op_name", getattr(op, "__name__", type(op).__name__))
    if not theirs.complete:
        missing = ", ".join(missing.op for missing in theirs.missing)
        raise InputError(
            f"the reference has calls without a formula: {missing}. Write the reference with torch's own operations"
        )
    if not ours.complete:
        missing = ", ".join(missing.op for missing in ours.missing)
        raise AssertionError(f"no formula counts {missing}, called by {name}. To register one:\n{ours.recipe()}")
    counting = [each.call.op for each in ours.counted if each.call.phase == "forward" and any(each.cost)]
    if len(counting) > 1:
        raise AssertionError(
            f"no formula counts {name} as a whole; instead the calls inside it are counted: {', '.join(counting)}"
        )
    if out != expected:
        raise AssertionError(f"{name} returns {out}, but the reference returns {expected}")
    rows = [
        (phase, kind, getattr(cost, kind), getattr(by_reference, kind))
        for phase in PHASES[: 1 + backward]
        for cost, by_reference in [(_of_phase(ours, phase), _of_phase(theirs, phase))]
        for kind in ("macs", "flops", *Cost._fields[1:])
    ]
    if any(a != b if kind == "macs" else abs(a - b) > rtol * b for _, kind, a, b in rows if kind in ("macs", "flops")):
        table = [("", "", "formula", "reference"), *((phase, kind, f"{a:,}", f"{b:,}") for phase, kind, a, b in rows)]
        lines = "\n".join(align(table, [False, False, True, True]))
        raise AssertionError(f"the formula of {name} differs from its reference\n{lines}")


class _Calling(nn.Module):
    """A model that calls one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _counted(
    function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None, backward: bool
) -> tuple[Report, Any]:
    """Count one call of a function. Return the report, and the shapes and dtypes of the call's result."""
    returned = list[Any]()

    def noted(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        returned.append(spec_of(out))
        return out

    report = count(_Calling(noted), args, kwargs, backward=backward)
    return report, returned[-1]


def _of_phase(report: Report, phase: str) -> Cost:
    costs = [each.cost for each in report.counted if each.call.phase == phase and each.cost is not None]
    return Cost(*map(sum, zip(*costs, strict=True))) if costs else Cost()

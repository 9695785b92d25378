"""List calls without a cost, and write code that counts these calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from keyword import iskeyword
from typing import NamedTuple

from ..errors import InputError
from ..records import TRITON, Call, Counted, Spec
from ..units import size

IMPORT = "import fxflops"
NO_FORMULA = "no formula"
PASTE = "paste where the model is made"
"""The instruction shown above the code of a recipe."""


class Missing(NamedTuple):
    """An op without a cost. The record has the number of calls, the reason, and the module, shapes and source line of the first call."""

    op: str
    calls: int
    path: str = ""
    shapes: str = ""
    site: str = ""
    why: str = NO_FORMULA

    @property
    def reason(self) -> str:
        """The reason why the op is not counted; "" if the only reason is that the op has no formula."""
        return "" if self.why.startswith(NO_FORMULA) else self.why


def missing_in(counted: Iterable[Counted]) -> tuple[Missing, ...]:
    """Return the ops that are not counted, in order of appearance."""
    groups: dict[str, list[Counted]] = {}
    for each in counted:
        if each.missing:
            groups.setdefault(each.call.op, []).append(each)
    return tuple(_missing(op, same_op) for op, same_op in groups.items())


def _missing(op: str, counted: list[Counted]) -> Missing:
    first = counted[0]
    shapes = f"{', '.join(map(repr, first.call.inputs()))} -> {first.call.out!r}"
    if op.startswith(TRITON):  # a Triton kernel returns nothing: show its grid and the bytes of all tensor arguments
        tensors = [*first.call.inputs()]
        nbytes = size(sum(spec.nbytes for spec in tensors))
        shapes = f"{', '.join(map(repr, tensors))}, grid {first.call.kwargs.get('grid')}, {nbytes}"
    return Missing(op, len(counted), first.call.path, shapes, first.call.site, first.missing)


def recipe(counted: Iterable[Counted]) -> str:
    """Return code that registers a guess for each op without a formula: one operation per output element. Return "" if all ops have
    formulas."""
    first_calls: dict[str, Call] = {}
    for each in counted:
        if each.missing.startswith(NO_FORMULA):
            first_calls.setdefault(each.call.op, each.call)
    return "\n".join([IMPORT, *map(_recipe_for, first_calls.values())]) if first_calls else ""


def _recipe_for(call: Call) -> str:
    """Return the code that follows :data:`IMPORT`. The code is a formula that guesses one operation per element."""
    # The code is pasted beside the user's own, so its name must not replace the op's or another of the user's functions.
    name = "_".join(["flops_of", *re.findall(r"\w+", call.op)])
    parameters, guess = _guess(call)
    return f"@fxflops.formula({_target(call.op)})\ndef {name}({parameters}): return {guess}: a guess"


def _target(op: str) -> str:
    """Return the code of the target that a formula for ``op`` is registered for."""
    if "::" in op and not any(map(iskeyword, re.findall(r"\w+", op))):
        return "torch.ops." + op.replace("::", ".")
    if ":" in op:  # also an operator whose name is a keyword, which no attribute in code can have
        return f'"{op}"'
    return repr(op.rpartition(".")[2]) if op.startswith("Tensor.") else op


def _guess(call: Call) -> tuple[str, str]:
    """Return a formula's parameters, and its result with the unit as a comment: the elements of the call's first tensor result.

    Triton kernels and some operators return no tensor. They write into an argument, so take the last tensor argument as the result. A
    formula cannot take a keyword argument that is called ``out``, because this name stands for the result.
    """
    unit = "# 1 per element"
    if isinstance(call.out, Spec):
        return "*args, out, **kwargs", f"out.numel()  {unit}"
    results = call.out if isinstance(call.out, tuple) else ()
    for i, result in enumerate(results):
        if isinstance(result, Spec):
            return "*args, out, **kwargs", f"out[{i}].numel()  {unit}"
    for name, value in reversed([*call.kwargs.items()]):
        if isinstance(value, Spec) and name != "out":
            return f"*, {name}, out, **kwargs", f"{name}.numel()  {unit}"
    for i, value in reversed([*enumerate(call.args)]):
        if isinstance(value, Spec):
            return "*args, out, **kwargs", f"args[{i}].numel()  {unit}"
    return "*args, out, **kwargs", "1  # 1 per call"


def incomplete(missing: Iterable[Missing], recipe: str) -> str:
    """Return a text that lists the ops that are not counted, with the reasons. The text ends with advice on how to count them."""
    missing = list(missing)
    lines = [f"calls that are not counted: {sum(m.calls for m in missing)}"]
    for m in missing:
        lines += [f"  {m.op} x{m.calls}, first in {m.path or 'the root'}  {m.shapes}  {m.site}".rstrip()]
        lines += [f"    {m.reason}"] if m.reason else []
    return "\n".join([*lines, *([f"To count them, {PASTE}:", recipe] if recipe else [])])


def check_counts_operators(convention: str, counted: Iterable[Counted]) -> None:
    """Raise InputError if a convention counts no operator of a profiler trace. A trace shows neither functions nor modules."""
    products = [each for each in counted if each.macs and not each.count.integer]
    if products and not any(each.flops for each in products):
        raise InputError(
            f"the convention {convention!r} counts calls of functions and modules, but a trace shows only operators: "
            f"use 'fxflops', 'torch', 'torch_flops' or 'ptflops_aten'"
        )

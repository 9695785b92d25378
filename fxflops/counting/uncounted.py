"""List calls without a cost, and write code that counts these calls."""

from __future__ import annotations

from collections.abc import Iterable
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
    """Return the code that follows :data:`IMPORT`. The code is a formula that guesses one operation per output element."""
    name = call.op.rpartition("::")[2].rpartition(".")[2]
    if call.op.startswith(TRITON):  # a Triton kernel returns nothing: take its last tensor argument as the result
        tensor_parameters = [parameter for parameter, value in call.kwargs.items() if isinstance(value, Spec)] or [
            "out"
        ]
        name = call.op.removeprefix(TRITON)
        return (
            f'@fxflops.formula("{call.op}")\n'
            f"def {name}(*, {tensor_parameters[-1]}, out, **kwargs): return {tensor_parameters[-1]}.numel()  # 1 per element: a guess"
        )
    if ":" in call.op and "::" not in call.op:
        target, name = f'"{call.op}"', call.op.partition(":")[2].replace(".", "_")
    elif "::" in call.op:
        target = "torch.ops." + call.op.replace("::", ".")
    else:
        target = repr(name) if call.op.startswith("Tensor.") else call.op
    out = "out" if isinstance(call.out, Spec) or not isinstance(call.out, tuple) else "out[0]"
    return (
        f"@fxflops.formula({target})\ndef {name}(*args, out, **kwargs): return {out}.numel()  # 1 per element: a guess"
    )


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

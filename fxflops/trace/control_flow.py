"""torch's operators of control flow, run as Python would, with the nested operands that otherwise the compiler takes apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..torch_internals import CHECKS_OPERANDS, COND, IN_PYTHON, HigherOrderOperator, tree_flatten, tree_unflatten


def is_control_flow(function: Any) -> bool:
    """Return whether a function is the operator of ``torch.cond``, ``while_loop``, ``map`` or ``scan``."""
    return isinstance(function, HigherOrderOperator) and function.name() in ("cond", "while_loop", "map_impl", "scan")


def python_kernel(function: Any) -> Any:
    """Return what runs a control flow operator as Python would, so that autograd sees what its functions close over.

    Without the compiler, which makes operands of parameters, the operator itself differentiates its operands alone.
    Other functions are returned as they are.
    """
    kernel = function.py_kernels.get(IN_PYTHON) if is_control_flow(function) else None
    if kernel is None:
        return function
    return {"cond": _branched, "while_loop": partial(_looped, kernel)}.get(function.name(), kernel)


@contextmanager
def nested_operands() -> Iterator[None]:
    """Let the operator of ``torch.cond`` take nested operands, for a block in which nothing is compiled."""
    names = vars(sys.modules[COND])
    check = names[CHECKS_OPERANDS]
    names[CHECKS_OPERANDS] = lambda operands: None
    try:
        yield
    finally:
        names[CHECKS_OPERANDS] = check


def _branched(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    return (true_fn if pred else false_fn)(*operands)


def _looped(kernel: Any, cond_fn: Any, body_fn: Any, *operands: Any, **settings: Any) -> Any:
    """Run the kernel of ``while_loop`` with flat results of its body; return the last as nested as it was, if there was one."""
    shapes: list[Any] = []

    def flat(*args: Any) -> tuple[Any, ...]:
        leaves, shape = tree_flatten(body_fn(*args))
        shapes[:] = [shape]
        return tuple(leaves)

    out = kernel(cond_fn, flat, *operands, **settings)
    return tree_unflatten(out, shapes[0]) if shapes else out

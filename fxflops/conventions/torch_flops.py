"""torch_flops (https://github.com/zugexiaodui/torch_flops): the base with two rows that its published totals depend on.

Its README's totals: ViT-B/16 35,164,979,282 and ResNet-50 8,227,340,288.
"""

from __future__ import annotations

from typing import Any

from ..ops._extend import Cost, Spec, first
from ._convention import CONVENTIONS, Convention


def max_pool(input: Spec, kernel_size: Any, *, out: Any) -> Cost:
    """input[*, h, w] -> out[*, y, x]: kernel_size - 1 compares per output, without squaring an int.

    torch_flops reads the int of ``MaxPool2d(3)`` as a window of 3, not 3 x 3: ResNet-50's published total has 2 compares per
    output there. A window written as a tuple costs its product - 1.
    """
    window = kernel_size if isinstance(kernel_size, int) else Spec(kernel_size).numel()
    return Cost(others=(window - 1) * first(out).numel())


def assertion(condition: Any, *, out: Any) -> Cost:
    """condition -> (): 1 for the comparison of Python numbers that a ``torch._assert`` checks; 0 if it checks a tensor.

    ViT-B/16's published total has the two comparisons of its input size.
    """
    return Cost(others=int(isinstance(condition, bool)))


CONVENTION = Convention(
    "torch_flops",
    CONVENTIONS["torch_flops"],
    {"max_pool": max_pool, "_assert": assertion},
)

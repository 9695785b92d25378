"""The totals that torch_flops publishes (https://github.com/zugexiaodui/torch_flops): fxflops's formulas, except for two ops.

torch_flops's README states these totals: ViT-B/16 35,164,979,282 and ResNet-50 8,227,340,288.
"""

from __future__ import annotations

from typing import Any

from ..ops._extend import Cost, Spec, first
from ._convention import CONVENTIONS, Convention


def max_pool(input: Spec, kernel_size: Any, *, out: Any) -> Cost:
    """input[*, h, w] -> out[*, y, x]: kernel_size - 1 compares per output (an int is not squared).

    torch_flops reads the int of ``MaxPool2d(3)`` as a window of 3 elements, not of 3 x 3. So the published total of ResNet-50
    includes 2 compares per output of its max pool. A kernel_size that is a tuple costs the product of its sizes, minus 1.
    """
    window = kernel_size if isinstance(kernel_size, int) else Spec(kernel_size).numel()
    return Cost(others=(window - 1) * first(out).numel())


def assertion(condition: Any, *, out: Any) -> Cost:
    """condition -> (): 1 if ``torch._assert`` checks a comparison of Python numbers, 0 if it checks a tensor.

    The published total of ViT-B/16 includes two comparisons of Python numbers: the model checks the height and width of its input.
    """
    return Cost(others=int(isinstance(condition, bool)))


CONVENTION = Convention(
    "torch_flops",
    CONVENTIONS["torch_flops"],
    {"max_pool": max_pool, "_assert": assertion},
)

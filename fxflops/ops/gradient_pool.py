"""Gradients of pooling: an average's goes to its whole window, a maximum's to where it was. Windows are counted whole."""

from __future__ import annotations

from typing import Any

from ..records import Cost, Spec
from ._registry import formula
from ._spellings import named
from .pool import adaptive_window_elements, window


@formula(*named("avg_pool2d_backward"), op="avg_pool_backward")
def avg_pool2d_backward(grad_output: Spec, input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """grad[*, y, x] -> out[*, h, w]: 1 divide and k adds per element of grad, the first on each output is none."""
    return _average_backward(grad_output, window(kernel_size, 2) * grad_output.numel(), out)


@formula(*named("avg_pool3d_backward"), op="avg_pool_backward")
def avg_pool3d_backward(grad_output: Spec, input: Spec, kernel_size: Any, *, out: Spec) -> Cost:
    """grad[*, z, y, x] -> out[*, d, h, w]: 1 divide and k adds per element of grad, the first on each output is none."""
    return _average_backward(grad_output, window(kernel_size, 3) * grad_output.numel(), out)


@formula(
    *named("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward"),
    *named("mkldnn_adaptive_avg_pool2d_backward"),
)
def adaptive_avg_pool_backward(grad_output: Spec, *, out: Spec) -> Cost:
    """grad[*, m] -> out[*, n]: 1 divide and k adds per element of grad, for its window of k, the first on each output is none."""
    return _average_backward(grad_output, adaptive_window_elements(out, grad_output), out)


@formula(
    *named("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
    *named("max_pool2d_backward", "mkldnn_max_pool2d_backward", "mkldnn_max_pool3d_backward"),
    *named("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
    op="max_pool_backward",
)
@formula(*named("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"), op="adaptive_max_pool_backward")
def max_pool_backward(grad_output: Spec, *, out: Spec) -> Cost:
    """grad[*, m], indices[*, m] -> out[*, n]: 1 add per element of grad, to where its maximum was."""
    return Cost(adds=grad_output.numel())


def _average_backward(grad_output: Spec, added: int, out: Spec) -> Cost:
    return Cost(adds=max(added - out.numel(), 0), others=grad_output.numel())

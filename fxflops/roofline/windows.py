"""The bytes of a call's arguments that the call does not read.

If the stride is larger than the kernel, a convolution or pool skips elements. For example, a 1 x 1 convolution with stride 2 reads a
quarter of its input. Resampling to a smaller size may skip elements too. A grouped product with fewer rows than experts leaves experts
unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ..ops._apply import names_of
from ..records import Call, Spec, specs_in

POOLS = frozenset({"avg_pool", "max_pool", "lp_pool"})
POOL_NAMES = ("input", "kernel_size", "stride", "padding", "dilation")
"""The first parameters of functions such as F.max_pool2d, whose signature cannot be inspected."""
OF_GRADIENTS = frozenset(
    {"avg_pool_backward", "max_pool_backward", "adaptive_avg_pool_backward", "adaptive_max_pool_backward"}
)
"""Backward ops that need only the sizes of the forward's input. They compute from the gradients, and max pools also from the indices of maxima."""
TAPS = {"nearest": 1, "nearest-exact": 1, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4}
"""By interpolation mode, the elements per dim that are read for each output element. The mode "area" reads all elements."""


def unread_bytes(call: Call) -> int:
    """Return how many bytes of a call's arguments the call does not need to read. An example is elements outside all windows."""
    if call.op == "conv" or call.op in POOLS:
        given = _arguments(call)
        return _gaps(given, _input(given), next(specs_in(call.out), None))
    if call.op == "conv_backward":
        return _unread_by_gradients(_arguments(call))
    if call.op in OF_GRADIENTS:
        whole = _arguments(call).get("self")
        return whole.nbytes if isinstance(whole, Spec) else 0
    if call.op == "grouped_mm":
        return _unread_groups(_arguments(call))
    return _unread_by_resampling(call) if call.op == "interpolate" else 0


def _unread_groups(given: Mapping[str, Any]) -> int:
    """Return the bytes of the matrices, e.g. experts' weights, that no row uses. Each row uses one matrix.

    The result is a lower bound: rows may share a matrix.
    """
    rows, matrices = _input(given), given.get("mat2", given.get("mat_b"))
    if not (isinstance(rows, Spec) and isinstance(matrices, Spec)) or rows.ndim != 2 or matrices.ndim != 3:
        return 0
    return max(0, matrices[0] - rows[0]) * matrices.nbytes // max(1, matrices[0])


def _arguments(call: Call) -> dict[str, Any]:
    names = names_of(call.target) or (POOL_NAMES if call.op in POOLS else ())
    if isinstance(call.target, type):  # the input is the first argument of a module's forward
        names = ("input",)
    return {**call.settings, **dict(zip(names, call.args, strict=False)), **call.kwargs}


def _input(given: Mapping[str, Any]) -> Any:
    return given.get("input", given.get("self"))


def _unread_by_gradients(given: Mapping[str, Any]) -> int:
    """Return the unread bytes of a convolution's backward.

    Only the weight's gradient needs the input; only the input's gradient needs the weight.
    """
    whole, weight = _input(given), given.get("weight")
    to_input, to_weight, *_ = given.get("output_mask", (True, True))
    if not isinstance(whole, Spec) or not isinstance(weight, Spec):
        return 0
    unread = 0 if to_input else weight.nbytes
    if not to_weight:
        return unread + whole.nbytes
    # If the call also computes the input's gradient, it writes all elements of this gradient, and zeros in the gaps between windows.
    return unread + (0 if given.get("transposed") else _gaps(given, whole, given.get("grad_output")))


def _gaps(given: Mapping[str, Any], whole: Any, out: Any) -> int:
    """Return the bytes of the input ``whole`` that are outside all windows. ``out`` has one position per window."""
    weight = given.get("weight")
    kernel = given.get("kernel_size") or (weight[2:] if isinstance(weight, Spec) else None)
    known = all(isinstance(spec, Spec) and not spec.facts for spec in (whole, out))
    if kernel is None or not known or ("stride" not in given and "dilation" not in given):
        return 0
    if given.get("transposed") or given.get("padding_mode", "zeros") != "zeros" or given.get("padding") == "same":
        return 0
    # If a pool's kernel size is an int, it applies to every pooled dim, so infer from the shapes how many dims are pooled.
    dims = len(kernel) if isinstance(kernel, tuple) else _dims_of(whole, out)
    padding = 0 if given.get("padding") == "valid" else given.get("padding") or 0
    touched = [
        _touched(s, m, k, step, gap, pad)
        for s, m, k, step, gap, pad in zip(
            whole[-dims:] if dims else (),
            out[-dims:] if dims else (),
            _each(kernel, dims),
            _each(given.get("stride") or kernel, dims),
            _each(given.get("dilation") or 1, dims),
            _each(padding, dims),
            strict=True,
        )
    ]
    read: int = prod(whole[: len(whole) - dims]) * prod(touched) * whole.dtype.itemsize
    return int(whole.nbytes) - read


def _dims_of(whole: Spec, out: Spec) -> int:
    """Return the number of dims with windows, which is at most 3. Dims with windows are all dims except the leading dims, which are equal
    in ``whole`` and ``out``."""
    same = 0
    while same < len(whole) and whole[same] == out[same]:
        same += 1
    return len(whole) - max(same, len(whole) - 3)


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, tuple) else (value,)
    return values * dims if len(values) == 1 else values


def _touched(s: int, m: int, k: int, step: int, gap: int, pad: int) -> int:
    """There are ``m`` windows of ``k`` elements each, whose starts are ``gap`` apart. Return how many of ``s`` elements are in a window."""
    starts = range(-pad, m * step - pad, step)
    if gap > 1 and k > 1:
        return len({start + gap * j for start in starts for j in range(k)} & set(range(s)))
    if step <= k:  # without gaps
        return max(min(starts[-1] + k, s) - max(starts[0], 0), 0) if starts else 0
    return sum(max(min(start + k, s) - max(start, 0), 0) for start in starts)


def _unread_by_resampling(call: Call) -> int:
    given, out = _arguments(call), next(specs_in(call.out), None)
    whole, mode = _input(given), given.get("mode", "nearest" if "nearest" in str(call.target).lower() else "")
    taps = 0 if given.get("antialias") else TAPS.get(mode, 0)
    if not taps or not isinstance(whole, Spec) or out is None or len(whole) < 3:
        return 0
    touched = [min(s, taps * m) for s, m in zip(whole[2:], out[2:], strict=True)]
    return whole.nbytes - prod((*whole[:2], *touched)) * whole.dtype.itemsize

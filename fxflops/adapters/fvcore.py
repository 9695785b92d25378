"""The API of fvcore.nn based on fxflops: counts by operator and module, handles, and tables.

The counts follow ``convention="fvcore"``. Counting leaves the model unchanged. fvcore's own trace updates batch-norm
statistics, and leaves hooks on the model if the model raises an error. The model need not be traceable, and inputs and
outputs need not be tensors: everything that :func:`fxflops.count` accepts works here. nn.Linear is listed as "linear",
as in a trace by current torch; fvcore's documentation shows "addmm", which older versions of torch traced.

Three things differ from fvcore. First, ``unsupported_ops`` lists only calls of functions. The list omits properties (``x.T``) and
arithmetic on sizes (``x.shape[0] * 2``), which a trace shows as ``aten::mul`` because sizes are tensors in a trace. The list also omits the
operators inside F.local_response_norm and F.lp_pool, because fxflops sees each function as one operator. Second, calls that no output needs
are counted; fvcore's trace drops such calls. Third, counts are ints; fvcore returns a float for einsum.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from ._fvcore_analysis import Handle, JitModelAnalysis, charged, elements
from ._fvcore_tables import flop_count_str, flop_count_table, parameter_count, parameter_count_table

__all__ = [
    "ActivationCountAnalysis",
    "FlopCountAnalysis",
    "JitModelAnalysis",
    "activation_count",
    "flop_count",
    "flop_count_str",
    "flop_count_table",
    "parameter_count",
    "parameter_count_table",
]

COUNTED = (
    *("addmm", "bmm", "_convolution", "einsum", "matmul", "mm", "linear"),
    *("batch_norm", "group_norm", "layer_norm", "instance_norm"),
    *("upsample_nearest2d", "upsample_bilinear2d", "adaptive_avg_pool2d", "grid_sampler"),
)
ACTIVATING = ("_convolution", "addmm", "bmm", "einsum", "matmul", "linear")


class FlopCountAnalysis(JitModelAnalysis):
    """Count a model's flops by module and operator. As in fvcore, a multiply-accumulate counts as 1.

    >>> FlopCountAnalysis(nn.Linear(8, 4), torch.randn(5, 8)).total()
    160
    """

    _handles: ClassVar = {f"aten::{name}": charged for name in COUNTED}


class ActivationCountAnalysis(JitModelAnalysis):
    """Count the output elements of a model's convolutions and matrix products, by module and operator.

    >>> ActivationCountAnalysis(nn.Linear(8, 4), torch.randn(5, 8)).total()
    20
    """

    _handles: ClassVar = {f"aten::{name}": elements for name in ACTIVATING}


def flop_count(
    model: nn.Module, inputs: tuple[Any, ...], supported_ops: Mapping[str, Handle] | None = None
) -> tuple[defaultdict[str, float], Counter[str]]:
    """Return the flops of each operator, in billions, and the number of calls of each unsupported operator."""
    return _in_units(FlopCountAnalysis(model, inputs), supported_ops, 1e9)


def activation_count(
    model: nn.Module, inputs: tuple[Any, ...], supported_ops: Mapping[str, Handle] | None = None
) -> tuple[defaultdict[str, float], Counter[str]]:
    """Return the activations of each operator, in millions, and the number of calls of each unsupported operator."""
    return _in_units(ActivationCountAnalysis(model, inputs), supported_ops, 1e6)


def _in_units(
    analysis: JitModelAnalysis, handles: Mapping[str, Handle] | None, unit: float
) -> tuple[defaultdict[str, float], Counter[str]]:
    counts = {op: number / unit for op, number in analysis.set_op_handle(**(handles or {})).by_operator().items()}
    return defaultdict(float, counts), analysis.unsupported_ops()

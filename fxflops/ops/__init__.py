"""The formulas, one file per family; importing this package registers them all."""

from functools import lru_cache

from . import (  # noqa: F401  imported for what they register
    activation,
    aten,
    attention,
    attention_kernels,
    conv,
    conv_transpose,
    ctc,
    distance,
    einsum,
    elementwise,
    embedding,
    fake_quantize,
    fbgemm,
    fft,
    free,
    fused_rnn,
    gradient,
    gradient_embedding,
    gradient_loss,
    gradient_norm,
    gradient_pointwise,
    gradient_pool,
    gradient_resample,
    gradient_vision,
    grouped_mm,
    internal,
    linalg,
    linear,
    loss,
    margin,
    matmul,
    mkldnn_rnn,
    norm,
    onednn,
    optim,
    packed,
    pool,
    quantized,
    quantized_rnn,
    reduce,
    resample,
    rnn,
    shapes_layers,
    shapes_moves,
    shapes_pointwise,
    solve,
    statistics,
    transformer,
    vision,
)
from ._apply import apply
from ._registry import BASE, COMMUNICATION, ESCAPE, Formula, FormulaRegistry, formula, zero

__all__ = ["BASE", "COMMUNICATION", "ESCAPE", "Formula", "FormulaRegistry", "apply", "formula", "zero"]

BASE.fallback = lru_cache(maxsize=4096)(aten.aten_rule)

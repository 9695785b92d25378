"""The formulas, one file per family; importing this package registers them all."""

from functools import lru_cache

from . import (  # noqa: F401  imported for what they register
    activation,
    aten,
    attention,
    batch_norm,
    conv,
    ctc,
    dropout,
    einsum,
    elementwise,
    embedding,
    fake_quantize,
    fbgemm,
    fft,
    free,
    fused_rnn,
    gradient_attention,
    gradient_conv,
    gradient_flash,
    gradient_matmul,
    gradient_rnn,
    grouped_mm,
    internal,
    linalg,
    loss,
    margin,
    matmul,
    norm,
    onednn,
    optim,
    order,
    packed,
    pool,
    quantized,
    reduce,
    resample,
    rnn,
    scatter,
    shapes_layers,
    softmax,
    solve,
    statistics,
    transformer,
    vision,
)
from ._apply import apply
from ._registry import BASE, COMMUNICATION, ESCAPE, Formula, FormulaRegistry, formula, zero

__all__ = ["BASE", "COMMUNICATION", "ESCAPE", "Formula", "FormulaRegistry", "apply", "formula", "zero"]

BASE.fallback = lru_cache(maxsize=4096)(aten.aten_rule)

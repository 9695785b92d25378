"""The formulas, one file per family; importing this package registers them all."""

from functools import lru_cache

from . import (  # noqa: F401  imported for what they register
    activation,
    aten,
    attention,
    attention_kernels,
    attention_steps,
    batch_norm,
    bitsandbytes,
    conv,
    conv_transpose,
    copies,
    ctc,
    distance,
    dropout,
    einsum,
    elementwise,
    embedding,
    fake_quantize,
    fbgemm,
    fft,
    flash_attn,
    free,
    fused_rnn,
    grouped_mm,
    internal,
    linalg,
    linear,
    linear_attention,
    loss,
    margin,
    matmul,
    mkldnn_rnn,
    norm,
    onednn,
    optim,
    order,
    packed,
    pool,
    quantized,
    quantized_rnn,
    reduce,
    resample,
    rnn,
    scatter,
    selective_scan,
    softmax,
    solve,
    statistics,
    transformer,
    vision,
    xformers,
)
from ._apply import apply
from ._registry import BASE, ESCAPE, QUERY, VIEW, Formula, FormulaRegistry, formula, zero

__all__ = ["BASE", "ESCAPE", "QUERY", "VIEW", "Formula", "FormulaRegistry", "apply", "formula", "zero"]

BASE.fallback = lru_cache(maxsize=4096)(aten.aten_rule)

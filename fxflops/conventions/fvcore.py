"""The flops of fvcore 0.1.5 (https://github.com/facebookresearch/fvcore/blob/main/docs/flop_count.md): 1 per multiply-accumulate.

fvcore traces the model with torch.jit. fvcore counts 1 per multiply-accumulate of linear, matmul, mm, bmm, addmm,
einsum and convolutions; biases are free. fvcore counts normalizations, adaptive_avg_pool2d, grid_sample, and nearest
and bilinear upsampling of images by their number of elements. Every other operator in the trace counts 0, e.g.
scaled_dot_product_attention, RNN layers (not RNN cells), baddbmm, mv, and convolutions with ``padding="same"``.
ResNet-50 has 4111512576.

For some inputs fvcore raises an error (a matmul by a vector, a normalization of more than five dims). The count here is then what fvcore's
rules intend. Three differences from fvcore remain. fvcore skips calls that no output needs; here these calls are counted. fvcore skips
calls inside a torch.autograd.Function; here these calls are counted too. fvcore raises an error for TorchScript modules; here the report
lists their operations as missing.

If a model calls operators directly (torch.ops.aten.linear, as torch.export and make_fx programs do), fvcore traces
these operators like functions of torch. Operators without a rule in fvcore count 0 here too, e.g. native_batch_norm,
_adaptive_avg_pool2d and native_layer_norm.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..records import FormulaFunction, Spec, specs_in
from ..torch_internals import C_nn, convolution_with_flags
from ._convention import CALLED, CONVENTIONS, Convention, nothing
from ._rows import batch_norm, flops_of_einsum, normalized, per_input, windows

aten = torch.ops.aten

# Contractions


def linear(input: Spec, weight: Spec, *, out: Spec) -> int:
    """input[*, i], weight[o, i] -> out[*, o]: i per output, none for a bias."""
    return input.numel() * weight[0]


def product(input: Spec, other: Spec, *, out: Spec) -> int:
    """input[*, m, k] @ other[*, k, n] -> out[*, m, n]: n per element of input, ignoring broadcasting."""
    return input.numel() * (other[-1] if other.ndim > 1 else 1)


def reflected_product(input: Spec, other: Spec, *, out: Spec) -> int:
    """other[*, m, k] @ input[*, k, n] -> out[*, m, n]: n per element of other."""
    return product(other, input, out=out)


def product_and_sum(input: Spec, mat1: Spec, mat2: Spec, *, out: Spec) -> int:
    """input[m, n] + mat1[m, k] @ mat2[k, n] -> out[m, n]: k per output."""
    return mat1.numel() * mat2[-1]


def conv(input: Spec, weight: Spec, *, padding: Any = 0, padding_mode: str = "zeros", out: Spec) -> int:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m]: i*prod(k) per output; 0 if the padding is a string such as "same"."""
    return 0 if isinstance(padding, str) and padding_mode == "zeros" else _products(input, weight, out)


def conv_transpose(input: Spec, weight: Spec, *, out: Spec) -> int:
    """input[n, i, *s], weight[i, o, *k] -> out[n, g*o, *m]: o*prod(k) per input."""
    return _products(input, weight, input)


def convolution(input: Spec, weight: Spec, *, transposed: bool, out: Spec) -> int:
    """input[n, g*i, *s], weight[o, i, *k] -> out[n, o, *m]: i*prod(k) per output, or as conv_transpose if it is transposed."""
    return _products(input, weight, input if transposed else out)


def _products(input: Spec, weight: Spec, places: Spec) -> int:
    """Return the number of multiplications in a convolution. A complex multiplication counts as three real ones."""
    return (3 if input.dtype.is_complex else 1) * windows(input, weight, places)


def cell(input: Spec, weight_ih: Spec, weight_hh: Spec, *, out: Any) -> int:
    """input[*, i], weight_ih[g*h, i], weight_hh[g*h, h] -> out[*, h]: as two linear layers, one for the input, one for the state."""
    return math.prod(input[:-1]) * (weight_ih.numel() + weight_hh.numel())


def cell_function(input: Spec, hx: Any, w_ih: Spec, w_hh: Spec, *, out: Any) -> int:
    """input[*, i], w_ih[g*h, i], w_hh[g*h, h] -> out[*, h]: as two linear layers, one for the input, one for the state."""
    return cell(input, w_ih, w_hh, out=out)


def einsum(*operands: Any, out: Spec) -> int:
    """a[m, k], b[k, n] -> out[m, n]: half the FLOPs that numpy.einsum_path prints (four digits) for the best order of products.

    fvcore treats two batched products separately: ``abc,abd->acd`` and ``abc,adc->adb`` count 1 per multiply-accumulate.
    """
    equation, specs = _as_equation(operands)
    letters = dict.fromkeys(letter for letter in equation if letter.isalpha())
    plain = equation.translate({ord(letter): 97 + i for i, letter in enumerate(letters)})
    if plain == "abc,abd->acd":
        return math.prod(specs[0]) * specs[1][-1]
    if plain == "abc,adc->adb":
        return math.prod(specs[0]) * specs[1][1]
    return int(flops_of_einsum(plain, specs) // 2)


def _as_equation(operands: Sequence[Any]) -> tuple[str, list[Spec]]:
    """Return the equation without spaces, and the operands. If the call passes lists of numbers, ``einsum(a, [0, 1], b, [1, 2], [0, 2])``,
    build the equation from the letters that torch uses for these numbers."""
    if isinstance(operands[0], str):
        return operands[0].replace(" ", ""), list(specs_in(tuple(operands)))
    pairs = len(operands) // 2
    terms = ["".join("..." if i is ... else _letter(i) for i in labels) for labels in operands[1 : 2 * pairs : 2]]
    result = "->" + "".join("..." if i is ... else _letter(i) for i in operands[-1]) if len(operands) % 2 else ""
    return ",".join(terms) + result, list(operands[0 : 2 * pairs : 2])


def _letter(label: int) -> str:
    return chr(label + (65 if label < 26 else 71))


# Pooling, upsampling and sampling


def per_output(input: Spec, *, out: Spec) -> int:
    """input[*] -> out[*]: 1 per output."""
    return out.numel()


def four_per_output(input: Spec, *, out: Spec) -> int:
    """input[n, c, *] -> out[n, c, *]: 4 per output, whatever the mode."""
    return 4 * out.numel()


def interpolate(input: Spec, *, mode: str = "nearest", antialias: bool = False, out: Spec) -> int:
    """input[n, c, h, w] -> out[n, c, y, x]: 1 per output (nearest), 4 per output (bilinear) or 1 per input (area); 0 for all other modes."""
    if input.ndim != 4 or antialias:
        return 0
    return {"nearest": out.numel(), "bilinear": 4 * out.numel(), "area": input.numel()}.get(mode, 0)


ROWS: dict[Any, FormulaFunction] = {
    **dict.fromkeys((nn.Linear, F.linear), linear),
    **dict.fromkeys((torch.matmul, torch.linalg.matmul, operator.matmul), product),
    **dict.fromkeys((torch.Tensor.matmul, torch.Tensor.__matmul__), product),
    **dict.fromkeys((torch.mm, torch.Tensor.mm, torch.bmm, torch.Tensor.bmm), product),
    torch.Tensor.__rmatmul__: reflected_product,
    **dict.fromkeys((torch.addmm, torch.Tensor.addmm), product_and_sum),
    torch.einsum: einsum,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d), conv),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), conv_transpose),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), conv_transpose),
    **dict.fromkeys((torch.convolution, convolution_with_flags), convolution),
    **dict.fromkeys((nn.LSTMCell, nn.GRUCell, nn.RNNCell), cell),
    **dict.fromkeys((torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell), cell_function),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), batch_norm),
    **dict.fromkeys((F.batch_norm, torch.batch_norm), batch_norm),
    **dict.fromkeys((nn.LayerNorm, F.layer_norm, torch.layer_norm), normalized),
    **dict.fromkeys((nn.GroupNorm, F.group_norm, torch.group_norm), normalized),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), normalized),
    **dict.fromkeys((F.instance_norm, torch.instance_norm), normalized),
    **dict.fromkeys((nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d, C_nn.adaptive_avg_pool2d), per_input),
    **dict.fromkeys((nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d), interpolate),
    **dict.fromkeys((F.interpolate, F.upsample), interpolate),
    C_nn.upsample_nearest2d: per_output,
    C_nn.upsample_bilinear2d: four_per_output,
    **dict.fromkeys((F.grid_sample, torch.grid_sampler), four_per_output),
}
OPERATORS: dict[Any, FormulaFunction] = {
    aten.linear: linear,
    **dict.fromkeys((aten.matmul, aten.linalg_matmul, aten.mm, aten.bmm), product),
    aten.addmm: product_and_sum,
    aten.einsum: einsum,
    **dict.fromkeys((aten.conv1d, aten.conv2d, aten.conv3d), conv),
    **dict.fromkeys((aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d), conv_transpose),
    **dict.fromkeys((aten.convolution, torch.ops.aten._convolution), convolution),
    **dict.fromkeys((aten.lstm_cell, aten.gru_cell, aten.rnn_tanh_cell, aten.rnn_relu_cell), cell_function),
    aten.batch_norm: batch_norm,
    **dict.fromkeys((aten.layer_norm, aten.group_norm, aten.instance_norm), normalized),
    aten.adaptive_avg_pool2d: per_input,
    aten.upsample_nearest2d: per_output,
    aten.upsample_bilinear2d: four_per_output,
    aten.grid_sampler: four_per_output,
}
"""The formulas for the operators that fvcore counts if the model calls them directly."""

CONVENTION = Convention(
    "fvcore",
    CONVENTIONS["fvcore"],
    {**ROWS, **OPERATORS},
    of=nothing,
    operators=CALLED,
    integers=True,
)

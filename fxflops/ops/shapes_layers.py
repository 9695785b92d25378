"""Shape rules of norms and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from ..records import Spec
from ._rules import ANY, EVEN, KEPT, shape
from .shapes import fits


def batch_normed(input: Spec, training: bool, *weights: Spec | None) -> Spec | None:
    """x[n, c, *] -> out[n, c, *]; where a weight does not fit, or there is but one value to take a mean of, the kernel
    decides."""
    if input.ndim < 2 or not input.dtype.is_floating_point or not input.numel():
        return None
    if training and input.numel() == input[1]:
        return None
    return Spec(input, input.dtype) if all(fits(weight, input[1], input) for weight in weights) else None


@shape(F.batch_norm, layout=KEPT)
def batch_norm(
    input: Spec,
    running_mean: Spec | None,
    running_var: Spec | None,
    weight: Spec | None = None,
    bias: Spec | None = None,
    training: bool = False,
) -> Spec | None:
    """x[n, c, *] -> out[n, c, *]."""
    if not training and (running_mean is None or running_var is None):
        return None
    return batch_normed(input, training, running_mean, running_var, weight, bias)


def batch_norm_of(*dims: int) -> Callable[..., Spec | None]:
    """The rule of BatchNorm modules that take inputs of so many dimensions."""

    def batch_norm(
        input: Spec,
        num_features: int,
        running_mean: Spec | None = None,
        running_var: Spec | None = None,
        weight: Spec | None = None,
        bias: Spec | None = None,
        training: bool = False,
    ) -> Spec | None:
        """x[n, c, *] -> out[n, c, *]."""
        if input.ndim not in dims or input[1] != num_features:
            return None
        return batch_normed(input, training or running_mean is None, running_mean, running_var, weight, bias)

    return batch_norm


shape(nn.BatchNorm1d, layout=KEPT)(batch_norm_of(2, 3))
shape(nn.BatchNorm2d, layout=KEPT)(batch_norm_of(4))
shape(nn.BatchNorm3d, layout=KEPT)(batch_norm_of(5))


@shape(nn.LayerNorm, F.layer_norm, layout=EVEN)
def layer_norm(
    input: Spec, normalized_shape: Sequence[int], weight: Spec | None = None, bias: Spec | None = None
) -> Spec | None:
    """x[*, *n] -> out[*, *n]; where a weight does not fit the kernel decides."""
    sizes = tuple(normalized_shape)
    if not sizes or tuple(input[-len(sizes) :]) != sizes or not input.dtype.is_floating_point or not input.numel():
        return None
    fit = all(w is None or (tuple(w) == sizes and w.dtype is input.dtype) for w in (weight, bias))
    return Spec(input, input.dtype) if fit else None


@shape(nn.RMSNorm, F.rms_norm)
def rms_norm(input: Spec, normalized_shape: Sequence[int], weight: Spec | None = None) -> Spec | None:
    """x[*, *n] -> out[*, *n]."""
    return layer_norm(input, normalized_shape, weight)


@shape(nn.GroupNorm, F.group_norm)
def group_norm(input: Spec, num_groups: int, weight: Spec | None = None, bias: Spec | None = None) -> Spec | None:
    """x[n, c, *] -> out[n, c, *]; where a weight does not fit the kernel decides."""
    if input.ndim < 3 or not input.dtype.is_floating_point or input[1] % num_groups or input.numel() <= input[1]:
        return None
    return Spec(input, input.dtype) if all(fits(w, input[1], input) for w in (weight, bias)) else None


@shape(nn.Embedding, F.embedding, layout=ANY)
def embedding(input: Spec, weight: Spec, padding_idx: int | None = None, max_norm: float | None = None) -> Spec | None:
    """input[*] of integers, weight[v, d] -> out[*, d]."""
    if input.dtype not in (torch.int32, torch.int64) or weight.ndim != 2 or max_norm is not None:
        return None
    if padding_idx is not None and not -weight[0] <= padding_idx < weight[0]:
        return None
    return Spec((*input, weight[1]), weight.dtype)

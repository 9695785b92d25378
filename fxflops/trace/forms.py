"""Tensor metadata on meta: one object for all tensors with equal metadata."""

from __future__ import annotations

from math import prod

import torch

from ..records import Spec

META, OWN, REAL = "on meta", "the model's own, replaced by a meta tensor", "with values"


class Form:
    """A tensor's metadata. The forms of a call's arguments on meta determine the forms of its results.

    ``place`` is META (a meta tensor), OWN (a real tensor that is replaced by a meta tensor in calls) or REAL (a tensor that keeps
    its values). ``without_strides`` is equal for all forms with equal specs.
    """

    __slots__ = ("dtype", "nbytes", "place", "shape", "spec", "stride", "without_strides")

    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, place: str) -> None:
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.place = place
        self.nbytes = prod(shape) * dtype.itemsize
        self.spec = shape if type(shape) is Spec else Spec(shape, dtype, torch.strided)
        self.without_strides = shape, dtype

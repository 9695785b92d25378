"""A call on tensors without elements is counted like any other. It computes nothing, or only what torch adds even for empty
tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxflops
from tests.kinds.calls import Calls

E = torch.empty
SHAPES = [(0, 0), (0, 3), (3, 0), (2, 0, 3), (0, 2, 3), (2, 3, 0), (0, 3, 3), (0, 4, 6, 6), (2, 4, 0, 0)]
ORDERS: list[Any] = ["fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf")]
ONE: dict[str, Callable[[torch.Tensor], Any]] = {
    **{f"matrix_norm {order}": lambda x, order=order: torch.linalg.matrix_norm(x, order) for order in ORDERS},
    **{f"norm {order}": lambda x, order=order: torch.linalg.norm(x, order, dim=(-2, -1)) for order in ORDERS},
    **{f"cond {order}": lambda x, order=order: torch.linalg.cond(x, order) for order in [None, *ORDERS]},
    "torch.norm nuc": lambda x: torch.norm(x, "nuc", dim=(-2, -1)),
    **{name: getattr(torch.linalg, name) for name in "svd svdvals qr eigh eigvalsh eig eigvals det slogdet inv pinv matrix_rank "
       "cholesky lu matrix_exp lu_factor ldl_factor".split()},
    **{name: getattr(torch, name) for name in "sum prod mean var std logsumexp:0 cumsum:0 cumprod:0 logcumsumexp:0 cummax:-1 sort "
       "argsort unique all any count_nonzero diff trace median corrcoef cov triu".split() if ":" not in name},
    **{name: lambda x, name=name: getattr(torch, name)(x, -1) for name in "logsumexp cumsum cumprod cummax softmax log_softmax diff norm".split()},
    "squared": lambda x: x @ x.mT,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x, x.shape[1]),
    "normalize": F.normalize,
    "cosine": lambda x: F.cosine_similarity(x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "linear": lambda x: F.linear(x, torch.ones(4, x.shape[-1])),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "conv": lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3)),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "mse": lambda x: F.mse_loss(x, x),
    "einsum": lambda x: torch.einsum("...ij,...kj->...ik", x, x),
    "fft": torch.fft.fft,
    "kron": lambda x: torch.kron(x, x),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_a_call_on_nothing_is_counted(name: str) -> None:
    ran = 0
    for shape in SHAPES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ONE[name](E(shape))
            except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
                continue
            report = fxflops.count(Calls(ONE[name]), E(shape))
        ran += 1
        assert report.complete, (shape, report.missing)
        assert report.total_macs == 0, shape  # every product here has the empty dimension
    if not ran:
        pytest.skip("torch refuses it")

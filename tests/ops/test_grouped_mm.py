"""Grouped and scaled products, on meta tensors because their kernels need certain GPUs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fxflops.records import Spec
from tests.oracle import cost_by_name, cost_of, numbers, tallying

needs_grouped_mm = pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@needs_grouped_mm
def test_rows_in_groups_each_with_its_matrix():
    """48 tokens and 3 experts: each token meets one expert's matrix."""
    with tallying() as tally:
        numbers(48, 16) @ numbers(16, 32)
    starts = meta(3, dtype=torch.int32)
    assert tally == cost_of(torch._grouped_mm, meta(48, 16), meta(3, 16, 32), starts)
    if hasattr(torch.nn.functional, "grouped_mm"):
        assert tally == cost_of(torch.nn.functional.grouped_mm, meta(48, 16), meta(3, 16, 32), offs=starts)


@needs_grouped_mm
def test_a_batch_is_one_group_each():
    with tallying() as tally:
        np.matmul(numbers(3, 8, 16), numbers(3, 16, 32))
    assert tally == cost_of(torch._grouped_mm, meta(3, 8, 16), meta(3, 16, 32))


@needs_grouped_mm
def test_groups_that_part_what_is_summed():
    with tallying() as tally:
        for k in (8, 24, 16):
            numbers(16, k) @ numbers(k, 32)
    assert tally == cost_of(torch._grouped_mm, meta(16, 48), meta(48, 32), meta(3, dtype=torch.int32))


def test_scaled_products_multiply_each_output_by_two_scales():
    float8 = torch.float8_e4m3fn
    a, b = meta(16, 32, dtype=float8), meta(16, 32, dtype=float8).t()
    scale = meta(1, dtype=torch.float32).reshape(())
    with tallying() as tally:
        numbers(16, 32) @ numbers(32, 16) * numbers(1) * numbers(1)
    assert tally == cost_of(torch._scaled_mm, a, b, scale, scale, out_dtype=torch.bfloat16)
    again = cost_by_name("aten::_scaled_mm_v2", Spec((16, 32)), Spec((32, 16)), *[None] * 6, out=Spec((16, 16)))
    assert tally == again


def test_scaled_products_in_groups():
    with tallying() as tally:
        numbers(48, 16) @ numbers(16, 32) * numbers(1) * numbers(1) + numbers(32)
    given = Spec((48, 16)), Spec((3, 16, 32))
    options = {"out": Spec((48, 32))}
    assert tally == cost_by_name("aten::_scaled_grouped_mm", *given, None, None, Spec((3,)), Spec((32,)), **options)
    scales = [None] * 6
    assert tally == cost_by_name("aten::_scaled_grouped_mm_v2", *given, *scales, Spec((3,)), Spec((32,)), **options)

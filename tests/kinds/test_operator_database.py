"""A sample of ``benchmarks/opinfo.py``: operators of torch's own test databases, for which all ways to count must agree."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest

pytest.importorskip("expecttest", reason="torch's databases need it")

SAMPLE = """
    op/abs op/addcmul op/addmm op/argmax op/bitwise_and op/bmm op/bucketize op/clamp op/cos op/cumsum op/div.no_rounding_mode
    op/eq op/floor_divide op/isclose op/lerp op/linalg.vector_norm op/log_softmax.with_dtype op/matmul op/mean
    op/mul op/nn.functional.cross_entropy op/nn.functional.gelu op/nn.functional.layer_norm op/nn.functional.linear
    op/nn.functional.avg_pool2d op/pow op/prod op/sigmoid op/sort op/sum op/tril op/true_divide op/var op/where
    custom_op/NumpyCubeCustomOp hop/cond.simple module/nn_Linear module/nn_Conv2d module/nn_LSTM optim/AdamW optim/SGD
""".split()


@cache
def entries() -> dict[str, Any]:
    from benchmarks import opinfo_cases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return opinfo_cases.entries()


@pytest.mark.parametrize("key", SAMPLE)
def test_all_ways_to_count_agree(key: str) -> None:
    from benchmarks.opinfo import cause_of
    from benchmarks.opinfo_cases import cases
    from benchmarks.opinfo_checks import Checked

    checks, apart = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases(key, entries()[key], 1):
            result = Checked(case)
            checks += result.made.total() - result.made["does not run"]
            found = [(kind, case.name, what) for kind, what in result.found]
            apart += [each for each in found if not cause_of(key, *each)]
    assert checks > 3
    # Version counters have their own test.
    assert not [each for each in apart if not each[0].startswith("versions")]

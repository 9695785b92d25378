"""convention="calflops": the FLOPs of calflops 0.3.2's own run, on the models of the pool and op by op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from calflops import calculate_flops, calculate_pipline
from torch import nn

from fxflops import Report, count
from tests.conventions.pool import POOL, copied, counted, lent
from tests.conventions.replaced import CASES, CHANGING_SIZES, Runs, applied, of, restored

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning"),
]

RAISING = {"ssdlite": "'list' object has no attribute 'to'", "faster r-cnn": "'list' object has no attribute 'to'"}
"""Models on which the tool raises an AttributeError, because their input is a list of images."""


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Restore torch: the tool leaves Tensor.matmul and others set on Tensor, and all of its replacements if the model raises."""
    with restored():
        yield
    calculate_pipline.module_flop_count.clear()
    calculate_pipline.module_mac_count.clear()


def theirs(model: nn.Module, args: Any, kwargs: Any) -> int:
    model, args, kwargs = copied(model, args, kwargs)
    return calculate_flops(model, args=list(args), kwargs=kwargs, print_results=False, output_as_string=False)[0]


def ours(model: nn.Module, args: Any, kwargs: Any) -> Report:
    return by_it(count(model, args, kwargs))


def by_it(report: Report) -> Report:
    assert report.recount("calflops").total_macs == report.total_macs
    assert report.recount("calflops").total_int_ops == 0
    return report.recount("calflops")


@pytest.mark.parametrize("layer", [nn.ConvTranspose1d(9, 8, 3), nn.ConvTranspose2d(4, 8, 3, (2, 1), bias=True)])
def test_an_image_without_a_batch_is_taken_for_a_batch(layer: nn.Module) -> None:
    x = torch.ones(4, 9, 8) if isinstance(layer, nn.ConvTranspose2d) else torch.ones(9, 8)
    model = nn.Sequential(layer)
    report = ours(model, (x,), {})
    assert report.complete
    assert report.total_flops == theirs(model, (x,), {})


@pytest.mark.parametrize("name", [name for name in POOL if name not in RAISING])
def test_the_number_is_calflopss(name: str) -> None:
    assert by_it(counted(name)).total_flops == theirs(*lent(name))


@pytest.mark.parametrize("name", RAISING)
def test_it_still_raises(name: str) -> None:
    with pytest.raises(AttributeError, match=RAISING[name]):
        theirs(*lent(name))


@pytest.mark.parametrize("name", [*CASES, *CHANGING_SIZES])
def test_each_op_is_charged_as_it_does(name: str) -> None:
    model, x = {**CASES, **CHANGING_SIZES}[name]()
    assert ours(model, x, None).total_flops == theirs(model, (x,), {})


@pytest.mark.filterwarnings("ignore:.nn.functional.upsample. is deprecated:UserWarning")
def test_the_exception_of_upsample() -> None:
    """One call goes through two replaced functions, and the tool charges both. We only see the inner one."""
    model, x = of(lambda x: F.upsample(x, scale_factor=2), 1, 2, 3, 3)
    assert ours(model, x, None).total_flops == 18
    assert theirs(model, (x,), {}) == 2 * 18


def test_several_factors_raise_there() -> None:
    model, x = Runs(applied, nn.Upsample(scale_factor=(2, 3))), torch.randn(1, 2, 3, 3)
    with restored(), pytest.raises(TypeError, match="unsupported operand"):
        theirs(model, (x,), {})
    assert ours(model, x, None).total_flops == 18

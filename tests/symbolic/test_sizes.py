"""Named sizes of inputs, and the inputs at other sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from fxflops import InputError
from fxflops.symbolic.sizes import Inputs, Size


class Two(nn.Module):
    def forward(self, x: torch.Tensor, y: Any = None, **more: Any) -> torch.Tensor:
        return x


X = torch.arange(6.0).reshape(2, 3)


def test_tensors_are_cut_and_repeated() -> None:
    inputs = Inputs(Two(), X, {"y": torch.tensor([5, 6, 7])}, {"x": {1: "n"}, "y": {0: "n"}})
    assert inputs.sizes == (Size("n", 3),)
    (x,), kwargs = inputs.at([5])
    assert x.tolist() == [[0, 1, 2, 0, 1], [3, 4, 5, 3, 4]]
    assert kwargs["y"].tolist() == [5, 6, 7, 5, 6]
    assert inputs.at([1])[1]["y"].tolist() == [5]
    assert X.shape == (2, 3)


def test_dims_have_bounds_and_may_be_derived() -> None:
    n = Dim("n", min=2, max=64)
    inputs = Inputs(Two(), (torch.ones(2, 12),), None, ({0: Dim("batch"), 1: 4 * n},))
    assert inputs.sizes == (Size("batch", 2), Size("n", 3, 2, 64))
    assert inputs.at([1, 5])[0][0].shape == (1, 20)


def test_an_object_has_the_dims_in_each_of_its_tensors() -> None:
    cache = SimpleNamespace(layers=[SimpleNamespace(keys=torch.ones(1, 2, 7), values=torch.ones(1, 2, 7))])
    inputs = Inputs(Two(), X, {"cache": cache}, {"cache": {2: "past"}})
    new = inputs.at([9])[1]["cache"].layers[0]
    assert new.keys.shape == new.values.shape == (1, 2, 9)
    assert cache.layers[0].keys.shape == (1, 2, 7)


def test_parts_of_a_container_have_dims_of_their_own() -> None:
    inputs = Inputs(Two(), X, {"y": [X, X.clone()]}, {"x": None, "y": [None, {0: "b"}]})
    assert [part.shape for part in inputs.at([4])[1]["y"]] == [(2, 3), (4, 3)]


def test_gradients_are_wanted_as_before() -> None:
    inputs = Inputs(Two(), X.clone().requires_grad_(), None, {"x": {0: "b"}})
    assert inputs.at([3])[0][0].requires_grad
    assert inputs.at([3])[0][0].is_leaf


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": {0: "b"}}, "no input is named 'z'"),
        ({"x": {2: "b"}}, "no dim 2"),
        ({"x": {0: Dim.AUTO}}, "needs a name"),
        ({"x": {0: "n", 1: "n"}}, "another dim has n=2"),
        ({"x": {1: 2 * Dim("n")}}, "no value of n gives this length"),
        ({"x": None}, "names no size"),
        ("batch", "must map inputs to dims"),
        ({"y": {"k": {0: "b"}}}, "has no entry 'k'"),
    ],
)
def test_wrong_shapes_are_refused(shapes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Inputs(Two(), X, {"y": [X]}, shapes)

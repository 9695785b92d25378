"""Names of functions and classes resolve to the same objects again, or to stand-ins if those are not installed."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn

from fxflops.conventions import CONVENTIONS, find_convention
from fxflops.names import Absent, Classes, described, name_of, target_of
from fxflops.ops import BASE


class Layer(nn.Linear):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().forward(x) * scale


class Deeper(Layer):
    pass


def test_every_target_of_a_formula_or_a_convention_is_found_again() -> None:
    rows = [key for name in CONVENTIONS for key in find_convention(name).rows]
    targets = [key for key in [*(key for key, _ in BASE.items()), *rows] if not isinstance(key, (str, tuple))]
    assert len(targets) > 1000
    for target in targets:
        name = name_of(target)
        found = Classes({})[name] if isinstance(target, type) else target_of(name)
        assert found == target, name


def test_names() -> None:
    names = {
        torch.add: "torch:add",
        torch.Tensor.add: "torch:Tensor.add",
        torch.Tensor.T.__get__: "torch:Tensor.T.__get__",
        operator.add: "operator:add",
        nn.functional.gelu: "torch.nn.functional:gelu",
        torch.ops.aten.add.Tensor: "aten::add.Tensor",
        torch.ops.aten.relu.default: "aten::relu.default",
        torch.ops.aten.relu: "aten::relu",
        torch.ops.higher_order.cond: "higher_order::cond",
        test_names: f"{__name__}:test_names",
    }
    assert {target: name_of(target) for target in names} == names
    assert {target_of(name): name for name in names.values()} == names


@pytest.mark.parametrize(
    "name",
    [
        "nowhere:f",
        "torch:no_such",
        "torch:Tensor.a.b.c",
        "my::op.x",
        "aten::add.__class__",
        "load_library::__func__",
        "torch:nn",
        "torch:Tensor",
        "",
        ":",
    ],
)
def test_what_is_not_there_is_known_by_name(name: str) -> None:
    found = target_of(name)
    assert isinstance(found, Absent)
    assert name_of(found) == name
    assert found == target_of(name)
    assert found != target_of(f"{name}x")
    assert "::" in name or BASE.find(found) is None  # an operator still has a formula by its name


def test_an_operator_of_a_library_that_is_not_there_keeps_its_formula() -> None:
    for name, op in (("torchvision::roi_align.no_such", "roi_align"), ("torchvision::nms.no_such", "nms")):
        found = BASE.find(Absent(name))
        assert found is not None
        assert found.op == op
        assert found is BASE.find(Absent(name.partition(".")[0]))


def test_a_local_function_is_known_by_name() -> None:
    def local() -> None: ...

    found = target_of(name_of(local))
    assert (found.__name__, found.__qualname__) == ("local", "test_a_local_function_is_known_by_name.<locals>.local")


def test_classes_that_are_not_there() -> None:
    about = described({Deeper, nn.Linear})
    assert set(about) == {f"{__name__}:Deeper", f"{__name__}:Layer"}
    assert about[f"{__name__}:Layer"] == {
        "bases": ["torch.nn.modules.linear:Linear"],
        "forward": ["self", "x", "scale"],
    }
    assert Classes(about)[f"{__name__}:Deeper"] is Deeper
    elsewhere = {name.replace(__name__, "elsewhere"): {**d, "bases": [b.replace(__name__, "elsewhere") for b in d["bases"]]}
                 for name, d in about.items()}  # fmt: skip
    classes = Classes(elsewhere)
    stand_in = classes["elsewhere:Deeper"]
    assert [base.__name__ for base in stand_in.__mro__[:4]] == ["Deeper", "Layer", "Linear", "Module"]
    assert classes["elsewhere:Deeper"] is stand_in
    assert described({stand_in}) == elsewhere
    assert BASE.find_class(stand_in)[1] is BASE.find_class(Deeper)[1]
    assert classes["elsewhere:Unheard"].__mro__ == (classes["elsewhere:Unheard"], object)

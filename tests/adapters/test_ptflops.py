"""ptflops's own documentation and tests with only the import changed; its numbers and printed text match the original's."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import sys
from collections.abc import Callable
from typing import Any

import ptflops
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from fxflops import InputError
from fxflops.adapters import ptflops as ours
from fxflops.adapters.ptflops import get_model_complexity_info


def both(model: nn.Module, input_res: tuple[int, ...], **settings: Any) -> tuple[Any, Any, str, str]:
    """What the original and the adapter return, and print to ``ost``."""
    printed = io.StringIO(), io.StringIO()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = get_model_complexity_info(model, input_res, ost=printed[1], **settings)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    theirs = ptflops.get_model_complexity_info(copy.deepcopy(model), input_res, ost=printed[0], **settings)
    return theirs, result, printed[0].getvalue(), printed[1].getvalue()


class Mixed(nn.Module):
    """Modules with and without charges, some called twice, functions, and its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()) for _ in range(3)])
        self.pool, self.act, self.drop = nn.AdaptiveAvgPool2d(1), nn.LeakyReLU(), nn.Dropout()
        self.mlp = nn.Sequential(nn.Linear(4, 5), self.act, nn.Sequential(self.act, nn.Linear(5, 2)), nn.Sequential())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(F.interpolate(x, scale_factor=2))
        return torch.add(self.drop(self.mlp(self.pool(x).flatten(1))), 1) * self.scale


class Branches(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return torch.matmul(x, x) if y is None else F.relu(x + y)


def test_names_and_signatures() -> None:
    assert set(ptflops.__all__) <= set(vars(ours))
    assert {b.name: b.value for b in ptflops.FLOPS_BACKEND} == {b.name: b.value for b in ours.FLOPS_BACKEND}
    for name in ("get_model_complexity_info", "flops_to_string", "params_to_string"):
        theirs, mine = (inspect.signature(getattr(module, name)).parameters.values() for module in (ptflops, ours))
        assert [(p.name, p.kind) for p in mine] == [(p.name, p.kind) for p in theirs]
        defaults = [getattr(p.default, "value", p.default) for p in theirs if p.name != "ost"]
        assert [getattr(p.default, "value", p.default) for p in mine if p.name != "ost"] == defaults


def test_the_documented_example(capsys: pytest.CaptureFixture[str]) -> None:
    net = torchvision.models.densenet121()
    macs, params = get_model_complexity_info(
        net, (3, 224, 224), as_strings=True, print_per_layer_stat=True, verbose=True
    )
    assert (macs, params) == ptflops.get_model_complexity_info(
        copy.deepcopy(net), (3, 224, 224), print_per_layer_stat=False
    )
    assert params == "7.98 M"
    assert net.training


def test_ost_is_stdout() -> None:
    assert inspect.signature(get_model_complexity_info).parameters["ost"].default in (sys.stdout, sys.__stdout__)


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "numbers": {"as_strings": False},
    "units": {"flops_units": "KMac", "param_units": "K", "output_precision": 4},
    "large units": {"flops_units": "GMac", "param_units": "B", "output_precision": 9},
    "unknown units": {"flops_units": "Mac", "param_units": ""},
    "verbose": {"verbose": True},
    "ignored": {"ignore_modules": [nn.ReLU, nn.Linear, nn.Dropout], "verbose": True},
    "modules alone": {"backend_specific_config": {"count_functional": False}, "as_strings": False},
    "by the backend's name": {"backend": "pytorch"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_numbers_and_prints_are_the_originals(name: str) -> None:
    theirs, mine, printed, ours_printed = both(Mixed(), (4, 6, 6), **SETTINGS[name])
    assert mine == theirs
    assert ours_printed == printed != ""


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": torchvision.models.resnet18,
    "mobilenet_v3_small": torchvision.models.mobilenet_v3_small,
    "vit": lambda: torchvision.models.VisionTransformer(64, 16, 3, 4, 64, 128),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_are_printed_as_the_original_prints(name: str) -> None:
    theirs, mine, printed, ours_printed = both(MODELS[name](), (3, 64, 64), verbose=True)
    assert mine == theirs
    assert ours_printed == printed


def custom(module: Any, input: Any, output: Any) -> None:
    module.__flops__ += int(
        input[0].numel() * output.shape[-1] * len(list(module.children())) + isinstance(module, nn.Module)
    )


def test_hooks_of_the_users() -> None:
    theirs, mine, printed, ours_printed = both(
        Mixed(), (4, 6, 6), custom_modules_hooks={nn.Sequential: custom, nn.Dropout: custom, nn.ReLU: custom}
    )
    assert mine == theirs
    assert ours_printed == printed


@pytest.mark.parametrize("batch", [1, 3])
def test_modules_are_divided_by_the_batch_and_functions_are_not(batch: int) -> None:
    settings = {"as_strings": False, "input_constructor": lambda shape: torch.ones(batch, *shape)}
    theirs, mine, printed, ours_printed = both(Mixed(), (4, 6, 6), **settings)
    assert mine == theirs
    assert ours_printed == printed


def test_keyword_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    def make(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(2, *shape), "y": torch.ones(2, *shape)}

    theirs, mine, _, _ = both(Branches(), (4, 4), input_constructor=make, as_strings=False)
    assert mine == theirs == (32, 0)
    assert capsys.readouterr().out.count("No positional inputs found") == 2


def test_a_model_that_raises(capsys: pytest.CaptureFixture[str]) -> None:
    assert get_model_complexity_info(nn.Linear(3, 2), (4,)) == (None, None)
    mine = capsys.readouterr()
    assert ptflops.get_model_complexity_info(nn.Linear(3, 2), (4,)) == (None, None)
    theirs = capsys.readouterr()
    first = "Flops estimation was not finished successfully because of the following exception: "
    assert mine.out.startswith(f"{first}\n<class 'RuntimeError'>: ")
    assert theirs.out.startswith(f"{first}\n<class 'RuntimeError'>: ")
    assert "Traceback" in mine.err


def test_functions_kept_from_before_do_not_count() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = F.gelu

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(x)

    theirs, mine, _, _ = both(Kept(), (7,), as_strings=False)
    assert mine == theirs == (0, 0)


def test_errors() -> None:
    with pytest.raises(InputError, match="must be a tuple"):
        get_model_complexity_info(nn.Linear(3, 2), [3])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown backend 'jax'; expected one of 'pytorch', 'aten'"):
        get_model_complexity_info(nn.Linear(3, 2), (3,), backend="jax")
    with pytest.raises(InputError):
        get_model_complexity_info("a model", (3,))  # type: ignore[arg-type]


def test_strings() -> None:
    numbers = [0, 999, 1000, 61_706, 429_248, 10**6, 4_131_698_664, 10**12]
    units = [None, "GMac", "MMac", "KMac", "Mac", "B", "M", "K", "k", ""]
    for given in itertools.product(numbers, units, [0, 2, 5]):
        assert ours.flops_to_string(*given) == ptflops.flops_to_string(*given), given
        assert ours.params_to_string(*given) == ptflops.params_to_string(*given), given


# The cases of the original's own tests


def test_conv() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 3, bias=True))
    macs, params = get_model_complexity_info(net, (3, 224, 224), as_strings=False, print_per_layer_stat=False)
    assert (macs, params) == ((27 * 2 + 2) * 222 * 222, 27 * 2 + 2)
    assert macs == 2759904


@pytest.mark.parametrize(("shape", "rows"), [((3,), 1), ((4, 5, 3), 20)])
def test_linear(shape: tuple[int, ...], rows: int) -> None:
    net = nn.Sequential(nn.Linear(3, 2, bias=True))
    macs, params = get_model_complexity_info(net, shape, as_strings=False, print_per_layer_stat=False)
    assert (macs, params) == ((3 * 2 + 2) * rows, 3 * 2 + 2)


@pytest.mark.parametrize("as_dict", [False, True])
def test_input_constructor(as_dict: bool) -> None:
    def make(shape: tuple[int, ...]) -> Any:
        x = torch.ones(1, *shape)
        return {"input": x} if as_dict else x

    settings: dict[str, Any] = {"as_strings": False, "print_per_layer_stat": False}
    assert get_model_complexity_info(nn.Sequential(nn.Linear(3, 2)), (3,), input_constructor=make, **settings) == (8, 8)


def test_interpolate() -> None:
    class Resized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(input=x, size=(20, 20), mode="bilinear", align_corners=False)

    result = get_model_complexity_info(Resized(), (3, 10, 10), as_strings=False, print_per_layer_stat=False)
    assert result == (3 * 20 * 20, 0)

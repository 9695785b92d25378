"""flowflops's documentation and tests, with torch and torchvision in place of oneflow and flowvision."""

from __future__ import annotations

import inspect
import io
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from fxflops import InputError, RunError, formula
from fxflops.adapters.flowflops import get_model_complexity_info
from fxflops.ops import BASE

NUMBERS: dict[str, Any] = {"as_strings": False, "print_per_layer_stat": False}
MODES = ("eager", "graph")


def test_signature() -> None:
    parameters = inspect.signature(get_model_complexity_info).parameters
    assert list(parameters) == [
        "model", "input_res", "print_per_layer_stat", "as_strings", "input_constructor", "ost", "verbose",
        "ignore_modules", "custom_modules_hooks", "mode", "flops_units", "param_units", "output_precision",
    ]  # fmt: skip
    assert parameters["mode"].default == "eager"
    assert parameters["print_per_layer_stat"].default is parameters["as_strings"].default is True
    assert parameters["output_precision"].default == 2


def test_the_documented_example() -> None:
    model = torchvision.models.resnet50()
    dsize = (1, 3, 224, 224)
    found = [get_model_complexity_info(model, dsize, **NUMBERS, mode=mode) for mode in MODES]
    assert found == [(4121925096, 25557032), (4127444456, 25557032)]
    assert get_model_complexity_info(model, dsize, print_per_layer_stat=False) == ("4.12 GMac", "25.56 M")


def test_print_per_layer_stat() -> None:
    printed = io.StringIO()
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.SiLU())
    assert get_model_complexity_info(model, (2, 3, 6, 6), ost=printed, verbose=True) == ("896 Mac", "56")
    assert printed.getvalue() == (
        "Warning: module SiLU is treated as a zero-op.\n"
        "Sequential(\n"
        "  56, 100.000% Params, 896.0 Mac, 100.000% MACs, \n"
        "  (0): Conv2d(56, 100.000% Params, 896.0 Mac, 100.000% MACs, 3, 2, kernel_size=(3, 3), stride=(1, 1))\n"
        "  (1): SiLU(0, 0.000% Params, 0.0 Mac, 0.000% MACs, )\n"
        ")\n"
    )


def test_units_and_ignored_modules() -> None:
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU())
    settings: dict[str, Any] = {"print_per_layer_stat": False, "flops_units": "KMac", "param_units": "K"}
    assert get_model_complexity_info(model, (1, 100), **settings) == ("5.1 KMac", "5.05 K")
    assert get_model_complexity_info(model, (1, 100), **settings, ignore_modules=[nn.Linear]) == ("0.05 KMac", "5.05 K")


def test_a_formula_of_ones_own_is_for_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    monkeypatch.setattr(BASE, "entries", dict(BASE.entries))
    formula(Own)(lambda module, x, *, out: 3 * out.numel())
    net = nn.Sequential(nn.ReLU(), Own())
    one, four = (get_model_complexity_info(net, (batch, 10), **NUMBERS)[0] for batch in (1, 4))
    assert one == four == 10 + 3 * 10


def test_errors() -> None:
    with pytest.raises(InputError, match="unknown mode 'static'; expected one of 'eager', 'graph'"):
        get_model_complexity_info(nn.Linear(3, 2), (1, 3), mode="static")
    with pytest.raises(InputError, match="input_res must be a tuple with the shape of the input"):
        get_model_complexity_info(nn.Linear(3, 2), [1, 3])  # type: ignore[arg-type]
    with pytest.raises(RunError):
        get_model_complexity_info(nn.Linear(3, 2), (1, 4), **NUMBERS)


# The cases of the original's own tests


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("batch", "groups"), [(3, 1), (2, 64)])
def test_conv(mode: str, batch: int, groups: int) -> None:
    net = nn.Sequential(nn.Conv2d(64, 128, 3, 1, 1, groups=groups, bias=False))
    weights = 3 * 3 * 64 * 128 // groups
    assert get_model_complexity_info(net, (batch, 64, 28, 28), **NUMBERS, mode=mode) == (weights * 28 * 28, weights)


def test_linear_without_bias_of_one_sample() -> None:
    net = nn.Linear(100, 200, bias=False)
    assert get_model_complexity_info(net, (5, 15, 100), **NUMBERS) == (5 * 15 * 100 * 200, 100 * 200)
    assert get_model_complexity_info(net, (5, 15, 100), **NUMBERS, mode="graph") == (5 * 15 * 100 * 200, 100 * 200)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "inputs", "outputs"), [(1, 7, 3), (31, 12, 40)])
def test_linear(mode: str, n: int, inputs: int, outputs: int) -> None:
    flops, params = get_model_complexity_info(nn.Linear(inputs, outputs), (n, inputs), **NUMBERS, mode=mode)
    assert (flops, params) == (n * inputs * outputs + outputs, inputs * outputs + outputs)


@pytest.mark.parametrize("mode", MODES)
def test_relu_and_pool(mode: str) -> None:
    assert get_model_complexity_info(nn.ReLU(inplace=True), (1, 100), **NUMBERS, mode=mode) == (100, 0)
    assert get_model_complexity_info(nn.MaxPool2d(2, 2), (1, 1, 64, 64), **NUMBERS, mode=mode) == (64 * 64, 0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2, bias=False), nn.BatchNorm2d(64),
            nn.BatchNorm2d(64, track_running_stats=False), nn.ELU(), nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2), nn.InstanceNorm2d(192), nn.PReLU(),
            nn.AvgPool2d(kernel_size=3, stride=2), nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.LeakyReLU(inplace=True), nn.Conv2d(384, 256, kernel_size=3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, kernel_size=3, padding=1), nn.ReLU6(), nn.MaxPool2d(kernel_size=3, stride=2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(256 * 6 * 6, 4096, bias=False), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


@pytest.mark.filterwarnings("ignore:input's size at dim=1 does not match num_features:UserWarning")
def test_both_modes_agree_on_layers() -> None:
    eager, graph = (get_model_complexity_info(Net(), (4, 3, 227, 227), **NUMBERS, mode=mode)[0] for mode in MODES)
    assert eager == graph


def test_the_modes_differ_by_the_sums_in_the_forward() -> None:
    net = torchvision.models.resnet18()
    eager, graph = (get_model_complexity_info(net, (4, 3, 224, 224), **NUMBERS, mode=mode)[0] for mode in MODES)
    assert int(graph) - int(eager) == 2 * (256 * 56 * 56 + 512 * 28 * 28 + 1024 * 14 * 14 + 2048 * 7 * 7)

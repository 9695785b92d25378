"""pytorch-profiler's documentation, run with only the import changed: its example prints the documented text."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision.models as models
from torch import nn

from fxflops.adapters import pytorch_profiler as prof
from fxflops.adapters.pytorch_profiler import get_model_profile, training_profile
from fxflops.errors import InputError

from ..standin import StandIn

PRINTED = """\
LeNet5(
  61.71 k, 100.000% Params, 429.248 KMac, 100.000% MACs, <time>
  (feature_extractor): Sequential(
    50.69 k, 82.151% Params, 418.328 KMac, 97.456% MACs, <time>
    (0): Conv2d(156, 0.253% Params, 122.304 KMac, 28.493% MACs, <time> 1, 6, kernel_size=(5, 5), stride=(1, 1))
    (1): Tanh(0, 0.000% Params, 0 Mac, 0.000% MACs, <time> )
    (2): AvgPool2d(0, 0.000% Params, 4.704 KMac, 1.096% MACs, <time> kernel_size=2, stride=2, padding=0)
    (3): Conv2d(2.42 k, 3.915% Params, 241.6 KMac, 56.284% MACs, <time> 6, 16, kernel_size=(5, 5), stride=(1, 1))
    (4): Tanh(0, 0.000% Params, 0 Mac, 0.000% MACs, <time> )
    (5): AvgPool2d(0, 0.000% Params, 1.6 KMac, 0.373% MACs, <time> kernel_size=2, stride=2, padding=0)
    (6): Conv2d(48.12 k, 77.983% Params, 48.12 KMac, 11.210% MACs, <time> 16, 120, kernel_size=(5, 5), stride=(1, 1))
    (7): Tanh(0, 0.000% Params, 0 Mac, 0.000% MACs, <time> )
  )
  (classifier): Sequential(
    11.01 k, 17.849% Params, 10.92 KMac, 2.544% MACs, <time>
    (0): Linear(10.16 k, 16.472% Params, 10.08 KMac, 2.348% MACs, <time> in_features=120, out_features=84, bias=True)
    (1): Tanh(0, 0.000% Params, 0 Mac, 0.000% MACs, <time> )
    (2): Linear(850, 1.377% Params, 840 Mac, 0.196% MACs, <time> in_features=84, out_features=10, bias=True)
  )
)
Top 3 modules in flops at depth 2 are {'Conv2d': '412.02 KMac', 'Linear': '10.92 KMac', 'AvgPool2d': '6.3 KMac'}
Top 3 modules in params at depth 2 are {'Conv2d': '50.69 k', 'Linear': '11.01 k', 'Tanh': '0'}
"""


class LeNet5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        features = nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)
        self.feature_extractor = nn.Sequential(*features, nn.Conv2d(16, 120, 5), nn.Tanh())
        self.classifier = nn.Sequential(nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.classifier(self.feature_extractor(x).flatten(1)), dim=1)


def timeless(text: str) -> str:
    """Printed text without the parts that depend on the machine."""
    text = re.sub(r"[\d.e-]+ (s|ms|us), [\d.]+% time, [\d.]+ TFLOPS,", "<time>", text)
    return re.sub(r" +$", "", re.sub(r"Top \d+ modules in time.*\n", "", text), flags=re.MULTILINE)


def state(model: nn.Module) -> dict[str, dict[str, Any]]:
    return {path: dict(vars(module)) for path, module in model.named_modules()}


def test_the_printed_example(capsys: pytest.CaptureFixture[str]) -> None:
    macs, params = get_model_profile(LeNet5(), (1, 32, 32))
    assert timeless(capsys.readouterr().out) == PRINTED
    assert "{:<30}  {:<8}".format("Number of multiply-adds: ", macs) == "Number of multiply-adds:        429.25 KMac"
    assert "{:<30}  {:<8}".format("Number of parameters: ", params) == "Number of parameters:           61.71 k "


def test_the_documented_signature() -> None:
    defaults = {name: p.default for name, p in inspect.signature(get_model_profile).parameters.items()}
    assert defaults == {
        "model": inspect.Parameter.empty,
        "input_res": inspect.Parameter.empty,
        "input_constructor": None,
        "print_profile": True,
        "print_aggregated_profile": True,
        "depth": -1,
        "top_num": 3,
        "warm_up": 10,
        "as_strings": True,
        "ignore_modules": None,
    }


def test_the_documented_high_level_example(capsys: pytest.CaptureFixture[str]) -> None:
    mod = models.alexnet()
    macs, params = get_model_profile(
        mod,  # model
        (3, 224, 224),  # input shape or input to the input_constructor
        input_constructor=None,  # if specified, a constructor taking the the parameter before is used as input to the model
        print_profile=True,  # print model graph with the profile annotated
        print_aggregated_profile=True,  # print aggregated profile for top modules
        depth=-1,  # depth into the nested modules with -1 being the inner most modules
        top_num=3,  # the number of top modules to print aggregated profile
        warm_up=10,  # the number of warm-ups before measuring the time of each module
        as_strings=True,  # print raw numbers (e.g. 1000) or strings (e.g. 1k)
        ignore_modules=None,
    )  # the list of modules to ignore in the profiling
    assert (macs, params) == ("715.55 MMac", "61.1 M")
    assert "(avgpool): AdaptiveAvgPool2d(0, 0.000% Params, 9.216 KMac" in capsys.readouterr().out


def test_the_documented_training_loop(capsys: pytest.CaptureFixture[str]) -> None:
    plain = LeNet5()
    before = state(plain)
    model = prof.add_profile_methods(plain)
    assert model is plain
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profile_step, taken = 2, []
    for step in range(4):
        batch = torch.ones(3, 1, 32, 32)
        if step == profile_step:
            model.start_profile()
        loss = model(batch).sum()
        if step == profile_step:
            flops, duration, params = model.get_total_flops(), model.get_total_duration(), model.get_total_params()
            taken.append((flops, params, duration > 0))
            assert model.compute_total_flops() == flops
            model.print_model_profile()
            model.print_model_aggregated_profile(depth=-1, top_num=3)
            model.stop_profile()
        loss.backward()
        optimizer.step()
    assert taken == [(3 * 429_248, 61_706, True)]
    assert timeless(capsys.readouterr().out).startswith("LeNet5(\n  61.71 k, 100.000% Params, 1.288 MMac")
    assert state(model) == before
    assert not hasattr(model, "start_profile")


def test_the_last_run_is_shown_and_counting_is_no_run() -> None:
    model = prof.add_profile_methods(nn.Sequential(nn.Linear(4, 4)))
    model.start_profile()
    for batch in (1, 5):
        model(torch.ones(batch, 4))
        assert model.get_total_flops() == model.get_total_flops() == batch * 16
    model.stop_profile()


def test_nothing_to_show() -> None:
    model = prof.add_profile_methods(nn.Linear(4, 4))
    with pytest.raises(InputError, match="start_profile"):
        model.get_total_flops()
    model.start_profile()
    with pytest.raises(InputError, match="run the model"):
        model.print_model_profile()
    model.stop_profile()


@pytest.mark.parametrize("step", [0, 2])
def test_a_config_profiles_one_step(step: int, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "train_batch_size": 8,
        "pytorch_profiler": True,
        "profile_step": step,
        "profile_depth": 1,
        "profile_top_num": 1,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    model = LeNet5()
    before = state(model)
    with training_profile(model, file):
        for batch in range(1, 5):
            print("step", batch - 1)
            model(torch.ones(batch, 1, 32, 32)).sum().backward()
    model.zero_grad()
    printed = timeless(capsys.readouterr().out)
    assert (
        f"step {step}\nLeNet5(\n  61.71 k, 100.000% Params, {prof.flops_to_string((step + 1) * 429_248, None, 3)}"
        in printed
    )
    assert (
        f"Top 1 modules in flops at depth 1 are {{'Sequential': '{prof.flops_to_string((step + 1) * 429_248)}'}}"
        in printed
    )
    assert printed.count("LeNet5(") == 1
    assert state(model) == before


def test_a_config_that_does_not_ask_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 4)
    with training_profile(model, {"profile_step": 0}):
        model(torch.ones(1, 4))
    assert capsys.readouterr().out == ""
    with pytest.raises(InputError, match="profile_step"), training_profile(model, {"profile_step": -1}):
        pass


def test_numbers_ignored_modules_and_keyword_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.act = nn.Linear(4, 3), nn.ReLU()

        def forward(self, *, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.layer(x))

    quiet: dict[str, Any] = {
        "print_profile": False,
        "print_aggregated_profile": False,
        "warm_up": 0,
        "as_strings": False,
    }
    quiet["input_constructor"] = lambda res: {"x": torch.ones(2, *res)}
    assert get_model_profile(Keyword(), (4,), **quiet) == (2 * (4 * 3 + 3), 15)
    assert get_model_profile(Keyword(), (4,), ignore_modules=[nn.ReLU], **quiet) == (2 * 4 * 3, 15)
    assert capsys.readouterr().out == ""
    with pytest.raises(InputError, match="input_res"):
        get_model_profile(Keyword(), [4], **quiet)


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train()
    before, kept = state(model), {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    get_model_profile(model, (3, 8, 8), print_profile=False, print_aggregated_profile=False, warm_up=2)
    assert state(model) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_only_trainable_parameters_and_shared_modules_once(capsys: pytest.CaptureFixture[str]) -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, shared, nn.Linear(4, 2).requires_grad_(False))
    assert get_model_profile(model, (4,), as_strings=False) == (2 * 16 + 8, 20)
    assert "(2): Linear(0, 0.000% Params, 8 Mac, 20.000% MACs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (prof.flops_to_string(429_248), "429.25 KMac"),
        (prof.flops_to_string(429_248, precision=3), "429.248 KMac"),
        (prof.flops_to_string(840), "840 Mac"),
        (prof.flops_to_string(4_089_184_256), "4.09 GMac"),
        (prof.flops_to_string(4_089_184_256, "MMac", 1), "4089.2 MMac"),
        (prof.flops_to_string(1500, "Mac"), "1500 Mac"),
        (prof.params_to_string(61_706), "61.71 k"),
        (prof.params_to_string(61_100_840), "61.1 M"),
        (prof.params_to_string(156), "156"),
        (prof.params_to_string(61_706, "K", 3), "61.706 K"),
        (prof.params_to_string(61_706, "M"), "0.06 M"),
        (prof.duration_to_string(1.5), "1.5 s"),
        (prof.duration_to_string(0.001201, precision=3), "1.201 ms"),
        (prof.duration_to_string(0.00098467, precision=3), "984.67 us"),
        (prof.duration_to_string(0.25, "us"), "250000.0 us"),
        (prof.duration_to_string(0), "0"),
    ],
)
def test_units(text: str, expected: str) -> None:
    assert text == expected


def test_an_accelerator_is_waited_for_before_and_after_each_module(standin: StandIn) -> None:
    clock = prof.clock_of([torch.ones(2), torch.ones(3)])
    standin.work(5.0)
    assert standin.done_until < standin.busy_until
    clock()
    assert standin.done_until >= standin.busy_until
    assert standin.synchronized == 1

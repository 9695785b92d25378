"""flops-profiler's names: its documentation's examples with only the import changed, and its printed and returned results."""

from __future__ import annotations

import copy
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision.models as models
from flops_profiler import profiler as original
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from fxflops import count
from fxflops.adapters import flops_profiler as ours
from fxflops.adapters import pytorch_profiler
from fxflops.adapters.flops_profiler import FlopsProfiler, get_model_profile
from fxflops.errors import InputError
from tests.adapters.profiled import IMAGE, Branches, Clock, Engine, Model, parameters, state, tiny_gpt2

sys.path.insert(0, str(Path(__file__).parents[1] / "conventions"))
from tests.conventions.pool import built
from tests.conventions.replaced import Runs, restored

Numbers = tuple[Any, Any, Any]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(original, "time", Clock())
    monkeypatch.setattr(pytorch_profiler, "time", Clock())


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Restore torch: the original leaves its replacements there, and its stacks filled if the model raises."""
    with restored():
        yield
    for stack in (original.module_flop_count, original.module_mac_count, original.module_profile_lists):
        stack.clear()


def timeless(text: str) -> str:
    """Printed text without the parts that depend on the machine."""
    text = re.sub(r"('duration': |'FLOPS': |'duration%[a-z/0-9]*': )'[^']*'", r"\1_", text)
    text = re.sub(r"functionals_duration = [^,]*,", "functionals_duration = _,", text)
    return re.sub(r"(latency: |latency - |fwd flops per device / fwd latency: ).*", r"\1_", text)


def printed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, str]:
    """A function's result and its printed text."""
    with redirect_stdout(io.StringIO()) as text, restored():
        result = function(*args, **kwargs)
    return result, timeless(text.getvalue())


# Signatures

METHODS = [name for name, value in vars(original.FlopsProfiler).items() if inspect.isfunction(value)]


def test_methods_have_the_originals_signatures() -> None:
    assert len(METHODS) > 10
    mine, its = (
        {name: parameters(getattr(cls, name)) for name in METHODS} for cls in (FlopsProfiler, original.FlopsProfiler)
    )
    assert mine == its


def test_get_model_profile_has_the_originals_signature() -> None:
    assert parameters(get_model_profile) == parameters(original.get_model_profile)


STRINGS = ("num", "number", "macs", "flops", "params", "duration")
NUMBERS = (0, 1, 7, 999, 1000, 61706, 999_999, 10**6, 426516480, 22360 * 10**6, 5 * 10**12 + 1, 10**15, 0.0, 1.5, 1e-7)
SECONDS = (0.0, 1e-7, 4.53e-05, 0.001, 0.01222, 0.9996, 1.0, 1.25, 75.5)


@pytest.mark.parametrize("name", STRINGS)
def test_numbers_are_written_as_the_original_does(name: str) -> None:
    mine, its = getattr(ours, f"{name}_to_string"), getattr(original, f"_{name}_to_string")
    assert parameters(mine) == parameters(its)
    units = [
        None,
        "G",
        "M",
        "K",
        "k",
        "T",
        "GMACs",
        "MMACs",
        "KMACs",
        "TFLOPS",
        "GFLOPS",
        "KFLOPS",
        "s",
        "ms",
        "us",
        "?",
    ]
    for number in SECONDS if name == "duration" else NUMBERS:
        assert mine(number) == its(number)
        assert mine(number, precision=4) == its(number, precision=4)
        if name != "num":
            assert [mine(number, unit) for unit in units] == [its(number, unit) for unit in units]


# What it prints and returns, compared with the original on the same model

NAMES = ["resnet18", "squeezenet", "vit unfused", "swin torchvision", "mobilenetv2", "bert", "gpt2", "t5", "products"]


@pytest.mark.parametrize("name", NAMES)
def test_the_profile_of_a_forward(name: str) -> None:
    model, args, kwargs = built(name)
    given = {"args": args, "kwargs": kwargs, "warm_up": 0, "top_modules": 3}
    mine = printed(get_model_profile, model, **given)
    assert mine == printed(original.get_model_profile, copy.deepcopy(model), **given)
    mine = printed(get_model_profile, model, **given, detailed=False, module_depth=2, as_string=True)
    its = printed(
        original.get_model_profile, copy.deepcopy(model), **given, detailed=False, module_depth=2, as_string=True
    )
    assert mine == its


def by_profiler(
    module: Any, model: nn.Module, run: Callable[[nn.Module], Any], *ignored: type, **options: Any
) -> Numbers:
    """(flops, macs, params) of a run of the model, with the profile printed."""
    profile = module.FlopsProfiler(model)
    profile.start_profile(list(ignored))
    run(model)
    profile.stop_profile()
    numbers = profile.get_total_flops(), profile.get_total_macs(), profile.get_total_params()
    strings = profile.get_total_flops(True), profile.get_total_macs(True), profile.get_total_params(as_string=True)
    assert strings == (
        ours.num_to_string(numbers[0]),
        ours.macs_to_string(numbers[1]),
        ours.params_to_string(numbers[2]),
    )
    profile.print_model_profile(profile_step=3, **options)
    assert (profile.flops, profile.macs, profile.params) == numbers
    profile.end_profile()
    return numbers


@pytest.mark.parametrize(
    "ignored", [(), (nn.BatchNorm2d, nn.Conv2d), (nn.Sequential, nn.Linear), (nn.MultiheadAttention,), (Branches,)]
)
def test_the_profiler_around_a_run(ignored: tuple[type, ...]) -> None:
    model = Branches()
    mine = printed(by_profiler, ours, model, lambda model: model(IMAGE), *ignored, top_modules=2)
    its = printed(by_profiler, original, copy.deepcopy(model), lambda model: model(IMAGE), *ignored, top_modules=2)
    assert mine == its


@pytest.mark.parametrize("ignored", [(nn.Sequential, nn.Linear), (nn.Conv2d, Branches)])
def test_ignored_modules(ignored: tuple[type, ...]) -> None:
    given = {"args": [IMAGE], "warm_up": 0, "ignore_modules": list(ignored)}
    mine = printed(get_model_profile, Branches(), **given)
    assert mine == printed(original.get_model_profile, Branches(), **given)


def test_several_runs_are_summed() -> None:
    def twice(model: nn.Module) -> None:
        model(IMAGE)
        model.stem(IMAGE)

    mine = printed(by_profiler, ours, Branches(), twice)
    assert mine == printed(by_profiler, original, Branches(), twice)


def test_generate() -> None:
    given = {
        "kwargs": {"input_ids": torch.randint(5, 90, (1, 6)), "max_new_tokens": 3, "pad_token_id": 0},
        "warm_up": 0,
    }
    mine = printed(get_model_profile, tiny_gpt2(), **given, func_name="generate")
    assert mine == printed(original.get_model_profile, tiny_gpt2(), **given, func_name="generate")
    assert mine[0][0] > get_model_profile(tiny_gpt2(), args=[torch.ones(1, 6).long()], print_profile=False)[0]


def test_input_shape_and_output_file(tmp_path: Path) -> None:
    given = {"input_shape": (1, 3, 64, 64), "warm_up": 1, "top_modules": 1}
    paths = tmp_path / "new" / "ours.txt", tmp_path / "its.txt"
    mine = printed(get_model_profile, models.squeezenet1_1(), **given, output_file=str(paths[0]))
    its = printed(original.get_model_profile, models.squeezenet1_1(), **given, output_file=str(paths[1]))
    assert mine == its
    assert mine[1] == ""
    assert timeless(paths[0].read_text()) == timeless(paths[1].read_text())


@pytest.mark.parametrize("timed", [False, True])
def test_an_engines_sizes_and_timers(timed: bool) -> None:
    def profiled(module: Any) -> None:
        profile = module.FlopsProfiler(model := Branches(), ds_engine=Engine(timed))
        profile.start_profile()
        model(IMAGE)
        profile.print_model_profile(detailed=False)
        profile.end_profile()

    mine, its = printed(profiled, ours)[1], printed(profiled, original)[1]
    estimated = re.compile(r"(bwd FLOPS per device|fwd\+bwd FLOPS per device|FLOPS per device = 3).*\n")
    assert mine == re.sub(rf"(?m)^{estimated.pattern}", "", its)
    assert ("samples/second:" in mine) == ("bwd latency:" in mine) == timed
    assert "model parallel size:                                          2" in mine


# The documentation's examples, and the original's tests


def test_the_alexnet_example(capsys: pytest.CaptureFixture[str]) -> None:
    model = models.alexnet()
    batch_size = 2
    flops, macs, params = get_model_profile(
        model=model,
        input_shape=(batch_size, 3, 224, 224),
        args=None,
        kwargs=None,
        print_profile=True,
        detailed=True,
        module_depth=-1,
        top_modules=1,
        warm_up=1,
        as_string=True,
        output_file=None,
        ignore_modules=None,
        func_name="forward",
    )
    assert (flops, macs, params) == ("2.86 G", "1.43 GMACs", "61.1 M")
    assert "AlexNet(\n  module = {'param': '61.1 M', 'flops': '2.86 G'" in capsys.readouterr().out


def trained(profiler: Any, profile_step: int = 2) -> tuple[Numbers, list[torch.Tensor]]:
    """The documentation's training loop. Returns what is profiled in it, and the weights after it."""
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(2)
    data_loader = [(torch.randn(1, 10), torch.randint(0, 10, (1,))) for _ in range(4)]
    prof = profiler.FlopsProfiler(model)
    numbers: Numbers = (0, 0, 0)
    for step, batch in enumerate(data_loader):
        if step == profile_step:
            prof.start_profile()
        loss = model(batch)
        if step == profile_step:
            prof.stop_profile()
            numbers = prof.get_total_flops(), prof.get_total_macs(), prof.get_total_params()
            prof.print_model_profile(profile_step=profile_step)
            prof.end_profile()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return numbers, [parameter.detach() for parameter in model.parameters()]


def test_the_training_example() -> None:
    (mine, weights), text = printed(trained, ours)
    (its, same_weights), its_text = printed(trained, original)
    assert mine == its == (200, 100, 110)
    assert text == its_text
    assert "Profile Summary at step 2:" in text
    assert all(map(torch.equal, weights, same_weights))
    assert all(map(torch.equal, weights, trained(ours, profile_step=-1)[1]))


def test_lenet5() -> None:
    conv = nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 120, 5), nn.Tanh()),
    )
    head = nn.Sequential(nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))
    model = Runs(lambda conv, head, x: F.softmax(head(conv(x).flatten(1)), dim=1), conv, head)
    del model.parameter
    flops, macs, params = get_model_profile(model, (1024, 1, 32, 32), print_profile=False, as_string=False)
    assert (macs, params) == (426516480, 61706)
    assert count(model, torch.ones(1024, 1, 32, 32), convention="flops_profiler").total_flops - flops == 1024 * 10
    assert abs(flops - 866076672) / 866076672 < 0.05


# Behaviour


def test_it_can_be_asked_while_it_runs_and_reset() -> None:
    model = Model()
    batch = torch.randn(3, 10), torch.zeros(3).long()
    prof = FlopsProfiler(model)
    prof.start_profile()
    for runs in (1, 2):
        model(batch)
        assert prof.get_total_flops() == 600 * runs
    assert 0 < prof.get_total_functional_duration() < prof.get_total_duration() < 60
    assert prof.get_total_duration(as_string=True).endswith("s")
    assert prof.get_total_functional_duration(True).endswith("s")
    prof.reset_profile()
    assert prof.get_total_flops() == prof.get_total_macs() == prof.get_total_duration() == 0
    model(batch)
    assert prof.get_total_macs() == 300
    prof.start_profile()
    assert prof.get_total_macs() == 0
    prof.stop_profile()
    model(batch)
    assert prof.get_total_macs() == 0
    prof.end_profile()


def test_before_it_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    prof = FlopsProfiler(Model())
    prof.print_model_profile()
    assert capsys.readouterr().out == ""
    prof.print_model_aggregated_profile()
    assert "call this function after start_profile and before end_profile" in capsys.readouterr().out
    for kind in (InputError, AttributeError):  # the original looks for attributes that the model does not have
        with pytest.raises(kind, match=r"start_profile\(\)"):
            prof.get_total_flops()
    prof.stop_profile()
    prof.end_profile()


def test_it_leaves_the_model_as_it_was() -> None:
    model = Branches().train()
    before, buffers = state(model), copy.deepcopy(model.state_dict())
    functions = F.linear, torch.matmul, torch.bmm
    printed(get_model_profile, model, (2, 3, 8, 8))
    assert state(model) == before
    assert all(torch.equal(value, buffers[name]) for name, value in model.state_dict().items())
    assert (F.linear, torch.matmul, torch.bmm) == functions
    first = printed(by_profiler, ours, model, lambda model: model(IMAGE))
    assert printed(by_profiler, ours, model, lambda model: model(IMAGE)) == first
    assert state(model) == before


def test_a_model_that_raises() -> None:
    model = Branches()
    before = state(model)
    prof = FlopsProfiler(model)
    prof.start_profile()
    with pytest.raises(RuntimeError, match="expected input"):  # its own error, as without the profiler
        model(torch.randn(2, 4, 8, 8))
    assert prof.get_total_flops() == 0
    model(IMAGE)
    assert prof.get_total_flops() > 0
    prof.end_profile()
    assert state(model) == before
    with pytest.raises(RuntimeError, match="expected input"):
        get_model_profile(model, (2, 4, 8, 8))
    assert state(model) == before


def test_it_may_be_stopped_in_the_middle_of_a_run() -> None:
    model = Branches()
    prof = FlopsProfiler(model)
    prof.start_profile()
    hook = model.second.register_forward_hook(lambda *_: prof.stop_profile())
    model(IMAGE)
    hook.remove()
    assert not _get_current_function_mode_stack()
    assert prof.get_total_flops() > 0
    assert prof._profiled().own[model.stem].duration > 0
    prof.end_profile()


def test_where_the_original_raises() -> None:
    (flops, macs, _), text = printed(get_model_profile, *built("lstm")[:1], args=built("lstm")[1], warm_up=0)
    report = count(*built("lstm")[:2], convention="flops_profiler")
    assert (flops, macs) == (report.total_flops, report.recount("flops_profiler_macs").total_flops)
    assert "(rnn): LSTM(module = {'param': '4.03 k', 'flops': '38.45 K', 'macs': '0 MACs'" in text
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.Upsample(scale_factor=2))
    assert get_model_profile(model, (1, 3, 5, 5), print_profile=False)[:2] == (2 * 2700 + 4 * 9 + 4 * 49, 2700)


@pytest.mark.parametrize(
    ("given", "match"),
    [({}, "give input_shape"), ({"input_shape": [1, 3]}, "must be a tuple"), ({"input_shape": ()}, "must be a tuple")],
)
def test_inputs_that_do_not_fit(given: dict[str, Any], match: str) -> None:
    for kind in (InputError, AssertionError):  # the original asserts
        with pytest.raises(kind, match=match):
            get_model_profile(Model(), **given)
        with pytest.raises(kind, match="Model"):
            get_model_profile(Model, (1, 3))

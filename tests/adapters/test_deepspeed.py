"""The names in DeepSpeed's profiler and their behaviour, compared with DeepSpeed itself if it is installed.

Otherwise signatures are compared with ``FACE``, the signatures of DeepSpeed 0.19.8.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from fxflops import count
from fxflops.adapters import deepspeed as ours
from fxflops.adapters import flops_profiler, pytorch_profiler
from fxflops.adapters.deepspeed import FlopsProfiler, get_model_profile
from fxflops.errors import InputError, RunError
from tests.adapters.profiled import Branches, Model, parameters, state

FACE = {
    "get_model_profile": "model, input_shape=None, args=[], kwargs={}, print_profile=True, detailed=True, module_depth=-1, "
    "top_modules=1, warm_up=1, as_string=True, output_file=None, ignore_modules=None, mode='forward'",
    "FlopsProfiler.__init__": "self, model, ds_engine=None, recompute_fwd_factor=0.0",
    "FlopsProfiler.start_profile": "self, ignore_list=None",
    "FlopsProfiler.stop_profile": "self",
    "FlopsProfiler.reset_profile": "self",
    "FlopsProfiler.end_profile": "self",
    "FlopsProfiler.get_total_flops": "self, as_string=False",
    "FlopsProfiler.get_total_macs": "self, as_string=False",
    "FlopsProfiler.get_total_duration": "self, as_string=False",
    "FlopsProfiler.get_total_params": "self, as_string=False",
    "FlopsProfiler.is_expert_tensor_parallelism_enabled": "self",
    "FlopsProfiler.print_model_profile": "self, profile_step=1, module_depth=-1, top_modules=1, detailed=True, output_file=None",
    "FlopsProfiler.print_model_aggregated_profile": "self, module_depth=-1, top_modules=1",
    "number_to_string": "num, units=None, precision=2",
    "macs_to_string": "macs, units=None, precision=2",
    "flops_to_string": "flops, units=None, precision=2",
    "bytes_to_string": "b, units=None, precision=2",
    "params_to_string": "params_num, units=None, precision=2",
    "duration_to_string": "duration, units=None, precision=2",
}


# Signatures


def found(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def signature_of(function: Any) -> str:
    return ", ".join(
        name if default is inspect.Parameter.empty else f"{name}={default!r}"
        for name, _, default in parameters(function)
    )


def test_signatures() -> None:
    assert {name: signature_of(found(ours, name)) for name in FACE} == FACE


def test_the_face_is_the_originals(original: Any) -> None:
    methods = [name for name, value in vars(original.FlopsProfiler).items() if callable(value)]
    assert {f"FlopsProfiler.{name}" for name in methods} == {name for name in FACE if "." in name}
    for name in FACE:
        assert parameters(found(ours, name)) == parameters(found(original, name)), name


STRINGS = ("number", "macs", "flops", "bytes", "params", "duration")


def test_numbers_are_written_as_documented() -> None:
    assert [getattr(ours, f"{name}_to_string")(4.1e9) for name in STRINGS] == [
        "4.1 G", "4.1 GMACs", "4.1 GFLOPS", "4.1 GB", "4.1 B", "4.1 Gs",
    ]  # fmt: skip
    assert [ours.params_to_string(number) for number in (0, 7, 61706, 4.1e12)] == ["0", "7", "61.71 K", "4.1 T"]
    assert [ours.duration_to_string(each) for each in (0.0125, 75.5, 1e-6)] == ["12.5 ms", "75.5 s", "1 us"]
    assert ours.params_to_string(4.1e9, units="B", precision=0) == "4 B"
    assert ours.macs_to_string(426516480, units="K", precision=1) == "426516 KMACs"


NUMBERS = (
    0,
    1,
    7,
    999,
    1000,
    61706,
    999_999,
    10**6,
    426516480,
    5 * 10**12 + 1,
    10**15,
    0.0,
    1.5,
    0.0126,
    1e-5,
    1e-9,
    -3,
)


@pytest.mark.parametrize("name", STRINGS)
def test_numbers_are_written_as_the_original_does(name: str, original: Any) -> None:
    mine, its = (getattr(module, f"{name}_to_string") for module in (ours, original))
    for number in NUMBERS:
        for units in (None, "T", "G", "B", "M", "K", "", "m", "u", "?"):
            for precision in (0, 2, 4):
                assert mine(number, units, precision) == its(number, units, precision)


# Behaviour


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "give input_shape"),
        ({"input_shape": [1, 3]}, "must be a tuple"),
        ({"input_shape": ()}, "must be a tuple"),
        ({"args": torch.ones(2, 8)}, r"args must be a list or tuple, such as \[tensor\].*; got Tensor and dict"),
        ({"args": torch.ones(1, 8)}, "args must be a list or tuple"),
        ({"kwargs": torch.ones(1, 8)}, r"kwargs a mapping, such as \{'name': tensor\}; got list and Tensor"),
        ({"input_shape": (1, 10), "model": Model}, "Model"),
        ({"input_shape": (1, 10), "model": None}, "NoneType"),
    ],
)
def test_what_the_original_asserts_is_an_assertion_error(given: dict[str, Any], match: str) -> None:
    given = {"model": Model(), **given}
    with pytest.raises(AssertionError, match=match) as caught:
        get_model_profile(**given)
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize("ignored", [nn.Linear, ["Linear"], nn.Linear(2, 2)])
def test_modules_to_ignore_are_a_list_of_classes(ignored: Any) -> None:
    for profile in (ours.get_model_profile, flops_profiler.get_model_profile):
        with pytest.raises(TypeError, match=r"must be a list of classes, such as \[torch.nn.Linear\]; got") as caught:
            profile(nn.Linear(3, 3), (1, 3), ignore_modules=ignored)
        assert isinstance(caught.value, InputError)
    with pytest.raises(InputError, match="a list of classes"):
        pytorch_profiler.get_model_profile(nn.Linear(3, 3), (3,), ignore_modules=ignored)


@pytest.mark.parametrize(
    "given", [{}, {"input_shape": [1, 3]}, {"input_shape": ()}, {"input_shape": (1,), "model": None}]
)
def test_the_original_asserts_it(given: dict[str, Any], original: Any) -> None:
    with pytest.raises(AssertionError):
        original.get_model_profile(**{"model": Model(), **given})


FIGURES = ("flops", "macs", "duration", "params")


def test_before_it_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    prof = FlopsProfiler(Model())
    for figure in FIGURES:
        with pytest.raises(AttributeError, match=r"start_profile\(\)") as caught:
            getattr(prof, f"get_total_{figure}")()
        assert isinstance(caught.value, InputError)
    prof.stop_profile()
    prof.end_profile()
    prof.print_model_profile()
    assert capsys.readouterr().out == ""
    prof.print_model_aggregated_profile()
    assert "call this function after start_profile and before end_profile" in capsys.readouterr().out


def test_the_original_has_no_figures_before_it_is_started(original: Any) -> None:
    for figure in FIGURES:
        with pytest.raises(AttributeError):
            getattr(original.FlopsProfiler(Model()), f"get_total_{figure}")()


def test_another_mode() -> None:
    with pytest.raises(InputError, match="'forward' or 'generate', not 'backward'"):
        get_model_profile(Model(), (1, 10), mode="backward")


class Nested(nn.Module):
    """Nested lists, which are not called, and no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = nn.ModuleList([nn.ModuleList([nn.ReLU(), nn.GELU()])])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lists[0][1](self.lists[0][0](x)) @ x.T


def test_modules_without_calls_or_parameters() -> None:
    prof = FlopsProfiler(model := Nested())
    prof.start_profile()
    model(torch.ones(2, 3))
    assert (prof.get_total_flops(), prof.get_total_macs(), prof.get_total_params()) == (2 * 6 + 2 * 12, 12, 0)
    seconds = [prof._profiled().total(module).duration for module in (model.lists, *model.lists[0])]
    assert seconds[0] == seconds[1] + seconds[2] > 0
    prof.end_profile()


def test_it_can_be_asked_while_it_runs_and_reset() -> None:
    model, batch = Model(), (torch.randn(3, 10), torch.zeros(3).long())
    prof = FlopsProfiler(model)
    prof.start_profile()
    for runs in (1, 2):
        model(batch)
        assert prof.get_total_flops() == 600 * runs
    assert prof.get_total_duration(as_string=True).endswith("s")
    prof.reset_profile()
    assert prof.get_total_flops() == prof.get_total_macs() == prof.get_total_duration() == 0
    model(batch)
    prof.stop_profile()
    model(batch)
    assert prof.get_total_macs() == 300
    prof.end_profile()


def test_it_leaves_the_model_as_it_was() -> None:
    model = Branches().train()
    before, buffers = state(model), copy.deepcopy(model.state_dict())
    functions = F.linear, torch.matmul, torch.Tensor.__matmul__, F.scaled_dot_product_attention
    get_model_profile(model, (2, 3, 8, 8))
    assert state(model) == before
    assert all(torch.equal(value, buffers[name]) for name, value in model.state_dict().items())
    assert (F.linear, torch.matmul, torch.Tensor.__matmul__, F.scaled_dot_product_attention) == functions
    assert "__matmul__" not in vars(torch.Tensor)


def test_hooks_of_the_model_may_start_and_stop_it() -> None:
    """DeepSpeed's engine does this. Work in the model's own forward is then not seen, because its call had already begun."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    before = state(model)
    prof = FlopsProfiler(model)
    hooks = [
        model.register_forward_pre_hook(lambda *_: prof.start_profile()),
        model.register_forward_hook(lambda *_: prof.stop_profile()),
    ]
    for _ in range(2):
        model(torch.ones(2, 4))
        assert (prof.get_total_flops(), prof.get_total_macs()) == (2 * 2 * 64 + 16, 2 * 64)
    for hook in hooks:
        hook.remove()
    prof.end_profile()
    assert state(model) == before


class Raises(nn.Module):
    def __init__(self, when: Callable[[], bool]) -> None:
        super().__init__()
        self.layer, self.when = nn.Linear(4, 4), when

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.when():
            raise KeyError("mine")
        return y


def test_a_profile_that_was_not_ended_hinders_nobody() -> None:
    """An unended profile keeps counting alongside others, as in the original, until its handle is gone."""
    model, x, own = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), 2 * 2 * 16 + 8
    before = state(model)
    prof = FlopsProfiler(model)
    prof.start_profile()
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(2, 5))
    prof = FlopsProfiler(model)  # like a notebook cell that is run again
    assert state(model) == before
    prof.start_profile()
    model(x)
    others = [FlopsProfiler(model), FlopsProfiler(model[0])]
    for other in others:
        other.start_profile()
    model(x)
    assert count(model, x, convention="deepspeed").total_flops == own
    assert get_model_profile(model, args=[x], print_profile=False, as_string=False, warm_up=0)[0] == own
    assert [each.get_total_flops() for each in (prof, *others)] == [3 * own, 2 * own, 2 * 2 * 2 * 16]
    del other
    others.clear()
    prof.end_profile()
    assert state(model) == before


def test_a_count_is_no_run_that_the_models_hooks_profile() -> None:
    model = nn.Linear(4, 4)
    prof = FlopsProfiler(model)
    model.register_forward_pre_hook(lambda *_: prof.start_profile())
    count(model, torch.ones(2, 4))
    assert not prof.started


class InThreads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda layer: layer(x), (self.a, self.b)))  # type: ignore[return-value]


def test_a_count_of_a_model_that_uses_threads_passes_its_profiler() -> None:
    model, x = InThreads(), torch.ones(2, 4)
    prof = FlopsProfiler(model)
    prof.start_profile()
    macs = count(model, x).total_macs
    assert macs == 2 * (2 * 4 * 4)
    assert prof.get_total_flops() == 0
    with pytest.warns(UserWarning, match="calls made while another thread counts the model"):
        prof.stop_profile()


def test_a_forward_that_is_counted_may_profile_another_model() -> None:
    other, found = nn.Linear(4, 4), []

    class Profiling(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            prof = FlopsProfiler(other)
            prof.start_profile()
            y = other(x)
            prof.stop_profile()
            found.append(prof.get_total_flops())
            return super().forward(y)

    count(Profiling(4, 4), torch.ones(2, 4))
    assert {*found} == {2 * 2 * 16}


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.fxflops_profiled.scan(self.layer(x))


NOT_COUNTED = (
    r"a lower bound: it does not include fxflops_profiled::scan; fxflops.count\(model, args\).recipe\(\) returns code"
)


@pytest.fixture
def unknown() -> Iterator[Unknown]:
    with torch.library._scoped_library("fxflops_profiled", "DEF") as library:
        library.define("scan(Tensor x) -> Tensor")
        library.impl("scan", lambda x: x.cumsum(-1), "CompositeExplicitAutograd")
        yield Unknown().train()


def test_what_is_not_counted_is_named(unknown: Unknown) -> None:
    x = torch.ones(2, 4)
    for module in (ours, flops_profiler):
        with pytest.warns(UserWarning, match=NOT_COUNTED) as caught:
            module.get_model_profile(unknown, args=[x], print_profile=False)
        assert [Path(each.filename).name for each in caught] == ["test_deepspeed.py"]
    prof = FlopsProfiler(unknown)
    prof.start_profile()
    unknown(x)
    with pytest.warns(UserWarning, match=NOT_COUNTED):
        prof.stop_profile()
    assert [missing.op for missing in prof.report.missing] == ["fxflops_profiled::scan"]
    prof.end_profile()  # the warning is given once


def test_a_warning_that_is_an_error_leaves_the_model_as_it_was(unknown: Unknown) -> None:
    before = state(unknown)
    with pytest.raises(UserWarning, match=NOT_COUNTED):  # the test suite turns warnings into errors
        get_model_profile(unknown, args=[torch.ones(2, 4)], print_profile=False)
    assert state(unknown) == before


def test_its_report_is_of_the_models_last_call() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4)
    prof = FlopsProfiler(model)
    with pytest.raises(AttributeError, match=r"call start_profile\(\)"):
        _ = prof.report
    prof.start_profile()
    with pytest.raises(AttributeError, match="the model has not run since"):
        _ = prof.report
    model[0](x)
    assert prof.report.model == "Linear"
    model(x[:1])
    model(x)
    model[0](x)
    prof.stop_profile()
    assert (prof.report.convention, prof.report.model, prof.report.total_flops) == ("deepspeed", "Sequential", 72)
    assert prof.report["0"].total.flops == 2 * 2 * 16


class Checkpointed(nn.Module):
    """A part that is run again in the backward pass. Without ``reentrant`` it is rerun only as far as needed."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.act, self.last, self.reentrant = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), reentrant

    def part(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x) + 0).sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.part, x, use_reentrant=self.reentrant)


def trained(profiler: type, reentrant: bool) -> tuple[int, int]:
    model = Checkpointed(reentrant)
    prof = profiler(model)
    prof.start_profile()
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    prof.stop_profile()
    figures = prof.get_total_flops(), prof.get_total_macs()
    prof.end_profile()
    return figures


def test_what_is_computed_again_counts_again() -> None:
    linear, gelu = 2 * 4 * 8, 2 * 8
    assert trained(FlopsProfiler, True) == (2 * (2 * 2 * linear + gelu), 2 * 2 * linear)
    # Without reentrant the last layer is not run again.
    assert trained(FlopsProfiler, False) == ((2 + 1) * 2 * linear + 2 * gelu, (2 + 1) * linear)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_counts_as_in_the_original(reentrant: bool, original: Any) -> None:
    assert trained(FlopsProfiler, reentrant) == trained(original.FlopsProfiler, reentrant)


def is_counted() -> bool:
    return any(Path(frame.filename).name == "model_run.py" for frame in inspect.stack(0))


@pytest.mark.parametrize(("when", "kind"), [(lambda: True, KeyError), (is_counted, RunError)])
def test_a_model_that_raises(when: Callable[[], bool], kind: type[Exception]) -> None:
    """The model's own error comes out. If it raises only while it is counted, that is an error too, not a count of 0."""
    model = Raises(when)
    prof = FlopsProfiler(model)
    prof.start_profile()
    with pytest.raises(kind, match="mine"):
        model(torch.ones(2, 4))
    assert prof.get_total_flops() == 0
    model.when = bool
    model(torch.ones(2, 4))
    assert prof.get_total_flops() == 2 * 2 * 16
    prof.end_profile()


def mixture(cls: type[nn.Module], **settings: Any) -> nn.Module:
    """A mixture of experts, with only the given attributes."""
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    vars(module).update(settings)
    return nn.Sequential(nn.Linear(2, 2), module)


def test_tensor_parallel_experts() -> None:
    moe = type("MoE", (nn.Module,), {"__module__": "deepspeed.moe.layer"})
    other = type("MoE", (nn.Module,), {})
    for cls, settings, expected in [
        (moe, {"enable_expert_tensor_parallelism": True}, True),
        (moe, {"enable_expert_tensor_parallelism": False}, False),
        (moe, {}, False),
        (other, {"enable_expert_tensor_parallelism": True}, False),
    ]:
        assert FlopsProfiler(mixture(cls, **settings)).is_expert_tensor_parallelism_enabled() is expected


def test_tensor_parallel_experts_of_deepspeed(original: Any) -> None:
    for settings in ({"enable_expert_tensor_parallelism": True}, {"enable_expert_tensor_parallelism": False}, {}):
        model = mixture(original.MoE, **settings)
        its = original.FlopsProfiler(model).is_expert_tensor_parallelism_enabled()
        assert FlopsProfiler(model).is_expert_tensor_parallelism_enabled() is its

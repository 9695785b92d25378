"""What all adapters share with their originals: signatures and defaults, and the kinds of errors raised on misuse.

Both are written down here, and checked against the originals if they are installed.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.adapters import deepspeed, flops_profiler, flowflops, fvcore, ptflops, pytorch_profiler, thop
from fxflops.errors import FxflopsError
from fxflops.ops import BASE

ORIGINALS = {
    "fvcore": "fvcore.nn",
    "thop": "thop",
    "ptflops": "ptflops",
    "torchinfo": "torchinfo",
    "flops_profiler": "flops_profiler.profiler",
    "torch_flops": "torch_flops",
}
"""flowflops and pytorch_profiler cannot be installed here: their signatures and errors are taken from their sources."""


def ours(peer: str) -> Any:
    return fxflops if peer == "torch_flops" else importlib.import_module(f"fxflops.adapters.{peer}")


def original(peer: str) -> Any:
    if peer not in ORIGINALS:
        pytest.skip("cannot be installed here")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(ORIGINALS[peer])


ANALYSIS = {
    "__init__": "self, model, inputs",
    "total": "self, module_name=''",
    "by_operator": "self, module_name=''",
    "by_module": "self",
    "by_module_and_operator": "self",
    "unsupported_ops": "self, module_name=''",
    "uncalled_modules": "self",
    "canonical_module_name": "self, name",
    "set_op_handle": "self, *args, **kwargs",
    "clear_op_handles": "self",
    "copy": "self, new_model=None, new_inputs=None",
    "tracer_warnings": "self, mode",
    "ancestor_mode": "self, mode",
    "unsupported_ops_warnings": "self, enabled",
    "uncalled_modules_warnings": "self, enabled",
}
PTFLOPS = (
    "model, input_res, print_per_layer_stat=True, as_strings=True, input_constructor=None, ost=sys.stdout, verbose=False, "
    "ignore_modules=[], custom_modules_hooks={}, "
)
SIGNATURES: dict[str, dict[str, str]] = {
    "fvcore": {
        **{f"FlopCountAnalysis.{name}": given for name, given in ANALYSIS.items()},
        **{f"ActivationCountAnalysis.{name}": given for name, given in ANALYSIS.items()},
        "flop_count": "model, inputs, supported_ops=None",
        "activation_count": "model, inputs, supported_ops=None",
        "flop_count_str": "flops, activations=None",
        "flop_count_table": "flops, max_depth=3, activations=None, show_param_shapes=True",
        "parameter_count": "model",
        "parameter_count_table": "model, max_depth=3",
    },
    "thop": {
        "profile": "model, inputs, custom_ops=None, verbose=True, ret_layer_info=False, report_missing=False",
        "profile_origin": "model, inputs, custom_ops=None, verbose=True, report_missing=False",
        "clever_format": "nums, format='%.2f'",
    },
    "ptflops": {
        "get_model_complexity_info": PTFLOPS
        + "backend=FLOPS_BACKEND.PYTORCH, flops_units=None, param_units=None, output_precision=2, backend_specific_config={}",
        "flops_to_string": "flops, units=None, precision=2",
        "params_to_string": "params_num, units=None, precision=2",
    },
    "flowflops": {
        "get_model_complexity_info": PTFLOPS + "mode='eager', flops_units=None, param_units=None, output_precision=2"
    },
    "torchinfo": {
        "summary": "model, input_size=None, input_data=None, batch_dim=None, cache_forward_pass=None, col_names=None, "
        "col_width=25, depth=3, device=None, dtypes=None, mode=None, row_settings=None, verbose=None, **kwargs",
        "ModelStatistics.__init__": "self, summary_list, input_size, total_input_size, formatting",
        "ModelStatistics.float_to_megabytes": "num",
        "ModelStatistics.to_megabytes": "num",
        "ModelStatistics.to_readable": "num, units=Units.AUTO",
        "ModelStatistics.format_output_num": "num, units",
    },
    "flops_profiler": {
        "get_model_profile": "model, input_shape=None, args=[], kwargs={}, print_profile=True, detailed=True, "
        "module_depth=-1, top_modules=10, warm_up=3, as_string=False, output_file=None, ignore_modules=None, "
        "func_name='forward'",
        "FlopsProfiler.__init__": "self, model, ds_engine=None",
        "FlopsProfiler.start_profile": "self, ignore_list=None",
        "FlopsProfiler.stop_profile": "self",
        "FlopsProfiler.reset_profile": "self",
        "FlopsProfiler.end_profile": "self",
        **{
            f"FlopsProfiler.get_total_{name}": "self, as_string=False"
            for name in ("flops", "macs", "params", "duration", "functional_duration")
        },
        "FlopsProfiler.print_model_profile": "self, profile_step=1, module_depth=-1, top_modules=1, detailed=True, "
        "output_file=None",
        "FlopsProfiler.print_model_aggregated_profile": "self, module_depth=-1, top_modules=1",
    },
    "pytorch_profiler": {
        "get_model_profile": "model, input_res, input_constructor=None, print_profile=True, "
        "print_aggregated_profile=True, depth=-1, top_num=3, warm_up=10, as_strings=True, ignore_modules=None"
    },
    "torch_flops": {
        "TorchFLOPsByFX.print_total_flops": "self, show=True",
        "TorchFLOPsByFX.print_total_time": "self, show=True",
        "TorchFLOPsByFX.print_max_memory": "self, show=True",
        "TorchFLOPsByFX.save_result_to_csv": "self, file_path, mode='a'",
    },
}


def signature_in(module: Any, name: str) -> str:
    for part in name.split("."):
        module = getattr(module, part)
    return ", ".join(map(_written, inspect.signature(module).parameters.values()))


def _written(parameter: inspect.Parameter) -> str:
    default = parameter.default
    text = "sys.stdout" if hasattr(default, "write") else str(default) if hasattr(default, "value") else repr(default)
    bare = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
    return bare if default is parameter.empty else f"{bare}={text}"


def test_signatures_and_defaults() -> None:
    have = {peer: {name: signature_in(ours(peer), name) for name in names} for peer, names in SIGNATURES.items()}
    assert have == SIGNATURES


@pytest.mark.parametrize("peer", SIGNATURES)
def test_they_are_the_originals(peer: str) -> None:
    assert {name: signature_in(original(peer), name) for name in SIGNATURES[peer]} == SIGNATURES[peer]


# Errors


class OfItsOwn(Exception):
    pass


class Raises(nn.Module):
    def __init__(self, kind: type[Exception]) -> None:
        super().__init__()
        self.fc, self.kind = nn.Linear(4, 4), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.kind("of the model")


class OfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.fc(x + y)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4))


X = torch.ones(2, 4)
Misuse = tuple[Callable[[Any], Any], type[Exception]]
ANY: Any = "of a type that nobody takes"


def running(run: Callable[[Any, nn.Module, torch.Tensor], Any], raised: type[Exception] | None = None) -> list[Misuse]:
    """The errors of a model that raises while it runs: of its own type, or of the type the original turns all errors into."""
    return [
        (lambda module: run(module, net(), X[:, :3]), raised or RuntimeError),
        (lambda module: run(module, OfTwo(), X), raised or TypeError),
        *(
            (lambda module, kind=kind: run(module, Raises(kind), X), raised or kind)
            for kind in (ValueError, KeyError, OSError, NotImplementedError, OfItsOwn)
        ),
    ]


def analysis(module: Any, model: nn.Module = net(), x: torch.Tensor = X) -> Any:  # noqa: B008
    return module.FlopCountAnalysis(model, (x,)).unsupported_ops_warnings(False)


MISUSES: dict[str, list[Misuse]] = {
    "fvcore": [
        *running(lambda module, model, x: analysis(module, model, x).total()),
        (lambda module: module.FlopCountAnalysis(ANY, (X,)), AttributeError),
        (lambda module: module.FlopCountAnalysis(net(), (2, 4)).total(), TypeError),
        (lambda module: analysis(module).total("fc"), KeyError),
        (lambda module: analysis(module).by_operator("fc"), KeyError),
        (lambda module: analysis(module).set_op_handle("aten::linear"), TypeError),
        (lambda module: analysis(module).ancestor_mode("parent"), ValueError),
        (lambda module: analysis(module).tracer_warnings("some"), ValueError),
    ],
    "thop": [
        *running(lambda module, model, x: module.profile(model, (x,), verbose=False)),
        (lambda module: module.profile(ANY, (X,), verbose=False), AttributeError),
        (lambda module: module.profile(net(), (2, 4), verbose=False), TypeError),
    ],
    "ptflops": [
        (lambda module: module.get_model_complexity_info(ANY, (4,)), AssertionError),
        (lambda module: module.get_model_complexity_info(net(), [4]), AssertionError),
        (lambda module: module.get_model_complexity_info(net(), ()), AssertionError),
        (lambda module: module.get_model_complexity_info(net(), (4,), backend="jax"), ValueError),
    ],
    "flowflops": [
        (lambda module: module.get_model_complexity_info(ANY, (1, 4)), AssertionError),
        (lambda module: module.get_model_complexity_info(net(), [1, 4]), AssertionError),
        (lambda module: module.get_model_complexity_info(net(), (1, 4), mode="lazy"), ValueError),
    ],
    "pytorch_profiler": [
        (lambda module: module.get_model_profile(ANY, (4,)), AssertionError),
        (lambda module: module.get_model_profile(net(), [4]), AssertionError),
    ],
    "torchinfo": [
        *running(lambda module, model, x: module.summary(model, input_data=x, verbose=0), RuntimeError),
        (lambda module: module.summary(ANY, (2, 4), verbose=0), AttributeError),
        (lambda module: module.summary(nn.Linear, (2, 4), verbose=0), TypeError),
        (lambda module: module.summary(net(), (2, 4), input_data=X, verbose=0), RuntimeError),
        *(
            (lambda module, size=size: module.summary(net(), size, verbose=0), kind)
            for size, kind in [
                ((2, -4), ValueError),
                ((), ValueError),
                (4, TypeError),
                ("2", TypeError),
                (("2",), TypeError),
            ]
        ),
        *(
            (lambda module, settings=settings: module.summary(net(), (2, 4), **{"verbose": 0, **settings}), ValueError)
            for settings in [
                {"verbose": 4},
                {"col_width": 0},
                {"col_names": ["flops"]},
                {"row_settings": ["rows"]},
                {"mode": "as_is"},
                {"dtypes": ["half"]},
            ]
        ),
        (lambda module: module.summary(net(), col_names=["output_size"], verbose=0), ValueError),
    ],
    "flops_profiler": [
        *running(lambda module, model, x: module.get_model_profile(model, args=[x], print_profile=False, warm_up=0)),
        (lambda module: module.get_model_profile(ANY, (2, 4)), AssertionError),
        (lambda module: module.get_model_profile(net()), AssertionError),
        (lambda module: module.get_model_profile(net(), [2, 4]), AssertionError),
        (lambda module: module.get_model_profile(net(), ()), AssertionError),
        (lambda module: module.FlopsProfiler(ANY).start_profile(), AttributeError),
        (lambda module: module.FlopsProfiler(net()).get_total_flops(), AttributeError),
    ],
    "torch_flops": [
        (lambda module: module.TorchFLOPsByFX(ANY), AttributeError),
        (lambda module: module.TorchFLOPsByFX(nn.Linear), TypeError),
        (lambda module: module.TorchFLOPsByFX(net(), "memory"), AssertionError),
        (lambda module: module.TorchFLOPsByFX(net()).print_total_flops(), RuntimeError),
        (lambda module: module.TorchFLOPsByFX(net()).print_total_time(), RuntimeError),
        (lambda module: module.TorchFLOPsByFX(net()).print_max_memory(), RuntimeError),
    ],
}
ALL = [(peer, i) for peer, misuses in MISUSES.items() for i in range(len(misuses))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("peer", "number"), ALL)
def test_errors_are_ours_and_of_the_originals_kind(peer: str, number: int) -> None:
    misuse, kind = MISUSES[peer][number]
    with pytest.raises(kind) as raised:
        misuse(ours(peer))
    # These two let some errors through unchanged: torch's error about an invalid dtype, and the model's own.
    is_others = peer in ("torchinfo", "flops_profiler") and raised.type is kind
    assert isinstance(raised.value, FxflopsError) or is_others


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("peer", "number"), [each for each in ALL if each[0] != "flops_profiler"])
def test_the_originals_raise_that_kind(peer: str, number: int) -> None:
    misuse, kind = MISUSES[peer][number]
    with pytest.raises(kind):
        misuse(original(peer))


def test_an_error_of_several_kinds() -> None:
    """It can be caught as our type and as the model's, has the model's attributes, and gives our whole message."""

    class Coded(KeyError):
        def __init__(self, message: str, *, code: int) -> None:
            super().__init__(message)
            self.code = code

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise Coded("no such entry", code=7)

    with pytest.raises(Coded) as raised:
        fxflops.count(Model(), X)
    assert isinstance(raised.value, fxflops.RunError)
    assert isinstance(raised.value.__cause__, Coded)
    assert raised.value.code == 7
    assert "Model in the model's own forward\n  given f32[2,4]\n  Coded: 'no such entry'\n" in str(raised.value)
    with pytest.raises(fxflops.RunError, match="StopIteration"):
        fxflops.analyze(Raises(StopIteration), X)
    with pytest.raises(ValueError, match="the model raised at") as raised_there:
        fxflops.analyze(Raises(ValueError), X)
    assert type(raised_there.value).__name__ == "RunError"
    if sys.version_info >= (3, 11):
        with pytest.raises(fxflops.RunError, match="ExceptionGroup"):  # its constructor takes two arguments
            fxflops.count(Raises(lambda said: ExceptionGroup(said, [OSError()])), X)  # type: ignore[arg-type,name-defined]  # noqa: F821


# Formulas registered with fxflops


class Scanned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(-1) * self.weight.sum()


class Written(nn.Module):
    """A function with a formula in a forward that also calls a module."""

    def __init__(self, fc: nn.Module) -> None:
        super().__init__()
        self.fc = fc

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).cumsum(-1)


BY_PEER: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "fvcore": lambda net, x: fvcore.FlopCountAnalysis(net, x).total(),
    "fvcore, copied": lambda net, x: fvcore.FlopCountAnalysis(net, x).copy().total(),
    "thop": lambda net, x: thop.profile(net, (x,), verbose=False)[0],
    "ptflops": lambda net, x: ptflops.get_model_complexity_info(net, (16,), as_strings=False, print_per_layer_stat=False)[0],
    "flowflops": lambda net, x: flowflops.get_model_complexity_info(
        net, (1, 16), as_strings=False, print_per_layer_stat=False
    )[0],
    "deepspeed": lambda net, x: deepspeed.get_model_profile(net, args=[x], as_string=False, print_profile=False)[1],
    "flops_profiler": lambda net, x: flops_profiler.get_model_profile(net, args=[x], print_profile=False)[1],
    "pytorch_profiler": lambda net, x: pytorch_profiler.get_model_profile(
        net, (16,), as_strings=False, print_profile=False, print_aggregated_profile=False
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("peer", BY_PEER)
def test_they_count_what_a_formula_registered_with_fxflops_says(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("entries", "_ops_of_user_keys"):
        monkeypatch.setattr(BASE, table, dict(getattr(BASE, table)))
    linear, x = nn.Linear(16, 16, bias=False), torch.ones(1, 16)
    alone, macs = BY_PEER[peer](nn.Sequential(linear), x), fxflops.Cost(macs=256, muls=256, adds=240)
    fxflops.formula(Scanned)(lambda module, x, *, out: macs)
    assert BY_PEER[peer](nn.Sequential(linear, Scanned()), x) == alone + 256
    fxflops.formula(torch.Tensor.cumsum)(lambda input, dim, *, out: macs)
    # flops_profiler ignores the functions of the model's own forward.
    if peer != "flops_profiler":
        assert BY_PEER[peer](Written(linear), x) == alone + 256
    fxflops.formula(nn.Linear)(lambda module, x, *, out: 7)
    assert BY_PEER[peer](nn.Sequential(linear), x) == 7


def test_a_class_with_a_formula_is_none_without_a_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in ("entries", "_ops_of_user_keys"):
        monkeypatch.setattr(BASE, table, dict(getattr(BASE, table)))
    net, x = nn.Sequential(nn.Linear(16, 16, bias=False), Scanned()), torch.ones(1, 16)
    assert thop.profile(net, (x,), report_missing=True)[1] == 16 * 16
    assert "Cannot find rule for <class 'tests.adapters.test_drop_ins.Scanned'>" in capsys.readouterr().out

    @fxflops.formula(Scanned)
    def scanned(module: Any, x: Any, *, out: Any) -> int:
        return 5

    assert thop.profile(net, (x,), report_missing=True)[1] == 16 * 16 + 3
    assert "Register scanned() for <class 'tests.adapters.test_drop_ins.Scanned'>" in capsys.readouterr().out

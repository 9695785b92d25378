"""fvcore's documentation and its own test cases, with only the import changed: results and printed text are the same."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import Counter
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

from fxflops.adapters import fvcore as ours
from fxflops.adapters.fvcore import ActivationCountAnalysis, FlopCountAnalysis, JitModelAnalysis
from fxflops.errors import InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # fvcore scripts a function when it is imported
    import fvcore.nn as theirs
    from fvcore.nn import jit_handles, print_model_statistics
    from fvcore.nn.flop_count import _DEFAULT_SUPPORTED_OPS as HANDLES
    from fvcore.nn.jit_analysis import JitModelAnalysis as TheirAnalysis

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*torch.jit.*:{category}")
    for category in ("FutureWarning", "DeprecationWarning")
]
QUERIES = ("total", "by_operator", "by_module", "by_module_and_operator", "unsupported_ops", "uncalled_modules")
FUNCTIONS = (
    "flop_count",
    "activation_count",
    "flop_count_table",
    "flop_count_str",
    "parameter_count",
    "parameter_count_table",
)


class Net(nn.Module):
    """The network of the tutorials at that time, which the documentation's figures are for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 16, 3)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 6 * 6, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv1d(2, 2, 1), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * self.fc(self.conv(x.reshape(-1, 2, 5)).flatten(1)) + 1


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.submod, self.fc, self.conv = Inner(), nn.Linear(20, 10), nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.submod(self.fc(self.conv(x).flatten(1))) ** 2


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.unused, self.fc2, self.act = nn.Linear(10, 10), nn.Linear(20, 20), nn.Linear(10, 1), nn.ReLU()
        self.nothing = nn.Sequential(nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.nothing(self.fc2(self.act(self.fc1(x))))


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc2(self.fc1(self.fc1(self.fc1(x)))))


class Passing(nn.Module):
    """Has a method that computes as forward does: both pass their input on to the module it was given."""

    def __init__(self, submod: nn.Module) -> None:
        super().__init__()
        self.submod = submod

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.submod(x)

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.submod(x)


class NotForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.submod, self.fc = Passing(nn.Linear(10, 1)), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.submod.other(self.fc(x))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner = nn.Linear(10, 10)
        self.submod1, self.submod2 = Passing(inner), Passing(inner)
        self.name1 = self.name2 = nn.Linear(10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.submod1(x) + self.submod2(x)
        return self.name1(x) + self.name2(x)


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(10, 1)

    def forward(self, x: torch.Tensor, count: int = 3) -> torch.Tensor:
        return self(x, count - 1) if count > 0 else self.fc(x)


class Warning_(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, 1), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("the model's own", RuntimeWarning, stacklevel=1)
        return self.fc2(x) + 2


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.submod = nn.ModuleList([nn.Linear(3, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.submod[0](x) + 1


class Wrapped(nn.Module):
    """Wrappers with one child, a forward called directly, and a layer of each kind that fvcore counts."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapper = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(inplace=True)))
        self.direct, self.norm, self.drop = nn.Sequential(nn.Linear(8, 8)), nn.LayerNorm(8), nn.Dropout()
        self.up, self.pool, self.same = nn.Upsample(size=8), nn.AdaptiveAvgPool2d(4), nn.Identity()
        self.cell, self.scale = nn.LSTMCell(8, 5), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.norm(self.up(self.wrapper(x)))
        x = self.drop(self.direct.forward(self.same(x))) * self.scale
        return self.cell(x.mean((1, 2))), self.pool(1 - x)


INVERTED = [
    InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1),
    InvertedResidualConfig(16, 5, 96, 40, True, "HS", 2, 1, 1),
]
MODELS: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "Net": (Net(), torch.ones(1, 1, 32, 32)),
    "Nested": (Nested(), torch.ones(1, 4, 5)),
    "Unused": (Unused(), torch.ones(1, 10)),
    "Repeated": (Repeated(), torch.ones(2, 10)),
    "NotForward": (NotForward(), torch.ones(3, 10)),
    "Shared": (Shared(), torch.ones(1, 10)),
    "Recursive": (Recursive(), torch.ones(1, 10)),
    "Listed": (Listed(), torch.ones(1, 3)),
    "Wrapped": (Wrapped(), torch.ones(2, 3, 10, 10)),
    "DataParallel": (nn.DataParallel(Nested()).cpu(), torch.ones(1, 4, 5)),
    "Linear": (nn.Linear(8, 4), torch.ones(5, 8)),
    "resnet18": (
        torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 2, 1]).eval(),
        torch.ones(1, 3, 32, 32),
    ),
    "mobilenet_v3_small": (MobileNetV3(INVERTED, 64).eval(), torch.ones(1, 3, 32, 32)),
    "convnext": (timm.create_model("convnext_atto", depths=(1, 1, 2, 1)).eval(), torch.ones(1, 3, 32, 32)),
    "vit": (timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2).eval(), torch.ones(1, 3, 32, 32)),
    "LSTM": (nn.LSTM(8, 4), torch.ones(3, 1, 8)),
}
SMALL = [name for name, (model, _) in MODELS.items() if len(list(model.modules())) < 20]


def answers(analysis: Any) -> dict[str, Any]:
    quiet = analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return {query: getattr(quiet, query)() for query in QUERIES}


def given(name: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    model, x = MODELS[name]
    return copy.deepcopy(model), (x,)


def test_functions_signatures() -> None:
    mine, its = ({name: parameters(getattr(each, name)) for name in FUNCTIONS} for each in (ours, theirs))
    assert mine == its


def test_classes_signatures() -> None:
    for name in ("FlopCountAnalysis", "ActivationCountAnalysis"):
        mine, its = (methods_of(getattr(each, name)) for each in (ours, theirs))
        assert mine == its, name


def methods_of(cls: type) -> dict[str, Any]:
    """The parameters of the constructor and of every public attribute."""
    return {name: parameters(getattr(cls, name)) for name in dir(cls) if name == "__init__" or name[0] != "_"}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_the_documented_example() -> None:
    """The documentation says "addmm", as older versions of torch traced nn.Linear. Now torch, and so fvcore, says "linear"."""
    model, input = Net(), torch.randn(1, 1, 32, 32)

    flops = FlopCountAnalysis(model, input)
    assert flops.total() == 274656
    assert flops.by_operator() == Counter({"conv": 194616, "linear": 80040})
    assert flops.by_module() == Counter(
        {"": 274656, "conv1": 48600, "conv2": 146016, "fc1": 69120, "fc2": 10080, "fc3": 840}
    )
    assert flops.by_module_and_operator() == {
        "": Counter({"conv": 194616, "linear": 80040}),
        "conv1": Counter({"conv": 48600}),
        "conv2": Counter({"conv": 146016}),
        "fc1": Counter({"linear": 69120}),
        "fc2": Counter({"linear": 10080}),
        "fc3": Counter({"linear": 840}),
    }
    assert repr(flops.by_operator()) == "Counter({'conv': 194616, 'linear': 80040})"


@pytest.mark.parametrize("mode", ["owner", "caller"])
@pytest.mark.parametrize("name", MODELS)
def test_every_answer_is_fvcores(name: str, mode: str) -> None:
    for cls in ("FlopCountAnalysis", "ActivationCountAnalysis"):
        model, args = given(name)
        expected = answers(getattr(theirs, cls)(model, args).ancestor_mode(mode))
        model, args = given(name)
        found = answers(getattr(ours, cls)(model, args).ancestor_mode(mode))
        assert found == expected
        one = getattr(ours, cls)(model, args).ancestor_mode(mode)
        for path, _ in model.named_modules(remove_duplicate=False):
            assert one.total(path) == sum(expected["by_module_and_operator"][one.canonical_module_name(path)].values())


def test_shared_modules_by_their_callers() -> None:
    analysis = FlopCountAnalysis(*given("Shared")).ancestor_mode("caller")
    sums = {"": 220, "submod1": 100, "submod1.submod": 200, "submod2": 100, "name1": 20}
    assert analysis.by_module() == sums
    assert analysis.total("submod2.submod") == 200
    assert analysis.total("name2") == 20
    assert analysis.canonical_module_name("submod2.submod") == "submod1.submod"
    assert analysis.ancestor_mode("owner").total("submod1") == 200
    assert not analysis.uncalled_modules()


@pytest.mark.parametrize("name", SMALL)
def test_the_printed_text_is_fvcores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(print_model_statistics.tabulate, "tabulate", WITH_INDENTS)
    for depth, shapes, acts in ((3, True, False), (1, False, True), (5, True, True)):
        printed = []
        for library in (theirs, ours):
            model, args = given(name)
            flops, counted = library.FlopCountAnalysis(model, args), library.ActivationCountAnalysis(model, args)
            counted = counted if acts else None
            printed.append(
                [
                    library.flop_count_table(flops, depth, counted, shapes),
                    library.flop_count_str(flops, counted),
                    library.flop_count_str(library.FlopCountAnalysis(model, args).ancestor_mode("caller")),
                    library.parameter_count_table(model, depth),
                    library.parameter_count(model),
                ]
            )
        assert printed[1] == printed[0]


def test_columns_without_numbers_lie_on_the_left_as_fvcores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(print_model_statistics.tabulate, "tabulate", WITH_INDENTS)
    model, x = nn.Identity(), torch.ones(2)
    model.register_parameter("weight", nn.Parameter(torch.ones(1)))
    tables = [
        library.flop_count_table(
            library.FlopCountAnalysis(model, x), activations=library.ActivationCountAnalysis(model, x)
        )
        for library in (theirs, ours)
    ]
    assert tables[1] == tables[0]


WITH_INDENTS = partial(print_model_statistics.tabulate.tabulate, preserve_whitespace=True)
"""What fvcore intends: it asks for it by a setting that tabulate 0.10 ignores."""


def test_the_documented_text() -> None:
    class InnerNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(10, 10), nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc1(self.fc2(x))

    class TestNet(InnerNet):
        def __init__(self) -> None:
            super().__init__()
            self.inner = InnerNet()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.inner(x))

    layer = "Linear(\n    in_features=10, out_features=10, bias=True\n    #params: 0.11K, #flops: 100\n  )"
    layers = f"(fc1): {layer}\n  (fc2): {layer}"
    inner = f"InnerNet(\n  #params: 0.22K, #flops: 0.2K\n  {layers}\n)".replace("\n", "\n  ")
    expected = f"TestNet(\n  #params: 0.44K, #flops: 0.4K\n  {layers}\n  (inner): {inner}\n)"
    model, input = TestNet(), torch.randn(1, 10)
    assert ours.flop_count_str(FlopCountAnalysis(model, input)) == expected
    assert ours.flop_count_table(FlopCountAnalysis(model, input), max_depth=1, show_param_shapes=False) == (
        "| module   | #parameters   | #flops   |\n"
        "|:---------|:--------------|:---------|\n"
        "| model    | 0.44K         | 0.4K     |\n"
        "|  fc1     |  0.11K        |  100     |\n"
        "|  fc2     |  0.11K        |  100     |\n"
        "|  inner   |  0.22K        |  0.2K    |"
    )


@pytest.mark.parametrize("name", SMALL)
def test_the_functions_return_what_fvcores_do(name: str) -> None:
    handles = {"aten::silu_": lambda inputs, outputs: 7, "aten::linear": lambda inputs, outputs: Counter({"fc": 2})}
    for function in ("flop_count", "activation_count"):
        for supported in (None, handles):
            expected = getattr(theirs, function)(*given(name), supported)
            found = getattr(ours, function)(*given(name), supported)
            assert found == expected
            assert type(found[0]) is type(expected[0])
            assert found[0]["none"] == 0.0


@pytest.mark.parametrize("name", SMALL)
def test_fvcores_own_handles_work(name: str) -> None:
    model, args = given(name)
    expected = answers(FlopCountAnalysis(model, args))
    found = answers(JitModelAnalysis(model, args).set_op_handle(**HANDLES))
    assert found == expected


def test_handles_are_given_what_the_operator_takes() -> None:
    seen: dict[str, Any] = {}

    def handle(inputs: list[Any], outputs: list[Any]) -> int:
        seen["values"] = [jit_handles.get_shape(value) or value.toIValue() for value in inputs]
        seen["lists"] = [[jit_handles.get_shape(one) for one in value.node().inputs()] for value in inputs[:1]]
        seen["out"] = [(value.type().sizes(), value.type().dim()) for value in outputs]
        return 1

    class Ops(nn.Module):
        def __init__(self, run: Any) -> None:
            super().__init__()
            self.run = run

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.run(x)

    x = torch.ones(2, 3)
    for run, op, values, lists in (
        (lambda x: F.batch_norm(x, *[x[0]] * 4), "batch_norm", [[2, 3], *[[3]] * 4, False, 0.1, 1e-5], [[]]),
        (lambda x: torch.cat([x, x], dim=1), "cat", [None, 1], [[[2, 3], [2, 3]]]),
        (lambda x: F.gelu(x, approximate="tanh"), "gelu", [[2, 3], "tanh"], [[]]),
        (lambda x: x.add(x, alpha=2), "add", [[2, 3], [2, 3], 2], [[]]),
        (nn.Softmax(1), "softmax", [[2, 3], 1, None], [[]]),
    ):
        FlopCountAnalysis(Ops(run), x).set_op_handle(f"aten::{op}", handle).total()
        assert seen["values"][: len(values)] == values
        assert seen["lists"] == lists
        assert seen["out"] == [([2, 6 if op == "cat" else 3], 2)]


def test_changing_handles() -> None:
    for library, base in ((theirs, TheirAnalysis), (ours, JitModelAnalysis)):
        analysis = (
            library.FlopCountAnalysis(*given("Wrapped"))
            .unsupported_ops_warnings(False)
            .uncalled_modules_warnings(False)
        )
        assert analysis.total() == 24584
        analysis.set_op_handle("aten::batch_norm", None, "aten::silu_", None)
        assert (analysis.total(), analysis.unsupported_ops()["aten::silu_"]) == (24584, 0)
        analysis.set_op_handle("aten::silu_", lambda inputs, outputs: 1000)
        assert analysis.by_operator("wrapper")["silu_"] == 1000
        other = analysis.copy()
        assert type(other) is base
        assert answers(other.unsupported_ops_warnings(False)) == answers(analysis)
        assert other.copy(nn.Linear(4, 2), torch.ones(3, 4)).total() == 24
        assert analysis.clear_op_handles().by_module_and_operator()[""] == Counter()
        assert analysis.unsupported_ops()["aten::_convolution"] == 1


def test_bad_arguments() -> None:
    analysis = FlopCountAnalysis(*given("Net"))
    with pytest.raises(InputError, match="alternating names and handles"):
        analysis.set_op_handle("aten::add")
    with pytest.raises(InputError, match="no module 'conv3'"):
        analysis.total("conv3")
    with pytest.raises(InputError, match="'owner', 'caller'"):
        analysis.ancestor_mode("parent")
    with pytest.raises(InputError, match="'no_tracer_warning'"):
        analysis.tracer_warnings("some")


def test_warnings(logged: list[str]) -> None:
    model, x = Warning_(), torch.ones(1, 10)
    for mode in ("all", "no_tracer_warning"):
        with pytest.warns(RuntimeWarning, match="own"):
            FlopCountAnalysis(model, x).tracer_warnings(mode).total()
    assert any("Unsupported operator aten::add encountered 1 time(s)" in message for message in logged)
    assert "never called" in logged[-1]
    assert logged[-1].endswith("\nfc1")
    logged.clear()
    quiet = FlopCountAnalysis(model, x).tracer_warnings("none").unsupported_ops_warnings(False)
    quiet.uncalled_modules_warnings(False).total()
    FlopCountAnalysis(*given("Listed")).unsupported_ops_warnings(False).total()
    assert logged == []


@pytest.mark.parametrize("name", ["Net", "Wrapped", "Unused"])
def test_what_is_logged_is_fvcores(name: str, logged: list[str]) -> None:
    theirs.FlopCountAnalysis(*given(name)).total()
    expected = sorted(logged)
    logged.clear()
    FlopCountAnalysis(*given(name)).total()
    assert sorted(logged) == expected


def test_the_model_is_left_as_it_was() -> None:
    model, args = given("Wrapped")
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    for mode in ("owner", "caller"):
        ours.flop_count_table(FlopCountAnalysis(model.train(), args).ancestor_mode(mode))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_shared_parameters_and_names_that_begin_alike() -> None:
    class Convs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv111 = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
            self.conv111.weight = self.conv1.weight

    counts = ours.parameter_count(Convs())
    assert (counts[""], counts["conv1"], counts["conv111"]) == (152, 148, 4)
    assert ours.parameter_count_table(Convs()).count("conv111.bias") == 1


def test_what_only_a_trace_shows_changes_no_count() -> None:
    """In a trace, the sizes that multi-head attention multiplies are tensors, so fvcore lists those operators as unsupported."""
    model, args = nn.TransformerEncoderLayer(8, 2, 16).eval(), (torch.ones(3, 1, 8),)
    expected, found = (answers(library.FlopCountAnalysis(model, args)) for library in (theirs, ours))
    skipped, listed = expected.pop("unsupported_ops"), found.pop("unsupported_ops")
    assert found == expected
    assert set(skipped - listed) <= {"aten::mul", "aten::div"}
    assert not listed - skipped


def test_activations() -> None:
    analysis = ActivationCountAnalysis(*given("Net"))
    assert analysis.by_operator() == Counter({"conv": 6 * 30 * 30 + 16 * 13 * 13, "linear": 120 + 84 + 10})

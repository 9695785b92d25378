"""thop's documentation and its own test cases, run with only the import changed: values and printed text match the original's."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from fxflops.adapters import thop
from fxflops.adapters.thop import clever_format, profile, profile_origin
from fxflops.errors import InputError, RunError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # thop compares versions with distutils
    import thop as original

pytestmark = pytest.mark.filterwarnings("ignore:This API is being deprecated:UserWarning:thop")


class YourModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


class Net(nn.Module):
    """Modules with and without a rule, in containers; one is called twice, one never, and two are the same."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.LeakyReLU()
        self.features = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4), act, act, YourModule())
        self.heads = nn.ModuleList([nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)])
        self.rnn, self.embed, self.empty = nn.GRU(4, 4), nn.Embedding(5, 4), nn.Sequential()
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x) + self.embed.weight[:4].sum(0)
        x = self.heads[1](self.heads[0](self.heads[0](x)))
        return self.softmax(self.empty(self.rnn(x)[0]))


def count_your_model(module: nn.Module, x: tuple[torch.Tensor], y: torch.Tensor) -> None:
    module.total_ops += torch.DoubleTensor([x[0].numel() + 10 * y.numel()])


def x() -> torch.Tensor:
    return torch.ones(2, 3, 4)


def both(run: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]) -> list[tuple[Any, str]]:
    """What ``run`` returns and prints with the original and with the adapter."""
    return [(run(module), capsys.readouterr().out) for module in (original, thop)]


def test_the_documented_example() -> None:
    model = resnet50()
    input = torch.randn(1, 3, 224, 224)
    macs, params = profile(model, inputs=(input,))
    assert (macs, params) == (4133742592.0, 25557032.0)
    assert clever_format([macs, params], "%.3f") == ("4.134G", "25.557M")


def test_the_documented_rule_of_ones_own() -> None:
    macs, params = profile(YourModule(), inputs=(torch.ones(2, 4),), custom_ops={YourModule: count_your_model})
    assert (macs, params) == (8 + 80 + 2 * 16, 20)


@pytest.mark.parametrize("name", ["profile", "profile_origin", "clever_format"])
def test_signatures(name: str) -> None:
    def shape(module: Any) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(getattr(module, name)).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    assert shape(thop) == shape(original)


def test_names() -> None:
    exported = {
        name
        for name, value in vars(original).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "LooseVersion"
    }
    assert exported == set(thop.__all__)
    assert thop.default_dtype is original.default_dtype


SETTINGS: list[dict[str, Any]] = [
    {},
    {"verbose": False},
    {"report_missing": True},
    {"ret_layer_info": True, "verbose": False},
    {"custom_ops": {YourModule: count_your_model, nn.GELU: count_your_model, nn.Linear: count_your_model}},
    {"custom_ops": {nn.Sequential: count_your_model, nn.ModuleList: count_your_model}, "ret_layer_info": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "quiet", "missing", "layers", "custom", "containers"])
def test_values_and_prints_are_the_originals(settings: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    theirs, ours = both(lambda module: module.profile(Net(), (x(),), **settings), capsys)
    assert ours == theirs
    settings = {name: value for name, value in settings.items() if name != "ret_layer_info"}
    theirs, ours = both(lambda module: module.profile_origin(Net(), (x(),), **settings), capsys)
    assert ours == theirs


def test_the_kinds_of_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    for model, given in ((nn.Linear(4, 3), torch.ones(2, 4)), (nn.GELU(), x()), (Net(), x())):
        for name in ("profile", "profile_origin"):
            theirs, ours = both(lambda module: getattr(module, name)(model, (given,)), capsys)  # noqa: B023
            assert list(map(repr, ours[0])) == list(map(repr, theirs[0]))


def state(model: nn.Module) -> list[Any]:
    return [(path, {name: repr(value) for name, value in vars(m).items()}) for path, m in model.named_modules()]


def test_the_model_is_left_as_it_was() -> None:
    model = Net().train()
    model.features.eval()
    before = state(model)
    for run in (profile, profile_origin):
        run(model, inputs=[x()], custom_ops={YourModule: count_your_model, nn.Softmax: count_your_model}, verbose=False)
        assert state(model) == before

    def broken(*_: Any) -> None:
        raise ValueError("of the handler")

    with pytest.raises(ValueError, match="of the handler"):
        profile(model, (x(),), custom_ops={nn.GRU: broken}, verbose=False)
    assert state(model) == before


def test_a_module_under_two_others_counts_once_and_keeps_no_hook() -> None:
    shared = nn.Linear(4, 4)
    model, given = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared)), torch.ones(1, 4)
    macs, params, layers = profile(model, (given,), verbose=False, ret_layer_info=True)
    assert (macs, params) == (2 * 16, 20)
    assert layers == {"0": (32, 20, {"0": (32, 20, {})}), "1": (0, 0, {})}
    model(given)


def test_errors() -> None:
    with pytest.raises(InputError, match="not an instance"):
        profile(Net, (x(),))
    with pytest.raises(RunError, match="Linear"):
        profile(nn.Linear(4, 3), (torch.ones(2, 5),), verbose=False)


# The original's own test cases


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("n", "c", "o", "size", "k", "groups"), [(1, 3, 32, 224, 3, 1), (2, 8, 8, 10, 5, 4), (3, 4, 2, 7, 1, 2)]
)
def test_convolutions(n: int, c: int, o: int, size: int, k: int, groups: int, bias: bool) -> None:
    net = nn.Conv2d(c, o, k, padding=1, bias=bias, groups=groups)
    macs, _ = profile(net, inputs=(torch.ones(n, c, size, size),))
    out = size + 2 - k + 1
    assert macs == n * o * out * out * (c // groups) * k * k


@pytest.mark.parametrize(("n", "i", "o"), [(1, 10, 20), (3, 1, 7), (50, 60, 5)])
def test_matrices(n: int, i: int, o: int) -> None:
    assert profile(nn.Linear(i, o), inputs=(torch.ones(n, i),))[0] == n * i * o
    assert profile(nn.Linear(i, o, bias=False), inputs=(torch.ones(n, i),))[0] == n * i * o


@pytest.mark.parametrize(
    ("net", "per_element"),
    [
        (nn.BatchNorm1d(6), 4),
        (nn.BatchNorm1d(6, affine=False), 2),
        (nn.LayerNorm(6), 4),
        (nn.LayerNorm(6, elementwise_affine=False), 2),
        (nn.ReLU(), 0),
        (nn.LeakyReLU(), 0),
    ],
)  # fmt: skip
def test_norms_and_activations(net: nn.Module, per_element: int) -> None:
    assert profile(net, inputs=(torch.ones(5, 6),))[0] == per_element * 30


@pytest.mark.parametrize(
    "numbers",
    [1, 1.0, [1, 2], 999, 1000, 1001, 1e6, 1_000_001, 5e9, [2e12, 0], (25557032.0, 4133742592.0), [1], 1e3 + 0.5],
)
def test_formatted_numbers(numbers: Any) -> None:
    assert clever_format(numbers) == original.clever_format(numbers)
    assert clever_format(numbers, "%.4f") == original.clever_format(numbers, format="%.4f")


def test_formatted() -> None:
    assert clever_format(1, "%.2f") == "1.00B"
    assert clever_format([1, 2], "%.2f") == ("1.00B", "2.00B")


def test_profile_origin_has_all_parameters() -> None:
    assert profile_origin(nn.Linear(4, 3), (torch.ones(2, 4),)) == (24, 15)
    assert profile(nn.Linear(4, 3), (torch.ones(2, 4),)) == (24, 0)

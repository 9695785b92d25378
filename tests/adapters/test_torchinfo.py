"""torchinfo's documentation and its own test cases: the table is the same to the letter, and so are all figures."""

from __future__ import annotations

import inspect
import random
import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
import torchinfo as original
import torchvision
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fxflops import count
from fxflops.adapters import torchinfo
from fxflops.adapters.torchinfo import ModelStatistics, Units, summary
from fxflops.errors import InputError, RunError

ALL = tuple(column.value for column in original.ColumnSettings)
FIGURES = (
    *("total_params", "trainable_params", "total_mult_adds", "total_input", "total_output_bytes", "total_param_bytes"),
    "input_size",
)
OF_LAYERS = (
    *("class_name", "depth", "depth_index", "executed", "var_name", "is_leaf_layer", "is_recursive", "input_size"),
    *(
        "output_size",
        "kernel_size",
        "trainable_params",
        "num_params",
        "param_bytes",
        "output_bytes",
        "macs",
        "trainable",
    ),
    *("layer_id", "module"),
)


def text(statistics: Any) -> str:
    """The table. From Python 3.11 on, the original prints an enum where its documentation has the unit."""
    return str(statistics).replace("Units.MEGABYTES", "M").replace("Units.GIGABYTES", "G")


def compared(model: nn.Module, *args: Any, **settings: Any) -> ModelStatistics:
    """Our statistics, after checking that the original's are the same in every respect."""
    settings = {"verbose": 0, **settings}
    theirs = original.summary(model, *args, **settings)
    with warnings.catch_warnings():
        # The warning is about scripted parts; the original does not warn.
        warnings.filterwarnings("ignore", "the number is a lower bound")
        ours = summary(model, *args, **settings)
    assert text(ours) == text(theirs)
    for name in FIGURES:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert repr(ours.input_size) == repr(theirs.input_size)  # compare repr, because a torch.Size equals a tuple
    for one, other in zip(ours.summary_list, theirs.summary_list, strict=True):
        for name in OF_LAYERS:
            assert getattr(one, name) == getattr(other, name), (one, name)
        assert repr(one.children) == repr(other.children)
        assert repr(one) == repr(other)
    return ours


# The documentation's examples


class SingleInputNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv2_drop = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5), nn.Dropout2d(0.3)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2)).view(-1, 320)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


class LSTMNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 300)
        self.encoder = nn.LSTM(300, 512, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(512, 20)

    def forward(self, x: torch.Tensor) -> Any:
        out, hidden = self.encoder(self.embedding(x))
        out = self.decoder(out)
        return out.view(-1, out.size(2)), hidden


PRINTED = """\
========================================================================================================================
Layer (type:depth-idx)                   Input Shape          Output Shape         Param #              Mult-Adds
========================================================================================================================
SingleInputNet                           [7, 1, 28, 28]       [7, 10]              --                   --
├─Conv2d: 1-1                            [7, 1, 28, 28]       [7, 10, 24, 24]      260                  1,048,320
├─Conv2d: 1-2                            [7, 10, 12, 12]      [7, 20, 8, 8]        5,020                2,248,960
├─Dropout2d: 1-3                         [7, 20, 8, 8]        [7, 20, 8, 8]        --                   --
├─Linear: 1-4                            [7, 320]             [7, 50]              16,050               112,350
├─Linear: 1-5                            [7, 50]              [7, 10]              510                  3,570
========================================================================================================================
Total params: 21,840
Trainable params: 21,840
Non-trainable params: 0
Total mult-adds (M): 3.41
========================================================================================================================
Input size (MB): 0.02
Forward/backward pass size (MB): 0.40
Params size (MB): 0.09
Estimated Total Size (MB): 0.51
========================================================================================================================
"""
LSTM_PRINTED = """\
========================================================================================================
Layer (type (var_name))                  Kernel Shape     Output Shape     Param #          Mult-Adds
========================================================================================================
LSTMNet (LSTMNet)                        --               [100, 20]        --               --
├─Embedding (embedding)                  --               [1, 100, 300]    6,000            6,000
│    └─weight                            [300, 20]                         └─6,000
├─LSTM (encoder)                         --               [1, 100, 512]    3,768,320        376,832,000
│    └─weight_ih_l0                      [2048, 300]                       ├─614,400
│    └─weight_hh_l0                      [2048, 512]                       ├─1,048,576
│    └─bias_ih_l0                        [2048]                            ├─2,048
│    └─bias_hh_l0                        [2048]                            ├─2,048
│    └─weight_ih_l1                      [2048, 512]                       ├─1,048,576
│    └─weight_hh_l1                      [2048, 512]                       ├─1,048,576
│    └─bias_ih_l1                        [2048]                            ├─2,048
│    └─bias_hh_l1                        [2048]                            └─2,048
├─Linear (decoder)                       --               [1, 100, 20]     10,260           10,260
│    └─weight                            [512, 20]                         ├─10,240
│    └─bias                              [20]                              └─20
========================================================================================================
Total params: 3,784,580
Trainable params: 3,784,580
Non-trainable params: 0
Total mult-adds (M): 376.85
========================================================================================================
Input size (MB): 0.00
Forward/backward pass size (MB): 0.67
Params size (MB): 15.14
Estimated Total Size (MB): 15.80
========================================================================================================
"""


def test_the_documented_table(capsys: pytest.CaptureFixture[str]) -> None:
    batch_size = 7
    summary(
        SingleInputNet(),
        input_size=(batch_size, 1, 28, 28),
        col_names=["input_size", "output_size", "num_params", "mult_adds"],
        col_width=20,
    )
    assert capsys.readouterr().out == PRINTED


def test_the_documented_lstm(capsys: pytest.CaptureFixture[str]) -> None:
    summary(
        LSTMNet(),
        (1, 100),
        dtypes=[torch.long],
        verbose=2,
        col_width=16,
        col_names=["kernel_size", "output_size", "num_params", "mult_adds"],
        row_settings=["var_names"],
    )
    assert capsys.readouterr().out == LSTM_PRINTED


def test_the_documented_resnet() -> None:
    model = torchvision.models.resnet152()
    results = compared(model, (1, 3, 224, 224), depth=3)
    assert "Total mult-adds (G): 11.51" in str(results)
    assert results.total_params == 60_192_808


class ContainerModule(nn.Module):
    """Containers that are never called, only the modules in them."""

    def __init__(self) -> None:
        super().__init__()
        self._layers = nn.ModuleList([nn.Linear(5, 5), Child(), nn.Linear(5, 5)])
        self.by_name = nn.ModuleDict({"one": nn.Sequential(nn.Linear(5, 5), nn.ReLU()), "none": nn.ModuleList()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self._layers:
            x = layer(x)
        return self._layers[0](self.by_name["one"][0](x) + self.by_name["one"](x))


class Child(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._between = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5), nn.Sequential()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._between[1](self._between[0](x))


class Inputs(nn.Module):
    """Inputs of several kinds, by position and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(30, 5), nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor, y: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        out = (self.fc(x) + self.fc(y.float())) * self.scale
        return out * 2 if twice else out


class Gives(nn.Module):
    """Returns an output of any kind, computed by ordinary modules."""

    def __init__(self, give: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.give, self.fc = give, nn.Linear(4, 3)
        self.inner = nn.Sequential(nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.give(self.inner(self.fc(x)))


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


class Parameters(nn.Module):
    """Parameters on the model itself, in lists, frozen, and in a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.more = nn.ParameterList([torch.ones(3), torch.ones(2, 2)])
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.partly, self.idle = nn.Linear(4, 4), nn.Linear(4, 9)
        self.partly.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.partly(self.frozen(x * self.weight)) + self.more[0].sum()


class Shares(nn.Module):
    """One module in two others, called inside both and directly."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.a = nn.Sequential(shared, nn.Linear(4, 4))
        self.b = nn.ModuleDict({"inner": nn.Sequential(shared, shared[0])})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a[0](self.b["inner"](self.a(x)))


def pruned() -> nn.Module:
    model = SingleInputNet()
    for module in (model.conv1, model.fc1):
        prune.random_unstructured(module, "weight", amount=0.5)
    return model


Pair = namedtuple("Pair", ["left", "right"])
X = torch.ones(2, 4)
CASES: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "no input": lambda: (SingleInputNet(), {}),
    "no input, containers": lambda: (ContainerModule(), {"depth": 1, "row_settings": ["var_names", "ascii_only"]}),
    "no input, one under two": lambda: (Shares(), {"col_names": ("num_params", "params_percent", "trainable")}),
    "all columns": lambda: (SingleInputNet(), {"input_size": (2, 1, 28, 28), "col_names": ALL}),
    "no columns": lambda: (SingleInputNet(), {"input_size": (2, 1, 28, 28), "col_names": ()}),
    "a list of sizes": lambda: (SingleInputNet(), {"input_size": [2, 1, 28, 28]}),
    "a torch.Size": lambda: (SingleInputNet(), {"input_size": torch.Size([2, 1, 28, 28])}),
    "a tuple of a torch.Size": lambda: (SingleInputNet(), {"input_size": (torch.Size([2, 1, 28, 28]),)}),
    "a list of lists": lambda: (SingleInputNet(), {"input_size": [[2, 1, 28, 28]]}),
    "batch_dim": lambda: (SingleInputNet(), {"input_size": (1, 28, 28), "batch_dim": 0, "col_names": ALL}),
    "batch_dim of an lstm": lambda: (
        LSTMNet(), {"input_size": (100,), "batch_dim": 0, "dtypes": [torch.long], "col_names": ALL}
    ),
    "train": lambda: (SingleInputNet(), {"input_size": (2, 1, 28, 28), "mode": "train"}),
    "on a device": lambda: (SingleInputNet(), {"input_size": (2, 1, 28, 28), "device": "cpu"}),
    "half": lambda: (nn.Linear(4, 3).half(), {"input_data": X.half()}),
    "every detail": lambda: (LSTMNet(), {"input_data": torch.zeros(2, 9).long(), "verbose": 2, "col_names": ALL}),
    "narrow": lambda: (SingleInputNet(), {"input_size": (2, 1, 28, 28), "col_width": 3, "row_settings": ()}),
    "ascii": lambda: (ContainerModule(), {"input_size": (1, 5), "row_settings": ("ascii_only", "depth")}),
    "containers": lambda: (ContainerModule(), {"input_size": (1, 5), "depth": 9, "col_names": ALL, "verbose": 2}),
    "containers, from above": lambda: (ContainerModule(), {"input_size": (1, 5), "depth": 1, "col_names": ALL}),
    "depth 0": lambda: (ContainerModule(), {"input_size": (1, 5), "depth": 0, "col_names": ALL}),
    "several sizes": lambda: (
        Inputs(), {"input_size": [(2, 30), (1, 30)], "dtypes": [torch.float, torch.long], "col_names": ALL}
    ),
    "several data": lambda: (Inputs(), {"input_data": [torch.ones(2, 30), torch.ones(2, 30).long()], "twice": True}),
    "the same tensor twice": lambda: (Inputs(), {"input_data": (t := torch.ones(2, 30), t)}),
    "data by name": lambda: (Inputs(), {"input_data": {"x": torch.ones(2, 30), "y": torch.ones(2, 30)}, "device": "cpu"}),
    "one by name": lambda: (Inputs(), {"input_data": [torch.ones(2, 30)], "y": torch.ones(2, 30), "col_names": ALL}),
    "a tuple given": lambda: (Gives(lambda x: (x, x[0])), {"input_data": X, "col_names": ALL}),
    "a mapping given": lambda: (Gives(lambda x: {"a": x[0], "b": x}), {"input_data": X, "col_names": ALL}),
    "a mapping, batch_dim": lambda: (
        Gives(lambda x: {"a": x[0], "b": x}), {"input_size": (4,), "batch_dim": 0, "col_names": ALL}
    ),
    "a namedtuple": lambda: (Gives(lambda x: Pair(x, x[0])), {"input_data": X, "col_names": ALL}),
    "nested, batch_dim": lambda: (
        Gives(lambda x: [[x, x], x]), {"input_size": (4,), "batch_dim": 0, "col_names": ALL}
    ),
    "nothing given": lambda: (Gives(lambda x: None), {"input_data": X, "col_names": ALL}),
    "a number given": lambda: (Gives(lambda x: x.sum()), {"input_data": X, "col_names": ALL}),
    "packed": lambda: (Packs(), {"input_data": torch.ones(2, 3, 4), "col_names": ALL}),
    "parameters": lambda: (Parameters(), {"input_data": X, "col_names": ALL, "verbose": 2}),
    "one under two": lambda: (Shares(), {"input_data": X, "col_names": ALL, "depth": 9}),
    "recursive rows hidden": lambda: (
        Shares(), {"input_data": X, "col_names": ALL, "row_settings": ("depth", "hide_recursive_layers")}
    ),
    "pruned": lambda: (pruned(), {"input_size": (2, 1, 28, 28), "col_names": ALL}),
    "scripted": lambda: (torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU())), {"input_data": X, "col_names": ALL}),
    "partly scripted": lambda: (nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 3))), {"input_data": X}),
    "attention": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), {"input_size": (2, 3, 8), "col_names": ALL}),
    "a leaf": lambda: (nn.Linear(4, 3), {"input_data": X, "col_names": ALL, "verbose": 2}),
    "no parameters": lambda: (nn.Sequential(nn.ReLU(), nn.Identity()), {"input_data": X, "col_names": ALL}),
    "detection": lambda: (
        torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None),
        {"input_data": [[torch.rand(3, 320, 320)]], "col_names": ALL, "depth": 9, "row_settings": ("var_names",)},
    ),
    "swin": lambda: (torchvision.models.swin_t(), {"input_size": (1, 3, 64, 64), "col_names": ALL, "depth": 4}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is not supported:FutureWarning")
@pytest.mark.filterwarnings("ignore:Half precision is not supported:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_tables_are_the_originals(name: str) -> None:
    model, settings = CASES[name]()
    compared(model, **settings)


class Tree(nn.Module):
    """Nested modules, some of them shared, called in a random order."""

    def __init__(self, depth: int, chance: random.Random, pool: list[nn.Module]) -> None:
        super().__init__()
        self.order: list[int] = []
        self.parts = nn.ModuleList()
        for i in range(chance.randint(1, 3)):
            if depth == 0 or chance.random() < 0.3:
                part = nn.Linear(3, 3)
            elif pool and chance.random() < 0.4:
                part = chance.choice(pool)
            else:
                part = Tree(depth - 1, chance, pool)
            pool.append(part)
            if chance.random() < 0.5:
                self.parts.append(part)
            else:
                self.add_module(f"part{i}", part)
        count = len([*self.parts, *self._modules]) - 1
        self.order = [chance.randrange(count) for _ in range(chance.randint(1, 4))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [*self.parts, *(part for name, part in self._modules.items() if name != "parts")]
        for i in self.order:
            x = parts[i](x)
        return x


@pytest.mark.parametrize("seed", range(25))
def test_trees_are_the_originals(seed: int) -> None:
    model = Tree(3, random.Random(seed), [])
    compared(model, (2, 3), depth=20, col_names=ALL, row_settings=("depth", "var_names"))


# The interface


def test_signature_and_names() -> None:
    def shape(function: Any) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert shape(summary) == shape(original.summary)
    assert set(torchinfo.__all__) == set(original.__all__)
    for name in ("ColumnSettings", "Mode", "RowSettings", "Units", "Verbosity"):
        ours, theirs = ({each.name: each.value for each in getattr(module, name)} for module in (torchinfo, original))
        assert ours == theirs


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (None, 0, 1, 2):
        statistics = summary(nn.Linear(4, 3), input_data=X, verbose=verbose)
        assert capsys.readouterr().out == (f"{statistics}\n" if verbose != 0 else "")


@pytest.mark.parametrize("number", [0, 12, 999_999, 1_000_000, 1_234_567, 5 * 10**9, 123_456_789_012, 2 * 10**12])
def test_units(number: int) -> None:
    theirs = original.ModelStatistics
    assert ModelStatistics.to_megabytes(number) == theirs.to_megabytes(number)
    assert ModelStatistics.float_to_megabytes(number) == theirs.float_to_megabytes(number)
    for units in Units:
        unit, scaled = theirs.to_readable(number, original.Units[units.name])
        assert ModelStatistics.to_readable(number, units) == (Units[unit.name], scaled), units
        printed = theirs.format_output_num(number, original.Units[units.name])
        for each in original.Units:
            printed = printed.replace(f"Units.{each.name}", each.value)
        assert ModelStatistics.format_output_num(number, units) == printed, units


def test_nothing_is_cached() -> None:
    for width in (3, 5):
        results = summary(nn.Linear(4, width), input_data=X, cache_forward_pass=True, verbose=0)
        assert results.total_params == 5 * width


def test_the_mult_adds_are_the_conventions() -> None:
    model, x = ContainerModule(), torch.ones(2, 5)
    assert (
        summary(model, input_data=x, verbose=0).total_mult_adds == count(model, x, convention="torchinfo").total_flops
    )


def state(model: nn.Module) -> list[Any]:
    return [(path, {name: repr(value) for name, value in vars(m).items()}) for path, m in model.named_modules()]


def test_the_model_and_the_random_numbers_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train()
    model[2].eval()
    before, chance = state(model), torch.get_rng_state()
    summary(model, (2, 3, 8, 8), mode="train", verbose=0)
    with pytest.raises(RunError, match="Conv2d"):
        summary(model, (2, 5, 8, 8), verbose=0)
    assert state(model) == before
    assert torch.equal(torch.get_rng_state(), chance)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_size": (0,)}, "sizes of at least 1"),
        ({"input_size": ()}, "sizes of at least 1"),
        ({"input_size": 3}, "or a list of shapes"),
        ({"input_size": ("a",)}, "sizes of at least 1"),
        ({"input_size": (2, 4), "input_data": X}, "not both"),
        ({"input_data": X, "col_width": 0}, "col_width"),
        ({"input_data": X, "verbose": 3}, "verbose"),
        ({"input_data": X, "col_names": ["flops"]}, "unknown ColumnSettings 'flops'"),
        ({"input_data": X, "row_settings": ["rows"]}, "unknown RowSettings 'rows'"),
        ({"input_data": X, "mode": "as_is"}, "unknown Mode 'as_is'"),
        ({"col_names": ["output_size"]}, "output_size need a run"),
    ],
)
def test_arguments_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        original.summary(nn.Linear(4, 3), **settings)
    with pytest.raises(InputError, match=message):
        summary(nn.Linear(4, 3), **settings)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (Inputs(), {"input_size": (2, 30)}, r"argument: 'y'\n.* pass the shapes as input_size=\[.*input_data=\["),
        (
            nn.Linear(4, 3),
            {"input_data": X, "colwidth": 3},
            r"\n  colwidth= was passed to the model's forward \(did you mean col_width\?\)$",
        ),
        (nn.Embedding(9, 4), {"input_size": (2, 7)}, r"token ids: pass dtypes=\[torch\.long\]"),
        (nn.Linear(4, 3).bfloat16(), {"input_size": (1, 4)}, r"\n  pass dtypes=\[torch\.bfloat16\]"),
        (SingleInputNet(), {"input_size": (1, 28, 28)}, r"pass f32\[1,1,28,28\], with input_size or batch_dim=0$"),
        (
            SingleInputNet(),
            {"input_size": (1, 1, 28, 28), "batch_dim": 0},
            r"\n  batch_dim=0 added a dimension of 1 to ",
        ),
        (
            nn.Linear(4, 3),
            {"input_size": (2, 4), "batch_dim": 9},
            r"batch_dim must be a position in the shape \(2, 4\)",
        ),
    ],
)
def test_what_to_write_is_told_in_its_own_arguments(model: nn.Module, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        original.summary(model, verbose=0, **settings)
    with pytest.raises(InputError, match=message) as raised:
        summary(model, verbose=0, **settings)
    assert "args=" not in str(raised.value)


def test_sizes_are_numbers_of_any_kind() -> None:
    sizes = tuple(numpy.array([2, 1, 28, 28]))
    assert str(summary(SingleInputNet(), sizes, verbose=0)) == str(summary(SingleInputNet(), (2, 1, 28, 28), verbose=0))


def test_lazy_parameters_have_shapes_only_during_the_run() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    ours = summary(model, (2, 5), verbose=0)
    assert str(ours) == str(summary(nn.Sequential(nn.Linear(5, 3), nn.ReLU()), (2, 5), verbose=0))
    assert isinstance(model[0], nn.LazyLinear)
    assert model[0].has_uninitialized_params()
    with pytest.raises(RuntimeError):
        summary(model, (2, 5), dtypes=[torch.long], verbose=0)

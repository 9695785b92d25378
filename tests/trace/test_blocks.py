"""Modules made again as a whole: the report is the one that is made anew, and what cannot be told is not made again."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from anew import assert_same
from torch import nn

import fxflops
from fxflops.trace.fast import FastObserver
from fxflops.trace.forwards import may_write
from fxflops.trace.plans import forget

RAN: list[str] = []
"""The layers whose forward really ran: a list that no module holds."""


class Layer(nn.Module):
    def __init__(self, width: int = 8, **settings: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        for name, value in settings.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> Any:
        RAN.append(type(self).__name__)
        return x + self.linear(x).relu()


class Stack(nn.Module):
    """Layers one after another; ``calls`` are the arguments of each besides x."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(autouse=True)
def anew() -> None:
    forget()
    RAN.clear()


X = torch.randn(2, 8)


def test_equal_layers_run_once_and_the_second_count_not_at_all() -> None:
    model = Stack(*(Layer() for _ in range(126)))
    first = fxflops.count(model, X)
    assert RAN == ["Layer"]
    again = fxflops.count(model, X)
    assert RAN == ["Layer"]
    anew = fxflops.count(model, X, reuse=False)
    assert len(RAN) == 127
    assert first.total_macs == again.total_macs == anew.total_macs == 126 * 2 * 8 * 8
    assert [c.path for c in first.calls] == [c.path for c in anew.calls]
    assert_same(model, X)


@pytest.mark.parametrize("device", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_buffers_of_integers_may_be_anywhere(device: str) -> None:
    model = Stack(*(Layer(norm=nn.BatchNorm1d(8)) for _ in range(3))).to(device)
    for layer in model.layers:
        layer.register_buffer("positions", torch.arange(4, device=device))
    x = X.to(device)
    fxflops.count(model, x)
    fxflops.count(model, x)
    assert RAN == ["Layer"]
    if device != "meta":
        model.layers[1].positions += 1
        fxflops.count(model, x)
        assert RAN == ["Layer", "Layer"]


class Recurrent(Layer):
    """An RNN keeps its parameters in lists, too, and puts out tuples of tuples."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(8, 8, num_layers=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RAN.append("Recurrent")
        return x + self.rnn(x)[0]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_equal_rnns_run_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack(Recurrent(kind), Recurrent(kind), Layer(rnn=getattr(nn, kind)(8, 8)))
    assert_same(model, X)
    forget()
    RAN.clear()
    fxflops.count(model, X)
    assert RAN == ["Recurrent", "Layer"]
    entered: list[nn.Module] = []
    enter = FastObserver._enter_module
    monkeypatch.setattr(FastObserver, "_enter_module", lambda *args: (entered.append(args[1]), enter(*args))[1])
    rnn = getattr(nn, kind)(8, 8, num_layers=2)
    assert fxflops.count(rnn, X).total_flops == fxflops.count(rnn, X, reuse=False).total_flops
    assert not any(module is rnn for module in entered)
    rnn._flat_weights = [weight.clone() for weight in rnn._flat_weights]
    fxflops.count(rnn, X)
    assert any(module is rnn for module in entered)


class Renamed(Layer):
    """Has another method as its forward, as FasterNet's partial convolutions have."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.forward = getattr(self, name)

    def slicing(self, x: torch.Tensor) -> torch.Tensor:
        RAN.append("slicing")
        return self.linear(x)[:, :4].repeat(1, 2)

    def writing(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return self.linear(x.repeat(self.n, 1))[: len(x)]

    def speaking(self, x: torch.Tensor) -> torch.Tensor:
        print("x")
        return self.linear(x)


def test_a_method_in_place_of_forward_is_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = Stack(*(Renamed("slicing") for _ in range(3)), Renamed("writing", n=0), Layer(), Renamed("writing", n=0))
    before = [dict(vars(layer)) for layer in model.layers]
    report = fxflops.count(model, X)
    assert RAN == ["slicing", "Layer"]
    assert report.total_macs == 6 * 2 * 8 * 8
    assert_same(model, X)
    for layer, attributes in zip(model.layers, before, strict=True):
        assert vars(layer) == attributes
        assert list(vars(layer)) == list(attributes)
    capsys.readouterr()
    fxflops.count(Stack(Renamed("speaking"), Renamed("speaking")), X)
    assert capsys.readouterr().out == "x\nx\n"
    plain, other = Layer(), Layer()
    other.forward = plain.forward  # type: ignore[method-assign]
    assert_same(Stack(plain, other), X)
    linear = nn.Linear(8, 8)
    linear.forward = Renamed.slicing.__get__(Renamed("slicing"))  # type: ignore[method-assign]
    assert_same(Stack(linear, nn.Linear(8, 8)), X)


class Helper:
    """Holds a parameter of one module, for others."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight


class Helped(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RAN.append("Helped")
        return x + (self.linear(x) @ self.helper.weight).sum()


@pytest.mark.parametrize("width", [4, 12])
def test_an_object_with_a_parameter_of_one_module_says_nothing_of_another(width: int) -> None:
    for wide in (6, width):
        helper = Helper(nn.Parameter(torch.randn(8, wide)))
        owner = Layer(weight=helper.weight, helper=helper)
        fxflops.count(Stack(owner, Helped(helper=helper)), X)
    assert RAN.count("Helped") == 2
    assert_same(Stack(owner, Helped(helper=helper)), X)


def test_a_known_model_inside_another_is_made_again() -> None:
    fxflops.count(Layer(), X)
    report = fxflops.count(Stack(Layer(), Layer()), X)
    assert RAN == ["Layer"]
    assert {c.path for c in report.calls} >= {"layers.0.linear", "layers.1.linear", "layers.1"}
    fxflops.count(nn.Sequential(Stack(Layer(), Layer())), X)
    assert RAN == ["Layer"]


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "scale", 2),
        lambda layer: setattr(layer, "scale", True),
        lambda layer: setattr(layer, "scale", [1, [2]]),
        lambda layer: setattr(layer, "other", 1),
        lambda layer: setattr(layer.linear, "bias", None),
        lambda layer: setattr(layer.linear, "weight", nn.Parameter(torch.randn(8, 8).t())),
        lambda layer: setattr(layer, "linear", nn.Sequential(layer.linear)),
        lambda layer: layer.linear.weight.requires_grad_(False),
        lambda layer: layer.linear.train(),
        lambda layer: layer.register_buffer("mask", torch.tensor([1, 2])),
    ],
)
def test_a_layer_that_differs_in_anything_runs(change: Any) -> None:
    model = Stack(Layer(scale=1), Layer(scale=1)).eval()
    change(model.layers[1])
    fxflops.count(model, X, mode="as_is")
    assert RAN == ["Layer", "Layer"]


class Counter(Layer):
    """Each call is wider than the last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return x + self.linear(x.repeat(self.n, 1))[: len(x)]


class Listing(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        return x + self.linear(x.repeat(len(self.seen), 1))[: len(x)]


class Caching(Layer):
    """Keeps what it made beyond its call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = self.linear(x)
        return self.kept * 2


class Dicing(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if random.random() < 0.5 else x


class Sparing(Layer):
    """Does as its neighbours tell it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.skipped else self.linear(x)


class Switching(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.layers, *self.layers):
            layer.skipped = not layer.skipped
            x = layer(x)
        return x


class InPlace(Layer):
    """Counts its calls in a buffer of integers that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("number", torch.tensor(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.number.add_(1)
        return x + self.linear(x.repeat(int(self.number), 1))[: len(x)]


STATEFUL = {
    "an attribute that counts": lambda: Stack(*[Counter(n=0)] * 3),
    "several of them": lambda: Stack(*(Counter(n=i % 2) for i in range(4))),
    "a list that grows": lambda: Stack(*[Listing(seen=[])] * 3, Layer()),
    "a list of each": lambda: Stack(*(Listing(seen=[]) for _ in range(3))),
    "a tensor kept": lambda: Stack(*(Caching() for _ in range(3))),
    "a random number": lambda: Stack(*(Dicing() for _ in range(8))),
    "an attribute set from outside": lambda: Switching(*(Sparing(skipped=False) for _ in range(2))),
    "a buffer that counts": lambda: Stack(*[InPlace()] * 3, InPlace()),
}


@pytest.mark.parametrize("make", STATEFUL.values(), ids=STATEFUL)
def test_what_has_state_is_counted_as_it_runs(make: Any) -> None:
    random.seed(3)
    assert_same(make(), X)


class Several(nn.Module):
    """Returns tensors in all the ways there are."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        match self.form:
            case "itself":
                return x
            case "a view of it":
                return x[:, :4]
            case "a view":
                return y.t()
            case "parts of one":
                return y.chunk(2, dim=1)
            case "a dict":
                return {"x": x, "y": [y, None, y[0]], "z": (y * 2).sum(), "n": 3}
        return y, y


class Twice(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Several(form) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        total = x.sum()
        for part in self.parts:
            out = part(x)
            out = out if isinstance(out, dict) else {"x": out}
            for value in out.values():
                for each in value if isinstance(value, (tuple, list)) else [value]:
                    if isinstance(each, torch.Tensor):
                        total = total + each.reshape(-1).sum() + sum(each.stride()) + each.storage_offset()
        return total


@pytest.mark.parametrize("form", ["itself", "a view of it", "a view", "parts of one", "a dict", "one twice"])
def test_what_is_returned_lies_as_it_did(form: str) -> None:
    assert_same(Twice(form), X)


class Choosing(nn.Module):
    """What it does follows from the values of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(x[: int(rows.max())]).sum() + x.sum()


class Choices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Choosing() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(4)
        outs = [self.parts[0](x, rows), self.parts[1](x, rows)]
        rows += 3
        outs.append(self.parts[2](x, rows))
        return torch.stack([*outs, self.parts[3](x, torch.arange(1, 3))])


def test_values_of_integers_tell_calls_apart() -> None:
    x = torch.randn(9, 8)
    assert_same(Choices(), x)
    assert fxflops.count(Choices(), x).total_macs == (3 + 3 + 6 + 2) * 64


class Popping(nn.Module):
    """Takes a tensor out of the list that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:
        return self.linear(xs.pop())


class Pops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Popping() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        xs, ys = [x, x + 1], [x, x + 1]
        out = self.parts[0](xs) + self.parts[1](ys)
        return out if len(xs) == len(ys) == 1 else out.repeat(9, 9)


def test_what_is_done_to_a_list_of_arguments_is_done_each_time() -> None:
    assert_same(Pops(), X)


class Unsqueezing(nn.Module):
    """Changes the form of its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.unsqueeze_(0))


class Unsqueezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Unsqueezing() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x + 1, x + 1
        outs = [self.parts[0](a), self.parts[1](b)]
        return outs[0].sum() + outs[1].sum() + a.sum(-1)[0] + b.sum(-1)[0]


def test_what_is_done_to_the_form_of_an_argument_is_done_each_time() -> None:
    assert_same(Unsqueezed(), X)


class Shared(nn.Module):
    """Its blocks share a layer, which is at home in the first."""

    def __init__(self) -> None:
        super().__init__()
        shared = Layer()
        self.parts = nn.ModuleList(nn.Sequential(shared, nn.ReLU(), Layer()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


def test_a_shared_layer_stays_where_it_is_at_home() -> None:
    assert_same(Shared(), X)


def test_the_default_dtype_is_part_of_what_is_known() -> None:
    class Making(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(2000, 2000, device=x.device).sum()

    single = fxflops.count(Making(), X).max_memory
    torch.set_default_dtype(torch.float64)
    try:
        assert fxflops.count(Making(), X).max_memory == fxflops.count(Making(), X, reuse=False).max_memory > single
    finally:
        torch.set_default_dtype(torch.float32)


def test_code_that_may_write_is_told_from_code_that_does_not() -> None:
    class Calling(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.helper(x)

        def helper(self, x: torch.Tensor) -> torch.Tensor:
            setattr(self, "last", x.shape)  # noqa: B010
            return x

    class Inheriting(Counter):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    class Global(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            global X
            X = X
            return F.relu(x)

    assert [*map(may_write, (Layer, Stack, nn.Conv2d, nn.Sequential))] == [False] * 4
    assert [*map(may_write, (Counter, Caching, Calling, Inheriting, Global))] == [True] * 5


def test_setting_attributes_works_as_before_when_a_count_is_over() -> None:
    kept = nn.Module.__setattr__, nn.Module.__delattr__
    fxflops.count(Stack(Counter(n=0)), X)
    assert (nn.Module.__setattr__, nn.Module.__delattr__) == kept


def test_a_forward_that_speaks_does_so_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    class Speaking(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("here")
            return self.linear(x)

    model = Stack(Speaking(), Speaking())
    fxflops.count(model, X)
    fxflops.count(model, X)
    assert capsys.readouterr().out == "here\n" * 4

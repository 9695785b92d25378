"""Models that could mislead a counter that runs no kernels: they keep state, share, write, inspect themselves, and answer oddly.

:data:`ODD` builds each by name. Each takes X.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

X = torch.randn(2, 8)
SEEN = [0]
"""A counter for a forward, outside any module."""


class Layer(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        for name, value in settings.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.linear(x).relu()

    def widened(self, x: torch.Tensor, times: int) -> torch.Tensor:
        return x + self.linear(x.repeat(times, 1))[: len(x)]


class Stack(nn.Sequential):
    """Layers in sequence. Like ``nn.Sequential``, it is not a leaf."""


class Function(nn.Module):
    """A model of one function. It has a layer, so that it has a device."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self, *args)


# State


class Counter(Layer):
    """Each call is wider than the one before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return self.widened(x, self.n)


class Inheriting(Counter):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Listing(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        return self.widened(x, len(self.seen))


class Global(Layer):
    """Counts its calls where no module sees it. The count cycles, so that every run starts from the same number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN[0] = SEEN[0] % 3 + 1
        return self.widened(x, SEEN[0])


class Caching(Layer):
    """Keeps its result after the call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = self.linear(x)
        return self.kept * 2


class Dicing(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if random.random() < 0.5 else x


class Sparing(Layer):
    """Runs or skips its layer, as its parent sets it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.skipped else self.linear(x)


class Switching(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self, *self):
            layer.skipped = not layer.skipped
            x = layer(x)
        return x


class InPlace(Layer):
    """Counts its calls in an integer buffer, and reads the buffer's value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("number", torch.tensor(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.number.add_(1)
        return self.widened(x, int(self.number))


class Setting(Layer):
    """Changes the settings of a leaf between two calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pool = self.pool
        outs = [pool(x[None, None])]
        pool.kernel_size = pool.stride = 2
        outs.append(pool(x[None, None]))
        pool.ceil_mode = True
        outs.append(pool(x[None, None, :, :7]))
        self.linear.weight = nn.Parameter(torch.empty(4, 8, device=self.linear.weight.device), requires_grad=False)
        self.linear.bias = None
        return sum(out.sum() for out in outs) + self.linear(x).sum()


def stack(make: Callable[[int], nn.Module], count: int = 4) -> nn.Module:
    return Stack(*(make(number) for number in range(count)))


STATEFUL: dict[str, Callable[[], nn.Module]] = {
    "an attribute that counts": lambda: Stack(*[Counter(n=0)] * 3),
    "several of them": lambda: stack(lambda i: Counter(n=i % 2)),
    "one that inherits": lambda: Stack(*[Inheriting(n=0)] * 3),
    "a list that grows": lambda: Stack(*[Listing(seen=[])] * 3, Layer()),
    "a list of each": lambda: stack(lambda i: Listing(seen=[])),
    "a global": lambda: Stack(*[Global()] * 3),
    "a tensor kept": lambda: stack(lambda i: Caching()),
    "a random number": lambda: stack(lambda i: Dicing(), 8),
    "an attribute set from outside": lambda: Switching(*(Sparing(skipped=False) for _ in range(2))),
    "a buffer that counts": lambda: Stack(*[InPlace()] * 3, InPlace()),
    "a leaf changed on the way": lambda: Setting(pool=nn.AvgPool2d(1)),
}


# Layers that have a number, which they may or may not read


class Read(Layer):
    """Depends on its number, which is read by a function outside the class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.widened(x, times_of(self))


def times_of(module: Any) -> int:
    return int(module.layer_idx) + 1


class Around(Layer):
    """Contains a layer that reads its own number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


class Owning(Layer):
    """Has a property as one of its numbers."""

    @property
    def layer_id(self) -> int:
        return 5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.widened(x, self.layer_id + self.layer_idx)


NUMBERED: dict[str, Callable[[], nn.Module]] = {
    "unread": lambda: stack(lambda i: Layer(layer_idx=i)),
    "read": lambda: stack(lambda i: Read(layer_idx=i)),
    "float": lambda: stack(lambda i: Read(layer_idx=float(i))),
    "read by an inner one": lambda: stack(lambda i: Around(layer_idx=9, inner=Read(layer_idx=i % 2))),
    "a property": lambda: stack(lambda i: Owning(layer_idx=i)),
    "some": lambda: Stack(Read(layer_idx=1), Layer(layer_idx=2), nn.Linear(8, 8), Read(layer_idx=3), Read(layer_idx=1)),
}


# Unusual forwards and calls


class Renamed(Layer):
    """Has another method as its forward, like FasterNet's partial convolutions."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.forward = getattr(self, name)

    def slicing(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)[:, :4].repeat(1, 2)

    def writing(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return self.linear(x.repeat(self.n, 1))[: len(x)]


def with_forward(module: nn.Module, forward: Any) -> nn.Module:
    module.forward = forward
    return module


class Called(Layer):
    def __call__(self, x: torch.Tensor) -> Any:
        return super().__call__(x + 1)


class Direct(Layer):
    """Calls a leaf's forward directly, on the leaf and on its class, which bypasses hooks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear.forward(x) + nn.Linear.forward(self.linear, input=x) + self.linear(input=x)


class Looks(Layer):
    """Inspects its own forward."""

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        assert list(inspect.signature(self.forward).parameters) == ["x", "scale"]
        assert self.forward.__name__ == "forward"
        assert self.linear.forward.__func__ is nn.Linear.forward
        return self.linear(x) * scale


class Unhashable:
    """A callable without a hash."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        return module.fc(x) + 1


class Helper:
    """Holds a parameter that modules use, but is not a module."""

    def __init__(self, wide: int) -> None:
        self.weight = nn.Parameter(torch.randn(8, wide))


class Helped(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.linear(x) @ self.helper.weight).sum()


def helped() -> nn.Module:
    narrow, wide = Helper(4), Helper(12)
    return Stack(*(Helped(helper=helper) for helper in (narrow, wide, narrow)), Layer(weight=wide.weight))


class Recurrent(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.rnn(x)[0]


def hooked() -> nn.Module:
    model = Stack(nn.Linear(8, 8), nn.Linear(8, 8), Layer())
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    model[1].register_forward_pre_hook(lambda module, args: (args[0][:1],))
    model[2].linear.register_forward_hook(lambda *_: None)
    return model


FORWARDS: dict[str, Callable[[], nn.Module]] = {
    "other methods": lambda: Stack(*(Renamed(n, n=0) for n in "slicing slicing writing".split()), Layer()),
    "another's": lambda: Stack(layer := Layer(), with_forward(Layer(), layer.forward)),
    "another's in a leaf": lambda: Stack(with_forward(nn.Linear(8, 8), Renamed("slicing").slicing), nn.Linear(8, 8)),
    "a function in a leaf": lambda: Stack(with_forward(nn.Linear(8, 8), lambda x: torch.relu(x) + 1)),
    "its own call": lambda: Stack(Called(), Called()),
    "called itself": lambda: Stack(Direct(), Direct()),
    "looked at": lambda: Stack(Looks(), Looks()),
    "without a hash": lambda: Function(Unhashable()),
    "with another's parameter": helped,
    "hooked": hooked,
    "recurrent": lambda: Stack(*(Recurrent(rnn=kind(8, 8, 2)) for kind in (nn.LSTM, nn.LSTM, nn.GRU, nn.RNN))),
}


# Layers that differ in one thing

DIFFERENCES: dict[str, Callable[[Any], Any]] = {
    "an int": lambda layer: setattr(layer, "scale", 2),
    "a bool": lambda layer: setattr(layer, "scale", True),
    "a list": lambda layer: setattr(layer, "scale", [1, [2]]),
    "no bias": lambda layer: setattr(layer.linear, "bias", None),
    "transposed": lambda layer: setattr(layer.linear, "weight", nn.Parameter(torch.randn(8, 8).t())),
    "nested": lambda layer: setattr(layer, "linear", nn.Sequential(layer.linear)),
    "frozen": lambda layer: layer.linear.weight.requires_grad_(False),
    "training": lambda layer: layer.linear.train(),
    "a buffer": lambda layer: layer.register_buffer("mask", torch.tensor([1, 2])),
    "a norm": lambda layer: setattr(layer, "norm", nn.BatchNorm1d(8)),
}


def differing(change: Callable[[Any], Any]) -> nn.Module:
    model = stack(lambda i: Layer(scale=1), 3).eval()
    change(model[1])
    return model


# How weights lie in storages


def lying(*places: int) -> nn.Module:
    """Weights that share one storage, at these offsets."""
    model, storage = stack(lambda i: nn.Linear(8, 8, bias=False), len(places)), torch.randn(4 * 64)
    for part, place in zip(model, places, strict=True):
        part.weight = nn.Parameter(storage[64 * place :][:64].view(8, 8))
    return model


def tied() -> nn.Module:
    model = Stack(nn.Linear(8, 8), nn.Linear(8, 8), Layer())
    model[1].weight = model[0].weight
    return model


def shared() -> nn.Module:
    """Blocks that share a layer, whose path is in the first block."""
    one = Layer()
    return Stack(*(Stack(one, nn.ReLU(), Layer()) for _ in range(3)), one, one)


WEIGHTS: dict[str, Callable[[], nn.Module]] = {
    "many": lambda: stack(lambda i: Layer(), 126),
    "nested": lambda: nn.Sequential(Stack(Layer(), Stack(Layer())), Stack(Layer())),
    "tied": tied,
    "on one storage": lambda: lying(0, 0),
    "side by side": lambda: lying(0, 1),
    "shared": shared,
    "in training": lambda: Stack(nn.BatchNorm1d(8), nn.Dropout(0.3), nn.BatchNorm1d(8)).train(),
}


# What is returned, and how arguments are changed


class Several(nn.Module):
    """Returns tensors in one of several forms."""

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


class Choosing(Layer):
    """Computes as many rows as the values of an integer tensor say."""

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(x[: int(rows.max())]).sum() + x.sum()


class Choices(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(4)
        outs = [self[0](x, rows), self[1](x, rows)]
        rows += 3
        outs.append(self[2](x, rows))
        return torch.stack([*outs, self[3](x, torch.arange(1, 3))])


class Popping(Layer):
    """Pops a tensor from the list that it gets."""

    def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:
        return self.linear(xs.pop())


class Pops(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        xs, ys = [x, x + 1], [x, x + 1]
        out = self[0](xs) + self[1](ys)
        return out if len(xs) == len(ys) == 1 else out.repeat(9, 9)


class Unsqueezing(Layer):
    """Changes the shape of its argument in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.unsqueeze_(0))


class Unsqueezed(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x + 1, x + 1
        outs = [self[0](a), self[1](b)]
        return outs[0].sum() + outs[1].sum() + a.sum(-1)[0] + b.sum(-1)[0]


class Making(Layer):
    """Makes tensors of the default dtype, and changes the default in between."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outs = []
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            outs.append(torch.zeros(1100, 1000, device=x.device))
        return x + sum(out.sum() for out in outs)


GIVEN: dict[str, Callable[[], nn.Module]] = {
    **{
        f"returning {form}": lambda form=form: Twice(form)
        for form in ("itself", "a view of it", "a view", "parts of one", "a dict", "one twice")
    },
    "values of integers": lambda: Choices(*(Choosing() for _ in range(4))),
    "a list taken from": lambda: Pops(Popping(), Popping()),
    "an argument changed": lambda: Unsqueezed(Unsqueezing(), Unsqueezing()),
    "the default dtype": lambda: Making(),
}


# Functions


def autocast(self: Any, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.fc(x)
        y = self.fc(x) + y
    return self.fc(x) + y.float()


def inference(self: Any, x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return self.fc(self.fc(x)).relu()


def learning(self: Any, x: torch.Tensor) -> Any:
    with torch.enable_grad():
        y = self.fc(x.detach().requires_grad_())
    return self.fc(x) + y.detach()


def in_place(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x)
    for _ in range(2):
        y += x
        y.relu_().mul_(2)
        F.silu(y, inplace=True)
        y[:, 0] = 1
        y.t_().t_().unsqueeze_(1).squeeze_(1)
    return F.dropout(y, 0.5, False) + F.dropout(y, 0.5, True)


def masked(self: Any, x: torch.Tensor) -> Any:
    mask = torch.arange(8) > 3
    positions = torch.arange(x.shape[1]).float()
    y = x.masked_fill(mask, 0.0) + positions * mask
    z = torch.where(mask, y, x) * mask.sum().item()
    return z * mask, mask * z, z * (positions > 4)


def indexed(self: Any, x: torch.Tensor) -> Any:
    """Values of masks decide on shapes, so this cannot be counted on meta."""
    mask = torch.arange(8) > 3
    return [self.fc(x)[:, chosen].sin() for chosen in (mask, torch.arange(8) > 5)]


def branching(self: Any, x: torch.Tensor) -> Any:
    return self.fc(x) if (x.detach() > 0).any() else x * 2


def generated(self: Any, x: torch.Tensor) -> Any:
    return self.fc(torch.cat([part + 1 for part in x.chunk(2, -1)], dim=-1)) + torch.randn(8) + torch.rand_like(x)


def viewed(self: Any, x: torch.Tensor) -> Any:
    y = self.fc(x).view(-1, 2, 4).transpose(1, 2)
    return torch.stack([y, y], 1).sum(1), y.contiguous(), y.softmax(-1) @ y.mT, 2 - y, 1 / y.exp(), y.mean((1, 2), True)


def often(self: Any, x: torch.Tensor) -> Any:
    return self.fc(self.fc(input=self.fc(x)))


def own_weights(self: Any, x: torch.Tensor) -> Any:
    return F.dropout(self.fc.weight, 0.5, False) @ x.mT, self.fc.bias + x, nn.Identity()(self.fc.weight).relu()


def an_object(self: Any, x: torch.Tensor) -> Any:
    return Helper(8), {"of": Helped(helper=self.fc(x))}


def alike(self: Any, x: torch.Tensor) -> Any:
    """Calls with arguments that are equal in Python and differ in torch: 1, 1.0 and True, with integers and with floats."""
    i = torch.arange(8)
    sums = [x * number for number in (1, 1.0, True)] + [(i * number).float() for number in (1, 1.0, True)]
    kept = [x.sum(1, keepdim) for keepdim in (False, True)] + [x.softmax(dim) for dim in (0, 1)]
    wide = [x.new_ones(2, 3, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.int64)]
    return *sums, *kept, *wide, x[:, 1], x[:, True], x[0], x[False]


FUNCTIONS = [
    autocast, inference, learning, in_place, masked, indexed, branching, generated, viewed, often, own_weights,
    an_object, alike,
]  # fmt: skip

ODD: dict[str, Callable[[], nn.Module]] = {
    **STATEFUL, **NUMBERED, **FORWARDS, **WEIGHTS, **GIVEN,
    **{f"of one {what} alone": lambda change=change: differing(change) for what, change in DIFFERENCES.items()},
    **{function.__name__: lambda function=function: Function(function) for function in FUNCTIONS},
}  # fmt: skip

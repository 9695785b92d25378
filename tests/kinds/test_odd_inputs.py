"""Inputs that are not tensors. An iterator that can be read only once is refused without reading it. Everything else is passed to
the model.

The oracle is the model itself. If it accepts a container, the count equals the count of the equivalent list. If it refuses the
container, the error says what to pass instead.
"""

from __future__ import annotations

import array
import io
import re
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fxflops

X = torch.randn(2, 4)
CALLS: list[Callable[..., fxflops.Report]] = [
    fxflops.count,
    lambda model, args, kwargs=None: fxflops.analyze(model, args, kwargs, repeats=1),
    lambda model, args, kwargs=None: fxflops.count(model, args, kwargs, backward=True),
]


class Sums(nn.Module):
    """A model that takes any iterables of tensors, positional or by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, xs: Any, more: Any = ()) -> Tensor:
        return sum((self.layer(x) for x in (*xs, *more)), torch.zeros(4))


def _loader() -> Any:
    return DataLoader(TensorDataset(torch.randn(4, 4)), batch_size=2)


ONCE: dict[str, Callable[[], Any]] = {
    "iterator": lambda: iter([X, X]),
    "generator": lambda: (x for x in (X, X)),
    "zip": lambda: zip([X], [X], strict=True),
    "map": lambda: map(torch.relu, [X, X]),
    "filter": lambda: filter(lambda x: True, [X]),
    "enumerate": lambda: enumerate([X]),
    "reversed": lambda: reversed([X]),
    "iterator of a dict": lambda: iter({"a": X}.values()),
    "batches": lambda: iter(_loader()),
    "file": lambda: io.BytesIO(b"bytes"),
    "text": lambda: io.StringIO("text"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("place", ["alone", "in a tuple", "in a list", "in a dict", "by name"])
@pytest.mark.parametrize("name", ONCE)
def test_what_can_be_read_once_is_refused_unread(name: str, place: str, call: Callable[..., Any]) -> None:
    once = ONCE[name]()
    args = {"alone": once, "in a tuple": (once,), "in a list": [once], "in a dict": ({"a": once},), "by name": ([X],)}
    with pytest.raises(fxflops.FxflopsError, match="read only once") as raised:
        call(Sums(), args[place], {"more": once} if place == "by name" else None)
    assert isinstance(raised.value, TypeError)
    first, expected = next(once), next(ONCE[name]())
    assert type(first) is type(expected)
    assert not isinstance(first, bytes | str) or first == expected


CONTAINERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [X, X],
    "deque": lambda: deque([X, X]),
    "values": lambda: OrderedDict(a=X, b=X).values(),
    "set": lambda: {X, X + 1},
    "frozenset": lambda: frozenset([X, X + 1]),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_that_the_model_takes_counts_as_its_list(name: str, call: Callable[..., Any]) -> None:
    model = Sums()
    report, expected = call(model, CONTAINERS[name]()), call(model, [X, X])
    assert report.total_macs == 2 * X.numel() * 4
    assert report.total_flops == expected.total_flops
    assert report.total_backward_macs == expected.total_backward_macs


REFUSED: dict[str, tuple[Any, str]] = {
    "numpy": (np.ones((2, 4), "f4"), "torch.from_numpy"),
    "numbers": ([1.0, 2.0, 3.0, 4.0], "torch.tensor"),
    "rows": ([[1.0, 2.0, 3.0, 4.0]], "torch.tensor"),
    "shape": ((2, 4), "torch.randn"),
    "list": ([X], "tuple"),
    "views": ({"a": X}.values(), "tuple"),
    "set": ({X}, "tuple"),
    "deque": (deque([X]), "tuple"),
    "range": (range(4), "tuple"),
    "mapping": ({"q": X}, "kwargs"),
    "loader": (_loader(), "next(iter"),
    "dataset": (TensorDataset(X), "batch"),
    "None": (None, "NoneType"),
    "text": ("some text", "str"),
    "bytes": (b"bytes", "bytes"),
    "number": (1.5, "float"),
    "path": (Path("image.png"), "Path"),
    "array": (array.array("f", [1.0]), "array"),
    "module": (nn.Linear(4, 4), "Linear"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_layer_refuses_is_an_error_that_says_what_it_got(name: str, call: Callable[..., Any]) -> None:
    value, said = REFUSED[name]
    with pytest.raises(fxflops.FxflopsError, match=re.escape(said)):
        call(nn.Linear(4, 4), value)


@pytest.mark.parametrize("call", CALLS)
def test_an_image_is_told_from_a_tensor(call: Callable[..., Any]) -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (4, 4))
    with pytest.raises(fxflops.FxflopsError, match="to_tensor"):
        call(nn.Conv2d(3, 4, 3), image)

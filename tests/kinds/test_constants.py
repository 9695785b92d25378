"""A tensor that a model computes with counts towards memory, however the model holds it: as a parameter, a buffer, a plain
attribute, in a list, in a closure, or as a constant of a graph. Also, the gradients of TorchScript operators belong to their
module.

The expected bytes are the tensors' sizes, added up by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import fxflops

N, ROWS = 96, 4
TABLE = torch.randn(N, N)
X = torch.randn(ROWS, N)
WANTED = TABLE.nbytes + 2 * X.nbytes
"""The table, the input, and the output, which is as large as the input."""


class Parameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(TABLE.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.table


class Buffer(Parameter):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_buffer("table", TABLE.clone())


class Attribute(Parameter):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.table = TABLE.clone()


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = [TABLE.clone()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.tables[0]


class Global(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ TABLE


def closure() -> nn.Module:
    table = TABLE.clone()

    class Closure(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ table

    return Closure()


def frozen(model: nn.Module) -> Any:
    return torch.jit.freeze(torch.jit.script(model.eval()))


HOLDERS: dict[str, Callable[[], Any]] = {
    "parameter": Parameter,
    "buffer": Buffer,
    "attribute": Attribute,
    "list": Listed,
    "global": Global,
    "closure": closure,
    "scripted": lambda: torch.jit.script(Parameter()),
    "scripted, attribute": lambda: torch.jit.script(Attribute()),
    "traced": lambda: torch.jit.trace(Parameter(), X),
    "traced, global": lambda: torch.jit.trace(Global(), X),
    "frozen": lambda: frozen(Parameter()),
    "frozen, buffer": lambda: frozen(Buffer()),
    "frozen, traced": lambda: torch.jit.freeze(torch.jit.trace(Parameter().eval(), X)),
    "frozen within": lambda: nn.Sequential(nn.Identity(), frozen(Parameter())),
    "exported": lambda: torch.export.export(Parameter(), (X,)).module(),
    "exported, attribute": lambda: torch.export.export(Attribute(), (X,)).module(),
    "exported, global": lambda: torch.export.export(Global(), (X,)).module(),
    "make_fx": lambda: make_fx(Global())(X),
    "traced by fx": lambda: torch.fx.symbolic_trace(Attribute()),
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("name", HOLDERS)
def test_the_peak_has_the_table(name: str) -> None:
    model = HOLDERS[name]()
    assert fxflops.count(model, X, mode="as_is").max_memory == WANTED


UNSEEN = ("global", "closure", "scripted, attribute")
"""Tables that no module holds where Python can see them. A run on real tensors does not know about them."""


@pytest.mark.parametrize("name", [name for name in HOLDERS if name not in UNSEEN])
def test_so_has_that_of_the_run(name: str) -> None:
    assert fxflops.analyze(HOLDERS[name](), X, mode="as_is", repeats=1).max_memory == WANTED


@pytest.mark.parametrize("name", ["frozen", "frozen, traced", "frozen within"])
def test_weights_in_a_graph_are_parameters(name: str) -> None:
    report = fxflops.count(HOLDERS[name](), X, mode="as_is")
    assert report.total_params == N * N
    assert report.memory["params"] == TABLE.nbytes


def test_a_number_is_no_weight() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul(torch.tensor(2.0))

    assert fxflops.count(frozen(Scaled()), X, mode="as_is").total_params == 0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(N, N), nn.Linear(N, N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda block: torch.jit.trace(block, X)], ids=["scripted", "traced"]
)
@pytest.mark.parametrize("where", [0, 1, 2])
def test_the_backward_pass_of_a_scripted_part_is_the_parts(make: Callable[[nn.Module], Any], where: int) -> None:
    """Each layer has two products: the gradients of its input and of its weight. The very first layer needs no gradient of its
    input.
    """
    parts = [nn.Linear(N, N), nn.Linear(N, N), nn.Linear(N, N)]
    parts[where] = make(Block())
    report = fxflops.count(nn.Sequential(*parts), X, backward=True)
    products = [
        call.path.partition(".")[0] for call in report.calls if call.phase == "backward" and call.op == "matmul"
    ]
    wanted = {str(at): 2 * (2 if at == where else 1) - (at == 0) for at in range(len(parts))}
    assert Counter(products) == wanted

"""torch.utils.flop_counter's own tests, rewritten, and the adapter compared with the original."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter as original
from torch.utils.checkpoint import checkpoint

from fxflops import count, profile
from fxflops.adapters import flop_counter
from fxflops.adapters.flop_counter import FlopCounterMode, flop_registry, register_flop_formula, sdpa_flop_count

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning", "ignore:.*torch.jit.script")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU()), nn.Linear(3, 7))


def stepped(model: nn.Module, *shape: int) -> None:
    model(torch.randn(*shape, requires_grad=True)).sum().backward()


def transformed() -> None:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w).square().sum()

    torch.func.vmap(torch.func.grad(loss), (None, 0))(torch.randn(5, 4), torch.randn(2, 3, 4))


def inferred() -> None:
    with torch.inference_mode():
        net()(torch.randn(2, 1, 4))


def nested() -> None:
    with FlopCounterMode(display=False) as inner, original.FlopCounterMode(display=False) as innermost:
        net()(torch.randn(2, 1, 4))
    assert inner.get_flop_counts() == innermost.get_flop_counts()
    assert inner.get_total_flops() == 2 * (2 * 4 * 5 + 2 * 2 * 3 * 3 + 2 * 2 * 3 * 7)


def scripted() -> None:
    torch.jit.script(squared)(torch.randn(3, 3))


def squared(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x)


def faked() -> None:
    with FakeTensorMode():
        stepped(net(), 2, 1, 4)


RUNS: dict[str, Callable[[], Any]] = {
    "training": lambda: stepped(net(), 2, 1, 4),
    "data needs no gradient": lambda: net()(torch.randn(2, 1, 4)).sum().backward(),
    "products": lambda: torch.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)) @ torch.ones(5, 2),
    "into a result": lambda: torch.mm(torch.ones(3, 4), torch.ones(4, 5), out=torch.empty(3, 5)),
    "in place": lambda: torch.ones(3, 5).addmm_(torch.ones(3, 4), torch.ones(4, 5)),
    "recurrent": lambda: nn.LSTM(4, 5)(torch.randn(6, 2, 4))[0].sum().backward(),
    "attention": lambda: nn.MultiheadAttention(8, 2)(*[torch.randn(3, 1, 8)] * 3),
    "checkpoint": lambda: checkpoint(net(), torch.randn(2, 1, 4, requires_grad=True), use_reentrant=False).sum().backward(),
    "grouped": lambda: stepped(nn.Conv2d(4, 8, 3, groups=2), 1, 4, 5, 5),
    "functorch": transformed,
    "inference mode": inferred,
    "fake tensors": faked,
    "a counter in a counter": nested,
    "script": scripted,
    "nothing": lambda: torch.ones(4, 5).cos(),
    "cond": lambda: torch.cond(torch.tensor(True), lambda x: x @ x, lambda x: x @ x @ x, (torch.randn(3, 3),)),
}  # fmt: skip


def counted(cls: Any, run: Callable[[], Any], **settings: Any) -> Any:
    """Count a run with this class of counter, using only kernels that the original knows."""
    with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False), cls(display=False, **settings) as c:
        run()
    return c


@pytest.mark.parametrize("name", RUNS)
def test_counts_and_table_are_the_originals(name: str) -> None:
    if name == "cond" and torch.__version__ < (2, 8):
        pytest.skip("this version of torch has no rule for cond under a mode")
    ours, theirs = (counted(cls, RUNS[name]) for cls in (FlopCounterMode, original.FlopCounterMode))
    assert ours.get_flop_counts() == theirs.get_flop_counts()
    assert ours.get_total_flops() == theirs.get_total_flops()
    for depth in (None, 1, 5):
        assert ours.get_table(depth) == theirs.get_table(depth)


def test_signatures_and_names_are_the_originals() -> None:
    found, known = (inspect.signature(each).parameters for each in (FlopCounterMode, original.FlopCounterMode))
    newer = {"skip_unsupported": False}  # added in torch 2.15
    assert {name: p.default for name, p in found.items()} == newer | {name: p.default for name, p in known.items()}
    assert flop_registry is original.flop_registry
    assert register_flop_formula is original.register_flop_formula
    assert sdpa_flop_count is original.sdpa_flop_count
    with pytest.raises(AttributeError):
        _ = flop_counter.no_such_name
    with pytest.warns(UserWarning, match="not needed"):
        FlopCounterMode(nn.Linear(2, 2))


def test_it_prints_its_table_and_starts_anew(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(10, 10)
    with FlopCounterMode() as counter:
        x @ x
    assert capsys.readouterr().out == counter.get_table() + "\n"
    with counter:
        x[:1] @ x
    assert counter.get_flop_counts() == {"Global": {aten.mm: 2 * 10 * 10}}


def test_formulas_of_ones_own(own_operator: Any) -> None:
    @register_flop_formula(own_operator)
    def formula(x_shape: Any, *, out_shape: Any = None) -> int:
        return 9000 + x_shape.numel()

    def raw(*args: torch.Tensor, out_val: torch.Tensor) -> int:
        return int(args[0].sum()) * out_val.numel()

    raw._get_raw = True  # type: ignore[attr-defined]
    custom = {aten.add: lambda *args, out_shape: 5, aten.cos: raw}
    x = torch.full((2, 3), 2.0)

    def run() -> None:
        own_operator(x + x).cos()

    for cls in (FlopCounterMode, original.FlopCounterMode):
        found = counted(cls, run, custom_mapping=custom).get_flop_counts()["Global"]
        assert found == {aten.add: 5, own_operator: 9006, aten.cos: 48 * 6}


class Twice(HigherOrderOperator):
    """Applies a function twice."""

    def __call__(self, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
        return super().__call__(function, x)


def test_higher_order_operators_of_ones_own() -> None:
    twice, x = Twice("fxflops_twice"), torch.ones(3, 3)
    twice.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(lambda function, x: function(function(x)))

    @twice.py_impl(torch._C.DispatchKey.Autograd)
    def below(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return twice(function, x)

    custom = {twice: lambda function, *shapes, out_shape: 10 * out_shape.numel()}
    with FlopCounterMode(display=False, custom_mapping=custom) as counter:
        twice(squared, x)
    assert counter.get_flop_counts() == {"Global": {twice: 90}}
    uncounted = FlopCounterMode(display=False, skip_unsupported=True)
    with pytest.warns(UserWarning, match="no FLOP formula is registered for fxflops_twice"), uncounted:
        out = twice(squared, x)
    assert out.equal(x @ x @ x @ x)
    assert not uncounted.get_flop_counts()
    assert uncounted.get_unsupported_ops() == {"fxflops_twice": 1}


@pytest.fixture
def own_operator() -> Iterator[Any]:
    """A user's operator that doubles. Formulas registered in the test are removed afterwards."""
    library = torch.library.Library("fxflops_counter", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
    before = dict(flop_registry)
    yield torch.ops.fxflops_counter.double
    flop_registry.clear()
    flop_registry.update(before)
    library._destroy()


def test_kernels_that_the_original_does_not_know_count_as_under_the_convention() -> None:
    q, lstm, x = torch.randn(1, 2, 3, 4), nn.LSTM(4, 5), torch.randn(6, 2, 4)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        F.scaled_dot_product_attention(q, q, q)
        lstm(x)
    with torch.no_grad(), profile(convention="torch") as p:
        F.scaled_dot_product_attention(q, q, q)
        lstm(x)
    expected = 2 * 2 * (3 * 3 * (4 + 4)) + 2 * 6 * 2 * 4 * 5 * (4 + 5)
    assert counter.get_total_flops() == p.report.total_flops == expected


def test_the_backward_pass_stands_in_the_module_whose_gradient_it_is() -> None:
    """In the original, a module outside the main path of a backward pass, such as a shortcut, stays open during the rest of it."""

    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.short, self.body = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            return self.body(self.body(x)) + self.short(x) @ torch.eye(4)

    model, x, n = Shortcut(), torch.randn(3, 4), 2 * 3 * 4 * 4
    counts = counted(FlopCounterMode, lambda: model(x).sum().backward()).get_flop_counts()
    totals = {name: sum(ops.values()) for name, ops in counts.items()}
    parts = {"stem": 2 * n, "short": 3 * n, "body": 6 * n}
    whole = sum(parts.values()) + 2 * n  # the product outside the parts has only one gradient
    assert totals == {f"Shortcut.{part}": flops for part, flops in parts.items()} | {"Shortcut": whole, "Global": whole}
    report = count(model, x, backward=True, convention="torch")
    assert report.total_training_flops == whole


def test_it_leaves_no_hooks_and_hears_no_other_thread() -> None:
    model, hooks = net(), nn.modules.module._global_forward_hooks
    before = len(hooks)
    with FlopCounterMode(display=False) as counter:
        other = threading.Thread(target=lambda: model(torch.randn(2, 1, 4)))
        other.start()
        other.join()
        assert not counter.get_flop_counts()
        with pytest.raises(RuntimeError, match="shape"):
            model(torch.randn(2, 1, 9))
    assert len(hooks) == before
    with counter:
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert set(counter.get_flop_counts()) == {"Global"}


def test_an_operator_without_a_formula_is_named(own_operator: Any) -> None:
    with pytest.warns(UserWarning, match="it does not include fxflops_counter.double"), FlopCounterMode(display=False):
        own_operator(torch.ones(2))

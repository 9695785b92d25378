"""A higher-order operator gets the arguments that the model gave it, and the calls that it makes are counted.

The oracle is the same computation written without the operator, counted by FlopCounterMode, and the model's own output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fxflops
from benchmarks.allocator import allocated
from fxflops.ops import BASE

aten = torch.ops.aten
WEIGHT = torch.randn(8, 8)
Forward = Callable[[Tensor], Any]


def _named(name: str) -> Any:
    """Return the higher-order operator with this name, or the function in its file. Skip the test if torch has neither."""
    hop = {
        "foreach_map": "_higher_order_ops.foreach_map.foreach_map",
        "flex_gemm": "_higher_order_ops.flex_gemm.flex_gemm",
    }
    try:
        if name not in hop:
            return getattr(torch.ops.higher_order, name)
        module, _, function = f"torch.{hop[name]}".rpartition(".")
        return getattr(__import__(module, fromlist=[function]), function)
    except (AttributeError, ImportError):
        pytest.skip(f"torch {torch.__version__} has no {name}")


class _OnlyThisOperator(torch._ops.HigherOrderOperator):
    """A user's operator. It accepts ``aten.mm`` itself, and no substitute for it."""

    def __init__(self) -> None:
        super().__init__("only_this_operator")

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(op, *args, **kwargs)


only_this = _OnlyThisOperator()


@only_this.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)
def _run_only_this(op: Any, *args: Any, operators: tuple[Any, ...] = (), then: Any = None) -> Any:
    assert op is aten.mm.default
    assert all(each in (aten.relu.default, aten.abs.default) for each in operators)
    assert then is None or isinstance(then, (fx.GraphModule, nn.Module)) or then.__name__ == "<lambda>"
    out = op(*args)
    for each in operators:
        out = each(out)
    return out if then is None else then(out)


only_this.py_autograd_impl(
    lambda op, *args, **kwargs: _below_autograd(op, *args, **kwargs)  # it has no gradients
)


def _below_autograd(op: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return only_this(op, *args, **kwargs)


@torch.library.custom_op("kinds_higher_order::product_into", mutates_args={"out"})
def product_into(x: Tensor, weight: Tensor, out: Tensor) -> None:
    out.copy_(x @ weight)


product_into.register_fake(lambda x, weight, out: None)


def _formula(x: Any, weight: Any, *, out: Any) -> fxflops.Cost:
    k, outputs = x[1], x[0] * weight[1]
    return fxflops.Cost(macs=k * outputs, muls=k * outputs, adds=(k - 1) * outputs)


@pytest.fixture(scope="module", autouse=True)
def _formulas_as_before() -> Iterator[None]:
    before = dict(BASE.entries)
    fxflops.formula(torch.ops.kinds_higher_order.product_into)(_formula)
    yield
    BASE.entries.clear()
    BASE.entries.update(before)


def _plus(x: Tensor) -> Tensor:
    return x @ WEIGHT + 1


def _product(x: Tensor) -> Tensor:
    return x @ WEIGHT


GRAPH = fx.symbolic_trace(_product)
MODULE = nn.Linear(8, 8)
PLAIN: dict[str, tuple[Forward, Forward]] = {
    # The forward with the higher-order operator, and the forward without it.
    "flex_gemm": (lambda x: _named("flex_gemm")(torch.mm, (x, WEIGHT), torch.relu), lambda x: (x @ WEIGHT).relu()),
    "flex_gemm of an operator": (
        lambda x: _named("flex_gemm")(aten.addmm.default, (x, x, WEIGHT), lambda y: y * 2),
        lambda x: torch.addmm(x, x, WEIGHT) * 2,
    ),
    "flex_gemm of bmm": (
        lambda x: _named("flex_gemm")(torch.bmm, (x[None], WEIGHT[None]), torch.relu),
        lambda x: torch.bmm(x[None], WEIGHT[None]).relu(),
    ),
    "out_dtype": (
        lambda x: _named("out_dtype")(aten.mm.default, torch.float64, x, WEIGHT),
        lambda x: x.double() @ WEIGHT.double(),
    ),
    "out_dtype of integers": (
        lambda x: _named("out_dtype")(aten.mm.default, torch.int32, x.to(torch.int8), WEIGHT.to(torch.int8)),
        lambda x: x.to(torch.int8).int() @ WEIGHT.to(torch.int8).int(),
    ),
    "with_effects": (
        lambda x: _named("with_effects")(torch.tensor([]), aten.mm.default, x, WEIGHT)[1],
        _product,
    ),
    "auto_functionalized": (
        lambda x: _named("auto_functionalized")(
            torch.ops.kinds_higher_order.product_into.default, x=x, weight=WEIGHT, out=torch.zeros(4, 8)
        )[1],
        _product,
    ),
    "run_and_save_rng_state": (
        lambda x: _named("run_and_save_rng_state")(aten.mm.default, x, WEIGHT)[1],
        _product,
    ),
    "run_with_rng_state": (
        lambda x: _named("run_with_rng_state")(torch.get_rng_state(), aten.mm.default, x, WEIGHT),
        _product,
    ),
    "run_const_graph": (lambda x: _named("run_const_graph")(GRAPH, (x,)), _product),
    "invoke_subgraph": (
        lambda x: _named("invoke_subgraph")(fx.symbolic_trace(lambda a, b: (a @ b,)), "kinds", x, WEIGHT)[0],
        _product,
    ),
    "strict_mode": (lambda x: _named("strict_mode")(aten.mm.default, (x, WEIGHT)), _product),
    "hints_wrapper": (lambda x: _named("hints_wrapper")(aten.mm.default, (x, WEIGHT), {}, hints={}), _product),
    "wrap": (lambda x: _named("wrap")(aten.mm.default, x, WEIGHT), _product),
    "wrap of a module": (lambda x: _named("wrap")(MODULE, x), MODULE),
    "no gradients": (lambda x: _named("wrap_with_set_grad_enabled")(False, aten.mm.default, x, WEIGHT), _product),
    "foreach_map": (lambda x: _named("foreach_map")(aten.add.Tensor, [x, x], [x, x])[0], lambda x: (x + x, x + x)[0]),
    "switch": (
        lambda x: _named("switch")(torch.tensor(1), (aten.mm.default, aten.mm.default), (x, WEIGHT)),
        _product,
    ),
    "cond": (lambda x: torch.cond(torch.tensor(True), torch.mm, aten.mm.default, (x, WEIGHT)), _product),
    "cond of partials": (
        lambda x: torch.cond(torch.tensor(True), functools.partial(torch.mm, x), torch.relu, (WEIGHT,)),
        _product,
    ),
    "cond, functions": (
        lambda x: torch.cond(torch.tensor(True), lambda x: ((x @ WEIGHT + 1) + 1).relu(), torch.relu, (x,)),
        lambda x: ((x @ WEIGHT + 1) + 1).relu(),
    ),
    "flex_gemm, a longer function": (
        lambda x: _named("flex_gemm")(torch.mm, (x, WEIGHT), lambda y: ((y + 1) * 2 + 1).relu() * 2),
        lambda x: ((x @ WEIGHT + 1) * 2 + 1).relu() * 2,
    ),
    "own": (lambda x: only_this(aten.mm.default, x, WEIGHT), _product),
    "own with operators": (
        lambda x: only_this(aten.mm.default, x, WEIGHT, operators=(aten.relu.default, aten.abs.default)),
        lambda x: _product(x).relu().abs(),
    ),
    "own with a function": (
        lambda x: only_this(aten.mm.default, x, WEIGHT, then=lambda y: y @ WEIGHT),
        lambda x: _product(x) @ WEIGHT,
    ),
    "own with a graph": (
        lambda x: only_this(aten.mm.default, x, WEIGHT, then=GRAPH),
        lambda x: _product(x) @ WEIGHT,
    ),
    "own with a module": (
        lambda x: only_this(aten.mm.default, x, WEIGHT, then=MODULE),
        lambda x: MODULE(_product(x)),
    ),
}


class Model(nn.Module):
    """A model that calls one function."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", PLAIN)
def test_what_it_calls_is_counted(name: str) -> None:
    function, plain = PLAIN[name]
    x = torch.randn(4, 8)
    with torch.no_grad():
        expected = function(x)
        with FlopCounterMode(display=False) as counter:
            plain(x)
    reports = [fxflops.count(Model(function), x)]
    reports += [fxflops.analyze(Model(function), x, trace=trace, repeats=1) for trace in ("auto", "record")]
    model = Model(function)
    with torch.no_grad(), fxflops.profile(model) as block:
        out = model(x)
    reports.append(block.report)
    assert torch.equal(out, expected)
    wanted = fxflops.count(Model(plain), x)
    for report in reports:
        assert report.complete, report
        assert 2 * report.total_macs == counter.get_total_flops()
        assert (report.total_flops, report.total_int_ops) == (wanted.total_flops, wanted.total_int_ops)


DIFFERENTIABLE = ["wrap", "wrap of a module", "invoke_subgraph", "strict_mode", "cond", "hints_wrapper"]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_its_backward_pass_is_counted(name: str) -> None:
    function, plain = PLAIN[name]
    x = torch.randn(4, 8, requires_grad=True)
    try:
        function(x).sum().backward()
    except Exception as error:  # a limit of torch: there is nothing to count
        pytest.skip(f"torch {torch.__version__}: {type(error).__name__}: {error}")
    with FlopCounterMode(display=False) as counter:
        plain(x).sum().backward()
    model = Model(function)
    with fxflops.profile(model) as block:
        model(x).sum().backward()
    assert block.report.complete
    assert 2 * (block.report.total_macs + block.report.total_backward_macs) == counter.get_total_flops()


def _steps(combine: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Forward:
    from torch._higher_order_ops.scan import scan

    return lambda x: scan(combine, x[0], x)[1]


def _counts(name: str) -> Forward:
    hop = _named(name)
    return lambda x: hop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x), ())[1]


def _mapped(function: Callable[[Tensor], Any]) -> Forward:
    from torch._higher_order_ops.map import map as mapped

    return lambda x: mapped(function, x)


FLOWS: dict[str, Callable[[], Forward]] = {
    "map": lambda: _mapped(lambda row: row * 2),
    "map to another size": lambda: _mapped(lambda row: torch.cat([row, row]) + 1),
    "map of sums": lambda: _mapped(lambda row: row.sum()),
    "scan": lambda: _steps(lambda carry, row: (carry + row, carry * row)),
    "scan of products": lambda: _steps(lambda carry, row: (carry + row, row[:, None] @ row[None])),
    "while_loop": lambda: _counts("while_loop"),
    "while_loop, stacked": lambda: _counts("while_loop_stack_output"),
    "cond": lambda: lambda x: torch.cond(x.sum() < 1e9, lambda x: (x * 2).exp(), lambda x: x + 1, (x,)),
}


class _NoChange(TorchDispatchMode):
    """Does nothing. Without a dispatch mode, torch compiles the functions of a control flow operator."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", FLOWS)
def test_what_control_flow_makes_itself_is_in_the_peak(name: str) -> None:
    """The peak includes the rows that the operator collects and their stack, which none of its functions returns."""
    try:
        function = FLOWS[name]()
    except ImportError:
        pytest.skip(f"torch {torch.__version__} has no {name}")
    x = torch.rand(40, 25)

    def run() -> Any:
        with torch.no_grad(), _NoChange():
            return function(x)

    run()
    truth = allocated(run, x.nbytes)
    report = fxflops.count(Model(function), x)
    assert report.complete
    near = 0.02 * truth.peak + 64
    assert truth.held - near <= report.max_memory <= truth.peak + near, (report.max_memory, truth)

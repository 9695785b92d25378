"""The observer: which calls and scopes a run yields, and under which paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops.ops import BASE
from fxflops.trace.leaves import leaf_formula, settings_of
from fxflops.trace.observe import Observer


def observed(model: nn.Module, *args: Any, table: Any = BASE) -> Observer:
    observer = Observer({module: path for path, module in model.named_modules()}, table)
    with torch.no_grad(), observer:
        model(*args)
    return observer


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.fc(x)) + x


def test_leaves_are_one_call_and_paths_are_where_it_happens() -> None:
    observer = observed(nn.Sequential(Block(), Block()), torch.ones(2, 4))
    seen = [(call.op, call.path) for call in observer.calls]
    assert seen == [
        (op, f"{i}{tail}") for i in range(2) for op, tail in [("linear", ".fc"), ("gelu", ".act"), ("add", "")]
    ]
    assert [scope.path for scope in observer.scopes] == ["0.fc", "0.act", "0", "1.fc", "1.act", "1", ""]
    scope = observer.scopes[0]
    assert scope.cls is nn.Linear
    assert scope.params == {"weight": (4, 4), "bias": (4,)}
    assert scope.out == (2, 4)


def test_a_shared_module_is_called_twice_under_its_first_name() -> None:
    shared = Block()
    observer = observed(nn.Sequential(shared, shared), torch.ones(2, 4))
    assert [call.path for call in observer.calls] == ["0.fc", "0.act", "0"] * 2


def test_python_functions_without_a_formula_are_entered() -> None:
    class Normalize(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.normalize(F.dropout(x, 0.5, training=False))

    calls = observed(Normalize(), torch.ones(2, 4)).calls
    assert {"div"} <= {call.op for call in calls}
    assert "torch.nn.functional.normalize" not in {call.op for call in calls}
    assert all(BASE.find(call.target) for call in calls)


def test_composite_modules_are_entered() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    calls = observed(attention, *[torch.ones(1, 3, 8)] * 3).calls
    assert {"linear"} <= {call.op for call in calls}
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    ops = {call.op for call in observed(encoder, torch.ones(1, 3, 8)).calls}
    assert {"linear", "layer_norm", "relu"} <= ops


def test_an_exception_that_the_model_catches_leaves_the_paths_right() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad = nn.Sequential(nn.Linear(3, 3))
            self.good = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.bad(x)
            except RuntimeError:
                return self.good(x) + 1

    observer = observed(Tries(), torch.ones(2, 4))
    assert [(call.op, call.path) for call in observer.calls] == [
        ("linear", "good.fc"),
        ("gelu", "good.act"),
        ("add", "good"),
        ("add", ""),
    ]


def test_a_leaf_must_run_what_its_formula_knows() -> None:
    plain = nn.Linear(2, 2)
    assert leaf_formula(plain, BASE) is not None
    with_hook = nn.Linear(2, 2)
    with_hook.register_forward_pre_hook(lambda module, args: None)
    assert leaf_formula(with_hook, BASE) is None
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert leaf_formula(parametrized, BASE) is None
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert leaf_formula(plain, BASE) is None
    handle.remove()
    assert leaf_formula(plain, BASE) is not None
    assert leaf_formula(Block(), BASE) is None


def test_settings_are_plain_values_and_specs() -> None:
    settings = settings_of(nn.Conv2d(3, 4, 3, stride=2, bias=False))
    assert settings["weight"] == (4, 3, 3, 3)
    assert settings["bias"] is None
    assert settings["stride"] == (2, 2)
    assert settings["training"] is True


def test_no_hook_and_no_mode_is_left() -> None:
    model = Block()
    observed(model, torch.ones(2, 4))
    assert all(
        not m._forward_hooks and not m._forward_pre_hooks and not m._forward_hooks_with_kwargs for m in model.modules()
    )
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning", "ignore:.*torch.jit.script:DeprecationWarning")
def test_scripted_functions_are_counted_as_they_would_be_unscripted() -> None:
    silu = torch.jit.script(gated)

    class Gates(nn.Module):
        def __init__(self, gate: Callable[[torch.Tensor], torch.Tensor]) -> None:
            super().__init__()
            self.first, self.last, self.gate = nn.Linear(8, 8), nn.Linear(8, 8), gate

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gate(self.last(self.gate(self.first(x))))

    x = torch.randn(2, 8)
    plain = fxflops.count(Gates(gated), x)
    for report in (fxflops.count(Gates(silu), x), fxflops.analyze(Gates(silu), x, repeats=0)):
        assert report.complete
        assert report.total_flops == plain.total_flops
        assert [call.op for call in report.calls] == ["linear", "sigmoid", "mul"] * 2


def gated(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def test_a_property_is_no_call() -> None:
    class Turns(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.T.mT + x.data

    assert [call.op for call in observed(Turns(), torch.ones(2, 4)).calls] == ["add"]


class Runs(nn.Module):
    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


UNSEEN = "unseen write to torch.empty"


def test_memory_that_was_left_empty_is_read() -> None:
    missing = [
        call for call in observed(Runs(lambda x: torch.empty(2, 4) + x), torch.ones(2, 4)).calls if call.op == UNSEEN
    ]
    assert [(call.args, call.out) for call in missing] == [(((2, 4), (2, 4)), None)]


def test_a_higher_order_operator_may_have_written_everywhere() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        held = torch.empty(2, 4)
        y = torch.ops.higher_order.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return held + y[0]

    assert UNSEEN not in {call.op for call in observed(Runs(run), torch.ones(2, 4)).calls}


def looped(fc: nn.Module, x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, fc(x)), (torch.tensor(0), x))[1]


def scanned(fc: nn.Module, x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, row: (fc(carry + row), row * 2), x[0], x)[0]


def mapped(fc: nn.Module, x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.map import map

    return map(fc, x)


# Control flow, and how often its functions call the module that they close over.
CONTROL_FLOW = {
    "cond": (lambda fc, x: torch.cond(x.sum() > 0, fc, lambda x: fc(fc(x)), (x,)), 1),
    "while_loop": (looped, 3),
    "scan": (scanned, 5),
    "map": (mapped, 5),
}


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_control_flow_differentiates_what_its_functions_close_over(name: str) -> None:
    if name == "scan" and torch.__version__ < (2, 12):
        pytest.skip("older versions of torch call the function of a scan more often, to find shapes")
    run, times = CONTROL_FLOW[name]
    fc, x = nn.Linear(4, 4), torch.ones(5, 4, requires_grad=True)
    model = Runs(lambda x: run(fc, x))
    model.fc = fc
    rows = 5 * times if name in ("cond", "while_loop") else times
    with fxflops.profile(model, convention="torch") as profile:
        model(x).sum().backward()
    reports = [fxflops.count(model, x, convention="torch", backward=True), profile.report]
    if name in ("cond", "map"):  # torch 2.6 cannot differentiate the others
        reports.append(fxflops.analyze(model, x, convention="torch", backward=True, repeats=1))
        assert reports[-1].backward_timing is not None
    for report in reports:
        # A product, and one for each of its two gradients.
        assert report.complete
        assert report.total_flops == 2 * rows * 4 * 4
        assert report.total_backward_flops == 2 * report.total_flops
    gradient, fc.weight.grad = fc.weight.grad, None
    {"cond": fc, "while_loop": lambda x: fc(fc(fc(x))), "map": fc}.get(name, partial(plain_scan, fc))(
        x
    ).sum().backward()
    torch.testing.assert_close(gradient, fc.weight.grad)


def plain_scan(fc: nn.Module, x: torch.Tensor) -> torch.Tensor:
    carry = x[0]
    for row in x:
        carry = fc(carry + row)
    return carry


def test_operators_of_a_composite_are_of_the_module_that_calls_it() -> None:
    torch.library.define("fxflops_observe::gated", "(Tensor x) -> Tensor")
    torch.library.impl("fxflops_observe::gated", "CompositeImplicitAutograd")(gated)
    model = nn.Sequential(Runs(torch.ops.fxflops_observe.gated), nn.Linear(4, 4))
    for report in (
        fxflops.count(model, torch.ones(2, 4, requires_grad=True), backward=True),
        fxflops.analyze(model, torch.ones(2, 4, requires_grad=True), backward=True, trace="record", repeats=0),
    ):
        backward = [(call.op, call.path) for call in report.calls if call.phase == "backward"]
        assert ("sigmoid_backward", "0") in backward

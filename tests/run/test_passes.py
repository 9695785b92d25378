"""The calls of an analysis come from the model's own run, whatever its graph is. The graph's nodes refer to these calls."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxflops

X = torch.randn(3, 4)
TRACES = ("symbolic", "record")


def analyzed(model: nn.Module, trace: str = "auto", **settings: Any) -> fxflops.Report:
    return fxflops.analyze(model, X, trace=trace, repeats=1, progress=False, **settings)


class Constant(nn.Module):
    """Has an operation on a buffer alone, which torch.fx computes once, and a ``+=``, which torch.fx writes as ``+``."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4))
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        y += self.scale.exp()
        return y.cos()


@pytest.mark.parametrize("trace", TRACES)
def test_calls_are_in_the_order_of_the_models_run(trace: str) -> None:
    report = analyzed(Constant(), trace)
    assert [(call.op, call.path) for call in report.calls] == [
        ("linear", "inner.0"), ("linear", "inner.1"), ("exp", ""), ("add", ""), ("cos", ""),
    ]  # fmt: skip
    assert [row["op"] for row in report.table.to_dicts() if row["op"] != "(no op)"] == [c.op for c in report.calls]
    nodes = {call.op: call.node for call in report.calls}
    assert nodes["exp"] == ("" if trace == "symbolic" else "exp")
    assert all(report.calls[i].node == node.name for node in report.nodes for i in node.calls)
    assert sum(len(node.calls) for node in report.nodes) == sum(call.node != "" for call in report.calls)
    assert all((call.seconds is not None) == (call.node != "") for call in report.calls)


class Otherwise(nn.Module):
    """Makes the same calls under torch.fx, but in another order."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.sin(), x.cos()) if isinstance(x, torch.fx.Proxy) else (x.cos(), x.sin())


def test_a_graph_that_does_the_same_in_another_order_is_not_taken() -> None:
    report = analyzed(Otherwise())
    assert report.trace == "recorded trace"
    assert "only the graph calls cos on f32[3,4] in the root" in report.trace_reason
    assert [call.op for call in report.calls] == ["cos", "sin"]
    with pytest.raises(fxflops.TraceError, match="differs from the model"):
        analyzed(Otherwise(), "symbolic")


class Catching(nn.Module):
    """Catches the error of a value that only tracing does not know, and then returns early."""

    def __init__(self, value_of: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.value_of = value_of
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.value_of(x)
        except Exception:
            return x
        return self.fc(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "value_of",
    [
        lambda x: float(x.sum()),
        lambda x: bool(x.sum() > 0),
        lambda x: range(x.shape[0]),
        lambda x: [*x],
        lambda x: len(x),
    ],
    ids=["float", "bool", "range", "iter", "len"],
)
def test_a_graph_of_a_path_that_only_tracing_takes_is_not_taken(value_of: Callable[[torch.Tensor], Any]) -> None:
    report = analyzed(Catching(value_of))
    assert report.trace == "recorded trace"
    assert "fc" in [node.name for node in report.nodes]
    with pytest.raises(fxflops.TraceError):
        analyzed(Catching(value_of), "symbolic")


class Squaring(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square()


class Apart(nn.Module):
    """A square that torch.fx finds in a module, and that the model computes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Squaring()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if isinstance(x, torch.fx.Proxy) else x.square()


def test_a_graph_that_does_the_same_in_another_module_is_not_taken() -> None:
    report = analyzed(Apart())
    assert report.trace == "recorded trace"
    assert [call.path for call in report.calls] == [""]


class Viewed(nn.Module):
    """A view that no recorded call returned. The graph needs a node for it, which is not a call of the model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            first = x[0]
        return first.exp()


def test_a_node_that_the_model_never_called_has_no_calls() -> None:
    report = analyzed(Viewed(), "record")
    assert [call.op for call in report.calls if call.node != ""] == [call.op for call in report.calls]
    assert all(not node.calls for node in report.nodes if node.function == "as_strided")


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("trace", ["auto", "record"])
@pytest.mark.parametrize(
    "model", [Constant(), Checkpointed(False), Checkpointed(True)], ids=["plain", "kept", "reentrant"]
)
def test_the_backward_pass_is_the_models_own_and_each_call_of_the_node_whose_gradient_it_computes(
    model: nn.Module, trace: str
) -> None:
    report = analyzed(model, trace, backward=True)
    with fxflops.profile(model) as p:
        torch.autograd.backward(model(X), torch.ones(3, 4))
    model.zero_grad()
    assert said(report) == [call for call in said(p.report) if call[0] != "ones"]
    nodes = {node.name: node for node in report.nodes}
    back = [call for call in report.calls if call.phase == "backward" and call.node]
    forward = {c.path for c in report.calls if c.phase == "forward" and c.op not in ("exp", "empty")}
    assert {call.path for call in back} == forward
    assert all(call.path == report.calls[nodes[call.node].calls[0]].path for call in back)
    seconds = [timing.median for name in {call.node for call in back} if (timing := nodes[name].backward_timing)]
    assert sum(call.seconds or 0.0 for call in back) == pytest.approx(sum(seconds))
    assert all(not call.node for call in report.calls if call.phase == "recompute")


@pytest.mark.parametrize("trace", ["symbolic", "record"])
def test_calls_of_one_node_share_its_time_as_they_took_it(trace: str) -> None:
    model, x = nn.Sequential(nn.Linear(512, 2048)), torch.randn(128, 512)
    report = fxflops.analyze(model, x, trace=trace, backward=True, repeats=3)
    operators = report.by_operator("backward")
    product, view = operators["matmul"].total.seconds, operators["t"].total.seconds
    assert product is not None
    assert view is not None
    assert product > 3 * view  # 134 million multiply-accumulates, against a change of strides


def said(report: fxflops.Report) -> list[tuple[str, str, str, str]]:
    return [(call.op, str([*call.inputs()]), call.path, call.phase) for call in report.calls]


class WrittenTo(nn.Module):
    """The model writes to a checkpoint's result. It may: checkpoint recomputes the result for its own gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda given: self.fc(given).relu(), x, use_reentrant=False).add_(1)


@pytest.mark.parametrize("trace", TRACES)
def test_a_graph_whose_backward_pass_cannot_run_has_no_times_of_it(trace: str) -> None:
    report = analyzed(WrittenTo(), trace, backward=True)
    assert report.total_backward_macs == 3 * 4 * 4  # only the weight has a gradient
    assert report.total_recompute_flops == 3 * 4 * 2 * 4 + 3 * 4  # product, sums and bias; relu
    assert report.backward_timing is not None
    assert {node.backward_timing for node in report.nodes} == {None}
    assert {call.seconds for call in report.calls if call.phase == "backward"} == {None}
    assert all(node.timing is not None for node in report.nodes if node.opcode == "call_module")
    [line] = [line for line in str(report).splitlines() if line.startswith("backward")]
    assert "sum of nodes" not in line


class Descended(nn.Module):
    """Two steps down an energy. The second gradient needs a part of the first step, which is recomputed in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.descend, x, use_reentrant=False)  # type: ignore[no-any-return]

    def descend(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        for layer in (self.first, self.second):
            x = x - torch.autograd.grad(layer(x).pow(2).sum(), x, create_graph=True)[0]
        return x


def test_what_a_gradient_in_the_forward_computes_again_is_no_node_of_its_own() -> None:
    model = Descended()
    report, counted = analyzed(model, backward=True), fxflops.count(model, X, backward=True)
    totals = [
        (r.total_macs, r.total_gradient_flops, r.total_recompute_flops, r.total_backward_flops)
        for r in (report, counted)
    ]
    assert totals[0] == totals[1]
    assert [node.name for node in report.nodes if node.opcode == "call_module"] == ["first", "second"]


class Learning(nn.Module):
    """A training step in the forward. It reads a gradient that does not belong to any node."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            weight = self.fc.weight.detach().clone().requires_grad_()
            nn.functional.linear(x, weight).sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        return self.fc(x) - weight.grad.norm()


class Differential(nn.Module):
    """A function's gradient, whose tensors no graph can hold as constants."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, gradient = torch.func.vjp(self.fc, x)
        return gradient(out)[0]  # type: ignore[no-any-return]


class Masked(nn.Module):
    """A tensor of a class without its own memory."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        return torch.masked.masked_tensor(y, y > 0).sum().get_data()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("trace", ["auto", "record"])
@pytest.mark.parametrize(
    ("model", "products", "why"),
    [
        (Learning(), 3, "the model's recorded graph cannot be run at 'norm': AttributeError: 'NoneType'"),
        (Differential(), 2, "the model cannot be recorded: NotImplementedError: Cannot access storage"),
        (Masked(), 1, "the model cannot be recorded: RuntimeError: Attempted to call copy_"),
    ],
    ids=["backward", "vjp", "masked"],
)
def test_a_model_without_a_graph_has_the_calls_and_times_of_its_own_run(
    model: nn.Module, products: int, why: str, trace: str
) -> None:
    report = analyzed(model, trace)
    assert report.trace == "no trace"
    assert report.trace_reason.startswith(why)
    assert report.complete
    assert report.total_macs == products * 3 * 4 * 4
    assert report.nodes == ()
    assert report.latency is not None
    assert all(call.seconds is not None for call in report.calls)
    assert report.by_module()["fc"].seconds == report.by_module()["fc"].total.seconds > 0
    assert f"no trace: {why}" in " ".join(str(report).split())


class Copied(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return copy.deepcopy(x) * 2


def test_a_copy_of_a_proxy_has_a_graph_of_its_own() -> None:
    report = analyzed(Copied())
    assert report.trace == "recorded trace"
    assert report.total_flops == X.numel()
    assert [node.function for node in report.nodes if node.opcode == "call_function"] == ["deepcopy", "mul"]
    with pytest.raises(fxflops.TraceError, match="does not belong to this Graph"):
        analyzed(Copied(), "symbolic")


RUNS: list[str] = []


@torch.library.custom_op("fxflops_tests::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    RUNS.append("ran")
    return x + 1


@noted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Noted(nn.Module):
    """Its kernel records each time that it computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RUNS.append("forward")
        return noted(x * 2)


@pytest.mark.parametrize("trace", TRACES)
def test_an_analysis_computes_three_times(trace: str) -> None:
    """One run is observed, one is timed as a whole, and one is timed by node. The graph is traced without computing."""
    RUNS.clear()
    report = fxflops.analyze(
        Noted(), X, trace=trace, repeats=1, progress=False, formulas={noted._opoverload: lambda x, *, out: x.numel()}
    )
    assert (report.complete, report.total_flops) == (True, 2 * X.numel())
    assert RUNS.count("ran") == 3
    assert RUNS.count("forward") == 2 + (trace == "symbolic")  # symbolic tracing calls it with a proxy


def test_a_long_analysis_says_how_long_it_will_take(capfd: pytest.CaptureFixture[str]) -> None:
    class Slow(nn.Module):
        times = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            type(self).times += 1
            if self.times > 3:
                raise KeyboardInterrupt  # like a user who will not wait
            time.sleep(0.02)
            return x.cos()

    with pytest.raises(KeyboardInterrupt):
        fxflops.analyze(Slow(), X, trace="record", repeats=100_000, progress=True)
    said = capfd.readouterr().err
    assert said.startswith("Slow: about ")
    assert said.strip().endswith(" s left")

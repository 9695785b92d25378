"""Any callable can take the place of a model. The oracles are the model counted directly, FlopCounterMode, sums by hand, and values
before and after.
"""

from __future__ import annotations

import functools
import gc
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fxflops
from fxflops import InputError

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
STEPS = 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.fc(x).relu())
        return out

    def generate(self, x: torch.Tensor, tokens: int = 3) -> torch.Tensor:
        for _ in range(tokens):
            x = torch.cat([self(x), x[:, :4]], 1)
        return x


MACS = 4 * (8 * 8 + 8 * 4)
"""MACs of one call of Net on X, computed by hand."""
PARAMS = 8 * 8 + 8 + 8 * 4 + 4


class Pipe:
    """A pipeline that is not a module, like those of diffusers."""

    def __init__(self) -> None:
        self.unet, self.vae, self.calls = Net(), nn.Linear(4, 4), 0
        self.history: list[torch.Tensor] = []

    @property
    def components(self) -> Any:
        raise AssertionError("no code of the object's class runs")

    def __call__(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        self.history.append(x)
        return {"images": self.vae(self.unet(x))}

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return helper(self.unet, x)


class Slotted:
    __slots__ = ("calls", "model")

    def __init__(self) -> None:
        self.model, self.calls = Net(), 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.model(x)
        return out


def helper(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(x)
    return out


GLOBAL = Net()


def by_global(x: torch.Tensor) -> torch.Tensor:
    return helper(GLOBAL, x)


def calls_another(x: torch.Tensor) -> torch.Tensor:
    return by_global(x)


@torch.no_grad()
def decorated(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = GLOBAL(x)
    return out


def wrapped(function: Callable[..., Any], is_named: bool) -> Callable[..., Any]:
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return functools.wraps(function)(inner) if is_named else inner


class Trainer:
    net = Net()

    @staticmethod
    def of_none(x: torch.Tensor) -> torch.Tensor:
        return by_global(x)

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = cls.net(x)
        return out


def paths_of(report: fxflops.Report) -> list[str]:
    return [module["path"] for module in report.to_dict()["modules"]]


def kinds() -> dict[str, tuple[Callable[..., Any], str]]:
    """Return callables that each call one Net once on their input, and find it in different ways, with the path of the Net."""
    net, several = Net(), {"a": [Net()], "b.c": Net()}
    pipe = Pipe()
    return {
        "lambda": (lambda x: net(x), "net"),
        "method of the model": (net.forward, ""),
        "call of the model": (net.__call__, ""),
        "partial of a method": (functools.partial(net.generate, tokens=1), ""),
        "partial with a model": (functools.partial(helper, net), "model"),
        "by default": (lambda x, model=net: model(x), "model"),
        "in a dict of lists": (lambda x: several["a"][0](x), "several.a.0"),
        "under a key with a dot": (lambda x: several["b.c"](x), "several.b_c"),
        "attribute of an object": (lambda x: pipe.unet(x), "pipe.unet"),
        "method of an object": (pipe.encode, "unet"),
        "with slots": (Slotted(), "model"),
        "global": (by_global, "GLOBAL"),
        "global of a function that it calls": (calls_another, "GLOBAL"),
        "under no_grad": (decorated, "GLOBAL"),
        "wrapped": (wrapped(by_global, True), "GLOBAL"),
        "wrapped without its name": (wrapped(by_global, False), "GLOBAL"),
        "static method": (Trainer.of_none, "GLOBAL"),
        "class method": (Trainer.of_class, "net"),
        "compiled": (torch.compile(lambda x: net(x), backend="eager"), "net"),
        "vmap": (torch.func.vmap(lambda row: net(row)), "net"),
    }


def test_a_second_input_is_no_mapping_of_names() -> None:
    with pytest.raises(
        fxflops.InputError, match="kwargs must be a mapping of names to inputs, not Tensor; pass several inputs"
    ):
        fxflops.count(torch.matmul, torch.ones(2, 3), torch.ones(3, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", kinds())
def test_a_callable_costs_what_its_model_costs(kind: str) -> None:
    called, path = kinds()[kind]
    report, alone = fxflops.count(called, X), fxflops.count(Net(), X)
    assert report.total_macs == alone.total_macs == MACS
    assert report.total_flops == alone.total_flops
    assert report[path].params == PARAMS
    assert report[path].total.macs == MACS
    assert report[f"{path}.fc".lstrip(".")].total.macs == 4 * 8 * 8
    assert report.trace == "counted on the meta device"


def test_what_is_outside_of_modules_belongs_to_the_root() -> None:
    net = Net()
    report = fxflops.count(lambda x: net(x) + 1, X)
    assert report.total_flops == fxflops.count(net, X).total_flops + 4 * 4
    assert report[""].own.flops == 4 * 4
    assert "net  Net" in str(report.tree())
    assert "<lambda>" in str(report)


def test_a_method_of_a_model_is_shown_as_the_model_and_costs_what_profile_sees() -> None:
    net = Net().eval()
    report = fxflops.count(net.generate, X, {"tokens": 5})
    with fxflops.profile(net) as p:
        net.generate(X, tokens=5)
    assert report.total_macs == p.report.total_macs == 5 * MACS
    assert report.to_dict()["modules"] == p.report.to_dict()["modules"]
    assert [report[path].calls for path in ("", "fc", "head")] == [p.report[path].calls for path in ("", "fc", "head")]
    assert str(report).startswith("Net.generate ")


def test_a_pipeline_costs_what_profile_sees_of_its_modules() -> None:
    pipe = Pipe()
    report = fxflops.count(pipe, X)
    with fxflops.profile({"unet": pipe.unet, "vae": pipe.vae}) as p:
        pipe(X)
    with fxflops.profile(pipe) as found:
        pipe(X)
    assert report.total_flops == p.report.total_flops == found.report.total_flops
    assert report["unet"].macs == p.report["unet"].macs == MACS
    assert report.params == p.report.params == found.report.params


@pytest.mark.parametrize(
    "called", [torch.matmul, torch.ops.aten.mm.default, torch.mm, lambda a, b: a @ b, torch.Tensor.matmul]
)
def test_functions_of_torch(called: Any) -> None:
    args = torch.ones(3, 4), torch.ones(4, 5)
    with FlopCounterMode(display=False) as counter:
        called(*args)
    report = fxflops.count(called, args)
    assert report.total_macs == counter.get_total_flops() // 2 == 3 * 4 * 5
    assert report.params is not None
    assert report.params.total == 0
    form = fxflops.closed_form(called, args, dynamic_shapes=({0: "m", 1: "k"}, {0: "k", 1: "n"}))
    assert form.evaluate("macs", m=7, k=11, n=13) == 7 * 11 * 13


def test_a_method_of_a_tensor_and_a_scripted_function() -> None:
    assert fxflops.count(X.matmul, torch.ones(8, 3)).total_macs == 4 * 8 * 3
    with pytest.warns(match="deprecated") if torch.__version__ >= "2.14" else _nothing():
        scripted = torch.jit.script(_product)  # type: ignore[no-untyped-call]
        module = torch.jit.script(Net())  # type: ignore[no-untyped-call]
    assert fxflops.count(scripted, (X, torch.ones(8, 3))).total_macs == 4 * 8 * 3
    method = fxflops.count(module.forward, X)
    assert method.total_macs == MACS
    assert method.params == fxflops.count(module, X).params


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("net", "must be a torch.nn.Module or a callable, not str"),
        (None, "must be a torch.nn.Module or a callable, not NoneType"),
        (3, "must be a torch.nn.Module or a callable, not int"),
        (Net, "is the class Net, not an instance: pass Net(...)"),
        (Pipe, "is the class Pipe, not an instance: pass Pipe(...)"),
    ],
)
@pytest.mark.parametrize("function", [fxflops.count, fxflops.analyze, fxflops.summary])
def test_what_cannot_be_called_is_refused(function: Any, model: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        function(model, kwargs={"x": X})
    assert said in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_inputs_that_do_not_fit_name_the_callable() -> None:
    net = Net()

    def both(a: torch.Tensor, *, b: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = net(a) + net(b)
        return out

    assert fxflops.count(both, X, {"b": X}).total_macs == 2 * MACS
    with pytest.raises(InputError, match=r"do not fit both\(a: .*missing a required argument: 'b'"):
        fxflops.count(both, X)
    with pytest.raises(InputError, match=r'count\(model, kwargs=\{"b": b\}\)'):
        fxflops.count(both, X, b=X)  # type: ignore[arg-type]


def test_modules_may_be_given() -> None:
    net, other = Net(), nn.Linear(8, 8)

    def called(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = net(other(x))
        return out

    assert paths_of(fxflops.count(called, X, models=net)) == ["", "fc", "head"]
    assert fxflops.count(called, X, models={"back": net})["back"].total.macs == MACS
    listed = fxflops.count(called, X, models=[other, net])
    assert [listed["Linear_0"].total.macs, listed["Net_1"].total.macs] == [4 * 8 * 8, MACS]
    with pytest.raises(InputError, match="models must be a module, a list of modules or a dict of modules, not int"):
        fxflops.count(called, X, models=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module, not int"):
        fxflops.count(called, X, models=[3])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"no torch\.nn\.Module in models="):
        fxflops.count(called, X, models={"a": 3})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="only for callables"):
        fxflops.count(net, X, models=net)


def test_a_module_that_is_found_twice_has_one_place_and_its_parameters_count_once() -> None:
    net, head = Net(), nn.Linear(4, 4)
    inner = net.head
    report = fxflops.count(lambda model, x: head(inner(net.fc(x))) + model(x), (net, X))
    assert paths_of(report) == ["", "model", "model.fc", "model.head", "head"]
    assert report.params is not None
    assert report.params.total == PARAMS + 4 * 4 + 4
    assert report["model.head"].calls == 2


def test_two_modules_of_one_name_keep_apart() -> None:
    def made(net: nn.Module) -> Callable[[torch.Tensor], Any]:
        return lambda x: net(x)

    first, second = made(Net()), made(nn.Linear(8, 4))
    report = fxflops.count(lambda x: first(x) + second(x), X)
    assert [report["net"].cls, report["net_2"].cls] == ["Net", "Linear"]
    assert report["net"].total.macs + report["net_2"].total.macs == report.total_macs == MACS + 4 * 8 * 4


def test_modules_that_are_made_inside_belong_to_the_root() -> None:
    report = fxflops.count(lambda x: nn.Linear(8, 3)(x), X)
    assert report[""].own.macs == report.total_macs == 4 * 8 * 3


def test_an_item_runs_on_real_tensors_and_the_report_says_so() -> None:
    net = Net()
    report = fxflops.count(lambda x: net(x) if x.sum().item() < 1e9 else x, X)
    assert report.trace == "counted on real tensors"
    assert "item()" in report.trace_reason
    assert report["net"].total.macs == MACS


def test_generators_give_all_items_and_coroutines_are_refused() -> None:
    net = Net()

    def items(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(3):
            yield net(x)

    async def later(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = net(x)
        return out

    assert fxflops.count(items, X).total_macs == 3 * MACS
    with pytest.raises(InputError, match="coroutine, which runs only when awaited"):
        fxflops.count(later, X)


@dataclass
class Out:
    logits: torch.Tensor


@pytest.mark.parametrize("of", [lambda out: out, lambda out: Out(out), lambda out: {"a": [out]}])
def test_backward_is_that_of_the_model(of: Callable[[torch.Tensor], Any]) -> None:
    net = Net()
    report, alone = fxflops.count(lambda x: of(net(x)), X, backward=True), fxflops.count(net, X, backward=True)
    assert report.total_backward_flops == alone.total_backward_flops > 0
    assert report.max_memory == alone.max_memory
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_result_without_a_gradient_is_said() -> None:
    net = Net()
    with pytest.raises(InputError, match="no output depends on a parameter"):
        fxflops.count(lambda x: [net(x), None][1], X, backward=True)


def test_a_thread_that_it_starts_is_counted_also_under_profile() -> None:
    net, out = Net(), list[torch.Tensor]()

    def called(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: out.append(net(x)))
        thread.start()
        thread.join()
        return out.pop()

    assert fxflops.count(called, X).total_macs == MACS
    with fxflops.profile(net) as p:
        called(X)
    assert p.report.total_macs == MACS


# A backward pass and an optimizer inside the callable


class Loop:
    """A training loop, with everything that it steps."""

    def __init__(self, optimizer: Callable[[Any], torch.optim.Optimizer], on_meta: bool = False) -> None:
        torch.manual_seed(0)
        with torch.device("meta" if on_meta else "cpu"):
            self.model = Net()
        self.optimizer = optimizer(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.losses: list[float] = []
        self.buffer = deque[torch.Tensor](maxlen=2)
        self.mean, self.steps = torch.zeros(()), 0
        self.generator = torch.Generator().manual_seed(3)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        global STEPS
        STEPS += 1
        self.steps += 1
        x = x + torch.rand(x.shape, generator=self.generator)
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.buffer.append(x)
        self.mean.mul_(0.9).add_(loss.detach())
        return loss

    def state(self) -> list[Any]:
        parameters = [parameter.tolist() for parameter in self.model.parameters()]
        gradients = [None if each.grad is None else each.grad.tolist() for each in self.model.parameters()]
        return [parameters, gradients, str(self.optimizer.state_dict()), self.schedule.state_dict(), self.losses, self.steps,
                self.mean.item(), len(self.buffer), self.generator.get_state().tolist(), STEPS, torch.get_rng_state().tolist()]  # fmt: skip


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("begun", [False, True])
def test_a_training_step_is_counted_and_all_of_it_put_back(optimizer: str, begun: bool) -> None:
    loop, twin = Loop(OPTIMIZERS[optimizer]), Loop(OPTIMIZERS[optimizer])
    if begun:
        loop.step(X)
        twin.step(X)
    before = loop.state()
    report = fxflops.count(loop.step, X)
    assert loop.state() == before
    analyzed = fxflops.analyze(loop.step, X, repeats=1)
    assert loop.state() == before
    with fxflops.profile(twin.model, optimizer=twin.optimizer) as p:
        twin.step(X)
    for each in (report, analyzed):
        assert each.total_macs == p.report.total_macs == MACS
        assert each.total_backward_flops == p.report.total_backward_flops > 0
        assert each.total_optimizer_flops == p.report.total_optimizer_flops > 0
    assert analyzed.latency is not None
    assert "runs a backward pass itself" in analyzed.trace_reason
    loop.step(X)  # continues as if nothing had happened
    assert loop.losses == twin.losses


def test_a_model_on_meta_is_trained_there() -> None:
    loop = Loop(torch.optim.AdamW, on_meta=True)

    def step(x: torch.Tensor) -> None:
        loop.model(x).square().mean().backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    report = fxflops.count(step, X.to("meta"))
    assert report.trace == "counted on the meta device"
    alone = fxflops.count(Net(), X, backward=True, optimizer=torch.optim.AdamW)
    assert report.total_optimizer_flops == alone.total_optimizer_flops > 0
    assert not loop.optimizer.state


def test_own_backward_passes_are_not_followed_by_another() -> None:
    net = Net()

    def returns_loss(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = net(x).sum()
        loss.backward()
        return loss

    def by_function(x: torch.Tensor) -> None:
        torch.autograd.backward(net(x).sum())

    def by_gradients(x: torch.Tensor) -> torch.Tensor:
        loss = net(x).sum()
        torch.autograd.grad(loss, [*net.parameters()])
        return loss.detach()

    alone = fxflops.count(lambda x: net(x).sum(), X, backward=True)
    for called in (returns_loss, by_function, by_gradients):
        for backward in (False, True):
            report = fxflops.count(called, X, backward=backward)
            assert report.total_backward_flops == alone.total_backward_flops, called
            assert report.total_flops == alone.total_flops
    with pytest.raises(InputError, match="runs a backward pass itself, so optimizer= cannot be used"):
        fxflops.count(returns_loss, X, backward=True, optimizer=torch.optim.SGD)


def test_a_gradient_in_the_loss_is_followed_by_the_backward_pass() -> None:
    net = Net()

    def penalty(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return gradient.square().sum()

    def once(x: torch.Tensor) -> torch.Tensor:
        loss = penalty(x)
        loss.backward()
        return loss

    assert (
        fxflops.count(penalty, X, backward=True).total_backward_flops
        == fxflops.count(once, X).total_backward_flops
        > fxflops.count(net, X, backward=True).total_backward_flops
    )


@pytest.mark.parametrize("size", [5, 3_000_000])
def test_a_tensor_in_its_closure_is_trained(size: int) -> None:
    weight = torch.randn(size, requires_grad=True)
    before = weight.detach().clone()
    optimizer = torch.optim.Adam([weight])

    def by_hand() -> None:
        (weight * 2).sum().backward()
        assert weight.grad is not None
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
            weight.grad.zero_()

    def by_optimizer() -> None:
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()

    for called in (by_hand, by_optimizer):
        report = fxflops.count(called)
        assert torch.equal(weight.detach(), before)
        assert weight.grad is None
        assert not optimizer.state
        assert report.total_backward_flops == size
        # sub_ with a factor is a product and a difference per element. Adam's step equals the step of the model's own parameters.
        assert report.total_flops == size + size - 1 + 2 * size * (called is by_hand)
        alone = fxflops.count(_Scaled(size), torch.ones(()), backward=True, optimizer=torch.optim.Adam)
        assert report.total_optimizer_flops == (alone.total_optimizer_flops if called is by_optimizer else None)


class _Scaled(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * 2).sum()


def test_a_step_that_asks_first_whether_its_loss_has_a_gradient() -> None:
    loop = Loop(torch.optim.AdamW)

    def step(x: torch.Tensor) -> None:
        loss = loop.model(x).sum()
        if loss.requires_grad:
            loss.backward()
        loop.optimizer.step()

    report = fxflops.count(step, X)
    alone = fxflops.count(lambda x: loop.model(x).sum(), X, backward=True, optimizer=torch.optim.AdamW)
    assert report.total_backward_flops == alone.total_backward_flops > 0
    assert report.total_optimizer_flops == alone.total_optimizer_flops


def test_gradients_on_the_parameters_are_read_as_the_code_reads_them() -> None:
    net = Net()

    def step(x: torch.Tensor) -> None:
        net(x).sum().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-0.1)
        net.zero_grad()
        assert all(parameter.grad is None for parameter in net.parameters())

    report = fxflops.count(step, X)
    assert report.trace == "counted on the meta device"
    before = [parameter.tolist() for parameter in net.parameters()]
    fxflops.count(step, X)
    assert [parameter.tolist() for parameter in net.parameters()] == before
    with fxflops.profile(net) as p:
        step(X)
    assert report.total_flops == p.report.total_flops > fxflops.count(lambda x: net(x).sum(), X).total_flops


def test_state_is_put_back_after_an_error() -> None:
    net, seen = Net(), list[int]()
    before = net.fc.bias.tolist()

    def fails(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        with torch.no_grad():
            net.fc.bias.add_(1)
        net.flag = 1  # type: ignore[assignment]
        raise ValueError("no")

    with pytest.raises(fxflops.RunError, match="ValueError: no"):
        fxflops.count(fails, X)
    assert net.fc.bias.tolist() == before
    assert not hasattr(net, "flag")
    assert seen == []


def test_closures_objects_arrays_and_generators_are_put_back() -> None:
    numpy = pytest.importorskip("numpy")
    net, pipe, slotted = Net(), Pipe(), Slotted()
    array, table, dice, count = numpy.zeros(2), dict[str, Any](), random.Random(1), 0
    inputs = {"x": X.clone()}

    def called(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        nonlocal count
        count += 1
        array[:] = count
        table["last"] = batch["x"]
        dice.random()
        slotted.calls += 1
        batch["y"] = batch["x"].mul_(2)
        out: torch.Tensor = net(batch["y"]) + pipe(batch["x"])["images"]
        return out

    def state() -> list[Any]:
        return [array.tolist(), [*table], dice.getstate(), count, pipe.calls, pipe.history, slotted.calls, [*inputs], inputs["x"].tolist()]  # fmt: skip

    before = state()
    for function in (fxflops.count, functools.partial(fxflops.analyze, repeats=1)):
        assert function(called, (inputs,)).total_macs == 2 * MACS + 4 * 4 * 4
        assert state() == before


def test_nothing_holds_the_model_afterwards() -> None:
    def counted() -> tuple[weakref.ref[Any], fxflops.Report]:
        pipe = Pipe()
        return weakref.ref(pipe.unet), fxflops.count(lambda x: pipe(x), X)

    reference, report = counted()
    gc.collect()
    assert reference() is None
    assert report.recount("fvcore").total_flops > 0


class Hostile:
    """Every method that fxflops could call raises, except ``__call__``."""

    def __init__(self) -> None:
        self.net = Net()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError

    __eq__ = __iter__ = __len__ = __bool__ = __repr__ = __hash__ = _raise


def test_no_code_of_an_object_runs_but_its_call() -> None:
    hostile = Hostile()
    for called, path in ((hostile, "net"), (lambda x: hostile(x), "hostile.net"), (functools.partial(hostile), "net")):
        assert fxflops.count(called, X)[path].macs == MACS
        assert fxflops.analyze(called, X, repeats=1)[path].macs == MACS
    with fxflops.profile(hostile) as p:
        hostile(X)
    assert p.report["net"].macs == MACS


def test_vast_objects_are_not_searched_to_the_end() -> None:
    class Endless:
        reads = 0

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        def __iter__(self) -> Any:
            raise AssertionError("iterated")

    net, words = Net(), {str(i): i for i in range(100_000)}
    first: Any = [net]
    for _ in range(100_000):
        first = [Endless(), first]
    report = fxflops.count(lambda x: net(x) * len(words) * bool(first), X)
    assert report["net"].total.macs == MACS


# Other functions, and what a report of a callable offers


@pytest.mark.parametrize("trace", ["auto", "symbolic", "record"])
def test_analyze(trace: str) -> None:
    net = Net()
    for called, path in ((lambda x: net(x) + 1, "net"), (net.generate, "")):
        report = fxflops.analyze(called, X, trace=trace, repeats=1)
        assert report.total_flops == fxflops.count(called, X).total_flops
        assert report.latency is not None
        assert report.nodes
        assert report[f"{path}.fc".lstrip(".")].total.macs % (4 * 8 * 8) == 0
        assert report.trace == ("recorded trace" if trace == "record" else "symbolic trace")


def test_a_compiled_function_is_counted_as_written_and_timed_compiled() -> None:
    net = Net()
    report = fxflops.analyze(torch.compile(lambda x: net(x) + 1, backend="eager"), X, repeats=1)
    assert report.compiled is not None
    assert report["net"].total.macs == MACS


def test_summary_closed_form_and_the_drop_in() -> None:
    net = Net()
    assert fxflops.summary(lambda x: net(x) + 1, (4, 8)).report["net"].total.macs == MACS
    form = fxflops.closed_form(lambda x: net(x) + 1, X, dynamic_shapes={"x": {0: "batch"}})
    assert form.evaluate("macs", batch=100) == 25 * MACS
    counter = fxflops.TorchFLOPsByFX(lambda x: net(x) + 1)
    counter.propagate(X)
    assert counter.report.total_macs == MACS
    assert fxflops.largest_batch(lambda x: net(x) + 1, lambda batch: X[:1].expand(batch, 8), memory=100_000) == (
        fxflops.largest_batch(_Plus(net), lambda batch: X[:1].expand(batch, 8), memory=100_000)
    )


class _Plus(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x) + 1
        return out


def test_the_report_of_a_callable_does_all_that_a_models_does(tmp_path: Any) -> None:
    net = Net()
    called = lambda x: net(x) + 1  # noqa: E731
    report, alone = fxflops.count(called, X), fxflops.count(_Plus(net), X)
    report.save(tmp_path / "report.json")
    assert fxflops.Report.load(tmp_path / "report.json", called) == report
    assert "&lt;lambda&gt;" in report.to_html()
    for convention in ("torch", "fvcore", "torch_flops"):
        assert report.recount(convention).total_flops == alone.recount(convention).total_flops
        assert str(report.explain(convention)) == str(alone.explain(convention))
    assert report.memory == alone.memory
    assert "only in a" not in str(report.diff(alone))


def test_a_daemon_that_starts_outside_of_models_is_left_alone() -> None:
    """tqdm's monitor lives until the process ends. If a torch mode is still on in a thread then, the process aborts."""
    modes: list[int] = []

    class Monitor(threading.Thread):
        def run(self) -> None:
            modes.append(len(torch.overrides._get_current_function_mode_stack()))

    def call(x: torch.Tensor) -> torch.Tensor:
        monitor = Monitor(daemon=True)
        monitor.start()
        monitor.join()
        return x + 1

    assert fxflops.count(call, torch.ones(3)).total_flops == 3
    assert modes == [0]

"""Kind: an optimizer that fxflops does not know. ``count`` must count its step, and the user's training must continue as if there
had been no count.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.optim import SGD, Adam, AdamW, Optimizer

import fxflops
from tests.kinds.live_bytes import Live

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


class Own(Optimizer):
    """Momentum, with 4 FLOPs per element. Subclasses decide where it keeps its state."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1, **more: Any) -> None:
        super().__init__(params, {"lr": lr, **more})

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(self.kept(p).mul_(0.9).add_(p.grad).mul(group["lr"]))


class InDict(Own):
    def kept(self, p: torch.Tensor) -> torch.Tensor:
        return self.state[p].setdefault("m", torch.zeros_like(p))


class InTuple(Own):
    def kept(self, p: torch.Tensor) -> torch.Tensor:
        if p not in self.state:
            self.state[p] = (1, torch.zeros_like(p))  # type: ignore[assignment]
        steps, momentum = self.state[p]
        self.state[p] = (steps + 1, momentum)  # type: ignore[assignment]
        return momentum


class InTensor(Own):
    def kept(self, p: torch.Tensor) -> torch.Tensor:
        if p not in self.state:
            self.state[p] = torch.zeros_like(p)  # type: ignore[assignment]
        return self.state[p]  # type: ignore[return-value]


class InList(Own):
    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params)
        self.buffers = [[torch.zeros_like(p)] for group in self.param_groups for p in group["params"]]
        self.steps = 0

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        at = next(i for i, each in enumerate(self.param_groups[0]["params"]) if each is p)
        return self.buffers[at][0]


class ById(Own):
    """The keys are ``id(parameter)``, as in bitsandbytes and apex."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params)
        self.by_id = {id(p): torch.zeros_like(p) for group in self.param_groups for p in group["params"]}

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        return self.by_id[id(p)]


@dataclass(slots=True)
class Slotted:
    momentum: torch.Tensor
    steps: int = 0


class InObject(Own):
    def kept(self, p: torch.Tensor) -> torch.Tensor:
        held = self.state[p].setdefault("held", Slotted(torch.zeros_like(p)))
        held.steps += 1
        return held.momentum


class InClosure(Own):
    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params)
        steps, momenta = 0, defaultdict[Any, Any]()

        def kept(p: torch.Tensor) -> torch.Tensor:
            nonlocal steps
            steps += 1
            return momenta.setdefault(p, torch.zeros_like(p))

        self.get = kept
        self.steps = lambda: steps

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        return self.get(p)


class InPartial(Own):
    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params)
        self.get = functools.partial(lambda momenta, p: momenta.setdefault(p, torch.zeros_like(p)), {})

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        return self.get(p)


class OnParameter(Own):
    """Keeps its state as an attribute of the parameter."""

    def kept(self, p: Any) -> torch.Tensor:
        if not hasattr(p, "momentum"):
            p.momentum = torch.zeros_like(p)
        return p.momentum


class InFlat(Own):
    """All momenta are views of one buffer."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params)
        own = self.param_groups[0]["params"]
        self.flat = torch.zeros(sum(p.numel() for p in own))
        sizes = itertools.accumulate([0, *(p.numel() for p in own)])
        self.views = [self.flat[at : at + p.numel()].view_as(p) for at, p in zip(sizes, own, strict=False)]

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        return next(v for v, each in zip(self.views, self.param_groups[0]["params"], strict=True) if each is p)


class In8Bits(Own):
    """8-bit momenta with a scale for each parameter, which each step reads and writes back."""

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        held = self.state[p]
        if not held:
            held.update(codes=torch.zeros(p.shape, dtype=torch.int8), scale=torch.ones(1))
        momentum = held["codes"].to(p.dtype).mul_(held["scale"])
        held["scale"].copy_(momentum.abs().amax().clamp_(min=1e-3) / 127)
        held["codes"].copy_((momentum / held["scale"]).round())
        return momentum


class Super(SGD):
    """Its step ends with a call of its base class's step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.grad.mul_(0.5)
        return super().step(closure)


class Wrapper(Optimizer):
    """A wrapper like accelerate's: it has properties in place of an optimizer's attributes, some without a setter."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.steps = 0

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        return self.optimizer.defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        self.optimizer.step(closure)


class Slow(Wrapper):
    """A wrapper like Lookahead: it shares groups and state, and computes after the wrapped optimizer's step."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.slow = {id(p): p.detach().clone() for group in optimizer.param_groups for p in group["params"]}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.slow[id(p)].lerp_(p, 0.5))


class Sharing(Optimizer):
    """An optimizer like SAM: it shares the groups of another optimizer."""

    def __init__(self, params: Iterable[Any], base: Any = SGD, **settings: Any) -> None:
        super().__init__(params, {"rho": 0.05, **settings})
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups
        self.defaults.update(self.base.defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad, alpha=-1e-3)
        self.base.step()


class Queued(Own):
    """Keeps its state as a queue in a dict of the group, and draws from its own generator."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params)
        self.param_groups[0]["past"] = defaultdict(lambda: deque(maxlen=2))
        self.generator = torch.Generator().manual_seed(3)

    def kept(self, p: torch.Tensor) -> torch.Tensor:
        past = self.param_groups[0]["past"][p]
        past.append(torch.zeros_like(p))
        torch.rand(2, generator=self.generator)
        return past[0]


def scheduled(params: Iterable[Any]) -> Optimizer:
    """Return an optimizer with a schedule, which replaces its step by a function that holds the optimizer."""
    optimizer = SGD(params, lr=0.1, momentum=0.9)
    optimizer.schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)  # type: ignore[attr-defined]
    return optimizer


def hooked(params: Iterable[Any]) -> Optimizer:
    optimizer = Adam(params, lr=0.1)
    optimizer.log = []  # type: ignore[attr-defined]
    optimizer.register_step_post_hook(lambda own, args, kwargs: own.log.append(1))  # type: ignore[attr-defined]
    return optimizer


MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    **{cls.__name__: cls for cls in (InDict, InTuple, InTensor, InList, ById, InObject, InClosure, InPartial)},
    **{cls.__name__: cls for cls in (OnParameter, InFlat, In8Bits, Queued)},
    "Super": functools.partial(Super, lr=0.1, momentum=0.9),
    "Wrapper": lambda params: Wrapper(AdamW(params, lr=0.1)),
    "Wrapper of Wrapper": lambda params: Wrapper(Wrapper(SGD(params, lr=0.1, momentum=0.9))),
    "Slow": lambda params: Slow(Adam(params, lr=0.1)),
    "Slow of Wrapper": lambda params: Slow(Wrapper(InObject(params))),
    "Sharing": functools.partial(Sharing, lr=0.1, momentum=0.9),
    "scheduled": scheduled,
    "hooked": hooked,
    "foreach": functools.partial(AdamW, lr=0.1, foreach=True),
    "fused": functools.partial(AdamW, lr=0.1, fused=True),
    "a tensor as learning rate": functools.partial(Adam, lr=torch.tensor(0.1), foreach=False),
}


def value_of(part: Any, seen: dict[int, Any] | None = None) -> Any:
    """Return all values in an object and its attributes. This oracle does not know about optimizers."""
    if isinstance(part, (int, float, str, type(None))):
        return part if type(part) is not int or part < 2**32 else "an id"
    seen = {} if seen is None else seen
    if id(part) in seen:
        return seen[id(part)]
    seen[id(part)] = len(seen)
    if isinstance(part, torch.Tensor):
        grad = None if part.grad is None else part.grad.tolist()
        return str(part.device), part.dtype, part.tolist(), grad, value_of(vars(part), seen)
    if isinstance(part, torch.Generator):
        return part.get_state().tolist()
    if isinstance(part, dict):
        # handles of hooks are numbered consecutively in the whole process
        return [
            (type(key) if type(key) is int else value_of(key, seen), value_of(value, seen))
            for key, value in part.items()
        ]
    if isinstance(part, (list, tuple, deque)):
        return [value_of(each, seen) for each in part]
    if isinstance(part, Slotted):
        return value_of(part.momentum, seen), part.steps
    if isinstance(part, functools.partial):
        return value_of(part.args, seen)
    if callable(part):
        return [value_of(cell.cell_contents, seen) for cell in getattr(part, "__closure__", None) or ()]
    return value_of(vars(part), seen) if hasattr(part, "__dict__") else part


def train(maker: Callable[[Any], Optimizer], steps: int, counted: Iterable[int]) -> tuple[list[Any], list[Any]]:
    """Return the losses and final values of a training, and the reports of the counts made before some of its steps."""
    model = model_of()
    optimizer, trace, reports = maker(model.parameters()), [], []
    ids = [*map(id, optimizer.param_groups[0]["params"])]
    for step in range(steps):
        if step in counted:
            reports.append(fxflops.count(model, X, backward=True, mode="train", optimizer=optimizer))
            assert [*map(id, optimizer.param_groups[0]["params"])] == ids
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        if hasattr(optimizer, "schedule"):
            optimizer.schedule.step()
        trace.append(loss.item())
    return [trace, value_of(model.state_dict()), value_of(optimizer), torch.get_rng_state().tolist()], reports


def flops_of_a_step(maker: Callable[[Any], Optimizer]) -> int:
    """Return the FLOPs of a second step, added up over the elementwise operators that its own run dispatches."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Tally(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ in PRICES:
                self.total += PRICES[func.overloadpacket.__name__] * (out if out.ndim else torch.ones(())).numel()
            return out

    model = model_of()
    optimizer = maker(model.parameters())
    for _ in range(2):
        model(X).square().mean().backward()
        tally = Tally()
        with tally:
            optimizer.step()
    return tally.total


PRICES = {"mul_": 1, "mul": 1, "add_": 1, "sub_": 1, "lerp_": 3}
BY_HAND = (
    "InDict",
    "InTuple",
    "InTensor",
    "InList",
    "ById",
    "InObject",
    "InClosure",
    "InPartial",
    "OnParameter",
    "InFlat",
)


@pytest.mark.parametrize("name", MAKERS)
def test_a_training_goes_on_as_without_the_count(name: str) -> None:
    maker = MAKERS[name]
    plain, _ = train(maker, 4, ())
    after, reports = train(maker, 4, (0, 2))
    assert after == plain
    parameters = sum(p.numel() for p in model_of().parameters())
    for report in reports:
        assert report.complete
        assert report.total_optimizer_flops >= 2 * parameters
        assert not [each.call.op for each in report.counted if each.call.phase == "forward" and not each.call.path]
    if name in BY_HAND:
        assert {report.total_optimizer_flops for report in reports} == {flops_of_a_step(maker)} == {4 * parameters}
        assert {report.memory["optimizer"] for report in reports} == {4 * parameters}


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in ("fused", "foreach")])
def test_each_step_is_booked_once(name: str) -> None:
    """``profile`` must report the same for the user's own step, and book a wrapper's work as the optimizer's."""
    model = model_of()
    optimizer = MAKERS[name](model.parameters())
    counted = fxflops.count(model, X, backward=True, mode="train", optimizer=optimizer)
    model(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with fxflops.profile(model) as p:
        model(X).sum().backward()
        optimizer.step()
    assert p.report.total_optimizer_flops == counted.total_optimizer_flops
    assert not [
        each.call.op
        for each in p.report.counted
        if each.call.phase == "forward" and not each.call.path and each.call.op != "sum"
    ]


class RemovesGradients(InDict):
    """Removes the gradients, as optimizers do to free memory early."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for p in self.param_groups[0]["params"]:
            p.grad = None


class MarksGradients(InDict):
    """Marks the gradients, as private training does: no gradient may be used twice."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            if hasattr(p.grad, "used"):
                raise ValueError("call zero_grad() first")
        super().step()
        for p in self.param_groups[0]["params"]:
            p.grad.used = True


class UsesNotes(Own):
    """Steps only parameters with a note on them, and removes the note."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params)
        for p in self.param_groups[0]["params"]:
            p.fresh = True

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            if p.fresh:
                p.data.sub_(torch.zeros_like(p).mul_(0.9).add_(p.grad).mul(0.1))
            p.fresh = False


class Packed(torch.Tensor):
    """A wrapper, e.g. for quantized state, that no torch function can copy."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(parts["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        raise NotImplementedError(f"{func} of Packed")


class InWrapper(Own):
    def kept(self, p: torch.Tensor) -> torch.Tensor:
        if "m" not in self.state[p]:
            self.state[p]["m"] = Packed(torch.zeros_like(p))
        return self.state[p]["m"].inner  # type: ignore[no-any-return]


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("make", [RemovesGradients, MarksGradients, UsesNotes, InWrapper])
def test_a_step_that_uses_its_gradients_up_is_counted(make: Any, steps: int) -> None:
    model = model_of()
    optimizer = make(model.parameters())
    for _ in range(steps):
        model(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for p in model.parameters():
        p.fresh = True  # type: ignore[attr-defined]
    states = [
        {name: each.inner.clone() if isinstance(each, Packed) else each.clone() for name, each in state.items()}
        for state in optimizer.state.values()
    ]
    report = fxflops.count(model, X, backward=True, optimizer=optimizer)
    assert report.complete
    assert report.total_optimizer_flops == 4 * sum(p.numel() for p in model.parameters())
    assert all(p.grad is None and p.fresh for p in model.parameters())  # type: ignore[attr-defined]
    for state, before in zip(optimizer.state.values(), states, strict=True):
        for name, each in state.items():
            assert torch.equal(each.inner if isinstance(each, Packed) else each, before[name])


class Impossible(Own):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.times = getattr(self, "times", 0) + 1
        for p in self.param_groups[0]["params"]:
            p.data.add_(1)
        raise AssertionError("needs a closure")


def test_a_step_that_raises_says_what_to_do_and_changes_nothing() -> None:
    model = model_of()
    optimizer = Impossible(model.parameters())
    before = value_of(model.state_dict()), value_of(optimizer)
    with pytest.raises(
        fxflops.FxflopsError, match=r"needs a closure(.|\n)*fxflops.profile\(model, optimizer=optimizer\)"
    ):
        fxflops.count(model, X, backward=True, optimizer=optimizer)
    assert (value_of(model.state_dict()), value_of(optimizer)) == before


def test_the_closure_of_a_step_is_not_booked_as_the_optimizer() -> None:
    class Twice(Wrapper):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            closure = torch.enable_grad()(closure)
            closure()
            self.optimizer.step()

    model = model_of()
    optimizer = Twice(SGD(model.parameters(), lr=0.1))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(X) * 3).sum()
        loss.backward()
        return loss

    with fxflops.profile(model) as p:
        optimizer.step(closure)
    phases = {each.call.op: each.call.phase for each in p.report.counted if not each.call.path and each.flops}
    assert phases["sum"] == "forward"
    parameters = sum(p.numel() for p in model.parameters())
    assert p.report.total_optimizer_flops == 2 * parameters
    assert copy.deepcopy(optimizer.optimizer.state_dict())


def by_own_parameter(model: nn.Module, make: Callable[[Any], Optimizer]) -> None:
    """Step each parameter as soon as its gradient is there, as in torch's tutorial on memory."""
    optimizers = {p: make([p]) for p in model.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)


def by_closure(model: nn.Module, make: Callable[[Any], Optimizer]) -> None:
    """The same, with hooks that use only objects that they hold themselves."""

    def stepping(optimizer: Optimizer, p: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def step(_: torch.Tensor) -> None:
            optimizer.step()
            p.grad = None

        return step

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(stepping(make([p]), p))


def by_torch(model: nn.Module, make: Callable[[Any], Optimizer]) -> None:
    """Step in hooks of autograd's own nodes, which a function of torch installs."""
    _apply_optimizer_in_backward(make, model.parameters(), {})  # type: ignore[arg-type]


def by_the_last(model: nn.Module, make: Callable[[Any], Optimizer]) -> None:
    """Step all parameters at once, in a hook of the parameter that gets its gradient last."""
    optimizer = make(model.parameters())

    last = next(model.parameters())

    def step(p: torch.Tensor) -> None:
        if p is last:
            optimizer.step()
            optimizer.zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)


@pytest.mark.parametrize("begun", [0, 2], ids=["no state yet", "in the middle"])
@pytest.mark.parametrize("make", [functools.partial(SGD, lr=0.1, momentum=0.9), Adam, InDict, InList])
@pytest.mark.parametrize("install", [by_own_parameter, by_closure, by_torch, by_the_last])
def test_optimizers_that_hooks_step_in_the_backward_pass(install: Any, make: Any, begun: int) -> None:
    """A count and an analysis run such hooks, but must leave no trace in any optimizer's state: pytorch/tutorials#2568."""

    def losses(n: int, counted: bool) -> list[float]:
        model, out = model_of(), []
        install(model, make)
        for i in range(n):
            if counted and i == begun:
                x = X.clone()
                report = fxflops.count(model, x, backward=True)
                measured = fxflops.analyze(model, x, backward=True, repeats=1)
                assert report.total_optimizer_flops == measured.total_optimizer_flops
                assert report.total_optimizer_flops
            loss = model(X).square().mean()
            loss.backward()
            out.append(loss.item())
        return out

    assert losses(begun + 3, counted=True) == losses(begun + 3, counted=False)


def test_the_state_of_optimizers_that_hooks_step_is_in_the_memory() -> None:
    """Adam's two moments are as large as the parameters, and alive from the beginning."""
    model = model_of()
    by_closure(model, Adam)
    model(X).sum().backward()
    numbers = sum(p.numel() for p in model.parameters())
    report = fxflops.count(model, X, backward=True)
    steps = 4 * len([*model.parameters()])  # a step count for each parameter
    assert report.memory["optimizer"] == 2 * 4 * numbers + steps


class Replacing(Own):
    """Replaces its state by a new tensor in each step, as in a textbook implementation."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                before = self.state[p].get("m", torch.zeros_like(p.grad))
                momentum = 0.9 * before + 0.1 * p.grad
                p -= group["lr"] * momentum / (torch.sqrt(momentum * momentum) + 1e-8)
                self.state[p]["m"] = momentum


def test_state_that_a_step_replaces_is_freed_when_it_does() -> None:
    """The peak must equal the storages alive in the second of two real steps."""
    model, x = nn.Linear(256, 256), torch.randn(4, 256)
    counted = fxflops.count(model, x, backward=True, optimizer=Replacing)
    optimizer = Replacing(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    model.zero_grad()
    state = [each for kept in optimizer.state.values() for each in kept.values()]
    with Live([*model.parameters(), *state, x]) as live:
        del state
        y = model(x)
        y.sum().backward()
        optimizer.step()
    assert counted.max_memory == pytest.approx(live.peak, rel=0.01)

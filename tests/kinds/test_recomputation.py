"""A forward that runs again inside a backward pass is recomputation, whoever wrote the function that runs it again.

The expected MACs are written out by hand from the calls that each backward makes. A tally in the layers themselves shows how often
each layer really ran; it knows only whether autograd's engine is running.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fxflops

ROWS, WIDTH, DEPTH = 8, 16, 4
LAYER = ROWS * WIDTH * WIDTH
RAN: Counter[bool] = Counter()
"""How often a Block ran, by whether a backward pass was running."""


class Block(nn.Module):
    """A linear layer and a relu, which saves its result. So a backward pass must run the whole block again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RAN[torch._C._current_graph_task_id() != -1] += 1
        return F.relu(self.layer(x))


class Frozen(Block):
    """A block with a part that needs no gradients, like the computation of rotary embeddings."""

    @torch.no_grad()
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale(x)


class Offloaded(Function):
    """Like Unsloth's: the input waits on the CPU, and the layer runs again when its gradient is needed."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: torch.Tensor) -> torch.Tensor:
        saved = x.to("cpu", non_blocking=True)
        with torch.no_grad():
            out: torch.Tensor = run(x)
        ctx.save_for_backward(saved)
        ctx.run = run
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x = ctx.saved_tensors[0].to(grad.device, non_blocking=True).detach()
        x.requires_grad_(True)
        with torch.enable_grad():
            out = ctx.run(x)
        torch.autograd.backward(out, grad)
        return None, x.grad


class Rerun(Function):
    """Like DeepSpeed's and Megatron's: restores the random state, and passes several outputs back together."""

    @staticmethod
    def forward(ctx: Any, run: Any, *given: torch.Tensor) -> Any:
        ctx.run, ctx.random = run, torch.get_rng_state()
        ctx.save_for_backward(*given)
        with torch.no_grad():
            return run(*given), run(*given) * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        given = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        random = torch.get_rng_state()
        torch.set_rng_state(ctx.random)
        with torch.enable_grad():
            out = ctx.run(*given)
        torch.set_rng_state(random)
        torch.autograd.backward([out], [grads[0] + 2 * grads[1]])
        return None, *(x.grad for x in given)


class Reversible(Function):
    """A reversible block: y1 = x1 + f(x2), y2 = x2 + g(y1). Its inputs are computed from its outputs."""

    @staticmethod
    def forward(ctx: Any, f: Block, g: Block, x: torch.Tensor) -> torch.Tensor:
        ctx.f, ctx.g = f, g
        with torch.no_grad():
            x1, x2 = x.chunk(2, -1)
            y1 = x1 + f(x2)
            y2 = x2 + g(y1)
        out = torch.cat([y1, y2], -1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        y1, y2 = (part.detach().requires_grad_(True) for part in ctx.saved_tensors[0].chunk(2, -1))
        d1, d2 = grad.chunk(2, -1)
        with torch.enable_grad():
            again = ctx.g(y1)
            again.backward(d2)
        with torch.no_grad():
            x2 = (y2 - again).requires_grad_(True)
            d1 = d1 + y1.grad
        with torch.enable_grad():
            again = ctx.f(x2)
            again.backward(d1)
        with torch.no_grad():
            return None, None, torch.cat([d1, d2 + x2.grad], -1)


class Adjoint(Function):
    """Like torchdiffeq's: the backward pass solves another equation, in steps that evaluate the layer and its derivative."""

    STEPS = 3

    @staticmethod
    def forward(ctx: Any, layer: Block, x: torch.Tensor, *params: torch.Tensor) -> torch.Tensor:
        ctx.layer, ctx.params = layer, params
        with torch.no_grad():
            for _ in range(Adjoint.STEPS):
                x = x + layer(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, of_params = ctx.saved_tensors[0], [torch.zeros_like(each) for each in ctx.params]
        with torch.no_grad():
            for _ in range(Adjoint.STEPS):
                with torch.enable_grad():
                    at = x.detach().requires_grad_(True)
                    step = ctx.layer(at)
                back, *others = torch.autograd.grad(step, (at, *ctx.params), grad)
                grad, x = grad + back, x - step
                of_params = [a + b for a, b in zip(of_params, others, strict=True)]
        return None, grad, *of_params


class Net(nn.Module):
    """Blocks one after the other, each run by ``way(block, x)``."""

    def __init__(self, way: Callable[[Any, torch.Tensor], torch.Tensor], kind: type[nn.Module] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([kind() for _ in range(DEPTH)])
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.way(block, x)
        return x


def plain(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Run the block's arithmetic without calling the block."""
    return F.relu(F.linear(x, block.layer.weight))


def in_pairs(x: torch.Tensor, net: Net) -> torch.Tensor:
    for i in range(0, DEPTH, 2):
        first, second = net.blocks[i], net.blocks[i + 1]

        def pair(x: torch.Tensor, first: Any = first, second: Any = second) -> torch.Tensor:
            return checkpoint(second, checkpoint(first, x, use_reentrant=False), use_reentrant=False)  # type: ignore[no-any-return]

        x = checkpoint(pair, x, use_reentrant=False)
    return x


class Nested(Net):
    def __init__(self) -> None:
        super().__init__(lambda block, x: block(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return in_pairs(x, self)


class RevNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x, x], -1)
        for i in range(0, DEPTH, 2):
            x = Reversible.apply(self.blocks[i], self.blocks[i + 1], x)
        return x


def counted(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    return fxflops.count(model, x.clone().requires_grad_(True), backward=True)


def profiled(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    model.zero_grad()
    with fxflops.profile(model) as p:
        model(x.clone().requires_grad_(True)).sum().backward()
    model.zero_grad()
    return p.report


def analyzed(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    return fxflops.analyze(model, x.clone().requires_grad_(True), backward=True, repeats=0, progress=False)


RUNS = [counted, profiled, analyzed]
Run = Callable[[nn.Module, torch.Tensor], fxflops.Report]


def macs(report: fxflops.Report, phase: str) -> dict[str, int]:
    """Return the MACs of a phase by module, without modules that have none."""
    found: Counter[str] = Counter()
    for each in report.counted:
        found[each.call.path] += each.macs if each.call.phase == phase else 0
    return {path: number for path, number in found.items() if number}


LAYERS = [f"blocks.{i}.layer" for i in range(DEPTH)]
CASES: dict[str, Callable[[], nn.Module]] = {
    "not checkpointed": lambda: Net(lambda block, x: block(x)),
    "offloaded": lambda: Net(Offloaded.apply),
    "offloaded, of Sequential": lambda: Net(lambda block, x: Offloaded.apply(nn.Sequential(block), x)),
    "torch's, reentrant": lambda: Net(lambda block, x: checkpoint(block, x, use_reentrant=True)),
    "torch's": lambda: Net(lambda block, x: checkpoint(block, x, use_reentrant=False)),
    "nested": Nested,
    "reversible": RevNet,
    "adjoint": lambda: Net(lambda block, x: Adjoint.apply(block, x, *block.parameters())),
    "two outputs": lambda: Net(lambda block, x: sum(Rerun.apply(block, x))),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("case", CASES)
def test_each_layer_is_recomputed_as_often_as_it_ran_in_the_backward(case: str, run: Run) -> None:
    torch.manual_seed(0)
    model, x = CASES[case](), torch.randn(ROWS, WIDTH)
    RAN.clear()
    model(x.clone().requires_grad_(True)).sum().backward()
    forward, again = RAN[False], RAN[True]
    assert (again > 0) == (case != "not checkpointed")

    report = run(model, x)
    assert report.total_macs == forward * LAYER
    assert macs(report, "forward") == dict.fromkeys(LAYERS, forward * LAYER // DEPTH)
    assert sum(macs(report, "recompute").values()) == again * LAYER
    if case != "nested":  # there the first block of a pair runs more often than the second
        assert macs(report, "recompute") == (dict.fromkeys(LAYERS, again * LAYER // DEPTH) if again else {})
    # Each differentiated evaluation has the gradients of its input and of its weight.
    times = Adjoint.STEPS if case == "adjoint" else 1
    assert macs(report, "backward") == dict.fromkeys(LAYERS, times * 2 * LAYER)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("function", [Offloaded.apply, lambda run, x: checkpoint(run, x, use_reentrant=False)])
def test_a_function_without_modules(function: Any, run: Run) -> None:
    model = Net(lambda block, x: function(lambda x: plain(block, x), x))
    report = run(model, torch.randn(ROWS, WIDTH))
    assert macs(report, "forward") == {"": DEPTH * LAYER}
    assert macs(report, "recompute") == {"": DEPTH * LAYER}
    assert macs(report, "backward") == {"": DEPTH * 2 * LAYER}


class Method(Block):
    """A module that runs its own arithmetic again, without calling a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Offloaded.apply(lambda x: plain(self, x), x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("run", RUNS)
def test_a_function_that_runs_again_belongs_to_the_module_that_ran_it_first(run: Run) -> None:
    report = run(Net(lambda block, x: block(x), Method), torch.randn(ROWS, WIDTH))
    blocks = [f"blocks.{i}" for i in range(DEPTH)]
    assert macs(report, "forward") == macs(report, "recompute") == dict.fromkeys(blocks, LAYER)
    assert macs(report, "backward") == dict.fromkeys(blocks, 2 * LAYER)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("function", [Offloaded.apply, lambda run, x: checkpoint(run, x, use_reentrant=False)])
def test_a_part_that_disables_gradients_is_run_again_with_its_module(function: Any, run: Run) -> None:
    report = run(Net(lambda block, x: function(block, x), Frozen), torch.randn(ROWS, WIDTH))
    blocks = [f"blocks.{i}" for i in range(DEPTH)]
    once = dict.fromkeys([*LAYERS, *blocks], LAYER)
    assert macs(report, "forward") == macs(report, "recompute") == once
    assert macs(report, "backward") == dict.fromkeys(LAYERS, 2 * LAYER)


# Computations that must not be booked as recomputation


def penalized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the loss of a Wasserstein GAN's critic, which includes the norm of its gradient."""
    x = x.clone().requires_grad_(True)
    out = model(x)
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out.mean() + ((gradient.norm(2, dim=1) - 1) ** 2).mean()


def hessian_vector(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    params = [*model.parameters()]
    first = torch.autograd.grad(model(x).square().sum(), params, create_graph=True)
    return torch.stack([(each * each.detach()).sum() for each in first]).sum()


def differentiated_twice(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model(x).square().sum().backward(create_graph=True)
    return torch.stack([p.grad.square().sum() for p in model.parameters()]).sum()  # type: ignore[union-attr]


class Scaled(Function):
    """A function whose backward is Python code that can itself be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


LOSSES = [penalized, hessian_vector, differentiated_twice]


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "way", [lambda block, x: block(x), lambda block, x: torch.tanh(Scaled.apply(x, block.layer.weight))]
)
def test_the_gradient_of_a_gradient_is_no_recomputation(loss: Any, way: Any) -> None:
    model = Net(way)
    with fxflops.profile(model) as p:
        loss(model, torch.randn(ROWS, WIDTH)).backward()
    model.zero_grad(set_to_none=True)
    assert p.report.total_macs == DEPTH * LAYER
    assert p.report.total_recompute_flops == 0


@pytest.mark.parametrize("loss", LOSSES[:2])
def test_a_checkpoint_under_the_gradient_of_a_gradient_recomputes(loss: Any) -> None:
    model = Net(lambda block, x: checkpoint(block, x, use_reentrant=False))
    RAN.clear()
    with fxflops.profile(model) as p:
        loss(model, torch.randn(ROWS, WIDTH)).backward()
    assert RAN[True] >= DEPTH
    assert sum(macs(p.report, "recompute").values()) == RAN[True] * LAYER
    assert set(macs(p.report, "recompute")) == set(LAYERS)


class Forces(nn.Module):
    """A potential whose forward returns its forces, i.e. its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            return torch.autograd.grad(self.block(x).sum(), x, create_graph=True)[0]


def test_a_gradient_in_a_forward_is_recomputed_with_the_forward_that_takes_it() -> None:
    model, x = Forces(), torch.randn(ROWS, WIDTH, requires_grad=True)
    once = fxflops.count(model, x, backward=True)
    assert once.total_recompute_flops == 0
    assert macs(once, "gradient") == {"": LAYER}  # the model itself computes it
    again = fxflops.count(Net(Offloaded.apply, Forces), x, backward=True)
    assert sum(macs(again, "recompute").values()) == DEPTH * 2 * LAYER


class OfGradient(Function):
    """Passes its gradient to a module in backward. Nothing is differentiated there: synthetic gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.module(grad), None


@pytest.mark.parametrize("run", RUNS[:2])
def test_a_module_that_is_given_a_gradient_computes_a_gradient(run: Run) -> None:
    report = run(Net(lambda block, x: OfGradient.apply(x, block) * 1), torch.randn(ROWS, WIDTH))
    assert report.total_macs == report.total_recompute_flops == 0
    assert macs(report, "backward") == dict.fromkeys(LAYERS, LAYER)


# Libraries


@contextmanager
def tallied() -> Iterator[Counter[str]]:
    """Tally the MACs of products, by whether the engine is running and whether gradients are enabled."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found: Counter[str] = Counter()

    class Tally(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func._schema.name.removeprefix("aten::")
            if name in ("mm", "bmm", "addmm", "baddbmm"):
                left = args[1] if name in ("addmm", "baddbmm") else args[0]
                enabled = torch.is_grad_enabled()
                in_backward = torch._C._current_graph_task_id() != -1
                phase = "recompute" if in_backward and enabled else "backward" if in_backward else "forward"
                found[phase] += out.numel() * left.shape[-1]
            return out

    with Tally():
        yield found


def test_reformers_reversible_layers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ReformerConfig(
        attn_layers=["local", "local"],
        hidden_size=32,
        num_attention_heads=2,
        attention_head_size=16,
        feed_forward_size=64,
        axial_pos_embds=False,
        max_position_embeddings=64,
        local_attn_chunk_length=16,
        vocab_size=50,
        hidden_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
    )
    model, ids = transformers.ReformerModel(config).train(), torch.randint(0, 50, (2, 32))
    model(ids).last_hidden_state.sum().backward()
    with tallied() as expected:
        model(ids).last_hidden_state.sum().backward()
    assert 0 < expected["recompute"] <= expected["forward"]
    model.zero_grad()
    with fxflops.profile(model) as p:
        model(ids).last_hidden_state.sum().backward()
    for report in (p.report, fxflops.count(model, kwargs={"input_ids": ids}, mode="train", backward=True)):
        assert report.complete
        assert {phase: sum(macs(report, phase).values()) for phase in expected} == expected
        forward, again = macs(report, "forward"), macs(report, "recompute")
        assert forward == again  # every product of the model is in a reversible layer


def test_a_trace_of_a_foreign_checkpoint(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    model, x = Net(Offloaded.apply), torch.randn(ROWS, WIDTH)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        model(x.clone().requires_grad_(True)).sum().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    report = fxflops.read_trace(path)
    totals = {phase: sum(macs(report, phase).values()) for phase in ("forward", "recompute", "backward")}
    assert totals == {"forward": DEPTH * LAYER, "recompute": DEPTH * LAYER, "backward": 2 * DEPTH * LAYER}

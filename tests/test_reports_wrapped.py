"""Reports of work behind a wrapper: checkpoints, compiled and scripted parts, transforms, parametrizations, higher-order ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.test_reports import Case, check, every_way, f, of, quietly

b, i, o, r, t = 3, 5, 7, 2, 11  # batch, widths in and out, rank, tokens


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grads[0] @ weight.mT, x.mT @ grads[0]


class ProductWithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grads[0] @ weight.mT, x.mT @ grads[0]


def jacobian(strategy: str = "reverse-mode") -> Any:
    return lambda m, x: torch.autograd.functional.jacobian(m.l, x, vectorize=True, strategy=strategy)


class Halved(nn.Module):
    """A parametrization that only halves."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


class LowRank(nn.Module):
    """W + B A: the merged weight of LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(f(r, i)), nn.Parameter(f(o, r))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.b @ self.a


def parametrized(parametrization: nn.Module) -> nn.Module:
    linear = nn.Linear(i, o)
    parametrize.register_parametrization(linear, "weight", parametrization)
    return linear


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, given, out: F.relu(out))
    return module


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight)


def gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.relu(torch.mm(x, weight))
    return x


def ensemble(m: Any, x: torch.Tensor) -> torch.Tensor:
    def one(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(m.linear, {"weight": weight, "bias": bias}, (x,))

    return torch.vmap(one, in_dims=(0, 0, None))(m.weights, m.biases, x)


def gradient(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda x: (x @ m.w).sum())(x)


def tangent(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jvp(lambda x: x @ m.w, (x,), (torch.ones_like(x),))[1]


def dual(m: Any, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(m.l(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def branch(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x @ m.w, lambda x: x @ m.w @ m.v @ m.w, (x,))


def trips(m: Any, x: torch.Tensor) -> torch.Tensor:
    step = torch.zeros((), dtype=torch.int64)
    return torch._higher_order_ops.while_loop(lambda s, x: s < 4, lambda s, x: (s + 1, x @ m.w), (step, x))[1]


def scanned(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch._higher_order_ops.scan(lambda carry, row: ((y := carry @ m.w + row), y.clone()), m.start, x)[0]


def force(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        return torch.autograd.grad((x @ m.w).sum(), x)[0]


def under_autocast(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return m.linear(x)


LINEAR = b * i * o
# Their values are read, or their scripted part cannot be copied there.
NOT_ON_META = ("meta",)

VERSION = [int(number) for number in torch.__version__.split(".")[:2]]
OLD = ["scan"] * (VERSION <= [2, 11]) + ["map"] * (VERSION <= [2, 10])
"""Cases that an older torch computes differently: its scan calls the function once more to find shapes."""
NOT_IN_INFERENCE = ("inference",) if VERSION <= [2, 11] else ()
"""An older torch.func has no gradients in inference mode."""

CASES = [
    # DeepSpeed PR#3362: a checkpointed block runs once in the forward.
    Case(
        "checkpointed",
        of(lambda m, x: checkpoint(m.l, x, use_reentrant=False), l=nn.Linear(i, o)),
        f(b, i),
        macs=LINEAR,
    ),
    Case(
        "checkpointed-reentrant",
        of(lambda m, x: checkpoint(m.l, x, use_reentrant=True), l=nn.Linear(i, o)),
        f(b, i),
        macs=LINEAR,
    ),
    Case(
        "checkpointed-in-parts",
        of(
            lambda m, x: checkpoint_sequential(m.l, 2, x, use_reentrant=False),
            l=nn.Sequential(*(nn.Linear(i, i) for _ in range(3))),
        ),
        f(b, i),
        macs=3 * b * i * i,
    ),
    # mamba#110: an autograd.Function counts as what it does inside.
    Case("autograd-function", of(lambda m, x: Product.apply(x, m.w), w=f(i, o)), f(b, i), macs=LINEAR),
    Case(
        "autograd-function-with-setup", of(lambda m, x: ProductWithSetup.apply(x, m.w), w=f(i, o)), f(b, i), macs=LINEAR
    ),
    # ptflops#110, pytorch#128199, #124196, fvcore#150: a compiled part counts as it is written.
    Case(
        "compiled-submodule",
        nn.Sequential(torch.compile(nn.Linear(i, o)), nn.ReLU(), nn.Linear(o, i)),
        f(b, i),
        macs=2 * LINEAR,
    ),
    Case("compiled-function", of(lambda m, x: torch.compile(product)(x, m.w), w=f(i, o)), f(b, i), macs=LINEAR),
    Case(
        "scripted-function",
        of(lambda m, x: m.call(x, m.w), w=f(i, i), call=quietly(torch.jit.script, gated)),
        f(b, i),
        macs=3 * b * i * i,
        without=NOT_ON_META,
    ),
    Case(
        "scripted-submodule",
        nn.Sequential(quietly(torch.jit.script, nn.Linear(i, o)), nn.Linear(o, i)),
        f(b, i),
        macs=2 * LINEAR,
        without=NOT_ON_META,
    ),
    Case(
        "scripted-model",
        quietly(torch.jit.script, nn.Sequential(nn.Linear(i, o), nn.Linear(o, i))),
        f(b, i),
        macs=2 * LINEAR,
        without=("compiled", "meta"),
    ),
    Case(
        "traced-submodule",
        nn.Sequential(quietly(torch.jit.trace, nn.Linear(i, o), f(b, i))),
        f(b, i),
        macs=LINEAR,
        without=NOT_ON_META,
    ),
    # torch.func: every sample, and every member of an ensemble of 4, is its own product.
    Case("vmap", of(lambda m, x: torch.vmap(lambda row: m.w @ row)(x), w=f(o, i)), f(b, i), macs=LINEAR),
    Case("vmap-of-a-module", of(lambda m, x: torch.vmap(m.l)(x), l=nn.Linear(i, o)), f(b, t, i), macs=t * LINEAR),
    Case("vmap-of-both", of(lambda m, x, y: torch.vmap(torch.matmul)(x, y)), (f(b, t, i), f(b, i, o)), macs=t * LINEAR),
    Case(
        "vmap-twice",
        of(lambda m, x, y: torch.vmap(torch.vmap(torch.dot, (None, 0)), (0, None))(x, y)),
        (f(b, i), f(o, i)),
        macs=LINEAR,
    ),
    Case(
        "ensemble", of(ensemble, linear=nn.Linear(i, o), weights=f(4, o, i), biases=f(4, o)), f(b, i), macs=4 * LINEAR
    ),
    Case(
        "functional-call",
        of(lambda m, x: torch.func.functional_call(m.l, {"weight": m.w}, (x,)), l=nn.Linear(i, o), w=f(o, i)),
        f(b, i),
        macs=LINEAR,
    ),
    # The forward's product, and the gradient by x: [b, o] @ [o, i].
    Case("func-grad", of(gradient, w=f(i, o)), f(b, i), macs=2 * LINEAR, without=NOT_IN_INFERENCE),
    # The value, the input's tangent, and the weight's tangent, which torch multiplies although it is all zeros.
    Case("func-jvp", of(tangent, w=f(i, o)), f(b, i), macs=3 * LINEAR, without=NOT_IN_INFERENCE),
    # Forward-mode AD without functorch: the value, the input's tangent, and the weight's tangent, which is all zeros.
    Case("forward-ad", of(dual, l=nn.Linear(i, o)), f(b, i), macs=3 * LINEAR, without=("inference",)),
    # pytorch#69782: a force field is the gradient of an energy, within the forward: x w, and [b, o] @ [o, i].
    Case("autograd-grad", of(force, w=f(i, o)), f(b, i), macs=2 * LINEAR, without=("inference",)),
    # Autograd's own vmap: the value, and one product by the weight per output. In forward mode: one per input, and one by the
    # weight's tangent. In inference mode torch's jacobian is all zeros.
    Case("jacobian", of(jacobian(), l=nn.Linear(i, o)), f(b, i), macs=LINEAR * (1 + b * o), without=("inference",)),
    Case(
        "jacobian-forward",
        of(jacobian("forward-mode"), l=nn.Linear(i, o)),
        f(b, i),
        macs=LINEAR * (1 + b * i + 1),
        without=("inference",),
    ),
    # calflops#30, ptflops#103: a parametrized weight is recomputed at each call, and computing it is work too.
    Case("parametrized", parametrized(Halved()), f(b, i), macs=LINEAR, flops=2 * LINEAR + i * o),
    Case("lora-merged", parametrized(LowRank()), f(b, i), macs=LINEAR + o * r * i),
    Case("weight-norm", parametrizations.weight_norm(nn.Linear(i, o)), f(b, i), macs=LINEAR),
    Case(
        "weight-norm-conv", parametrizations.weight_norm(nn.Conv1d(i, o, 3)), f(b, i, t), macs=b * o * (t - 2) * i * 3
    ),
    Case(
        "weight-norm-by-hooks",
        quietly(nn.utils.weight_norm, nn.Linear(i, o)),
        f(b, i),
        macs=LINEAR,
        without=NOT_ON_META,
    ),
    # u' W v: o*i products for W v, o for the dot. Training first does one power iteration step, W v and W' u.
    Case(
        "spectral-norm",
        parametrizations.spectral_norm(nn.Linear(i, o)),
        f(b, i),
        macs=LINEAR + o * i + o,
        without=("train",),
    ),
    # pytorch#134385: higher-order ops count what ran: one branch, four trips, every query with every key.
    Case("cond", of(branch, w=f(i, i), v=f(i, i)), torch.ones(b, i), macs=b * i * i, without=NOT_ON_META),
    Case("while-loop", of(trips, w=f(i, i)), f(b, i), macs=4 * b * i * i, without=NOT_ON_META),
    Case("scan", of(scanned, w=f(i, i), start=f(1, i)), f(t, 1, i), macs=t * i * i),
    Case(
        "map",
        of(lambda m, x: torch._higher_order_ops.map(lambda row: row @ m.w, x), w=f(i, o)),
        f(t, b, i),
        macs=t * LINEAR,
    ),
    Case(
        "flex-attention",
        of(lambda m, q, k, v: flex_attention(q, k, v)),
        (f(2, 3, 5, 16), f(2, 3, 7, 16), f(2, 3, 7, 16)),
        macs=2 * 3 * 5 * 7 * (16 + 16),
        without=NOT_ON_META,
    ),
    # A lower precision is the same work.
    Case("autocast", of(under_autocast, linear=nn.Linear(i, o)), f(b, i), macs=LINEAR),
    Case("half", nn.Linear(i, o, dtype=torch.bfloat16), f(b, i).bfloat16(), macs=LINEAR, flops=2 * LINEAR),
    # A user's hook is run and counted: a ReLU of each output.
    Case("hooked", hooked(nn.Linear(i, o)), f(b, i), macs=LINEAR, flops=2 * LINEAR + b * o),
]


CASES = [case for case in CASES if case.id not in OLD]


@pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile",
    "ignore:None of the inputs have requires",
    "ignore:.*torch.jit.script",
)
@every_way(CASES)
def test_wrapped(case: Case, way: str) -> None:
    check(case, way)

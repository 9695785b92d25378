"""convention="torch": the total is that of FlopCounterMode itself, run on the same meta tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pool import POOL, built
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from fxflops import analyze, count
from fxflops.trace.tape import roots_of


def f(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="meta")


def half(*shape: int) -> torch.Tensor:
    return f(*shape).bfloat16()


CASES: dict[str, Callable[[], Any]] = {
    "mv": lambda: f(3, 4).mv(f(4)),
    "dot": lambda: f(4).dot(f(4)),
    "matrix @ vector": lambda: f(3, 4) @ f(4),
    "vector @ matrix": lambda: f(4) @ f(4, 5),
    "batch @ vector": lambda: f(2, 3, 4) @ f(4),
    "outer": lambda: torch.outer(f(3), f(4)),
    "addmv": lambda: torch.addmv(f(3), f(3, 4), f(4)),
    "addr": lambda: torch.addr(f(3, 4), f(3), f(4)),
    "addbmm": lambda: torch.addbmm(f(3, 5), f(2, 3, 4), f(2, 4, 5)),
    "baddbmm": lambda: torch.baddbmm(f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
    "inner": lambda: torch.inner(f(3, 4), f(5, 4)),
    "vecdot": lambda: torch.linalg.vecdot(f(3, 4), f(3, 4)),
    "kron": lambda: torch.kron(f(3, 4), f(5, 4)),
    "tensordot": lambda: torch.tensordot(f(3, 4), f(4, 5), dims=1),
    "bilinear": lambda: F.bilinear(f(3, 4), f(3, 5), f(6, 4, 5)),
    "multi_dot": lambda: torch.linalg.multi_dot([f(3, 4), f(4, 5), f(5, 6)]),
    "cdist": lambda: torch.cdist(f(30, 4), f(50, 4)),
    "einsum outer": lambda: torch.einsum("i,j->ij", f(3), f(4)),
    "einsum product": lambda: torch.einsum("ij,ij->ij", f(3, 4), f(3, 4)),
    "einsum dot": lambda: torch.einsum("i,i->", f(4), f(4)),
    "einsum three": lambda: torch.einsum("ij,jk,kl->il", f(3, 4), f(4, 5), f(5, 6)),
    "einsum rows": lambda: torch.einsum("ij,ij->i", f(3, 4), f(3, 4)),
    "linear of a vector": lambda: F.linear(f(4), f(5, 4), f(5)),
    "linear": lambda: F.linear(f(2, 3, 4), f(5, 4), f(5)),
    "lstm": lambda: nn.LSTM(4, 5, device="meta")(f(6, 2, 4)),
    "gru": lambda: nn.GRU(4, 5, device="meta")(f(6, 2, 4)),
    "attention": lambda: F.scaled_dot_product_attention(f(1, 2, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4)),
    "grouped queries": lambda: F.scaled_dot_product_attention(
        f(1, 4, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4), enable_gqa=True
    ),
    "multihead": lambda: nn.MultiheadAttention(4, 2, device="meta")(f(3, 1, 4), f(3, 1, 4), f(3, 1, 4)),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 3, device="meta")(f(1, 3, 5, 5)),
    "grouped": lambda: nn.Conv2d(4, 8, 3, groups=2, device="meta")(f(1, 4, 5, 5)),
    "integers": lambda: f(3, 4).long() @ f(4, 5).long(),
    "complex": lambda: f(3, 4).cfloat() @ f(4, 5).cfloat(),
    "complex linear": lambda: F.linear(f(2, 3, 4).cfloat(), f(5, 4).cfloat(), f(5).cfloat()),
    "complex einsum": lambda: torch.einsum("ij,jk->ik", f(3, 4).cfloat(), f(4, 5).cfloat()),
    "complex lstm": lambda: nn.LSTM(4, 5, device="meta", dtype=torch.complex64)(f(6, 2, 4).cfloat()),
    "complex grouped": lambda: F.conv2d(f(1, 4, 5, 5).cfloat(), f(8, 2, 3, 3).cfloat(), f(8).cfloat(), groups=2),
    "complex transposed": lambda: F.conv_transpose2d(f(1, 3, 5, 5).cfloat(), f(3, 4, 3, 3).cfloat()),
    "pointwise": lambda: F.softmax(F.layer_norm(F.relu(f(3, 4)) + 1, (4,)), -1).sum(),
}


class Runs(nn.Module):
    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run()


class Attends(nn.Module):
    def __init__(self, attention: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.attention(q, k, v)


@pytest.mark.parametrize("name", CASES)
def test_the_total_is_flop_counter_modes(name: str) -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        CASES[name]()
    report = count(Runs(CASES[name]), f(1), convention="torch", strict=True)
    assert report.total_flops == counter.get_total_flops()
    assert report.total_int_ops == 0
    assert report.total_macs == report.recount("fxflops").total_macs


ON_META = [name for name in POOL if name not in ("ssdlite", "faster r-cnn")]  # those two need values
TRAINED = [*ON_META[::2], *ON_META[1:5:2]]


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_step_is_flop_counter_modes(name: str) -> None:
    """Forward and backward, the weights' gradients of grouped convolutions ``groups`` times as often as they are there."""
    model, args, kwargs = tree_map(lambda v: v.to("meta") if hasattr(v, "to") else v, built(name))
    report = count(model, args, kwargs, backward=True, convention="torch")
    assert report.complete
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(*roots_of(model(*args, **kwargs)))
    assert report.total_training_flops == counter.get_total_flops()
    grouped = any(isinstance(m, nn.modules.conv._ConvNd) and m.groups > 1 for m in model.modules())
    # What is right is less exactly where there are groups.
    training_macs = report.total_macs + (report.total_backward_macs or 0)
    assert (2 * training_macs < counter.get_total_flops()) == grouped
    assert grouped or 2 * training_macs == counter.get_total_flops()
    assert len(TRAINED) == 30
    of_modules = sum(row.own.flops for row in report.by_module("backward").values())
    assert of_modules == report.recount("torch").by_module("backward")[""].total.flops == report.total_backward_flops


def test_a_training_step_of_complex_numbers() -> None:
    conv, linear = nn.Conv2d(2, 4, 3, dtype=torch.complex64), nn.Linear(4 * 3 * 3, 5, dtype=torch.complex64)
    model, x = nn.Sequential(conv, nn.Flatten(), linear), torch.randn(1, 2, 5, 5, dtype=torch.complex64)
    report = count(model, x, backward=True, convention="torch")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(*roots_of(model(x)))
    assert report.total_training_flops == counter.get_total_flops()
    assert report.total_macs == 4 * (4 * 3 * 3) * (2 * 3 * 3 + 5)


@pytest.mark.skipif(
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward not in flop_registry,
    reason="this version's FlopCounterMode does not know the CPU's kernel of attention",
)
@pytest.mark.parametrize("kwargs", [{}, {"is_causal": True}, {"attn_mask": torch.zeros(6, 9)}], ids=str)
@pytest.mark.parametrize("run", [count, analyze])
def test_a_fused_kernel_computes_the_scores_of_attention_again(run: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, **kwargs)

    q, k, v = (torch.randn(2, 3, n, 16, requires_grad=True) for n in (6, 9, 9))
    with FlopCounterMode(display=False) as counter:
        attention(q, k, v).sum().backward()
    report = run(Attends(attention), (q, k, v), backward=True, convention="torch")
    assert report.total_training_flops == counter.get_total_flops()
    assert report.total_backward_macs == 4 * (2 * 3 * 6 * 9 * 16)


def test_every_backward_call_has_an_owner() -> None:
    for name in ("resnet18", "vit", "gpt2", "bidirectional lstm"):
        model, args, kwargs = built(name)
        report = analyze(model, args, kwargs, backward=True, repeats=0, progress=False)
        nodes = {node.name for node in report.nodes}
        back = [each for each in report.counted if each.call.phase == "backward"]
        assert all(each.call.node in nodes for each in back if each.flops), name
        assert report.total_backward_flops == sum(each.flops for each in back)

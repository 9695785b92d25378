"""convention="torch": the same total as FlopCounterMode, run on the same meta tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from fxflops import analyze, closed_form, count, profile
from fxflops.errors import FormulaError
from fxflops.trace.autograd_owners import roots_of
from tests.conventions.pool import POOL, built


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
    "vectors' inner": lambda: torch.inner(f(4), f(4)),
    "inner with a vector": lambda: torch.inner(f(3, 4), f(4)),
    "reflected": lambda: f(4, 5).__rmatmul__(f(3, 4)),
    "linear by a vector": lambda: F.linear(f(2, 3, 4), f(4)),
    "addmm in place": lambda: f(3, 5).addmm_(f(3, 4), f(4, 5)),
    "baddbmm in place": lambda: f(2, 3, 5).baddbmm_(f(2, 3, 4), f(2, 4, 5)),
    "addmm and activation": lambda: torch._addmm_activation(f(5), f(3, 4), f(4, 5)),
    "matrix_power": lambda: torch.linalg.matrix_power(f(2, 4, 4), 5),
    "matrix_exp": lambda: torch.matrix_exp(f(2, 4, 4)),
    "pinv": lambda: torch.linalg.pinv(f(4, 3)),
    "solve": lambda: torch.linalg.solve(f(4, 4), f(4, 2)),
    "householder": lambda: torch.linalg.householder_product(f(5, 3), f(3)),
    "affine_grid": lambda: F.affine_grid(f(2, 2, 3), [2, 3, 4, 5], align_corners=False),
    "conv_tbc": lambda: torch.conv_tbc(f(6, 2, 4), f(3, 4, 8), f(8)),
    "int8 weights": lambda: torch._weight_int8pack_mm(half(3, 32), f(16, 32).to(torch.int8), half(16)),
    "int8 products": lambda: torch._int_mm(f(32, 16).to(torch.int8), f(16, 32).to(torch.int8)),
    "decoder layer": lambda: nn.TransformerDecoderLayer(8, 2, 16, device="meta")(f(3, 2, 8), f(4, 2, 8)),
    "projected lstm": lambda: nn.LSTM(4, 5, 2, proj_size=3, bidirectional=True, device="meta")(f(6, 2, 4)),
    "cells": lambda: [cell(4, 5, device="meta")(f(2, 4)) for cell in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)],
    "pointwise": lambda: F.softmax(F.layer_norm(F.relu(f(3, 4)) + 1, (4,)), -1).sum(),
}


ALL_SUMMED = {
    "tensordot": lambda: torch.tensordot(f(3, 4), f(3, 4), dims=2),
    "row by column": lambda: torch.tensordot(f(1, 4), f(4, 1), dims=1),
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


@pytest.mark.parametrize("name", ALL_SUMMED)
def test_a_tensordot_of_all_dims_is_a_dot(name: str) -> None:
    with FlopCounterMode(display=False) as counter:
        ALL_SUMMED[name]()
    if counter.get_total_flops():
        pytest.skip("this version of torch has a matrix product for it")
    assert count(Runs(ALL_SUMMED[name]), f(1), convention="torch").total_flops == 0


SPARSE = {
    "sparse.mm": lambda: torch.sparse.mm(torch.eye(3, 4).to_sparse(), torch.ones(4, 5)),
    "sparse.addmm": lambda: torch.sparse.addmm(torch.ones(3, 5), torch.eye(3, 4).to_sparse(), torch.ones(4, 5)),
    "csr": lambda: torch.eye(3, 4).to_sparse_csr() @ torch.ones(4, 5),
    "covariance": lambda: torch.cov(torch.randn(3, 10)),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_the_total_of_real_tensors_is_flop_counter_modes(name: str) -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        SPARSE[name]()
    with profile(convention="torch") as p:
        SPARSE[name]()
    assert p.report.total_flops == counter.get_total_flops()


@pytest.fixture
def registered() -> Iterator[None]:
    """Formulas registered with torch for a user's operator, and for three torch operators that have none."""
    library = torch.library.Library("fxflops_registered", "DEF")
    library.define("scan(Tensor x, int k) -> Tensor")
    library.impl("scan", lambda x, k: x * k, "CompositeExplicitAutograd")
    before = dict(flop_registry)
    register_flop_formula(torch.ops.fxflops_registered.scan)(scanned)
    register_flop_formula([torch.ops.aten.gelu, torch.ops.aten._softmax, torch.ops.aten.add])(seven_each)
    yield
    flop_registry.clear()
    flop_registry.update(before)
    library._destroy()


def scanned(x_shape: torch.Size, k: int, *, out_shape: Any = None) -> int:
    return k * x_shape.numel()


def seven_each(x_shape: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return 7 * out_shape.numel()


class Registered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gelu = nn.Linear(4, 6), nn.GELU(approximate="tanh")

    def forward(self, x: torch.Tensor) -> Any:
        y = self.gelu(self.linear(x)).softmax(-1)
        return torch.ops.fxflops_registered.scan(y, 3) + F.gelu(y)


def test_a_formula_that_is_registered_with_torch_counts(registered: None) -> None:
    model, x = Registered(), torch.randn(3, 4)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    report = count(model, x, convention="torch")
    assert report.complete
    assert report.total_flops == counter.get_total_flops() == 2 * 3 * 4 * 6 + 18 * (7 + 7 + 3 + 7 + 7)
    plain = report.recount("fxflops")
    assert plain.total_macs == report.total_macs == 3 * 4 * 6
    assert [each.op for each in plain.missing] == ["fxflops_registered::scan"]
    mine = count(model, x, convention="torch", formulas={F.gelu: lambda input, *, out: 1})
    assert mine.total_flops == report.total_flops - 18 * 7 + 1


def test_macs_are_not_a_registered_formulas(registered: None) -> None:
    register_flop_formula(torch.ops.aten.dot)(lambda *shapes, out_shape=None: 5)
    report = count(Runs(lambda: torch.dot(f(3), f(3))), f(1), convention="torch")
    assert (report.total_flops, report.total_macs) == (5, 3)


def test_a_registered_formula_that_raises_is_told(registered: None) -> None:
    def wrong(x_shape: torch.Size, *, out_shape: Any = None) -> int:
        raise ValueError("no such shape")

    register_flop_formula(torch.ops.aten.erf)(wrong)
    with pytest.raises(FormulaError, match=r"wrong of 'erf' failed.*no such shape"):
        count(Runs(lambda: torch.erf(f(3))), f(1), convention="torch")


ON_META = [name for name in POOL if name not in ("ssdlite", "faster r-cnn")]  # these two need values
TRAINED = [*ON_META[::2], *ON_META[1:5:2]]


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_step_is_flop_counter_modes(name: str) -> None:
    """FlopCounterMode counts the weight gradient of a grouped convolution ``groups`` times, and the convention does the same."""
    model, args, kwargs = tree_map(lambda v: v.to("meta") if hasattr(v, "to") else v, built(name))
    # On meta FlopCounterMode sees plain products. A fused CPU kernel would recompute the scores in its backward.
    with sdpa_kernel(SDPBackend.MATH):
        report = count(model, args, kwargs, backward=True, convention="torch")
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(*roots_of(model(*args, **kwargs)))
    assert report.complete
    assert report.total_training_flops == counter.get_total_flops()
    grouped = any(isinstance(m, nn.modules.conv._ConvNd) and m.groups > 1 for m in model.modules())
    # The correct number is lower exactly if the model has grouped convolutions.
    training_macs = report.total_macs + (report.total_backward_macs or 0)
    assert (2 * training_macs < counter.get_total_flops()) == grouped
    assert grouped or 2 * training_macs == counter.get_total_flops()
    assert len(TRAINED) == 30
    of_modules = sum(row.own.flops for row in report.by_module("backward").values())
    assert of_modules == report.recount("torch").by_module("backward")[""].total.flops == report.total_backward_flops


def test_a_backward_pass_that_flop_counter_mode_does_not_count_is_0() -> None:
    """It has no formula for the kernels of a bilinear layer."""
    model, args = nn.Bilinear(4, 5, 6), (torch.randn(2, 4), torch.randn(2, 5))
    report = count(model, args, backward=True).recount("torch")
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(*roots_of(model(*args)))
    assert report.total_backward_flops == report.total_training_flops == counter.get_total_flops() == 0
    assert report.recount("thop").total_backward_flops is None  # thop does not see backward passes
    form = closed_form(model, args, dynamic_shapes=({0: "n"}, {0: "n"}), convention="torch", backward=True)
    assert form.backward_flops == 0


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

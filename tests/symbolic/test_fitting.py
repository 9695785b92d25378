"""Closed forms equal counts at sizes that the fit did not use, and formulas written by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

from fxflops import ClosedFormError, InputError, closed_form, count
from fxflops.symbolic.forms import ClosedForm


def same_at_random_points(form: ClosedForm, at: Any, bounds: dict[str, range], n: int = 4, **options: Any) -> None:
    """Compare a form with counts of ``at(**sizes)``, which returns a model with its args and kwargs."""
    rng = random.Random(1)
    for _ in range(n):
        sizes = {name: rng.choice(lengths) for name, lengths in bounds.items()}
        report = count(*at(**sizes), **options)
        assert form.evaluate("flops", **sizes) == report.total_flops, sizes
        assert form.evaluate("macs", **sizes) == report.total_macs, sizes
        assert form.evaluate("activations", **sizes) == report.total_activations, sizes
        if options.get("backward"):
            assert form.evaluate("flops", phase="training", **sizes) == report.total_training_flops, sizes
            assert form.evaluate("macs", phase="backward", **sizes) == report.total_backward_macs, sizes


def test_a_linear_layer_as_by_hand() -> None:
    form = closed_form(nn.Linear(4, 6), torch.ones(2, 3, 4), dynamic_shapes={"input": {0: "batch", 1: "seq"}})
    outputs = 6 * 17 * 100
    assert form.evaluate(batch=17, seq=100) == outputs * (4 + 3 + 1)  # multiplies, adds, the bias
    assert form.evaluate("macs", batch=17, seq=100) == outputs * 4
    assert form.evaluate("activations", batch=17, seq=100) == outputs
    assert form.evaluate("param_bytes", batch=17, seq=100) == 4 * (4 * 6 + 6)
    assert form.evaluate("bytes", batch=17, seq=100) == 4 * (outputs + 17 * 100 * 4 + 4 * 6 + 6)
    assert form.evaluate("memory", batch=17, seq=100) == 4 * (outputs + 17 * 100 * 4 + 4 * 6 + 6)


def test_a_strided_convolution_holds_for_multiples_of_its_stride() -> None:
    conv = nn.Conv2d(3, 8, 3, stride=4, padding=1)
    sizes = {0: Dim("batch", max=9), 2: Dim("height", max=200), 3: Dim("width", max=200)}
    form = closed_form(conv, torch.ones(1, 3, 32, 64), dynamic_shapes={"input": sizes})
    outputs = 5 * 8 * 10 * 9
    assert form.evaluate(batch=5, height=40, width=36) == outputs * 2 * 3 * 3 * 3
    with pytest.raises(ClosedFormError, match="at width=37: it holds for multiples of 4"):
        form.evaluate(batch=5, height=40, width=37)
    odd = closed_form(conv, torch.ones(1, 3, 32, 65), dynamic_shapes={"input": {3: Dim("width", max=99)}})
    assert odd.evaluate(width=37) == 8 * 8 * 10 * 2 * 27


class Window(nn.Module):
    """Attention to the last ``window`` tokens."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[-2])
        gap = steps[:, None] - steps
        return F.scaled_dot_product_attention(x, x, x, attn_mask=(gap >= 0) & (gap < self.window))


def test_a_sliding_window_makes_pieces_of_exact_attention() -> None:
    x = torch.ones(1, 1, 64, 8)
    seq = Dim("seq", max=400)
    form = closed_form(Window(100), x, dynamic_shapes={"x": {0: Dim("batch", max=9), 2: seq}}, attention="exact")
    pairs = 99 * 100 // 2 + 100 * (300 - 99)
    assert form.evaluate("macs", batch=3, seq=300) == 3 * pairs * 2 * 8
    assert form.evaluate("macs", batch=3, seq=50) == 3 * (50 * 51 // 2) * 2 * 8
    assert form.domain("macs").endswith("to 400")
    with pytest.raises(ClosedFormError, match="seq=401"):
        form.evaluate("macs", batch=3, seq=401)


def test_an_lstm_and_its_backward() -> None:
    lstm = nn.LSTM(6, 5, num_layers=2)
    shapes = {"input": {0: Dim("time", max=64), 1: Dim("batch", max=64)}}
    form = closed_form(lstm, torch.ones(4, 2, 6), dynamic_shapes=shapes, backward=True)
    bounds = {"time": range(1, 65), "batch": range(1, 65)}
    same_at_random_points(form, lambda time, batch: (lstm, torch.ones(time, batch, 6)), bounds, backward=True)


class Unrolled(nn.Module):
    """A recurrent cell in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.new_zeros(x.shape[1], 4)
        for step in x:
            hidden = self.cell(step, hidden)
        return hidden


def test_a_loop_over_the_sequence() -> None:
    form = closed_form(Unrolled(), torch.ones(5, 2, 3), dynamic_shapes={"x": {0: Dim("time", max=50), 1: "batch"}})
    macs_of_a_step = 3 * 4 * (3 + 4)
    assert form.evaluate("macs", time=37, batch=11) == 37 * 11 * macs_of_a_step


class FastForEights(nn.Module):
    """A model with an additional layer for lengths that are multiples of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.slow(self.fast(x) if x.shape[1] % 8 == 0 else x)


@pytest.mark.parametrize(("example", "layers", "inside", "outside"), [(100, 1, 20, 16), (96, 2, 16, 20)])
def test_another_way_for_some_lengths_is_outside_of_the_domain(
    example: int, layers: int, inside: int, outside: int
) -> None:
    form = closed_form(FastForEights(), torch.ones(2, example, 6), dynamic_shapes={"x": {1: Dim("s", max=600)}})
    assert form.evaluate("macs", s=inside) == layers * 2 * inside * 6 * 6
    with pytest.raises(ClosedFormError, match=f"at s={outside}: it holds for .*multiples of 8"):
        form.evaluate("macs", s=outside)


def test_packed_sequences_are_a_count_of_the_row() -> None:
    hf = pytest.importorskip("transformers", reason="a model that keeps the sequences of a row apart")
    config = hf.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=50,
    )  # fmt: skip
    model, lengths = hf.LlamaForCausalLM(config), [5, 12, 3]

    def tokens(n: int) -> dict[str, Any]:
        return {"input_ids": torch.ones(1, n, dtype=torch.long), "use_cache": False}

    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    row = count(model, kwargs={**tokens(sum(lengths)), "position_ids": positions}, attention="exact", backward=True)
    dims = {"input_ids": {1: Dim("seq", max=64)}}
    form = closed_form(model, kwargs=tokens(16), dynamic_shapes=dims, attention="exact", backward=True).packed("seq")
    sums = {"sum_seq": sum(lengths), "sum_seq_squared": sum(n * n for n in lengths)}
    assert form.evaluate("macs", **sums) == row.total_macs
    assert form.evaluate("flops", **sums) == row.total_flops
    assert form.evaluate("flops", phase="backward", **sums) == row.total_backward_flops


def test_tokens_modules_operators_and_phases() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    shapes = {"src": {0: Dim("batch", max=40), 1: Dim("seq", max=40)}}
    form = closed_form(layer, torch.ones(2, 5, 8), dynamic_shapes=shapes, backward=True)
    bounds = {"batch": range(1, 41), "seq": range(2, 41)}
    same_at_random_points(form, lambda batch, seq: (layer, torch.ones(batch, seq, 8)), bounds, backward=True)
    report = count(layer, torch.ones(3, 7, 8), backward=True)
    at = {"batch": 3, "seq": 7}
    for path, row in report.by_module("backward").items():
        if row.total.flops:
            assert form.evaluate("flops", phase="backward", module=path, **at) == row.total.flops
    for op, found in report.by_operator().items():
        assert form.evaluate("flops", operator=op, **at) == found.total.flops


def test_conventions_are_counted_as_they_are() -> None:
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    form = closed_form(conv, torch.ones(1, 1, 8, 8), dynamic_shapes={"input": {2: "height"}}, convention="thop")
    assert form.evaluate(height=20) == count(conv, torch.ones(1, 1, 20, 8), convention="thop").total_flops


class Small(nn.Module):
    """Costs twice as much for fewer than 8 elements."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() if x.numel() >= 8 else x.exp().exp()


def test_where_sizes_matter_together_the_piece_is_left_out() -> None:
    sizes = {"x": {0: Dim("n", max=50), 1: Dim("m", max=50)}}
    form = closed_form(Small(), torch.ones(10, 10), dynamic_shapes=sizes)
    assert form.evaluate(n=50, m=30) == 50 * 30
    assert form.evaluate(n=1, m=8) == 8
    assert form.domain().endswith("but not for every combination")
    with pytest.raises(ClosedFormError, match="n=2, m=3: the costs are not polynomials for this combination"):
        form.evaluate(n=2, m=3)


class Powers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2 ** x.shape[0].bit_count()):
            x = x + 1
        return x


class Joined(nn.Module):
    """One size is added to the other, and the sum is limited."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.cat([x, y])[:100]).exp()


def test_no_polynomial_is_refused_with_its_place() -> None:
    with pytest.raises(
        ClosedFormError,
        match="no closed form of Powers: for n from 1 to 400, fxflops found no polynomials for the model's costs",
    ):
        closed_form(Powers(), torch.ones(8), dynamic_shapes={"x": {0: Dim("n", max=400)}})
    sizes = {"x": {0: Dim("n", max=90)}, "y": {0: Dim("m", max=90)}}
    with pytest.raises(ClosedFormError, match="the flops of exp in the model"):
        closed_form(Joined(), (torch.ones(4), torch.ones(4)), dynamic_shapes=sizes)


def test_arguments_are_checked() -> None:
    with pytest.raises(InputError, match="unknown convention"):
        closed_form(nn.ReLU(), torch.ones(2), dynamic_shapes={"input": {0: "n"}}, convention="no")
    with pytest.raises(InputError, match="model must be"):
        closed_form(3, torch.ones(2), dynamic_shapes={})  # type: ignore[arg-type]


def test_the_model_is_left_as_it_was() -> None:
    norm = nn.BatchNorm1d(3).train()
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    x = torch.ones(4, 3)
    closed_form(norm, x, dynamic_shapes={"input": {0: Dim("batch", max=64)}}, backward=True)
    assert norm.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())
    assert all(p.grad is None for p in norm.parameters())
    assert x.shape == (4, 3)


@pytest.mark.parametrize(("convention", "flops"), [("thop", None), ("torch", 2 * 3 * 4 * 5)])
def test_a_convention_without_rules_for_the_backward_says_so(convention: str, flops: int | None) -> None:
    x = torch.ones(3, 4, requires_grad=True)
    form = closed_form(nn.Linear(4, 5), x, dynamic_shapes={"input": {0: "n"}}, backward=True, convention=convention)
    assert form.evaluate("macs", phase="backward", n=3) == 2 * 3 * 4 * 5
    assert ("training FLOPs" in str(form)) is (flops is not None)
    for phase in ("backward", "training") if flops is None else ():
        with pytest.raises(InputError, match="'thop' has no rules for the FLOPs of a backward pass"):
            form.evaluate("flops", phase=phase, n=3)
    assert flops is None or form.evaluate("flops", phase="backward", n=3) == 2 * flops

"""bitsandbytes' operators, by name: the textbook loops on counting numbers. The library need not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fxflops import count, profile
from fxflops.ops import BASE, apply
from fxflops.records import Cost, Operation
from fxflops.records.tensors import spec_of
from tests.library_stand_ins import counts, library
from tests.oracle import numbers, tallying
from tests.tape import Tape

SHAPE = (3, 4)
SCHEMAS = {
    "optimizer_update_32bit": "(str optimizer_name, Tensor(a0!) g, Tensor(a1!) p, Tensor(a2!) state1, Tensor(a3!)? state2, "
    "Tensor(a4!)? unorm_vec, float max_unorm, float param_norm, float beta1, float beta2, float beta3, float alpha, float eps, "
    "float weight_decay, int step, float lr, float gnorm_scale, bool skip_zeros=False) -> ()",
    "optimizer_update_8bit_blockwise": "(str optimizer_name, Tensor(a0!) g, Tensor(a1!) p, Tensor(a2!) state1, "
    "Tensor(a3!)? state2, float beta1, float beta2, float beta3, float alpha, float eps, int step, float lr, Tensor(a4!) qmap1, "
    "Tensor(a5!)? qmap2, Tensor(a6!) absmax1, Tensor(a7!)? absmax2, float weight_decay, float gnorm_scale, "
    "bool skip_zeros=False) -> ()",
    "gemm_4bit": "(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str quant_type, Tensor? bias=None, "
    "Tensor? absmax_8bit=None, Tensor? absmax_code=None, Tensor? absmax_offset=None) -> Tensor",
    "int8_linear_matmul": "(Tensor A, Tensor B) -> Tensor",
    "int8_scaled_mm": "(Tensor A, Tensor B, Tensor row_stats, Tensor col_stats, Tensor? bias=None, ScalarType? dtype=None) -> Tensor",
    "int8_mixed_scaled_mm": "(Tensor A, Tensor CA, Tensor CB, Tensor SCA, Tensor SCB, Tensor? outlier_cols=None, "
    "Tensor? bias=None) -> (Tensor, Tensor?)",
    "int8_mm_dequant": "(Tensor A, Tensor row_stats, Tensor col_stats, ScalarType? dtype=None, Tensor? bias=None) -> Tensor",
    "int8_vectorwise_quant": "(Tensor A, float threshold=0.0) -> (Tensor, Tensor, Tensor?)",
    "int8_vectorwise_dequant": "(Tensor A, Tensor stats) -> Tensor",
    "int8_double_quant": "(Tensor A, float threshold=0.0) -> (Tensor, Tensor, Tensor, Tensor, Tensor?)",
    "dequantize_4bit": "(Tensor A, Tensor absmax, int blocksize, str quant_type, int[] shape, ScalarType dtype) -> Tensor",
    "dequantize_blockwise": "(Tensor A, Tensor absmax, Tensor code, int blocksize, ScalarType dtype) -> Tensor",
    "quantize_blockwise": "(Tensor A, Tensor code, int blocksize) -> (Tensor, Tensor)",
}


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[Any]:
    """The operators under the library's own schemas, with kernels that compute nothing."""
    if find_spec("bitsandbytes") is not None:
        import bitsandbytes  # noqa: F401

        yield torch.ops.bitsandbytes
        return
    library = torch.library.Library("bitsandbytes", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
    library.impl("optimizer_update_32bit", lambda *_: None, "CPU")
    library.impl(
        "gemm_4bit", lambda A, B, shapeB, *_: A.new_zeros(*A.shape[:-1], shapeB[0]), "CompositeExplicitAutograd"
    )
    yield torch.ops.bitsandbytes
    library._destroy()


def textbook(name: str, decay: float = 0, scale: float = 1, first: bool = False) -> Cost:
    """The cost of one optimizer step on a tensor of this shape, written out element by element."""
    with tallying() as tally:
        p, g, m, n, v = (numbers(*SHAPE) for _ in range(5))
        if scale != 1:
            g = scale * g
        if decay:
            p, g = (0.9 * p, g) if name in ("adam", "ademamix", "lion") else (p, g + 0.1 * p)
        if name == "adam":
            m, v = 0.9 * m + 0.1 * g, 0.9 * v + 0.1 * g * g
            p = p - 0.1 * (m / (np.sqrt(v) + 1e-8))
        elif name == "ademamix":
            m, n, v = 0.9 * m + 0.1 * g, 0.9 * n + 0.1 * g, 0.9 * v + 0.1 * g * g
            p = p - 0.1 * ((m / 0.5 + 2.0 * n) / (np.sqrt(v) / 0.5 + 1e-8))
        elif name == "momentum":
            p = p - 0.1 * (g if first else 0.9 * m + g)
        elif name == "lion":
            p = p - 0.1 * np.exp(0.9 * m + 0.1 * g)  # exp stands for the sign
            m = 0.9 * m + 0.1 * g
        elif name == "rmsprop":
            v = 0.9 * v + 0.1 * g * g
            p = p - 0.1 * (g / (np.sqrt(v) + 1e-8))
        elif name == "adagrad":
            v = v + g * g
            p = p - 0.1 * (g / (np.sqrt(v) + 1e-8))
    return Cost(muls=tally.muls, adds=tally.adds, others=tally.others)


def update(name: str, decay: float = 0, scale: float = 1, step: int = 2, bound: float = 0.0) -> tuple[Any, ...]:
    g, p, m, v = (torch.rand(SHAPE) for _ in range(4))
    return name, g, p, m, v, torch.zeros(1), bound, 1.0, 0.9, 0.99, 0.999, 2.0, 1e-8, decay, step, 0.1, scale


def cost_of(operator: Any, *args: Any, out: Any = None) -> Cost:
    entry = BASE.find(operator)
    assert entry is not None
    return apply(entry, Operation(entry.op, operator, spec_of(args), {}, spec_of(out)))


@pytest.mark.parametrize("name", ["adam", "ademamix", "momentum", "lion", "rmsprop", "adagrad"])
@pytest.mark.parametrize("options", [{}, {"decay": 0.1}, {"scale": 2.0}], ids=["plain", "decay", "scaled"])
def test_a_step_is_the_textbook_s(operators: Any, name: str, options: dict[str, Any]) -> None:
    assert cost_of(operators.optimizer_update_32bit.default, *update(name, **options)) == textbook(name, **options)


def test_the_first_step_of_momentum_has_no_mean(operators: Any) -> None:
    assert cost_of(operators.optimizer_update_32bit.default, *update("momentum", step=1)) == textbook(
        "momentum", first=True
    )


@pytest.mark.parametrize(("name", "as_name"), [("lamb", "adam"), ("lars", "momentum")])
def test_a_bound_takes_the_norm_of_the_update_and_scales_it(operators: Any, name: str, as_name: str) -> None:
    elements = 3 * 4
    norm = Cost(muls=2 * elements, adds=elements)
    assert cost_of(operators.optimizer_update_32bit.default, *update(name, bound=1.0)) == textbook(as_name).plus(norm)


def test_states_in_8_bits_are_dequantized_and_quantized(operators: Any) -> None:
    g, p = torch.rand(SHAPE), torch.rand(SHAPE)
    m, v = (torch.zeros(SHAPE, dtype=torch.uint8) for _ in range(2))
    code, largest = torch.zeros(256), torch.zeros(1)
    args = "adam", g, p, m, v, 0.9, 0.99, 0.999, 2.0, 1e-8, 2, 0.1, code, code, largest, largest, 0.0, 1.0
    two = cost_of(operators.optimizer_update_8bit_blockwise.default, *args)
    read = cost_of(operators.dequantize_blockwise.default, m, largest, code, 256, torch.float32, out=g)
    written = cost_of(operators.quantize_blockwise.default, g, code, 256, out=(m, largest))
    assert two == textbook("adam").plus(read).plus(read).plus(written).plus(written)
    assert (read.flops, written.flops) == (12, 36)


def test_products_with_quantized_weights_count_their_macs(operators: Any) -> None:
    x, packed, bias = torch.rand(2, 5, 8), torch.zeros(24, 1, dtype=torch.uint8), torch.rand(6)
    cost = cost_of(
        operators.gemm_4bit.default, x, packed, [6, 8], torch.ones(1), 64, "nf4", bias, out=torch.rand(2, 5, 6)
    )
    assert cost.macs == 2 * 5 * 6 * 8
    assert cost.flops == 2 * 5 * 6 * (8 + 7 + 1) + 6 * 8
    a, b = torch.zeros(10, 8, dtype=torch.int8), torch.zeros(6, 8, dtype=torch.int8)
    stats = torch.ones(10), torch.ones(6)
    assert cost_of(operators.int8_linear_matmul.default, a, b, out=torch.zeros(10, 6)).flops == 10 * 6 * (8 + 7)
    scaled = cost_of(operators.int8_scaled_mm.default, a, b, *stats, out=torch.zeros(10, 6))
    assert (scaled.macs, scaled.flops) == (10 * 6 * 8, 10 * 6 * (8 + 7 + 3))


def test_quantizing_and_back_is_counted_per_element(operators: Any) -> None:
    x, q, stats = torch.rand(2, 3), torch.zeros(2, 3, dtype=torch.int8), torch.ones(2)
    with tallying() as largest_and_scaled:
        a = numbers(2, 3)
        _ = np.exp(np.exp(a)), np.exp(a * 2)  # exp stands for abs, a compare and rounding
    assert cost_of(operators.int8_vectorwise_quant.default, x, out=(q, stats, None)) == largest_and_scaled
    with tallying() as both:
        a = np.exp(numbers(2, 3))
        _ = np.exp(a), np.exp(a), np.exp(a * 2), np.exp(a * 3)
    assert cost_of(operators.int8_double_quant.default, x, out=(q, q, stats, stats, None)) == both
    with tallying() as twice:
        _ = numbers(2, 3) * 2 * 3
    assert cost_of(operators.int8_vectorwise_dequant.default, q, stats, out=x) == twice
    packed = torch.zeros(3, 1, dtype=torch.uint8)
    assert (
        cost_of(operators.dequantize_4bit.default, packed, stats, 64, "nf4", [2, 3], torch.float32, out=x).flops
        == 2 * 3
    )


def test_columns_of_outliers_are_a_product_of_their_own(operators: Any) -> None:
    a, stats = torch.zeros(10, 8, dtype=torch.int8), (torch.ones(10), torch.ones(6))
    given = torch.rand(10, 8), a, torch.zeros(6, 8, dtype=torch.int8), *stats
    out = torch.zeros(10, 6), None
    plain = cost_of(operators.int8_mixed_scaled_mm.default, *given, out=out)
    assert plain == cost_of(operators.int8_scaled_mm.default, a, given[2], *stats, out=out[0])
    mixed = cost_of(operators.int8_mixed_scaled_mm.default, *given, torch.tensor([1, 5, 7]), out=out)
    assert mixed.macs - plain.macs == 10 * 6 * 3
    assert mixed.flops - plain.flops == 10 * 6 * (3 + 3) + 2 * 6 * 3
    biased = cost_of(operators.int8_mm_dequant.default, out[0].int(), *stats, None, torch.ones(6), out=out[0])
    assert biased.flops == 10 * 6 * (3 + 1)


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="its own kernels need their layout of weights")
def test_models_and_steps_that_call_them_are_complete(operators: Any) -> None:
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            packed = torch.zeros(24, 1, dtype=torch.uint8)
            return operators.gemm_4bit(x, packed, [6, 8], torch.ones(1), 64, "nf4")

    report = count(Layer(), torch.rand(5, 8))
    assert (report.total_macs, report.complete) == (5 * 6 * 8, True)

    with profile() as p:
        operators.optimizer_update_32bit(*update("adam"))
    assert (p.report.total_flops, p.report.complete) == (textbook("adam").flops, True)


class Quantized(nn.Module):
    """A frozen layer with packed weights, which calls bitsandbytes' product, plus low-rank adapters."""

    def __init__(self, matmul: Any, inputs: int, outputs: int, rank: int, bias: bool = False) -> None:
        super().__init__()
        self.matmul, self.state = matmul, SimpleNamespace(shape=torch.Size((outputs, inputs)))
        self.register_buffer("packed", torch.zeros(outputs * inputs // 2, 1, dtype=torch.uint8))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.matmul(x, self.packed.t(), bias=self.bias, quant_state=self.state) + self.up(self.down(x))


@pytest.fixture
def matmul_4bit() -> Iterator[Any]:
    parameters = "A, B, quant_state, out=None, bias=None"
    with library({"bitsandbytes.autograd._functions:matmul_4bit": parameters}) as find:
        yield find("bitsandbytes.autograd._functions:matmul_4bit")


PRODUCTS = [(1, 2, 2), (3, 4, 6), (5, 8, 2), (2, 16, 4), (7, 6, 10)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", PRODUCTS)
def test_a_product_with_4_bits_is_dequantizing_and_a_product(
    matmul_4bit: Any, shape: tuple[int, ...], bias: bool
) -> None:
    n, i, o = shape
    given = {"A": torch.randn(n, i), **({"bias": torch.randn(o)} if bias else {})}
    counted = counts(
        matmul_4bit, given, B=torch.zeros(1, i * o // 2, dtype=torch.uint8), quant_state=SimpleNamespace(shape=(o, i))
    )
    tape = Tape()
    x, packed = tape.leaf(n, i), tape.leaf(o, i, needs=False)
    weight = tape.pointwise(packed, Cost(muls=1), Cost())
    y = tape.contract("ni,oi->no", x, weight)
    y = tape.add(y, tape.leaf(1, o)) if bias else y
    assert counted.out == (n, o)
    assert counted.forward == tape.forward
    assert counted.backward == tape.backward(y).plus(Cost(muls=o * i))  # the backward pass unpacks the weight again


def test_a_step_of_qlora_by_hand(matmul_4bit: Any) -> None:
    """Two 8-to-8 layers with adapters of rank 2, on 6 rows: forward, backward and the optimizer's step."""
    model = nn.Sequential(*(Quantized(matmul_4bit, 8, 8, 2) for _ in range(2)))
    needs_grad = [p for p in model.parameters() if p.requires_grad]
    report = count(model, torch.randn(6, 8), backward=True, optimizer=torch.optim.SGD(needs_grad, lr=0.1))
    assert report.complete
    n, width, rank, layers = 6, 8, 2, 2
    product, adapters = n * width * width, n * width * rank * 2
    assert report.total_macs == layers * (product + adapters)
    unpack, joined = width * width, n * width
    forward = unpack + n * width * (2 * width - 1) + n * rank * (2 * width - 1) + n * width * (2 * rank - 1) + joined
    assert report.total_flops == layers * forward
    # Frozen weights have no gradient. The first layer's input needs none either, so that layer only has its adapters' gradients.
    macs = sum(each.macs for each in report.counted if each.call.phase == "backward")
    first = 2 * n * width * rank + n * width * rank  # up: both gradients, down: the weight's
    second = product + 2 * adapters
    assert macs == first + second
    steps = [each for each in report.counted if each.call.phase == "optimizer"]
    weights = layers * 2 * width * rank
    assert sum(each.flops for each in steps) == 2 * weights  # w - lr * g


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize("shape", PRODUCTS[1:])
def test_the_library_s_layer_is_held_to_its_operators(shape: tuple[int, ...]) -> None:
    """The layer's single row counts as much as the operators that the library dispatches for it, which have their own formulas."""
    import bitsandbytes

    n, i, o = shape
    layer = bitsandbytes.nn.Linear4bit(i * 8, o * 8, compute_dtype=torch.float32, bias=True).to("cpu").train()
    x = torch.randn(n, i * 8, requires_grad=True)
    whole = count(layer, x, backward=True)
    assert whole.complete
    assert whole.total_macs == n * i * o * 64
    state = layer.weight.quant_state
    weight = layer.weight.detach()

    class Operators(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.bitsandbytes.gemm_4bit(
                x, weight, list(state.shape), state.absmax, state.blocksize, state.quant_type, layer.bias.detach()
            )

    apart = count(Operators(), x.detach())
    assert (whole.total_macs, whole.total_flops) == (apart.total_macs, apart.total_flops)

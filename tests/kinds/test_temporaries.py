"""Tensors that a call holds only while it runs must be in the predicted peak. The oracle is the CPU allocator.

Functions, methods and modules are drawn with random sizes, on tensors in four memory layouts. Each is called once and three times,
and all results are kept, so that the peak is in the last call. Inside a kernel torch allocates workspaces that no tensor shows. A
prediction must lie between the allocator's peaks without and with these workspaces.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from benchmarks.allocator import Allocated, allocated

FLOAT, DOUBLE = torch.float32, torch.float64
aten = torch.ops.aten
Function = Callable[..., Any]


class Repeated(nn.Module):
    """Calls a function ``times`` times with the same tensors, and keeps all results."""

    def __init__(self, function: Function, times: int) -> None:
        super().__init__()
        self.function, self.times = function, times

    def forward(self, *args: Any) -> list[Any]:
        return [self.function(*args) for _ in range(self.times)]


def bytes_of(*tensors: torch.Tensor) -> int:
    """Return the bytes of the tensors' storages, each storage once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def measured(run: Callable[[], Any], *before: torch.Tensor) -> Allocated:
    """Return the allocator's peak of a second run, because the first run may create things that are kept."""
    run()
    return allocated(run, bytes_of(*before))


def fits(predicted: int, truth: Allocated, before: int, slack: int = 64) -> bool:
    """Return whether a prediction is right, except for single numbers that kernels create on the way."""
    near = 0.01 * (truth.peak - before) + slack
    return truth.held - near <= predicted <= truth.peak + near


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.ndim > 1 else x,
    "expanded": lambda x: x[:1].expand(x.shape),
    "sliced": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}


def floats(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes) + 0.1


def integers(*sizes: int) -> torch.Tensor:
    return torch.randint(1, 9, sizes)


def three(draw: random.Random) -> tuple[int, int, int]:
    """Return three sizes. The last two are odd, so that no kernel pads."""
    return draw.randint(2, 4), 2 * draw.randint(8, 20) + 1, 2 * draw.randint(8, 20) + 1


def on(function: Function, *more: Any) -> Callable[[random.Random], tuple[Function, tuple[Any, ...]]]:
    """Return a case for a function of one float tensor and other arguments."""
    return lambda draw: (lambda x: function(x, *more), (floats(*three(draw)),))


def on_two(function: Function, make: Callable[..., torch.Tensor] = floats) -> Any:
    """Return a case for a function of two tensors of equal sizes."""

    def case(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
        sizes = three(draw)
        return function, (make(*sizes), make(*sizes))

    return case


def on_integers(function: Function) -> Any:
    return lambda draw: (function, (integers(*three(draw)),))


def matrices(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
    b, q, k = three(draw)
    return lambda w, v: torch.einsum("bhqk,bhkd->bhqd", w, v), (floats(b, 3, q, k), floats(b, 3, k, 5))


def linear(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
    b, n, k = three(draw)
    return F.linear, (floats(b, n, k), floats(7, k))


def convolved(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
    """Return a case for a convolution with an even kernel: "same" pads one side more than the other, in a copy."""
    b, h, w = three(draw)
    weight = floats(3, 2, draw.choice([2, 4]), 3)
    return lambda x: F.conv2d(x, weight, padding="same"), (floats(b, 2, h, w),)


def attended(masked: str = "", flipped: bool = False) -> Any:
    """Return a case for attention. A CPU uses plain products for ``flipped`` tensors, because their rows are not dense."""

    def case(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
        b, n, s = three(draw)
        sizes = ((b, 2, 8, n), (b, 2, 8, s), (b, 2, 8, s)) if flipped else ((b, 2, n, 8), (b, 2, s, 8), (b, 2, s, 8))
        masks = {"added": [torch.rand(2, n, s)], "boolean": [torch.rand(n, s) > 0.1]}.get(masked, [])

        def attend(*tensors: torch.Tensor) -> torch.Tensor:
            query, key, value = (t.transpose(-1, -2) for t in tensors[:3]) if flipped else tensors[:3]
            return F.scaled_dot_product_attention(query, key, value, *tensors[3:], is_causal=masked == "causal")

        return attend, (*(floats(*each) for each in sizes), *masks)

    return case


def partitioned(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
    """Return a case that cuts an image into windows after rolling and padding it, and puts it together again."""
    b, h, w = draw.randint(2, 3), 2 * draw.randint(3, 6), 2 * draw.randint(3, 6)

    def windows(x: torch.Tensor) -> torch.Tensor:
        x = torch.roll(F.pad(x, (0, 0, 0, 0)), (-1, -1), (1, 2))
        x = x.view(b, h // 2, 2, w // 2, 2, 5).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, 5)
        x = x.reshape(b, h // 2, w // 2, 2, 2, 5).transpose(2, 3).reshape(b, h, w, 5)
        return x.flatten(1, 2)[torch.arange(b)]

    return windows, (floats(b, h, w, 5),)


def multiplied(equation: str, *sizes: str) -> Any:
    """Return a case for an einsum whose dimensions are drawn, one size per letter."""

    def case(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
        of = dict(zip("abcdef", [draw.randint(5, 15) for _ in range(6)], strict=True))
        return lambda *tensors: torch.einsum(equation, *tensors), tuple(
            floats(*[of[letter] for letter in each]) for each in sizes
        )

    return case


def normalized(kind: str) -> Any:
    def case(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
        n, c, k = draw.randint(20, 30), 2 * draw.randint(2, 4), draw.randint(3, 5)
        functions: dict[str, Function] = {
            "layer": lambda x: F.layer_norm(x, (k,), torch.ones(k)),
            "rms": lambda x: F.rms_norm(x, (k,), torch.ones(k)),
            "rms, unweighted": lambda x: F.rms_norm(x, (k,)),
            "group": lambda x: F.group_norm(x, 2),
            "batch": lambda x: F.batch_norm(x, None, None, training=True),
        }
        return functions[kind], (floats(n, c, k),)

    return case


def along(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
    _, n, k = three(draw)
    return lambda x, i: torch.take_along_dim(x, i, 0), (floats(n, k), integers(5, 1))


def products(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
    return torch.cartesian_prod, (floats(draw.randint(20, 60)), floats(draw.randint(20, 60)))


def on_matrices(function: Function, hermitian: bool = False) -> Any:
    """Return a case for a function of many small matrices, where even a few numbers kept per matrix matter."""

    def case(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
        rows, columns = draw.randint(2, 5), draw.randint(2, 5)
        return function, (floats(draw.randint(300, 500), rows, rows if hermitian else columns),)

    return case


def masked(function: Function) -> Any:
    """Return a case for a function of a table, a mask, indices for each dimension, and a tensor to put there."""

    def case(draw: random.Random) -> tuple[Function, tuple[Any, ...]]:
        n, m = draw.randint(20, 30), draw.randint(20, 30)
        mask, rows, columns = torch.rand(n, m) > 0.5, torch.randint(0, 9, (n, 1)), torch.randint(0, 9, (1, m))
        return lambda x, *given: function(x, given[0], [*given[1:]], torch.ones(n, m)), (
            floats(9, 9),
            mask,
            rows,
            columns,
        )

    return case


masked_index, masked_put = aten._unsafe_masked_index, aten._unsafe_masked_index_put_accumulate
COMPOSED: dict[str, Callable[[random.Random], tuple[Function, tuple[Any, ...]]]] = {
    # Operators that torch composes of other operators below autograd.
    "pinv": on_matrices(torch.linalg.pinv), "pinverse": on_matrices(torch.pinverse),
    "pinv, hermitian": on_matrices(lambda x: torch.linalg.pinv(x, hermitian=True), hermitian=True),
    "pinv, by tolerances": on_matrices(lambda x: torch.linalg.pinv(x, atol=torch.tensor(0.1), rtol=torch.tensor(0.1))),
    "masked index": masked(lambda x, mask, places, _: masked_index(x, mask, places, 0.0)),
    "masked put": masked(masked_put), "isinf": on(torch.isinf), "mvlgamma": on(lambda x: torch.mvlgamma(x + 3, 2)),
    "dist": on_two(torch.dist), "ldexp": on_two(torch.ldexp), "bilinear": on_two(lambda x, w: F.bilinear(x[..., :3], x[..., :4], w[..., :3, :4].contiguous())),
    "bce with logits": on_two(lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=y[0, 0])),
    # Singular values alone, under all their names.
    "norm nuc": on_matrices(lambda x: torch.norm(x, "nuc", (1, 2))), "norm nuc, by name": on_matrices(lambda x: torch.norm(input=x, p="nuc", dim=(1, 2))),
    "linalg.norm nuc": on_matrices(lambda x: torch.linalg.norm(x, "nuc", (1, 2), out=None)), "svdvals, out=None": on_matrices(lambda x: torch.linalg.svdvals(x, out=None)),
    "nuclear_norm": on_matrices(lambda x: torch.nuclear_norm(x, (1, 2), True)), "cond nuc": on_matrices(lambda x: torch.linalg.cond(x, "nuc"), hermitian=True),
    "ranks": on_matrices(torch.linalg.matrix_rank), "ranks, hermitian": on_matrices(lambda x: torch.linalg.matrix_rank(x, hermitian=True), hermitian=True),
    "ranks by tolerance": on_matrices(lambda x: torch.linalg.matrix_rank(x, atol=0.1, rtol=0.1)),
}  # fmt: skip
CASES: dict[str, Callable[[random.Random], tuple[Function, tuple[Any, ...]]]] = {
    "softsign": on(F.softsign), "tanhshrink": on(F.tanhshrink), "logsigmoid": on(F.logsigmoid), "mish": on(F.mish),
    "softmax": on(torch.softmax, -1), "softmax to double": on(torch.softmax, -1, DOUBLE),
    "log_softmax to double": on(lambda x: F.log_softmax(x, 1, dtype=DOUBLE)),
    "half softmax to float": lambda draw: (lambda x: x.softmax(-1, FLOAT), (floats(*three(draw)).bfloat16(),)),
    "dropout": on(lambda x: F.dropout(x, 0.5, True)), "layer_norm": normalized("layer"), "rms_norm": normalized("rms"),
    "rms_norm, unweighted": normalized("rms, unweighted"), "group_norm": normalized("group"), "batch_norm": normalized("batch"),
    "quantile": on(torch.quantile, 0.3), "quantile, last": on(torch.quantile, 0.3, -1), "quantile, first": on(torch.quantile, 0.3, 0),
    "nanquantile": on(torch.Tensor.nanquantile, 0.7, 1), "many quantiles": on(lambda x: x.quantile(torch.linspace(0, 1, 30), -1)),
    "svdvals": on(torch.linalg.svdvals), "nuclear": on(torch.linalg.matrix_norm, "nuc"), "eigvals": on(lambda x: torch.linalg.eigvals(x[..., :9, :9])),
    "eigvalsh": on(lambda x: torch.linalg.eigvalsh(x[..., :9, :9])), "rank": on(torch.linalg.matrix_rank), "cond": on(torch.linalg.cond),
    "max_pool1d": on(F.max_pool1d, 2), "max_pool2d": on(F.max_pool2d, 2), "combinations": lambda draw: (torch.combinations, (floats(draw.randint(20, 60)),)),
    "triples": lambda draw: (lambda x: torch.combinations(x, 3), (floats(draw.randint(10, 20)),)), "cartesian_prod": products,
    "take_along_dim": along, "diff": on(torch.diff), "isclose": on_two(torch.isclose), "lerp": on_two(lambda x, y: torch.lerp(x, y, 0.3)),
    "mse_loss": on_two(F.mse_loss), "smooth_l1_loss": on_two(F.smooth_l1_loss), "huber_loss": on_two(F.huber_loss), "l1_loss": on_two(F.l1_loss),
    "soft_margin_loss": on_two(F.soft_margin_loss), "binary_cross_entropy": on_two(lambda x, y: F.binary_cross_entropy(x / 2, y / 2)),
    "isclose of integers": on_two(torch.isclose, integers), "integers / integers": on_two(torch.div, integers), "msort": on_integers(torch.msort),
    "diff of integers": on_integers(torch.diff), "argsort": on_integers(torch.argsort), "float_power": on_integers(lambda x: torch.float_power(x, 2)),
    "softsign of integers": on_integers(F.softsign), "one_hot": on_integers(lambda x: F.one_hot(x, 9)), "unique": on_integers(lambda x: torch.unique(x, return_counts=True)),
    "attention": attended(), "attention, masked": attended("added"), "attention, masked by booleans": attended("boolean"),
    "causal attention": attended("causal"), "plain attention": attended("", True), "plain attention, masked": attended("added", True),
    "plain attention, masked by booleans": attended("boolean", True), "plain causal attention": attended("causal", True),
    "windows": partitioned, "reshape": on(lambda x: x.transpose(0, 1).reshape(-1)), "contiguous": on(lambda x: x.permute(2, 0, 1).contiguous()),
    "clone": on(lambda x: x[:, ::2].clone()), "index_select": on(lambda x: x.index_select(1, torch.arange(3))),
    "einsum that copies both": multiplied("abcd,acef->abed", "abcd", "acef"), "einsum, swapped": multiplied("ab,bc->ca", "ab", "bc"),
    "einsum of heads": multiplied("abcd,bed->abce", "abcd", "bed"), "einsum without a sum": multiplied("ab,cb->acb", "ab", "cb"),
    "einsum of an ellipsis": multiplied("...ab,...cb->...ac", "dab", "dcb"), "einsum that sums first": multiplied("abd,bc->ac", "abd", "bc"),
    "einsum": matrices, "linear": linear, "conv2d": convolved, **COMPOSED,
}  # fmt: skip


def with_ways(names: Any) -> list[tuple[str, str]]:
    """Return each name with two of the memory layouts."""
    return [(name, way) for name in names for way in random.Random(name).sample([*WAYS], 2)]


@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:at..nuclear_norm")
@pytest.mark.parametrize(("name", "way"), with_ways(CASES))
def test_the_peak_of_calls(name: str, way: str) -> None:
    torch.manual_seed(0)
    function, tensors = CASES[name](random.Random(f"{name} {way}"))
    args = tuple(map(WAYS[way], tensors))
    for times in (1, 3):
        model, before = Repeated(function, times), bytes_of(*args)

        def run(model: nn.Module = model) -> Any:
            with torch.no_grad():
                return model(*args)

        truth = measured(run, *args)
        predicted = fxflops.count(model, args).max_memory
        assert fits(predicted, truth, before), (times, predicted - before, truth.held - before, truth.peak - before)


IN_PARTS: dict[str, Function] = {
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1, dim=-1), "kl_div": lambda x: F.kl_div(x, x * 2), "isclose": lambda x: torch.isclose(x, x * 2),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, x * 2, x * 3), "pairwise_distance": lambda x: F.pairwise_distance(x, x * 2),
    "multi_dot": lambda x: torch.linalg.multi_dot([x[0], x[0].T, x[0]]), "group_norm": lambda x: F.group_norm(x.transpose(0, 1), 1), "softsign": F.softsign,
    "tanhshrink": F.tanhshrink, "diff": torch.diff, "pinv": lambda x: torch.linalg.pinv(x[0]), "cosine_embedding": lambda x: F.cosine_embedding_loss(x[0], x[1], torch.ones(len(x[0]))),
    "hinge": lambda x: F.hinge_embedding_loss(x, x.sign()), "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x), "stft": lambda x: torch.stft(x[0], 16, window=torch.ones(16), return_complex=True),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:reduction. .mean. divides")
@pytest.mark.parametrize("guard", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("name", IN_PARTS)
def test_composites_in_inference_mode(name: str, guard: Any) -> None:
    """In inference mode, a dispatch mode sees a composite operator as a whole, because autograd does not decompose it."""
    x = floats(3, 41, 33)

    def inferred(x: torch.Tensor) -> Any:
        with guard():
            return IN_PARTS[name](x)

    truth = measured(lambda: inferred(x), x)
    for way in (fxflops.count, lambda *given: fxflops.analyze(*given, repeats=0, progress=False)):
        predicted = way(Repeated(inferred, 1), x).max_memory
        assert fits(predicted, truth, x.nbytes), (predicted - x.nbytes, truth.held - x.nbytes, truth.peak - x.nbytes)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "Softsign": nn.Softsign, "Tanhshrink": nn.Tanhshrink, "LogSigmoid": nn.LogSigmoid, "Mish": nn.Mish, "GELU": nn.GELU, "Softplus": nn.Softplus,
    "Hardswish": nn.Hardswish, "SELU": nn.SELU, "GLU": nn.GLU, "PReLU": nn.PReLU, "Softmax": lambda: nn.Softmax(-1), "LogSoftmax": lambda: nn.LogSoftmax(-1),
    "Softmin": lambda: nn.Softmin(-1), "LayerNorm": lambda: nn.LayerNorm(4), "RMSNorm": lambda: nn.RMSNorm(4), "GroupNorm": lambda: nn.GroupNorm(4, 16),
    "BatchNorm2d": lambda: nn.BatchNorm2d(16, track_running_stats=False), "InstanceNorm2d": lambda: nn.InstanceNorm2d(16), "MaxPool2d": lambda: nn.MaxPool2d(2),
    "LocalResponseNorm": lambda: nn.LocalResponseNorm(3), "Conv2d": lambda: nn.Conv2d(16, 8, (2, 3), padding="same"), "Dropout": nn.Dropout, "CosineSimilarity": lambda: Cosine(),
}  # fmt: skip


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.similarity = nn.CosineSimilarity(dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.similarity(x, x)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("name", "way"), with_ways(MODULES))
def test_the_peak_of_modules(name: str, way: str) -> None:
    torch.manual_seed(0)
    x, part = WAYS[way](floats(5, 16, 20, 4)), MODULES[name]()
    for times in (1, 3):
        model = Repeated(part, times).train(name in ("BatchNorm2d", "Dropout"))

        def run(model: nn.Module = model) -> Any:
            with torch.no_grad():
                return model(x)

        before = x, *model.parameters(), *model.buffers()
        truth = measured(run, *before)
        predicted = fxflops.count(model, x, mode="as_is").max_memory
        assert fits(predicted, truth, bytes_of(*before)), (times, predicted, truth)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", list(MODULES))
def test_the_peak_with_gradients(name: str) -> None:
    """A trainable layer comes first, so that the gradient passes through the module."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), MODULES[name]()).train(), floats(5, 16, 20, 4)

    def run() -> Any:
        model.zero_grad()
        out = model(x)
        out.backward(out.new_ones(()).expand_as(out))  # like the gradient of a sum
        model.zero_grad()

    before = x, *model.parameters(), *model.buffers()
    truth = measured(run, *before)
    predicted = fxflops.count(model, x, mode="train", backward=True).max_memory
    assert fits(predicted, truth, bytes_of(*before)), (predicted, truth)


@pytest.mark.parametrize("name", ["Softsign", "Tanhshrink", "LogSigmoid"])
def test_an_activation_between_two_layers(name: str) -> None:
    """The peak by hand: the input, the weights, the activation's wide input, and twice its result."""
    model = nn.Sequential(nn.Linear(64, 512), MODULES[name](), nn.Linear(512, 64))
    x = floats(256, 64)
    weights = sum(p.nbytes for p in model.parameters())
    assert fxflops.count(model, x).max_memory == x.nbytes + weights + 3 * 256 * 512 * 4


@pytest.mark.parametrize("name", ["quantile", "svdvals", "max_pool1d", "nuclear"])
def test_what_torch_computes_otherwise_when_it_is_watched(name: str) -> None:
    """``analyze`` runs the model under observation, but must report the memory that an unobserved run takes."""
    function, args = CASES[name](random.Random(name))
    model = Repeated(function, 1)
    with torch.no_grad():
        truth = measured(lambda: model(*args), *args)
    found = fxflops.analyze(model, args, repeats=1).max_memory
    assert fits(found, truth, bytes_of(*args))


def test_a_call_repeated_in_a_block_takes_what_the_first_takes() -> None:
    """Tensors that a block first uses in one call must not count as temporaries of the next call."""
    w, v = floats(2, 4, 33, 33), floats(2, 33, 4, 8).transpose(1, 2)

    def peak(times: int) -> int:
        model = Repeated(lambda w, v: torch.einsum("bhqk,bhkd->bhqd", w, v), times)
        with torch.no_grad(), fxflops.profile(model) as profiled:
            model(w, v)
        return profiled.report.max_memory

    result = 2 * 4 * 33 * 8 * 4
    assert [peak(times) - peak(1) for times in (2, 3)] == [result, 2 * result]


class Edges(nn.Module):
    """A graph layer: a mask removes self-loops, and rows of the result index the nodes."""

    def forward(self, x: Any, edges: Any) -> Any:
        edges = edges[:, edges[0] != edges[1]]
        return (x[edges[0]] * 2).sum(0) + edges.sum()


@pytest.mark.parametrize("backward", [False, True])
def test_a_row_of_a_table_of_integers_keeps_the_whole(backward: bool) -> None:
    x, edges = floats(100, 4).requires_grad_(backward), torch.stack([torch.arange(4000) % 100, torch.arange(4000) % 7])
    model = Edges()

    def run() -> Any:
        out = model(x, edges)
        if backward:
            out.backward(out.new_ones(()).expand_as(out))
            x.grad = None

    truth = measured(run, x, edges)
    predicted = fxflops.count(model, (x, edges), backward=backward).max_memory
    assert fits(predicted, truth, bytes_of(x, edges)), (predicted, truth)


def test_masked_attention_by_plain_products_asks_which_rows_are_empty() -> None:
    """torch's ``_safe_softmax`` asks with one boolean per score, one per row, and a single number."""
    heads, n, d = 5, 40, 8
    query, mask = torch.rand(1, heads, n, d), torch.rand(heads, n, n)  # three dimensions, which no fused kernel accepts

    class Masked(nn.Module):
        def forward(self, query: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    scores = heads * n * n
    peak = query.nbytes + mask.nbytes + query.nbytes + 2 * 4 * scores + (scores + heads * n + 4)
    for way in (fxflops.count, lambda *given: fxflops.analyze(*given, repeats=0, progress=False)):
        assert way(Masked(), (query, mask)).max_memory == peak


def test_attention_by_another_kernel_the_second_time() -> None:
    """Settings choose the kernel, so a call under other settings must not reuse the result of an equal call."""
    tensors = tuple(floats(2, 3, 65, 8) for _ in range(3))

    class Both(nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            fused = F.scaled_dot_product_attention(*tensors)
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                return fused, F.scaled_dot_product_attention(*tensors)

    model = Both()

    def run() -> Any:
        with torch.no_grad():
            return model(*tensors)

    truth = measured(run, *tensors)
    predicted = fxflops.count(model, tensors).max_memory
    assert fits(predicted, truth, bytes_of(*tensors)), (predicted, truth)

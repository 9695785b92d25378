"""``count(..., autocast=)`` casts by the op lists of the device that is counted for, on any machine.

For CUDA the expected dtypes come from torch's documentation (https://pytorch.org/docs/stable/amp.html#autocast-op-reference): ops
that run in the lower dtype, ops that run in float32, and ops that run in the widest dtype of their arguments. All other ops keep
the dtypes of their tensors. For the CPU the oracle is a real run under ``torch.autocast`` whose live storages are tracked.
"""

from __future__ import annotations

import pstats
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from cProfile import Profile
from functools import partial
from threading import Event, Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxflops
from fxflops.errors import InputError
from tests.kinds.calls import Calls
from tests.kinds.live_bytes import Live

f32 = torch.float32
HALVES = [torch.float16, torch.bfloat16]


def zeros(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=like.device)


LOWER: dict[str, Callable[..., Any]] = {
    "__matmul__": lambda a, b: a @ b,
    "addbmm": lambda a, b: torch.addbmm(a, a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "addmv": lambda a, b: torch.addmv(a[0], a, b[0]),
    "addr": lambda a, b: torch.addr(a, a[0], b[0]),
    "baddbmm": lambda a, b: torch.baddbmm(a[None], a[None], b[None]),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "chain_matmul": lambda a, b: torch.linalg.multi_dot([a, b, a]),
    "conv1d": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "conv2d": lambda a, b: F.conv2d(a[None, :, None], b[:, :, None, None]),
    "conv_transpose1d": lambda a, b: F.conv_transpose1d(a[None], b[:, :, None]),
    "GRUCell": lambda a, b: torch.gru_cell(a, b, b.repeat(3, 1), b.repeat(3, 1)),
    "linear": lambda a, b: F.linear(a, b),
    "LSTMCell": lambda a, b: torch.lstm_cell(a, (b, b), b.repeat(4, 1), b.repeat(4, 1), b[0].repeat(4), b[0].repeat(4))[
        0
    ],
    "matmul": lambda a, b: a.matmul(b),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "mm": lambda a, b: a.mm(b),
    "mv": lambda a, b: a.mv(b[0]),
    "prelu": lambda a, b: F.prelu(a, b[0]),
    "scaled_dot_product_attention": lambda a, b: F.scaled_dot_product_attention(
        a[None, None], b[None, None], b[None, None]
    ),
}
FULL: dict[str, Callable[..., Any]] = {
    "__pow__": lambda a: a**2,
    "__rdiv__": lambda a: 2 / a,
    "__rpow__": lambda a: 2**a,
    "acos": torch.acos,
    "asin": torch.asin,
    "binary_cross_entropy_with_logits": lambda a: F.binary_cross_entropy_with_logits(a, a),
    "cosh": torch.cosh,
    "cosine_embedding_loss": lambda a: F.cosine_embedding_loss(a, a, zeros(a, 4) + 1),
    "cdist": lambda a: torch.cdist(a, a),
    "cosine_similarity": lambda a: F.cosine_similarity(a, a),
    "cross_entropy": lambda a: F.cross_entropy(a, zeros(a, 4)),
    "cumprod": lambda a: a.cumprod(0),
    "cumsum": lambda a: torch.cumsum(a, 0),
    "dist": lambda a: torch.dist(a, a),
    "erfinv": torch.erfinv,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "group_norm": lambda a: F.group_norm(a, 2),
    "hinge_embedding_loss": lambda a: F.hinge_embedding_loss(a, zeros(a, 4, 4) + 1),
    "kl_div": lambda a: F.kl_div(a, a, reduction="sum"),
    "l1_loss": lambda a: F.l1_loss(a, a),
    "layer_norm": lambda a: F.layer_norm(a, (4,)),
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "log_softmax": lambda a: F.log_softmax(a, 0),
    "margin_ranking_loss": lambda a: F.margin_ranking_loss(a, a, a),
    "mse_loss": lambda a: F.mse_loss(a, a),
    "multi_margin_loss": lambda a: F.multi_margin_loss(a, zeros(a, 4)),
    "nll_loss": lambda a: F.nll_loss(a, zeros(a, 4)),
    "norm": lambda a: a.norm(),
    "norm along a dimension": lambda a: torch.norm(a, 2, 0),
    "normalize": lambda a: F.normalize(a),
    "pdist": lambda a: F.pdist(a),
    "poisson_nll_loss": lambda a: F.poisson_nll_loss(a, a),
    "pow": lambda a: a.pow(3),
    "prod": lambda a: a.prod(),
    "prod along a dimension": lambda a: torch.prod(a, 0),
    "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "sinh": torch.sinh,
    "smooth_l1_loss": lambda a: F.smooth_l1_loss(a, a),
    "soft_margin_loss": lambda a: F.soft_margin_loss(a, a),
    "softmax": lambda a: a.softmax(0),
    "softmin": lambda a: F.softmin(a, 0),
    "softplus": F.softplus,
    "sum": lambda a: a.sum(),
    "sum along a dimension": lambda a: torch.sum(a, 0),
    "renorm": lambda a: torch.renorm(a, 2, 0, 1.0),
    "tan": torch.tan,
    "triplet_margin_loss": lambda a: F.triplet_margin_loss(a, a, a),
}
WIDEST: dict[str, Callable[..., Any]] = {
    "addcdiv": lambda a, b: torch.addcdiv(a, b, a),
    "addcmul": lambda a, b: torch.addcmul(a, b, a),
    "atan2": torch.atan2,
    "bilinear": lambda a, b: F.bilinear(a, b, a[None].repeat(4, 1, 1)),
    "cat": lambda a, b: torch.cat([a, b]),
    "cross": lambda a, b: torch.cross(a[:, :3], b[:, :3], dim=1),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "index_put": lambda a, b: a.index_put((zeros(a, 1),), b[:1]),
    "scatter_add": lambda a, b: a.scatter_add(0, zeros(a, 4, 4), b),
    "stack": lambda a, b: torch.stack([a, b]),
    "tensordot": lambda a, b: torch.tensordot(a, b),
}
AS_THEY_ARE: dict[str, Callable[..., Any]] = {
    "add": lambda a: a + a,
    "mean": torch.mean,
    "gelu": F.gelu,
    "relu": F.relu,
    "max_pool1d": lambda a: F.max_pool1d(a, 2),
    "sigmoid": torch.sigmoid,
    "amax": torch.amax,
    "dropout": lambda a: F.dropout(a, 0.5, True),
}


class Cast(nn.Module):
    """Calls a function with its tensors cast to a dtype: all of them, or only the first."""

    def __init__(self, function: Callable[..., Any], dtype: torch.dtype, only_first: bool = False) -> None:
        super().__init__()
        self.function, self.dtype, self.only_first = function, dtype, only_first

    def forward(self, *tensors: torch.Tensor) -> Any:
        first, *others = tensors
        return self.function(first.to(self.dtype), *(t if self.only_first else t.to(self.dtype) for t in others))


class Parts(nn.Module):
    """Calls several parts with the same tensors."""

    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts.values())

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        return [part(*tensors) for part in self.parts]


def dtypes(parts: dict[str, nn.Module], tensors: int, half: torch.dtype) -> dict[str, torch.dtype]:
    """Return the dtype of each part's result, counted for a GPU under autocast."""
    with torch.device("meta"):
        given = tuple(torch.ones(4, 4) for _ in range(tensors))
        report = fxflops.count(Parts(parts), given, device="cuda", autocast=half)
    outs = {call.path: call.out for call in report.calls}  # the last call of each path
    found = [outs[f"parts.{number}"] for number in range(len(parts))]
    return {name: (out if hasattr(out, "dtype") else out[0]).dtype for name, out in zip(parts, found, strict=True)}


@pytest.mark.parametrize("half", HALVES)
def test_in_the_lower_dtype(half: torch.dtype) -> None:
    parts = {name: Calls(function) for name, function in LOWER.items()}
    assert dtypes(parts, 2, half) == dict.fromkeys(LOWER, half)


@pytest.mark.parametrize("half", HALVES)
def test_in_float32(half: torch.dtype) -> None:
    parts = {name: Cast(function, half) for name, function in FULL.items()}
    assert dtypes(parts, 1, half) == dict.fromkeys(FULL, f32)


def test_in_the_widest_dtype() -> None:
    half = torch.bfloat16
    mixed = {name: Cast(function, half, only_first=True) for name, function in WIDEST.items()}
    assert dtypes(mixed, 2, half) == dict.fromkeys(WIDEST, f32)
    lower = {name: Cast(function, half) for name, function in WIDEST.items()}
    assert dtypes(lower, 2, half) == dict.fromkeys(WIDEST, half)


def test_as_they_are() -> None:
    half = torch.bfloat16
    full = {name: Calls(function) for name, function in AS_THEY_ARE.items()}
    assert dtypes(full, 1, half) == dict.fromkeys(AS_THEY_ARE, f32)
    lower = {name: Cast(function, half) for name, function in AS_THEY_ARE.items()}
    assert dtypes(lower, 1, half) == dict.fromkeys(AS_THEY_ARE, half)


def test_an_own_dtype_wins_whichever_call_comes_first() -> None:
    for dtypes in ([torch.float64, None], [None, torch.float64]):
        both = Calls(lambda a, dtypes=dtypes: [a.bfloat16().sum(dtype=dtype) for dtype in dtypes])
        report = fxflops.count(both, torch.ones(4), device="cuda", autocast=torch.bfloat16)
        sums = [call.out.dtype for call in report.calls if call.op == "sum"]
        assert sums == [dtype or f32 for dtype in dtypes]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.norm, self.last = (
            nn.Embedding(50, 64),
            nn.Linear(64, 256),
            nn.LayerNorm(256),
            nn.Linear(256, 64),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for _ in range(2):  # in the second round the cast weights are already in autocast's cache
            x = x + self.last(self.norm(F.gelu(self.first(x))))
        return x.softmax(-1).sum()


@pytest.mark.parametrize("backward", [False, True])
def test_on_the_cpu_what_a_run_has_alive(backward: bool) -> None:
    model, ids = Net(), torch.randint(50, (4, 32))
    report = fxflops.count(model, ids, backward=backward, autocast=torch.bfloat16)
    with torch.set_grad_enabled(backward), Live([*model.parameters(), ids]) as live:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(ids)
        if backward:
            loss.backward()
    assert report.trace == "counted on the meta device"
    # The CPU's norm and GELU kernels also hold a few numbers.
    assert report.max_memory == pytest.approx(live.peak, rel=0.01)


class Scaled(torch.autograd.Function):
    """A product whose backward pass runs under the same autocast as its forward pass."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return grad @ b.T, a.T @ grad


def by_name(a: torch.Tensor) -> torch.Tensor:
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        return a @ a


def by_position(a: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", torch.bfloat16, True, False):
        return a @ a


def of_a_subclass(a: torch.Tensor) -> torch.Tensor:
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        return a @ a


def decorated(a: torch.Tensor) -> torch.Tensor:
    return torch.autocast("cuda", torch.bfloat16)(lambda b: b @ b)(a)  # type: ignore[no-any-return]


def in_a_thread(a: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(by_name, a).result()


def turned_off(a: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", torch.bfloat16), torch.autocast("cuda", enabled=False):
        return a @ a


REGIONS = {
    by_name: "bf16",
    by_position: "bf16",
    of_a_subclass: "bf16",
    decorated: "bf16",
    in_a_thread: "bf16",
    turned_off: "f32",
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.cuda.amp.autocast
@pytest.mark.parametrize("region", REGIONS)
def test_regions_that_a_forward_makes(region: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """However a region is created, it casts as on a GPU without a warning from torch. A user's profiler does not change the count."""
    count = partial(fxflops.count, Calls(region), torch.ones(8, 8), device="cuda")
    constructor = torch.autocast.__init__
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "CUDA is not available")
        assert {*count().by_dtype()} == {REGIONS[region]}
        with Profile() as profiler:
            assert {*count().by_dtype()} == {REGIONS[region]}
            region(torch.ones(2, 2)) if torch.cuda.is_available() else None
    assert any(name == region.__name__ for _, _, name in pstats.Stats(profiler).stats)  # type: ignore[attr-defined]
    assert torch.autocast.__init__ is constructor


def test_a_backward_runs_under_the_autocast_of_its_forward() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, 8))

        def forward(self, a: torch.Tensor) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                return Scaled.apply(a, self.weight)

    report = fxflops.count(Net().to("meta"), torch.ones(8, 8, device="meta"), device="cuda", backward=True)
    products = [call for call in report.calls if call.op in ("mm", "matmul")]
    assert {call.phase for call in products} >= {"forward", "backward"}
    assert {call.out.dtype for call in products} == {torch.bfloat16}


def test_other_threads_make_their_regions_as_ever() -> None:
    """While one thread counts for an absent GPU, a region that another thread creates is disabled, and torch warns about it."""
    if torch.cuda.is_available():
        pytest.skip("torch turns no region off where there is a GPU")
    seen: list[Any] = []

    def elsewhere() -> None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            seen.append(torch.autocast("cuda", torch.bfloat16)._enabled)
            seen.extend(str(each.message) for each in said)

    work, done = Event(), Event()

    def other() -> None:
        work.wait(60)
        elsewhere()
        done.set()

    def forward(a: torch.Tensor) -> torch.Tensor:
        work.set()
        done.wait(60)
        return by_name(a)

    thread = Thread(target=other)
    thread.start()
    report = fxflops.count(Calls(forward), torch.ones(4, 4), device="cuda")
    thread.join()
    assert {*report.by_dtype()} == {"bf16"}
    assert seen[0] is False
    assert "CUDA is not available" in seen[1]


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_it_is_the_region_that_a_model_opens_itself() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return self.net(ids)

    ids = torch.randint(50, (4, 32))
    own = fxflops.count(Own(), ids, backward=True, device="cuda", optimizer=torch.optim.AdamW)
    asked = fxflops.count(
        Net(), ids, backward=True, device="cuda", optimizer=torch.optim.AdamW, autocast=torch.bfloat16
    )
    assert (own.total_training_flops, own.max_memory) == (asked.total_training_flops, asked.max_memory)
    assert own.by_dtype().keys() == asked.by_dtype().keys()
    assert "bf16" in asked.by_dtype()


def test_nothing_of_it_stays() -> None:
    before = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    constructor = torch.autocast.__init__
    for device in ("cpu", "cuda"):
        with pytest.raises(fxflops.FxflopsError):
            fxflops.count(Calls(lambda a: a @ a.new_zeros(7)), torch.ones(4, 4), device=device, autocast=torch.float16)
        fxflops.count(Calls(lambda a: a @ a), torch.ones(4, 4), device=device, autocast=torch.float16)
    assert torch.autocast.__init__ is constructor
    assert [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")] == before
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


@pytest.mark.parametrize("wrong", [torch.float32, torch.int8, "bf16", True])
def test_other_dtypes_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"torch\.bfloat16 or torch\.float16"):
        fxflops.count(nn.Linear(4, 4), torch.ones(4, 4), autocast=wrong)

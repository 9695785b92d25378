"""conventions "deepspeed" and "deepspeed_macs": the numbers of DeepSpeed's own run, on the models of the pool and op by op.

If DeepSpeed is not installed they are compared with ``of_deepspeed.json``, written by ``of_deepspeed.py``: the numbers of DeepSpeed
0.19.8 with torch 2.14, each from its own process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from fxflops import count
from tests.conventions.of_deepspeed import BY_TORCH, OPS, WRITTEN, Numbers, case, theirs
from tests.conventions.pool import POOL
from tests.conventions.replaced import Runs, applied, of, restored

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning"),
]
KNOWN: dict[str, Numbers] = {name: tuple(numbers) for name, numbers in json.loads(WRITTEN.read_text()).items()}


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The profiler's module. Afterwards torch is restored, and the profiler's stacks are empty."""
    if "DS_ACCELERATOR" not in os.environ:
        monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: DS_BUILD_OPS=0 pip install deepspeed")
    from deepspeed.profiling.flops_profiler import profiler

    with restored():
        yield profiler
    profiler.module_flop_count.clear()
    profiler.module_mac_count.clear()


def ours(model: nn.Module, args: Any, kwargs: Any) -> Numbers:
    report = count(model, args, kwargs)
    flops, macs = report.recount("deepspeed"), report.recount("deepspeed_macs")
    assert flops.total_macs == macs.total_macs == report.total_macs
    assert flops.total_int_ops == macs.total_int_ops == 0
    return flops.total_flops, macs.total_flops, report.total_params


def test_every_case_is_written_down() -> None:
    assert list(KNOWN) == [*BY_TORCH, *OPS]


@pytest.mark.parametrize("name", [*BY_TORCH, *OPS])
def test_the_numbers_are_those_written_down(name: str) -> None:
    assert ours(*case(name)) == KNOWN[name]


@pytest.mark.filterwarnings("ignore:.*chain_matmul")
@pytest.mark.parametrize("name", [*POOL, *OPS])
def test_the_numbers_are_deepspeeds(name: str, deepspeed: Any) -> None:
    model, args, kwargs = case(name)
    with restored():
        its = tuple(theirs(model, args, kwargs))
    assert ours(model, args, kwargs) == its == KNOWN.get(name, its)


def flops_of(model: nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """FLOPs under the deepspeed convention, and under flops-profiler's."""
    report = count(model, x)
    return report.recount("deepspeed").total_flops, report.recount("flops_profiler").total_flops


def test_what_it_counts_that_flops_profiler_does_not() -> None:
    step = (2 * 64 * 8 - 64) + (2 * 64 * 16 - 64) + 64 + 64 + 10 * 16  # weights of [64, 8] and [64, 16]
    older = 64 * 8 + 64 * 16 + 64 + 64 + 10 * 16
    assert flops_of(nn.LSTM(8, 16), torch.empty(4, 16, 8)) == (4 * 16 * step, 4 * 16 * older) == (206_848, 116_736)
    assert flops_of(*of(lambda x: F.interpolate(x, scale_factor=2), 1, 4, 16, 8)) == (4 * 512, 512)
    scores = 2 * (2 * 3 * 7 * 7 * 4)
    assert flops_of(*of(lambda x: F.scaled_dot_product_attention(x, x, x), 2, 3, 7, 4)) == (2 * scores, 0)
    assert flops_of(*of(lambda x: x @ x, 5, 5)) == (2 * 125, 0)


def test_a_tiny_llama() -> None:
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        attn_implementation="sdpa",
    )  # fmt: skip
    report = count(transformers.LlamaForCausalLM(config).eval(), torch.arange(5, 21)[None])
    weights, tokens = 2 * (4 * 64 * 64 + 3 * 64 * 128) + 64 * 100, 16
    expected = {
        "linear": 2 * tokens * weights,
        "silu": 2 * tokens * 128,
        "attention": 2 * 2 * (2 * tokens * tokens * 64),
    }
    for convention, charged in (("deepspeed", expected), ("flops_profiler", {**expected, "attention": 0})):
        rows = report.recount(convention).by_operator()
        assert {name: rows[name].total.flops for name in expected} == charged


class Shared(nn.Module):
    """Two modules that share a third."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.first, self.second = nn.Sequential(nn.Linear(4, 4), act), nn.Sequential(act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = F.gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x)


def test_a_module_of_two_others_is_charged_once(deepspeed: Any) -> None:
    x = torch.randn(2, 4)
    assert ours(Shared(), (x,), {}) == tuple(theirs(Shared(), (x,), {})) == (2 * 2 * 16 + 2 * 8, 2 * 16, 20)


def test_what_a_module_keeps_is_not_seen(deepspeed: Any) -> None:
    x = torch.randn(2, 4)
    assert ours(Keeps(), (x,), {}) == tuple(theirs(Keeps(), (x,), {})) == (0, 0, 0)
    assert count(Keeps(), x).total_flops > 0


gelu, relu = F.gelu, F.relu


def by_einops(x: torch.Tensor) -> Any:
    import einops

    return einops.einsum(x, x, "a b, c b -> a c")


EXCEPTIONS: dict[str, tuple[Callable[[torch.Tensor], Any], int, int]] = {
    # Charged by us, not seen by the tool, which does not replace functions under these names
    "imported before": (lambda x: relu(gelu(x)), 2 * 8, 0),
    "the second name of F.prelu": (lambda x: torch.prelu(x, torch.ones(1)), 8, 0),
    # Charged by us as methods, but not by the tool: Python's sum() adds like an operator
    "sum": (lambda x: sum([x, x]), 2 * 8, 0),
    # Charged twice by the tool: both functions of the call are replaced
    "F.upsample": (lambda x: F.upsample(x[None], scale_factor=2), 16, 32),
    "einops.einsum": (by_einops, 33, 66),
}
"""Cases in which we differ: the call, our FLOPs and the tool's."""


@pytest.mark.filterwarnings("ignore:.nn.functional.upsample. is deprecated:UserWarning")
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_the_exceptions(name: str, deepspeed: Any) -> None:
    run, mine, its = EXCEPTIONS[name]
    model, x = of(run, 2, 4)
    assert ours(model, (x,), {})[0] == mine
    assert theirs(model, (x,), {})[0] == its


RAISING: dict[str, tuple[Callable[[], tuple[nn.Module, torch.Tensor]], type[Exception], int]] = {
    "attention by name": (
        lambda: of(lambda x: F.scaled_dot_product_attention(query=x, key=x, value=x), 2, 5, 4), TypeError, 2 * 2 * 2 * 100,
    ),
    "pooling by name": (lambda: of(lambda x: F.adaptive_avg_pool2d(x, output_size=2), 2, 5, 4, 4), TypeError, 160),
    "a size by name": (lambda: of(lambda x: F.interpolate(input=x, size=5), 2, 5, 4, 4), IndexError, 5),
    "no batch": (
        lambda: (Runs(applied, nn.Conv2d(4, 6, 3)), torch.randn(4, 5, 5)), AssertionError, 2 * 4 * 9 * 54 + 54,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISING)
def test_where_it_raises_we_count_what_it_means(name: str, deepspeed: Any) -> None:
    build, error, mine = RAISING[name]
    model, x = build()
    with restored(), pytest.raises(error):
        theirs(model, (x,), {})
    assert ours(model, (x,), {})[0] == mine

"""The count depends on the device that is counted for, not on the device that the model happens to be on.

For a given device, a model has the same count and predicted peak whether it was built on the CPU or on meta. The CPU's peak is
compared with the storages alive in a step on real tensors. A GPU's peak follows from the tensors that its kernels are known to
save.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import fxflops
from benchmarks.allocator import allocated

HEADS, WIDTH, LENGTH = 4, 16, 128
attend = F.scaled_dot_product_attention


class Step(nn.Module):
    """A linear layer, a function, and a sum, so that the backward pass starts at one number."""

    def __init__(self, function: Callable[..., torch.Tensor] | nn.Module, heads: int = 0) -> None:
        super().__init__()
        self.layer = nn.Linear(HEADS * WIDTH, HEADS * WIDTH * (3 if heads else 1))
        self.function, self.heads = function, heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.heads:
            q, k, v = y.view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            return self.function(q, k, v).sum()
        return self.function(y).sum()


def plain_products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return attend(q, k, v)


def lower(q: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(q.shape[-2], q.shape[-2], dtype=dtype, device=q.device).tril()


def branching(x: torch.Tensor) -> torch.Tensor:
    """Like a mixture of experts that runs one expert at a time on a CPU, and all together on other devices."""
    if x.device.type == "cpu":
        return torch.cat([part.sin() for part in x.chunk(4)])
    return (x @ x.transpose(-1, -2)).cos()


def under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = x @ x.transpose(-1, -2)
        with torch.autocast(x.device.type, enabled=False):
            return y.float().softmax(-1) @ x


def recurrent(cls: Any, **settings: Any) -> Callable[[], nn.Module]:
    class First(cls):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[0]  # type: ignore[no-any-return]

    return lambda: Step(First(HEADS * WIDTH, 32, **settings))


OF_HEADS: dict[str, Callable[..., torch.Tensor]] = {
    "attention": attend,
    "causal": lambda q, k, v: attend(q, k, v, is_causal=True),
    "bool mask": lambda q, k, v: attend(q, k, v, attn_mask=lower(q, torch.bool)),
    "float mask": lambda q, k, v: attend(q, k, v, attn_mask=lower(q, q.dtype)),
    "learned mask": lambda q, k, v: attend(q, k, v, attn_mask=q @ k.transpose(-1, -2)),
    "grouped": lambda q, k, v: attend(q, k[:, :2], v[:, :2], enable_gqa=True),
    "dropout": lambda q, k, v: attend(q, k, v, dropout_p=0.25),
    "narrow values": lambda q, k, v: attend(q, k, v[..., :8]),
    "odd width": lambda q, k, v: attend(q[..., :3], k[..., :3], v[..., :3]),
    "one head": lambda q, k, v: attend(q[:, 0], k[:, 0], v[:, 0]),
    "five dims": lambda q, k, v: attend(q[None], k[None], v[None]),
    "double": lambda q, k, v: attend(q.double(), k.double(), v.double()),
    "half": lambda q, k, v: attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=True),
    "frozen keys": lambda q, k, v: attend(q, k.detach(), v.detach()),
    "plain products": plain_products,
    "vmap": lambda q, k, v: torch.vmap(attend)(q, k, v),
    "vmap over heads": lambda q, k, v: torch.vmap(attend, in_dims=1, out_dims=1)(q, k, v),
    "checkpoint": lambda q, k, v: checkpoint(attend, q, k, v, use_reentrant=False),
}
OF_ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mish": F.mish,
    "mish in place": lambda x: F.mish(x * 2, inplace=True),
    "silu": F.silu,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "dropout": lambda x: F.dropout(x, 0.25),
    "dropout in place": lambda x: F.dropout(x, 0.25, inplace=True),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "cross entropy": lambda x: F.cross_entropy(x.flatten(0, 1), x.new_zeros(x.shape[:2].numel(), dtype=torch.long)),
    "device.type": branching,
    "is_meta": lambda x: x @ x.transpose(-1, -2) if x.is_meta else x.sin(),
    "autocast": under_autocast,
    "grouped products": lambda x: (
        torch._grouped_mm(
            x.flatten(0, 1), x.new_ones(2, x.shape[-1], 8), offs=x.new_tensor([5, 256], dtype=torch.int32)
        )
        * 2
    ),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda function=function: Step(function, HEADS) for name, function in OF_HEADS.items()},  # type: ignore[misc]
    **{name: lambda function=function: Step(function) for name, function in OF_ONE.items()},  # type: ignore[misc]
    "LSTM": recurrent(nn.LSTM),
    "LSTM both ways": recurrent(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True),
    "LSTM projected": recurrent(nn.LSTM, proj_size=8),
    "GRU": recurrent(nn.GRU),
    "RNN": recurrent(nn.RNN),
    "encoder layer": lambda: Step(nn.TransformerEncoderLayer(HEADS * WIDTH, HEADS, 32, batch_first=True)),
}
TORCHS_OWN = (
    "ignore:There is a performance drop",  # attention under vmap on a CPU
    "ignore:LSTM with projections",
    "ignore:CUDA is not available",  # autocast for an absent GPU
)
SHAPE = 2, LENGTH, HEADS * WIDTH


pytestmark = [pytest.mark.filterwarnings(each) for each in TORCHS_OWN]


def needs_newer(name: str) -> bool:
    return name == "grouped products" and not hasattr(torch, "_grouped_mm")


def figures(report: fxflops.Report) -> tuple[Any, ...]:
    assert report.trace == "counted on the meta device", report.trace_reason
    backward = report.total_backward_flops if report.environment.grad == "grad" else None
    return report.total_flops, report.total_macs, backward, report.max_memory, report.complete


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("backward", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_one_count_wherever_it_was_built(name: str, backward: bool, device: str | None) -> None:
    if needs_newer(name):
        pytest.skip("this torch has no grouped products")
    here = MODELS[name]()
    with torch.device("meta"):
        there, x = MODELS[name](), torch.empty(SHAPE)
    one = fxflops.count(here, torch.rand(SHAPE), backward=backward, device=device)
    other = fxflops.count(there, x, backward=backward, device=device)
    assert figures(one) == figures(other)
    expected = "cuda" if device else "cpu"
    assert [report.environment.device.partition(":")[0].split()[0] for report in (one, other)] == [expected] * 2


@pytest.mark.parametrize("name", [name for name in MODELS if name != "autocast"])  # a mode turns off its cache
def test_a_model_on_meta_has_the_peak_that_a_cpu_has(name: str) -> None:
    if needs_newer(name):
        pytest.skip("this torch has no grouped products")
    torch.manual_seed(0)
    model, x = MODELS[name](), torch.rand(SHAPE)
    model(x).backward()  # oneDNN packs weights once
    model.zero_grad()
    measured = allocated(lambda: model(x).backward(), sum(tensor.nbytes for tensor in [*model.parameters(), x]))
    predicted = fxflops.count(model.to("meta"), x.to("meta"), backward=True).max_memory
    # The predicted peak includes a kernel's internal allocations where torch composes the kernel of other operators. Under vmap, a
    # count includes tensors that torch keeps only while a mode watches, so it may exceed the unwatched peak.
    most = 1.08 if name == "vmap over heads" else 1.02
    assert 0.98 * measured.held <= predicted <= most * measured.peak


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_analyze_on_meta_has_the_peak_that_a_count_has(name: str, backward: bool) -> None:
    if needs_newer(name):
        pytest.skip("this torch has no grouped products")
    with torch.device("meta"):
        model, x = MODELS[name](), torch.empty(SHAPE)
    if name == "LSTM both ways":
        x = x[:, :8]  # four layers, whose operators are observed step by step
    try:
        report = fxflops.analyze(model, x, backward=backward, progress=False)
    except fxflops.RunError as error:  # the model itself also fails on meta
        pytest.skip(str(error).partition("\n")[0])
    counted = fxflops.count(model, x, backward=backward)
    assert (report.max_memory, dict(report.memory)) == (counted.max_memory, dict(counted.memory))
    assert report.latency is None
    assert report.environment.device == counted.environment.device == "cpu"


def test_the_step_of_the_report_that_found_it() -> None:
    """Causal attention over n positions must not keep an n x n tensor (128 MiB for 8 heads), only operands, results and gradients."""

    class Causal(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return attend(q, q, q, is_causal=True)

    q = torch.empty(1, 8, 2048, 64, device="meta", requires_grad=True)
    for device in ("cpu", "cuda"):
        report = fxflops.count(Causal(), q, backward=True, device=device)
        assert report.max_memory < 8 * q.nbytes < 8 * 2048 * 2048 * 4


@pytest.mark.parametrize(("device", "of_mask"), [("cpu", 4), ("cuda", 1)])
def test_each_dropout_saves_its_mask(device: str, of_mask: int) -> None:
    """A CPU saves the scaled mask in the input's dtype, and a GPU saves a mask of booleans. Nothing else is saved."""

    class Dropouts(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.parts = nn.Sequential(*(nn.Dropout(0.25) for _ in range(number)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.parts(x)

    x = torch.empty(1000, 100, requires_grad=True)
    few, more = (fxflops.count(Dropouts(n), x, backward=True, device=device).max_memory for n in (5, 9))
    assert more - few == 4 * x.numel() * of_mask


@pytest.mark.parametrize(
    ("dtype", "width", "masked", "fused"),
    [
        (torch.bfloat16, 64, False, True),
        (torch.bfloat16, 60, False, True),  # padded
        (torch.bfloat16, 256, False, True),
        (torch.bfloat16, 320, True, True),
        (torch.float32, 64, False, True),
        (torch.float32, 64, True, True),
        (torch.float32, 62, False, False),  # rows of 248 bytes
        (torch.float64, 64, False, False),
    ],
)
def test_the_kernels_of_a_gpu(dtype: torch.dtype, width: int, masked: bool, fused: bool) -> None:
    """A GPU has a fused attention kernel for most calls, which keeps no weights. Without it, n x n weights are kept for each head."""
    if torch.cuda.is_available():
        pytest.skip("torch is asked, of this machine's GPU")
    n, heads = 4096, 2

    class Attends(nn.Module):
        def forward(self, q: torch.Tensor, mask: Any = None) -> torch.Tensor:
            return attend(q, q, q, attn_mask=mask)

    q = torch.empty(1, heads, n, width, dtype=dtype, device="meta", requires_grad=True)
    mask = torch.empty(n, n, dtype=dtype, device="meta") if masked else None
    report = fxflops.count(Attends(), (q, mask) if masked else q, backward=True, device="cuda")
    weights, given = heads * n * n * dtype.itemsize, mask.nbytes if mask is not None else 0
    assert (report.max_memory - given < weights) == fused
    assert ("attention_backward" in {call.op for call in report.calls}) == fused


SEEN: list[Any] = []


class Asks(nn.Module):
    """Code that asks which device its tensors are on, and creates others there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN[:] = [{
            "device": x.device.type, "is_cuda": x.is_cuda, "is_cpu": x.is_cpu, "is_meta": x.is_meta,
            "weight": self.layer.weight.device.type, "made": torch.zeros(3, device=x.device).device.type,
        }]  # fmt: skip
        torch.vmap(lambda row: SEEN.append(row.device.type) or row)(x)
        y = self.layer(x) + torch.zeros(8, device=x.device) + torch.arange(8, device=x.device)
        y = y.to(x.device).to(device=x.device, dtype=torch.float64).to(x)
        return y + y.new_zeros(8) + torch.full((8,), 2.0, device=self.layer.weight.device)


@pytest.mark.parametrize("built", ["cpu", "meta"])
@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_the_models_code_sees_the_device(device: str, built: str) -> None:
    model, kind = Asks().to(built), device.partition(":")[0]
    assert fxflops.count(model, torch.empty(2, 8, device=built), device=device).complete
    assert [{
        "device": kind, "is_cuda": kind == "cuda", "is_cpu": kind == "cpu", "is_meta": False, "weight": kind, "made": kind,
    }, kind] == SEEN  # fmt: skip
    assert {tensor.device.type for tensor in model.parameters()} == {built}


def test_the_report_names_the_device(tmp_path: Path) -> None:
    report = fxflops.count(nn.Linear(2, 3), torch.empty(4, 2, device="meta"), device="cuda")
    report.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["environment"]["device"].startswith("cuda")
    assert "cuda" in str(report).partition("\n")[0]
    assert fxflops.Report.load(tmp_path / "report.json").environment == report.environment


@pytest.mark.parametrize("device", ["meta", "mps", "gpu", 3.5])
def test_a_device_whose_kernels_are_not_known(device: Any) -> None:
    with pytest.raises(fxflops.FxflopsError, match=r"'cpu'.*'cuda'"):
        fxflops.count(nn.Linear(2, 3), torch.empty(4, 2), device=device)


def test_values_are_on_one_device_alone() -> None:
    """A model that depends on values runs on its own device. Counting it for another device raises, since the count could be wrong."""

    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() if x.sum() > 0 else x

    x = torch.ones(3)
    assert fxflops.count(Branches(), x).total_flops == 2 + 1 + 3  # the sum, the comparison, the sines
    with pytest.raises(fxflops.FxflopsError, match="cannot be counted for cuda"):
        fxflops.count(Branches(), x, device="cuda")


@pytest.mark.parametrize("backward", [False, True])
def test_a_condition_of_bytes_chooses_on_meta_too(backward: bool) -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            y = torch.where(mask, self.layer(x), x)
            return torch.where(condition=mask, input=y.where(mask, x), other=torch.zeros_like(x))

    x = torch.randn(4, 8)
    mask = torch.ones(4, 8, dtype=torch.uint8)
    model = Chooses()
    of_bytes, of_bools = (fxflops.count(model, (x, m), backward=backward) for m in (mask, mask.bool()))
    there = fxflops.count(Chooses().to("meta"), (x.to("meta"), mask.to("meta")), backward=backward)
    assert (of_bytes.total_flops, of_bytes.max_memory) == (there.total_flops, there.max_memory)
    assert of_bytes.total_flops == of_bools.total_flops


class Packed(nn.Module):
    """Two packed batches of the same shape with different lengths."""

    def __init__(self, cls: type[nn.RNNBase], lengths: list[list[int]]) -> None:
        super().__init__()
        self.layer, self.lengths = cls(8, 16, 2, bidirectional=True), lengths

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for lengths in self.lengths:
            packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
            assert (packed.data.device, packed.batch_sizes.device.type) == (x.device, "cpu")
            out, counted = pad_packed_sequence(self.layer(packed)[0])
            assert counted.tolist() == lengths
            rows.append(out.sum())
        return torch.stack(rows)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_are_counted_for_a_gpu(cls: type[nn.RNNBase], backward: bool) -> None:
    """Every weight multiplies each row of the data once. x has no gradient, and the initial states have none either."""
    lengths = [[2, 5, 3], [5, 4, 3]]
    model, x = Packed(cls, lengths), torch.rand(5, 3, 8)
    report = fxflops.count(model, x, device="cuda", backward=backward)
    assert report.trace == "counted on the meta device", report.trace_reason
    assert report.environment.device.startswith("cuda")
    weights = {name: p for name, p in model.layer.named_parameters() if p.ndim == 2}
    rows = sum(map(sum, lengths))
    forward = rows * sum(p.numel() for p in weights.values())
    assert report.total_macs == forward
    assert report.complete
    if backward:
        of_x = rows * sum(p.numel() for name, p in weights.items() if name.startswith("weight_ih_l0"))
        of_states = sum(map(len, lengths)) * sum(p.numel() for name, p in weights.items() if "_hh_" in name)
        assert report.total_backward_macs == 2 * forward - of_x - of_states
    assert fxflops.count(model, x).total_macs == forward


class Differentiates(nn.Module):
    """A model whose forward runs backward passes of its own."""

    def __init__(self, how: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.net, self.how = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), how

    def forward(self, x: torch.Tensor) -> Any:
        return self.how(self.net, x)


@pytest.mark.parametrize(
    "how",
    [
        lambda net, x: torch.autograd.functional.jacobian(net, x),
        lambda net, x: torch.func.hessian(lambda y: net(y).sum())(x),
        lambda net, x: torch.func.jacfwd(net)(x),
    ],
    ids=["jacobian", "hessian", "jacfwd"],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
def test_derivatives_in_a_forward_are_counted_for_a_gpu(how: Any) -> None:
    model, x = Differentiates(how), torch.rand(4, 8)
    there, here = fxflops.count(model, x, device="cuda"), fxflops.count(model, x)
    assert (there.total_flops, there.total_macs, there.complete) == (here.total_flops, here.total_macs, True)
    assert there.environment.device.startswith("cuda")

"""The backward pass of attention, counted on meta, is the backward of the kernel that the model's device uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import fxflops
from fxflops.model.pytree import fill, template_of, tensors_in
from fxflops.torch_internals import DispatchMode, disable_current_modes, fake_tensors
from fxflops.trace import device_kernels
from fxflops.trace.device_kernels import DeviceKernels
from tests.devices import DEVICES

N, D, HEADS = 16, 32, 4


class Attention(nn.Module):
    def __init__(self, attend: Callable[..., torch.Tensor], heads: int = HEADS) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)
        self.attend = attend
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(-1, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(-1, N, D))


def masked(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(N, N).tril().to(q.device, dtype))


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)


def learned_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, (q @ k.transpose(-1, -2)))


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v)


def dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)


WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "plain": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "scaled": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5),
    "bool mask": masked(torch.bool),
    "float mask": masked(torch.float32),
    "one twice": lambda q, k, v: F.scaled_dot_product_attention(q, k, k),
    "grouped": grouped,
    "learned mask": learned_mask,
    "written out": written_out,
    "dropout": dropped,
}


def backward_calls(report: fxflops.Report) -> list[tuple[str, str, str]]:
    return sorted((call.op, call.path, repr(call.out)) for call in report.calls if call.phase == "backward")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WAYS)
def test_counted_as_it_runs(name: str, device: str) -> None:
    model, x = Attention(WAYS[name]).to(device), torch.randn(2, N, D, device=device)
    counted = fxflops.count(model, x, backward=True)
    ran = fxflops.analyze(model, x, backward=True, trace="record", repeats=0, progress=False)
    assert counted.trace == "counted on the meta device", counted.trace_reason
    assert backward_calls(counted) == backward_calls(ran)
    assert counted.total_backward_flops == ran.total_backward_flops
    assert counted.complete


def test_the_weights_of_the_attention_are_not_kept() -> None:
    """Fused attention over n positions keeps no n x n tensor; written out, it does."""
    x = torch.randn(2, N, D)
    fused, plain = (fxflops.count(Attention(WAYS[name]), x, backward=True) for name in ("plain", "written out"))
    ran = fxflops.analyze(Attention(WAYS["plain"]), x, backward=True, trace="record", repeats=0, progress=False)
    assert fused.max_memory == ran.max_memory < plain.max_memory


@pytest.mark.parametrize("name", WAYS)
def test_a_meta_model_is_counted_for_the_cpu(name: str) -> None:
    model, x = Attention(WAYS[name]), torch.randn(2, N, D)
    here = fxflops.count(model, x, backward=True)
    there = fxflops.count(model.to("meta"), x.to("meta"), backward=True)
    assert backward_calls(there) == backward_calls(here)
    assert there.max_memory == here.max_memory


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class Dispatched(DispatchMode):
    """Records each operator, and the shapes, strides and dtypes of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen.append((func.name(), [(t.shape, t.stride(), t.dtype) for t in tensors_in(out)]))
        return out


Q, K = meta(2, 4, 16, 8), meta(2, 4, 24, 8)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((Q, K, K), {}),
    "by name": ((), {"value": K, "query": Q, "key": K}),
    "causal": ((Q, Q, Q, None, 0.0, True), {"scale": 0.3}),
    "half": ((Q.half(), K.half(), K.half()), {}),
    "queries side by side": ((meta(2, 16, 4, 8).transpose(1, 2), K, K), {}),
    "queries across": ((meta(2, 4, 8, 16).transpose(2, 3), K, K), {}),
    "mask": ((Q, K, K), {"attn_mask": meta(16, 24)}),
    "mask of batches": ((Q, K, K, meta(2, 1, 16, 24)), {}),
    "mask across": ((Q, K, K, meta(2, 4, 24, 16).transpose(2, 3)), {}),
    "mask expanded": ((Q, K, K, meta(1, 4, 16, 24).expand(2, 4, 16, 24)), {}),
    "mask of booleans": ((Q, K, K, meta(16, 24, dtype=torch.bool)), {}),
    "dropout": ((Q, K, K), {"dropout_p": 0.1}),
    "grouped": ((Q, meta(2, 2, 24, 8), meta(2, 2, 24, 8)), {"enable_gqa": True}),
    "other value heads": ((Q, K, meta(2, 4, 24, 6)), {}),
    "other value heads in half": ((Q.half(), K.half(), meta(2, 4, 24, 6).half()), {}),
    "other value heads, causal": ((Q, Q, meta(2, 4, 16, 6)), {"is_causal": True}),
    "one head": ((meta(2, 16, 8), meta(2, 24, 8), meta(2, 24, 8)), {}),
    "no queries": ((meta(2, 4, 0, 8), K, K), {}),
}


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_on_meta_attention_dispatches_what_it_does_on_the_cpu(name: str, needs_grad: bool) -> None:
    template, tensors = template_of(CALLS[name])
    there = [torch.zeros_like(tensor, device="cpu") for tensor in tensors]
    here = [tensor.detach() for tensor in tensors]
    for tensor in (*there, *here) if needs_grad else ():
        tensor.requires_grad_(tensor.is_floating_point())
    with torch.set_grad_enabled(needs_grad):
        with Dispatched() as real:
            args, kwargs = fill(template, *there)
            F.scaled_dot_product_attention(*args, **kwargs)
        with Dispatched() as on_meta:
            args, kwargs = fill(template, *here)
            run = DeviceKernels(torch.device("cpu")).run
            if run(F.scaled_dot_product_attention, args, kwargs) is NotImplemented:
                F.scaled_dot_product_attention(*args, **kwargs)
    assert on_meta.seen == real.seen


def test_kernels_that_are_allowed_later_are_asked_for_anew() -> None:
    run = DeviceKernels(torch.device("cpu")).run
    with torch.no_grad():
        assert isinstance(run(F.scaled_dot_product_attention, (Q, K, K), {}), torch.Tensor)
        with sdpa_kernel(SDPBackend.MATH):
            assert run(F.scaled_dot_product_attention, (Q, K, K), {}) is NotImplemented


def test_a_default_device_changes_no_kernel() -> None:
    run = DeviceKernels(torch.device("cpu")).run
    with torch.no_grad(), torch.device("meta"):
        assert isinstance(run(F.scaled_dot_product_attention, (Q, K, K), {}), torch.Tensor)


def keeping(q: torch.Tensor) -> torch.Tensor:
    return q.detach() + q


def hiding(q: torch.Tensor) -> torch.Tensor:
    with disable_current_modes():
        hidden = another(q)
    return q + hidden


def returning(q: torch.Tensor) -> torch.Tensor:
    with disable_current_modes():
        return another(q)


def another(fake: Any) -> torch.Tensor:
    """A fake tensor that no operator returned."""
    return fake_tensors()[0](fake.fake_mode, meta(2, 3), torch.device("cpu"))


@pytest.mark.parametrize(("function", "known"), [(keeping, True), (hiding, False), (returning, False)])
def test_a_call_is_made_again_where_all_its_tensors_are_known(
    function: Any, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_kernels, "DEVICE_DEPENDENT", {function})
    monkeypatch.setattr(device_kernels, "RECURRENT", [function])
    with torch.no_grad():
        out = DeviceKernels(torch.device("cpu")).run(function, (meta(2, 3),), {})
    assert (out is not NotImplemented) is known
    assert not known or out.shape == (2, 3)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_dropout_of_a_gpu_saves_a_mask_of_booleans(needs_grad: bool) -> None:
    """torch chooses its kernel by the device of a fake tensor, so no GPU is needed."""
    x = meta(2, 3).requires_grad_(needs_grad)
    for device, names in [("cuda", ["aten::native_dropout"]), ("cpu", [])]:
        with torch.set_grad_enabled(needs_grad), Dispatched() as seen:
            out = DeviceKernels(torch.device(device)).run(F.dropout, (x, 0.1), {})
        assert [name for name, _ in seen.seen] == names
        assert (out is NotImplemented) is (device == "cpu")
    with Dispatched() as seen:
        assert DeviceKernels(torch.device("cuda")).run(F.dropout, (x, 0.1, False), {}) is x
    assert seen.seen == []


def test_the_gradient_of_a_gpus_dropout() -> None:
    x = meta(2, 3).requires_grad_()
    out = DeviceKernels(torch.device("cuda")).run(F.dropout, (x,), {"p": 0.1})
    with Dispatched() as seen:
        out.backward(meta(2, 3))
    assert "aten::native_dropout_backward" in [name for name, _ in seen.seen]

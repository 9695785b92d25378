"""Run steps of random nets, and compare their tensors, bytes and totals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fxflops import Report


@contextmanager
def written_out() -> Iterator[None]:
    """Run attention and encoder layers without torch's fused kernel, as they run under any mode."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class Watching(TorchDispatchMode):
    """A mode that does nothing itself. Under any mode, torch allocates more: autograd sums gradients into new tensors, and ``linear``
    adds its bias into a new tensor.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def stepped(model: nn.Module, args: Any, kwargs: Any, training: bool) -> Any:
    """Run the net, and its backward pass if ``training``. Return the net's output."""
    out = model(*args, **kwargs)
    if training:
        roots = list({id(t): t for t in tensors(out) if t.requires_grad}.values())
        torch.autograd.backward(roots, [t.new_ones(()).expand_as(t) for t in roots])
    return out


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, including nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def held_by(model: nn.Module, inputs: Any, optimizer: Any = None) -> int:
    """Return the bytes of the storages of a model, its inputs, their gradients and an optimizer's state."""
    found = [*model.parameters(), *tensors(inputs), *tensors([vars(module) for module in model.modules()])]
    found += [t.grad for t in found if t.is_leaf and t.grad is not None]
    found += [] if optimizer is None else [*tensors([*optimizer.state.values()])]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in found}.values())


def values(model: nn.Module, inputs: Any) -> list[Any]:
    """Return all tensors of a model and its inputs, with their gradients."""
    found = [*tensors([vars(module) for module in model.modules()]), *tensors(inputs)]
    return [each for t in found for each in (t, t.grad if t.is_leaf else None)]


def same(a: Any, b: Any, close: bool = False) -> bool:
    """Return whether the tensors in two values are equal bit for bit.

    If ``close``, they may differ by rounding: torch may choose another kernel under a mode.
    """
    ours, theirs = [*tensors(a)], [*tensors(b)]
    alike = partial(torch.allclose, rtol=1e-3, atol=1e-4, equal_nan=True) if close else _equal
    return len(ours) == len(theirs) and all(
        x.shape == y.shape and x.dtype == y.dtype and alike(x, y) for x, y in zip(ours, theirs, strict=True)
    )


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def difference(a: Any, b: Any) -> str:
    ours, theirs = [*tensors(a)], [*tensors(b)]
    return (
        f"{len(ours)} {len(theirs)} {[i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if not same(x, y)]}"
    )


def macs_of(report: Report, phase: str) -> int:
    return sum(each.macs for each in report.counted if each.call.phase == phase)


def totals(report: Report) -> dict[str, Any]:
    names = "total_flops total_macs total_int_ops total_gradient_flops total_backward_flops total_backward_macs total_recompute_flops complete"
    return {name: getattr(report, name) for name in names.split()}


def operators(a: Report, b: Report) -> dict[str, Any]:
    """Return the operators whose calls or FLOPs differ between two reports, with both reports' calls and FLOPs."""
    found = []
    for report in (a, b):
        rows: dict[Any, list[int]] = {}
        for each in report.counted:
            row = rows.setdefault((each.call.phase, each.call.op), [0, 0])
            row[0] += 1
            row[1] += each.flops
        found.append({key: tuple(row) for key, row in rows.items() if row[1]})
    return {
        " ".join(key): (found[0].get(key), found[1].get(key))
        for key in {**found[0], **found[1]}
        if found[0].get(key) != found[1].get(key)
    }

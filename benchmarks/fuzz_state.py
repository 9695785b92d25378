"""The state of a model, its inputs and the process, as plain values that can be compared bit for bit."""

from __future__ import annotations

import random
from types import FunctionType
from typing import Any

import numpy
import torch
from torch import nn


def frozen(value: Any, deep: int = 8, within: tuple[int, ...] = ()) -> Any:
    """Return a comparable copy of a value: tensors as bytes, layout and identity; containers and objects as their contents."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, complex, type, FunctionType)):
        return value
    if isinstance(value, torch.Tensor):
        return _tensor(value, deep, within)
    if id(value) in within or not deep:
        return "...", id(value)
    within = (*within, id(value))
    if isinstance(value, dict):
        items = [(key, frozen(item, deep - 1, within)) for key, item in value.items()]
        return type(value).__name__, id(value), tuple(items)
    if isinstance(value, (list, tuple, set)):
        return type(value).__name__, tuple(frozen(item, deep - 1, within) for item in value)
    if isinstance(value, torch.Generator):
        return "generator", id(value), value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return "random", id(value), value.getstate()
    held = frozen(vars(value), deep - 1, within)[-1] if hasattr(value, "__dict__") else ()
    return type(value), id(value), held


def _tensor(tensor: torch.Tensor, deep: int, within: tuple[int, ...]) -> Any:
    if id(tensor) in within:
        return "...", id(tensor)
    within = (*within, id(tensor))
    noted = tuple((key, frozen(value, deep - 1, within)) for key, value in sorted(vars(tensor).items()))
    grad = frozen(tensor.grad, 1, within) if tensor.is_leaf else None
    data = tensor.detach().contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor.new_zeros(0)
    lying = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.data_ptr())
    return (type(tensor), id(tensor), lying, data.numpy().tobytes(), tensor.requires_grad, tensor.is_leaf, noted, grad)


def state(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """Return the state that fxflops must not change."""
    paths = {path: frozen(vars(module), 5) for path, module in model.named_modules(remove_duplicate=False)}
    return {
        **{f"module {path!r}": (type(model.get_submodule(path)), held) for path, held in paths.items()},
        "inputs": frozen(inputs),
        **process(),
    }


def process() -> dict[str, Any]:
    """Return the state of the process's random generators and of torch's global switches."""
    return {
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
        "numpy": numpy.random.get_state()[1].tobytes(),
        "autograd": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "modes": torch._C._len_torch_dispatch_stack(),
        "functions": torch._C._len_torch_function_stack(),
    }  # fmt: skip


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return every state that has changed, with the place of its first difference; "" if nothing has changed."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return "; ".join(f"{name}: {_difference(before.get(name), after.get(name))}" for name in names)


def _difference(a: Any, b: Any) -> str:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            if one != other:
                name = f"{a[0]}." if a and isinstance(a[0], str) and i else f"[{i}]"
                return name + _difference(one, other)
    return f"{str(a)[:80]} -> {str(b)[:80]}"

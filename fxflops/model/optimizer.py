"""A copy of an optimizer on other tensors, so that a step can be observed without changing parameters or state."""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import InputError
from .modules import parameters_of
from .pytree import tensors_in

OptimizerLike = Optimizer | Callable[[Iterable[torch.Tensor]], Optimizer]
"""An optimizer, or a function that makes one from parameters: ``torch.optim.AdamW``, a ``functools.partial`` of it."""


def checked_optimizer(optimizer: Any, backward: bool) -> OptimizerLike | None:
    """Return the optimizer. Raises InputError if it is none, or cannot step after one backward pass."""
    if optimizer is None:
        return None
    if not backward:
        raise InputError("an optimizer steps after a backward pass: fxflops.count(..., backward=True, optimizer=...)")
    if not isinstance(optimizer, Optimizer) and not callable(optimizer):
        raise InputError(
            "optimizer must be a torch.optim.Optimizer, or make one from parameters, such as torch.optim.AdamW, "
            f"not {type(optimizer).__name__}"
        )
    step = getattr(optimizer, "step", None)
    closure = None if step is None else inspect.signature(inspect.unwrap(step)).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(
            "this optimizer runs the model again in each step (a closure): use fxflops.profile around a step"
        )
    return cast("OptimizerLike", optimizer)


def of_another(optimizer: OptimizerLike | None, model: nn.Module) -> str:
    """Return a sentence if the model has parameters, and the optimizer none of them; "" otherwise."""
    groups = optimizer.param_groups if isinstance(optimizer, Optimizer) else ()
    own = {id(parameter) for parameter in parameters_of(model)} if groups else ()
    if not own or any(id(parameter) in own for group in groups for parameter in group["params"]):
        return ""
    return (
        f"the optimizer ({type(optimizer).__name__}) has none of the model's parameters: make it of model.parameters()"
    )


def stand_in(
    optimizer: OptimizerLike, parameters: Iterable[torch.Tensor], mirror_of: Callable[[torch.Tensor], torch.Tensor]
) -> Optimizer:
    """Return a copy of the optimizer on the mirrors of its parameters, with a copy of its state.

    A function or class is called with the mirrors of ``parameters``. Raises InputError if it returns no optimizer.
    """
    if not isinstance(optimizer, Optimizer):
        made = optimizer([mirror_of(parameter) for parameter in parameters])
        if not isinstance(made, Optimizer):
            raise InputError(f"optimizer(parameters) returned a {type(made).__name__}, not a torch.optim.Optimizer")
        return made
    copied: Optimizer = object.__new__(type(optimizer))
    vars(copied).update(vars(optimizer))
    copied.param_groups = [{**group, "params": [*map(mirror_of, group["params"])]} for group in optimizer.param_groups]
    copied.state = defaultdict(
        dict, {mirror_of(p): {k: _like(v, p, mirror_of(p)) for k, v in s.items()} for p, s in optimizer.state.items()}
    )
    vars(copied).update(_optimizer_step_pre_hooks=OrderedDict(), _optimizer_step_post_hooks=OrderedDict())
    return copied


def _like(value: Any, parameter: torch.Tensor, mirror: torch.Tensor) -> Any:
    """Return a copy of a value of the state; on meta if its parameter's mirror is, except for scalars (a step count)."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.ndim and value.device == parameter.device and mirror.device.type == "meta":
        return torch.empty_like(value, device="meta")
    return value.clone()


def states_of(optimizer: Optimizer) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors in an optimizer's state, by the names that it gives them: "exp_avg"."""
    states = ((s if isinstance(s, Mapping) else {"": s}) for s in optimizer.state.values())
    return [(str(name), tensor) for state in states for name, value in state.items() for tensor in tensors_in(value)]


def gradients_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Return the gradients of parameters that have one, with the parameters' names."""
    return [(name, p.grad) for name, p in parameters if p.grad is not None]

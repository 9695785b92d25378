"""An optimizer's step on other tensors than its own: counted, and its state's memory predicted, without a trace."""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch.optim import Optimizer

from .errors import InputError

OptimizerLike = Optimizer | Callable[[Iterable[torch.Tensor]], Optimizer]
"""An optimizer, or what makes one of parameters: a class such as ``torch.optim.AdamW``, a ``functools.partial`` of it."""


def checked_optimizer(optimizer: Any, backward: bool) -> OptimizerLike | None:
    """The optimizer; InputError where it is none, or cannot step after one backward pass."""
    if optimizer is None:
        return None
    if not backward:
        raise InputError("an optimizer steps after a backward pass: fxflops.count(..., backward=True, optimizer=...)")
    if not isinstance(optimizer, Optimizer) and not callable(optimizer):
        raise InputError(
            "optimizer must be a torch.optim.Optimizer, or what makes one of parameters such as torch.optim.AdamW, "
            f"not {type(optimizer).__name__}"
        )
    step = getattr(optimizer, "step", None)
    closure = None if step is None else inspect.signature(inspect.unwrap(step)).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(
            "this optimizer runs the model again in each step (a closure): use fxflops.profile around a step"
        )
    return cast("OptimizerLike", optimizer)


def stand_in(
    optimizer: OptimizerLike, parameters: Iterable[torch.Tensor], twin_of: Callable[[torch.Tensor], torch.Tensor]
) -> Optimizer:
    """The optimizer on the twins of its parameters, with a state of its own; made of ``parameters`` where it is not made yet."""
    if not isinstance(optimizer, Optimizer):
        made = optimizer([twin_of(parameter) for parameter in parameters])
        if not isinstance(made, Optimizer):
            raise InputError(f"optimizer made a {type(made).__name__} of the parameters, no torch.optim.Optimizer")
        return made
    twin: Optimizer = object.__new__(type(optimizer))
    vars(twin).update(vars(optimizer))
    twin.param_groups = [{**group, "params": [*map(twin_of, group["params"])]} for group in optimizer.param_groups]
    twin.state = defaultdict(
        dict, {twin_of(p): {k: _like(v, p, twin_of(p)) for k, v in s.items()} for p, s in optimizer.state.items()}
    )
    vars(twin).update(_optimizer_step_pre_hooks=OrderedDict(), _optimizer_step_post_hooks=OrderedDict())
    return twin


def _like(value: Any, parameter: torch.Tensor, twin: torch.Tensor) -> Any:
    """A copy of a state's value; on the twin's device what is on the parameter's, but numbers (a count of steps) as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.ndim and value.device == parameter.device and twin.device.type == "meta":
        return torch.empty_like(value, device="meta")
    return value.clone()

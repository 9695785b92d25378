"""How to run a model, and how to run it again if it turns out to be a callable that runs a backward pass itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from ..errors import InputError
from ..model.optimizer import OptimizerLike

MODES = ("eval", "train", "as_is")
Outcome = TypeVar("Outcome")


class OwnBackwardError(Exception):
    """The callable runs a backward pass itself, so it must run with gradients enabled and without another backward pass.

    The user never sees this error, since :func:`rerun_if_own_backward` catches it and starts the run again.
    """


@dataclass(frozen=True, slots=True)
class Request:
    """How to run a model.

    ``mode`` is the mode of the modules: "eval", "train" or "as_is"; None is "as_is" with ``backward``, otherwise "eval".

    With ``backward``, gradients are enabled, and a backward pass follows the forward. ``own_backward`` is True if the callable runs
    the backward pass itself, e.g. in a training step, so that no other backward pass follows. ``optimizer`` steps after the backward
    pass.

    With ``counts_only``, nothing is computed unless the model needs real values. ``count_for`` is the device to count for, None for
    the model's own device. If ``autocast`` is a dtype, the forward runs under that device's autocast with this dtype.
    """

    mode: str | None = None
    backward: bool = False
    own_backward: bool = False
    optimizer: OptimizerLike | None = None
    counts_only: bool = False
    count_for: torch.device | None = None
    autocast: torch.dtype | None = None

    @property
    def mode_of_modules(self) -> str:
        """The mode "eval", "train" or "as_is". Raises InputError for an unknown mode."""
        mode = self.mode or ("as_is" if self.backward else "eval")
        if mode not in MODES:
            raise InputError(f"unknown mode {mode!r}; expected one of {', '.join(map(repr, MODES))}")
        return mode

    @property
    def adds_backward(self) -> bool:
        """Whether a backward pass follows the forward: one is requested, and the callable does not run it itself."""
        return self.backward and not self.own_backward


def rerun_if_own_backward(request: Request, name: str, run: Callable[[Request], Outcome]) -> Outcome:
    """Return ``run(request)``. If the callable runs a backward pass itself, run again without adding another backward pass.

    ``name`` is the callable's name. Raises InputError if such a callable is combined with an optimizer.
    """
    try:
        return run(request)
    except OwnBackwardError:
        pass  # run again outside the handler: the traceback would keep the tensors of the first run alive
    if request.optimizer is not None:
        problem = f"{name} runs a backward pass itself, so optimizer= cannot be used"
        raise InputError(f"{problem}: call optimizer.step() in {name}, too")
    return run(replace(request, backward=True, own_backward=True))

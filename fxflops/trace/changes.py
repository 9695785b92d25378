"""What an observer says about a run before the run changes the user's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class ChangeListener:
    """Is told by an observer which tensors and optimizers a run is about to change. This class does nothing with it.

    A subclass that needs :meth:`before_write` must set ``saves_writes``. A run sets ``saves_steps`` to False when the optimizers that
    step from now on have been saved already.
    """

    saves_writes = False
    saves_steps = True

    def before_write(self, value: Any, is_new: Callable[[torch.Tensor], bool]) -> None:
        """Called before a call that may write to the tensors in ``value``. ``is_new(tensor)``: a call of the run made the tensor."""

    def uses_leaf(self, tensor: torch.Tensor) -> None:
        """Called with a leaf tensor that existed before the run and requires a gradient, when the run first uses it."""

    def before_step(self, optimizer: Any) -> None:
        """Called when an optimizer's step begins."""

    def after_step(self, optimizer: Any) -> None:
        """Called when an optimizer's step has ended."""

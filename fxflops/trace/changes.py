"""Notify a listener before an observed run changes the user's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class ChangeListener:
    """An observer calls these methods when a run is about to change tensors or optimizers. In this class, they do nothing.

    A subclass that needs :meth:`before_write` must set ``saves_writes``. A run sets ``saves_optimizer_steps`` to False if all optimizers that
    step from then on have already been saved.
    """

    saves_writes = False
    saves_optimizer_steps = True

    def before_write(self, value: Any, is_new: Callable[[torch.Tensor], bool]) -> None:
        """Called before a call that may write to the tensors in ``value``. ``is_new(tensor)``: a call of the run made the tensor.

        In a count or an analysis, the receiver is :meth:`.Snapshot.before_write`, and then :meth:`.TensorState.before_write`.
        """

    def uses_leaf(self, tensor: torch.Tensor) -> None:
        """Called with a leaf tensor that existed before the run and requires a gradient, when the run first uses it."""

    def before_optimizer_step(self, optimizer: Any) -> None:
        """Called when an optimizer's step begins."""

    def after_optimizer_step(self, optimizer: Any) -> None:
        """Called when an optimizer's step has ended."""

"""The model's tensors in a world: real tensors, or stand-ins for them (:mod:`.meta_mirror`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..model.pytree import tensors_in
from ..records import Spec
from ..records.tensors import spec_of
from .leaves import metadata_of_real

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a call."""


class ModelTensors:
    """The real tensors of a model: calls get the tensors that the model passes. A subclass has a stand-in for each tensor."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the stand-in for one of the model's tensors, or the tensor itself."""
        return tensor

    def take_stand_in(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Forget a tensor that the model has replaced; return the tensor's stand-in, or None if there is none."""
        return None

    def replace(self, args: tuple[Any, ...], kwargs: dict[str, Any], func: Any) -> Arguments:
        """Return the arguments of a call, with stand-ins in place of tensors."""
        return args, kwargs

    def current(self, value: Any) -> Any:
        """Return a value; a tensor whose values are out of date is replaced by its stand-in."""
        return value

    def current_arguments(self, arguments: Arguments) -> Arguments:
        """Return the arguments of a call, each replaced by its :meth:`current` value."""
        args, kwargs = arguments
        return tuple(map(self.current, args)), {name: self.current(arg) for name, arg in kwargs.items()}

    def current_tensors_in(self, value: Any) -> list[torch.Tensor]:
        """Return the tensors in a value. A tensor whose values are out of date is replaced by its stand-in."""
        return tensors_in(value)

    def holding_gradient(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a property access. If the property is ``grad``, pass the tensor that has the gradient."""
        return args

    def note_missed_calls(self, value: Any) -> None:
        """Check the result of a run for tensors of unknown origin, which show that calls were missed."""

    def spec(self, tensor: torch.Tensor) -> Spec:
        """Return the spec of a tensor."""
        spec: Spec = spec_of(tensor)
        return spec

    def form(self, tensor: torch.Tensor) -> Any:
        """Return a tensor's part of a call's key; None if its metadata is not enough."""

    def forms_of_own(self, tensors: Iterable[torch.Tensor | None]) -> tuple[Any, ...]:
        """Return, for each of a module's own tensors, a key of its metadata; None if the tensor's metadata cannot be compared."""
        return metadata_of_real(tensors)

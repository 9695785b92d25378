"""Hide this library's reads of tensors from modes and tensor classes of the user."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ..torch_internals import DisableTorchFunction

P = ParamSpec("P")
R = TypeVar("R")


def hidden_from_modes(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that reads tensors before or after a run. No ``__torch_function__`` then sees these reads.

    A user's mode must not see them. Also, under ``with torch.device("meta"):`` each read takes about six times as long.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with DisableTorchFunction():
            return function(*args, **kwargs)

    return run

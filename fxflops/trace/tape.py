"""Who made which node of autograd's graph: what the backward pass computes there is theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import InputError, RunError
from ..records import PHASES, Call
from ..structure import tensors_in
from ..torch_internals import (
    BackwardCFunction,
    DisableTorchFunction,
    current_autograd_node,
    current_graph_task_id,
    disable_current_modes,
)

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = PHASES


class Tape:
    """The owners of the nodes of autograd's graph: calls, by their number, or a graph's nodes, by their name.

    ``optimizing`` is set while an optimizer steps. ``owner_of`` has for calls of the backward pass, by their number, the
    call whose gradient they compute; none for those of an autograd.Function's own ``backward``, which no graph's node does.
    """

    def __init__(self) -> None:
        self.optimizing = False
        self.owner_of: dict[int, int] = {}
        self._owners: dict[Any, Any] = {}
        self._latest: Any = None

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """While an optimizer steps."""
        self.optimizing = True
        try:
            yield
        finally:
            self.optimizing = False

    def own(self, owner: Any, value: Any) -> None:
        """The nodes from what ``owner`` returned, or wrote to, back to those already owned are its own; but for an
        autograd.Function's on the way, which is no call itself: that is of the call before, the last in its ``forward``."""
        found = [tensor.grad_fn for tensor in tensors_in(value) if tensor.requires_grad]
        while found:
            node = found.pop()
            if node is None or node in self._owners or _accumulates(node):
                continue
            is_functions = isinstance(node, BackwardCFunction) and isinstance(owner, int)
            self._owners[node] = max(owner - 1, 0) if is_functions else owner
            found.extend(earlier for earlier, _ in node.next_functions)

    def watch(self, enter: Callable[[Any], None]) -> list[Any]:
        """Have ``enter(owner)`` called as each node begins to compute its gradient; the handles that undo it."""
        return [node.register_prehook(lambda *_, owner=owner: enter(owner)) for node, owner in self._owners.items()]

    def phase(self) -> str:
        """What is going on now. Gradients are off in the backward pass itself, and on where it computes forward again."""
        if current_graph_task_id() != -1:
            return RECOMPUTE if torch.is_grad_enabled() else BACKWARD
        return OPTIMIZER if self.optimizing else FORWARD

    def placed(self, path: str, calls: Sequence[Call]) -> tuple[str, str]:
        """The phase of the call that comes after these, and the module's path to which it belongs: its owner's, in the
        backward pass."""
        phase = self.phase()
        owner: int | None = self._owner() if phase == BACKWARD else None
        if owner is None:
            return phase, path
        if not isinstance(current_autograd_node(), BackwardCFunction):
            self.owner_of[len(calls)] = owner
        return phase, calls[owner].path

    def _owner(self) -> Any:
        """Whose gradient is being computed: of parameters' sums, the one before."""
        node = current_autograd_node()
        if node is not None and not _accumulates(node):
            self._latest = self._owners.get(node, self._latest)
        return self._latest


def roots_of(out: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors in a model's output that have a gradient, each once, and a one for each of their elements."""
    with DisableTorchFunction(), disable_current_modes():
        roots = list({id(tensor): tensor for tensor in tensors_in(out) if tensor.requires_grad}.values())
        if not roots:
            raise InputError("backward=True, but no output depends on a parameter or input that requires a gradient")
        return roots, [torch.ones_like(root) for root in roots]


def backward_from(roots: Sequence[torch.Tensor], ones: Sequence[torch.Tensor]) -> None:
    """The backward pass from these. Raises RunError where it raises."""
    try:
        torch.autograd.backward(roots, ones)
    except Exception as error:
        raise RunError(f"the backward pass raised\n  {type(error).__name__}: {error}") from error


def _accumulates(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"

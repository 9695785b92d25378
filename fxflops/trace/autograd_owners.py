"""Who made which node of autograd's graph: what the backward pass computes there is theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import InputError, RunError
from ..model.pytree import tensors_in
from ..records import Call
from ..torch_internals import (
    BackwardCFunction,
    DisableTorchFunction,
    current_autograd_node,
    disable_current_modes,
)


class AutogradOwners:
    """The owners of the nodes of autograd's graph: calls, by their number, or a graph's nodes, by their name.

    An owner is written into the metadata of the node itself: no node is kept alive, nor the tensors it saved.
    ``owner_of`` has for calls of the backward pass, by their number, the
    call whose gradient they compute; none for those of an autograd.Function's own ``backward``, which no graph's node does.
    With ``follows`` nodes tell as they begin to compute their gradient: see :meth:`following`.
    """

    def __init__(self, *, follows: bool = False) -> None:
        self.owner_of: dict[int, int] = {}
        self._follows = follows
        self._handles: list[RemovableHandle] = []
        self._enter: Callable[[Any], None] = lambda owner: None
        self._key = object()
        self._latest: Any = None

    def own(self, owner: Any, value: Any) -> None:
        """The nodes from what ``owner`` returned, or wrote to, back to those already owned are its own; but for an
        autograd.Function's on the way, which is no call itself: that is of the call before, the last in its ``forward``."""
        found: list[Any] = [tensor.grad_fn for tensor in tensors_in(value) if tensor.requires_grad]
        while found:
            node = found.pop()
            if node is None or _accumulates(node) or self._key in node.metadata:
                continue
            is_functions = isinstance(node, BackwardCFunction) and isinstance(owner, int)
            node.metadata[self._key] = max(owner - 1, 0) if is_functions else owner
            if self._follows:
                self._handles.append(node.register_prehook(lambda *_, owner=owner: self._enter(owner)))
            found.extend(earlier for earlier, _ in node.next_functions)

    @contextmanager
    def following(self, enter: Callable[[Any], None]) -> Iterator[None]:
        """Call ``enter(owner)`` as each node begins to compute its gradient; in the end no node tells any more."""
        self._enter = enter
        try:
            yield
        finally:
            for handle in self._handles:
                handle.remove()

    def placed(self, path: str, calls: Sequence[Call]) -> str:
        """The path of the module to which the call of the backward pass that comes after these belongs: its owner's."""
        owner: int | None = self._owner()
        if owner is None:
            return path
        if not isinstance(current_autograd_node(), BackwardCFunction):
            self.owner_of[len(calls)] = owner
        return calls[owner].path

    def _owner(self) -> Any:
        """Whose gradient is being computed: of parameters' sums, the one before."""
        node = current_autograd_node()
        if node is not None and not _accumulates(node):
            self._latest = node.metadata.get(self._key, self._latest)
        return self._latest


def learns(out: Any) -> bool:
    """Whether a gradient can be taken of a graph's output: not where what it was recorded from gave its weights out anew, as
    sharded layers do."""
    return any(tensor.requires_grad for tensor in tensors_in(out))


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

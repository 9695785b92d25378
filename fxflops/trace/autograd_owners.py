"""Owners of autograd nodes: the forward call that made a node owns what the backward pass computes in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import InputError
from ..model.pytree import tensors_in
from ..records import Call
from ..torch_internals import (
    BackwardCFunction,
    DisableTorchFunction,
    current_autograd_node,
    disable_current_modes,
    function_of,
)
from .source import error_for
from .whole_kernels import Whole


class AutogradOwners:
    """The owners of the nodes of the autograd graph: a call's number, or the name of a node in a traced graph.

    An owner is stored in the node's own metadata, so that no node and no saved tensor is kept alive.
    ``owner_of`` maps the number of each call of the backward pass to the number of the forward call whose gradient it
    computes. Calls made by the ``backward`` of an ``autograd.Function`` are not in it: in a graph no node makes them.
    With ``follows``, nodes get the hooks that :meth:`following` needs.
    """

    def __init__(self, *, follows: bool = False) -> None:
        self.owner_of: dict[int, int] = {}
        self._follows = follows
        self._handles: list[RemovableHandle] = []
        self._enter: Callable[[Any], None] = lambda owner: None
        self._key = object()
        self._latest: int | None = None

    def own(self, owner: Any, value: Any) -> None:
        """Give ``owner`` every node that has none yet, from the tensors in ``value`` backwards.

        ``value`` is what the owner returned or wrote to. An ``autograd.Function`` is not a call itself, so its node
        goes to the last call in its ``forward``: the one before ``owner``.
        """
        found: list[Any] = [node_of(tensor) for tensor in tensors_in(value) if tensor.requires_grad]
        while found:
            node = found.pop()
            if node is None or _accumulates(node) or self._key in node.metadata:
                continue
            is_functions = _is_of_function(node) and isinstance(owner, int)
            node.metadata[self._key] = max(owner - 1, 0) if is_functions else owner
            if self._follows:
                self._handles.append(node.register_prehook(lambda *_, owner=owner: self._enter(owner)))
            found.extend(earlier for earlier, _ in node.next_functions)

    @contextmanager
    def following(self, enter: Callable[[Any], None]) -> Iterator[None]:
        """Call ``enter(owner)`` whenever an owned node begins to compute its gradient; remove the hooks at the end."""
        self._enter = enter
        try:
            yield
        finally:
            for handle in self._handles:
                handle.remove()

    def placed(self, path: str, calls: Sequence[Call]) -> str:
        """Return the module path of the backward call that is about to be appended to ``calls``: its owner's path.

        ``path`` is returned for a call without owner.
        """
        node = current_autograd_node()
        # Nodes that add to a parameter's .grad have no owner: they follow the node that computed the gradient.
        if node is not None and not _accumulates(node):
            self._latest = node.metadata.get(self._key, self._latest)
        if self._latest is None:
            return path
        if not _is_of_function(node):
            self.owner_of[len(calls)] = self._latest
        return calls[self._latest].path


def _is_of_function(node: Any) -> bool:
    """Return whether a node is an ``autograd.Function``'s: not one of ours, that are calls of one operator."""
    return isinstance(node, BackwardCFunction) and not issubclass(function_of(node), Whole)


def requires_gradient(out: Any) -> bool:
    """Return whether an output has a gradient.

    That of a recorded graph may have none: a sharded layer gathers its weights anew in each run, and the graph holds
    them as constants.
    """
    return any(tensor.requires_grad for tensor in tensors_in(out))


def roots_of(out: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the distinct tensors in a model's output that require a gradient, and tensors of ones like them.

    Raises InputError if there are none.
    """
    with DisableTorchFunction(), disable_current_modes():
        roots = list({id(tensor): tensor for tensor in tensors_in(out) if tensor.requires_grad}.values())
        if not roots:
            raise InputError("backward=True, but no output depends on a parameter or input that requires a gradient")
        return roots, [torch.ones_like(root) for root in roots]


def backward_from(roots: Sequence[torch.Tensor], ones: Sequence[torch.Tensor]) -> None:
    """Run the backward pass from ``roots`` with the gradients ``ones``. Raises RunError, or OutOfMemoryError, if it fails."""
    try:
        torch.autograd.backward(roots, ones)
    except Exception as error:
        raise error_for(error, f"the backward pass raised\n  {type(error).__name__}: {error}") from error


def node_of(tensor: torch.Tensor) -> Any:
    """Return the node that made a tensor; None for a view made without gradients whose base was written to with them: autograd refuses
    to tell it, and does not go through it."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def _accumulates(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"

"""Owners of autograd nodes: the forward call that created a node owns the calls of its backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import InputError
from ..model.pytree import attributes_in, tensors_in
from ..records import Call
from ..records.containers import items_of
from ..records.tensors import ORDINARY
from ..torch_internals import (
    BackwardCFunction,
    DisableTorchFunction,
    current_autograd_node,
    disable_current_modes,
    function_of,
    is_fake,
    saved_tensor_of,
)
from .single_kernels import SingleKernel
from .source import error_for


class Owners:
    """The owners in a run without a backward pass: nothing is recorded. :class:`AutogradOwners` records them."""

    records_owners = False

    def __init__(self) -> None:
        self.owner_of: dict[int, int] = {}

    def own(self, owner: Any, result: Any, arguments: Any = ()) -> None:
        """Do nothing."""

    def own_function(self, owner: int, out: Any) -> None:
        """Do nothing."""

    def own_nodes(self, owner: int, nodes: Iterable[Any]) -> None:
        """Do nothing."""

    def note_owner_and_path(self, path: str, calls: Sequence[Call], is_gradient: bool = True) -> str:
        """Return the path unchanged."""
        return path


class AutogradOwners(Owners):
    """The owners of autograd nodes. An owner is a call's index, or the name of a node in a traced graph.

    An owner is stored in the autograd node's own metadata, so that no node and no saved tensor is kept alive.
    ``owner_of`` maps the index of each backward call to the index of the forward call whose gradient the backward call computes.
    Calls made by the ``backward`` of an ``autograd.Function`` are not in ``owner_of``: no node of a traced graph makes these calls.
    With ``hooks_nodes``, autograd nodes get the hooks that :meth:`nodes_entered_by` needs. ``keep`` is called with each CPU tensor that a node
    itself saves (see ``saved_tensor_of``); it is None if such tensors are not counted as memory.
    """

    records_owners = True

    def __init__(self, *, hooks_nodes: bool = False, keep: Callable[[torch.Tensor], None] | None = None) -> None:
        super().__init__()
        self._hooks_nodes = hooks_nodes
        self._handles: list[RemovableHandle] = []
        self._enter: Callable[[Any], None] = lambda owner: None
        self._key = object()
        self._latest_owner: int | None = None
        self._keep = keep

    def own(self, owner: Any, result: Any, arguments: Any = ()) -> None:
        """Assign to ``owner`` every autograd node that has no owner yet, going backwards from the tensors in ``result`` and ``arguments``.

        The owner returned ``result``, and may have written to ``arguments``. An ``autograd.Function`` is not recorded as a call. If it made
        an argument, its node is assigned to the last call in its ``forward``: the call before ``owner``. If it ran inside the owner, its
        node is assigned to the owner.
        """
        before = max(owner - 1, 0) if isinstance(owner, int) else owner
        self._own_behind(arguments, owner, before)
        self._own_behind(result, owner, owner)

    def _own_behind(self, value: Any, owner: Any, owner_of_functions: Any) -> None:
        nodes: list[Any] = [grad_node_of(tensor) for tensor in tensors_in(value) if tensor.requires_grad]
        while nodes:
            node = nodes.pop()
            if node is None or accumulates_gradient(node) or self._key in node.metadata:
                continue
            node.metadata[self._key] = owner_of_functions if _is_of_function(node) else owner
            if self._keep is not None and (kept := saved_tensor_of(node)) is not None:
                self._keep(kept)
            if self._hooks_nodes:
                self._handles.append(node.register_prehook(lambda *_, owner=owner: self._enter(owner)))
            nodes.extend(earlier for earlier, _ in node.next_functions)

    def own_nodes(self, owner: int, nodes: Iterable[Any]) -> None:
        """Assign all these nodes, which belong to a single call, to ``owner``. Include nodes of an ``autograd.Function``."""
        for node in nodes:
            node.metadata.setdefault(self._key, owner)
            if self._hooks_nodes:
                self._handles.append(node.register_prehook(lambda *_: self._enter(owner)))

    @contextmanager
    def nodes_entered_by(self, enter: Callable[[Any], None]) -> Iterator[None]:
        """Call ``enter(owner)`` whenever an owned node begins to compute its gradient; remove the hooks at the end."""
        self._enter = enter
        try:
            yield
        finally:
            for handle in self._handles:
                handle.remove()

    def own_function(self, owner: int, out: Any) -> None:
        """Assign the ``autograd.Function`` that returned these tensors to ``owner``, the last call in its ``forward``.

        Calling :meth:`own` later would be too late: these tensors may be the model's output, or the next call may be in another module.
        """
        for tensor in items_of(out) if issubclass(type(out), (tuple, list)) else (out,):
            if issubclass(type(tensor), torch.Tensor) and tensor.requires_grad:
                node = grad_node_of(tensor)
                if isinstance(node, BackwardCFunction):
                    node.metadata.setdefault(self._key, owner)

    def note_owner_and_path(self, path: str, calls: Sequence[Call], is_gradient: bool = True) -> str:
        """Note the owner of the backward call that is about to be appended to ``calls``, and return the owner's module path.

        A call without an owner gets ``path``. A call that computes no gradient (``is_gradient`` is False) gets its owner's path, but
        is not recorded in ``owner_of``.
        """
        node = current_autograd_node()
        # A node that adds to a parameter's .grad belongs to no forward call. Use the forward call of the node that computed the gradient.
        if node is not None and not accumulates_gradient(node):
            self._latest_owner = node.metadata.get(self._key, self._latest_owner)
        if self._latest_owner is None:
            return path
        if is_gradient and not _is_of_function(node):
            self.owner_of[len(calls)] = self._latest_owner
        return calls[self._latest_owner].path


def _is_of_function(node: Any) -> bool:
    """Return whether a node belongs to an ``autograd.Function``. Subclasses of SingleKernel are excluded: each of them is one call."""
    return isinstance(node, BackwardCFunction) and not issubclass(function_of(node), SingleKernel)


def requires_gradient(out: Any) -> bool:
    """Return whether an output requires a gradient.

    The output of a recorded graph may not require one: a sharded layer gathers its weights anew in each run, and the graph
    contains the gathered weights as constants.
    """
    return any(tensor.requires_grad for tensor in tensors_in(out))


def loss_in(out: Any) -> torch.Tensor | None:
    """Return the ``loss`` in a model's output, as in transformers; None if the output has no loss that requires a gradient."""
    kind = type(out)  # read fields by Python's own methods: a user's class may override them
    if issubclass(kind, dict):
        loss = dict.get(out, "loss")
    elif issubclass(kind, tuple):
        names = kind.__dict__.get("_fields", ())
        loss = tuple.__getitem__(out, names.index("loss")) if "loss" in names else None
    else:
        loss = (attributes_in(out) or {}).get("loss")
    return loss if isinstance(loss, torch.Tensor) and loss.requires_grad else None


def roots_of(out: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the output tensors from which the backward pass starts, and their gradients, which are all ones.

    If the output has a ``loss``, the backward pass starts only from the loss. Otherwise it starts from all distinct outputs that
    require a gradient, except outputs from which a scalar output was computed. Such a scalar is a loss, and its backward pass
    reaches these outputs anyway.
    Raises InputError if no output requires a gradient.
    """
    with DisableTorchFunction(), disable_current_modes():
        loss = None if issubclass(type(out), torch.Tensor) else loss_in(out)
        tensors = tensors_in(out) if loss is None else [loss]
        roots = list({id(tensor): tensor for tensor in tensors if tensor.requires_grad}.values())
        if not roots:
            raise InputError(
                "cannot run a backward pass: no output depends on a parameter or input that requires a gradient"
            )
        roots = _without_passed(roots)
        return roots, [*map(_ones_for, roots)]


def _without_passed(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the roots, except roots that are reached anyway by the backward pass from a scalar root."""
    scalars = [root for root in roots if not root.ndim and not root.is_leaf] if len(roots) > 1 else []
    passed_roots: set[int] = set()
    leaves: set[int] = set()
    for scalar in scalars:
        reached = {id(scalar.grad_fn)}
        # Keep the nodes alive: Python reuses the ids of freed objects.
        nodes: list[Any] = [scalar.grad_fn]
        for node in nodes:
            leaves.add(id(getattr(node, "variable", None)))
            for earlier, _ in node.next_functions:
                if earlier is not None and id(earlier) not in reached:
                    reached.add(id(earlier))
                    nodes.append(earlier)
        reached.discard(id(scalar.grad_fn))  # the scalar itself stays a root
        passed_roots.update(i for i, root in enumerate(roots) if id(grad_node_of(root)) in reached)
    return [root for i, root in enumerate(roots) if i not in passed_roots and not (root.is_leaf and id(root) in leaves)]


def _ones_for(root: torch.Tensor) -> torch.Tensor:
    """Return the gradient that ``root.sum()`` passes to ``root``: a 1 expanded to its shape, in the memory of one element."""
    is_plain = type(root) in ORDINARY or is_fake(type(root))
    if not is_plain or root.layout is not torch.strided or root.is_nested:
        return torch.ones_like(root)
    return root.new_ones(()).expand(root.shape)


def backward_from(roots: Sequence[torch.Tensor], ones: Sequence[torch.Tensor]) -> None:
    """Run the backward pass from ``roots`` with the gradients ``ones``. Raises RunError, or OutOfMemoryError, if it fails."""
    try:
        torch.autograd.backward(roots, ones)
    except Exception as error:
        raise error_for(error, f"the backward pass raised\n  {type(error).__name__}: {error}") from error


def grad_node_of(tensor: torch.Tensor) -> Any:
    """Return a tensor's ``grad_fn``; None if reading it raises.

    It raises for a view made under no_grad if the view's base was later written to with gradients enabled. A backward pass does
    not go through such a view.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def accumulates_gradient(node: Any) -> bool:
    """Return whether an autograd node adds to the gradient of a leaf tensor."""
    return type(node).__name__ == "AccumulateGrad"

"""Track which objects reference a model's tensors. The references show which tensors a run frees by replacing them.

A forward may replace a mask, a cache or a running mean in an attribute, a list or an object. Replacing a tensor frees the memory of the old
tensor. The tensor's reference count does not drop to 0, because the model's snapshot keeps a reference, to restore the tensor after the
run.
"""

from __future__ import annotations

import operator
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, compress
from typing import Any

import torch
from torch import nn

from ..records.tensors import ORDINARY, is_dense
from ..torch_internals import DisableTorchFunction, use_counts
from .pytree import attributes_in, is_object, parts

DEPTH = 4
"""The search below a module goes through at most this many levels of objects and containers, as in a snapshot."""
ROOT = 0
"""The owner id of modules and inputs, which a run never frees."""
STANDARD = frozenset(vars(nn.Module()))
PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None), torch.Size, torch.dtype, torch.device, type})


NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
"""Layers that update their running statistics in place, as do their subclasses."""


def _writes_in_place(cls: Any) -> bool:
    """Return whether the modules of a class write to their buffers in place. Other classes replace their buffers by new tensors."""
    return cls.__module__.startswith("torch.") or issubclass(cls, NORMS)


class Link:
    """A reference from a container to an object, both from before the run."""

    __slots__ = ("container", "is_of_dict", "key", "references", "target")

    def __init__(self, container: Any, key: Any, target: Any) -> None:
        self.container, self.key, self.target = container, key, target
        self.is_of_dict = type(container) is dict and type(key) is str
        self.references = 0

    def is_intact(self) -> bool:
        """Return whether the container still references the object."""
        if self.is_of_dict:
            return self.container.get(self.key) is self.target
        if type(self.container) is list and self.key < len(self.container) and self.container[self.key] is self.target:
            return True
        return issubclass(type(self.container), tuple) or any(part is self.target for _, part in parts(self.container))

    def is_referenced(self) -> bool:
        """Return whether the container or a local variable still references the object."""
        return self.is_intact() or sys.getrefcount(self.target) >= self.references

    def has_new_references(self) -> bool:
        """Return whether the object has more references than at the beginning of the run, e.g. from a new list of the same tensors."""
        return sys.getrefcount(self.target) > self.references


class References:
    """The links from a model's modules and inputs to the tensors that a run may replace.

    ``tensors`` are all tensors at the beginning of the run, and ``not_parameters`` those that are not parameters. Tensor inputs, and the buffers
    of torch's own layers and of batch norms, are never treated as replaced either.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        inputs: Iterable[Any],
        tensors: Iterable[torch.Tensor],
        not_parameters: Iterable[torch.Tensor],
    ) -> None:
        # From a target's id to its links. Each link has the id of its owner, because a reference to the owner would raise its reference count.
        self._links: defaultdict[int, list[tuple[Link, int]]] = defaultdict(list)
        self._groups: list[tuple[list[torch.Tensor], list[tuple[int, int]]]] = []
        self._dicts: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._values: list[Any] = []
        self._other_links: list[Link] = []
        self._are_intact: list[bool] = []
        self._depending: list[list[int]] = []
        self._left_groups: set[int] = set()  # numbers of the groups whose tensors no link references any more
        modules, inputs = [*modules], [*inputs]
        staying_ids = {*map(id, inputs)}
        buffers: list[tuple[dict[str, Any], str, Any]] = []
        stays = cache(_writes_in_place)
        for module in modules:
            if own := module._buffers:
                cls: Any = type(module)
                if stays(cls):
                    staying_ids.update(map(id, own.values()))
                else:
                    buffers += [(own, name, buffer) for name, buffer in own.items()]
        replaceable = {id(t): t for t in not_parameters if id(t) not in staying_ids and type(t) is torch.Tensor}
        if not replaceable:
            return
        for place in buffers:
            self._add(*place, owner=ROOT)
        if replaceable.keys() - self._links.keys():
            seen: set[int] = set()
            for module in modules:
                attributes = module.__dict__
                for name in attributes.keys() - STANDARD:
                    self._enter(attributes, name, attributes[name], ROOT, DEPTH, seen)
            for value in inputs:
                self._enter_parts(value, ROOT, sys.maxsize, seen)
        with DisableTorchFunction():
            self._group([t for t in tensors if type(t) in ORDINARY and is_dense(t)], replaceable)

    def replaceable(self) -> list[torch.Tensor]:
        """Return the tensors that the run may replace."""
        return [tensor for tensors, _ in self._groups for tensor in tensors]

    def begin(self) -> None:
        """Count the references to the targets of all links, right before the run."""
        depending: dict[Link, list[int]] = {}
        for number, (tensors, _) in enumerate(self._groups):
            keys = [*map(id, tensors)]
            for key in keys:  # grows during the loop
                for link, owner in self._links[key]:
                    depending.setdefault(link, []).append(number)
                    if owner not in keys and owner != ROOT:
                        keys.append(owner)
        # Separate lists for speed, since all links are compared at each new memory peak.
        dict_links = [link for link in depending if link.is_of_dict]
        self._dicts = [link.container for link in dict_links]
        self._names = [link.key for link in dict_links]
        self._values = [link.target for link in dict_links]
        self._other_links = [link for link in depending if not link.is_of_dict]
        self._depending = [depending[link] for link in (*dict_links, *self._other_links)]
        self._are_intact = [True] * len(depending)
        self._left_groups = set()
        for link in depending:
            link.references = sys.getrefcount(link.target)
        with DisableTorchFunction():
            self._groups = [(tensors, [use_counts(t) for t in tensors]) for tensors, _ in self._groups]

    def _add(self, container: Any, key: Any, target: Any, owner: int) -> None:
        self._links[id(target)].append((Link(container, key, target), owner))

    def _enter(self, container: Any, key: Any, target: Any, owner: int, depth: int, seen: set[int]) -> None:
        """Add the link to an object, and the links below the object. ``owner`` is the id of the object that owns the container. If the
        owner is a module or an input, ``owner`` is ROOT."""
        if type(target) in PLAIN or issubclass(type(target), nn.Module):
            return
        self._add(container, key, target, owner)
        if depth and id(target) not in seen:
            seen.add(id(target))
            self._enter_parts(target, id(target), depth - 1, seen)

    def _enter_parts(self, value: Any, owner: int, depth: int, seen: set[int]) -> None:
        attributes = attributes_in(value) if is_object(value) else None
        for (kind, key), part in parts(value):  # an instance of a user's dict subclass also has attributes
            is_attribute = kind == "attr" and attributes is not None and key in attributes
            self._enter(attributes if is_attribute else value, key, part, owner, depth, seen)

    def _group(self, tensors: list[torch.Tensor], replaceable: dict[int, torch.Tensor]) -> None:
        """Group the replaceable tensors by storage. Skip a storage if other tensors use it, too."""
        groups: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        for tensor in tensors:
            groups[tensor.untyped_storage()._cdata].append(tensor)
        for group in groups.values():
            if all(id(t) in replaceable and id(t) in self._links for t in group):
                self._groups.append((group, [use_counts(t) for t in group]))

    def dropped(self) -> Iterator[list[torch.Tensor]]:
        """Yield, once for each storage, the tensors of storages that nothing references any more."""
        are_intact = [*map(operator.is_, map(dict.get, self._dicts, self._names), self._values)]
        are_intact += [link.is_intact() for link in self._other_links]
        if are_intact != self._are_intact:
            changed = map(operator.is_not, are_intact, self._are_intact)
            for number in {*chain.from_iterable(compress(self._depending, changed))}:
                tensors = self._groups[number][0]
                if tensors and not any(self._is_reachable(key, set()) for key in map(id, tensors)):
                    self._left_groups.add(number)
                else:
                    self._left_groups.discard(number)
            self._are_intact = are_intact
        for number in sorted(self._left_groups):  # a local variable or a view may keep the tensors a little longer
            tensors, uses = self._groups[number]
            # Do not assign a tensor to a variable here: the variable would add a reference to the tensor.
            if any(self._is_reachable(key, set(), by_any=True) for key in map(id, tensors)):
                continue
            with DisableTorchFunction():
                is_used = any(
                    now > before
                    for t, use in zip(tensors, uses, strict=True)
                    for now, before in zip(use_counts(t), use, strict=True)
                )
            if not is_used:
                self._left_groups.discard(number)
                self._groups[number] = [], []
                yield tensors

    def _is_reachable(self, key: int, asked: set[int], by_any: bool = False) -> bool:
        """Return whether a chain of links leads from a module or an input to the object with this id.

        With ``by_any``, the object is also reachable if local variables or containers made in the run reference the object or one of its owners.
        """
        if key == ROOT:
            return True
        asked.add(key)
        return any(
            owner not in asked
            and (
                (by_any and link.has_new_references())
                or ((link.is_referenced() if by_any else link.is_intact()) and self._is_reachable(owner, asked, by_any))
            )
            for link, owner in self._links[key]
        )

"""Blocks: the call of a module that is no leaf, made before with the same metadata, is made again as a whole.

What its forward does follows from its code, its settings and those of its submodules (:class:`~.tokens.Tokens`), and
from its arguments: of tensors on meta their form, of others their values. So the calls that it made are made again,
in the module that is called now, and the same storages come and go. A call that left more behind than what it returned
(an attribute, a tensor kept elsewhere, something written) is not remembered.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from ..ledger import Ledger, Mark, Passage
from ..records import Call, Scope
from ..structure import Hole, fill, template_of, walk
from .attributes import NUMBERS
from .keys import Keys
from .meta import Twins
from .tokens import TENSORS, Unknown

META = torch.device("meta")
T = TypeVar("T", Call, Scope)
HOLDERS = (tuple, list, dict, Hole, type(None), bool, int, float, str, torch.Size, torch.dtype, torch.device)


class Base(NamedTuple):
    """A storage that a block makes: its entry in the ledger, from the block's first, its bytes, and a tensor on it."""

    entry: int
    nbytes: int
    dtype: torch.dtype
    shape: torch.Size | tuple[int, ...]
    stride: tuple[int, ...]


ARGUMENT, VIEW, BASE, PART = "argument", "view of an argument", "base", "part of a base"


class Out(NamedTuple):
    """A tensor that a block returns: an argument, a base, or a view of one; a view's offset is from the argument's own."""

    kind: str
    number: int
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


class BlockMark(NamedTuple):
    """Where a run stands as a block begins: the numbers of its next call and scope, the ledger, how many numbers of layers
    were read and what was written so far, the arguments."""

    calls: int
    scopes: int
    ledger: Mark
    reads: int
    writes: tuple[Any, ...]
    given: tuple[weakref.ref[torch.Tensor], ...]


class Block(NamedTuple):
    """A module's call: what it did, and what it returned. ``numbers`` are those of the layers in it."""

    path: str
    numbers: tuple[Any, ...]
    mark: BlockMark
    calls: list[Call]
    scopes: list[Scope]
    passage: Passage
    template: Any
    outs: tuple[Out, ...]
    bases: tuple[Base, ...]

    def calls_in(self, path: str) -> list[Call]:
        """The calls as they are made in the module of this path."""
        if path == self.path:
            return self.calls
        moved = self._moved
        return [tuple.__new__(Call, (*call[:5], moved(call[5], path), *call[6:])) for call in self.calls]

    def scopes_in(self, path: str) -> list[Scope]:
        """The modules' calls likewise."""
        if path == self.path:
            return self.scopes
        return [tuple.__new__(Scope, (self._moved(scope[0], path), *scope[1:])) for scope in self.scopes]

    def _moved(self, inner: str, path: str) -> str:
        """The path of a submodule of the block, where the block is the module of ``path``."""
        below = inner[len(self.path) :].lstrip(".")
        return f"{path}.{below}" if path and below else path or below


assert Call._fields.index("path") == 5
assert Scope._fields.index("path") == 0


def arguments_in(value: Any) -> list[torch.Tensor]:
    """The tensors among a call's arguments, in order."""
    found: list[torch.Tensor] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[torch.Tensor]) -> None:
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list, dict)):
            _gather(item, found)


class Learned:
    """What a fast observer learns in its run: the blocks ``found``.

    ``writes`` tells how often the model's state was written so far. With ``blocks``, modules are made again as a whole;
    ``replayed`` is how many were. ``told``: the observer hears of each attribute of a module that is written, for some code
    may do that.
    """

    def __init__(self, writes: Callable[[], int], blocks: bool = True) -> None:
        self.writes = writes
        self.blocks = blocks
        self.told = False
        self.replayed = 0
        self.found: dict[Any, Block] = {}


class Seen(NamedTuple):
    """What has been seen of a run so far, where a block adds its own."""

    calls: list[Call]
    scopes: list[Scope]
    ledger: Ledger
    twins: Twins


class Blocks:
    """The blocks of a run: those found in it, and those ``known`` before."""

    def __init__(
        self,
        learned: Learned,
        known: Mapping[Any, Block],
        keys: Keys,
        paths: Mapping[nn.Module, str],
        device: str,
        seen: Seen,
    ) -> None:
        self._learned = learned
        self._known = known
        self._keys = keys
        self._tokens = keys.tokens
        self._paths = paths
        self._device = device
        self._seen = seen

    def key(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
        """All that the calls made in a module depend on, None where that is more than can be told; and the tensors given."""
        given = arguments_in((args, kwargs))
        token = self._tokens.of(module)
        if token is None:
            return None, given
        try:
            key = token, self._device, *(self._keys.of(value, True) for value in args)
            if kwargs:
                key = *key, *kwargs, *(self._keys.of(value, True) for value in kwargs.values())
        except Unknown:
            return None, given
        if len(given) > 1:
            ids = [*map(id, given)]
            key = *key, *map(ids.index, ids)
        return key, given

    def known(self, key: Any, module: nn.Module) -> Block | None:
        """The block of this key, or of it and the numbers of the module's layers."""
        numbers = self._tokens.numbers_in(module)
        for each in (key, (key, numbers)) if numbers else (key,):
            block = self._learned.found.get(each) or self._known.get(each)
            if block is not None:
                self._tokens.reads += each is not key  # by it, and so by what is being made around it
                return block
        return None

    def mark(self, given: list[torch.Tensor]) -> BlockMark:
        """Where the run stands as a block begins, given these tensors."""
        seen, refs = self._seen, tuple(map(weakref.ref, given))
        where = len(seen.calls), len(seen.scopes), seen.ledger.mark()
        return BlockMark(*where, self._tokens.reads, self._writes(given), refs)

    def _writes(self, given: list[torch.Tensor]) -> tuple[Any, ...]:
        """How often something was written that a block does not tell of: attributes of modules, tensors of the model,
        arguments that have values; and how the others lie."""
        arguments = ((t.shape, t.stride()) if t.is_meta else t._version for t in given)
        return self._tokens.writes, self._learned.writes(), *arguments

    def learn(self, key: Any, module: nn.Module, mark: BlockMark, arguments: Any, out: Any) -> None:
        """Remember a module's call that was just made, if it left nothing behind but what it returned."""
        with torch._C.DisableTorchFunction():
            given = arguments_in(arguments)
            same = len(given) == len(mark.given) and all(map(operator.is_, given, (ref() for ref in mark.given)))
            if same and self._writes(given) == mark.writes:
                numbers = self._tokens.numbers_in(module)
                block = block_of(self._paths[module], numbers, mark, self._seen, given, out)
                if self._tokens.reads != mark.reads:
                    key = key, numbers
                if block is not None and block.passage.alive == {base.entry for base in block.bases}:
                    self._learned.found[key] = block

    def again(self, block: Block, module: nn.Module, given: list[torch.Tensor]) -> Any:
        """What the module returns, all its calls made again."""
        seen, path = self._seen, self._paths[module]
        first, entry = len(seen.calls), seen.ledger.entered
        seen.ledger.again(block.passage, first - block.mark.calls)
        out = made_again(block, entry, given, seen)
        calls, scopes = block.calls_in(path), block.scopes_in(path)
        if block.numbers != self._tokens.numbers_in(module):
            calls, scopes = [*map(self._numbered, calls)], [*map(self._numbered, scopes)]
        seen.calls.extend(calls)
        seen.scopes.extend(scopes)
        self._learned.replayed += 1
        return out

    def _numbered(self, made: T) -> T:
        """A call with the numbers of the layers that make it now."""
        if NUMBERS.isdisjoint(made.settings):
            return made
        held = vars(self._modules_at[made.path])
        return made._replace(settings={name: held[name] if name in NUMBERS else v for name, v in made.settings.items()})

    @cached_property
    def _modules_at(self) -> dict[str, nn.Module]:
        return {path: module for module, path in self._paths.items()}


def block_of(
    path: str, numbers: tuple[Any, ...], mark: BlockMark, seen: Seen, given: list[torch.Tensor], out: Any
) -> Block | None:
    """The block of a call that was just made; None where it cannot be told how what it returned came about."""
    passage = seen.ledger.since(mark.ledger)
    if passage is None:
        return None
    template, tensors = template_of(out)
    if any(type(part) not in HOLDERS and not isinstance(part, dict) for _, part in walk(template)):
        return None
    outs = _outs(tensors, given, mark.ledger, seen)
    if outs is None:
        return None
    calls = [c if c.seconds is None else c._replace(seconds=None) for c in seen.calls[mark.calls :]]
    return Block(path, numbers, mark, calls, seen.scopes[mark.scopes :], passage, template, *outs)


def _outs(
    tensors: list[torch.Tensor], given: list[torch.Tensor], mark: Mark, seen: Seen
) -> tuple[tuple[Out, ...], tuple[Base, ...]] | None:
    """How the tensors that a block returns come about; None where that cannot be told."""
    outs: list[Out] = []
    bases: dict[int, Base] = {}
    for tensor in tensors:
        if type(tensor) not in TENSORS or not tensor.is_meta or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        storage, form = tensor.untyped_storage(), (tensor.shape, tuple(tensor.stride()))
        stands_on = [i for i, t in enumerate(given) if seen.twins.storage_of(t) == storage._cdata]
        same = [i for i in stands_on if given[i] is tensor]
        if stands_on:
            number = (same or stands_on)[0]
            offset = int(tensor.storage_offset() - seen.twins.of(given[number]).storage_offset())
            outs.append(Out(ARGUMENT if same else VIEW, number, *form, offset))
            continue
        entry, size = seen.ledger.entry_of(storage), storage.nbytes()
        if entry is None or entry < mark.entry:
            return None
        if entry in bases:
            outs.append(Out(PART, list(bases).index(entry), *form, int(tensor.storage_offset())))
        elif tensor.numel() * tensor.itemsize == size:
            outs.append(Out(BASE, len(bases), *form, 0))
            bases[entry] = Base(entry - mark.entry, size, tensor.dtype, *form)
        else:
            outs.append(Out(PART, len(bases), *form, int(tensor.storage_offset())))
            bases[entry] = Base(entry - mark.entry, size, tensor.dtype, (size // tensor.itemsize,), (1,))
        if bases[entry].dtype is not tensor.dtype:
            return None
    return tuple(outs), tuple(bases.values())


def made_again(block: Block, first_entry: int, given: list[torch.Tensor], seen: Seen) -> Any:
    """What the block returns, on these arguments; its storages have their entries in the ledger from ``first_entry`` on."""
    bases = []
    for base in block.bases:
        tensor = torch.empty_strided(base.shape, base.stride, dtype=base.dtype, device=META)
        seen.ledger.watch(tensor.untyped_storage(), base.nbytes, first_entry + base.entry)
        bases.append(tensor)
    made = []
    for kind, number, shape, stride, offset in block.outs:
        if kind is ARGUMENT:
            tensor = given[number]
        elif kind is BASE:
            tensor = bases[number]
        elif kind is PART:
            tensor = bases[number].as_strided(shape, stride, offset)
        else:
            tensor = seen.twins.of(given[number])
            tensor = tensor.as_strided(shape, stride, tensor.storage_offset() + offset)
        seen.twins.seen[id(tensor)] = weakref.ref(tensor)
        made.append(tensor)
    return made[0] if type(block.template) is Hole else fill(block.template, *made)

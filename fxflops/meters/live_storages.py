"""Live tensor storages: memory by category and origin, for devices without allocator statistics."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import InputError
from ..model.hidden import hidden_from_modes
from ..model.holders import Holders
from ..model.pytree import stored, tensors_given
from ..model.tensor_state import aliases_of
from ..records import BACKWARD, Call, Spec
from ..records.tensors import NUMBERS, ORDINARY, spec_of
from ..torch_internals import DisableTorchFunction, is_zerotensor, random_state_of_checkpoint, saving_hook, storage_uses
from ..units import size
from .history import Entries, History, triples

Named = Iterable[tuple[str, torch.Tensor]]
"""Pairs of a name and a tensor, as ``named_parameters()`` yields them."""


class MemoryMark(NamedTuple):
    """The state when a call began: the length of the list of changes, the live bytes, the peak so far, the number of
    changes up to that peak, and the bytes of storages from before the run that were first seen during it."""

    changes: int
    live: int
    peak: int
    peak_after: int
    met: int


class _StorageRef(weakref.ref[Any]):
    """A weak reference to a live storage. ``key`` is the storage's ``id``, ``entry`` its entry's number, ``nbytes`` its bytes.

    The attributes are set after construction: an ``__init__`` in Python would take time for each tensor of each count.
    """

    __slots__ = ("entry", "key", "nbytes")
    entry: int
    key: int
    nbytes: int


class LiveStorages:
    """The bytes of live tensor storages, as an allocator would report them.

    Each storage counts once, however many views share it, until Python frees the storage. Temporary memory inside a kernel is
    not seen. ``live`` is the number of bytes alive now, ``peak`` the maximum since the last ``reset_peak``, ``most`` the
    maximum of the whole run.

    ``current_call`` is the number of the call to which changes are assigned: the running call or, between calls, the last
    call. Before the tensors of a call are tracked, ``current_call`` must be set to the number that the call will have
    (``len(calls)``); :meth:`add_all` sets it if ``call`` is passed. ``current_call`` is a plain attribute because a method to set
    it would be one more Python call for each call that is counted.

    ``held`` has the tensors that are alive from beginning to end, by category and name. ``spec(tensor)`` returns a tensor's
    spec. If the live storages exceed ``cap`` bytes, InputError is raised, before memory runs out. ``was_there(tensor)`` returns
    whether a tensor that no call has made existed when the run began. ``stand_in_of(tensor)`` returns the meta tensor that
    stands for a tensor in the run, and makes the run forget this pair. ``counts_meta`` is False in a run on another device,
    where torch uses meta tensors only to infer shapes, so that they hold no memory. ``counts_random_states`` is True in a run
    for the CPU, where checkpoint saves a CPU random state for each function that it runs, which no observed call shows. With
    ``notes_placeholders``, storages on meta can be left out in the end (:meth:`leave_out_placeholders`).
    """

    def __init__(
        self,
        held: Mapping[str, Named] | None = None,
        *,
        cap: int | None = None,
        spec: Callable[[torch.Tensor], Spec] = spec_of,
        was_there: Callable[[torch.Tensor], bool] = lambda tensor: True,
        stand_in_of: Callable[[torch.Tensor], torch.Tensor | None] = lambda tensor: None,
        counts_meta: bool = True,
        counts_random_states: bool = False,
        notes_placeholders: bool = False,
    ) -> None:
        self.live = 0
        self.peak = 0
        self._cap = cap
        self._was_there = was_there
        self._stand_in_of = stand_in_of
        self._counts_meta = counts_meta
        self._counts_random_states = counts_random_states
        self._replaceable: Holders | None = None
        # For each held storage that may_leave noted, keyed by address: the tensor that may have lost the storage, and the storage's bytes.
        self._may_leave: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        # The tracked storages that are alive, except held ones, by their id.
        self._refs: dict[int, _StorageRef] = {}
        # Storages, by id, that the model asked for and so may resize: since the last _read_sizes, and before it.
        self._handed_out: dict[int, _StorageRef] = {}
        self._handed_out_before: OrderedDict[int, _StorageRef] = OrderedDict()
        self._entries = Entries()
        self._changes: list[int] = []
        self.current_call = -1
        # most_after and peak_after are the numbers of changes up to the highest peak, and up to the peak since the last reset_peak.
        self.most = self._most_after = self._peak_after = 0
        self._most_in_call = -1  # the call of the highest peak
        # The entries of held storages, and of the meta storages that stand for them, by address.
        self._held: dict[int, int] = {}
        # Entries of storages that existed before the run, but were first seen during it: see hold_earlier.
        self._entries_from_before: set[int] = set()
        self._bytes_met = 0  # the bytes of the storages in _entries_from_before
        self._met_categories: dict[int, str] = {}  # categories of call arguments, by entry, until a label replaces them
        # A weak reference to the hook of the function that checkpoint is running.
        self._random_state_hook: Callable[[], Any] = lambda: None
        # The entries of storages on meta, for leave_out_placeholders.
        self._placeholders: set[int] | None = set() if notes_placeholders else None
        # Meta storages that stand for storages of the run, by id: a reference to the meta storage, and the storage that it keeps alive.
        self._aliases: dict[int, tuple[weakref.ref[Any], Any]] = {}
        # Meta storages of held tensors: kept alive, so that no other storage gets their address.
        self._kept_stand_ins: dict[int, Any] = {}
        for category, named in (held or {}).items():
            self._hold(named, category, spec)

    @hidden_from_modes
    def _hold(self, named: Named, category: str, spec: Callable[[torch.Tensor], Spec]) -> None:
        """Track tensors that are alive before and after the run."""
        held, entries, changes, strided = self._held, self._entries, self._changes, torch.strided
        names, live = entries.names, self.live
        first = len(entries.specs)
        for name, tensor in named:
            is_plain = type(tensor) in ORDINARY and tensor.layout is strided
            for part in (tensor,) if is_plain else stored(tensor):
                if part.layout is not strided:
                    continue
                storage = part.untyped_storage()
                key = storage._cdata
                if key not in held:
                    nbytes = storage.nbytes()
                    held[key] = entry = entries.add(spec(part), -1)
                    names[entry] = name
                    if self._placeholders is not None and part.is_meta:
                        self._placeholders.add(entry)
                    changes += (entry, nbytes, -1)
                    live += nbytes
        entries.categories.update(dict.fromkeys(range(first, len(entries.specs)), category))
        self.live = live
        self.peak = self.most = self.live
        self._most_after = len(changes) // 3

    def add(self, tensor: torch.Tensor, spec: Spec | None = None) -> None:
        """Track a tensor's storage; if it is tracked already, update its size. Skip tensors without a storage (sparse, or inside vmap).

        ``spec`` is the tensor's spec; by default it is read from the tensor.

        Raises InputError if the live storages exceed the cap.
        """
        if (tensor if spec is None else spec).layout is not torch.strided:
            return
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            return
        if storage._cdata in self._held:
            return
        if not self._counts_meta and storage.device.type == "meta":
            return
        key, nbytes = id(storage), storage.nbytes()
        ref = self._refs.get(key)
        if ref is not None and ref() is storage:
            if nbytes != ref.nbytes and not is_zerotensor(tensor):
                self._change(ref.entry, nbytes - ref.nbytes)
                ref.nbytes = nbytes
            if self._entries.calls[ref.entry] == self.current_call >= 0:
                # An operator inside this call made the storage: show the spec of the call's own result.
                self._entries.specs[ref.entry] = spec or spec_of(tensor)
        else:
            self.enter(storage, 0 if is_zerotensor(tensor) else nbytes, spec or spec_of(tensor))
        if self._cap is not None and self.live > self._cap:
            raise InputError(
                f"the model reads tensor values, so it ran on real tensors; they exceed the cap of {size(self._cap)}",
                advice="cap",
            )

    def enter(self, storage: Any, nbytes: int, spec: Spec) -> None:
        """Track a new storage; ``spec`` is the spec of its tensor."""
        self._read_sizes()
        if self._counts_random_states and (hook := saving_hook()) is not None:
            self._enter_random_state(hook)
        if self.live + nbytes > self.peak and self._replaceable is not None:
            self._remove_replaced()
        entries, call = self._entries, self.current_call
        entry = len(entries.specs)
        entries.specs.append(spec)
        entries.calls.append(call)
        if self._placeholders is not None and storage.device.type == "meta":
            self._placeholders.add(entry)
        self._watch(storage, nbytes, entry)
        self.live = live = self.live + nbytes
        self._changes += (entry, nbytes, call)
        if live > self.peak:
            self._set_peak()

    def _enter_random_state(self, hook: Any) -> None:
        """Track the random state that checkpoint saves for the function that checkpoint is running."""
        if self._random_state_hook() is hook:
            return
        try:
            self._random_state_hook = weakref.ref(hook)
        except TypeError:  # a hook written in C is not checkpoint's
            return
        state_and_owner = random_state_of_checkpoint(hook)
        if state_and_owner is None:
            return
        state, owner = state_and_owner
        ref = self._refs.get(id(owner))
        if ref is not None and ref() is owner:  # the state is tracked already
            return
        entry = self._entries.add(spec_of(state), self.current_call)
        self._watch(owner, state.untyped_storage().nbytes(), entry)
        self._change(entry, self._refs[id(owner)].nbytes)

    def follow_replaced(self, replaceable: Holders) -> None:
        """Stop counting held tensors when the run drops them, although they were expected to live to the end."""
        self._replaceable = replaceable

    def end_run(self) -> None:
        """Drop all references to the model and to the run's stand-ins."""
        self._handed_out, self._handed_out_before = {}, OrderedDict()
        self._replaceable, self._stand_in_of, self._was_there = None, lambda tensor: None, lambda tensor: True
        self._may_leave = {}

    def may_leave(self, tensor: torch.Tensor) -> None:
        """Note that a call may give a tensor other memory (``x.data = y``), after which the tensor's old memory may be freed."""
        storage = _storage_of(tensor)
        if storage is not None and storage._cdata in self._held:
            self._may_leave[storage._cdata] = weakref.ref(tensor), storage.nbytes()

    def _remove_left(self) -> None:
        """Stop counting memory noted by :meth:`may_leave` if only fxflops still keeps it, to restore the tensor after the run."""
        for cdata, (reference, nbytes) in [*self._may_leave.items()]:
            aliases = aliases_of(cdata)
            # Without aliases the storage may be gone, and its address invalid.
            if not aliases or storage_uses(cdata) > aliases:
                continue
            entry, tensor = self._held[cdata], reference()
            if tensor is not None and tensor.is_meta:  # the tensor needs no stand-in any more
                self._stand_in_of(tensor)
            # A view or autograd may still use the memory of a stand-in; the stand-in then survives although its reference is dropped.
            addresses = [
                address
                for address, held_entry in self._held.items()
                if held_entry == entry and address in self._kept_stand_ins
            ]
            references = [weakref.ref(self._kept_stand_ins.pop(address)) for address in addresses]
            stand_ins = [storage for reference in references if (storage := reference()) is not None]
            if len(stand_ins) > 1:
                self._kept_stand_ins.update({storage._cdata: storage for storage in stand_ins})
                continue
            for address in (cdata, *addresses):
                self._held.pop(address, None)
            del self._may_leave[cdata]
            if stand_ins:
                self._watch(stand_ins.pop(), nbytes, entry)
            else:
                self._change(entry, -nbytes)

    def _remove_replaced(self) -> None:
        """Stop counting storages that the model held when the run began and has since replaced. Needed only before a new peak."""
        if self._may_leave:
            self._remove_left()
        for tensors in () if self._replaceable is None else self._replaceable.let_go():
            stand_ins = [stand_in for t in tensors if (stand_in := self._stand_in_of(t)) is not None]
            storage = tensors[0].untyped_storage()
            entry = self._held.get(storage._cdata)
            if entry is None or len(stand_ins) > 1:
                continue
            nbytes = storage.nbytes()
            if not stand_ins:
                self._change(entry, -nbytes)
                continue
            # A view or autograd may still use the memory: count it as long as the stand-in's storage lives.
            storage = stand_ins.pop().untyped_storage()
            self._held.pop(storage._cdata, None)
            self._kept_stand_ins.pop(storage._cdata, None)
            self._watch(storage, nbytes, entry)

    def _watch(self, storage: Any, nbytes: int, entry: int) -> None:
        """Keep a weak reference to an entry's storage, to subtract its bytes when Python frees it."""
        self._refs[id(storage)] = ref = _StorageRef(storage, self._leave)
        ref.key, ref.nbytes, ref.entry = id(storage), nbytes, entry

    @property
    def entered(self) -> int:
        """The number of storages tracked so far."""
        return len(self._entries.specs)

    def bytes_since(self, number: int, value: Any) -> int:
        """Return the bytes of those tensors in ``value`` whose storages have an entry number of at least ``number``."""
        parts = [part for tensor in tensors_given(value) for part in stored(tensor) if part.layout is torch.strided]
        refs = {self._refs.get(id(part.untyped_storage())) for part in parts}
        return sum(ref.nbytes for ref in refs if ref is not None and ref.entry >= number)

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's storage was made in the run, or belongs to an input."""
        if tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage()
        if self._ref_of(storage) is not None or id(storage) in self._aliases:
            return True
        return self._entries.categories.get(self._held.get(storage._cdata, -1)) == "inputs"

    def move(self, tensor: torch.Tensor, meta: torch.Tensor) -> None:
        """Let the storage of the meta tensor ``meta`` represent the tensor's storage, and keep that storage alive, as a view would.

        If the tensor is a view, its storage may outlive it together with the base. A storage that is not tracked yet existed before
        the run, e.g. in a constant held by a closure, a graph or an attribute.
        """
        if tensor.layout is not torch.strided or meta.layout is not torch.strided:
            return
        storage, stand_in = tensor.untyped_storage(), meta.untyped_storage()
        if storage._cdata in self._held:
            self._held[stand_in._cdata] = self._held[storage._cdata]
            self._kept_stand_ins[stand_in._cdata] = stand_in
            return
        ref = self._ref_of(storage)
        if ref is not None:
            self._stand_for(stand_in, storage, ref.entry)
        elif id(stand_in) not in self._refs:
            self.add_held([("", meta)], "buffers")

    def share(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        """Count a stand-in's storage as the tensor's storage, if the tensor is held from beginning to end.

        The tensor is optimizer state stored on a parameter, and was labelled as a model attribute by mistake: correct the label.
        """
        for part, stand_in_part in zip(stored(tensor), stored(stand_in), strict=True):
            storage, stand_in_storage = _storage_of(part), _storage_of(stand_in_part)
            if storage is not None and stand_in_storage is not None and storage._cdata in self._held:
                self._held[stand_in_storage._cdata] = entry = self._held[storage._cdata]
                self._kept_stand_ins[stand_in_storage._cdata] = stand_in_storage
                self._entries.categories[entry] = "optimizer"

    def _stand_for(self, stand_in: Any, storage: Any, entry: int) -> None:
        """Let a meta storage keep ``storage`` alive, as a view does. The meta storage itself is not counted."""
        held, aliases, key, cdata = self._held, self._aliases, id(stand_in), stand_in._cdata

        def drop(_: Any) -> None:
            aliases.pop(key, None)
            held.pop(cdata, None)

        held[cdata] = entry
        aliases[key] = weakref.ref(stand_in, drop), storage

    def add_all(self, value: Any, call: int | None = None) -> None:
        """Track all tensors in nested tuples, lists and dicts; ``call`` is the number of the call that made them."""
        if call is not None:
            self.current_call = call
        with DisableTorchFunction():
            for tensor in tensors_given(value):
                for part in stored(tensor):
                    self.add(part)

    def may_resize(self, tensor: torch.Tensor) -> None:
        """Note that the model asks for a tensor's storage: it may then resize the storage unseen, as FSDP does to free memory."""
        self._read_sizes()  # storages that the model got earlier were resized before this call, if at all
        storage = _storage_of(tensor)
        if storage is None or not storage.resizable() or is_zerotensor(tensor):
            return
        key, ref = id(storage), self._ref_of(storage)
        if ref is None and storage._cdata in self._held:
            ref = self._handed_out_before.pop(key, None)
            if ref is None or ref() is not storage:
                ref = _StorageRef(storage)
                ref.key, ref.nbytes, ref.entry = key, storage.nbytes(), self._held[storage._cdata]
        if ref is not None:
            self._handed_out_before.pop(key, None)
            self._handed_out[key] = ref

    def _read_sizes(self) -> None:
        """Record the new sizes of storages that the model has asked for and resized.

        A model usually resizes a storage right after asking for it, but may do so much later. So each call of this method also reads
        the size of one older storage. Reading all older storages would be too slow for a model that asks for every tensor's storage.
        """
        older = self._handed_out_before
        if not older and not self._handed_out:
            return
        to_read, self._handed_out = self._handed_out, {}
        if older:
            key, ref = older.popitem(last=False)
            to_read[key] = ref
        for key, ref in to_read.items():
            storage = ref()
            if storage is None:
                continue
            older[key] = ref
            if (nbytes := storage.nbytes()) != ref.nbytes:
                self._change(ref.entry, nbytes - ref.nbytes)
                ref.nbytes = nbytes

    def label(self, named: Named, category: str) -> None:
        """Set the category and the names of the storages of these tensors; skip storages that have a category already."""
        for name, tensor in named:
            for part in stored(tensor):
                ref = self._refs.get(id(part.untyped_storage())) if part.layout is torch.strided else None
                if ref is not None and ref.entry not in self._entries.categories:
                    self._entries.categories[ref.entry], self._entries.names[ref.entry] = category, name

    def keep(self, named: Named, earlier: Iterable[torch.Tensor]) -> None:
        """Count the storages of these tensors as alive to the end of the history, e.g. an optimizer's state, which outlives the step.

        Storages of the tensors in ``earlier`` are moved to the beginning of the history: they existed then.
        """
        kept, existed = self._refs_of(tensor for _, tensor in named), self._refs_of(earlier)
        for ref in kept:
            self._refs.pop(ref.key, None)
        if existed:
            self._move_to_beginning({ref.entry for ref in existed})

    def _refs_of(self, tensors: Iterable[torch.Tensor]) -> list[_StorageRef]:
        """Return references to the storages of these tensors; skip storages that are not tracked or not alive."""
        refs = [self._ref_of(_storage_of(part)) for tensor in tensors for part in stored(tensor)]
        return [ref for ref in refs if ref is not None]

    def _ref_of(self, storage: Any) -> _StorageRef | None:
        """Return the reference to a tracked live storage; None for any other storage."""
        ref = self._refs.get(id(storage))
        return ref if ref is not None and ref() is storage else None

    def add_held(self, named: Named, category: str) -> None:
        """Track and label tensors that were alive when the run began but are found only now; skip storages that are tracked already."""
        named, first = [*named], self.entered
        self.add_all([tensor for _, tensor in named])
        self.label(named, category)
        if self.current_call >= 0:
            self._move_to_beginning(range(first, self.entered))

    def add_given(
        self, tensors: Iterable[torch.Tensor], category: str = "inputs", device: torch.device | None = None
    ) -> None:
        """Track call arguments that no observed call has made: they existed before the run.

        Tensors that the user made before a profiled block are tracked only here. They get ``category`` ("" for none), unless they
        are parameters or are labelled later. With ``device``, tensors on other devices are skipped. Storages count from the
        beginning of the run (:meth:`hold_earlier`), unless they may have been made unseen within the run: memory shared with numpy
        or another process, and tensors for which ``was_there`` is False, count from now on.
        """
        for tensor in tensors:
            for part in stored(tensor) if device is None or tensor.device.type == device.type else ():
                storage = _storage_of(part)
                if storage is None or self._entry_of(storage) is not None:
                    continue
                if not self._counts_meta and storage.device.type == "meta":
                    continue
                entry = self.entered
                self.enter(storage, 0 if is_zerotensor(part) else storage.nbytes(), spec_of(part))
                self._entries.calls[entry] = -1
                met_category = "params" if isinstance(tensor, torch.nn.Parameter) else category
                if met_category:
                    self._met_categories[entry] = met_category
                if storage.resizable() and self._was_there(part):
                    self._entries_from_before.add(entry)
                    self._bytes_met += storage.nbytes()

    def has_all(self, values: Iterable[Any]) -> bool:
        """Return whether all values are numbers, or plain tensors whose storages are tracked."""
        refs, held = self._refs, self._held
        try:
            for value in values:
                kind = type(value)
                if kind in ORDINARY and value.layout is torch.strided:
                    storage = value.untyped_storage()
                    ref = refs.get(id(storage))
                    if (ref is None or ref() is not storage) and storage._cdata not in held:
                        return False
                elif kind not in NUMBERS:
                    return False
        except NotImplementedError:  # tensors inside vmap have no storage
            return False
        return True

    def maker_of(self, tensor: torch.Tensor) -> int:
        """Return the number of the call that made a tensor's storage; -1 if no call made it, or it is not tracked."""
        storage = _storage_of(tensor)
        entry = None if storage is None else self._entry_of(storage)
        return -1 if entry is None else self._entries.calls[entry]

    def was_made(self, tensor: torch.Tensor) -> bool:
        """Return whether a call of the run made a tensor's storage."""
        return self.maker_of(tensor) >= 0

    def _entry_of(self, storage: Any) -> int | None:
        if storage._cdata in self._held:
            return self._held[storage._cdata]
        ref = self._ref_of(storage)
        return None if ref is None else ref.entry

    def hold_earlier(self) -> None:
        """Rewrite the history as if storages that existed before the run had been tracked from its beginning."""
        if self._entries_from_before:
            self._move_to_beginning(self._entries_from_before, only_made=True)
            self._entries_from_before = set()

    def leave_out_placeholders(self) -> None:
        """Rewrite the history without the storages on meta: in a run on another device they hold no memory."""
        placeholders, call = self._placeholders, self.current_call
        if not placeholders:
            return
        changes, self._changes = self._changes, []
        self._reset()
        for entry, change, self.current_call in triples(changes):  # _change reads current_call
            if entry not in placeholders:
                self._change(entry, change)
        self.current_call = call

    def hold_written(self, calls: Sequence[Call]) -> None:
        """Treat live storages that autograd wrote to but did not make as gradients that existed from the beginning.

        Such storages are DistributedDataParallel's buckets, which C++ holds, and gradients of inputs, to which autograd adds.
        """
        written: list[int] = []
        for ref in self._refs.values():
            maker = self._entries.calls[ref.entry]
            # The last tensors that a control flow operator makes belong to no call: their call number is len(calls) or more.
            if 0 <= maker < len(calls) and _is_written(calls[maker]):
                written.append(ref.entry)
        for entry in written:
            self._entries.categories.setdefault(entry, "gradients")
        if written:
            self._move_to_beginning(written)

    def _move_to_beginning(self, entries: Container[int], only_made: bool = False) -> None:
        """Rewrite the history as if all changes of these storages had happened before the first call.

        With ``only_made``, only their creation is moved there; their other changes stay where they are.
        """
        call = self.current_call
        first: list[tuple[int, int, int]] = []
        rest: list[tuple[int, int, int]] = []
        moved: set[int] = set()
        for entry, change, number in triples(self._changes):
            if entry in entries and not (only_made and entry in moved):
                first.append((entry, change, -1))
                moved.add(entry)
            else:
                rest.append((entry, change, number))
        self._changes = []
        self._reset()
        for entry, change, self.current_call in (*first, *rest):  # _change reads current_call
            self._entries.calls[entry] = -1 if entry in entries else self._entries.calls[entry]
            self._change(entry, change)
        self.current_call = call

    def _reset(self) -> None:
        """Reset the live bytes and the peaks, before the changes are applied again."""
        self.live = self.peak = self.most = self._most_after = 0
        self._most_in_call = -1

    def reset_peak(self) -> None:
        """Set the peak to the bytes alive now."""
        self.peak = self.live

    def begin(self) -> MemoryMark:
        """Begin to measure a call; pass the result to :meth:`end`."""
        self._read_sizes()
        span = MemoryMark(len(self._changes), self.live, self.peak, self._peak_after, self._bytes_met)
        self.peak = self.live
        return span

    def end(self, span: MemoryMark, arguments: Any = ()) -> tuple[int, tuple[tuple[Spec, int], ...]]:
        """Return the bytes that a call leaves behind and, if more bytes were alive during the call, the storages at that peak.

        Each storage is a spec and its change in bytes since the call began. Storages of ``arguments`` are excluded: they may have
        been first seen during the call, but the call did not make them.
        """
        # Storages that existed before the run, but were first seen during the call, were alive when the call began.
        live_before = span.live + self._bytes_met - span.met
        left, rose = self.live - live_before, self.peak - live_before
        net_bytes = dict[int, int]()
        if rose > max(left, 0):
            for entry, change, _ in triples(self._changes[span.changes : 3 * self._peak_after]):
                net_bytes[entry] = net_bytes.get(entry, 0) + change
        for tensor in tensors_given(arguments) if net_bytes else ():
            for part in stored(tensor):
                ref = self._refs.get(id(part.untyped_storage())) if part.layout is torch.strided else None
                if ref is not None:
                    net_bytes.pop(ref.entry, None)
        if span.peak >= self.peak:
            self.peak, self._peak_after = span.peak, span.peak_after
        return left, tuple((self._entries.specs[entry], nbytes) for entry, nbytes in net_bytes.items() if nbytes)

    def add_transients(self, transients: Iterable[tuple[Spec, int]]) -> None:
        """Track storages that live only within the current call, and remove them again; skip them if they make no new peak."""
        self._read_sizes()
        if self.live + sum([nbytes for _, nbytes in transients if nbytes > 0]) <= self.peak:
            return
        if self._replaceable is not None:
            self._remove_replaced()
        entries_and_bytes = [(self._entries.add(spec, self.current_call), nbytes) for spec, nbytes in transients]
        for entry, nbytes in entries_and_bytes:
            self._change(entry, nbytes)
        for entry, nbytes in entries_and_bytes:
            self._change(entry, -nbytes)

    def history(self, calls: Sequence[Call]) -> History:
        """Return the history so far; ``calls[number]`` is the call with that number."""
        self._handed_out |= self._handed_out_before  # read the sizes of all of them
        self._read_sizes()
        for entry, category in self._met_categories.items():
            self._entries.categories.setdefault(entry, category)
        # A copy: storages that outlive the run, such as a model's weights, may be freed after it.
        changes = self._changes.copy()
        return History(self.most, calls, self._entries, changes, self._most_after, self._most_in_call)

    def _change(self, entry: int, change: int) -> None:
        self.live += change
        self._changes += (entry, change, self.current_call)
        if self.live > self.peak:
            self._set_peak()

    def _set_peak(self) -> None:
        """Set a new peak."""
        self.peak, self._peak_after = self.live, len(self._changes) // 3
        if self.live > self.most:
            self.most, self._most_after, self._most_in_call = self.live, self._peak_after, self.current_call

    def _leave(self, ref: _StorageRef) -> None:
        if self._refs.get(ref.key) is ref:  # not if a new storage got the same id, or the storage was moved
            del self._refs[ref.key]
            self.live -= ref.nbytes
            self._changes += (ref.entry, -ref.nbytes, self.current_call)


def _storage_of(tensor: torch.Tensor) -> Any:
    """Return a tensor's storage; None for a sparse tensor or a tensor inside vmap."""
    if tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return None


def _is_written(call: Call) -> bool:
    """Return whether a call in the backward pass returned an argument that it wrote to."""
    schema = getattr(call.operation.target, "_schema", None)
    returned = schema.returns[0].alias_info if schema is not None and schema.returns else None
    return call.phase == BACKWARD and returned is not None and bool(returned.is_write)

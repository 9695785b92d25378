"""Track which tensor storages are alive in an observed run. If a device has allocator statistics, ``analyze`` takes the peak and the bytes of
nodes from these instead.

:class:`LiveStorages` sees each tensor, finds its storage, and writes to a :class:`~.memory_log.MemoryLog` when the storage is new, was
resized, or is freed. A storage counts once, however many views share it. To *track* a storage is to give it a number in the log, and to
keep a weak reference to the storage. The callback of this reference runs when Python frees the storage. Some storages are handled differently:

- *Held*: the storages of parameters, buffers and inputs in a count or an analysis, where the caller passes them as ``held``. (A profiled
  block adds its parameters with :meth:`LiveStorages.add_existing`, which tracks them like other storages.) Held storages are alive from
  the beginning of the run to its end. They are known by their address alone, without a weak reference: the model keeps them alive, and
  making the references would slow down each count.
- *Dropped*: held storages that the run gives up all the same, because the model has replaced the tensor (found by
  :class:`~fxflops.model.references.References`) or has given it other memory (``x.data = y``: the tensor is *reassigned*). Only fxflops
  still keeps them then, to restore the model. Before each new peak, fxflops looks for dropped storages and stops counting them.
- *Stand-ins*: in a run on meta, the storages of the meta tensors that represent real tensors. A stand-in has no bytes and no number of
  its own: it shares the number of the real storage.
- *Placeholders*: storages on meta in a run on another device. They hold no memory. Sometimes the device is known only at the end of the
  run, so fxflops notes which storages are placeholders, and leaves them out of the log in the end.
- *Handed out*: storages that the model has asked for. The model may then resize them without a call that fxflops sees.

What happens, and the method that must be called:

=================================================================  =====================================================================
event                                                              method of :class:`LiveStorages`
=================================================================  =====================================================================
a call is about to allocate or free memory                         ``begin_next_call``
a call has returned tensors                                        ``add`` for one tensor, ``add_all`` for a nested value
a call that was not run needs temporaries                          ``add_transients``
the bytes of a call are to be measured                             ``begin_call``, then ``end_call``
a tensor is found that no call has made                            ``add_existing`` if its category is known, otherwise ``add_given``
the category of tracked tensors becomes known                      ``label``
a meta tensor is made for a real tensor                            ``add_stand_in``; ``share`` for optimizer state
a call may give a tensor other memory (``x.data = y``)             ``may_reassign``, before the call
the model asks for a storage, and may resize it                    ``may_resize``
Python frees a storage                                             none: a weak reference notices it
=================================================================  =====================================================================
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, NamedTuple

import torch

from ..errors import InputError
from ..model.hidden import hidden_from_modes
from ..model.pytree import stored, tensors_given
from ..model.references import References
from ..model.tensor_state import aliases_of
from ..records import BACKWARD, Call, Spec
from ..records.tensors import NUMBERS, ORDINARY, spec_of
from ..torch_internals import DisableTorchFunction, is_zerotensor, random_state_of_checkpoint, saving_hook, storage_uses
from ..units import size
from .history import NO_CALL, History
from .memory_log import MemoryLog, MemoryMark

Named = Iterable[tuple[str, torch.Tensor]]
"""Pairs of a name and a tensor, as ``named_parameters()`` yields them."""


class _StorageRef(weakref.ref[Any]):
    """A weak reference to a live storage. ``key`` is the storage's ``id``, ``number`` its number in the log, ``nbytes`` its bytes.

    :meth:`to` makes it: an ``__init__`` in Python would take twice the time, for each tensor of each count.
    """

    __slots__ = ("key", "nbytes", "number")
    key: int
    nbytes: int
    number: int

    @classmethod
    def to(cls, storage: Any, nbytes: int, number: int, on_freed: Callable[[Any], None] | None = None) -> _StorageRef:
        """Return a reference to a storage; ``on_freed(reference)`` is called when Python frees the storage."""
        ref = cls(storage, on_freed)
        ref.key, ref.nbytes, ref.number = id(storage), nbytes, number
        return ref


class Cap(NamedTuple):
    """The limit of live bytes in a count on real tensors, and ``why`` the count needs them."""

    nbytes: int
    why: str


class LiveStorages:
    """The live tensor storages of a run, as an allocator would see them; ``memory_log`` has their bytes.

    Temporary memory inside a kernel is not seen. Before the tensors of a call are added, :meth:`begin_next_call` must be called.

    ``held`` has the held tensors, by category and name. ``spec(tensor)`` returns a tensor's spec. If the live storages exceed the ``cap``,
    InputError is raised, before memory runs out. ``was_there(tensor)`` returns whether a tensor that no call has made existed
    when the run began. ``take_stand_in(tensor)`` returns the meta tensor that represents a tensor in the run, and makes the run forget this
    meta tensor. ``counts_meta`` is False in a run on another device. There torch uses meta tensors only to infer shapes, so meta tensors
    hold no memory. ``counts_random_states`` is True in a run for the CPU. There checkpoint saves a CPU random state for each function that
    it runs, although no observed call shows this. With ``notes_placeholders``, placeholders can be left out in the end
    (:meth:`leave_out_placeholders`).
    """

    def __init__(
        self,
        held: Mapping[str, Named] | None = None,
        *,
        cap: Cap | None = None,
        spec: Callable[[torch.Tensor], Spec] = spec_of,
        was_there: Callable[[torch.Tensor], bool] = lambda tensor: True,
        take_stand_in: Callable[[torch.Tensor], torch.Tensor | None] = lambda tensor: None,
        counts_meta: bool = True,
        counts_random_states: bool = False,
        notes_placeholders: bool = False,
    ) -> None:
        self.memory_log = MemoryLog()
        self._calls: Sized = ()
        self._cap = cap
        self._was_there = was_there
        self._take_stand_in = take_stand_in
        self._counts_meta = counts_meta
        self._counts_random_states = counts_random_states
        # All tracked storages that are alive, by id. Storages that the run keeps alive throughout are in _number_at instead.
        self._refs: dict[int, _StorageRef] = {}
        # From a storage's address to its number, for held storages and for all stand-ins.
        self._number_at: dict[int, int] = {}
        # The meta storages that replace held storages, by address. They are kept alive, so that no other storage gets their address.
        self._held_stand_ins: dict[int, Any] = {}
        # All other meta storages, by id: a weak reference to the meta storage, and the storage that the meta storage keeps alive.
        self._stand_ins: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self._replaceable: References | None = None
        # For each held storage passed to may_reassign, by address: the tensor that may be reassigned, and the storage's bytes.
        self._maybe_reassigned: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        # By id: the storages that the model has asked for since the last _read_sizes, and the storages that it asked for earlier.
        self._handed_out: dict[int, _StorageRef] = {}
        self._handed_out_before: OrderedDict[int, _StorageRef] = OrderedDict()
        # The numbers of placeholders; None if placeholders are not recorded.
        self._placeholders: set[int] | None = set() if notes_placeholders else None
        # A weak reference to the hook of the function that checkpoint is running.
        self._random_state_hook: Callable[[], Any] = lambda: None
        for category, named in (held or {}).items():
            self._hold(named, category, spec)

    @property
    def live(self) -> int:
        """The bytes alive now."""
        return self.memory_log.live

    @property
    def peak(self) -> int:
        """The most bytes alive since the last :meth:`reset_peak`."""
        return self.memory_log.peak

    def reset_peak(self) -> None:
        """Set the peak to the bytes alive now."""
        self.memory_log.reset_peak()

    @hidden_from_modes
    def _hold(self, named: Named, category: str, spec: Callable[[torch.Tensor], Spec]) -> None:
        """Track tensors that are alive before and after the run."""
        held, placeholders, strided = self._number_at, self._placeholders, torch.strided
        first, new = len(self.memory_log.storages), list[tuple[str, Spec, int]]()
        for name, tensor in named:
            is_plain = type(tensor) in ORDINARY and tensor.layout is strided
            for part in (tensor,) if is_plain else stored(tensor):
                if part.layout is not strided:
                    continue
                storage = part.untyped_storage()
                address = storage._cdata
                if address not in held:
                    held[address] = number = first + len(new)
                    if placeholders is not None and part.is_meta:
                        placeholders.add(number)
                    new.append((name, spec(part), storage.nbytes()))
        self.memory_log.add_at_beginning(category, new)

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
        if storage._cdata in self._number_at:
            return
        if not self._counts_meta and storage.device.type == "meta":
            return
        log, key, nbytes = self.memory_log, id(storage), storage.nbytes()
        ref = self._refs.get(key)
        if ref is not None and ref() is storage:
            if nbytes != ref.nbytes and not is_zerotensor(tensor):
                log.change(ref.number, nbytes - ref.nbytes)
                ref.nbytes = nbytes
            if log.storages.makers[ref.number] == log.current_call >= 0:
                # An operator inside this call made the storage. Reports show the spec of the call's result, not of the operator's result.
                log.storages.specs[ref.number] = spec or spec_of(tensor)
        else:
            self.add_new(storage, 0 if is_zerotensor(tensor) else nbytes, spec or spec_of(tensor))
        if self._cap is not None and log.live > self._cap.nbytes:
            raise InputError(
                f"the count needs real tensors: {self._cap.why}\n  they take more memory than the cap of {size(self._cap.nbytes)}",
                advice="cap",
            )

    def add_new(self, storage: Any, nbytes: int, spec: Spec) -> None:
        """Track a new storage; ``spec`` is the spec of its tensor."""
        # This method runs for each tensor of each count. For speed, call another method only if that method has work to do.
        if self._handed_out or self._handed_out_before:
            self._read_sizes()
        if self._counts_random_states and (hook := saving_hook()) is not None:
            self._add_random_state(hook)
        log = self.memory_log
        if log.live + nbytes > log.peak and (replaceable := self._replaceable) is not None:
            self._remove_dropped(replaceable)
        number = log.add(spec, nbytes)
        if self._placeholders is not None and storage.device.type == "meta":
            self._placeholders.add(number)
        self._refs[id(storage)] = _StorageRef.to(storage, nbytes, number, self._on_freed)

    def _add_random_state(self, hook: Any) -> None:
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
        nbytes = state.untyped_storage().nbytes()
        self._watch(owner, nbytes, self.memory_log.add(spec_of(state), nbytes))

    def follow_calls(self, calls: Sized) -> None:
        """Assign changes of memory to these calls; ``calls`` grows as calls are recorded."""
        self._calls = calls

    def follow_replaced(self, replaceable: References) -> None:
        """Look for dropped storages from now on; ``replaceable`` finds tensors that the model has replaced."""
        self._replaceable = replaceable

    def end_run(self) -> None:
        """Forget the model and the run's stand-ins."""
        self._handed_out, self._handed_out_before = {}, OrderedDict()
        self._calls = ()
        self._replaceable, self._take_stand_in, self._was_there = None, lambda tensor: None, lambda tensor: True
        self._maybe_reassigned = {}

    def may_reassign(self, tensor: torch.Tensor) -> None:
        """Note that a call may give a tensor other memory (``x.data = y``). The tensor's old memory may then be freed."""
        storage = _storage_of(tensor)
        if storage is not None and storage._cdata in self._number_at:
            self._maybe_reassigned[storage._cdata] = weakref.ref(tensor), storage.nbytes()

    def _remove_dropped(self, replaceable: References) -> None:
        """Stop counting dropped storages. Needed only before a new peak."""
        if self._maybe_reassigned:
            self._remove_reassigned()
        for tensors in replaceable.dropped():
            self._remove_replaced(tensors)

    def _remove_reassigned(self) -> None:
        """Stop counting storages noted by :meth:`may_reassign` if only fxflops still keeps them."""
        for address, (reference, nbytes) in [*self._maybe_reassigned.items()]:
            aliases = aliases_of(address)
            # If no alias is left, the storage may have been freed, and then its address is invalid.
            if not aliases or storage_uses(address) > aliases:
                continue
            number, tensor = self._number_at[address], reference()
            if tensor is not None and tensor.is_meta:  # the tensor needs no stand-in any more
                self._take_stand_in(tensor)
            # Drop the references to the meta storages. A meta storage survives if a view or autograd still uses it.
            of_stand_ins = [
                other
                for other, held_number in self._number_at.items()
                if held_number == number and other in self._held_stand_ins
            ]
            references = [weakref.ref(self._held_stand_ins.pop(other)) for other in of_stand_ins]
            stand_ins = [storage for reference in references if (storage := reference()) is not None]
            if len(stand_ins) > 1:
                self._held_stand_ins.update({storage._cdata: storage for storage in stand_ins})
                continue
            for other in (address, *of_stand_ins):
                self._number_at.pop(other, None)
            del self._maybe_reassigned[address]
            if stand_ins:
                self._watch(stand_ins.pop(), nbytes, number)
            else:
                self.memory_log.change(number, -nbytes)

    def _remove_replaced(self, tensors: Sequence[torch.Tensor]) -> None:
        """Stop counting the storages of these tensors, because the model has replaced the tensors since the run began."""
        stand_ins = [stand_in for t in tensors if (stand_in := self._take_stand_in(t)) is not None]
        storage = tensors[0].untyped_storage()
        number = self._number_at.get(storage._cdata)
        if number is None or len(stand_ins) > 1:
            return
        nbytes = storage.nbytes()
        if not stand_ins:
            self.memory_log.change(number, -nbytes)
            return
        # A view or autograd may still use the memory: count it as long as the stand-in's storage lives.
        storage = stand_ins.pop().untyped_storage()
        self._number_at.pop(storage._cdata, None)
        self._held_stand_ins.pop(storage._cdata, None)
        self._watch(storage, nbytes, number)

    def _watch(self, storage: Any, nbytes: int, number: int) -> None:
        """Keep a weak reference to the storage with this number. When Python frees the storage, its bytes are subtracted."""
        self._refs[id(storage)] = _StorageRef.to(storage, nbytes, number, self._on_freed)

    def _on_freed(self, ref: _StorageRef) -> None:
        if self._refs.get(ref.key) is ref:  # not if a new storage got the same id, or the storage is to be kept
            del self._refs[ref.key]
            self.memory_log.change(ref.number, -ref.nbytes)

    def bytes_since(self, number: int, value: Any) -> int:
        """Return the bytes of the tensors in ``value`` whose storages have this number or a higher number, i.e. were tracked since."""
        refs = set(self._refs_of(tensors_given(value)))
        return sum(ref.nbytes for ref in refs if ref.number >= number)

    def belongs_to_run(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's storage was made in the run, or belongs to an input."""
        if tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage()
        if self._ref_of(storage) is not None or id(storage) in self._stand_ins:
            return True
        return self.memory_log.storages.categories.get(self._number_at.get(storage._cdata, -1)) == "inputs"

    def add_stand_in(self, tensor: torch.Tensor, meta: torch.Tensor) -> None:
        """Let the storage of the meta tensor ``meta`` represent the tensor's real storage, and keep the real storage alive, as a view would.

        If the tensor is a view, its storage may outlive it together with the base. If a storage is not tracked yet, it existed before the
        run, e.g. in a constant held by a closure, a graph or an attribute.
        """
        if tensor.layout is not torch.strided or meta.layout is not torch.strided:
            return
        storage, stand_in = tensor.untyped_storage(), meta.untyped_storage()
        if storage._cdata in self._number_at:
            self._number_at[stand_in._cdata] = self._number_at[storage._cdata]
            self._held_stand_ins[stand_in._cdata] = stand_in
            return
        ref = self._ref_of(storage)
        if ref is not None:
            self._stand_for(stand_in, storage, ref.number)
        elif id(stand_in) not in self._refs:
            self.add_existing([("", meta)], "buffers")

    def share(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        """Like :meth:`add_stand_in`, but for optimizer state: if the tensor is held, count its meta tensor's storage as the tensor's own.

        A tensor for which this is called is optimizer state that is stored on a parameter. The state was labelled as a model attribute by
        mistake, so correct the label.
        """
        for part, stand_in_part in zip(stored(tensor), stored(stand_in), strict=True):
            storage, stand_in_storage = _storage_of(part), _storage_of(stand_in_part)
            if storage is not None and stand_in_storage is not None and storage._cdata in self._number_at:
                self._number_at[stand_in_storage._cdata] = number = self._number_at[storage._cdata]
                self._held_stand_ins[stand_in_storage._cdata] = stand_in_storage
                self.memory_log.storages.categories[number] = "optimizer"

    def _stand_for(self, stand_in: Any, storage: Any, number: int) -> None:
        """Let a stand-in keep its storage alive, as a view does."""
        held, stand_ins, key, address = self._number_at, self._stand_ins, id(stand_in), stand_in._cdata

        def forget(_: Any) -> None:
            stand_ins.pop(key, None)
            held.pop(address, None)

        held[address] = number
        stand_ins[key] = weakref.ref(stand_in, forget), storage

    def begin_next_call(self) -> None:
        """From now on, assign changes of memory to the call that is recorded next: the tensors that it makes are added."""
        self.memory_log.current_call = len(self._calls)

    def add_all(self, value: Any) -> None:
        """Track all tensors in nested tuples, lists and dicts."""
        with DisableTorchFunction():
            for tensor in tensors_given(value):
                for part in stored(tensor):
                    self.add(part)

    def may_resize(self, tensor: torch.Tensor) -> None:
        """Note that the model asks for a tensor's storage. The model may then resize the storage without an observed call, as FSDP does to
        free memory."""
        self._read_sizes()  # storages that the model got earlier were resized before this call, if at all
        storage = _storage_of(tensor)
        if storage is None or not storage.resizable() or is_zerotensor(tensor):
            return
        key, ref = id(storage), self._ref_of(storage)
        if ref is None and storage._cdata in self._number_at:
            ref = self._handed_out_before.pop(key, None)
            if ref is None or ref() is not storage:
                ref = _StorageRef.to(storage, storage.nbytes(), self._number_at[storage._cdata])
        if ref is not None:
            self._handed_out_before.pop(key, None)
            self._handed_out[key] = ref

    def _read_sizes(self) -> None:
        """Record the new sizes of storages that the model has asked for and resized.

        A model usually resizes a storage right after it asks for the storage, but may also resize it much later. So each call of this
        method also reads the size of one older storage. Reading all older storages would be too slow for a model that asks for every
        tensor's storage.
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
                self.memory_log.change(ref.number, nbytes - ref.nbytes)
                ref.nbytes = nbytes

    def label(self, named: Named, category: str) -> None:
        """Set the category and the names of these tensors' storages. Skip storages that already have a category."""
        storages = self.memory_log.storages
        for name, tensor in named:
            for ref in self._refs_of([tensor]):
                if ref.number not in storages.categories:
                    storages.categories[ref.number], storages.names[ref.number] = category, name

    def keep_to_end(self, named: Named, earlier: Iterable[torch.Tensor]) -> None:
        """Count the storages of these tensors as alive to the end of the history. For example, an optimizer's state outlives the step.

        Storages of the tensors in ``earlier`` are moved to the beginning of the history, because they existed before the run.
        """
        kept, existed = self._refs_of(tensor for _, tensor in named), self._refs_of(earlier)
        for ref in kept:
            self._refs.pop(ref.key, None)
        if existed:
            self.memory_log.move_to_beginning({ref.number for ref in existed})

    def _refs_of(self, tensors: Iterable[torch.Tensor]) -> list[_StorageRef]:
        """Return references to the storages of these tensors. Skip storages that are not tracked or no longer alive."""
        refs = [self._ref_of(_storage_of(part)) for tensor in tensors for part in stored(tensor)]
        return [ref for ref in refs if ref is not None]

    def _ref_of(self, storage: Any) -> _StorageRef | None:
        """Return the reference to a tracked live storage; None for any other storage."""
        ref = self._refs.get(id(storage))
        return ref if ref is not None and ref() is storage else None

    def add_existing(self, named: Named, category: str) -> None:
        """Track and label tensors of a known kind that were alive when the run began, such as parameters. Skip storages that are already
        tracked. For tensors whose kind is not known yet, see :meth:`add_given`.

        If they are found only during the run, their storages are moved to the beginning of the log.
        """
        named, first = [*named], len(self.memory_log.storages)
        self.add_all([tensor for _, tensor in named])
        self.label(named, category)
        if self.memory_log.current_call >= 0:
            self.memory_log.move_to_beginning(range(first, len(self.memory_log.storages)))

    def add_given(
        self, tensors: Iterable[torch.Tensor], category: str = "inputs", device: torch.device | None = None
    ) -> None:
        """Track call arguments that no observed call has made: they existed before the run. Their label may still change, unlike in
        :meth:`add_existing`.

        Tensors that the user made before a profiled block are tracked only here. The arguments get ``category`` ("" for none), unless they
        are parameters or are labelled later. With ``device``, tensors on other devices are skipped. The storages of these arguments count
        from the beginning of the run, unless they may have been made within the run without an observed call. Memory shared with numpy or
        another process, and tensors for which ``was_there`` is False, count from now on.
        """
        for tensor in tensors:
            for part in stored(tensor) if device is None or tensor.device.type == device.type else ():
                storage = _storage_of(part)
                if storage is None or self._number_of(storage) is not None:
                    continue
                if not self._counts_meta and storage.device.type == "meta":
                    continue
                number = len(self.memory_log.storages)
                self.add_new(storage, 0 if is_zerotensor(part) else storage.nbytes(), spec_of(part))
                self.memory_log.set_not_made(number, "params" if isinstance(tensor, torch.nn.Parameter) else category)
                if storage.resizable() and self._was_there(part):
                    self.memory_log.set_met(number, storage.nbytes())

    def has_all(self, values: Iterable[Any]) -> bool:
        """Return whether all values are numbers, or plain tensors whose storages are tracked."""
        refs, held = self._refs, self._number_at
        try:
            for value in values:
                kind = type(value)
                if kind in ORDINARY:
                    storage = value.untyped_storage()
                    if id(storage) not in refs and storage._cdata not in held:  # _refs has only storages that are alive
                        return False
                elif kind not in NUMBERS:
                    return False
        except NotImplementedError:  # sparse tensors and tensors inside vmap have no storage
            return False
        return True

    def maker_of(self, tensor: torch.Tensor) -> int:
        """Return the number of the call that made a tensor's storage; ``NO_CALL`` if no call made it, or it is not tracked."""
        storage = _storage_of(tensor)
        number = None if storage is None else self._number_of(storage)
        return NO_CALL if number is None else self.memory_log.storages.makers[number]

    def was_made_by_call(self, tensor: torch.Tensor) -> bool:
        """Return whether a call of the run made a tensor's storage."""
        return self.maker_of(tensor) >= 0

    def _number_of(self, storage: Any) -> int | None:
        if storage._cdata in self._number_at:
            return self._number_at[storage._cdata]
        ref = self._ref_of(storage)
        return None if ref is None else ref.number

    def leave_out_placeholders(self) -> None:
        """Rewrite the log without placeholders."""
        if self._placeholders:
            self.memory_log.leave_out(self._placeholders)

    def move_written_to_beginning(self, calls: Sequence[Call]) -> None:
        """Treat live storages that autograd wrote to, but did not make, as gradients that existed before the run.

        Storages that autograd writes to but does not make are DistributedDataParallel's buckets, which C++ code keeps alive, and gradients
        of inputs, to which autograd adds.
        """
        storages, written = self.memory_log.storages, set[int]()
        for ref in self._refs.values():
            maker = storages.makers[ref.number]
            # Skip tensors that no recorded call made. For example, the call number of a control flow operator's last tensors is len(calls) or more.
            if 0 <= maker < len(calls) and _is_written(calls[maker]):
                storages.categories.setdefault(ref.number, "gradients")
                written.add(ref.number)
        if written:
            self.memory_log.move_to_beginning(written)

    def begin_call(self) -> MemoryMark:
        """Begin to measure a call; pass the result to :meth:`end_call`."""
        self._read_sizes()
        return self.memory_log.begin()

    def end_call(self, mark: MemoryMark, arguments: Any = ()) -> tuple[int, tuple[tuple[Spec, int], ...]]:
        """Return the bytes that a call leaves behind. If more bytes were alive during the call, also return the storages at that peak.

        Each storage is a spec and its change in bytes since the call began. Storages of ``arguments`` are excluded. Even if they were first
        seen during the call, the call did not make them.
        """
        bytes_left, net_bytes = self.memory_log.end(mark)
        if not net_bytes:
            return bytes_left, ()
        for ref in self._refs_of(tensors_given(arguments)):
            net_bytes.pop(ref.number, None)
        specs = self.memory_log.storages.specs
        return bytes_left, tuple((specs[number], nbytes) for number, nbytes in net_bytes.items() if nbytes)

    def add_transients(self, transients: Iterable[tuple[Spec, int]]) -> None:
        """Add the current call's transients, each with its bytes, to the log. Skip the transients if they do not make a new peak."""
        self._read_sizes()
        if self.memory_log.live + sum([nbytes for _, nbytes in transients if nbytes > 0]) <= self.memory_log.peak:
            return
        if self._replaceable is not None:
            self._remove_dropped(self._replaceable)
        self.memory_log.add_transients(transients)

    def history(self, calls: Sequence[Call]) -> History:
        """Return the history so far; ``calls`` are the calls by number."""
        self._handed_out |= self._handed_out_before  # read the sizes of all of them
        self._read_sizes()
        return self.memory_log.history(calls)


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

"""Find what fits into a device's memory: the largest batch, and the modules to checkpoint. Models are counted; nothing runs on the device."""

from __future__ import annotations

import random
import sys
import textwrap
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from .api import Model, count
from .errors import InputError, OutOfMemoryError, RunError, check_flags, of_kind
from .meters.history import History
from .model.callables import as_model
from .model.generators import generator_of
from .model.inputs import checked_autocast, checked_device, checked_model, opened_model, signature_of
from .model.locks import locked_in_mode
from .model.modules import modules_of, state_tensors
from .model.optimizer import OptimizerLike, checked_optimizer
from .model.pytree import tensors_in
from .prediction.batches import Guess
from .prediction.batches import largest_batch as search_batch
from .prediction.checkpoints import NothingFits, Point, Search, Trial, curve, ticks_of
from .prediction.lines import histories_on_lines
from .prediction.memory import limit_of
from .prediction.reserved import total
from .records import RECOMPUTE
from .render.text import printable
from .report.report import Report
from .roofline.devices import Device, find_device, listed
from .run.progress import progress_bar
from .torch_internals import current_graph_task_id
from .units import count as readable
from .units import percent, size
from .units import seconds as in_seconds

ON_META = 2**30
"""Inputs of more bytes than this are made on the meta device, unless ``make_inputs`` names a device itself."""
LINES_OF_CURVE = 8
WRITES = "its forward changes the {}, and a recomputation would change it again"
DRAWS = "it draws random numbers from {}, and a recomputation would draw different numbers"
DEPTH = 3
"""The levels of containers and objects in a module's plain attributes that are compared, to see whether a forward changed them."""
OF_ANY_MODULE = frozenset(vars(nn.Module())) | {"forward"}
CHECKPOINT = """\
from functools import partial

from torch.utils.checkpoint import checkpoint

for name in {names}:
    module = model.get_submodule(name)
    module.forward = partial(checkpoint, module.forward, use_reentrant=False)
"""
"""The code that checkpoints modules. It changes neither the names of modules nor the keys of the state dict."""
CHECKPOINT_NORMS = """\
from contextlib import contextmanager, nullcontext
from functools import partial

from torch.utils.checkpoint import checkpoint


@contextmanager
def frozen(norms):  # a recomputed batch norm must not update its running statistics again
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum = norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches


for name in {names}:
    module = model.get_submodule(name)
    norms = [each for each in module.modules() if getattr(each, "num_batches_tracked", None) is not None]
    contexts = lambda norms=norms: (nullcontext(), frozen(norms))
    module.forward = partial(checkpoint, module.forward, use_reentrant=False, context_fn=contexts)
"""
"""The same code for modules with batch norms. While ``momentum`` and ``num_batches_tracked`` are None, a batch norm updates no statistics."""


@dataclass(frozen=True)
class Room:
    """The memory limit: The memory limit in bytes, ``memory``. The limit applies to the tensors or, with a ``card``, to everything that a
    process takes on the card.

    ``count_for`` is the device to count for; None is the model's own device.
    """

    memory: int
    count_for: str | torch.device | None
    card: Device | None = None

    @property
    def name(self) -> str:
        return self.card.name if self.card else str(self.count_for or "")

    def of(self, memory: int) -> Room:
        """Return a copy with the limit ``memory``."""
        return replace(self, memory=memory, card=self.card and replace(self.card, memory=memory))

    def taken(self, report: Report, history: History | None = None) -> int:
        """Return the bytes that a counted run takes. With ``history``, return the bytes that the run would take with the allocations of
        ``history`` instead of its own."""
        history = history or _history_of(report)
        return history.peak if self.card is None else total(history, report._counted_as_computed("exact"), self.card)


def room_of(model: nn.Module, memory: str | int | None, device: str | torch.device | Device | None) -> Room:
    """Return the memory limit: ``memory``, the memory of a card, or the memory of the model's own GPU. Raise InputError if none is known."""
    limit = limit_of(memory)
    card = device if isinstance(device, Device) else listed(device) if isinstance(device, str) else None
    count_for = None
    if card is None:
        try:
            count_for = checked_device(device)
        except InputError as error:
            cards = (
                "" if device == "meta" else "; this call also takes a card's name: 'H100', 'A100', 'L4', 'RTX 4090' ..."
            )
            raise InputError(f"{error}{cards}") from None
        if limit is not None:
            return Room(limit, count_for)
        own_device = count_for or next((tensor.device for tensor in state_tensors(model)), torch.device("cpu"))
        if own_device.type != "cuda" or not torch.cuda.is_available():
            raise InputError(
                "the memory limit is unknown: give a limit, e.g. memory='16GiB', or a card, e.g. device='H100'"
            )
        card = find_device(torch.cuda.get_device_name(own_device))
    limit = card.memory if limit is None else limit
    if limit is None:
        raise InputError(f"the memory size of {card.name} is unknown: give a limit, e.g. memory='16GiB'")
    return Room(limit, "cuda", replace(card, memory=limit))


def largest_batch(
    model: Model,
    make_inputs: Callable[[int], Any],
    *,
    memory: str | int | None = None,
    device: str | torch.device | Device | None = None,
    backward: bool = False,
    optimizer: OptimizerLike | None = None,
    autocast: torch.dtype | None = None,
    progress: bool | None = None,
) -> int:
    """Return the largest batch size with which a model (or any callable) fits into memory; 0 if no batch fits.

    The model is counted, not run. Memory grows almost linearly with the batch, so four or five counts are usually enough. If two counts
    show that each tensor's bytes grow linearly with the batch, the largest batch is computed from these two counts. The returned size was
    counted and fits. The next larger size was counted and does not fit.

    Args:
        make_inputs: a function of the batch size that returns a tuple of inputs, a single input, or a mapping from the names of forward's
            parameters to inputs. If the function or the model raises an error for a size, that size does not fit, e.g. size 1 for a
            batch norm in training. Inputs of more than 1 GiB are made on the meta device, unless ``make_inputs`` names a device itself.
        memory: the memory limit, in bytes or as a size such as "16GiB". Without a card, the limit applies to the peak memory of
            tensors (``report.max_memory``). With a card, the limit applies to all memory of the process.
        device: a card, as a name ("H100 SXM") or a Device. Everything that ``report.reserved`` predicts, including the CUDA context, must
            fit into the card's memory. ``device`` may also be "cpu" or "cuda". The model is then counted for this type of device, and
            ``memory`` is the limit. By default, the model's own device.
        backward, optimizer, autocast: as for :func:`count`. With ``backward``, the model is counted in its current mode, otherwise in eval mode.
        progress: whether to show a progress bar on stderr. None shows the bar only on a terminal.

    Raises:
        InputError: neither ``memory`` nor a card is passed, or the memory does not grow with the batch.
        RunError: the model or ``make_inputs`` raises an error for every small size; the RunError shows the error for size 1.
    """
    model = as_model(model)
    check_flags(backward=backward)
    checked_optimizer(optimizer, backward)
    checked_autocast(autocast)
    if not callable(make_inputs):
        raise of_kind(
            InputError(
                "make_inputs must be a function of the batch size, such as lambda batch: torch.randn(batch, 3, 224, 224); "
                f"got {type(make_inputs).__name__}"
            ),
            TypeError,
        )
    room = room_of(model, memory, device)
    bytes_of_one = 0
    counted: dict[int, Report] = {}

    def bytes_taken_by(batch: int) -> int:
        nonlocal bytes_of_one
        with torch.device("meta") if batch * bytes_of_one > ON_META else nullcontext():
            args, kwargs = _inputs_of(make_inputs, batch, model)
        nbytes = sum(tensor.nbytes for tensor in tensors_in((args, kwargs)))
        bytes_of_one = max(bytes_of_one, nbytes // batch)
        report = count(
            model, args, kwargs, backward=backward, optimizer=optimizer, device=room.count_for, autocast=autocast
        )
        counted[batch] = report
        tick()
        return room.taken(report)

    def guesses(size: int, larger: int) -> Guess | None:
        lines = histories_on_lines((size, _history_of(counted[size])), (larger, _history_of(counted[larger])))
        if lines is None:
            return None

        def guess(batch: int) -> int | None:
            history = lines(batch)
            return None if history is None else room.taken(counted[larger], history)

        return guess

    with progress_bar(progress, "looking for the largest batch") as tick:
        return search_batch(bytes_taken_by, room.memory, guesses)


def _history_of(report: Report) -> History:
    history = report._run.memory.history
    assert isinstance(history, History)  # a count has one
    return history


def _inputs_of(make_inputs: Callable[[int], Any], batch: int, model: nn.Module) -> tuple[Any, dict[str, Any] | None]:
    """Return the args and kwargs for a batch size.

    Raises RunError if ``make_inputs`` raises an error. Raises InputError if this machine has too little memory for the inputs.
    """
    try:
        inputs = make_inputs(batch)
    except Exception as error:
        problem = f"make_inputs({batch}) raised {type(error).__name__}: {error}"
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
            raise InputError(
                f"{problem}\n  make large inputs on the meta device, which takes no memory: torch.empty(..., device='meta')"
            ) from error
        raise of_kind(RunError(problem), type(error)) from error
    if isinstance(inputs, Mapping):
        parameters = signature_of(model).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        if all(isinstance(name, str) and (takes_any or name in parameters) for name in inputs):
            return (), dict(inputs)
    return inputs, None


@dataclass(frozen=True)
class CheckpointPlan:
    """The modules to checkpoint so that a training step fits into ``memory`` bytes and recomputes as little as possible.

    - ``modules``: the names of the modules to checkpoint; empty if the step fits without checkpoints.
    - ``peak``: the peak bytes with checkpoints: bytes of tensors or, for a card, of the whole process.
    - ``peak_before``: the peak bytes without checkpoints.
    - ``recompute_flops``: the recomputed FLOPs.
    - ``flops``: the step's FLOPs without checkpoints.
    - ``seconds``: the time of a step with checkpoints, as :meth:`Report.predict` predicts it; None if there is no card or no calibration of the card.
    - ``seconds_before``: the predicted time of a step without checkpoints; None if there is no card or no calibration of the card.
    - ``code``: the code that checkpoints these modules; it expects the model in a variable ``model``.
    - ``curve``: the Pareto front of peak and recomputation among the counted sets of modules, the highest peak first. A point has ``peak``,
      ``recompute_flops`` and ``modules``.
    - ``left_out``: maps each module that cannot be checkpointed to the reason.
    """

    model: str
    modules: tuple[str, ...]
    peak: int
    recompute_flops: int
    code: str
    curve: tuple[Point, ...]
    memory: int
    device: str
    peak_before: int
    flops: int
    left_out: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    seconds_before: float | None = None
    _within: Callable[[int], CheckpointPlan] | None = field(default=None, repr=False, compare=False)

    def within(self, memory: str | int) -> CheckpointPlan:
        """Return the plan for another memory limit, in bytes or as a size such as "16GiB".

        Sets of modules that were counted before are not counted again. The model and its inputs must be unchanged. Raises OutOfMemoryError if no set of modules fits.
        """
        limit = limit_of(memory)
        if limit is None or self._within is None:
            raise InputError(
                "within() needs a memory limit, such as '16GiB', and a plan that plan_checkpoints() returned in this process"
            )
        return self._within(limit)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_within": None}  # it references the model

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        if not self.modules:
            return f"{self.model} fits without checkpoints: {size(self.peak)} of {size(self.memory)}{where}"
        share = percent(self.recompute_flops, self.flops)
        lines = [
            f"{self.model} fits with {len(self.modules)} modules checkpointed: {size(self.peak)} of {size(self.memory)}{where}; "
            f"without checkpoints {size(self.peak_before)}",
            f"recomputed: {readable(self.recompute_flops)} FLOPs, {share or 0:.1f}% of the FLOPs without checkpoints",
            *self._time(),
            "",
            self.code.rstrip(),
            "",
            *_table(self),
        ]
        lines += [f"cannot checkpoint {name}: {reason}" for name, reason in [*self.left_out.items()][:LINES_OF_CURVE]]
        return printable("\n".join(lines))

    def _time(self) -> list[str]:
        if self.seconds is None or self.seconds_before is None:
            return []
        return [f"predicted step: {in_seconds(self.seconds)}; without checkpoints {in_seconds(self.seconds_before)}"]

    def _repr_html_(self) -> str:
        from .render.html import note

        return "".join([note(str(self).partition("\n")[0]), f"<pre>{str(self).partition(chr(10))[2]}</pre>"])


def _table(plan: CheckpointPlan) -> list[str]:
    """Return the lines of a table of the plan's curve. A long curve is shown by a sample of its points."""
    points = [*plan.curve]
    every = max(1, -(-len(points) // LINES_OF_CURVE))
    shown = [
        each for i, each in enumerate(points) if i % every == 0 or each in (points[-1],) or each.modules == plan.modules
    ]
    lines = [f"{'peak':>11}  {'recomputed':>11}  {'checkpointed':>12}"]
    for each in shown:
        mark = "  <- this plan" if each.modules == plan.modules else ""
        lines.append(f"{size(each.peak):>11}  {readable(each.recompute_flops):>11}  {len(each.modules):>12}{mark}")
    return lines


def plan_checkpoints(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory: str | int | None = None,
    device: str | torch.device | Device | None = None,
    optimizer: OptimizerLike | None = None,
    autocast: torch.dtype | None = None,
    progress: bool | None = None,
) -> CheckpointPlan:
    """Find the modules to checkpoint so that a training step fits into memory and recomputes as few FLOPs as possible.

    The step is not run, but counted like ``count(..., backward=True, optimizer=optimizer)``, in the model's current mode. Every module that the forward
    calls is a candidate, nested modules included. The model is left unchanged. In a model with few modules, all sets of modules are
    compared. In a larger model, sets are grown and then improved (:mod:`fxflops.prediction.checkpoints`). The set of the returned plan was
    counted itself.

    A checkpointed module runs twice. Dropout draws the same random numbers both times. ``plan.code`` keeps batch norms from updating their
    statistics twice. A module is never checkpointed if it cannot run twice, e.g. because a KV cache grows, or if recomputing it changes a
    buffer or a plain attribute, e.g. a counter. Nor is a module that draws random numbers from Python, from numpy, or from a generator of
    its own. ``plan.left_out`` has the reason for each such module. Some changes of state are not detected: changes in objects without a
    ``__dict__``, changes more than three containers or objects deep, and changes outside the module (a global, a closure, a file).

    Args:
        args, kwargs: the inputs, as for :func:`count`.
        memory, device: as for :func:`largest_batch`.
        optimizer, autocast: as for :func:`count`.
        progress: whether to show a progress bar on stderr. None shows the bar only on a terminal.

    Raises:
        OutOfMemoryError: no set of modules fits; the message has the smallest peak.
        InputError: as for :func:`count`.
        RunError: as for :func:`count`.
    """
    model = checked_model(opened_model(model))
    checked_optimizer(optimizer, True)
    checked_autocast(autocast)
    room = room_of(model, memory, device)
    left_out: dict[str, str] = {}

    def tick() -> None:  # advances the bar while one is shown: within() replaces it
        return None

    def counted() -> Report:
        try:
            return count(
                model, args, kwargs, backward=True, optimizer=optimizer, device=room.count_for, autocast=autocast
            )
        finally:
            tick()

    base = counted()
    paths, _ = modules_of(model)
    modules = {path: module for module, path in paths.items()}
    calls = Counter(scope.path for scope in base.scopes)
    names = [path for path, module in modules.items() if path and calls[path] and not _is_script(module)]
    left_out |= {path: DRAWS.format(f"its {key}") for path in names if (key := _own_generator(modules[path]))}
    recomputed_before = base.total_recompute_flops or 0

    def counted_with(chosen: Sequence[str]) -> tuple[Report, Mapping[str, str]]:
        with locked_in_mode(modules.values(), "as_is", reentrant=True), _checkpointed(model, modules, chosen) as writes:
            return counted(), writes

    def seconds_of(report: Report) -> float | None:
        prediction = room.card and report.predict(room.card)
        return prediction.seconds if prediction and prediction.families else None

    def try_checkpointing(chosen: Iterable[str]) -> Trial | None:
        chosen = tuple(chosen)
        report = base
        if chosen:
            if left_out.keys() & {*chosen}:
                return None
            try:
                report, writes = counted_with(chosen)
            except RunError as error:
                if len(chosen) == 1:
                    left_out[chosen[0]] = f"it cannot be recomputed: {str(error).splitlines()[-1].strip()}"
                return None
            if writes:
                left_out.update(writes)
                return None
        flops = (report.total_recompute_flops or 0) - recomputed_before
        recomputed = Counter[str]()
        for each in report.counted:
            if each.call.phase == RECOMPUTE and each.cost is not None:
                recomputed[each.call.path] += each.cost.flops
        return Trial(chosen, room.taken(report), flops, recomputed, ticks_of(_history_of(report)))

    activation_bytes = Counter[str]()
    for tensor in _history_of(base).at_peak:
        if tensor.category == "activations":
            activation_bytes[tensor.path] += tensor.bytes
    search = Search(try_checkpointing, names, calls, activation_bytes)

    def within(memory: int) -> CheckpointPlan:
        nonlocal tick
        try:
            with progress_bar(progress, "planning checkpoints") as tick:
                best = search.least_recomputation(memory)
        except NothingFits as error:
            raise _too_large(model, error.least, search.base, room.of(memory)) from None
        return CheckpointPlan(
            type(model).__name__,
            best.modules,
            best.peak,
            best.recompute_flops,
            _code(modules, best.modules),
            curve(search.trials.values(), best),
            memory,
            room.name,
            search.base.peak,
            sum(each.cost.flops for each in base.counted if each.cost is not None),
            {**left_out, **{name: left_out[other] for name, other in search.as_others.items() if other in left_out}},
            seconds_of(counted_with(best.modules)[0] if best.modules and room.card else base),
            seconds_of(base),
            within,
        )

    return within(room.memory)


def _too_large(model: nn.Module, least: Trial, base: Trial, room: Room) -> OutOfMemoryError:
    """Return the error for a model that does not fit with any set of checkpointed modules."""
    where = f" of {room.name}" if room.name else ""
    what = f"with {', '.join(least.modules[:4])}{' ...' if len(least.modules) > 4 else ''} checkpointed"
    return of_kind(
        OutOfMemoryError(
            f"{type(model).__name__} does not fit into {size(room.memory)}{where} with any tested set of checkpointed modules. The smallest "
            f"peak found is {size(least.peak)} ({least.peak:,} bytes), {what if least.modules else 'without checkpoints'}. Without "
            f"checkpoints the peak is {size(base.peak)}\n  use a smaller batch (fxflops.largest_batch finds the largest that fits) or "
            f"another optimizer{_cached(model)}"
        ),
        MemoryError,
    )


def _cached(model: nn.Module) -> str:
    """If a transformers model also returns a KV cache in training, return advice about it. For any other model, return ""."""
    if not getattr(getattr(model, "config", None), "use_cache", False):
        return ""
    return "\n  model.config.use_cache is True, so the KV cache stays in memory until the step ends; for training, set model.config.use_cache = False"


def _code(modules: Mapping[str, nn.Module], names: Sequence[str]) -> str:
    """Return the code that checkpoints the modules with these names; "" if there are no names."""
    if not names:
        return ""
    has_norms = any(
        _is_norm(module) and module.training and any(path == name or path.startswith(f"{name}.") for name in names)
        for path, module in modules.items()
    )
    listed_names = repr([*names])
    if len(listed_names) > 100:
        quoted = textwrap.fill(", ".join(map(repr, names)), 110, initial_indent="    ", subsequent_indent="    ")
        listed_names = f"[\n{quoted},\n]"
    return (CHECKPOINT_NORMS if has_norms else CHECKPOINT).format(names=listed_names)


def _is_norm(module: nn.Module) -> bool:
    """Return whether a module updates running statistics, as a batch norm does."""
    return module._buffers.get("num_batches_tracked") is not None


def _is_script(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


@contextmanager
def _checkpointed(model: nn.Module, modules: Mapping[str, nn.Module], names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Checkpoint the modules with these names by running a plan's code. At the end, undo this.

    Yield a dict of the modules that cannot be recomputed, with the reasons.
    """
    writes: dict[str, str] = {}
    before = [(modules[name], "forward" in vars(modules[name]), vars(modules[name]).get("forward")) for name in names]
    try:
        for name in names:  # inside the checkpoint, to see what a recomputation writes
            modules[name].forward = _watched(name, modules[name], modules[name].forward, writes)
        exec(_code(modules, names), {"model": model})
        yield writes
    finally:
        for module, is_own, forward in before:
            vars(module).pop("forward", None)
            if is_own:
                vars(module)["forward"] = forward


def _watched(name: str, module: nn.Module, forward: Callable[..., Any], writes: dict[str, str]) -> Callable[..., Any]:
    """Wrap the forward of a module. If a recomputation changes state, the wrapped forward notes the reason in ``writes``.

    The state consists of buffers, plain attributes, and Python's and numpy's random generators. The watched state excludes batch norms,
    which :data:`CHECKPOINT_NORMS` handles. If a forward writes the same values each time, it may be recomputed.
    """
    paths, _ = modules_of(module)
    holders = [(path, holder) for holder, path in paths.items() if not _is_norm(holder)]

    def state() -> dict[str, Any]:
        fingerprints: dict[str, Any] = {}
        for path, holder in holders:
            prefix = f"{path}." if path else ""
            fingerprints |= {f"buffer {prefix}{key}": _fingerprint(buffer) for key, buffer in holder._buffers.items()}
            plain = [(key, value) for key, value in vars(holder).items() if key not in OF_ANY_MODULE]
            fingerprints |= {f"attribute {prefix}{key}": _fingerprint(value) for key, value in plain}
        return fingerprints

    def run(*args: Any, **kwargs: Any) -> Any:
        if current_graph_task_id() == -1:
            return forward(*args, **kwargs)
        state_before, generators_before = state(), _generator_states()
        try:
            return forward(*args, **kwargs)
        finally:  # checkpoint stops a recomputation early by an exception
            state_after = state()
            changed = [key for key in {**state_before, **state_after} if state_before.get(key) != state_after.get(key)]
            drawn = [key for key, value in _generator_states().items() if generators_before.get(key) != value]
            if changed:
                writes[name] = WRITES.format(changed[0])
            elif drawn:
                writes[name] = DRAWS.format(drawn[0])

    return run


def _fingerprint(value: Any, depth: int = DEPTH) -> Any:
    """Return a value that differs after ``value`` was changed in place.

    Changes are seen in numbers, tensors, Python's containers, and the attributes of other objects.
    """
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return id(value), -1 if value.is_inference() else value._version
    if kind in (bool, int, float, complex, str, bytes):
        return (value,)
    if kind in (list, tuple, deque) and depth:
        return id(value), [_fingerprint(each, depth - 1) for each in value]
    if kind in (dict, OrderedDict, Counter, defaultdict) and depth:
        return id(value), [(id(key), _fingerprint(each, depth - 1)) for key, each in value.items()]
    if kind in (set, frozenset):
        return id(value), len(value)
    attributes = getattr(value, "__dict__", None)
    if depth and type(attributes) is dict and not isinstance(value, (nn.Module, type, ModuleType, FunctionType)):
        return id(value), [(key, _fingerprint(each, depth - 1)) for key, each in attributes.items()]
    return id(value)


def _generator_states() -> dict[str, Any]:
    """Return the states of the random generators that torch's checkpoint does not restore, by name."""
    states: dict[str, Any] = {"Python's random": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        _, keys, place, *rest = numpy.random.get_state()
        states["numpy's random"] = keys.tobytes(), place, *rest
    return states


def _own_generator(module: nn.Module) -> str:
    """Return the name of an attribute that is a random number generator, in this module or in a module inside it; "" if there is none."""
    paths, _ = modules_of(module)
    for each in paths:
        for key, value in vars(each).items():
            if key not in OF_ANY_MODULE and generator_of(value) is not None:
                return str(key)
    return ""

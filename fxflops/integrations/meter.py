"""A meter for training loops, which measures the FLOPs of the model's calls and the time of the steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..errors import ClosedFormError, FxflopsError, InputError
from ..model.inputs import checked_model
from ..model.locks import threads_counting
from ..model.modules import children_of, parameters_of, unique
from ..model.pytree import is_training
from ..roofline.devices import Device, find_device
from ..roofline.measured_peaks import is_cpu
from ..symbolic.forms import ClosedForm
from ..torch_internals import current_graph_task_id, original_of
from ..trace.autocast import autocast_state
from ..units import amount, size
from .clock import LapClock
from .work import Work, work_by_form, work_of

Key = tuple[Any, ...]


class Reading(dict[str, float]):
    """The values that a meter measured since its last reading. A Reading prints as one line: step, loss, tokens/s, TFLOP/s, MFU, memory.

    ``step`` is the number of steps so far, and ``loss`` is the loss passed to :meth:`Meter.read`. ``memory`` is the peak of reserved bytes
    on this rank's GPU, and ``share_of_memory`` is their share of the GPU's memory. ``memory`` and ``share_of_memory`` are None on other devices.
    """

    def __init__(self, step: int = 0, loss: float | None = None) -> None:
        super().__init__()
        self.step = step
        self.loss = loss
        self.memory: int | None = None
        self.share_of_memory: float | None = None

    def __str__(self) -> str:
        parts = [f"step {self.step}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if "tokens_per_second" in self:
            parts.append(f"{self['tokens_per_second']:,.0f} tokens/s")
        if "tflops_per_device" in self:
            parts.append(amount(1e12 * self["tflops_per_device"], "FLOP/s"))
        if "mfu" in self:
            parts.append(f"MFU {self['mfu']:.1%}")
        if self.memory is not None:
            parts.append(f"memory {size(self.memory)} ({self.share_of_memory:.0%})")
        if "seconds_left" in self:
            parts.append(f"{timedelta(seconds=round(self['seconds_left']))} left")
        return "  ".join(parts)


class Meter:
    """Measure the tokens/s, TFLOP/s, MFU, HFU and FLOPs so far of a training loop.

    >>> meter = Meter(model)                                # doctest: +SKIP
    >>> for batch in batches:                               # doctest: +SKIP
    ...     with meter.step(batch):                         # doctest: +SKIP
    ...         loss = model(**batch).loss; loss.backward() # doctest: +SKIP
    ...     print(meter.read(loss=loss))                    # doctest: +SKIP
    step 1  loss 7.8634  5,235 tokens/s  3.22 TFLOP/s  MFU 10.3%  memory 1.20 GiB (2%)

    The FLOPs are the forward and backward FLOPs, 2 per multiply-accumulate, of every call of the model or its parts in a step. If a call
    has new shapes, a new mode or new trainable parameters, :func:`fxflops.count` counts the call before it runs. The time of counting is
    excluded from the step, and the call itself runs unobserved. Calls in eval mode under ``no_grad`` are evaluation and are not counted.
    The backward pass is assumed to start from the loss in the output of a call. If there is no loss, the backward pass is assumed to start
    from the whole output.

    Args:
        model: the model to train. It may be wrapped in DistributedDataParallel.
        device: the device whose peaks MFU and HFU refer to: a name, a Device, or "auto" for the model's device.
        target_tokens: the number of tokens in the whole training over all ranks, from which the seconds left are computed.
        tokens: a function that takes a batch and returns its number of tokens. By default the function counts the elements of
            ``input_ids``, or else of the first integer tensor in the batch; 0 without either.
        closed_form: the result of :func:`fxflops.closed_form` for the model with ``backward=True``, made before the model was
            sharded. For inputs of a new shape, the closed form is evaluated, in less than a millisecond, instead of counting the call.
            With a closed form, every operation is assumed to run in the dtype of autocast or, without autocast, of the parameters. A call
            is still counted if its sizes are outside the form's domain, or if the set of parameters that require gradients has changed.
        sizes: a function that takes the inputs of a call, as a dict or a tuple, and returns the sizes of the closed form by name. By
            default the sizes are the dims of ``input_ids`` or of the first integer tensor, e.g. (batch, seq).

    Raises InputError if a model is sharded over ranks and no closed form is passed, because a count on one rank would wait for the other ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: str | Device = "auto",
        target_tokens: int | None = None,
        tokens: Callable[[Any], int] | None = None,
        closed_form: ClosedForm | None = None,
        sizes: Callable[[Any], Mapping[str, int]] | None = None,
    ) -> None:
        checked_model(model)
        self._model: nn.Module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        self._parameters = parameters_of(self._model)
        self._is_sharded = any(
            hasattr(p, "device_mesh") or type(p).__name__ == "FlatParameter" for p in self._parameters
        )
        if self._is_sharded and closed_form is None:
            raise InputError(
                "the model is sharded over ranks, and a count on one rank would wait for the other ranks: give Meter a "
                "closed_form= that was made before sharding"
            )
        self._form = closed_form
        self._sizes_of = sizes or self._sizes_of_ids
        self._trained = self._trained_now()
        self._parts = unique(callable_parts(self._model))
        self._device = device if device == "auto" or is_cpu(device) else find_device(device)
        self._target = target_tokens
        self._tokens_of = tokens or tokens_of
        self.clock = LapClock(self._parameters[0].device if self._parameters else torch.device("cpu"))
        self._known: dict[Key, Work | None] = {}
        self._handles: list[Any] = []
        self._depth = 0
        self._is_counting = self._is_unknown = self._has_tokens = self._has_called = self._has_exceeded = False
        self._window = [0.0] * 5
        self._total = [0.0] * 2
        self._steps = 0
        self._last = Reading()
        self.counting_seconds = 0.0
        """The seconds spent on counting new shapes. All other times exclude these seconds."""

    @contextmanager
    def step(self, batch: Any = None) -> Iterator[None]:
        """Measure a step: the model calls in the block, the time of the block, and the number of tokens in ``batch``."""
        self.watch()
        self.clock.start()
        try:
            yield
            self.clock.lap()
            self._steps += 1
            self.add_tokens(batch)
        finally:
            self.unwatch()

    def __repr__(self) -> str:
        return str(self._last)

    def read(self, loss: float | torch.Tensor | None = None) -> Reading:
        """Return the values since the last reading. Unknown values are left out. All ranks must call this method.

        A reading prints as one line, which includes ``loss``. The ``repr`` of the meter is the line of its last reading.

        ``tokens_per_second`` is the sum over ranks, and ``tflops_per_device`` is the mean over ranks. ``mfu`` and ``hfu`` are shares from 0
        to 1. If ``hfu`` would be above 1, both are left out. ``hfu`` includes recomputation by checkpointing. ``flops_so_far`` are the
        forward and backward FLOPs of all ranks. ``seconds_left`` is the time until ``target_tokens`` are reached. ``counting_seconds`` is
        the time that this rank spent on counting.
        """
        *window, unknown, ranks = self._over_ranks([*self._window, self.clock.take(), self._is_unknown, 1.0])
        self._window = [0.0] * 5
        tokens, flops, _, at_peak, again_at_peak, seconds = window
        self._total = [self._total[0] + tokens, self._total[1] + flops]
        reading = Reading(self._steps, None if loss is None else float(loss))
        reading["counting_seconds"] = self.counting_seconds
        if tokens and seconds:
            rate = reading["tokens_per_second"] = tokens / (seconds / ranks)
            if self._target is not None:
                reading["seconds_left"] = max(0.0, self._target - self._total[0]) / rate
        if not unknown:
            reading["flops_so_far"] = self._total[1]
            if seconds:
                reading["tflops_per_device"] = flops / seconds / 1e12
                self._add_utilization(reading, at_peak / seconds, (at_peak + again_at_peak) / seconds)
        place = self._parameters[0].device if self._parameters else None
        if place is not None and place.type == "cuda":
            reading.memory = torch.cuda.max_memory_reserved(place)
            reading.share_of_memory = reading.memory / torch.cuda.get_device_properties(place).total_memory
        self._last = reading
        return reading

    def _add_utilization(self, reading: Reading, mfu: float, hfu: float) -> None:
        """Add MFU and HFU to a reading. An HFU above 1 shows that the device's stated peak is too low; MFU and HFU are then left out."""
        if hfu <= 1:
            reading["mfu"], reading["hfu"] = mfu, hfu
        elif not self._has_exceeded:
            self._has_exceeded = True
            why = "was given too low, or was measured while other work slowed the machine"
            warnings.warn(f"MFU would be {mfu:.0%} and is left out: the device's peak {why}", stacklevel=3)

    def add_tokens(self, batch: Any) -> None:
        """Add the number of tokens in a batch to the current reading."""
        self._window[0] += self._tokens_of(batch)

    def watch(self, tokens: bool = False) -> None:
        """Count the model's calls until :meth:`unwatch` is called. With ``tokens``, also count the tokens in the inputs of each call."""
        self._has_tokens = tokens
        if not self._handles:
            self._depth, self._has_called = 0, False
            for module in self._parts:
                self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
                self._handles.append(module.register_forward_hook(self._after, always_call=True))

    def unwatch(self) -> None:
        """Stop counting calls. Warns if the model was not called in the step, because the FLOPs of the step are then unknown."""
        if self._handles and not (self._has_called or self._is_unknown):
            said = "the meter saw no call of its model in the step, so MFU and FLOPs are unknown: create the Meter with the model that the step calls"
            warnings.warn(said, stacklevel=3)
            self._is_unknown = True
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_unseen(module):
            return
        self._depth += 1
        self._has_called = True
        if self._depth > 1 or not (is_training(module) or torch.is_grad_enabled()):
            return
        if self._has_tokens and torch.is_grad_enabled():
            self.add_tokens(kwargs or args)
        trained = self._trained_now()
        modes = is_training(module), torch.is_grad_enabled(), *autocast_state().values()
        key = module, modes, trained, shapes_of(args), shapes_of(kwargs)
        if key not in self._known:
            form = self._form if trained == self._trained else None
            self._known[key] = self._counted(module, args, kwargs, form)
        work = self._known[key]
        if work is None:
            self._is_unknown = True
        else:
            for i, value in enumerate(work[:4], 1):
                self._window[i] += value

    def _after(self, module: nn.Module, *_: Any) -> None:
        self._depth -= not self._is_unseen(module)

    def _trained_now(self) -> bytes:
        """Return a byte for each parameter: 1 if the parameter requires a gradient, else 0."""
        return bytes(map(attrgetter("requires_grad"), self._parameters))

    def _is_unseen(self, module: nn.Module) -> bool:
        """Return whether to ignore a call. Calls made by a count, by checkpoint's recomputation or by compilation are ignored."""
        return (
            self._is_counting
            or bool(threads_counting(module))
            or current_graph_task_id() != -1
            or torch.compiler.is_compiling()
        )

    def _counted(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], form: ClosedForm | None
    ) -> Work | None:
        """Count a call, or evaluate its closed form; the time of this is excluded. Returns None, with a warning, if the call cannot be counted."""
        self.clock.lap()
        start = time.perf_counter()
        self._is_counting = True
        try:
            work = None if form is None else self._by_form(form, kwargs or args)
            if work is None and self._is_sharded:
                raise InputError(
                    "the model is sharded over ranks, so it can only be counted by its closed form, which does not hold for this call"
                )
            work = work or work_of(module, args, kwargs, self._device)
        except FxflopsError as error:
            said = f"the meter cannot count {type(module).__name__}, so MFU and FLOPs are unknown: {error}"
            warnings.warn(said, stacklevel=2)
            return None
        finally:
            self._is_counting = False
            self.counting_seconds += time.perf_counter() - start
            self.clock.start()
        if work.missing:
            said = ", ".join(work.missing)
            warnings.warn(f"the meter's FLOPs are a lower bound: no formula for {said}", stacklevel=2)
        return work

    def _by_form(self, form: ClosedForm, given: Any) -> Work | None:
        """Evaluate the closed form for the inputs of a call. Returns None if their sizes are outside the form's domain."""
        with suppress(ClosedFormError):
            return work_by_form(form, self._sizes_of(given), self._parameters, self._device)
        return None

    def _sizes_of_ids(self, given: Any) -> dict[str, int]:
        assert self._form is not None
        tokens = ids_in(given)
        if tokens is None or tokens.ndim != len(self._form.sizes):
            names = ", ".join(self._form.sizes)
            raise InputError(
                f"the closed form has the sizes {names}, but the token tensor does not have one dim for each of them: pass Meter(sizes=...), a function that returns the sizes"
            )
        return dict(zip(self._form.sizes, tokens.shape, strict=True))

    def _over_ranks(self, values: Sequence[float]) -> list[float]:
        """Return each value summed over all ranks."""
        if not (dist.is_available() and dist.is_initialized()):
            return [*map(float, values)]
        place = self._parameters[0].device if self._parameters else "cpu"
        summed = torch.tensor(values, dtype=torch.float64, device=place)
        dist.all_reduce(summed)
        found: list[float] = summed.tolist()
        return found


def callable_parts(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model and its children, because a training loop may call either. For a child without a forward, also yield the child's
    children."""
    yield model
    # Hooks on parts of a compiled model would be compiled too.
    for child in children_of(model) if original_of(model) is model else ():
        if type(child).forward is nn.Module.forward:  # a ModuleList
            yield from callable_parts(child)
        else:
            yield child


def shapes_of(value: Any) -> Any:
    """Return a key for the shapes and dtypes of inputs. The values of tensors and numbers do not change the key."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.requires_grad
    if isinstance(value, (tuple, list)):
        return tuple(map(shapes_of, value))
    if isinstance(value, Mapping):
        return tuple((name, shapes_of(part)) for name, part in value.items())
    return value if value is None or isinstance(value, (bool, str)) else type(value)


def tokens_of(batch: Any) -> int:
    """Return the number of elements of ``input_ids`` in a batch or, without ``input_ids``, of the first integer tensor; 0 if there is no
    integer tensor."""
    found = ids_in(batch)
    return 0 if found is None else found.numel()


def ids_in(batch: Any) -> Any:
    """Return the ``input_ids`` of a batch, or the first integer tensor in the batch; None without such a tensor."""
    if isinstance(batch, Mapping):
        batch = (batch["input_ids"],) if "input_ids" in batch else (*batch.values(),)
    if isinstance(batch, torch.Tensor):
        return None if batch.is_floating_point() or batch.is_complex() else batch
    found = map(ids_in, batch) if isinstance(batch, (tuple, list)) else ()
    return next((each for each in found if each is not None), None)

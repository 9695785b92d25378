"""Count the steps of ``generate()`` one by one: call the model as ``generate()`` does, with the cache of that step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn

from ..api import counted
from ..errors import FxflopsError, InputError
from ..model.inputs import checked_model, signature_of
from ..model.modules import named_parameters, parameters_of, state_tensors
from ..model.pytree import parts, tensors_in
from ..records.tensors import spec_of
from ..report.report import Report
from ..roofline.traffic import compute_dtype, nbytes
from ..torch_internals import DisableTorchFunction, disable_current_modes
from ..trace.memo import Lessons
from .cache_writes import Write, copy_on_meta, is_like, noted, written
from .experts import Experts
from .pieces import Piece, cover, values_along
from .repeated_layers import RepeatedLayers
from .weights import weights_read

CACHES = ("cache", "past_key_values", "cache_params", "state")
"""Names of a forward's parameter for the cache of earlier tokens, and of the cache in its output."""

FEW = 3
"""Up to this many steps all are counted."""
MORE_THAN_ONE = 2
STEP = ("forward", "", "")
"""The key of a step's costs in fits."""


class StepCosts(NamedTuple):
    """The costs of a step: FLOPs for the requested ``attention``, and MACs with only the attention pairs that the mask leaves."""

    flops: int
    least_macs: int


class Steps:
    """A transformers causal language model on meta, and the counts of its calls. Raises InputError for other models.

    ``place`` is the device of the user's model.
    """

    def __init__(self, model: nn.Module, batch: int, attention: str) -> None:
        given: Any = checked_model(model)
        self._names = signature_of(given).parameters
        self._cache = next((name for name in CACHES if name in self._names), "")
        _check_is_served(given, self._cache)
        self.batch, self.attention = batch, attention
        self.place = str(parameters_of(given)[0].device)
        self._config = given.config.get_text_config()
        self._kept: list[Any] = []
        self._lessons = Lessons()
        self._model = KeepsCache(on_meta(given), self._cache, self._kept.append).eval()
        self._reports: dict[tuple[int, int], Report] = {}
        self._asked: dict[tuple[int, int], Report] = {}
        self._caches: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}
        self._writes: dict[tuple[int, int], list[Write]] = {}
        self._can_be_written: bool | None = None
        self._short_writes: frozenset[Any] | None = None

    def run(self, tokens: int, past: int = 0) -> Report:
        """Return the count of a call with ``tokens`` tokens of each sequence, after ``past`` others."""
        if (tokens, past) not in self._reports:
            report = self._counted(self._inputs(tokens, past), "exact")
            self._writes[tokens, past] = self._keep(past + tokens)
            self._reports[tokens, past] = report
            self._asked[tokens, past] = report.recount(attention=self.attention).checked(strict=True)
        return self._asked[tokens, past]

    def least_macs(self, tokens: int, past: int = 0) -> int:
        """Return the MACs of a call, in attention only for the pairs that its mask leaves, as far as these are known."""
        self.run(tokens, past)
        return self._reports[tokens, past].total_macs

    def cache_bytes(self, past: int) -> int:
        """Return the bytes of the whole batch's cache after ``past`` tokens."""
        if past not in self._bytes:
            self._bytes[past] = _bytes_in(self._cache_after(past))
        return self._bytes[past]

    def weight_bytes(self, tokens: int, past: int = 0) -> int:
        """Return the least bytes of weights that a call reads, each once: only the rows it reads of a table, and only one token's
        experts."""
        report = self.run(tokens, past)
        experts = Experts(report, self.batch * tokens)
        read: dict[int, int] = {}
        for weight in weights_read(report):
            key, whole = self._parameters[f"{weight.path}.{weight.name}"], nbytes(weight.spec)
            rows = read.get(key, 0) + (whole if weight.taken is None else weight.taken)
            read[key] = min(rows, whole, experts.bytes_of_a_token(weight))
        return sum(read.values())

    @cached_property
    def model_bytes(self) -> int:
        """The bytes of all parameters, each once."""
        return sum(nbytes(spec_of(parameter)) for _, parameter in named_parameters(self._model))

    @cached_property
    def _parameters(self) -> dict[str, int]:
        """The identity of each parameter by its path; a shared parameter has several paths."""
        return {path: id(each) for path, each in named_parameters(self._model, each_once=False)}

    @cached_property
    def dtype(self) -> str:
        """The dtype of the largest product in the first counted call."""
        report = next(iter(self._reports.values()), None) or self.run(1)
        return compute_dtype(max(report.counted, key=lambda each: each.macs).call)

    def costs_along(self, pasts: range) -> list[StepCosts]:
        """Return the costs of a step of one token after each of these numbers of tokens."""
        if len(pasts) <= FEW:
            return [self._step_costs(past) for past in pasts]
        ends = pasts[0], pasts[-1]
        asked = [self.run(1, past).counted for past in ends]
        exact = [self._reports[1, past].counted for past in ends]
        layers = RepeatedLayers(self._model, [*asked, *exact])
        # A sliding window ends a piece of the costs where it ends a piece of the cache size, which is found without a run.
        likely = [piece.last for piece in _along(self._cache_size, pasts)[1]]
        if layers:
            short = cache(lambda past: self._short_costs(layers, past))
            along, pieces = _along(short, pasts, likely)
            # A full run at the end of each piece confirms that the skipped layers do what the others do.
            if all(short(at) == self._step_costs(at) for at in {*ends, *(piece.last for piece in pieces)}):
                return [StepCosts(*costs) for costs in along]
        return [StepCosts(*costs) for costs in _along(self._step_costs, pasts, likely)[0]]

    def _step_costs(self, past: int) -> StepCosts:
        return StepCosts(self.run(1, past).total_flops, self.least_macs(1, past))

    def _short_costs(self, layers: RepeatedLayers, past: int) -> StepCosts:
        """Return the costs of a step from a run without repeated layers; negative costs if the run needs them."""
        inputs = (
            self._inputs(1, past) if self._short_writes is None else self._inputs_of(1, past, self._short_cache(past))
        )
        try:
            with layers.left_out():
                report = self._counted(inputs, "exact")
            self._short_writes = frozenset(write.plain for write in self._kept[-1][1])
        except FxflopsError:  # a full run shows whether the model itself raises
            return StepCosts(-1, -1)
        finally:
            self._kept.clear()
        asked = report.recount(attention=self.attention).checked(strict=True)
        return StepCosts(
            sum(each.flops * layers.number(each.call.path) for each in asked.counted),
            sum(each.macs * layers.number(each.call.path) for each in report.counted),
        )

    def cache_along(self, pasts: range) -> list[int]:
        """Return the bytes of the whole batch's cache after each number of tokens."""
        return [size for (size,) in _along(self._cache_size, pasts)[0]]

    def _cache_size(self, past: int) -> tuple[int]:
        return (self.cache_bytes(past),)

    def _inputs(self, tokens: int, past: int) -> dict[str, Any]:
        return self._inputs_of(tokens, past, self._cache_after(past) if past else self._new_cache())

    def _inputs_of(self, tokens: int, past: int, cache: Any) -> dict[str, Any]:
        wanted = {
            "input_ids": torch.zeros(self.batch, tokens, dtype=torch.long),
            "position_ids": torch.arange(past, past + tokens).expand(self.batch, tokens),
            "logits_to_keep": 1 if tokens == 1 or not past else 0,
            "use_cache": True,
        }
        return {name: value for name, value in wanted.items() if name in self._names} | {self._cache: cache}

    def _new_cache(self) -> Any:
        """Return the cache that generate() begins with; None if the model makes its own."""
        from transformers import DynamicCache

        takes_any = getattr(self._model.model, "_supports_default_dynamic_cache", lambda: True)()
        return DynamicCache(config=self._config) if takes_any else None

    def _counted(self, inputs: dict[str, Any], attention: str) -> Report:
        return counted(self._model, kwargs=inputs, attention=attention, mode="eval", lessons=self._lessons)

    def _cache_after(self, past: int) -> Any:
        """Return a cache after ``past`` tokens, which the caller may change."""
        if past not in self._caches and self._is_constant():
            return copy_on_meta(next(iter(self._caches.values())))
        if past not in self._caches and (cache := self._written(past)) is not None:
            self._bytes[past] = _bytes_in(cache)
            return cache
        if past not in self._caches:
            inputs = self._inputs(past, 0).items()
            shapes = {key: copy_on_meta(each) if key.endswith("_ids") else each for key, each in inputs}
            try:
                # Everything on meta: the values of masks grow with the square of the tokens.
                self._counted(shapes, "dense")
            except FxflopsError:  # the model reads values; run again with a new cache
                self._counted(self._inputs(past, 0), "dense")
            self._keep(past)
        return copy_on_meta(self._caches[past])

    def _written(self, past: int) -> Any:
        """Return the cache after ``past`` tokens from the writes of a prompt and the step after it; None unless these writes reproduce the
        caches that both left."""
        if self._can_be_written is False:
            return None
        if (1, 1) in self._writes and past > MORE_THAN_ONE:
            # A prompt of one token does not show which sizes depend on the number of tokens.
            self.run(MORE_THAN_ONE)
            self.run(1, MORE_THAN_ONE)
        tokens = self._tokens_written
        if not tokens:
            return None
        if self._can_be_written is None:
            pairs = [(self._caches[n], self._cache_of_writes(n)) for n in (tokens, tokens + 1)]
            self._can_be_written = all(made is not None and is_like(left, made) for left, made in pairs)
        return self._cache_of_writes(past) if self._can_be_written else None

    def _short_cache(self, past: int) -> Any:
        """Return the cache after ``past`` tokens, if possible with only the writes of a run without repeated layers."""
        made = self._cache_of_writes(past, self._short_writes) if self._can_be_written else None
        return self._cache_after(past) if made is None else made

    @property
    def _tokens_written(self) -> int:
        """The length of a prompt whose writes, and those of the step after it, are recorded; 0 if there is none."""
        return next((n for n, past in self._writes if n > 1 and not past and (1, n) in self._writes), 0)

    def _cache_of_writes(self, past: int, only: frozenset[Any] | None = None) -> Any:
        """Return the cache after ``past`` tokens from the recorded writes, or from those in ``only``."""
        tokens = self._tokens_written
        prompt, step = self._writes[tokens, 0], self._writes[1, tokens]
        if only is not None and len(prompt) == len(step):
            chosen = [i for i, write in enumerate(prompt) if write.plain in only]
            prompt, step = [prompt[i] for i in chosen], [step[i] for i in chosen]
        return written(self._new_cache(), prompt, tokens, step, past)

    def _keep(self, past: int) -> list[Write]:
        """Remember the cache that the last call left, after ``past`` tokens; return its writes into it."""
        left: Any
        writes: list[Write]
        left, writes = self._kept[-1]
        self._kept.clear()
        if not tensors_in(left):
            name = type(self._model.model).__name__
            raise InputError(f"serving() needs a model that keeps a cache between tokens: {name} left an empty one")
        self._caches.setdefault(past, left)
        return writes

    def _is_constant(self) -> bool:
        """Return whether the cache is a list of tensors whose shapes do not depend on the number of tokens."""
        caches = [*islice(self._caches.values(), 2)]
        if len(caches) < 2 or not all(isinstance(part, torch.Tensor) for _, part in parts(caches[0])):
            return False
        return is_like(*caches)


def _bytes_in(cache: Any) -> int:
    """Return the bytes of a cache's floating-point tensors, without its counters."""
    return sum(each.numel() * each.dtype.itemsize for each in tensors_in(cache) if each.is_floating_point())


def _check_is_served(model: Any, cache: str) -> None:
    """Raise InputError, with the reason, for a model whose serving cannot be counted."""
    name = type(model).__name__
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        raise InputError(f"serving() takes a transformers causal language model, not {name}")
    if model.config.is_encoder_decoder:
        raise InputError(f"serving() takes decoders alone, and {name} has an encoder; profile() counts its generate()")
    if not cache:
        raise InputError(
            f"serving() needs a model that keeps a cache between tokens, and the forward of {name} has "
            f"none of the parameters {', '.join(CACHES)}; profile() counts its generate()"
        )


def _along(
    costs: Callable[[int], tuple[int, ...]], lengths: range, likely: Sequence[int] = ()
) -> tuple[list[tuple[int, ...]], list[Piece]]:
    """Return the costs at each of the lengths, counted at a few that determine the others, and the pieces of the lengths, which may
    end near the ``likely`` lengths."""
    if not lengths:
        return [], []
    at = cache(lambda length: {STEP: costs(length)})
    pieces = cover(at, lengths[0], lengths[-1], likely)
    return values_along(at, pieces, STEP), pieces


class KeepsCache(nn.Module):
    """A model that after each call passes ``keep`` a copy of its cache (its own if it is given None) and the call's writes into it.

    The copy is needed because a count restores the cache itself.
    """

    def __init__(self, model: nn.Module, cache: str, keep: Callable[[tuple[Any, list[Write]]], None]) -> None:
        super().__init__()
        self.model = model
        self.cache = cache
        self.keep = keep

    def forward(self, **inputs: Any) -> Any:
        writes: list[Write] = []
        with noted(inputs[self.cache], writes):
            out = self.model(**inputs)
        kept = inputs[self.cache]
        if kept is None:  # the model made it
            kept = next((out[name] for name in (self.cache, *CACHES) if name in out), None)
        with DisableTorchFunction(), disable_current_modes():  # the copy is not part of the model's run
            self.keep((copy_on_meta(kept), writes))
        return out


def on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose floating-point parameters and buffers are on meta, so nothing is allocated for them."""
    memo: dict[int, Any] = {}
    for tensor in state_tensors(model):
        if tensor.is_floating_point():
            twin = torch.empty_like(tensor, device="meta")
            memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return copy.deepcopy(model, memo)

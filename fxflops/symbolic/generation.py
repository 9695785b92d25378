"""Count single steps of ``generate()``. Each step calls the model as ``generate()`` does, with the cache that the model has at this step."""

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
from ..model.configs import causal_lm_class
from ..model.inputs import checked_model, signature_of
from ..model.modules import named_parameters, parameters_of, state_tensors
from ..model.pytree import parts, tensors_in
from ..records.tensors import spec_of
from ..report.report import Report
from ..roofline.traffic import compute_dtype, nbytes
from ..torch_internals import DisableTorchFunction, disable_current_modes
from ..trace.memo import Memos
from .cache_writes import Write, copy_on_meta, is_like, noted, written
from .experts import Experts
from .pieces import Piece, cover, values_along
from .repeated_layers import RepeatedLayers
from .weights import weights_read

CACHES = ("cache", "past_key_values", "cache_params", "state")
"""Names that models use for the cache of earlier tokens, both as a parameter of forward and as a field of the output."""

FEW = 3
"""If there are at most this many steps, every step is counted."""
MORE_THAN_ONE = 2
STEP = ("forward", "", "")
"""The key under which a fit stores the costs of a step."""


class StepCosts(NamedTuple):
    """The costs of a step. ``flops`` follow the requested ``attention``. ``least_macs`` include only the attention pairs that the mask keeps."""

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
        self._memos = Memos()
        self._model = KeepsCache(on_meta(given), self._cache, self._kept.append).eval()
        self._reports: dict[tuple[int, int], Report] = {}
        self._asked: dict[tuple[int, int], Report] = {}
        self._caches: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}
        self._writes: dict[tuple[int, int], list[Write]] = {}
        self._can_be_written: bool | None = None
        self._short_writes: frozenset[Any] | None = None

    def run(self, tokens: int, past: int = 0) -> Report:
        """Count a call that processes ``tokens`` new tokens per sequence, with ``past`` tokens already in the cache; return the count."""
        if (tokens, past) not in self._reports:
            report = self._counted(self._inputs(tokens, past), "exact")
            self._writes[tokens, past] = self._keep(past + tokens)
            self._reports[tokens, past] = report
            self._asked[tokens, past] = report.recount(attention=self.attention).checked(strict=True)
        return self._asked[tokens, past]

    def least_macs(self, tokens: int, past: int = 0) -> int:
        """Return the MACs of a call. Attention includes only the pairs that the mask keeps, if these pairs are known."""
        self.run(tokens, past)
        return self._reports[tokens, past].total_macs

    def cache_bytes(self, past: int) -> int:
        """Return the bytes of the whole batch's cache after ``past`` tokens."""
        if past not in self._bytes:
            self._bytes[past] = _bytes_in(self._cache_after(past))
        return self._bytes[past]

    def weight_bytes(self, tokens: int, past: int = 0) -> int:
        """Return the smallest number of weight bytes that a call can read.

        A call reads each weight once. The call reads only the looked-up rows of an embedding table, and only the experts of one token.
        """
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
        """The bytes of all parameters. A shared parameter counts once."""
        return sum(nbytes(spec_of(parameter)) for _, parameter in named_parameters(self._model))

    @cached_property
    def _parameters(self) -> dict[str, int]:
        """The ``id()`` of the parameter at each path. A shared parameter has several paths."""
        return {path: id(each) for path, each in named_parameters(self._model, each_once=False)}

    @cached_property
    def dtype(self) -> str:
        """The dtype of the operation with the most MACs in the first counted call of the model."""
        report = next(iter(self._reports.values()), None) or self.run(1)
        return compute_dtype(max(report.counted, key=lambda each: each.macs).call)

    def costs_along(self, pasts: range) -> list[StepCosts]:
        """Return the costs of decode steps. Each number in ``pasts`` is the number of tokens in the cache before a step."""
        if len(pasts) <= FEW:
            return [self._step_costs(past) for past in pasts]
        ends = pasts[0], pasts[-1]
        asked = [self.run(1, past).counted for past in ends]
        exact = [self._reports[1, past].counted for past in ends]
        layers = RepeatedLayers(self._model, [*asked, *exact])
        # Costs and cache size change at the same lengths, e.g. at the end of a sliding window. Finding the cache size needs no run.
        likely = [piece.last for piece in _along(self._cache_size, pasts)[1]]
        if layers:
            short = cache(lambda past: self._short_costs(layers, past))
            along, pieces = _along(short, pasts, likely)
            # A full run at the end of each piece confirms that the skipped layers cost as much as assumed.
            if all(short(at) == self._step_costs(at) for at in {*ends, *(piece.last for piece in pieces)}):
                return [StepCosts(*costs) for costs in along]
        return [StepCosts(*costs) for costs in _along(self._step_costs, pasts, likely)[0]]

    def _step_costs(self, past: int) -> StepCosts:
        return StepCosts(self.run(1, past).total_flops, self.least_macs(1, past))

    def _short_costs(self, layers: RepeatedLayers, past: int) -> StepCosts:
        """Run a step without its repeated layers, and return the costs of the step. The costs are -1 if the model cannot run without these
        layers."""
        inputs = (
            self._inputs(1, past) if self._short_writes is None else self._inputs_of(1, past, self._short_cache(past))
        )
        try:
            with layers.left_out():
                report = self._counted(inputs, "exact")
            self._short_writes = frozenset(write.plain for write in self._kept[-1][1])
        except FxflopsError:  # a full run will show whether the model also raises with all its layers
            return StepCosts(-1, -1)
        finally:
            self._kept.clear()
        asked = report.recount(attention=self.attention).checked(strict=True)
        return StepCosts(
            sum(each.flops * layers.number(each.call.path) for each in asked.counted),
            sum(each.macs * layers.number(each.call.path) for each in report.counted),
        )

    def cache_along(self, pasts: range) -> list[int]:
        """Return the bytes of the whole batch's cache for each number of tokens in ``pasts``."""
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
        """Return the empty cache with which generate() starts; None if the model creates the cache itself."""
        from transformers import DynamicCache

        takes_any = getattr(self._model.model, "_supports_default_dynamic_cache", lambda: True)()
        return DynamicCache(config=self._config) if takes_any else None

    def _counted(self, inputs: dict[str, Any], attention: str) -> Report:
        return counted(self._model, kwargs=inputs, attention=attention, mode="eval", memos=self._memos)

    def _cache_after(self, past: int) -> Any:
        """Return a new copy of the cache after ``past`` tokens. The caller may change the copy."""
        if past not in self._caches and self._is_constant():
            return copy_on_meta(next(iter(self._caches.values())))
        if past not in self._caches and (cache := self._written(past)) is not None:
            self._bytes[past] = _bytes_in(cache)
            return cache
        if past not in self._caches:
            inputs = self._inputs(past, 0).items()
            shapes = {key: copy_on_meta(each) if key.endswith("_ids") else each for key, each in inputs}
            try:
                # Run with all inputs on meta: with real inputs, a mask needs memory that grows with the square of the tokens.
                self._counted(shapes, "dense")
            except FxflopsError:  # the model reads values of its inputs: run again with real inputs and a new cache
                self._counted(self._inputs(past, 0), "dense")
            self._keep(past)
        return copy_on_meta(self._caches[past])

    def _written(self, past: int) -> Any:
        """Return the cache after ``past`` tokens. The cache is built from the recorded writes of a prompt and of the step that follows the prompt.

        Return None if a cache built from the recorded writes differs from the cache that the prompt or the step really left.
        """
        if self._can_be_written is False:
            return None
        if (1, 1) in self._writes and past > MORE_THAN_ONE:
            # After a prompt of one token, it is unclear which dimensions of size 1 are the number of tokens. So also run a prompt of two tokens.
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
        """Return the cache after ``past`` tokens. If possible, only the layers that run without repeated layers have entries."""
        made = self._cache_of_writes(past, self._short_writes) if self._can_be_written else None
        return self._cache_after(past) if made is None else made

    @property
    def _tokens_written(self) -> int:
        """The length of a prompt for which two things were recorded: the prompt's writes, and the writes of the step after it. 0 if there
        is no such prompt."""
        return next((n for n, past in self._writes if n > 1 and not past and (1, n) in self._writes), 0)

    def _cache_of_writes(self, past: int, only: frozenset[Any] | None = None) -> Any:
        """Return the cache after ``past`` tokens, built from recorded writes. ``only`` limits them to writes with these ``plain`` arguments."""
        tokens = self._tokens_written
        prompt, step = self._writes[tokens, 0], self._writes[1, tokens]
        if only is not None and len(prompt) == len(step):
            chosen = [i for i, write in enumerate(prompt) if write.plain in only]
            prompt, step = [prompt[i] for i in chosen], [step[i] for i in chosen]
        return written(self._new_cache(), prompt, tokens, step, past)

    def _keep(self, past: int) -> list[Write]:
        """Store the cache that the last call left as the cache after ``past`` tokens. Return this call's writes to the cache."""
        left: Any
        writes: list[Write]
        left, writes = self._kept[-1]
        self._kept.clear()
        if not tensors_in(left):
            name = type(self._model.model).__name__
            raise InputError(
                f"serving() needs a model that keeps a cache between tokens: the cache of {name} stayed empty"
            )
        self._caches.setdefault(past, left)
        return writes

    def _is_constant(self) -> bool:
        """Return whether the cache is a list of tensors whose shapes do not depend on the number of tokens."""
        caches = [*islice(self._caches.values(), 2)]
        if len(caches) < 2 or not all(isinstance(part, torch.Tensor) for _, part in parts(caches[0])):
            return False
        return is_like(*caches)


def _bytes_in(cache: Any) -> int:
    """Return the bytes of a cache's floating-point tensors. Integer tensors, e.g. counters of tokens, are left out."""
    return sum(each.numel() * each.dtype.itemsize for each in tensors_in(cache) if each.is_floating_point())


def _check_is_served(model: Any, cache: str) -> None:
    """Raise InputError if serving() cannot count this model. The message has the reason."""
    name = type(model).__name__
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        problem = f"serving() takes a transformers causal language model, not {name}"
        with_head = causal_lm_class(getattr(model, "config", None))
        if with_head in ("", name):
            raise InputError(problem)
        raise InputError(f"{problem}; {with_head}, which has the same config, is one", advice="class with a head")
    if model.config.is_encoder_decoder:
        raise InputError(
            f"serving() takes models without an encoder, and {name} has one; to count generate() of {name}, use profile()"
        )
    if not cache:
        raise InputError(
            f"serving() needs a model that keeps a cache between tokens, but {name}.forward has "
            f"none of the parameters {', '.join(CACHES)}; to count generate() of {name}, use profile()"
        )


def _along(
    costs: Callable[[int], tuple[int, ...]], lengths: range, likely: Sequence[int] = ()
) -> tuple[list[tuple[int, ...]], list[Piece]]:
    """Return the costs at each length, and the pieces of ``lengths`` in which the costs are polynomials.

    Only a few lengths are counted; the polynomials give the costs at all others. Pieces are expected to end near the ``likely`` lengths.
    """
    if not lengths:
        return [], []
    at = cache(lambda length: {STEP: costs(length)})
    pieces = cover(at, lengths[0], lengths[-1], likely)
    return values_along(at, pieces, STEP), pieces


class KeepsCache(nn.Module):
    """A wrapper of a model. After each call, the wrapper calls the function ``keep`` with a copy of the model's cache and with the writes
    of the call.

    If the caller passes no cache, the wrapper copies the cache in the model's output. A copy is needed because a count restores the original.
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
        if kept is None:  # the model created the cache itself
            kept = next((out[name] for name in (self.cache, *CACHES) if name in out), None)
        with DisableTorchFunction(), disable_current_modes():  # do not count the copying as work of the model
            self.keep((copy_on_meta(kept), writes))
        return out


def on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of a model in which floating-point parameters and buffers are on meta, so that they need no memory."""
    memo: dict[int, Any] = {}
    for tensor in state_tensors(model):
        if tensor.is_floating_point():
            twin = torch.empty_like(tensor, device="meta")
            memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return copy.deepcopy(model, memo)

"""The steps of ``generate()``, counted one by one: the model is called as it would be, with the cache that it would have."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn

from ..api import count
from ..errors import InputError
from ..model.inputs import checked_model, signature_of
from ..model.modules import named_parameters, parameters_of, state_tensors
from ..model.pytree import tensors_in
from ..report.report import Report
from ..roofline.traffic import compute_dtype, nbytes
from .fitting import Samples, form_of
from .forms import ClosedForm
from .sizes import Size
from .weights import weights_read

CACHES = ("cache", "past_key_values", "cache_params")
"""The names of a forward's parameter for the cache."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""The names that configs have for the number of experts; each token takes ``num_experts_per_tok`` of them."""


class Steps:
    """A causal language model of transformers on meta, and the counts of its calls. Raises InputError for other models.

    ``place`` is the device of the model that was given.
    """

    def __init__(self, model: nn.Module, batch: int, attention: str) -> None:
        given: Any = checked_model(model)
        self._names = signature_of(given).parameters
        self._cache = next((name for name in CACHES if name in self._names), "")
        if not self._cache or not hasattr(given, "generate") or given.config.is_encoder_decoder:
            raise InputError(f"serving() takes a causal language model of transformers, not {type(given).__name__}")
        self.batch, self.attention = batch, attention
        self.place = str(parameters_of(given)[0].device)
        self._config = given.config.get_text_config()
        self._kept: list[Any] = []
        self._model = KeepsCache(on_meta(given), self._cache, self._kept.append)
        self._reports: dict[tuple[int, int], Report] = {}
        self._caches: dict[int, Any] = {}

    def run(self, tokens: int, past: int = 0) -> Report:
        """Return the count of a call with so many tokens of each sequence, after ``past`` others."""
        if (tokens, past) not in self._reports:
            report = count(self._model, kwargs=self._inputs(tokens, past), attention="exact", mode="eval")
            if not past:
                self._caches[tokens] = self._kept[-1]
            self._reports[tokens, past] = report
        return self._reports[tokens, past].recount(attention=self.attention).checked(strict=True)

    def least_macs(self, tokens: int, past: int = 0) -> int:
        """Return the MACs of a call, of attention only the pairs that its mask leaves, as far as they are known."""
        self.run(tokens, past)
        return self._reports[tokens, past].total_macs

    def cache_bytes(self, past: int) -> int:
        """Return the bytes of the whole batch's cache after so many tokens."""
        held = tensors_in(self._cache_after(past))
        return sum(each.numel() * each.dtype.itemsize for each in held if each.is_floating_point())  # without counters

    def weight_bytes(self, tokens: int, past: int = 0) -> int:
        """Return the least bytes of weights that a call reads, each once: of a table the rows it takes, of experts those of
        one token."""
        experts = next((getattr(self._config, name) for name in EXPERTS if getattr(self._config, name, None)), 0)
        taken = getattr(self._config, "num_experts_per_tok", experts)
        read: dict[int, int] = {}
        for weight in weights_read(self.run(tokens, past)):
            key, whole = self._parameters[f"{weight.path}.{weight.name}"], nbytes(weight.spec)
            rows = read.get(key, 0) + (whole if weight.taken is None else weight.taken)
            is_of_experts = weight.spec.ndim == 3 and weight.spec[0] == experts
            read[key] = whole * taken // experts if is_of_experts else min(rows, whole)
        return sum(read.values())

    @cached_property
    def _parameters(self) -> dict[str, int]:
        """The identity of each parameter by its path; one that modules share has several paths."""
        return {path: id(each) for path, each in named_parameters(self._model, each_once=False)}

    @cached_property
    def dtype(self) -> str:
        """The dtype of the largest product."""
        return compute_dtype(max(self.run(1).counted, key=lambda each: each.macs).call)

    def in_past(self, least: int, most: int) -> ClosedForm:
        """Return the costs of a step of one token in the length of the cache, ``past``."""
        samples = Samples(lambda point: self.run(1, *point), [Size("past", least, least, most)])
        return form_of(samples, samples, self.attention)

    def _inputs(self, tokens: int, past: int) -> dict[str, Any]:
        from transformers import DynamicCache

        cache = copy_on_meta(self._cache_after(past)) if past else DynamicCache(config=self._config)
        wanted = {
            "input_ids": torch.zeros(self.batch, tokens, dtype=torch.long),
            "position_ids": torch.arange(past, past + tokens).expand(self.batch, tokens),
            "logits_to_keep": 1 if tokens == 1 or not past else 0,
            "use_cache": True,
        }
        return {name: value for name, value in wanted.items() if name in self._names} | {self._cache: cache}

    def _cache_after(self, past: int) -> Any:
        if past not in self._caches:
            self.run(past)
        return self._caches[past]


class KeepsCache(nn.Module):
    """A model that gives ``keep`` a copy of its cache after each call. A count restores the cache itself, with all that is in it."""

    def __init__(self, model: nn.Module, cache: str, keep: Callable[[Any], None]) -> None:
        super().__init__()
        self.model = model
        self.cache = cache
        self.keep = keep

    def forward(self, **inputs: Any) -> Any:
        out = self.model(**inputs)
        self.keep(copy_on_meta(inputs[self.cache]))
        return out


def copy_on_meta(cache: Any) -> Any:
    """Return a copy of a cache that shares no part with it, with its tensors' shapes on meta."""
    memo: dict[int, Any] = {
        id(tensor): torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in tensors_in(cache)
    }
    return copy.deepcopy(cache, memo)


def on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose floating parameters and buffers are on meta; nothing is allocated for it."""
    memo: dict[int, Any] = {}
    for tensor in state_tensors(model):
        if tensor.is_floating_point():
            twin = torch.empty_like(tensor, device="meta")
            memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return copy.deepcopy(model, memo)

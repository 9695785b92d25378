"""``serving``: the cost of serving a language model, token by token. For a device, times are bounded from below and predicted."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

from torch import nn

from ..errors import InputError, unknown_arguments
from ..prediction import Prediction
from ..report.report import Report
from ..roofline.devices import Device
from ..roofline.measured_peaks import device_for
from ..units import amount, seconds, size
from .generation import Steps

MUCH = 0.1
"""If copies of the cache take more than this share of the predicted time of a token, the output says so."""
TAKES = "it takes prompt, new_tokens, batch, device, attention, draft, draft_tokens, acceptance"


@dataclass(frozen=True, slots=True)
class Speculative:
    """Speculative decoding. In each round, a draft model proposes tokens. The model accepts each of these tokens with a probability.

    ``tokens`` is the expected number of tokens per round: 1 + a + ... + a^n, where n is the number of proposed tokens and a is the
    ``acceptance`` (https://arxiv.org/abs/2211.17192, equation 1). ``flops`` are the FLOPs of the first round after the prompt. The FLOPs
    include the draft model and the model, and cover the whole batch. ``per_token_seconds`` is a lower bound; None without a device.
    """

    draft: str
    draft_tokens: int
    acceptance: float
    tokens: float
    flops: int
    per_token_seconds: float | None = None

    def __str__(self) -> str:
        time = (
            "" if self.per_token_seconds is None else f"; at least {seconds(self.per_token_seconds)} per output token"
        )
        return (
            f"speculative  {self.draft} proposes {self.draft_tokens} tokens a round, {self.acceptance:.0%} accepted: "
            f"{self.tokens:.2f} output tokens and {amount(self.flops, 'FLOPs')} a round{time}"
        )


@dataclass(frozen=True, slots=True)
class Serving:
    """The cost of serving a batch of prompts.

    ``first_token_seconds`` and ``per_token_seconds`` are lower bounds; None without a device. ``per_token_seconds`` is the mean over the
    decode steps; None if there are no decode steps. ``prefill_binds`` and ``decode_binds`` say what sets the lower bound: "compute" or
    "memory".

    ``predicted_first_token_seconds`` and ``predicted_per_token_seconds`` come from :meth:`Report.predict`, for the whole batch in one
    process. ``predicted_first_token_seconds`` predicts the prefill. ``predicted_per_token_seconds`` is the mean for the first and the last
    decode step. The two predicted times are None if no kernels of the device or of a similar device were measured. ``predicted_error`` is
    the mean error of predictions for single kernels of a decode step. ``predicted_copy_seconds`` is the part of
    ``predicted_per_token_seconds`` in which ``generate()`` copies its cache.

    ``step_flops`` and ``step_bytes`` have one entry per decode step. The number of steps is the number of new tokens minus 1, because the
    prefill gives the first token. ``prefill_bytes`` and ``step_bytes`` are the fewest bytes that must be moved: all weights once, plus the cache. A
    decode step reads ``weight_bytes`` of weights, with the experts of one token. ``model_bytes`` are all weights, with all experts.

    ``cache_bytes`` is the cache of the whole batch after the last step. In layers with a sliding window, the cache stops growing at the
    window. ``cache_bytes_per_token`` is the growth of each sequence's cache for the first token after the prompt.
    ``last_cache_bytes_per_token`` is the growth for the last token.

    ``dtype`` is the dtype of the largest product. FLOPs follow ``attention``. If the attention pairs that the masks keep are known, the
    times include only these pairs ("exact"), whatever ``attention`` is.
    """

    model: str
    batch: int
    prompt: int
    new_tokens: int
    prefill_flops: int
    prefill_bytes: int
    step_flops: tuple[int, ...] = field(repr=False)
    step_bytes: tuple[int, ...] = field(repr=False)
    weight_bytes: int
    cache_bytes: int
    cache_bytes_per_token: int
    device: Device | None = None
    first_token_seconds: float | None = None
    per_token_seconds: float | None = None
    speculative: Speculative | None = None
    attention: str = "dense"
    last_cache_bytes_per_token: int = 0
    predicted_first_token_seconds: float | None = None
    predicted_per_token_seconds: float | None = None
    dtype: str = ""
    model_bytes: int = 0
    prefill_binds: str = ""
    decode_binds: str = ""
    predicted_error: float | None = None
    predicted_copy_seconds: float = 0.0

    @property
    def decode_flops(self) -> int:
        """FLOPs of all decode steps."""
        return sum(self.step_flops)

    @property
    def memory_bytes(self) -> int:
        """The bytes of all weights, and of the cache after the last token. Activations need more memory on top of these bytes."""
        return self.model_bytes + self.cache_bytes

    def _fit(self) -> str:
        """Return the words that say whether weights and cache fit into the device's memory, and what they leave for activations."""
        if self.device is None or self.device.memory is None:
            return ""
        left = self.device.memory - self.memory_bytes
        fits = "fit" if left >= 0 else "do NOT fit"
        for_activations = f" and leave {size(left)} for activations" if left >= 0 else ""
        return f": {fits} into the {size(self.device.memory)} of {self.device.name}{for_activations}"

    def _each(self, taken: float | None, binds: str = "") -> str:
        """Return the line with the time per output token, and the tokens per second of the whole batch."""
        rate = f", {self.batch / taken:,.0f} tokens/s" if taken else ""
        return f"  output token  {seconds(taken)}{rate}{f', limited by {binds}' * bool(binds)}"

    def _not_predicted(self, name: str) -> str:
        return f"not predicted: no kernels of {name} or of a similar card were measured; fxflops.calibrate() measures them on the card"

    def _trust(self) -> str:
        """Return the line with the error of the predicted times."""
        error = (
            "unknown" if self.predicted_error is None else f"{self.predicted_error:.1%} on average for single kernels"
        )
        return f"  error         {error}; benchmarks/results/prediction.md has the error of whole requests"

    def _in_server(self) -> list[str]:
        """Return a line with the time per output token in a server, which does not copy the cache; [] if the copies take little time."""
        taken, copied = self.predicted_per_token_seconds or 0.0, self.predicted_copy_seconds
        without = taken - copied
        if copied <= MUCH * taken or without <= 0:
            return []
        return [
            f"                {seconds(without)}, {self.batch / without:,.0f} tokens/s in a server; "
            f"generate() copies the cache for each token, in {seconds(copied)}"
        ]

    def _request(self, first: float | None, each: float | None) -> list[str]:
        """Return the line with the time of a whole request: the first token, then every decode step. Return [] if a time is None."""
        if first is None or each is None:
            return []
        return [f"  request       {seconds(first + len(self.step_flops) * each)}"]

    def __str__(self) -> str:
        last = self.last_cache_bytes_per_token
        later = f", {size(last)} for the last token" if last != self.cache_bytes_per_token else ""
        lines = [
            f"{self.model}   {f'{self.dtype}, ' * bool(self.dtype)}batch {self.batch}, prompt {self.prompt:,}, new tokens {self.new_tokens:,}",
            f"prefill      {amount(self.prefill_flops, 'FLOPs')} (attention {self.attention}), at least {size(self.prefill_bytes)} moved",
            f"decode       {amount(self.decode_flops, 'FLOPs')} (attention {self.attention}) in {len(self.step_flops):,} steps; each reads "
            f"at least {size(self.weight_bytes)} of weights, plus the cache",
            f"cache        {size(self.cache_bytes_per_token)} a token{later}; {size(self.cache_bytes)} at the end",
            f"memory       {size(self.memory_bytes)} of weights ({size(self.model_bytes)}) and cache{self._fit()}",
        ]
        if self.device is not None:
            lines += [
                f"lower bounds on {self.device.name}: max(2 x MACs / peak, bytes / bandwidth), attention exact",
                f"  first token   {seconds(self.first_token_seconds)}, limited by {self.prefill_binds}",
                self._each(self.per_token_seconds, self.decode_binds),
                *self._request(self.first_token_seconds, self.per_token_seconds),
            ]
            if self.predicted_first_token_seconds is None:
                lines.append(self._not_predicted(self.device.name))
        if self.predicted_first_token_seconds is not None:
            lines += [
                "predicted, if run as a CUDA graph (docs/prediction.md)",
                f"  first token   {seconds(self.predicted_first_token_seconds)}",
                self._each(self.predicted_per_token_seconds) + (" with generate()" if self._in_server() else ""),
                *self._in_server(),
                *self._request(self.predicted_first_token_seconds, self.predicted_per_token_seconds),
                self._trust(),
            ]
        return "\n".join([*lines, *([] if self.speculative is None else [str(self.speculative)])])


def serving(
    model: nn.Module,
    *,
    prompt: int,
    new_tokens: int,
    batch: int = 1,
    device: str | Device | None = None,
    attention: str = "dense",
    draft: nn.Module | None = None,
    draft_tokens: int = 4,
    acceptance: float = 0.8,
    **unknown: NoReturn,
) -> Serving:
    """Return the cost of ``generate()`` for a transformers causal language model, from counts on meta.

    The model is called as ``generate()`` calls it. The prefill computes the logits of the last token of the prompt. After the prefill, each
    decode step computes one token and uses the cache. Choosing the next token from the logits is not included.

    Args:
        prompt: the number of tokens in each prompt.
        new_tokens: the number of tokens to generate after each prompt.
        batch: the number of sequences.
        device: the name of a device or a Device, for bounds on times; "auto" means the model's own device.
        attention: the rule for the FLOPs of attention, as for :func:`fxflops.count`. The lower bounds on times do not depend on
            ``attention``.
        draft, draft_tokens, acceptance: for speculative decoding, the draft model, the number of tokens that the draft model proposes per
            round, and the probability that a proposed token is accepted.

    Times are lower bounds that real servers do not reach. A lower bound is the larger of two times: the time of 2 x MACs at the device's peak
    for the dtype of the largest product, and the time to move all weights and the cache once at the device's bandwidth. If kernels of the
    device or of a similar device were measured, the result also has predicted times.

    Raises InputError if the model keeps no cache between tokens, or if a number is out of range.
    """
    if unknown:
        raise unknown_arguments("serving", unknown, serving.__kwdefaults__ or (), TAKES)
    if min(prompt, new_tokens, batch, draft_tokens) < 1 or not 0 <= acceptance <= 1:
        raise InputError(
            "serving(): prompt, new_tokens, batch and draft_tokens must be 1 or more, and acceptance must be from 0 to 1"
        )
    with earlier_objects_frozen():
        return _serving(model, prompt, new_tokens, batch, device, attention, draft, draft_tokens, acceptance)


def _serving(
    model: nn.Module,
    prompt: int,
    new_tokens: int,
    batch: int,
    device: str | Device | None,
    attention: str,
    draft: nn.Module | None,
    draft_tokens: int,
    acceptance: float,
) -> Serving:
    """Return the result of :func:`serving`, for arguments that are already checked."""
    steps = Steps(model, batch, attention)
    prefill = steps.run(prompt)
    on = None if device is None else device_for(device, steps.place, [steps.dtype])[0]
    pasts = range(prompt, prompt + new_tokens - 1)
    decode = steps.costs_along(pasts)
    weights = steps.weight_bytes(1, prompt)
    # The sizes of the cache after the prompt and after each decode step.
    # If there are no decode steps, add the size after one decode step, to show how much one token adds to the cache.
    cache_sizes = steps.cache_along(range(prompt, max(pasts.stop, prompt + 1) + 1))
    grown = [(after - before) // batch for before, after in pairwise(cache_sizes)]
    moved = [weights + found for _, found in zip(pasts, cache_sizes, strict=False)]
    written = steps.weight_bytes(prompt) + cache_sizes[0]
    times = [_least(on, steps, step.least_macs, found) for step, found in zip(decode, moved, strict=True)]
    ends = [steps.run(1, past) for past in sorted({*pasts[:1], *pasts[-1:]})]
    steps_predicted = _predictions(on, ends)
    return Serving(
        model=type(model).__name__,
        batch=batch,
        prompt=prompt,
        new_tokens=new_tokens,
        prefill_flops=prefill.total_flops,
        prefill_bytes=written,
        step_flops=tuple(step.flops for step in decode),
        step_bytes=tuple(moved),
        weight_bytes=weights,
        cache_bytes=cache_sizes[len(pasts)],
        cache_bytes_per_token=grown[0],
        device=on,
        first_token_seconds=None if on is None else _least(on, steps, steps.least_macs(prompt), written),
        per_token_seconds=sum(times) / len(times) if on is not None and times else None,
        speculative=None if draft is None else _speculative(steps, draft, prompt, draft_tokens, acceptance, on),
        attention=attention,
        last_cache_bytes_per_token=grown[-1],
        dtype=steps.dtype,
        predicted_first_token_seconds=_mean(_predictions(on, [prefill])),
        predicted_per_token_seconds=_mean(steps_predicted),
        model_bytes=steps.model_bytes,
        prefill_binds="" if on is None else _binds(on, steps, steps.least_macs(prompt), written),
        decode_binds="" if on is None or not times else _binds(on, steps, decode[-1].least_macs, moved[-1]),
        predicted_error=steps_predicted[-1].error if steps_predicted else None,
        predicted_copy_seconds=sum(_copies(each) for each in steps_predicted) / max(1, len(steps_predicted)),
    )


@contextmanager
def earlier_objects_frozen() -> Iterator[None]:
    """Let the garbage collector scan only objects created in this block.

    serving() makes many counts. Without this function, the garbage collector would take a fifth of the time. The collector would scan all
    objects that torch and transformers create when they are imported. If the user has already frozen objects, this function does nothing.
    gc.unfreeze() at the end of the block would unfreeze the user's objects too.
    """
    is_ours = not gc.get_freeze_count()
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()


def _predictions(on: Device | None, calls: list[Report]) -> list[Prediction]:
    """Return the predictions for counted calls. Return [] if no device is passed, or if no kernels of the device are calibrated."""
    predictions = [] if on is None else [report.predict(on) for report in calls]
    return predictions if all(prediction.families for prediction in predictions) else []


def _mean(predictions: list[Prediction]) -> float | None:
    return sum(prediction.seconds for prediction in predictions) / len(predictions) if predictions else None


def _copies(prediction: Prediction) -> float:
    """Return the predicted seconds that a step takes to copy the cache when one token is added to it."""
    return sum(row.seconds for row in prediction.rows if row.op == "cat")


def _speculative(
    steps: Steps, model: nn.Module, prompt: int, tokens: int, acceptance: float, on: Device | None
) -> Speculative:
    draft = Steps(model, steps.batch, steps.attention)
    expected = sum(acceptance**i for i in range(tokens + 1))
    # A round has one step of the draft for each proposed token, and one step of the model, which checks all proposed tokens.
    rounds = [(draft, 1, tokens), (steps, tokens + 1, 1)]
    flops = sum(times * each.run(n, prompt).total_flops for each, n, times in rounds)
    time = sum(
        times * _least(on, each, each.least_macs(n, prompt), each.weight_bytes(n, prompt) + each.cache_bytes(prompt))
        for each, n, times in rounds
    )
    return Speculative(
        type(model).__name__, tokens, acceptance, expected, flops, None if on is None else time / expected
    )


def _binds(on: Device, steps: Steps, macs: int, moved: int) -> str:
    return "compute" if 2 * macs / on.peak(steps.dtype) > moved / on.bandwidth else "memory"


def _least(on: Device | None, steps: Steps, macs: int, moved: int) -> float:
    return 0.0 if on is None else max(2 * macs / on.peak(steps.dtype), moved / on.bandwidth)

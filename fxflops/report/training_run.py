"""Extrapolate a training run from one counted step. The GPU-hours are computed in two ways: from the step's FLOPs, and from the 6ND estimate."""

from __future__ import annotations

from dataclasses import dataclass

from ..counting import totals
from ..counting.counted_run import CountedRun
from ..errors import InputError, of_kind
from ..roofline.devices import Device, find_device
from ..units import amount, read_tokens
from .per_token import active_params, per_token


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The GPU-hours needed to train on ``tokens`` tokens.

    ``flops_per_token`` is 2 x MACs of forward and backward, per token. ``peak`` is the device's peak in FLOP/s for ``dtype``.
    ``six_nd_hours`` is the estimate with 6 x ``params`` FLOPs per token. For a mixture of experts, the estimate uses ``active_params``
    instead of ``params``. ``active_params`` is the number of parameters used per token.

    ``exact_flops_per_token`` is ``flops_per_token`` if attention counts only the query-key pairs that the masks allow. It is None if these
    pairs are unknown, or if ``flops_per_token`` already counts only these pairs.
    """

    tokens: float
    flops_per_token: float
    device: Device
    dtype: str
    peak: float
    mfu: float
    params: int
    active_params: float | None = None
    exact_flops_per_token: float | None = None

    @property
    def hours(self) -> float:
        return self._hours(self.flops_per_token)

    @property
    def exact_hours(self) -> float | None:
        return None if self.exact_flops_per_token is None else self._hours(self.exact_flops_per_token)

    @property
    def six_nd_hours(self) -> float:
        return self._hours(6 * (self.active_params or self.params))

    def _hours(self, flops_per_token: float) -> float:
        return flops_per_token * self.tokens / (self.mfu * self.peak) / 3600

    def days(self, gpus: int) -> float:
        """The days that ``gpus`` devices take, if each reaches the same share of its peak."""
        return self.hours / gpus / 24

    @property
    def _n(self) -> str:
        if self.active_params is None:
            return f"{self.params:,} parameters"
        return f"{self.active_params:,.0f} active parameters per token, of {self.params:,}"

    def __str__(self) -> str:
        at = f"({self.mfu:g} MFU x {amount(self.peak, 'FLOP/s')} of {self.device.name} in {self.dtype}) / 3600"
        left_out = "" if self.exact_hours is None else " (6ND leaves out attention)"
        lines = [
            f"{self.hours:,.0f} GPU-hours = {amount(self.flops_per_token, 'FLOPs')}/token x {self.tokens:.4g} tokens / {at}",
            f"{self.six_nd_hours:,.0f} GPU-hours by 6ND, with N = {self._n}: "
            f"{self.six_nd_hours / self.hours - 1:+.1%}{left_out}",
        ]
        if self.exact_hours is not None:
            lines.append(
                f"{self.exact_hours:,.0f} GPU-hours if attention counts only the pairs that the mask allows, not all pairs: "
                f"{self.exact_hours / self.hours - 1:+.1%}"
            )
        return "\n".join(lines)


def check_mfu(mfu: float) -> None:
    """Raise InputError unless ``mfu`` is a share above 0."""
    if not 0 < mfu <= 1:
        percent = f": {mfu:g}% is {mfu / 100:g}" if 1 < mfu <= 100 else ""
        raise of_kind(InputError(f"mfu must be above 0 and at most 1, got {mfu!r}{percent}"), ValueError)


def training_run(
    counted_run: CountedRun,
    tokens: float | str,
    device: str | Device | None,
    mfu: float,
    tokens_per_step: int | None,
    exact: CountedRun | None = None,
) -> TrainingRun:
    """Return the cost of a training run, extrapolated from one counted step; see :meth:`~fxflops.report.report.Report.training_run`.

    ``exact`` is the same step, counted with only the query-key pairs that the masks allow.
    """
    from ..roofline.traffic import compute_dtype  # imports torch

    if device is None:
        raise InputError(f"training_run() needs the name of the card, e.g. training_run({tokens!r}, 'H100')")
    if isinstance(tokens, str):
        try:
            tokens = float(read_tokens(tokens))
        except ValueError as error:
            raise InputError(f"training_run(): tokens {error}") from None
    if not tokens > 0:
        raise of_kind(InputError(f"tokens of training_run() must be above 0, got {tokens!r}"), ValueError)
    check_mfu(mfu)
    model, params = counted_run.run.model, totals.params(counted_run)
    macs = _training_macs(counted_run)
    if not macs or not params:
        raise InputError(f"no backward pass of {model} was counted", advice="counted backward")
    hardware = find_device(device)
    largest_product = max(counted_run.counted, key=lambda counted: counted.macs)
    dtype = compute_dtype(largest_product.call)
    in_step = per_token(counted_run, tokens_per_step).tokens
    active, peak = active_params(counted_run, in_step), hardware.peak(dtype)
    exact_macs = None if exact is None or exact.missing != counted_run.missing else _training_macs(exact)
    return TrainingRun(
        tokens,
        2 * macs / in_step,
        hardware,
        dtype,
        peak,
        mfu,
        params,
        active,
        2 * exact_macs / in_step if exact_macs and exact_macs < macs else None,
    )


def _training_macs(counted_run: CountedRun) -> int | None:
    """Return the MACs of forward and backward; None if no backward pass was counted."""
    backward_macs = totals.backward_macs(counted_run)
    return counted_run.forward.macs + backward_macs if backward_macs else None

"""A training run worked out from one counted step: GPU-hours by the true count, beside those by 6ND."""

from __future__ import annotations

from dataclasses import dataclass

from ..counting import totals
from ..counting.counted_run import CountedRun
from ..errors import InputError, of_kind
from ..roofline.devices import Device, find_device
from ..units import amount, read_tokens
from .per_token import per_token


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The GPU-hours of training on ``tokens``: ``flops_per_token`` are 2 x MACs of forward and backward, ``peak`` is that of
    the device in FLOP/s in ``dtype``. ``six_nd_hours`` are the same with 6 x ``params`` FLOPs a token."""

    tokens: float
    flops_per_token: float
    device: Device
    dtype: str
    peak: float
    mfu: float
    params: int

    @property
    def hours(self) -> float:
        return self.flops_per_token * self.tokens / (self.mfu * self.peak) / 3600

    @property
    def six_nd_hours(self) -> float:
        return 6 * self.params * self.tokens / (self.mfu * self.peak) / 3600

    def __str__(self) -> str:
        at = f"({self.mfu:g} MFU x {amount(self.peak, 'FLOP/s')} of {self.device.name} in {self.dtype}) / 3600"
        return (
            f"{self.hours:,.0f} GPU-hours = {amount(self.flops_per_token, 'FLOPs')}/token x {self.tokens:.4g} tokens / {at}\n"
            f"{self.six_nd_hours:,.0f} GPU-hours by 6ND, with N = {self.params:,} parameters: "
            f"{self.six_nd_hours / self.hours - 1:+.1%}"
        )


def training_run(
    counted_run: CountedRun,
    tokens: float | str,
    device: str | Device | None,
    mfu: float,
    tokens_per_step: int | None,
) -> TrainingRun:
    """Return the training run of which a counted run is one step; see :meth:`~fxflops.report.report.Report.training_run`."""
    from ..roofline.traffic import compute_dtype  # it loads torch

    if device is None:
        raise InputError(f"training_run() needs the card that trains: training_run({tokens!r}, 'H100')")
    if isinstance(tokens, str):
        try:
            tokens = float(read_tokens(tokens))
        except ValueError as error:
            raise InputError(f"training_run(): tokens {error}") from None
    if not (tokens > 0 and 0 < mfu <= 1):
        raise of_kind(
            InputError(f"training_run() needs tokens above 0 and an mfu from 0 to 1, not {tokens!r}, {mfu!r}"),
            ValueError,
        )
    model, params = counted_run.run.model, totals.params(counted_run)
    backward_macs = totals.backward_macs(counted_run)
    if not backward_macs or not params:
        raise InputError(f"no backward pass of {model} was counted", advice="counted backward")
    hardware = find_device(device)
    largest_product = max(counted_run.counted, key=lambda counted: counted.macs)
    dtype = compute_dtype(largest_product.call)
    flops_per_step = 2 * (counted_run.forward.macs + backward_macs)
    flops_per_token = flops_per_step / per_token(counted_run, tokens_per_step).tokens
    return TrainingRun(tokens, flops_per_token, hardware, dtype, hardware.peak(dtype), mfu, params)

"""Find the FLOPs of one model call in training, forward and backward. The FLOPs come from a count of the call or from a closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..api import count
from ..model.modules import parameters_of
from ..model.pytree import is_training
from ..records import Counted, Spec
from ..report.report import Report
from ..roofline.devices import Device
from ..roofline.measured_peaks import device_for
from ..roofline.traffic import compute_dtype
from ..roofline.utilization import seconds_at_peak, warn_if_busy
from ..run.environment import environment_of
from ..symbolic.forms import ClosedForm

MODEL, RECOMPUTED = ("forward", "gradient", "backward"), ("recompute",)


class Work(NamedTuple):
    """The FLOPs of a model call in forward and backward, and the FLOPs that checkpointing recomputes. A multiply-accumulate is 2 FLOPs.

    ``seconds`` and ``recomputed_seconds`` are the times that a device needs for these FLOPs, each operation at the peak for its own dtype.
    ``missing`` lists the operations without a formula.
    """

    flops: int
    recomputed: int
    seconds: float
    recomputed_seconds: float
    missing: tuple[str, ...] = ()


class LossOf(nn.Module):
    """A wrapper of a model. If the model's output contains a loss, the wrapper returns only the loss, so that the backward pass starts from
    the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = is_training(model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.model(*args, **kwargs)
        loss = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
        return out if loss is None else loss


def work_of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str | Device) -> Work:
    """Count a call of the model in its current mode and under the current autocast, with a backward pass if gradients are enabled.

    ``device`` is a name, a Device, or "auto" for the model's device. Raises the errors of :func:`fxflops.count`.
    """
    tensors = (*parameters_of(model), *args, *kwargs.values())
    backward = torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)
    report = count(LossOf(model), args, kwargs, mode="as_is", backward=backward)
    return work_in(report, device)


def work_in(report: Report, device: str | Device) -> Work:
    """Return the work that a report counted, with its time at the peaks of ``device``."""
    counted = report.counted
    dtypes = (compute_dtype(each.call) for each in counted if each.macs)
    found, _ = device_for(device, report.environment.device, dtypes)
    warn_if_busy(found)
    model, again = ([each for each in counted if each.call.phase in phases] for phases in (MODEL, RECOMPUTED))
    missing = tuple(each.op for each in report.missing)
    return Work(_flops(model), _flops(again), seconds_at_peak(model, found), seconds_at_peak(again, found), missing)


def _flops(counted: list[Counted]) -> int:
    return 2 * sum(each.macs for each in counted)


def work_by_form(
    form: ClosedForm, sizes: Mapping[str, Any], parameters: Sequence[torch.Tensor], device: str | Device
) -> Work:
    """Return the work that a closed form of the model gives for these sizes.

    Every operation is assumed to run in the dtype of autocast. Without autocast, it is assumed to run in the narrowest floating-point dtype
    of the parameters.

    Raises ClosedFormError for sizes outside the form's domain.
    """
    narrowest = min((p for p in parameters if p.is_floating_point()), key=lambda p: p.dtype.itemsize)
    place = narrowest.device
    is_cast = torch.is_autocast_enabled(place.type)
    dtype = Spec((), torch.get_autocast_dtype(place.type) if is_cast else narrowest.dtype).dtype_name
    found, _ = device_for(device, environment_of(place, "", False).device, [dtype])
    warn_if_busy(found)
    peak = found.peak(dtype)
    phase = "training" if torch.is_grad_enabled() else "forward"
    flops = 2 * form.evaluate("macs", phase=phase, **sizes)
    has_again = phase == "training" and "recompute" in form.phases
    again = 2 * form.evaluate("macs", phase="recompute", **sizes) if has_again else 0
    return Work(flops, again, flops / peak, again / peak)

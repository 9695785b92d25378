"""The observer of a model on meta: it runs the kernels that the model's device would choose, and tracks the tensors that
they make on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..model.pytree import tensors_given
from ..ops._rules import STORED
from ..ops.shapes import rule_for, shape_of
from ..records import Operation
from ..records.tensors import spec_of
from ..torch_internals import OpOverload, batch_norm_backward, is_any_autocast_enabled
from .autocast import AutocastOfAbsentGpu, open_regions
from .device_kernels import BY_NAME, DeviceKernels
from .dtypes import check_dtypes
from .meta_results import RESULTS
from .modes import dispatch_mode_on
from .observe import Observer


class MetaObserver(Observer):
    """The observer of a model whose tensors are replaced by meta tensors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self._device_mirror is not None
        self._device_kernels = DeviceKernels(self._device_mirror.device)

    def switch_on(self) -> None:
        super().switch_on()
        if self._device_kernels.is_absent():
            self._modes.enter_context(AutocastOfAbsentGpu())

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_operator = isinstance(func, OpOverload) and func not in BY_NAME
        is_whole = not is_operator and (self._in_call or self._inside_leaf())
        if not (is_whole and self._makes(func, args, kwargs)):
            return super()._run(func, args, kwargs)
        return self._run_tracked(super()._run, func, args, kwargs)

    def _kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtypes = [tensor.dtype for tensor in tensors_given((args, kwargs)) if tensor.is_meta]
        if len({*dtypes}) > 1 and not self._may_cast():
            check_dtypes(func, dtypes, self._registry, self._device_kernels.device.type)
        out = self._device_kernels.run(func, args, kwargs)
        if out is not NotImplemented:
            return out
        if not isinstance(func, OpOverload):
            return self.stopwatch.run(func, args, kwargs)
        if func in RESULTS:
            return RESULTS[func](*args, **kwargs)
        out = super()._kernel(func, args, kwargs)
        if func is batch_norm_backward and not args[-1][0]:  # meta's kernel makes a gradient that no device's makes
            return None, *out[1:]
        rule, saved = STORED.get(func.name(), (None, False))
        if rule is not None and (torch.is_grad_enabled() or not saved):
            tensors_given(out)[-1].untyped_storage().resize_(rule(*spec_of(args)))
        return out

    def _run_transformed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self._device_kernels.run(func, args, kwargs)
        return super()._run_transformed(func, args, kwargs) if out is NotImplemented else out

    def _may_cast(self) -> bool:
        """Return whether autocast is on; of a model on meta, also where torch has turned it off, as it lacks that device."""
        assert self._mirror is not None
        return is_any_autocast_enabled() or (self._mirror.is_of_meta and open_regions() > 0)

    def _makes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a call may make more tensors than its result."""
        tensors, rule = tensors_given((args, kwargs)), rule_for(func)
        if rule is None:
            return bool(tensors)
        operation = Operation("", func, spec_of(args), spec_of(kwargs), None)
        lying, device = [(tensor.shape, tensor.stride()) for tensor in tensors], self._device_kernels.device.type
        found = shape_of(rule, operation, lying, device)
        return found is None or found[2] != ()  # the last are tensors that live only within the call

    def _run_tracked(self, run: Callable[..., Any], *args: Any) -> Any:
        """Run a call with its operators observed as parts of it, so that the tensors they make are tracked."""
        with self._within(True, self._in_node), dispatch_mode_on(self.aten):
            return run(*args)

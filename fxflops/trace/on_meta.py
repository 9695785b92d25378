"""The observer of a model on meta: it runs the kernels that the model's device would choose, and hears of every tensor that a
composite makes on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..model.pytree import tensors_given
from ..ops.shapes import rule_for, shape_of
from ..records import Operation, spec_of
from ..torch_internals import OpOverload
from .device_kernels import DeviceKernels
from .modes import dispatching
from .observe import Observer


class MetaObserver(Observer):
    """The observer of a model whose tensors have mirrors on meta."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self._device_mirror is not None
        self._chosen = DeviceKernels(self._device_mirror.device, self._noting)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(func, OpOverload) or not (self._whole or self._inside_leaf()) or not _makes(func, args, kwargs):
            return super()._run(func, args, kwargs)
        return self._heard(super()._run, func, args, kwargs)

    def _kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self._chosen.run(func, args, kwargs)
        if out is not NotImplemented:
            return out
        return super()._kernel(func, args, kwargs) if isinstance(func, OpOverload) else func(*args, **kwargs)

    def _heard(self, run: Callable[..., Any], *args: Any) -> Any:
        """What it returns; the tensors that it makes on the way are parts of it."""
        with self._marked(True, self._noted), dispatching(self.aten):
            return run(*args)


def _makes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call on meta may make more tensors than its shape rule tells."""
    tensors, rule = tensors_given((args, kwargs)), rule_for(func)
    if not any(tensor.is_meta for tensor in tensors):
        return False
    if rule is None or rule.passing is None:
        return rule is None
    asked = Operation("", func, spec_of(args), spec_of(kwargs), None)
    told = shape_of(rule, asked, [(tensor.shape, tensor.stride()) for tensor in tensors])
    return told is None or told[2] != ()

"""Keep the values that the ``build`` of a simulated rank computes from constants alone, such as stochastic depth rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..model.pytree import tensors_given
from ..ops._traits import UNINITIALIZED
from ..torch_internals import disable_current_modes, fake_tensors, tree_map

MOST = 2**14
"""The most elements that a tensor with kept values may have: keeping e.g. a table of positions would cost time and memory."""
UNKNOWN = {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}
"""Tags of operators whose results depend on more than constants, or that change an argument's layout in place."""
OF_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operators that fake tensors refuse because their results depend on values."""


class Constants:
    """The storages of fake tensors whose values are known, each with a real storage that has the values.

    An operator also runs on real tensors if all its tensors have known values, or if it takes no tensors. After any other
    operator, the values of the tensors that the operator may have written to are unknown.
    """

    def __init__(self, mode: Any) -> None:
        self._mode, self._fake = mode, fake_tensors()[0]
        self._values: dict[int, tuple[Any, Any]] = {}  # keeps the storages alive, so that no address is reused

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_fakes: Callable[[], Any]) -> Any:
        """Return an operator's result on fake tensors; if the result depends on values, compute it from the constants."""
        tensors = tensors_given((args, kwargs))
        may_write = func.namespace != "aten" or func._schema.is_mutable
        can_compute = (
            func.namespace == "aten" and not UNKNOWN.intersection(func.tags) and func._schema.name not in UNINITIALIZED
        )
        if not can_compute or not all(self._is_known(tensor, may_write) for tensor in tensors):
            out = on_fakes()
            self._forget(tensors if may_write else [])
            return out
        if tensors and OF_VALUES.intersection(func.tags):
            real = self._computed(func, args, kwargs)
            out = tree_map(lambda part: self._mode.from_tensor(part) if isinstance(part, torch.Tensor) else part, real)
        else:
            out = on_fakes()
            if any(tensor.numel() > MOST or tensor.device.type != "cpu" for tensor in tensors_given(out)):
                self._forget(tensors if may_write else [])
                return out
            real = self._computed(func, args, kwargs)
        for fake, value in zip(tensors_given(out), tensors_given(real), strict=True):
            self._keep(fake, value)
        return out

    def _is_known(self, tensor: torch.Tensor, may_write: bool) -> bool:
        if type(tensor) is torch.Tensor:  # such as the numbers passed to torch.tensor
            return not may_write and tensor.device.type == "cpu" and tensor.numel() <= MOST
        is_plain = type(tensor) is self._fake and tensor.layout is torch.strided and not tensor.is_quantized
        if not is_plain or tensor.is_conj() or tensor.is_neg():
            return False
        storage = tensor.untyped_storage()
        storage_and_values = self._values.get(storage._cdata)
        return storage_and_values is not None and storage_and_values[1].nbytes() == storage.nbytes()

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return an operator's result on the real tensors."""
        with disable_current_modes(), torch.no_grad():
            real_args, real_kwargs = tree_map(self._real, (args, kwargs))
            return func(*real_args, **real_kwargs)

    def _real(self, tensor: Any) -> Any:
        """Return a real tensor with the values of a fake tensor; real tensors share memory if their fake tensors share a storage.

        Any other argument is returned unchanged (a real tensor as a copy).
        """
        if type(tensor) is not self._fake:
            return tensor.clone() if isinstance(tensor, torch.Tensor) else tensor
        real = self._values[tensor.untyped_storage()._cdata][1]
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(real, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _keep(self, fake: Any, values: torch.Tensor) -> None:
        """Keep a fake tensor's values if the real tensor has the same layout in memory."""
        storage, storage_of_values = fake.untyped_storage(), values.untyped_storage()
        layouts = [(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype) for tensor in (fake, values)]
        if layouts[0] == layouts[1] and storage.nbytes() == storage_of_values.nbytes():
            self._values[storage._cdata] = storage, storage_of_values
        else:
            self._forget([fake])

    def _forget(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            if tensor.layout is torch.strided:
                self._values.pop(tensor.untyped_storage()._cdata, None)

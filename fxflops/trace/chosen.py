"""Attention's kernel on the meta device: the one that torch would choose where the model's tensors are.

``scaled_dot_product_attention`` takes a fused kernel where one takes its arguments. On meta it takes none: its backward pass
would be that of plain matrix products, which keep all the weights of the attention and count other operations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ..structure import fill, template_of, tensors_in
from ..torch_internals import TorchDispatchMode, disable_current_modes, fake_tensors

COMPOSITES = frozenset({F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default})
FUSED = "aten::_scaled_dot_product_"


class Step(NamedTuple):
    """One operator: its arguments, with holes for the tensors ``given``, and the tensors that it made, by number."""

    operator: Any
    template: Any
    given: list[int]
    made: list[int]


class Chosen:
    """Runs on meta what a call of a composite dispatches on ``device``, which is asked of torch: of fake tensors there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[Any, tuple[list[Step], int] | None] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that has a backward pass of its own there; NotImplemented for any other."""
        if func not in COMPOSITES or not torch.is_grad_enabled():
            return NotImplemented
        template, tensors = template_of((args, kwargs))
        if not any(tensor.requires_grad for tensor in tensors) or not all(tensor.is_meta for tensor in tensors):
            return NotImplemented
        forms = tuple((tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in tensors)
        key = repr(template), forms, _allowed()
        if key not in self._known:
            self._known[key] = self._steps_of(func, template, tensors)
        found = self._known[key]
        if found is None:
            return NotImplemented
        steps, result = found
        values = dict(enumerate(tensors))
        for step in steps:
            args, kwargs = fill(step.template, *(values[number] for number in step.given))
            values.update(zip(step.made, tensors_in(step.operator(*args, **kwargs)), strict=True))
        return values[result]

    def _steps_of(self, func: Any, template: Any, tensors: list[torch.Tensor]) -> tuple[list[Step], int] | None:
        """The operators that such a call dispatches, and which tensor it returns; None where no fused one is among them."""
        FakeTensor, FakeTensorMode = fake_tensors()
        with disable_current_modes():
            plain = [tensor.detach() for tensor in tensors]
        with disable_current_modes(), FakeTensorMode() as mode:
            fakes = [
                FakeTensor(mode, alone, self._device).requires_grad_(tensor.requires_grad)
                for alone, tensor in zip(plain, tensors, strict=True)
            ]
            args, kwargs = fill(template, *fakes)
            with _Steps(fakes) as seen:
                out = func(*args, **kwargs)
        result = seen.numbers.get(id(out))
        is_fused = any(step.operator.name().startswith(FUSED) for step in seen.steps)
        return (seen.steps, result) if is_fused and result is not None else None


class _Steps(TorchDispatchMode):
    """The operators dispatched meanwhile; ``numbers`` are those of the tensors, by id."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Step] = []
        self.numbers = {id(tensor): number for number, tensor in enumerate(given)}
        self._held = list(given)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        template, tensors = template_of((args, kwargs or {}))
        given, made = [self.numbers[id(tensor)] for tensor in tensors], tensors_in(out)
        if func is torch.ops.aten.detach.default:  # autograd's own way to return a view
            self.numbers[id(out)] = given[0]
        else:
            first = len(self._held)
            self.numbers.update((id(tensor), first + i) for i, tensor in enumerate(made))
            self.steps.append(Step(func, template, given, list(range(first, first + len(made)))))
        self._held += made
        return out


def _allowed() -> tuple[bool, ...]:
    """Which kernels torch may choose from: ``torch.nn.attention.sdpa_kernel``."""
    cuda: Any = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()

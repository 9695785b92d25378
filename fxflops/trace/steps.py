"""The steps of a run: its outermost module calls, with their inputs and their KV caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..model.pytree import caches_in, device_of, walk
from ..records import BACKWARD, FORWARD, Step
from ..torch_internals import DisableTorchFunction
from .observer_state import SharedState, ThreadPart, ThreadState
from .recording import Recording

INPUT_DEPTH = 6
"""How many levels of nested containers and objects are searched for a model's inputs."""


class Steps(ThreadPart):
    """The steps that one thread makes: the outermost calls of modules.

    ``number`` is the number of the running step, None between steps. ``arguments`` are the step's arguments.
    """

    def __init__(self, shared: SharedState, state: ThreadState, recording: Recording) -> None:
        super().__init__(shared, state)
        self._recording = recording
        self.number: int | None = None
        self.first_call = 0
        self.arguments: Any = None

    def begin(self, args: Any, kwargs: Any) -> None:
        """Prepare for an outermost module call."""
        self.first_call, self.arguments = len(self._calls), (args, kwargs)
        self._shared.has_called = True
        if not self._stack.in_backward():
            self._state.times.end(BACKWARD)  # still open if the backward pass raised
            with self._lock:
                self._note_inputs((args, kwargs))
                self.number = len(self._shared.steps)
                self._shared.steps.append(
                    Step("", range(self.first_call, self.first_call), self._state.times.next_step())
                )
            self._state.times.begin(FORWARD)

    def end(self, module: nn.Module, out: Any) -> None:
        """Record which calls an outermost module call contains, even if the module raised, and label its KV cache."""
        if self.number is None:  # the module call was part of a backward pass
            return
        with DisableTorchFunction():
            self._storages.label(caches_in(out), "cache")
            self._shared.ran_on = self._shared.ran_on or device_of(out)
        steps, calls = self._shared.steps, range(self.first_call, len(self._calls))
        path = self._shared.observed_modules[id(module)].path
        steps[self.number] = steps[self.number]._replace(name=path, calls=calls)
        self.number = None
        self._recording.check_reads(None, module, (out,), {})

    def _note_inputs(self, step_arguments: Any) -> None:
        """Track the inputs of an outermost module call that existed before the run, and label them as inputs.

        Inputs that a call outside all models made, such as a collated batch, get the same label; another model's output does not.
        """
        with DisableTorchFunction():
            tensors = [part for _, part in walk(step_arguments, INPUT_DEPTH) if issubclass(type(part), torch.Tensor)]
            self._storages.add_given([tensor for tensor in tensors if not isinstance(tensor, torch.nn.Parameter)])
            self._storages.label(caches_in(step_arguments), "cache")  # before "inputs": a storage keeps its first label
            made_outside = [tensor for tensor in tensors if self._is_made_outside(self._storages.maker_of(tensor))]
            self._storages.label([("", tensor) for tensor in made_outside], "inputs")

    def _is_made_outside(self, call_number: int) -> bool:
        """Return whether the call with this number ran in the forward phase, outside all modules."""
        if not 0 <= call_number < len(self._calls) or self._calls[call_number].phase != FORWARD:
            return False
        # Steps are sorted by their calls, so only the last step that began before this call can contain it.
        for step in reversed(self._shared.steps):
            if step.calls and step.calls.start <= call_number:
                return call_number not in step.calls
        return True

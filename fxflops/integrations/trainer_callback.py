"""A callback that uses the meter in transformers' Trainer."""

from __future__ import annotations

import inspect
from typing import Any

from transformers.trainer_callback import CallbackHandler, TrainerCallback

from .meter import Meter


class MeterCallback(TrainerCallback):  # type: ignore[misc]
    """Add the values of a :class:`Meter` to the logs of transformers' Trainer, which go to TensorBoard, W&B, MLflow and the console.

    >>> Trainer(model, arguments, train_dataset=data, callbacks=[MeterCallback()])  # doctest: +SKIP

    The measured time includes training steps and the loading of their data, but not evaluation, saving and logging. The tokens are the
    tokens in the model's inputs, including padding. Keyword arguments are passed to the Meter.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.meter: Meter | None = None
        """The Meter; None before training begins."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.meter = Meter(model, **self._settings)
        frame = inspect.currentframe()
        handler = frame and frame.f_back and frame.f_back.f_locals.get("self")
        if isinstance(handler, CallbackHandler):
            # The trainer passes a log to one callback after the other. Move this callback to the front: other callbacks then see the values that it adds.
            handler.callbacks.sort(key=lambda callback: callback is not self)
        self.meter.clock.start()

    def on_step_begin(self, *_: Any, **kwargs: Any) -> None:
        self._running.watch(tokens=True)

    def on_step_end(self, *_: Any, **kwargs: Any) -> None:
        meter = self._running
        meter.unwatch()
        meter.clock.lap()
        meter.clock.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        if "loss" in logs:
            figures = self._running.read()
            logs.update(figures)
            state.log_history[-1].update(figures)
        self._running.clock.start()

    def on_evaluate(self, *_: Any, **kwargs: Any) -> None:
        self._running.clock.start()

    on_predict = on_save = on_evaluate

    @property
    def _running(self) -> Meter:
        assert self.meter is not None
        return self.meter

"""A callback that uses the meter in Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from .meter import Meter


class LightningMeter(Callback):  # type: ignore[misc]
    """Log the values of a :class:`Meter` by ``log_dict``, every ``log_every_n_steps`` steps of Lightning's Trainer.

    >>> Trainer(callbacks=[LightningMeter()], log_every_n_steps=10).fit(module, data)  # doctest: +SKIP

    Calls of the LightningModule and of its children are counted. The measured time includes training batches and their loading, but not
    validation and saving. Keyword arguments are passed to the Meter.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._steps = self._global_step = 0
        self._is_interrupted = True
        self.meter: Meter | None = None
        """The Meter; None before training begins."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.meter = Meter(pl_module, **self._settings)
        self._steps = self._global_step = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._is_interrupted:
            self._running.clock.start()
            self._is_interrupted = False
        self._running.watch()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        meter = self._running
        meter.unwatch()
        meter.add_tokens(batch)
        meter.clock.lap()
        if trainer.global_step > self._global_step:  # no new step while gradients are accumulated
            self._global_step = trainer.global_step
            self._steps += 1
            if trainer.log_every_n_steps and not self._steps % trainer.log_every_n_steps:
                pl_module.log_dict(meter.read())
        meter.clock.start()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._is_interrupted = True

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        self._is_interrupted = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.meter is not None:
            self.meter.unwatch()

    @property
    def _running(self) -> Meter:
        assert self.meter is not None
        return self.meter

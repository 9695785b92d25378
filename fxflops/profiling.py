"""profile: a ``with`` block around any code; what the models in it do is counted as it runs."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .conventions import Convention, find_convention
from .counting import check_attention
from .errors import FxflopsError, InputError
from .inputs import checked_model
from .inventory import Inventory
from .ledger import Named
from .ops import BASE
from .outcome import environment_of
from .own_run import Watch, gradients_of, states_of
from .records import FormulaFunction
from .report import Report
from .run import uncompiled


class profile:
    """Counts whatever runs inside: ``generate()``, any method of a model, a pipeline, a step of one's own loop.

    >>> with profile(model) as p:          # doctest: +SKIP
    ...     model.generate(**batch)        # doctest: +SKIP
    >>> print(p.report)                    # doctest: +SKIP

    The code runs once, as it is, on the real tensors, in the modes that are set: nothing is undone or timed. Memory is
    that of live tensor storages.

    Args:
        models: an ``nn.Module``, or several, as a sequence or a mapping of names (``pipeline.components``; what is no
            module in it is left out); None where there is none. Calls are told apart by their modules; those outside of them
            are counted too.
        optimizer: the ``torch.optim.Optimizer`` (or several) whose steps are told apart from the forward. The backward
            pass, and what gradient checkpointing computes again in it, are told apart without being named.
        convention, attention, formulas, strict: as for :func:`fxflops.analyze`.

    Raises InputError for models that are none.
    """

    def __init__(
        self,
        models: nn.Module | Sequence[nn.Module] | Mapping[str, Any] | None = None,
        *,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        convention: str | Convention = "fxflops",
        attention: str = "dense",
        formulas: Mapping[Any, FormulaFunction] | None = None,
        strict: bool = False,
    ) -> None:
        self._model = _one_model(models)
        self._optimizers = _optimizers(optimizer)
        self._convention = find_convention(convention)
        self._attention = check_attention(attention)
        self._table = BASE.derive(formulas)
        self._strict = strict
        self._report: Report | None = None
        self._raised: type[BaseException] | None = None

    @property
    def report(self) -> Report:
        """The Report of what ran inside, once the block is left."""
        if self._report is None:
            why = f"the block raised {self._raised.__name__}, so there is no report" if self._raised else ""
            raise FxflopsError(why or "the report is there once the with block is left")
        return self._report

    def __enter__(self) -> profile:
        params, inventory = [*self._model.named_parameters()], Inventory(self._model)
        held: dict[str, Named] = {
            "params": [*params, *inventory.packed],
            "buffers": [*self._model.named_buffers()],
            "gradients": gradients_of(params),
            "optimizer": self._optimizer_states(),
        }
        self._paths = {m: path for m, path in inventory.paths.items() if not isinstance(m, _Several)}
        self._watch = Watch(self._paths, self._table, backward=True)
        self._ledger, self._observer, tape = self._watch.ledger, self._watch.observer, self._watch.tape
        assert tape is not None
        for category, tensors in held.items():
            self._ledger.add_all([tensor for _, tensor in tensors])
            self._ledger.label(tensors, category)
        self._open = ExitStack()

        def stepping(_: object, *__: object) -> None:
            self._label_gradients()  # the next zero_grad() lets go of them
            tape.optimizing = True

        def stepped(_: object, *__: object) -> None:
            tape.optimizing = False

        for optimizer in self._optimizers:
            self._open.callback(optimizer.register_step_pre_hook(stepping).remove)
            self._open.callback(optimizer.register_step_post_hook(stepped).remove)
        self._open.enter_context(uncompiled())
        self._open.enter_context(self._observer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, traceback)
        self._raised = kind
        if error is not None:
            return
        self._label_gradients()
        self._ledger.label(self._optimizer_states(), "optimizer")
        parts = [*self._model.children()] if isinstance(self._model, _Several) else [self._model]
        name = " + ".join(type(part).__name__ for part in parts) or "(no model)"
        device = next((parameter.device for parameter in self._model.parameters()), torch.device("cpu"))
        mode = ("train" if self._model.training else "eval") if parts else ""
        environment = environment_of(device, mode)
        run = self._watch.run(name, "", Inventory(self._model), environment, "storages", "profiled as it ran")
        run = replace(run, steps=tuple(self._steps(self._observer.steps)))
        report = Report(run, self._convention, self._table, weakref.ref(self._model), self._attention)
        self._report = report
        report.checked(self._strict)

    def _label_gradients(self) -> None:
        self._ledger.label(gradients_of(self._model.named_parameters()), "gradients")

    def _optimizer_states(self) -> list[tuple[str, torch.Tensor]]:
        return [state for optimizer in self._optimizers for state in states_of(optimizer)]

    def _steps(self, steps: Sequence[tuple[str, range]]) -> Iterator[tuple[str, range]]:
        """The calls of the models, named "prefill" and "decode n" where one generates, "step n" elsewhere."""
        numbers = Counter[str]()
        generating = {path for module, path in self._paths.items() if hasattr(module, "generate")}
        for path, calls in steps:
            number = numbers[path]
            numbers[path] += 1
            name = ("prefill" if number == 0 else f"decode {number}") if path in generating else f"step {number + 1}"
            yield f"{path} {name}".lstrip(), calls


def _optimizers(optimizer: Any) -> list[Optimizer]:
    given: list[Any] = (
        [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    )
    for each in given:
        if not isinstance(each, Optimizer):
            raise InputError(f"optimizer must be a torch.optim.Optimizer or several, not {type(each).__name__}")
    return given


class _Several(nn.ModuleDict):
    """Models that run together, under their names."""


def _one_model(models: Any) -> nn.Module:
    if models is None:
        return _Several()
    if isinstance(models, nn.Module) or not isinstance(models, Iterable):
        return checked_model(models)
    if isinstance(models, Mapping):
        named = {name: checked_model(model) for name, model in models.items() if isinstance(model, nn.Module)}
    else:
        named = {f"{type(model).__name__}_{i}": checked_model(model) for i, model in enumerate(models)}
    if not named:
        raise InputError(f"profile() needs a model, or several; there is no torch.nn.Module in {models!r:.80}")
    several = _Several()
    several._modules.update(named)  # not through the setter: a model's own attributes stay as they are
    several.training = any(model.training for model in named.values())
    return several

"""``profile``: a ``with`` block that counts the operations of the code in the block."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer
from torch.profiler import ProfilerAction

from .conventions import Convention, check_attention, find_convention
from .counting.steps import NO_MODEL
from .errors import FxflopsError, InputError, check_flags, of_kind, unknown_arguments, warn
from .model.callables import as_model, named_models
from .model.inputs import checked_model, is_compiled
from .model.modules import all_modules
from .model.optimizer import optimizer_mismatch
from .model.pytree import is_training
from .ops.packages import registry_with
from .records import FormulaFunction
from .report.report import Report
from .run.block import DETAILS, OPERATIONS, Block, Models, single_models
from .run.out_of_memory import add_memory_note

INSTEAD = """it counts the code in a with block,
  with fxflops.profile(model) as p:
      model(x)
  print(p.report)
to count one call of a model, use fxflops.count(model, x) or fxflops.analyze(model, x); for thop's profile, use fxflops.adapters.thop.profile"""
"""The advice for a ``profile`` that was called with another function's arguments."""
NOT_ENDED = "there is no report until the with block has ended"
BLOCK = """use it as a block, with fxflops.profile(model) as p: ...
for start_profile() and stop_profile(), use fxflops.adapters.deepspeed.FlopsProfiler(model) or fxflops.adapters.flops_profiler"""


class profile:
    """Count the code in a ``with`` block: e.g. ``generate()`` or another method of a model, a pipeline, or a training step.

    >>> with profile(model) as p:          # doctest: +SKIP
    ...     model.generate(**batch)        # doctest: +SKIP
    >>> print(p.report)                    # doctest: +SKIP

    The code runs once, unchanged, on real tensors and in the models' current modes, and nothing is undone. Steps, phases, modules and
    operations are timed. On a CPU they are timed by the clock, on an accelerator by events. Profiling overhead is excluded from these times
    and reported separately. Memory is the bytes of live tensor storages.

    Args:
        models: the models whose modules the report shows: an ``nn.Module``, a sequence of modules, a mapping from names to modules (such as
            ``pipeline.components``; values that are not modules are skipped), or a pipeline or function from which modules can be reached.
            None is for code without a model. Calls outside the models are counted, too.
        optimizer: a ``torch.optim.Optimizer``, or a list of them, that does not step in the block. The memory then includes its state.
            Optimizers that step in the block are found automatically, with their earlier state. So are backward passes and checkpoint's
            recomputation.
        convention, attention, formulas, strict: as for :func:`fxflops.analyze`.
        schedule: which iterations of a loop to observe, to save overhead in a long run: the result of ``torch.profiler.schedule(wait=,
            warmup=, active=)``. The loop must call :meth:`step` after each iteration.
        detail: "operations" observes everything. "modules" times module calls and steps, but observes nothing else. "steps" times only
            the outermost calls of the models, i.e. the steps. With "modules" or "steps", the loop runs almost at full speed, but the report
            has no counts and no memory.
        lines: whether to sample which lines of your code take the time (``report.by_line()``). Sampling lines needs ``pip install
            pyinstrument``. With ``detail="steps"``, the loop runs about as fast as without a profile.

    Raises InputError for models that are not modules. :class:`profile` also raises InputError if inputs are passed, because the code in the
    block runs the models itself.
    """

    def __init__(
        self,
        models: nn.Module | Sequence[nn.Module] | Mapping[str, Any] | None = None,
        *inputs: NoReturn,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        convention: str | Convention = "fxflops",
        attention: str = "dense",
        formulas: Mapping[Any, FormulaFunction] | None = None,
        strict: bool = False,
        schedule: Callable[[int], ProfilerAction] | None = None,
        detail: str = "operations",
        lines: bool = False,
        **unknown: NoReturn,
    ) -> None:
        further: tuple[Any, ...] = inputs
        if any(isinstance(each, Optimizer) for each in further):
            raise of_kind(InputError("pass the optimizer by name: profile(model, optimizer=optimizer)"), TypeError)
        if any(isinstance(each, nn.Module) for each in further):
            raise of_kind(InputError("pass several models in a list: profile([one, other])"), TypeError)
        if inputs or unknown:
            argument_names = profile.__init__.__kwdefaults__ or ()
            raise unknown_arguments("profile", unknown, argument_names, INSTEAD)
        check_flags(strict=strict, lines=lines)
        self._samples_lines = lines
        self._model = models_as_one(models)
        given_models: Iterable[Any] = [models]
        if isinstance(models, (Mapping, Sequence)):
            given_models = models.values() if isinstance(models, Mapping) else models
        self._name = " + ".join(type(part).__name__ for part in single_models(self._model)) or NO_MODEL
        self._compiled = any(is_compiled(all_modules(model)) for model in given_models if isinstance(model, nn.Module))
        self._optimizers = _optimizers(optimizer)
        # The block adds to this list. This object owns the list, because it may be used for several blocks, one after the other.
        self._met_optimizers: list[weakref.ref[Any]] = []
        for own_optimizer in self._optimizers:
            if mismatch := optimizer_mismatch(own_optimizer, self._model):
                warn(f"{mismatch}; the reported memory includes the optimizer's state")
        self._convention = find_convention(convention)
        self._attention = check_attention(attention)
        self._registry = registry_with(formulas)
        self._strict = strict
        if not (schedule is None or callable(schedule)):
            raise InputError(
                "schedule must be a function of the iteration's number, such as "
                f"torch.profiler.schedule(wait=1, warmup=1, active=3); got {schedule!r:.80}"
            )
        self._schedule = schedule
        if detail not in DETAILS:
            raise InputError(f"unknown detail {detail!r:.80}; expected one of {', '.join(map(repr, DETAILS))}")
        self._detail = detail
        # The state of the current or the last block, which __enter__ sets anew.
        self._iteration = 0
        self._block: Block | None = None
        self._report: Report | None = None
        self._why = NOT_ENDED

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise of_kind(InputError(f"a profile is not a function to call: {INSTEAD}"), TypeError)

    def __repr__(self) -> str:
        state = "its with block is running" if self._block is not None else self._why if self._report is None else ""
        return f"<profile of {self._name}: {state}>" if state else f"<profile: {self._report!r} in p.report>"

    def __str__(self) -> str:
        return repr(self) if self._report is None or self._block is not None else str(self._report)

    @property
    def report(self) -> Report:
        """The Report of the block, or of the last block if there were several.

        Raises FxflopsError before the block has ended, and if nothing in the block was recorded.

        If the block raised an exception, the report covers the code that ran before it: ``report.trace`` says so, and
        ``report.trace_reason`` has the exception.
        """
        if self._report is None:
            raise FxflopsError(self._why)
        return self._report

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name: str) -> NoReturn:
            where = f"; the report has it: p.report.{name}" if hasattr(Report, name) else f"; {BLOCK}"
            raise AttributeError(f"a profile has no attribute {name!r}{where}", name=name, obj=self)

    def __enter__(self) -> profile:
        if self._block is not None:
            raise InputError("the with block of this profile is running: give an inner block a profile of its own")
        self._iteration, self._report, self._why = 0, None, NOT_ENDED
        self._block = block = Block(
            self._model,
            self._registry,
            detail=self._detail,
            optimizers=self._optimizers,
            met_optimizers=self._met_optimizers,
            samples_lines=self._samples_lines,
        )
        try:
            self._begin_iteration()
        except BaseException:  # the schedule raised, or an instrument could not start: __exit__ will not be called
            self._block = None
            block.end(*sys.exc_info())
            block.release()
            raise
        return self

    def step(self) -> None:
        """Mark the end of one loop iteration and the start of the next iteration, like ``step`` of torch.profiler.

        Raises FxflopsError outside the block.
        """
        if self._block is None:
            raise FxflopsError(
                "call p.step() only inside the block, at the end of each iteration: with fxflops.profile(model) as p: ..."
            )
        self._iteration += 1
        self._begin_iteration()

    def _begin_iteration(self) -> None:
        """Begin an iteration: turn the instruments on or off, depending on the schedule."""
        assert self._block is not None
        action = ProfilerAction.RECORD if self._schedule is None else self._schedule(self._iteration)
        if action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE):
            self._block.begin_iteration(self._iteration)
        else:
            self._block.turn_off()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._block
        assert block is not None
        block.end(kind, error, traceback)
        self._block = (
            None  # users may keep this object for its report; the block's instruments would keep the run alive
        )
        try:
            self._make_report(block, kind, error)
        finally:
            block.release()

    def _make_report(self, block: Block, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Make the report of a block that has ended. If the block raised an exception, the report covers the code that ran before it."""
        if isinstance(error, torch.OutOfMemoryError):
            add_memory_note(error, block.device, block.live_tensors(), self._detail == OPERATIONS, block.failed)
        began_at_end = block.is_empty and block.first_iteration == self._iteration > 0
        if block.first_iteration is None or began_at_end:
            self._why = f"the schedule recorded none of the block's {self._iteration} iterations, so there is no report"
            self._why += "" if self._iteration else ": the loop must call p.step() at the end of each iteration"
            return
        if kind is None:
            self._report = self._report_of(block).checked(self._strict)
            return
        raised, text = kind.__name__, str(error).partition("\n")[0]
        try:
            self._report = self._report_of(block, raised, f"{raised}: {text}" if text else raised)
        except Exception as failed:  # the user's own exception is the one to see
            problem = f"{type(failed).__name__}: {failed}"
            self._why = f"there is no report: the block raised {raised}, and fxflops could not report on the code before this error: {problem}"

    def _report_of(self, block: Block, raised: str = "", why: str = "") -> Report:
        """Return the report. ``raised`` is the class name of the exception that ended the block; "" if there was no exception."""
        run = block.finished(self._name, compiled=self._compiled, iterations=self._iteration, raised=raised, why=why)
        return Report(run, self._convention, self._registry, weakref.ref(self._model), self._attention)


def _optimizers(optimizer: Any) -> list[Optimizer]:
    optimizers: list[Any] = (
        [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    )
    for each in optimizers:
        if not isinstance(each, Optimizer):
            raise InputError(f"optimizer must be a torch.optim.Optimizer or a list of them; got {type(each).__name__}")
    return optimizers


def models_as_one(models: Any) -> nn.Module:
    """Return the model, or for several models one module that contains them. Values of a mapping that are not modules are skipped."""
    if models is None:
        return Models()
    is_called = callable(models) and not isinstance(models, nn.Module | type)
    if isinstance(models, nn.Module | str | type) or not (isinstance(models, Iterable) or is_called):
        return checked_model(models)
    if is_called:
        models = as_model(models).roots
        if "" in models:
            return checked_model(models[""])
    named = named_models(models)
    if not named:
        raise InputError(f"profile() needs one or more models, but found no torch.nn.Module in {models!r:.80}")
    several = Models()
    several._modules.update(named)  # add_module() rejects names such as "keys", or with a dot
    several.training = any(map(is_training, named.values()))
    return several

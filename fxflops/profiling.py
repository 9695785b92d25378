"""``profile``: a ``with`` block that counts the operations of the code in the block."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial, update_wrapper
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer
from torch.profiler import ProfilerAction

from .conventions import Convention, check_attention, find_convention
from .counting.steps import NO_MODEL, OUTSIDE
from .errors import FxflopsError, InputError, check_flags, of_kind, unknown_arguments, warn
from .meters.code_lines import by_time, lines_sampled
from .model.callables import as_model, named_models
from .model.inputs import checked_model, is_compiled
from .model.inventory import Inventory
from .model.modules import ByIdentity, all_modules, children_of, named_buffers, named_parameters
from .model.optimizer import gradients_of, optimizer_mismatch, states_of
from .model.pytree import is_training
from .model.snapshot import attribute_tensors
from .ops.packages import registry_with
from .records import FormulaFunction, Step
from .report.report import Report
from .run.block import DETAILS, OPERATIONS, STEPS, BlockWatch
from .run.out_of_memory import add_memory_note
from .run.uncompiled import uncompiled
from .trace.data_loaders import data_loaders_watched

INSTEAD = """it counts the code in a with block,
  with fxflops.profile(model) as p:
      model(x)
  print(p.report)
to count one call of a model, use fxflops.count(model, x) or fxflops.analyze(model, x); for thop's profile, use fxflops.adapters.thop.profile"""
"""The advice for a ``profile`` that was called with another function's arguments."""
BLOCK = """use it as a block, with fxflops.profile(model) as p: ...
for start_profile() and stop_profile(), use fxflops.adapters.deepspeed.FlopsProfiler(model) or fxflops.adapters.flops_profiler"""


class profile:
    """Count the code in a ``with`` block: e.g. ``generate()`` or another method of a model, a pipeline, or a training step.

    >>> with profile(model) as p:          # doctest: +SKIP
    ...     model.generate(**batch)        # doctest: +SKIP
    >>> print(p.report)                    # doctest: +SKIP

    The code runs once, unchanged, on real tensors and in the models' current modes, and nothing is undone. Steps, phases, modules and
    operations are timed: by the clock on a CPU, by events on an accelerator. Profiling overhead is excluded from these times and reported
    separately. Memory is the bytes of live tensor storages.

    Args:
        models: the models whose modules the report shows: an ``nn.Module``, a sequence of modules, a mapping from names to modules (such as
            ``pipeline.components``; values that are not modules are skipped), or a pipeline or function from which modules can be reached.
            None is for code without a model. Calls outside the models are counted, too.
        optimizer: a ``torch.optim.Optimizer``, or a list of them, that does not step in the block, but whose state is to be shown in the
            memory. Optimizers that step in the block are found automatically, with their earlier state. So are backward passes and
            checkpoint's recomputation.
        convention, attention, formulas, strict: as for :func:`fxflops.analyze`.
        schedule: which iterations of a loop to observe, to save overhead in a long run: the result of ``torch.profiler.schedule(wait=,
            warmup=, active=)``. The loop must call :meth:`step` after each iteration.
        detail: "operations" observes everything. "modules" only times module calls and steps, and "steps" only times calls of the models
            themselves. With "modules" or "steps" the loop runs almost at full speed, the report has no counts and no memory, and only the
            steps of ``optimizer`` are timed as optimizer steps.
        lines: whether to sample which lines of your code take the time (``report.by_line()``). This needs ``pip install pyinstrument``.
            With ``detail="steps"``, the loop runs about as fast as without a profile.

    Raises InputError for models that are not modules, and for inputs: the block runs the models.
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
        if inputs or unknown:
            argument_names = profile.__init__.__kwdefaults__ or ()
            raise unknown_arguments("profile", unknown, argument_names, INSTEAD)
        check_flags(strict=strict, lines=lines)
        self._samples_lines = lines
        self._model = one_model(models)
        self._single_models = children_of(self._model) if isinstance(self._model, Models) else [self._model]
        given_models: Iterable[Any] = [models]
        if isinstance(models, (Mapping, Sequence)):
            given_models = models.values() if isinstance(models, Mapping) else models
        self._name = " + ".join(type(part).__name__ for part in self._single_models) or NO_MODEL
        self._compiled = any(is_compiled(all_modules(model)) for model in given_models if isinstance(model, nn.Module))
        self._optimizers = _optimizers(optimizer)
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
        self._iteration = 0
        self._is_on = self._is_open = False
        self._report: Report | None = None
        self._why = "there is no report until the with block has ended"

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise of_kind(InputError(f"a profile is not a function to call: {INSTEAD}"), TypeError)

    def __repr__(self) -> str:
        state = "its with block is running" if self._is_open else self._why if self._report is None else ""
        return f"<profile of {self._name}: {state}>" if state else f"<profile: {self._report!r} in p.report>"

    def __str__(self) -> str:
        return repr(self) if self._report is None or self._is_open else str(self._report)

    @property
    def report(self) -> Report:
        """The Report of the block. Raises FxflopsError before the block has ended, and if nothing in the block was recorded.

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
        params, inventory = [*named_parameters(self._model)], Inventory(self._model)
        self._packed = inventory.packed  # kept alive as long as the weights that they represent
        tensors_of = {
            "params": [*params, *self._packed],
            "buffers": [*named_buffers(self._model)],
            "gradients": gradients_of(params),
            "optimizer": self._optimizer_states(),
        }
        self._paths = ByIdentity((m, path) for m, path in inventory.paths.items() if not isinstance(m, Models))
        model_ids = {*map(id, self._single_models)}
        observes_all = self._detail != STEPS
        observed_paths = ByIdentity((m, path) for m, path in self._paths.items() if observes_all or id(m) in model_ids)
        # The first parameter says which clock times the block. Parameters on meta are loaded when needed.
        loaded = [param for _, param in params if param.device.type != "meta"]
        parameter = next(iter(loaded), params[0][1] if params else None)
        self._watch = BlockWatch(observed_paths, self._registry, parameter, self._detail, self._optimizers)
        self._storages, self._observer = self._watch.storages, self._watch.observer
        self._observer.phases.on_step, self._observer.phases.after_step = self._before_step, self._label_states
        self._labelled = weakref.WeakSet[Any]()
        self._workers: set[int] = set()
        self._lines: dict[tuple[str, str], float] = {}
        self._generated: list[tuple[str, range]] = []
        self._iterations: dict[int, int] = {}
        for category, tensors in tensors_of.items():
            self._storages.add_held(tensors, category)
        self._storages.add_given(attribute_tensors(inventory.paths), "buffers")
        self._until_end = ExitStack()
        for module, path in self._paths.items():
            if callable(getattr(type(module), "generate", None)):
                self._until_end.callback(_Generate(module, partial(self._noting_generate, path)).leave)
        self._is_open = True
        self._switch()
        return self

    def step(self) -> None:
        """Mark the end of a loop iteration and the start of the next iteration, as torch.profiler's ``step`` does.

        Raises FxflopsError outside the block.
        """
        if not self._is_open:
            raise FxflopsError(
                "call p.step() only inside the block, at the end of each iteration: with fxflops.profile(model) as p: ..."
            )
        self._iteration += 1
        self._switch()

    def _switch(self) -> None:
        """Begin an iteration: turn the observer on or off, depending on the schedule."""
        action = ProfilerAction.RECORD if self._schedule is None else self._schedule(self._iteration)
        is_recorded = action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if self._is_on and not is_recorded:
            self._turn_off()
        elif is_recorded and not self._is_on:
            self._while_on = ExitStack()
            self._while_on.enter_context(uncompiled(load=True))
            self._while_on.enter_context(self._observer)
            if self._samples_lines:
                self._while_on.enter_context(lines_sampled(self._lines))
            self._while_on.enter_context(data_loaders_watched(self._observer.times, self._workers))
            self._observer.times.resume()
            self._is_on = True
        if is_recorded:
            steps = self._observer.steps
            self._iterations[len(steps)] = self._iteration
            first = len(self._observer.calls)
            self._observer.times.settle()
            steps.append(Step("", range(first, first), self._observer.times.next_step()))

    def _turn_off(self, *error: Any) -> None:
        self._observer.times.settle()
        self._while_on.__exit__(*(error or (None, None, None)))
        self._is_on = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_on:
            self._turn_off(kind, error, traceback)
        self._until_end.__exit__(kind, error, traceback)
        self._is_open = False
        try:
            self._close(kind, error)
        finally:
            # Users may keep this object for its report; its instruments would keep the run alive.
            self._watch.release()
            del self._labelled, self._watch, self._storages, self._observer, self._paths, self._packed, self._until_end

    def _close(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Make the report of a block that has ended. If the block raised an exception, the report covers the code that ran before it."""
        if isinstance(error, torch.OutOfMemoryError):
            self._label_gradients()
            live = self._storages.history(self._observer.calls).at_end
            is_observed = self._detail == OPERATIONS
            failed = self._observer.failed if is_observed else None
            add_memory_note(error, self._watch.device, live, is_observed, failed)
        first_iteration = min(self._iterations.values(), default=None)
        is_empty = not (self._observer.calls or self._observer.scopes)
        began_at_end = is_empty and first_iteration == self._iteration > 0
        if first_iteration is None or began_at_end:
            self._why = f"the schedule recorded none of the block's {self._iteration} iterations, so there is no report"
            self._why += "" if self._iteration else ": the loop must call p.step() at the end of each iteration"
            return
        if kind is None:
            self._report = self._final_report().checked(self._strict)
            return
        raised, text = kind.__name__, str(error).partition("\n")[0]
        try:
            self._report = self._final_report(raised, f"{raised}: {text}" if text else raised)
        except Exception as failed:  # the user's own exception is the one to see
            problem = f"{type(failed).__name__}: {failed}"
            self._why = f"there is no report: the block raised {raised}, and making the report of the code before it raised {problem}"

    def _final_report(self, raised: str = "", why: str = "") -> Report:
        """Return the report. ``raised`` is the class name of the exception that ended the block; "" if there was no exception."""
        self._label_gradients()
        self._storages.label(self._optimizer_states(), "optimizer")
        self._storages.hold_written(self._observer.calls)
        self._storages.hold_earlier()
        mode = ("train" if is_training(self._model) else "eval") if self._single_models else ""
        if mode == "eval" and any(step.parts.get("optimizer") for step in self._observer.steps):
            mode = "train and eval"  # a loop that ends with an evaluation
        run = self._watch.finished(self._name, mode, self._compiled, Inventory(self._model), self._steps, raised, why)
        run = replace(
            run, workers=tuple(sorted(self._workers)), lines=by_time(self._lines) if self._samples_lines else None
        )
        return Report(run, self._convention, self._registry, weakref.ref(self._model), self._attention)

    def _before_step(self, optimizer: Optimizer) -> None:
        """Label gradients and optimizer state in memory when an optimizer begins a step."""
        self._label_gradients()  # now, since the next zero_grad() frees them
        if all(optimizer is not stepped for stepped in self._stepped()):
            # An optimizer of an inner loop must die with that loop, so neither it nor its state may be kept alive here.
            self._met_optimizers.append(weakref.ref(optimizer))
            self._storages.add_held(states_of(optimizer), "optimizer")

    def _label_states(self, optimizer: Optimizer) -> None:
        """Label the state that an optimizer's first step has created. Do it now: at the end of the block the optimizer may no longer exist."""
        if optimizer not in self._labelled:
            self._labelled.add(optimizer)
            self._storages.label(states_of(optimizer), "optimizer")

    @contextmanager
    def _noting_generate(self, path: str) -> Iterator[None]:
        """Record which model calls are made by one call of ``generate``."""
        first = len(self._observer.steps)
        try:
            yield
        finally:
            self._generated.append((path, range(first, len(self._observer.steps))))

    def _label_gradients(self) -> None:
        self._storages.label(gradients_of(named_parameters(self._model)), "gradients")

    def _optimizer_states(self) -> list[tuple[str, torch.Tensor]]:
        return [state for optimizer in self._stepped() for state in states_of(optimizer)]

    def _stepped(self) -> list[Any]:
        """Return the optimizers that the user passed, and the other optimizers that have stepped and still exist."""
        met = [optimizer for reference in self._met_optimizers if (optimizer := reference()) is not None]
        return [*self._optimizers, *met]

    def _steps(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Yield the steps with their names.

        In a loop that calls :meth:`step`, each iteration is "step n". Otherwise, the model calls in a ``generate`` are "prefill" and
        "decode n". In a second ``generate`` they are "generate 2 prefill" and "generate 2 decode n". All other model calls are "step n".
        """
        in_loop, iteration = self._iteration > 0, 0
        generated = reversed([*enumerate(self._generated)])  # a nested generate ends first, and overrides the outer one
        generation_of: dict[int, int] = {}
        for call_of_generate, (path, model_calls) in generated:
            generation_of |= {i: call_of_generate for i in model_calls if steps[i].name == path}
        numbers, generations = Counter[Any](), dict[str, list[int]]()
        for i, step in enumerate(steps):
            path = step.name
            iteration = self._iterations.get(i, iteration)
            if in_loop or i in self._iterations:
                is_over = i == len(steps) - 1 and i in self._iterations
                yield step._replace(name=f"step {iteration + 1}" if in_loop and not is_over else OUTSIDE)
                continue
            generation = generation_of.get(i)
            number = numbers[path, generation]
            numbers[path, generation] += 1
            name = f"step {number + 1}"
            if generation is not None:
                path_generations = generations.setdefault(path, [])
                if generation not in path_generations:
                    path_generations.append(generation)
                order = path_generations.index(generation)
                again = f"generate {order + 1} " if order else ""
                name = again + (f"decode {number}" if number else "prefill")
            yield step._replace(name=f"{path} {name}".lstrip())


class _Generate:
    """A replacement for a module's ``generate`` until :meth:`leave`. Each call runs in the context ``during()``.

    The replacement has the attributes of ``generate``. In a copied or pickled module, it becomes ``generate`` itself.
    """

    def __init__(self, module: Any, during: Callable[[], AbstractContextManager[None]]) -> None:
        self._module = module
        self._during = during
        self._thread = threading.get_ident()
        self._own_generate = {name: value for name, value in vars(module).items() if name == "generate"}
        update_wrapper(self, module.generate, updated=())
        vars(module)["generate"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._during() if threading.get_ident() == self._thread else nullcontext():
            return self.__wrapped__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["__wrapped__"], name)

    def __reduce__(self) -> Any:
        return getattr, (self._module, "generate")

    def leave(self) -> None:
        """Restore the module's own ``generate``."""
        del vars(self._module)["generate"]
        vars(self._module).update(self._own_generate)


def _optimizers(optimizer: Any) -> list[Optimizer]:
    optimizers: list[Any] = (
        [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    )
    for each in optimizers:
        if not isinstance(each, Optimizer):
            raise InputError(f"optimizer must be a torch.optim.Optimizer or a list of them; got {type(each).__name__}")
    return optimizers


class Models(nn.ModuleDict):
    """Several models that are profiled together, by name. A report shows this class as their common root."""


def one_model(models: Any) -> nn.Module:
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

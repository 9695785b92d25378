"""The numbers of a run: totals, and sums by module, operator, dtype and step. What a Report is without its views."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import nn

from .. import ops
from ..conventions import Convention, find_convention
from ..counting.counts import count_calls, is_users, overlooked
from ..counting.executed import executed, remark
from ..counting.rollup import (
    Item,
    ModuleRow,
    OperatorRow,
    Sums,
    by_module,
    by_module_and_operator,
    by_operator,
    check_phase,
    items_of,
    together,
)
from ..counting.uncounted import IMPORT, NO_FORMULA, Missing, missing_in, recipe_for
from ..errors import InputError, near
from ..meters.history import LiveTensor, Moment
from ..meters.nodes import Node, Timing
from ..model.inventory import Params
from ..records import PARTS, PHASES, Call, Counted
from ..render.exports import Rows, Table
from ..run.outcome import Environment, Memory, Run
from .rows import NO_OPERATION, module_and_operator_rows, module_rows, operations, operator_rows

OUTSIDE = "(outside)"
PLAIN = "fxflops"
"""The convention that adds nothing to formulas."""


class Totals:
    """A counted run and what it adds up to.

    Counts are ints; ``latency`` and ``total_time`` seconds, memory bytes; what was not measured is None.
    """

    def __init__(
        self,
        run: Run,
        convention: Convention,
        registry: ops.FormulaRegistry,
        model: weakref.ref[nn.Module] | None,
        attention: str = "dense",
        counted: tuple[Counted, ...] | None = None,
        known: Mapping[int, Counted] | None = None,
    ) -> None:
        """For a run read from a file ``model`` may be None, and ``counted`` is what it was counted as; ``known`` are the
        counts, by the number of their call, of formulas that no file can hold: a user's."""
        self._run = run
        self.attention = attention
        self._convention = convention
        self._registry = registry
        self._model = model
        self._known = known or {}
        self._items_by_phase: dict[str, list[Item]] = {}
        self._rows_by_phase: dict[str, dict[str, ModuleRow]] = {}
        self.counted: tuple[Counted, ...] = counted or count_calls(
            run.calls,
            convention,
            registry,
            self._module_at,
            attention,
            run.scopes,
            {(module.path, function) for module in run.modules for function in module.keeps},
            self._known,
        )
        for sentence in overlooked(self.counted, registry, convention):
            warnings.warn(sentence, stacklevel=4)

    # Totals

    @property
    def total_flops(self) -> int:
        """FLOPs of all counted calls under the convention; a lower bound where the report is not complete."""
        return sum(each.flops for each in self._forward)

    @property
    def total_macs(self) -> int:
        """Multiply-accumulates of the contractions: the same under every convention."""
        return sum(each.macs for each in self._forward)

    @property
    def total_gradient_flops(self) -> int | None:
        """FLOPs of gradients taken inside the forward (forces, derivatives of a network), of ``total_flops``; None where
        none were."""
        return self._flops_of("gradient")

    @property
    def total_backward_flops(self) -> int | None:
        """FLOPs of the backward pass; None where none ran."""
        return self._flops_of("backward")

    @property
    def total_backward_macs(self) -> int | None:
        """Multiply-accumulates of the backward pass; None where none ran."""
        return self._modules_of("backward")[""].total.macs if "backward" in self._phases else None

    @property
    def total_recompute_flops(self) -> int | None:
        """FLOPs of forward work that gradient checkpointing did again in the backward pass; None where none ran."""
        return self._flops_of("recompute") or (0 if "backward" in self._phases else None)

    @property
    def total_optimizer_flops(self) -> int | None:
        """FLOPs of the optimizer's step; None where none was seen."""
        return self._flops_of("optimizer")

    @property
    def total_training_flops(self) -> int | None:
        """FLOPs of forward and backward: the model's work in a training step. Recomputation, which is no work of the
        model's, and the optimizer are apart. None where no backward pass ran."""
        backward = self.total_backward_flops
        return None if backward is None else self.total_flops + backward

    @property
    def total_int_ops(self) -> int:
        """Operations on integers and booleans, which are no FLOPs."""
        return sum(each.int_ops for each in self._forward)

    @property
    def total_activations(self) -> int:
        """Elements that the contractions put out."""
        return sum(item.sums.activations for item in self._items("forward"))

    @property
    def total_params(self) -> int:
        """Elements of the parameters, shared ones once."""
        return self.params.total

    @property
    def params(self) -> Params:
        return self._run.params

    @property
    def latency(self) -> float | None:
        """Seconds of the model's own run, not instrumented: the median."""
        return None if self.timing is None else self.timing.median

    @property
    def timing(self) -> Timing | None:
        """The same with its spread."""
        return self._run.latency

    @property
    def backward_timing(self) -> Timing | None:
        """Seconds of the backward pass of the model's own run; None where none was timed."""
        return self._run.backward_latency

    @property
    def total_time(self) -> float | None:
        """Seconds of all nodes of the graph together: the sum of their medians."""
        timings = [node.timing.median for node in self.nodes if node.timing is not None]
        return sum(timings) if timings else None

    @property
    def max_memory(self) -> int:
        """Bytes at the peak of the model's own run, parameters, buffers and inputs included."""
        return self._run.peak

    @property
    def memory(self) -> Memory:
        return self._run.memory

    @property
    def live_at_peak(self) -> tuple[LiveTensor, ...]:
        """The tensor storages alive at the peak of the model's own run, largest first, with who made them and what they
        are held for."""
        return self._run.history.at_peak

    @property
    def timeline(self) -> tuple[Moment, ...]:
        """The live bytes, by category, after each call of the model's own run."""
        return self._run.history.timeline

    # What there is

    @property
    def calls(self) -> tuple[Call, ...]:
        return self._run.calls

    @property
    def scopes(self) -> tuple[Any, ...]:
        """The module calls of the model's own run."""
        return self._run.scopes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The graph's nodes as they ran; none where the model ran without a graph."""
        return self._run.nodes

    @property
    def model(self) -> str:
        """The model's class name."""
        return self._run.model

    @property
    def inputs(self) -> str:
        return self._run.inputs

    @property
    def trace(self) -> str:
        """How the calls were seen: "symbolic trace", "recorded trace", "observed on meta" (or "fake tensors", "real tensors")."""
        return self._run.trace

    @property
    def trace_reason(self) -> str:
        """Why the model was recorded rather than traced symbolically, or counted on real tensors; "" where it was not."""
        return self._run.trace_reason

    @property
    def environment(self) -> Environment:
        return self._run.environment

    @property
    def convention(self) -> str:
        return self._convention.name

    @property
    def complete(self) -> bool:
        """Whether every call had a formula or is declared to compute nothing."""
        return not self.missing

    @cached_property
    def missing(self) -> tuple[Missing, ...]:
        """The ops without a formula, in order of appearance."""
        return missing_in(self.counted)

    def recipe(self) -> str:
        """The lines to paste that count the missing ops, each as one operation per output element, which is a guess; ""
        for a complete report."""
        first: dict[str, Call] = {}
        for each in self.counted:
            if each.missing.startswith(NO_FORMULA):
                first.setdefault(each.call.op, each.call)
        return "\n".join([IMPORT, *map(recipe_for, first.values())]) if first else ""

    # Sums

    # ``phase`` is "forward", "backward", "recompute", "optimizer", or "gradient": what gradients taken inside the forward
    # are of it.

    # All of them are mappings, shown as tables, with ``to_csv``, ``to_dataframe`` and their like.

    def by_module(self, phase: str = "forward") -> Rows[ModuleRow]:
        """Each module's total and own sums by its path; "" is the model. All are 0 for a phase that did not run."""
        return module_rows(self._modules_of(check_phase(phase)))

    def by_operator(self, phase: str = "forward") -> Rows[OperatorRow]:
        """Each operator's sums by its name, largest FLOPs first.

        ``(no op)`` is the time of a graph's nodes that compute nothing: an input, an index into a tuple, a shape.
        """
        return operator_rows(by_operator(self._items(check_phase(phase))), "operator")

    def by_dtype(self, phase: str = "forward") -> Rows[OperatorRow]:
        """The sums by dtype of the output ("f32", "bf16", ...)."""
        return operator_rows(by_operator(self._items(check_phase(phase)), lambda item: item.dtype), "dtype")

    def by_module_and_operator(self, phase: str = "forward") -> Rows[Rows[OperatorRow]]:
        """For each module's path, the operators of its subtree."""
        return module_and_operator_rows(by_module_and_operator(self._items(check_phase(phase)), self._run.modules))

    def by_step(self) -> Rows[OperatorRow]:
        """The sums of each call of the model under :func:`fxflops.profile`, in run order; what was done outside comes last.

        The steps of ``generate()`` are "prefill" and "decode 1", "decode 2" ...; any others "step 1" and so on, each
        with the name of its model where there are several.
        """
        steps: dict[str, list[Sums]] = {name: [] for name, _ in self._run.steps}
        inside = {i: name for name, calls in self._run.steps for i in calls}
        for i, (counted, item) in enumerate(zip(self.counted, items_of(self.counted), strict=True)):
            phase = counted.call.phase
            name = inside.get(i, OUTSIDE) if phase in PARTS["forward"] else f"({phase})"
            steps.setdefault(name, []).append(item.sums)
        sums = {name: together(found) for name, found in steps.items()}
        return operator_rows({name: OperatorRow(name, row.calls, row) for name, row in sums.items()}, "step")

    @cached_property
    def remarks(self) -> dict[Counted, str]:
        """What there is to say of calls of which torch ran other work than is counted: an einsum whose products opt_einsum ordered."""
        said = ((each, remark(each, run)) for each, run in zip(self.counted, self._executed, strict=True))
        return {each: sentence for each, sentence in said if sentence}

    @property
    def table(self) -> Table:
        """The operations in run order: what each is, where, on which shapes; MACs, FLOPs, seconds and bytes, raw.

        ``params`` are a leaf module's own, memory is that of the call's node; counts are None where no formula is known.
        """
        params = {module.path: module.params for module in self._run.modules}
        return operations(self.counted, self.nodes, params, self.remarks)

    def __getitem__(self, path: str) -> ModuleRow:
        """The module of this path: ``report["blocks.3"]``."""
        modules = self._modules_of("forward")
        if path not in modules:
            known = near(str(path), modules)
            raise InputError(f"{self.model} has no module {path!r}{known}; report.by_module() lists them")
        return modules[path]

    def _items(self, phase: str) -> list[Item]:
        """Every counted call of a phase, and as ``(no op)`` the time of the graph's nodes that made none."""
        if phase not in self._items_by_phase:
            items = [*items_of(counted for counted in self.counted if counted.call.phase in PARTS[phase])]
            for node in self.nodes if phase == "forward" else ():
                if not node.calls and node.timing is not None:
                    items.append(Item(node.path, NO_OPERATION, "", Sums(seconds=node.timing.median)))
            self._items_by_phase[phase] = items
        return self._items_by_phase[phase]

    def _modules_of(self, phase: str) -> dict[str, ModuleRow]:
        if phase not in self._rows_by_phase:
            calls = Counter(scope.path for scope in self.scopes)
            self._rows_by_phase[phase] = by_module(self._items(phase), self._run.modules, calls)
        return self._rows_by_phase[phase]

    @cached_property
    def _forward(self) -> list[Counted]:
        return [each for each in self.counted if each.call.phase in PARTS[PHASES[0]]]

    @cached_property
    def _executed(self) -> tuple[Counted, ...]:
        """The calls with the work that torch did for them."""
        return executed(self.counted, self.environment.einsum)

    @cached_property
    def _phases(self) -> list[str]:
        """Those that made calls."""
        seen = {each.call.phase for each in self.counted}
        return [phase for phase in PHASES if phase in seen]

    def _flops_of(self, phase: str) -> int | None:
        return self._modules_of(phase)[""].total.flops if phase in self._phases else None

    def _module_at(self, path: str) -> Any:
        """The live module, for a formula that reads it; where the model is gone, or in a file, what is known of it."""
        model = None if self._model is None else self._model()
        return SavedModule(path, self._settings.get(path, {})) if model is None else model.get_submodule(path)

    def _users_counts(self) -> dict[int, Counted]:
        """The counts of the user's formulas, by the number of their call: the same under every convention."""
        numbers = [i for i, call in enumerate(self.calls) if i not in self._known and is_users(call, self._registry)]
        counted = self.counted
        if numbers and self.convention != PLAIN:
            plain = find_convention(PLAIN)
            counted = count_calls(self.calls, plain, self._registry, self._module_at, self.attention, known=self._known)
        return {**self._known, **{i: counted[i] for i in numbers}}

    @cached_property
    def _settings(self) -> dict[str, Mapping[str, Any]]:
        return {call.path: call.settings for call in self.calls if isinstance(call.target, type)}


class SavedModule:
    """A module as its calls know it: its plain attributes, and the specs of its own tensors."""

    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._known = settings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._known:
            raise AttributeError(
                f"the report holds no {name!r} of the module {self._path!r}, and the model is gone: keep a reference to it, "
                f"or give it with the file, Report.load(path, model=model)"
            )
        return self._known[name]

"""fvcore's analyses: sums by operator and module. Handles count the nodes of a run."""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from ..api import count
from ..conventions import find_convention
from ..errors import InputError, of_kind
from ..model.inputs import checked_model
from ..model.modules import modules_of, submodule
from ..ops.packages import registry_with
from ..records import prefixes
from ..report.report import Report
from ..run.model_run import finished_run, observe_on_own_tensors
from ..run.request import Request
from ..run.running import prepared_subject
from ..trace.graph_recorder import GraphRecorder
from ._arguments import one_of, refuse_scripts
from ._fvcore_nodes import JitNode, nodes_of, python_ops
from ._fvcore_values import Value

Handle = Callable[[list[Value], list[Value]], Any]
T = TypeVar("T", bound="JitModelAnalysis")
Nodes = tuple[Report, list[tuple[JitNode, list[str]]]]
"""A report, and a list of the model's nodes; each node comes with the names of the modules that it belongs to."""
CONVENTION = "fvcore"


def charged(inputs: list[Value], outputs: list[Value]) -> int:
    """Mark an operator that the convention counts. The number for this operator is then read from the report. The handle of such an
    operator is never called."""
    raise NotImplementedError


def elements(inputs: list[Value], outputs: list[Value]) -> int:
    """out[*]: 1 per element of the first output."""
    return math.prod(outputs[0].type().sizes())


IGNORED = frozenset(
    f"aten::{name}"
    for name in """
    Int ScalarImplicit __and__ arange bitwise_not cat chunk clamp clamp_ constant_pad_nd contiguous copy_ detach dropout
    empty eq expand flatten floor floor_divide full full_like gather ge gt index index_put_ masked_fill max narrow
    new_empty new_full new_zeros nonzero ones permute relu relu_ remainder reshape roll select size slice split
    split_with_sizes squeeze stack t to transpose type_as unbind unsqueeze unsqueeze_ view zeros zeros_like
    """.split()
)
"""Operators that compute nothing or very little. fvcore does not list these operators as unsupported."""


@dataclass(frozen=True)
class Statistics:
    """The result of an analysis: for each module, the counts and the unsupported operators; and the set of modules that were not called."""

    counts: dict[str, Counter[str]]
    unsupported_ops: dict[str, Counter[str]]
    uncalled: set[str]


class JitModelAnalysis:
    """Add up the numbers that handles return for the operators in one run of a model. The model runs at the first query.

    ``inputs`` is a tuple of positional inputs, or a single input.
    """

    _handles: ClassVar[Mapping[str, Handle]] = {}

    def __init__(self, model: nn.Module, inputs: Tensor | tuple[Tensor, ...]) -> None:
        self._model = checked_model(model, AttributeError)
        self._inputs = inputs
        first, others = modules_of(self._model)
        self._aliases = {path: path for path in first.values()} | others
        self._op_handles = dict(self._handles)
        self._ignored_ops = set(IGNORED)
        self._stats: Statistics | None = None
        self._runs: dict[str, Nodes] = {}
        self._enable_warn_unsupported_ops = self._enable_warn_uncalled_mods = True
        self._warn_trace, self._ancestor_mode = "no_tracer_warning", "owner"

    # Queries

    def total(self, module_name: str = "") -> int:
        """Return the sum over all operators in a module, by default in the whole model."""
        return sum(self.by_operator(module_name).values())

    def by_operator(self, module_name: str = "") -> Counter[str]:
        """Return the sums of a module by operator: ``Counter({"conv": 194616, "linear": 80040})``."""
        return self._analyze().counts[self.canonical_module_name(module_name)]

    def by_module(self) -> Counter[str]:
        """Return the sum for each module, by name; the name of the model is ``""``."""
        return Counter({path: sum(counts.values()) for path, counts in self._analyze().counts.items()})

    def by_module_and_operator(self) -> dict[str, Counter[str]]:
        """Return, for the name of each module, the sums by operator."""
        return self._analyze().counts

    def unsupported_ops(self, module_name: str = "") -> Counter[str]:
        """Return how often a module calls each operator that has no handle; leave out ignored operators."""
        return self._analyze().unsupported_ops[self.canonical_module_name(module_name)]

    def uncalled_modules(self) -> set[str]:
        """Return the modules that called no operator: they are unused, have no operators, or were not called as modules."""
        return self._analyze().uncalled

    def canonical_module_name(self, name: str) -> str:
        """Return the name under which a module is counted. If the module has several names, return the first."""
        if name not in self._aliases:
            missing = f"{type(self._model).__name__} has no module {name!r}; by_module() lists all modules"
            raise of_kind(InputError(missing), KeyError)
        return self._aliases[name]

    # Settings

    def set_op_handle(self: T, *args: Any, **kwargs: Handle | None) -> T:
        """Count operators by your own handles. Pass names and handles in turn, or pass handles as keyword arguments.

        A handle takes two lists of :class:`Value`, the operator's inputs and outputs, and returns a number or a Counter. If the
        handle is None, the operator is no longer listed as unsupported. As in fvcore, None does not remove a handle that the
        operator already has.

        >>> FlopCountAnalysis(model, inputs).set_op_handle("aten::sigmoid", lambda inputs, outputs: 100)  # doctest: +SKIP
        """
        if len(args) % 2:
            raise of_kind(
                InputError("set_op_handle() takes alternating names and handles; the last name has no handle"),
                TypeError,
            )
        for name, handle in [*zip(args[::2], args[1::2], strict=True), *kwargs.items()]:
            if handle is None:
                self._ignored_ops.add(name)
            else:
                self._op_handles[name] = handle
        self._stats = None
        return self

    def clear_op_handles(self: T) -> T:
        """Remove all handles, including fvcore's own."""
        self._op_handles, self._ignored_ops, self._stats = {}, set(IGNORED), None
        return self

    def copy(
        self, new_model: nn.Module | None = None, new_inputs: Tensor | tuple[Tensor, ...] | None = None
    ) -> JitModelAnalysis:
        """Return an analysis with the same handles and warning settings, but of another model or of other inputs.

        As in fvcore, ignored operators and the ancestor mode are not copied.
        """
        model = self._model if new_model is None else new_model
        return (
            JitModelAnalysis(model, self._inputs if new_inputs is None else new_inputs)
            .set_op_handle(**self._op_handles)
            .unsupported_ops_warnings(self._enable_warn_unsupported_ops)
            .uncalled_modules_warnings(self._enable_warn_uncalled_mods)
            .tracer_warnings(self._warn_trace)
        )

    def tracer_warnings(self: T, mode: str) -> T:
        """Set which warnings to show while the model runs: "all", "no_tracer_warning" or "none".

        "no_tracer_warning" has the same effect as "all" here, because torch.jit traces nothing.
        """
        self._warn_trace = one_of("mode", mode, ("all", "no_tracer_warning", "none"))
        return self

    def ancestor_mode(self: T, mode: str) -> T:
        """Choose which modules an operator is counted in.

        "owner": the module that calls the operator, and that module's ancestors. "caller": all modules whose forward is
        running. In fvcore, calling this method after the first query has no effect.
        """
        self._ancestor_mode, self._stats = one_of("mode", mode, ("owner", "caller")), None
        return self

    def unsupported_ops_warnings(self: T, enabled: bool) -> T:
        """Turn the log messages about :meth:`unsupported_ops` on or off."""
        self._enable_warn_unsupported_ops = enabled
        return self

    def uncalled_modules_warnings(self: T, enabled: bool) -> T:
        """Turn the log messages about :meth:`uncalled_modules` on or off."""
        self._enable_warn_uncalled_mods = enabled
        return self

    # The analysis

    def _analyze(self) -> Statistics:
        if self._stats is not None:
            return self._stats
        report, nodes = self._run()
        paths = dict.fromkeys(self._aliases.values())
        counts: dict[str, Counter[str]] = {path: Counter() for path in paths}
        unsupported: dict[str, Counter[str]] = {path: Counter() for path in paths}
        seen: set[str] = set()
        for node, modules in nodes:
            seen.update(modules)
            counted = self._count(node)
            if counted is None and node.kind in self._ignored_ops:
                continue
            sums, added = (unsupported, Counter({node.kind: 1})) if counted is None else (counts, counted)
            for path in modules:
                sums[path] += added
        self._stats = Statistics(counts, unsupported, set(paths) - self._with_callers(seen, report))
        self._log(self._stats)
        return self._stats

    def _count(self, node: JitNode) -> Counter[str] | None:
        """Return the count that a node's handle returns; None if the node has neither a handle nor a formula that the user registered."""
        of_formula = charged if node.is_by_user_formula and charged in self._op_handles.values() else None
        handle = self._op_handles.get(node.kind, of_formula)
        if handle is None:
            return None
        counted = node.flops if handle is charged else handle(node.inputs, node.outputs)
        if isinstance(counted, Counter):
            return counted
        is_conv = node.kind == "aten::_convolution" and handle in (charged, elements)
        return Counter({"conv" if is_conv else node.kind.rpartition("::")[2]: counted})

    def _run(self) -> Nodes:
        mode = self._ancestor_mode
        refuse_scripts("fvcore", self._model.modules(), RuntimeError)
        if mode not in self._runs:
            with warnings.catch_warnings():
                if self._warn_trace == "none":
                    warnings.simplefilter("ignore")
                self._runs[mode] = self._called() if mode == "caller" else self._owned()
        return self._runs[mode]

    def _owned(self) -> Nodes:
        report = count(self._model, self._inputs, mode="as_is", convention=CONVENTION, formulas=python_ops())
        return report, [(node, list(prefixes(node.path))) for node in nodes_of(report.counted)]

    def _called(self) -> Nodes:
        """Return the same nodes as ``_owned``, each with all modules whose forward was running when the node ran, as read from a recorded graph."""
        registry = registry_with(python_ops())
        with prepared_subject(self._model, self._inputs, None, Request("as_is")) as subject:
            recorder = GraphRecorder(subject.model, subject.rewound_inputs_by_name())
            observer = observe_on_own_tensors(subject, registry, recorder)
            run = finished_run(subject, observer, memory_source="storages", recorded_as="recorded trace")
        report = Report(run, find_convention(CONVENTION), registry, None)
        callers = {
            call: [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
            for node in recorder.graph().graph.nodes
            for call in recorder.call_ranges.get(node.name, ())
        }
        return report, [
            (node, list(dict.fromkeys(["", *callers.get(node.call, ())]))) for node in nodes_of(report.counted)
        ]

    def _with_callers(self, seen: set[str], report: Report) -> set[str]:
        """Return the set ``seen`` and the called modules that contain a module of ``seen``, under any of that module's names."""
        for path in sorted({scope.path for scope in report.scopes} - seen, key=len, reverse=True):
            inside = f"{path}." if path else ""
            if any(name.startswith(inside) and own in seen for name, own in self._aliases.items() if name != path):
                seen = {*seen, path}
        return seen

    def _log(self, statistics: Statistics) -> None:
        logger = logging.getLogger("fxflops.adapters.fvcore")
        for kind, times in statistics.unsupported_ops[""].items() if self._enable_warn_unsupported_ops else ():
            logger.warning("Unsupported operator %s encountered %d time(s)", kind, times)
        uncalled = sorted(path for path in statistics.uncalled if _has_forward(submodule(self._model, path)))
        if uncalled and self._enable_warn_uncalled_mods:
            logger.warning(
                "The following submodules of the model were never called during the trace of the graph. They may be "
                "unused, or they were accessed by direct calls to .forward() or via other python methods. In the latter "
                "case they will have zeros for statistics, though their statistics will still contribute to their parent "
                "calling module.\n%s",
                ", ".join(uncalled),
            )


def _has_forward(module: nn.Module) -> bool:
    """Return True if a module's forward computes something; the forwards of containers and nn.Identity compute nothing."""
    bare: Iterable[type[nn.Module]] = (nn.ModuleList, nn.ModuleDict, nn.Module, nn.Identity)
    return all(type(module).forward is not cls.forward for cls in bare)

"""A counted run whose sums are tables: each has the exports of :class:`~fxflops.render.exports.Tabular`."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ..conventions import title_of
from ..counting.counted_run import CountedRun
from ..counting.rollup import ModuleRow, OperatorRow, by_module_and_operator, by_operator, check_phase
from ..counting.steps import StepTime
from ..errors import InputError, near, no_calls
from ..records import PHASES, prefixes
from ..render.columns import MODULES, STEP_TIMES, titled
from ..render.exports import Rows, Table
from ..roofline.devices import Device
from .per_token import PerToken, per_token
from .rows import kernel_table, module_and_operator_rows, module_cells, operations, operator_rows, step_time_cells
from .training_run import TrainingRun, training_run


class TabledRun(CountedRun):
    """A counted run with the tables of its operations, modules, operators, dtypes and steps.

    Each method returns a mapping that prints as a table and has ``to_csv``, ``to_dataframe`` and the other exports.
    """

    @property
    def provenance(self) -> str:
        """The origin of the figures on one line: the name that was asked for, versions, date and machine."""
        return self.environment.provenance

    @property
    def rules(self) -> str:
        """The convention and, of a model with attention, how that is counted: "convention fxflops, attention dense"."""
        return f"convention {self.convention}" + (f", attention {self.attention}" if self._attends else "")

    @property
    def _title(self) -> str:
        return title_of(self.convention)

    @cached_property
    def _attends(self) -> bool:
        return any("attention" in call.op for call in self.calls)

    @property
    def name(self) -> str:
        """The model's class name, with the name that was asked for: "ResNet (timm:resnet18)"."""
        return f"{self.model} ({self.environment.asked})" if self.environment.asked else self.model

    def by_module(self, phase: str = "forward") -> Rows[ModuleRow]:
        """Return each module's total and own sums by its path; "" is the model.

        ``phase`` is "forward" (which includes "gradient"), "backward", "recompute" (forward work that gradient
        checkpointing does again), "optimizer" or "gradient" (gradients taken inside the forward). InputError for one in
        which no calls were made.
        """
        if not self._items(check_phase(phase)) and phase != PHASES[0]:
            raise no_calls(phase)
        return Rows(super().by_module(phase), "modules", titled(MODULES, self._title), module_cells, self.provenance)

    def by_operator(self, phase: str = "forward") -> Rows[OperatorRow]:
        """Return each operator's sums by its name, largest FLOPs first.

        ``(no op)`` is the time of graph nodes that compute nothing: an input, an index into a tuple, a shape.
        """
        return operator_rows(super().by_operator(phase), "operator", self._title, self.provenance)

    def by_dtype(self, phase: str = "forward") -> Rows[OperatorRow]:
        """Return the sums by the dtype of the output ("f32", "bf16", ...)."""
        rows = by_operator(self._items(check_phase(phase)), lambda item: item.dtype or "(no tensor)")
        return operator_rows(rows, "dtype", self._title, self.provenance)

    def by_module_and_operator(self, phase: str = "forward") -> Rows[Rows[OperatorRow]]:
        """Return, for each module's path, the sums of each operator in its subtree."""
        rows = by_module_and_operator(self._items(check_phase(phase)), self._run.modules)
        return module_and_operator_rows(rows, self._title, self.provenance)

    def by_step(self) -> Rows[OperatorRow]:
        """Return the sums of each call of the model under :func:`fxflops.profile`, in run order; work outside them is last.

        The steps of ``generate()`` are "prefill", "decode 1", "decode 2" ...; other steps are "step 1", "step 2" ... If
        there are several models, each step has the name of its model. In a loop that calls ``p.step()`` the steps are its
        iterations. What follows until the next step has rows of its own: "step 1 backward", "step 1 optimizer". A report
        of one call has one step.
        """
        return operator_rows(super().by_step(), "step", self._title, self.provenance)

    def step_times(self) -> Rows[StepTime]:
        """Return where the time of each step of a profiled block went; the steps add up to ``block_time``.

        A step lasts from the beginning of one call of the model, or iteration, to that of the next. "between" is the time
        outside the model, the backward pass and the optimizer: of loading data, computing a loss, choosing a token.
        """
        return Rows(super().step_times(), "step times", STEP_TIMES, step_time_cells, self.provenance)

    @property
    def table(self) -> Table:
        """The operations in run order, with module, shapes, MACs, FLOPs, seconds and bytes as raw values.

        ``params`` are a leaf module's own, at its first call; memory is that of the call's node; counts are None if no formula is known.
        """
        params = {module.path: module.params for module in self._run.modules}
        table = operations(self.counted, self.nodes, params, self.remarks)
        times = (("latency", self.latency), ("backward_latency", self._backward_latency), ("unsteady", self.unsteady))
        whole = tuple((key, value) for key, value in times if value)
        return replace(table, columns=titled(table.columns, self._title), provenance=self.provenance, whole=whole)

    @property
    def _backward_latency(self) -> float | None:
        return None if self.backward_timing is None else self.backward_timing.median

    @property
    def kernels(self) -> Table:
        """The kernels of each operator, the longest first, of ``analyze(kernels=True)`` and of a trace."""
        return replace(kernel_table(self.counted, self.nodes), provenance=self.provenance)

    def training_run(
        self, tokens: float, device: str | Device, mfu: float = 0.4, *, tokens_per_step: int | None = None
    ) -> TrainingRun:
        """Return the GPU-hours of training on so many tokens, with the formula in its text, beside those by 6ND.

        ``mfu`` is the share of the device's peak that is reached, in the dtype of the largest product of the step that was
        counted. ``tokens_per_step`` is as ``tokens`` for :meth:`per_token`. Raises InputError if no backward pass was counted.
        """
        return training_run(self, tokens, device, mfu, tokens_per_step)

    def per_token(self, tokens: int | None = None) -> PerToken:
        """Return the cost of a token: FLOPs, MACs and seconds of the run over the number of ``tokens``.

        By default they are the integers that the calls of the model were given; of ``generate()`` under
        :func:`fxflops.profile`, those of the prompt and each that was fed back. Raises InputError if there are none.
        """
        return per_token(self, tokens)

    def __getitem__(self, path: str) -> ModuleRow:
        """Return the row of the module at this path: ``report["blocks.3"]``. InputError for an unknown path."""
        modules = self._modules_of("forward")
        if path not in modules:
            known = self._first_path(str(path)) or near(str(path), modules)
            raise InputError(f"{self.model} has no module {path!r}{known}; report.by_module() lists them")
        return modules[path]

    def __contains__(self, path: object) -> bool:
        return path in self._modules_of("forward")

    __iter__ = None  # which would otherwise ask for the modules 0, 1, 2 ...

    def _first_path(self, path: str) -> str:
        """Return a note on the path under which a module that has several is listed; "" for another."""
        first, aliases = path, self._run.aliases
        for _ in path.split("."):  # each time the end that may have an alias is shorter
            alias = next((each for each in prefixes(first) if each in aliases), "")
            first = f"{aliases.get(alias, '')}{first[len(alias) :]}".lstrip(".")
        return f": it is the same module as {first!r}" if first != path and first in self else ""


def provenance_now() -> str:
    """Return the origin of figures that are worked out now, of no run."""
    import torch

    from ..run.environment import environment_of

    return environment_of(torch.device("meta"), "", False).provenance

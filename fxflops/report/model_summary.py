"""The result of ``fxflops.summary``. The result is a tree of the model's modules with shapes, followed by the report's summary."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from ..counting.rollup import ModuleRow
from ..render.exports import View
from .report import Report
from .views import Tree

DEPTH, COLUMNS = 3, ("inputs", "output", "params", "macs")
"""The default number of levels and the default columns of the tree."""

OF_TORCHINFO = {"trainable_params": "params.trainable"}
"""Maps names in torchinfo's statistics to attributes of a report."""
AS_TORCHINFO = "fxflops.adapters.torchinfo.summary returns torchinfo's statistics"


@dataclass(frozen=True, slots=True, repr=False)
class ModelSummary(View):
    """The module tree with shapes, and below the tree the summary of the run. Both are computed from the :class:`Report` ``report``.

    A ModelSummary also has the report's attributes, e.g. ``total_macs`` and ``total_params``, and torchinfo's ``trainable_params``.
    """

    report: Report
    tree: Tree

    @property
    def total_mult_adds(self) -> int:
        """torchinfo's ``total_mult_adds``, which differs from the number of MACs. ``report.explain("torchinfo")`` shows why."""
        return self.report.recount("torchinfo").total_flops

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and (name in OF_TORCHINFO or not callable(getattr(Report, name, len))):
            return attrgetter(OF_TORCHINFO.get(name, name))(self.report)
        parts = [f".{part}.{name}" for part, kind in (("report", Report), ("tree", Tree)) if hasattr(kind, name)]
        where = f": use {' or '.join(parts)}" if parts else f"; {AS_TORCHINFO}"
        raise AttributeError(f"a ModelSummary has no {name}{where}", name=name, obj=self)

    def __getitem__(self, path: str) -> ModuleRow:
        """Return the report's row for the module at this path."""
        return self.report[path]

    def _text(self) -> str:
        return f"{self.tree}\n\n{self.report}"

    def _repr_html_(self) -> str:
        return self.tree._repr_html_() + self.report._repr_html_()

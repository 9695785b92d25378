"""The weights that a run reads. Of a lookup table, these are only the looked-up rows; of every other weight, all elements."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from ..records import PARTS, Counted, Spec, specs_in
from ..report.report import Report
from ..roofline.traffic import inputs_of, looked_up

EMBEDDINGS = "embedding", "embedding_bag"
NOT_READ = "view", "query"
"""Names of zero-cost rules. Calls under these rules read no elements of their arguments."""
Table = tuple[str, Spec, str]
"""The path of a module, and the shape and dtype of one of its own parameters."""


class Weight(NamedTuple):
    """A parameter of a module, for one call of the module.

    ``taken`` are the bytes of all rows looked up in the parameter. A row counts once per lookup. ``taken`` is None if the whole parameter
    is read.
    """

    path: str
    op: str
    name: str
    spec: Spec
    taken: int | None


def weights_read(report: Report, lookups: Collection[str] = ()) -> Iterator[Weight]:
    """Yield the parameters of each module call in the forward pass.

    If ``lookups`` is not empty, only these ops are assumed to read single rows. If a module is called several times, the rows that all its
    calls read are assigned to its first call. If a module has several parameters of the same shape and dtype, these parameters are treated
    as one table.
    """
    taken = _taken(report, lookups)
    counted = dict.fromkeys(taken, False)
    for scope in report.scopes:
        for name, spec in scope.params.items():
            table = _table(scope.path, spec)
            rows = None if table not in taken else 0 if counted[table] else taken[table]
            counted[table] = True
            yield Weight(scope.path, scope.op, name, spec, rows)


def _taken(report: Report, lookups: Collection[str]) -> dict[Table, int]:
    """Return the bytes that lookups read from each table. A table that another call of the same module reads whole is left out."""
    calls = [each for each in report.counted if each.call.phase in PARTS["forward"]]
    found: dict[Table, int] = {}
    others: list[Counted] = []
    for each in calls:
        lookup = looked_up(each.call) if not lookups or each.call.op in lookups else None
        if lookup is None:
            others.append(each)
        else:
            table = _table(each.call.path, lookup[0])
            found[table] = found.get(table, 0) + lookup[1]
    paths = {path for path, _, _ in found}
    for each in others:
        for spec in _whole(each) if each.call.path in paths else ():
            found.pop(_table(each.call.path, spec), None)
    return found


def _whole(counted: Counted) -> list[Spec]:
    """Return the tensors that a call other than a lookup may read whole.

    A query reads no tensor. A view is treated as a read of its argument only if it changes the shape. Later calls then have only a tensor
    of the new shape in their arguments. If the view keeps the shape, the later calls themselves are treated as reads of the tensor.
    """
    call, out = counted.call, [*specs_in(counted.call.out)]
    given = [*inputs_of(call), *specs_in(dict(call.settings))]
    return [spec for spec in given if out and spec not in out] if counted.rule in NOT_READ else given


def _table(path: str, spec: Spec) -> Table:
    return path, spec, str(spec.dtype)

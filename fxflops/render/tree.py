"""The module tree as text: one line per module. Identical siblings share a line. A module's last line is its work outside its children."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from ..errors import InputError
from .columns import MODULE_COLUMNS, Column, check_number, check_units, find, module_cell, module_values, pick, titled
from .data import TreeRow
from .fold import Fold, folded, own_row
from .text import SHORTEST, align, cells, elide, paint, terminal_width, wrapped

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_COLUMNS = ("params", "macs", "flops", "flops%", "time", "time%")
EXPENDABLE = ("macs", "memory", "params", "flops%", "time%")
"""In a narrow terminal, these columns are dropped, in this order, so that names stay readable."""
MEASURES = "fxflops.analyze and fxflops run measure times and memory"
LABEL_ROOM = 30
"""The columns must leave at least this many cells for names."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the tree. A line has the branches drawn before the name (``guide``), the name, the class, and a note such as "x12".

    ``path`` is the module's path. If ``count`` modules share the line, ``path`` is the path of the first module, ending in the common name
    of all modules. If the line shows a module's own work, ``path`` is the module's path, followed by the name of the work.
    """

    guide: str
    name: str
    cls: str
    note: str
    row: TreeRow
    path: str
    count: int = 1


class Options(TypedDict, total=False):
    """The options for displaying a tree.

    depth: the number of levels to show below the root; None (default) shows all levels.
    sort_by: the column to sort siblings by, largest first. Folded siblings are sorted by their sum. None (default) keeps the run order.
    fold: if True (default), show consecutive identical siblings as one line, with the mean of their times.
    columns: the columns to show; by default the usual columns that were measured.
    counted: the title of the column that is normally "FLOPs", for conventions that count something else.
    units: one unit ("G", "MiB", "ms") for all columns that this unit fits. Each value in other columns gets a suitable unit.
    """

    depth: int | None
    sort_by: str | None
    fold: bool
    columns: Sequence[str] | str | None
    units: str | None
    counted: str


def tree(root: TreeRow, *, width: int | None = None, color: bool = False, **options: Unpack[Options]) -> str:
    """Return the module tree as text. If modules are hidden below the depth, the last line says how many.

    ``width`` is the number of cells in a line; by default the terminal's width. ``options`` are as in :class:`Options`.
    """
    shown, lines, texts = rows_of(root, **options)
    printed = [(column, [column.header, *(row[i] for row in texts)]) for i, column in enumerate(shown)]
    limit = terminal_width() if width is None else width
    if limit is not None and not options.get("columns"):
        wanted = min(LABEL_ROOM, max(cells(f"{line.guide}{line.name}  {line.cls}  {line.note}") for line in lines))
        for key in EXPENDABLE:
            if sum(max(map(cells, texts)) + 2 for _, texts in printed) + wanted <= limit:
                break
            printed = [each for each in printed if each[0].key != key]
    right = (
        align([*zip(*(texts for _, texts in printed), strict=True)], [column.is_number for column, _ in printed])
        if printed
        else [""] * (len(lines) + 1)
    )
    room = None if limit is None else max(limit - max(map(cells, right)) - 2, 12)
    left = [paint("module", "bold", color), *(_label(line, room, color) for line in lines)]
    notes = [wrapped(note, limit, 0) for note in notes_on(root, **options)]
    return "\n".join([*align(list(zip(left, right, strict=True)), [False, False]), *notes])


def notes_on(root: TreeRow, **options: Unpack[Options]) -> list[str]:
    """Return the lines below a tree. The lines below the tree say how many modules are deeper than the tree shows, and which requested
    columns were not measured."""
    columns = options.get("columns") or ()
    asked = [MODULE_COLUMNS[i].key for i in pick(MODULE_COLUMNS, columns)] if columns else []
    known = {key for row in root.walk() for key, value in module_values(row, root).items() if value is not None}
    lost = [key for key in asked if key not in known]
    unmeasured = f"not measured: {', '.join(lost)}; {MEASURES}" if lost else ""
    return [note for note in (_below(root, options.get("depth")), unmeasured) if note]


def _below(root: TreeRow, depth: int | None) -> str:
    """Return a note with the number of modules that are deeper than ``depth``. Return "" if no modules are deeper."""

    def modules(row: TreeRow, left: int) -> int:
        return sum((left <= 0 and bool(child.cls)) + modules(child, left - 1) for child in row.children)

    count = 0 if depth is None else modules(root, depth)
    return f"below depth {depth}: {count:,} more module{'s' * (count > 1)}" if count else ""


def check_options(root: TreeRow, **options: Unpack[Options]) -> str | None:
    """Return the key of the column to sort by; raise InputError for invalid options."""
    check_units(options.get("units"))
    check_number("depth", options.get("depth"), least=0)
    if columns := options.get("columns"):
        pick(MODULE_COLUMNS, columns)
    sort_by = options.get("sort_by")
    if sort_by is None:
        return None
    numbers = [column for column in MODULE_COLUMNS if column.is_number]
    key = numbers[find(numbers, sort_by)].key
    if all(module_values(row, root)[key] is None for row in root.walk()):
        raise InputError(f"cannot sort by {sort_by!r}: this column was not measured")
    return key


def rows_of(root: TreeRow, **options: Unpack[Options]) -> tuple[list[Column], list[Line], list[list[str]]]:
    """Return the columns of the tree, its lines, and the texts of each line's cells. Raises InputError for invalid options."""
    key, columns = check_options(root, **options), options.get("columns")
    lines = list(walk(Fold(root.name, root), options.get("depth"), key, options.get("fold", True)))
    shown = (
        [MODULE_COLUMNS[i] for i in pick(MODULE_COLUMNS, columns)] if columns else measured(line.row for line in lines)
    )
    values = [(module_values(line.row, root), line.row.missing) for line in lines]
    units = options.get("units")
    shown = [*titled(tuple(shown), options.get("counted", "FLOPs"))]
    return shown, lines, [[module_cell(column, each, units, missing) for column in shown] for each, missing in values]


def measured(rows: Iterable[TreeRow]) -> list[Column]:
    """Return those default columns in which at least one row has a value."""
    known = {key for row in rows for key, value in module_values(row, row).items() if value is not None}
    return [each for each in MODULE_COLUMNS if each.key in DEFAULT_COLUMNS and each.key.removesuffix("%") in known]


def walk(item: Fold, depth: int | None, key: str | None, fold: bool, guide: str = "", stem: str = "") -> Iterator[Line]:
    """Yield a module's line, then its children's lines. ``guide`` is drawn before the module's line, ``stem`` before its children's lines."""
    row = item.row
    yield Line(guide, *item.label(), row, item.path, item.count)
    if depth == 0 or not row.children:
        return
    inside = folded(row.children, fold)
    if key is not None:
        inside.sort(key=lambda child: module_values(child.total(), row)[key] or 0, reverse=True)
    own = own_row(row)
    for child in inside:
        branch, below = ("└─ ", "   ") if own is None and child is inside[-1] else ("├─ ", "│  ")
        yield from walk(child, None if depth is None else depth - 1, key, fold, stem + branch, stem + below)
    if own is not None:
        yield Line(f"{stem}└─ ", own.name, "", "", own, f"{row.path} {own.name}".strip())


def _label(line: Line, room: int | None, color: bool) -> str:
    """Return the part of a line to the left of the numbers. The left part is at most ``room`` cells wide.

    If there is too little room, the class is shortened first, then the name. The note is dropped if it leaves fewer than :data:`SHORTEST`
    cells for the name.
    """
    name, cls, note = line.name, line.cls, line.note
    if room is not None:
        left = max(room - cells(line.guide), 1)
        taken = cells(note) + 2 if note else 0
        note, left = (note, left - taken) if left - taken >= min(cells(name), SHORTEST) else ("", left)
        beside = left - cells(name) - 2
        cls = elide(cls, beside) if beside >= min(cells(cls), SHORTEST) else ""
        name = elide(name, left)
    said = "  ".join(filter(None, (cls, note)))
    parts = [paint(name, "bold", color and not line.guide)] + ([paint(said, "dim", color)] if said else [])
    return paint(line.guide, "dim", color) + "  ".join(parts)

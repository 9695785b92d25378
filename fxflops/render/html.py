"""The report as HTML: one self-contained block, a module tree to unfold and a table of nodes to sort."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from numbers import Real
from typing import Any

from .columns import Column, column_of, module_cell, module_values
from .costs import operator_shares
from .data import Summary, TreeRow
from .fold import Fold, folded
from .summary import facts, missing_lines
from .text import plain
from .tree import label, measured, own_row

# Only greys that are half transparent and the page's own colour: legible on a light and on a dark page.
STYLE = """
.fxflops{font:13px/1.5 system-ui,sans-serif;color:inherit;max-width:72em;overflow-x:auto}
.fxflops table{border-collapse:collapse;color:inherit}
.fxflops th,.fxflops td{padding:1px 8px;text-align:left;background:none;font-weight:inherit}
.fxflops .n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.fxflops .nodes thead{cursor:pointer;border-bottom:1px solid rgba(128,128,128,.5)}
.fxflops .row{display:flex;white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.15)}
.fxflops .row>*{flex:0 0 6.5em}
.fxflops .row>.name{flex:1 0 22em;overflow:hidden;text-overflow:ellipsis}
.fxflops .row small,.fxflops th[scope=row]{opacity:.65}
.fxflops summary{cursor:pointer}
.fxflops details>summary>.name::before{content:"▸ "}
.fxflops details[open]>summary>.name::before{content:"▾ "}
.fxflops .bar{align-self:center;height:.7em;margin-left:8px;
 background:linear-gradient(#4c8bf5,#4c8bf5) no-repeat;background-color:rgba(128,128,128,.15)}
.fxflops .missing{color:#d9483b;white-space:pre-wrap}
"""

# Sorts the table by the header clicked: numbers descending, text ascending; cells without a value last.
SORT = (
    "var h=event.target.closest('th'),b=this.nextElementSibling;if(h){var i=h.cellIndex;"
    "Array.from(b.rows).sort(function(r,s){var x=r.cells[i].dataset.v,y=s.cells[i].dataset.v;"
    "if(x===undefined||y===undefined)return x===y?0:x===undefined?1:-1;"
    "return h.className?y-x:x.localeCompare(y)}).forEach(function(r){b.appendChild(r)})}"
)


def html(
    summary: Summary,
    root: TreeRow,
    header: Sequence[str] | None = None,
    rows: Sequence[Sequence[Any]] | None = None,
    *,
    most_rows: int | None = 1000,
) -> str:
    """The summary, the module tree and, where given, the table of nodes (its first ``most_rows``)."""
    nodes = _nodes(header, rows, most_rows) if header is not None and rows is not None else ""
    return f'<div class="fxflops"><style>{STYLE}</style>{_head(summary)}{_tree(root)}{nodes}</div>'


def _head(data: Summary) -> str:
    """The facts of the summary and, last, what is missing."""
    lines = [(fact.label, fact.value, fact.separator.join(fact.details)) for fact in facts(data)]
    lines += [(name, "", " · ".join(shares)) for name, shares in operator_shares(data)]
    body = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td class="n">{_text(value)}</td><td>{_text(said)}</td></tr>'
        for name, value, said in lines
    )
    missing = "\n".join(missing_lines(data.missing) + ([f"to count it, paste:\n{data.paste}"] if data.paste else []))
    warning = f'<pre class="missing">{escape(missing)}</pre>' if missing else ""
    about = _text(f"input {data.inputs} · {data.setting}" if data.inputs else data.setting)
    return f"<div><b>{_text(data.title)}</b> <small>{about}</small></div><table>{body}</table>{warning}"


def _tree(root: TreeRow) -> str:
    columns = measured(_all_rows(root))
    titles = "".join(f'<span class="n">{escape(column.header)}</span>' for column in columns)
    return f'<div class="row"><b class="name">module</b>{titles}<span></span></div>' + _module(
        Fold(root.name, root), root, columns, level=0
    )


def _module(item: Fold, root: TreeRow, columns: Sequence[Column], level: int) -> str:
    """A module's row; one with children can be unfolded, and the root is."""
    row = item.row
    name, note = label(item)
    line = _row(name, note, row, root, columns, level)
    if not row.children:
        return f'<div class="row">{line}</div>'
    inside = "".join(_module(child, root, columns, level + 1) for child in folded(row.children))
    own = own_row(row)
    if own is not None:
        inside += f'<div class="row">{_row(own.name, "", own, root, columns, level + 1)}</div>'
    is_open = "" if level else " open"
    return f'<details{is_open}><summary class="row">{line}</summary>{inside}</details>'


def _row(name: str, note: str, row: TreeRow, root: TreeRow, columns: Sequence[Column], level: int) -> str:
    values = module_values(row, root.flops, root.seconds)
    numbers = "".join(
        f'<span class="n">{escape(module_cell(column, values, None, row.missing))}</span>' for column in columns
    )
    share = values["time%"] if values["time%"] is not None else values["flops%"]
    return (
        f'<span class="name" style="padding-left:{level * 1.2:.1f}em" title="{escape(plain(row.path))}">'
        f"{_text(name)} <small>{_text(note)}</small></span>{numbers}"
        f'<span class="bar" style="background-size:{share or 0:.1f}% 100%"></span>'
    )


def _nodes(header: Sequence[str], rows: Sequence[Sequence[Any]], most_rows: int | None) -> str:
    """The table of nodes, to be sorted by a click on a header."""
    columns = [column_of(title, (row[i] for row in rows)) for i, title in enumerate(header)]
    titles = "".join(f"<th{_side(column)}>{_text(column.header)}</th>" for column in columns)
    shown = rows if most_rows is None else rows[:most_rows]
    body = "".join(f"<tr>{''.join(map(_cell, columns, row))}</tr>" for row in shown)
    count = f"{len(rows):,} nodes" if len(shown) == len(rows) else f"first {len(shown):,} of {len(rows):,} nodes"
    return (
        f"<details><summary>{count}</summary>"
        f'<table class="nodes"><thead onclick="{escape(SORT)}"><tr>{titles}</tr></thead><tbody>{body}</tbody></table></details>'
    )


def _cell(column: Column, value: Any) -> str:
    """A cell with the bare value beside the text, for sorting; words among numbers have none."""
    sortable = isinstance(value, Real) if column.is_number else value is not None
    bare = f' data-v="{_text(str(value))}"' if sortable else ""
    return f"<td{_side(column)}{bare}>{_text(column.show(value))}</td>"


def _side(column: Column) -> str:
    return ' class="n"' if column.is_number else ""


def _all_rows(row: TreeRow) -> list[TreeRow]:
    return [row, *(inner for child in row.children for inner in _all_rows(child))]


def _text(text: str) -> str:
    return escape(plain(text))

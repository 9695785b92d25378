"""The report as a block of HTML that needs no other file. The block has a collapsible module tree and sortable tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from numbers import Real
from typing import TYPE_CHECKING, Any

from ..units import percent
from .columns import Column, module_cell, module_values
from .conclusion import conclusion
from .costs import operator_shares
from .data import Summary, TreeRow
from .fold import Fold, folded, own_row
from .summary import facts, missing_lines, paste_where, remark_lines
from .text import escaped
from .tree import Options, measured, rows_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Half-transparent greys and the page's own text colour are legible on light and on dark pages.
# Jupyter has CSS rules that align table cells to the right.
# The class is repeated so that fxflops's rules have a higher specificity than Jupyter's rules.
STYLE = """
.fxflops{font:13px/1.5 system-ui,sans-serif;color:inherit;max-width:72em;overflow-x:auto}
.fxflops.fxflops table{border-collapse:collapse;color:inherit;font:inherit}
.fxflops.fxflops th,.fxflops.fxflops td{padding:1px 8px;text-align:left;background:none;font-weight:inherit}
.fxflops.fxflops .n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.fxflops.fxflops .ops thead{border-bottom:1px solid rgba(128,128,128,.5)}
.fxflops.fxflops .ops td{border-bottom:1px solid rgba(128,128,128,.15)}
.fxflops.fxflops .ops td+td:not(.n){min-width:8em}
.fxflops.fxflops button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer}
.fxflops.fxflops [aria-sort=descending] button::after{content:" ▾"}
.fxflops.fxflops [aria-sort=ascending] button::after{content:" ▴"}
.fxflops.fxflops .row{display:flex;white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.15)}
.fxflops.fxflops .row>*{flex:0 0 6.4em}
.fxflops.fxflops .row>.name{flex:1 0 11.5em;box-sizing:border-box;overflow:hidden;text-overflow:ellipsis}
.fxflops.fxflops .row small,.fxflops.fxflops th[scope=row]{opacity:.65;white-space:nowrap}
.fxflops.fxflops summary{cursor:pointer}
.fxflops.fxflops details>summary>.name::before{content:"▸ "}
.fxflops.fxflops details[open]>summary>.name::before{content:"▾ "}
.fxflops.fxflops .bar{align-self:center;height:.7em;margin-left:8px;
 background:linear-gradient(#4c8bf5,#4c8bf5) no-repeat;background-color:rgba(128,128,128,.15)}
.fxflops.fxflops p{margin:.3em 0}
.fxflops.fxflops .tree td{border-bottom:1px solid rgba(128,128,128,.15);white-space:nowrap}
.fxflops.fxflops .guide{font-family:ui-monospace,monospace;white-space:pre;opacity:.5}
.fxflops.fxflops .missing{color:#d9483b;white-space:pre-wrap}
"""

# A click on a header sorts the table by this column: numbers in descending order, text in ascending order.
# A second click reverses the order. Cells without a value come last.
# The script uses no element ids, so that a page can have several reports.
SORT = (
    "var h=event.target.closest('th'),b=this.nextElementSibling;if(h){var i=h.cellIndex,n=h.className,"
    "d=n?'descending':'ascending',a=n?'ascending':'descending',t=h.getAttribute('aria-sort')===d;"
    "Array.from(h.parentNode.cells).forEach(function(c){c.removeAttribute('aria-sort')});"
    "h.setAttribute('aria-sort',t?a:d);"
    "Array.from(b.rows).sort(function(r,s){var x=r.cells[i].dataset.v,y=s.cells[i].dataset.v;"
    "if(x===undefined||y===undefined)return x===y?0:x===undefined?1:-1;"
    "return(t?-1:1)*(n?y-x:x.localeCompare(y))}).forEach(function(r){b.appendChild(r)})}"
)

OPERATORS = (
    Column("operator", "operator"),
    Column("calls", "calls", "number"),
    Column("flops", "flops", "flops"),
    Column("flops%", "flops%", "%"),
)
OPERATORS_TIMED = Column("time", "time(s)", "s"), Column("time%", "time%", "%")


def html(
    summary: Summary,
    columns: Sequence[Column] | None = None,
    rows: Sequence[Sequence[Any]] | None = None,
    *,
    noun: str = "nodes",
    of: int | None = None,
    units: str | None = None,
) -> str:
    """Return the summary, the module tree and the operators as HTML. With ``rows``, also return a table of these rows.

    ``noun`` is the word for the rows, e.g. "nodes". ``of`` is the total number of rows, if ``rows`` are only a part of them. ``units`` is as
    for :func:`~fxflops.render.table.grid`.
    """
    table = "" if columns is None or rows is None else _table(columns, rows, noun, of or len(rows), units)
    return block(_head(summary), _tree(summary.root), _operators(summary), table, origin=summary.provenance)


def block(*parts: str, origin: str = "") -> str:
    """Return the parts in one HTML element with our styles. The last line is ``origin``, the provenance of the numbers."""
    said = f"<div><small>{escaped(origin)}</small></div>" if origin else ""
    return f'<div class="fxflops"><style>{STYLE}</style>{"".join(parts)}{said}</div>'


def note(text: str) -> str:
    """Return the text as an HTML paragraph."""
    return f"<p>{escaped(text)}</p>"


def cells_table(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]], units: str | None, *, sortable: bool = True
) -> str:
    """Return an HTML table. Numbers are aligned on the right. If ``sortable``, a click on a header sorts the table."""
    kind, script, begin, end = "plain", "", "", ""
    if sortable:
        kind, script, begin, end = "ops", f' onclick="{escape(SORT)}"', '<button type="button">', "</button>"
    titles = "".join(
        f'<th scope="col"{_side(column)}>{begin}{escaped(column.title(units))}{end}</th>' for column in columns
    )
    body = "".join(
        f"<tr>{''.join(_cell(c, value, units) for c, value in zip(columns, row, strict=True))}</tr>" for row in rows
    )
    return f'<table class="{kind}"><thead{script}><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'


def tree_table(root: TreeRow, **options: Unpack[Options]) -> str:
    """Return the module tree as an HTML table. The ``options`` are as in :class:`fxflops.render.tree.Options`."""
    columns, lines, texts = rows_of(root, **options)
    titles = "".join(f"<th{_side(column)}>{escaped(column.header)}</th>" for column in columns)
    rows = (
        f'<tr><td title="{escaped(line.row.path)}"><span class="guide">{line.guide}</span>{escaped(line.name)} '
        f"<small>{escaped('  '.join(filter(None, [line.cls, line.note])))}</small></td>"
        f"{''.join(f'<td{_side(column)}>{escaped(text)}</td>' for column, text in zip(columns, row, strict=True))}</tr>"
        for line, row in zip(lines, texts, strict=True)
    )
    head = f"<thead><tr><th>module</th>{titles}</tr></thead>"
    return f'<table class="tree">{head}<tbody>{"".join(rows)}</tbody></table>'


def _operators(data: Summary) -> str:
    if not data.operators:
        return ""
    timed = any(op.total.seconds is not None for op in data.operators)
    seconds = sum(op.total.seconds or 0.0 for op in data.operators)
    columns = [*OPERATORS, *(OPERATORS_TIMED if timed else ())]
    rows = [
        [op.key, op.calls, op.total.flops, percent(op.total.flops, data.root.flops)]
        + ([op.total.seconds, percent(op.total.seconds, seconds)] if timed else [])
        for op in data.operators
    ]
    return _table(columns, rows, "operators", len(rows), "auto", is_open=True)


def _head(data: Summary) -> str:
    """Return the lines of the summary as an HTML table, followed by the ops that were not counted."""
    lines = [(fact.label, fact.value, fact.separator.join(fact.details)) for fact in facts(data)]
    lines += [(name, "", " · ".join(shares)) for name, shares in operator_shares(data)]
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th><td class="n">{escaped(value)}</td><td>{escaped(said)}</td></tr>'
        for name, value, said in lines
    )
    missing = "\n".join(missing_lines(data) + ([f"{paste_where(data)}:\n{data.paste}"] if data.paste else []))
    warning = f'<pre class="missing">{escape(missing)}</pre>' if missing else ""
    about = escaped(f"input {data.inputs} · {data.setting}" if data.inputs else data.setting)
    said = "".join(map(note, [conclusion(data, data.utilization), *remark_lines(data)]))
    return f"<div><b>{escaped(data.title)}</b> <small>{about}</small></div>{said}<table>{body}</table>{warning}"


def _tree(root: TreeRow) -> str:
    columns = measured(root.walk())
    titles = "".join(f'<span class="n">{escape(column.header)}</span>' for column in columns)
    return f'<div class="row"><b class="name">module</b>{titles}<span></span></div>' + _module(
        Fold(root.name, root), root, columns, level=0
    )


def _module(item: Fold, root: TreeRow, columns: Sequence[Column], level: int) -> str:
    """Return a module's row with the rows of its children inside. The children are hidden until the user opens the row, except the root's."""
    row = item.row
    name, *said = item.label()
    line = _row(name, "  ".join(filter(None, said)), row, root, columns, level)
    if not row.children:
        return f'<div class="row">{line}</div>'
    inside = "".join(_module(child, root, columns, level + 1) for child in folded(row.children))
    own = own_row(row)
    if own is not None:
        inside += f'<div class="row">{_row(own.name, "", own, root, columns, level + 1)}</div>'
    return f'<details{"" if level else " open"}><summary class="row">{line}</summary>{inside}</details>'


def _row(name: str, note: str, row: TreeRow, root: TreeRow, columns: Sequence[Column], level: int) -> str:
    values = module_values(row, root)
    numbers = "".join(
        f'<span class="n">{escape(module_cell(column, values, None, row.missing))}</span>' for column in columns
    )
    share = values["time%"] if values["time%"] is not None else values["flops%"]
    return (
        f'<span class="name" style="padding-left:{level * 1.2:.1f}em" title="{escaped(row.path)}">'
        f"{escaped(name)} <small>{escaped(note)}</small></span>{numbers}"
        f'<span class="bar" style="background-size:{share or 0:.1f}% 100%"></span>'
    )


def _table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    noun: str,
    of: int,
    units: str | None,
    is_open: bool = False,
) -> str:
    """Return a collapsible table. A click on a header sorts the table."""
    count = f"{of:,} {noun}" if len(rows) == of else f"first {len(rows):,} of {of:,} {noun}"
    table = cells_table(columns, rows, units)
    return f"<details{' open' if is_open else ''}><summary>{count}</summary>{table}</details>"


def _cell(column: Column, value: Any, units: str | None) -> str:
    """Return a cell. The cell's attribute ``data-v`` has the raw value for sorting. Text in a column of numbers has no such attribute."""
    sortable = isinstance(value, Real) if column.is_number else value is not None
    bare = f' data-v="{escaped(str(value))}"' if sortable else ""
    exact = f' title="{escaped(column.show(value))}"' if units and sortable and column.is_number else ""
    return f"<td{_side(column)}{bare}{exact}>{escaped(column.show(value, column.unit(units)))}</td>"


def _side(column: Column) -> str:
    return ' class="n"' if column.is_number else ""

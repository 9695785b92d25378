"""The columns of tables and trees. Each column has a key, a header and a kind of value. The module also has functions that find columns and
units by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

from .. import units as readable
from ..errors import InputError, did_you_mean, of_kind
from .text import plain

if TYPE_CHECKING:
    from .data import TreeRow

Kind = Literal["text", "number", "flops", "elements", "s", "ms", "B", "delta", "%"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``key`` is the name by which users choose the column, ``header`` is the text above the column, and ``kind`` is the kind of
    its values.

    A value of any kind can also be None (not measured) or a word such as "not_recognized".
    """

    key: str
    header: str
    kind: Kind = "text"

    @property
    def is_number(self) -> bool:
        return self.kind != "text"

    def show(self, value: Any, unit: str | None = None) -> str:
        """Return the value as text. If ``unit`` is None, the raw number is shown. With "auto", a suitable unit is chosen. With e.g. "G" or
        "ms", this unit is used."""
        if value is None:
            return readable.NOT_MEASURED
        if isinstance(value, bool) or not isinstance(value, Real):
            return ROOT if value == "" and "module" in (self.key, self.header) else plain(str(value))
        number = int(value) if isinstance(value, Integral) else float(value)
        sign = "+" if self.kind == "delta" and number >= 0 else ""
        return sign + (_raw(number, self.kind) if unit is None else _scaled(number, self.kind, unit))

    def title(self, units: str | None) -> str:
        """Return the header. If ``units`` adds a unit to each value, the header has no unit in parentheses."""
        return self.header if self.unit(units) is None else self.header.partition("(")[0]

    def unit(self, units: str | None) -> str | None:
        """Return the unit for this column's values, or None for raw numbers.

        If ``units`` does not fit the values, the unit is "auto", unless the header has the unit of the raw numbers, as in "time(ms)".
        """
        if units is None or self.kind not in UNITS_OF:
            return None
        if units == "auto" or units in UNITS_OF[self.kind]:
            return units
        return None if "(" in self.header else "auto"


def held_columns(categories: Iterable[str]) -> list[Column]:
    """Return a column for each category of memory, with its bytes at the peak.

    The header of the column for parameters is "params bytes", because "params" is already the column with the number of parameters.
    """
    return [Column(f"bytes_{name}", "params bytes" if name == "params" else name, "B") for name in categories]


UNITS_OF: dict[str, Iterable[str]] = {
    "flops": readable.SI,
    "elements": (),
    "s": readable.TIME,
    "ms": readable.TIME,
    "B": readable.IEC,
    "delta": readable.IEC,
}
UNITS = ("auto", *readable.SI, *readable.TIME, *readable.IEC)

RESULT = (
    Column("node_name", "node_name"),
    Column("node_op", "node_op"),
    Column("op_target", "op_target"),
    Column("which_module", "which_module"),
    Column("flops", "flops", "flops"),
    Column("time", "time(ms)", "ms"),
    Column("mem_before_op", "mem_before_op(B)", "B"),
    Column("mem_after_op", "mem_after_op(B)", "B"),
    Column("mem_delta", "mem_delta(B)", "delta"),
)
"""The columns of torch_flops."""
MODULE_COLUMNS = (
    Column("calls", "calls", "number"),
    Column("params", "params", "elements"),
    Column("macs", "MACs", "flops"),
    Column("flops", "FLOPs", "flops"),
    Column("flops%", "%", "%"),
    Column("time", "time", "s"),
    Column("time%", "%", "%"),
    Column("memory", "replay peak", "B"),
    Column("inputs", "inputs"),
    Column("output", "output"),
)
SUMS = (
    Column("macs", "MACs", "flops"),
    Column("flops", "FLOPs", "flops"),
    Column("int_ops", "int ops", "flops"),
    Column("activations", "MAC outputs", "elements"),
    Column("seconds", "time", "s"),
    Column("missing", "missing", "number"),
)
MODULES = (
    Column("module", "module"),
    Column("class", "class"),
    Column("calls", "calls", "number"),
    Column("params", "params", "elements"),
    Column("own_params", "own params", "elements"),
    *SUMS,
    Column("own_macs", "own MACs", "flops"),
    Column("own_flops", "own FLOPs", "flops"),
    Column("own_seconds", "own time", "s"),
)
OPERATIONS = (
    Column("node", "node"),
    Column("op", "op"),
    Column("module", "module"),
    Column("target", "target"),
    Column("phase", "phase"),
    Column("inputs", "inputs"),
    Column("output", "output"),
    Column("params", "params", "elements"),
    Column("macs", "MACs", "flops"),
    Column("flops", "FLOPs", "flops"),
    Column("int_ops", "int ops", "flops"),
    Column("seconds", "time", "s"),
    Column("bytes_before", "mem before", "B"),
    Column("bytes_after", "mem after", "B"),
    Column("bytes_peak", "mem peak", "B"),
    Column("counts", "counts"),
)
STEP_TIMES = (
    Column("step", "step"),
    Column("seconds", "time", "s"),
    Column("forward", "forward", "s"),
    Column("backward", "backward", "s"),
    Column("optimizer", "optimizer", "s"),
    Column("loading", "loading", "s"),
    Column("between", "between", "s"),
    Column("flops", "FLOPs", "flops"),
    Column("flops_per_second", "FLOP/s", "flops"),
)
COMPILED = (
    Column("module", "module"),
    Column("seconds", "eager", "s"),
    Column("compiled_seconds", "compiled", "s"),
    Column("own_seconds", "own eager", "s"),
    Column("own_compiled_seconds", "own compiled", "s"),
    Column("gain", "gain", "number"),
)
ROOT = "(root)"
COMPARED = ("{}_ratio", "{}_a", "{}_b", "{}_difference")
"""The keys of the columns that compare one quantity of two reports; {} is the name of the quantity."""
EXPENDABLE = (
    "target", "counts", "node", "bytes_before", "bytes_after", "int_ops", "activations", "own_params", "own_macs",
    "own_flops", "own_seconds", "macs", "bytes_peak", "params", "output", "inputs",
    *(each.format(name) for name in ("macs", "bytes_peak", "params", "seconds") for each in COMPARED),
    "launch_seconds", "compute_seconds", "memory_seconds", "bytes_read", "bytes_written", "flops_per_byte",
    "bytes_per_second", "share_of_peak", "flops_per_second", "dtype",
)  # fmt: skip
"""If the lines of a table are too long for the terminal, the table omits these columns, in this order."""
ALIASES = {
    "memory": ("mem_delta", "bytes_peak"),
    "input_size": ("inputs",),
    "output_size": ("output",),
    "num_params": ("params",),
    "mult_adds": ("macs",),
}
"""Other names for columns, including torchinfo's names. Each name has a list of columns; it means the first of them that the table has."""

TORCHINFO_ALONE = {"kernel_size", "params_percent", "trainable"}
"""Columns of torchinfo that no table of fxflops has."""


@lru_cache
def titled(columns: tuple[Column, ...], counted: str) -> tuple[Column, ...]:
    """Return the columns with "FLOPs" in their headers replaced by ``counted``, because some conventions count e.g. "MACs"."""
    return tuple(replace(column, header=column.header.replace("FLOPs", counted)) for column in columns)


def find(columns: Sequence[Column], name: str) -> int:
    """Return the position of the column with this key or header, ignoring case. Raise InputError if there is no such column."""
    return pick(columns, [name])[0]


def _position(columns: Sequence[Column], name: str) -> int | None:
    for spelling in (name.lower(), *ALIASES.get(name.lower(), ())):
        for position, column in enumerate(columns):
            if spelling in (column.header.lower(), column.key.lower()):
                return position
    return None


def _with_nearest(columns: Sequence[Column], name: str) -> str:
    """Return an unknown column name in quotes, followed by the most similar column name as a suggestion."""
    spelled = [*dict.fromkeys(word.lower() for column in columns for word in (column.key, column.header))]
    return f"{name!r}{did_you_mean(name.lower(), get_close_matches(name.lower(), spelled, n=1))}"


def _named(column: Column) -> str:
    """Return the column's key. If the header differs from the key, the header follows in parentheses."""
    header = column.header.lower().replace(" ", "_").partition("(")[0]
    return column.key if header in (column.key.lower(), "%") else f"{column.key} ({column.header})"


def pick(columns: Sequence[Column], names: Sequence[str] | str | None) -> list[int]:
    """Return the positions of the named columns, in the order of the names. None means all columns; one string can name several ("a,b").

    Raises InputError for unknown names. The message lists these names.
    """
    if names is None:
        return list(range(len(columns)))
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if not listed:
        raise InputError(f"columns is empty; name at least one of {', '.join(column.key for column in columns)}")
    found = {name: _position(columns, name) for name in listed}
    if unknown := [_with_nearest(columns, name) for name, position in found.items() if position is None]:
        adapter = "; fxflops.adapters.torchinfo.summary has torchinfo's columns" if TORCHINFO_ALONE & {*found} else ""
        raise InputError(f"no column {', '.join(unknown)}; expected some of {', '.join(map(_named, columns))}{adapter}")
    return [position for name in listed if (position := found[name]) is not None]


def check_units(units: str | None) -> None:
    """Raise InputError for a unit that no column supports."""
    if units is not None and units not in UNITS:
        raise InputError(f"unknown units {units!r}; expected one of {', '.join(unit for unit in UNITS if unit)}")


def check_number(name: str, value: int | None, least: int) -> None:
    """Raise InputError if a number such as ``top`` or ``depth`` is not an int, or is below ``least``."""
    if value is not None and (not isinstance(value, Integral) or value < least):
        raise of_kind(
            InputError(f"{name} must be an int of at least {least}, or None for all; got {value!r}"), TypeError
        )


def module_values(row: TreeRow, whole: TreeRow) -> dict[str, Any]:
    """Return a module's values as a dict with the keys of MODULE_COLUMNS. Percentages are shares of the row ``whole``."""
    return {
        "calls": row.calls,
        "params": row.params,
        "frozen": row.frozen,
        "macs": row.macs,
        "flops": row.flops,
        "flops%": readable.percent(row.flops, whole.flops),
        "time": row.seconds,
        "time%": readable.percent(row.seconds, whole.seconds),
        "memory": row.bytes_peak,
        "inputs": row.inputs,
        "output": row.output,
    }


def module_cell(column: Column, values: dict[str, Any], units: str | None, missing: int) -> str:
    """Return the text of one cell in a module's row.

    If some calls are ``missing`` from a count, the count is a lower bound, so the cell's text starts with ">=". The number of frozen
    parameters is shown like this: "72 frozen", "288 (72 frozen)".
    """
    unit = column.unit(units or "auto")
    text, frozen = column.show(values[column.key], unit), values["frozen"]
    if column.key == "params" and frozen:
        return f"{text} frozen" if frozen == values["params"] else f"{text} ({column.show(frozen, unit)} frozen)"
    return f">= {text}" if missing and column.kind == "flops" else text


def _raw(value: float, kind: Kind) -> str:
    if kind == "%":
        return f"{value:.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6f}" if kind == "s" else f"{value:.3f}"


def _scaled(value: float, kind: Kind, unit: str) -> str:
    fixed = None if unit == "auto" else unit
    if not value and kind not in ("B", "delta"):
        return "0"
    if kind in ("s", "ms"):
        return readable.seconds(value / 1e3 if kind == "ms" else value, fixed)
    if kind in ("B", "delta"):
        return readable.size(value, fixed)
    return readable.billions(value, fixed) if kind == "elements" else readable.count(value, fixed)

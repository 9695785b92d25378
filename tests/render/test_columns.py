from __future__ import annotations

import pytest

from fxflops.errors import InputError
from fxflops.render.columns import (
    MODULE_COLUMNS,
    RESULT,
    Column,
    check_number,
    check_units,
    find,
    module_cell,
    module_values,
    pick,
)


@pytest.mark.parametrize(
    ("kind", "value", "unit", "expected"),
    [
        ("flops", 35164979282, None, "35,164,979,282"),
        ("flops", 35164979282, "auto", "35.16 G"),
        ("flops", 35164979282, "M", "35,165.0 M"),
        ("flops", 0, "G", "0"),
        ("flops", "not_recognized", "auto", "not_recognized"),
        ("flops", None, "G", "-"),
        ("ms", 1234.5678, None, "1234.568"),
        ("ms", 0.5, "auto", "500.0 us"),
        ("s", 0.0021, None, "0.002100"),
        ("s", 0.0021, "ms", "2.10 ms"),
        ("B", 1024, "auto", "1.00 KiB"),
        ("delta", 5000, None, "+5,000"),
        ("delta", -5000, None, "-5,000"),
        ("delta", 0, "auto", "+0 B"),
        ("%", 99.27, None, "99.3"),
        ("text", "a\nb", None, "a\\nb"),
        ("number", True, None, "True"),
    ],
)
def test_show(kind, value, unit, expected):
    assert Column("x", "x", kind).show(value, unit) == expected


def test_units_reach_only_the_columns_they_fit():
    flops, memory = Column("flops", "flops", "flops"), Column("memory", "memory", "B")
    assert (flops.unit("G"), memory.unit("G"), Column("memory", "memory(B)", "B").unit("G")) == ("G", "auto", None)
    assert (flops.unit("auto"), memory.unit("auto"), flops.unit(None)) == ("auto", "auto", None)


@pytest.mark.parametrize("name", ["time", "time(ms)", "TIME"])
def test_find_takes_header_and_bare_name(name):
    assert find(RESULT, name) == 5


def test_memory_means_the_delta_in_the_result_table_and_the_peak_in_a_tree():
    assert RESULT[find(RESULT, "memory")].header == "mem_delta(B)"
    assert MODULE_COLUMNS[find(MODULE_COLUMNS, "memory")].header == "replay peak"


def test_an_unknown_column_names_the_valid_ones():
    with pytest.raises(
        InputError,
        match=r"no column 'tme' \(did you mean time\?\); expected some of calls, params, macs, flops, flops%, time, time%, memory",
    ):
        find(MODULE_COLUMNS, "tme")


def test_all_unknown_columns_are_named():
    with pytest.raises(InputError, match=r"no column 'flop' \(did you mean flops\?\), 'nope'; expected some of calls"):
        pick(MODULE_COLUMNS, ["flop", "macs", "nope"])


def test_pick():
    assert pick(MODULE_COLUMNS, None) == list(range(len(MODULE_COLUMNS)))
    assert pick(MODULE_COLUMNS, ["time", "calls"]) == pick(MODULE_COLUMNS, "time, calls") == [5, 0]
    with pytest.raises(InputError, match="columns is empty"):
        pick(MODULE_COLUMNS, [])


def test_unknown_units_and_numbers_too_small():
    with pytest.raises(
        InputError, match="unknown units 'GB'; expected one of auto, k, M, G, T, P, E, ns, us, ms, s, B, KiB"
    ):
        check_units("GB")
    with pytest.raises(InputError, match="top must be an int of at least 1, or None for all; got 0"):
        check_number("top", 0, least=1)


def test_a_count_that_misses_calls_is_a_lower_bound(root):
    values = module_values(root, root._replace(seconds=None))
    cells = {column.key: module_cell(column, values, None, 2) for column in MODULE_COLUMNS}
    assert cells["flops"] == ">= 11.43 G"
    assert cells["params"] == "25.51 M"
    assert cells["time%"] == "-"

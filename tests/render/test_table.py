from __future__ import annotations

from textwrap import dedent

import pytest
import tabulate

from fxflops.errors import InputError
from fxflops.render.columns import RESULT, Column
from fxflops.render.table import grid, result_table

ROWS = [
    ["x", "placeholder", "x", "", 0, 0.0125, 1000, 2000, 1000],
    ["conv", "call_module", "stem.conv", "Conv2d", 3_000_000, 1.5, 2000, 123_456, 121_456],
    ["add", "call_function", "<built-in function add>", "", 1_000_000, 2.5, 123_456, 123_000, -456],
]
UNKNOWN = ["scan", "call_function", "mylib.scan", "", "not_recognized", None, None, None, None]
OPERATOR, CALLS = Column("operator", "operator"), Column("calls", "calls", "number")
FLOPS, TIME = Column("flops", "flops", "flops"), Column("time", "time(s)", "s")
BRIEF = ["node_name", "flops", "time", "mem_delta"]


def lines(text: str) -> str:
    return dedent(text).strip("\n")


def test_it_looks_as_torch_flops_prints_it():
    as_there = tabulate.tabulate(
        ROWS,
        [column.header for column in RESULT],
        tablefmt="rst",
        intfmt=[""] * 4 + [","] + [""] + [","] * 2 + ["+,"],
        floatfmt=".3f",
    )
    assert result_table(RESULT, ROWS) == as_there


def test_words_and_unmeasured_cells_among_numbers():
    assert result_table(RESULT, [ROWS[1], UNKNOWN], columns=BRIEF) == lines("""
        ===========  ==============  ==========  ==============
        node_name             flops    time(ms)    mem_delta(B)
        ===========  ==============  ==========  ==============
        conv              3,000,000       1.500        +121,456
        scan         not_recognized           -               -
        ===========  ==============  ==========  ==============
    """)


def test_top_with_a_footer_that_says_how_much_it_is():
    assert result_table(RESULT, [*ROWS, UNKNOWN], sort_by="time", top=2, columns=["node_name", "time"]) == lines("""
        ===========  ==========
        node_name      time(ms)
        ===========  ==========
        add               2.500
        conv              1.500
        ===========  ==========
        top 2 of 4 nodes: 99.7% of time(ms), 100.0% of flops
    """)


@pytest.mark.parametrize(
    ("arguments", "footer"),
    [
        ({"sort_by": "flops", "top": 1}, "top 1 of 4 nodes: 75.0% of flops, 37.4% of time(ms)"),
        ({"top": 2}, "first 2 of 4 nodes: 37.7% of time(ms), 75.0% of flops"),
        ({"where": {"node_op": "call_function"}}, "2 of 4 nodes: 62.3% of time(ms), 25.0% of flops"),
        (
            {"where": {"node_op": "call_function"}, "top": 1},
            "first 1 of 2 matching, 4 nodes in all: 62.3% of time(ms), 25.0% of flops",
        ),
    ],
)
def test_footers(arguments, footer):
    assert result_table(RESULT, [*ROWS, UNKNOWN], **arguments).splitlines()[-1] == footer


def test_no_footer_when_everything_is_shown_and_no_share_of_nothing():
    assert result_table(RESULT, ROWS, top=9).endswith("=")
    untimed = [[*row[:5], None, None, None, None] for row in ROWS]
    assert result_table(RESULT, untimed, top=1).endswith("first 1 of 3 nodes: 0.0% of flops")


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("flops", ["conv", "add", "x", "scan"]),
        ("time(ms)", ["add", "conv", "x", "scan"]),
        ("mem_delta", ["conv", "x", "add", "scan"]),
        ("memory", ["conv", "x", "add", "scan"]),
        ("node_name", ["add", "conv", "scan", "x"]),
        (None, ["scan", "x", "conv", "add"]),
    ],
)
def test_sort_by(by, names):
    text = result_table(RESULT, [UNKNOWN, *ROWS], sort_by=by, columns="node_name", tablefmt="tsv")
    assert [line.strip() for line in text.splitlines()[1:]] == names


def test_where_takes_values_and_functions_and_skips_cells_without_a_number():
    text = result_table(
        RESULT, [UNKNOWN, *ROWS], where={"flops": lambda n: n > 0}, columns=["node_name"], tablefmt="tsv"
    )
    assert text.split() == ["node_name", "conv", "add"]


def test_a_mistake_in_a_where_function_is_not_swallowed():
    with pytest.raises(TypeError):
        result_table(RESULT, ROWS, where={"flops": lambda n: n + "1"})


def test_units_auto():
    assert result_table(RESULT, [*ROWS, UNKNOWN], columns=BRIEF, units="auto") == lines("""
        ===========  ==============  ========  ===========
        node_name             flops      time    mem_delta
        ===========  ==============  ========  ===========
        x                         0  12.50 us     +1,000 B
        conv                 3.00 M   1.50 ms   +118.6 KiB
        add                  1.00 M   2.50 ms       -456 B
        scan         not_recognized         -            -
        ===========  ==============  ========  ===========
    """)


def test_one_unit_leaves_the_other_columns_raw():
    assert result_table(RESULT, ROWS[1:], columns=BRIEF, units="G") == lines("""
        ===========  =======  ==========  ==============
        node_name      flops    time(ms)    mem_delta(B)
        ===========  =======  ==========  ==============
        conv          0.00 G       1.500        +121,456
        add           0.00 G       2.500            -456
        ===========  =======  ==========  ==============
    """)


def test_a_narrow_table_has_op_target_elided_first_and_then_node_name():
    rows = [["blocks_0_attn_qkv_projection", "call_module", "blocks.0.attn.qkv.projection", "Linear", 8]]
    header = RESULT[:5]
    assert result_table(header, rows, width=80) == lines("""
        ============================  ===========  ============  ==============  =======
        node_name                     node_op      op_target     which_module      flops
        ============================  ===========  ============  ==============  =======
        blocks_0_attn_qkv_projection  call_module  blocks…ction  Linear                8
        ============================  ===========  ============  ==============  =======
    """)
    narrow = result_table(header, rows, width=70)
    assert narrow.splitlines()[3].split()[:3] == ["blocks_0_…ojection", "call_module", "blocks…ction"]
    assert max(map(len, narrow.splitlines())) <= 70
    assert "blocks.0.attn.qkv.projection" in result_table(header, rows, width=None)


def test_markup_is_neither_elided_nor_given_a_footer():
    text = result_table(RESULT, ROWS, top=1, sort_by="time", width=40, tablefmt="html")
    assert "&lt;built-in function add&gt;" in text
    assert text.endswith("</table>")


def test_markdown_escapes_bars_and_parts_the_footer_from_the_table():
    text = result_table(RESULT, [["a|b", *ROWS[0][1:]], *ROWS], columns=["node_name"], top=1, tablefmt="github")
    assert r"a\|b" in text
    assert "\n\nfirst 1 of 4 nodes" in text


def test_names_that_are_numbers_stay_names():
    text = result_table(RESULT[:5], [["_0", "call_module", "0", "Linear", 8]], columns=["op_target", "flops"])
    assert text.splitlines()[3] == "0                  8"


def test_no_rows():
    assert len(result_table(RESULT, []).splitlines()) == 4


def test_a_name_cannot_break_the_line():
    assert len(result_table(RESULT, [["a\nb", *ROWS[0][1:]]]).splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"sort_by": "tme"},
            r"no column 'tme' \(did you mean time\?\); expected some of node_name, node_op, op_target, which_module, flops, time, mem_before_op",
        ),
        ({"columns": ["name"]}, "no column 'name'"),
        ({"where": {"op": 1}}, "no column 'op'"),
        ({"units": "GB"}, "unknown units 'GB'"),
        ({"top": 0}, "top must be an int of at least 1, or None for all; got 0"),
        ({"tablefmt": "excel"}, "unknown tablefmt 'excel'; expected one of .*rst"),
    ],
)
def test_unknown_words(arguments, said):
    with pytest.raises(InputError, match=said):
        result_table(RESULT, ROWS, **arguments)


def test_what_was_not_measured_sorts_nothing():
    rows = [["linear", None], ["add", None]]
    with pytest.raises(InputError, match=r"cannot sort by 'time'.*not measured"):
        grid([OPERATOR, TIME], rows, sort_by="time")
    assert grid([OPERATOR, TIME], [], sort_by="time")


def test_grid():
    rows = [["linear", 17, 10_000_000_000, 0.045], ["add", 9, 937_000, None]]
    assert grid([OPERATOR, CALLS, FLOPS, TIME], rows, units="auto", sort_by="operator") == lines("""
        operator      calls    flops      time
        ----------  -------  -------  --------
        add               9  937.0 k         -
        linear           17  10.00 G  45.00 ms
    """)


@pytest.mark.parametrize(
    ("width", "header"),
    [
        (46, ["operator", "calls", "flops"]),
        (40, ["operator", "calls", "flops"]),  # operator names are cut
        (33, ["operator", "flops"]),
        (25, ["operator"]),
        (9, ["operator"]),  # as narrow as possible
    ],
)
def test_what_is_expendable_is_left_out_where_cutting_is_not_enough(width, header):
    rows = [["scaled_dot_product_attention", 17, 1_000]]
    text = grid([OPERATOR, CALLS, FLOPS], rows, width=width, elidable=["operator"], expendable=["calls", "flops"])
    assert text.splitlines()[0].split() == header
    assert max(map(len, text.splitlines())) <= max(width, 12)
    left_out = " ".join(text.split()).partition("no room for ")[2]
    assert left_out == ", ".join(name for name in ("calls", "flops") if name not in header)


def test_tabulate_is_left_as_it_was():
    before = {name: value for name, value in vars(tabulate).items() if name.isupper()}
    result_table(RESULT, ROWS, top=1)
    assert {name: value for name, value in vars(tabulate).items() if name.isupper()} == before


def test_a_narrow_table_without_rows():
    assert max(map(len, result_table(RESULT[:3], [], width=10).splitlines())) > 10

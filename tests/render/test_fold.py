from __future__ import annotations

import pytest

from fxflops.render.fold import common_name, folded


def test_siblings_alike_fold_to_their_mean_time_and_highest_peak(root):
    (item,) = folded(root.children[1].children)
    assert (item.name, item.path, item.count) == ("0..3", "blocks.0..3", 4)
    assert item.row.seconds == pytest.approx((0.012 + 0.014 + 0.016 + 0.018) / 4)
    assert item.row.children[0].seconds == pytest.approx(item.row.seconds / 4)
    assert item.row.bytes_peak == 103 * 2**20
    assert item.total().seconds == pytest.approx(0.060)
    assert item.total().flops == root.children[1].flops


@pytest.mark.parametrize(
    "change",
    [{"flops": 1}, {"cls": "Other"}, {"params": 1}, {"calls": 2}, {"children": ()}, {"missing": 1}, {"frozen": 1}],
)
def test_a_different_one_parts_the_run(root, change):
    blocks = list(root.children[1].children)
    blocks[2] = blocks[2]._replace(**change)
    assert [(item.name, item.count) for item in folded(blocks)] == [("0..1", 2), ("2", 1), ("3", 1)]


def test_a_difference_deep_below_parts_too(root):
    blocks = list(root.children[1].children)
    attn, mlp = blocks[3].children
    blocks[3] = blocks[3]._replace(children=(attn, mlp._replace(cls="GatedMlp")))
    assert [item.count for item in folded(blocks)] == [3, 1]


def test_no_fold(root):
    assert [item.count for item in folded(root.children[1].children, fold=False)] == [1, 1, 1, 1]


def test_what_was_not_timed_stays_unknown(root):
    untimed = [row._replace(seconds=None, bytes_peak=None) for row in root.children[1].children]
    (item,) = folded(untimed)
    assert item.row.seconds is item.row.bytes_peak is item.total().seconds is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["3"], "3"),
        (["0", "1", "2"], "0..2"),
        (["0", "2"], "0,2"),
        (["query", "key", "value"], "query,key,value"),
        (["transformer_a", "transformer_b"], "transformer_a..transformer_b"),
    ],
)
def test_common_name(names, expected):
    assert common_name(names) == expected

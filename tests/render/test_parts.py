from __future__ import annotations

import pytest

from fxflops.render.data import TreeRow
from fxflops.render.parts import parts_of


def row(path: str, cls: str, flops: int, *children: TreeRow, **more) -> TreeRow:
    return TreeRow(path.rpartition(".")[2], cls, path, 1, flops, 0, flops, children=children, **more)


def labels(*children: TreeRow, **more) -> list[str]:
    root = row("", "Net", sum(child.flops for child in children), *children, **more)
    return sorted(part.label for part in parts_of(root))


def mlp(path: str, flops: int) -> TreeRow:
    return row(path, "Mlp", flops, row(f"{path}.up", "Linear", flops // 2), row(f"{path}.down", "Linear", flops // 2))


def stage(path: str, blocks: int, mlp_flops: int, first: int = 0) -> TreeRow:
    """A list of blocks with a convolution of 10 FLOPs and an MLP each; the first block has ``first`` FLOPs more."""
    made = []
    for i in range(blocks):
        inside = [row(f"{path}.{i}.conv", "Conv2d", 10), mlp(f"{path}.{i}.mlp", mlp_flops)]
        inside += [row(f"{path}.{i}.downsample", "Conv2d", first)] if first and not i else []
        made.append(row(f"{path}.{i}", "Block", sum(each.flops for each in inside), *inside))
    return row(path, "Sequential", sum(block.flops for block in made), *made)


def test_repeated_blocks_are_opened_to_their_parts_and_an_mlp_is_not(root):
    parts = {part.label: part.row.flops for part in parts_of(root)}
    assert parts == {
        "blocks.*.mlp  Mlp (x4)": 4 * 1_800_000_000,
        "blocks.*.attn  Attention (x4)": 4 * 1_000_000_000,
        "blocks.*  (own: add x2)": 4 * 300_000,
        "embed  Conv2d": 231_000_000,
        "head  Linear": 1_537_000,
        "(own: add, cat)": 200_000,
    }


def test_the_seconds_of_a_part_are_the_sum_of_its_modules(root):
    (mlps,) = (part for part in parts_of(root) if part.row.cls == "Mlp")
    assert (
        mlps.row.seconds
        == sum(module.seconds for module in mlps.modules)
        == pytest.approx((0.012 + 0.014 + 0.016 + 0.018) / 2)
    )


def test_a_first_block_with_something_more_is_one_of_the_kind():
    assert labels(stage("layers", 3, 100, first=40)) == [
        "layers.*.conv  Conv2d (x3)",
        "layers.*.mlp  Mlp (x3)",
        "layers.0.downsample  Conv2d",
    ]


def test_blocks_whose_names_are_numbered_are_of_one_kind_too():
    blocks = [mlp("dense.layer1", 100), mlp("dense.layer2", 150), mlp("dense.layer3", 250)]
    assert labels(row("dense", "DenseBlock", 500, *blocks)) == [
        "dense.layer1,layer2  Mlp (x2)",
        "dense.layer3  Mlp",
    ]


def test_numbers_in_words_tell_kinds_apart():
    convs = [row(f"{name}_3x3", "Conv2d", 50) for name in ("Conv2d_1a", "Conv2d_2a", "branch5x5_1", "branch5x5_2")]
    assert labels(*convs) == ["Conv2d_1a_3x3  Conv2d", "Conv2d_2a_3x3  Conv2d", "branch5x5_*_3x3  Conv2d (x2)"]


def test_a_part_with_less_than_nine_tenths_of_its_cost_in_another_is_opened():
    layers = [row(f"h.{i}", "Layer", 100, mlp(f"h.{i}.mlp", 88), row(f"h.{i}.attn", "Attn", 12)) for i in (0, 1)]
    assert labels(row("h", "ModuleList", 200, *layers)) == ["h.*.attn  Attn (x2)", "h.*.mlp  Mlp (x2)"]


def test_stages_of_other_sizes_stay_apart():
    stages = row("stages", "Sequential", 1320 + 330, stage("stages.0", 3, 100), stage("stages.1", 3, 430))
    assert [label for label in labels(stages) if "Mlp" in label] == [
        "stages.0.*.mlp  Mlp (x3)",
        "stages.1.*.mlp  Mlp (x3)",
    ]


def test_a_list_of_leaves_with_most_of_the_cost_is_opened_and_only_equal_leaves_are_one():
    convs = [row(f"features.{i}", "Conv2d", flops) for i, flops in ((0, 5), (2, 90), (4, 90), (5, 60))]
    assert labels(
        row("features", "Sequential", 245, *convs), row("head", "Sequential", 10, row("head.0", "Linear", 10))
    ) == [
        "features.0  Conv2d",
        "features.2,4  Conv2d (x2)",
        "features.5  Conv2d",
        "head  Sequential",
    ]


def test_a_small_block_is_not_opened():
    attention = row("a.attn", "Attention", 20, row("a.attn.qkv", "Linear", 20))
    assert labels(row("a", "Block", 40, attention, mlp("a.mlp", 20)), row("b", "Linear", 60)) == [
        "a  Block",
        "b  Linear",
    ]


def test_a_wrapper_is_opened_however_small_it_is():
    assert labels(row("a", "A", 40, mlp("a.x", 38), mlp("a.y", 2)), row("b", "Linear", 60)) == [
        "a.x  Mlp",
        "a.y  Mlp",
        "b  Linear",
    ]


def test_where_nothing_is_counted_time_is_the_cost():
    timed = [
        row(f"a.{i}", "B", 0, row(f"a.{i}.b", "B", 0, row(f"a.{i}.b.c", "C", 0, seconds=1.0), seconds=1.0), seconds=1.0)
        for i in (0, 1)
    ]
    assert labels(row("a", "ModuleList", 0, *timed, seconds=2.0), seconds=2.0) == ["a.*.b  B (x2)"]


def test_a_model_without_modules_has_no_parts():
    assert labels() == []

from __future__ import annotations

from dataclasses import replace

import pytest

from fxflops.counting.steps import StepTime
from fxflops.meters.timing import Timing
from fxflops.records import OUTSIDE
from fxflops.render.conclusion import conclusion
from fxflops.render.data import TreeRow

SECOND = "35% of FLOPs in 4 Attention (blocks.*.attn)"


def untimed(row: TreeRow) -> TreeRow:
    return row._replace(seconds=None, own_seconds=None, children=tuple(map(untimed, row.children)))


def test_where_the_flops_and_the_time_are_and_what_was_slowest(vit):
    # 4 x 1.8 of 11.43 GFLOPs, and half of the blocks' 60 ms, of 62.5 ms in all. The last block took 18 ms.
    assert (
        conclusion(vit)
        == "63% of FLOPs and 48% of time in 4 Mlp (blocks.*.mlp); 35% of FLOPs and 24% of time in 4 Attention (blocks.*.attn); "
        "slowest: blocks.3.mlp, 9.00 ms"
    )


def test_the_utilization_is_said_if_it_is_known(vit):
    assert conclusion(vit, 0.412).split("; ")[2] == "41% of the device's peak"
    assert conclusion(vit, 0.003).split("; ")[2] == "<1% of the device's peak"


def test_times_that_are_no_good_are_said_to_be(vit):
    said = conclusion(replace(vit, unsteady="the runs differ by 255%"))
    assert said == f"63% of FLOPs in 4 Mlp (blocks.*.mlp); {SECOND}; the times are unsteady"


def test_counted_alone(vit):
    counted = replace(vit, root=untimed(vit.root), latency=None, nodes_seconds=None)
    assert conclusion(counted) == f"63% of FLOPs in 4 Mlp (blocks.*.mlp); {SECOND}; time not measured"


def test_time_spent_elsewhere_than_flops(vit):
    embed, blocks, head = vit.root.children
    root = vit.root._replace(children=(embed._replace(seconds=0.2), blocks, head), seconds=0.2605)
    said = (
        "63% of FLOPs and 12% of time in 4 Mlp (blocks.*.mlp); 35% of FLOPs and 6% of time in 4 Attention (blocks.*.attn); "
        "2% of FLOPs and 77% of time in embed (Conv2d); slowest: embed, 200.0 ms"
    )
    assert conclusion(replace(vit, root=root)) == said


def test_modules_of_a_class_in_several_places(vit):
    def conv(name: str, flops: int) -> TreeRow:
        return TreeRow(name, "Conv2d", name, 1, flops, 0, flops)

    root = TreeRow("", "Net", "", 1, 0, 0, 100, children=(conv("conv1", 60), conv("conv2", 30), conv("side", 10)))
    assert conclusion(replace(vit, root=root)) == "100% of FLOPs in 3 Conv2d, most FLOPs in conv*"
    same = root._replace(children=(conv("conv1", 50), conv("conv2", 30), conv("conv3", 20)))
    assert conclusion(replace(vit, root=same)) == "100% of FLOPs in 3 Conv2d (conv*), most FLOPs in conv1"
    bare = root._replace(children=(conv("0", 60), conv("1", 40)))
    assert conclusion(replace(vit, root=bare)) == "100% of FLOPs in 2 Conv2d, most FLOPs in module 0"
    tie = root._replace(children=(conv("conv1", 35), conv("conv2", 33), conv("conv3", 32)))
    assert conclusion(replace(vit, root=tie)) == "100% of FLOPs in 3 Conv2d (conv*)"


def test_work_outside_all_modules_is_the_models_own(vit):
    root = TreeRow(
        "", "Net", "", 1, 0, 0, 10, own_flops=10, own_ops={"add": 1}, children=(TreeRow("a", "A", "a", 0, 0, 0, 0),)
    )
    assert conclusion(replace(vit, root=root)) == "100% of FLOPs in the model itself (own: add)"


def test_of_an_incomplete_count_the_shares_are_of_what_was_counted(vit):
    root = untimed(vit.root)._replace(missing=3)
    said = SECOND.replace("of FLOPs", "of counted FLOPs")
    assert conclusion(replace(vit, root=root)) == f"63% of counted FLOPs in 4 Mlp (blocks.*.mlp); {said}"


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        ({"backward_flops": 22_867_874_000}, "67% of FLOPs in the backward"),
        ({"backward_flops": 1}, "100% of FLOPs in the forward"),
        (
            {"backward_flops": 1, "latency": Timing(1, 1, 1, 1), "backward_latency": Timing(3, 3, 3, 1)},
            "75% of time in the backward",
        ),
        (
            {"backward_flops": 1, "steps": {"step 1": StepTime(20, 1, 9, 8, 2, 0, 7)}, "workers": (0,)},
            "backward 9.00 s (45%), optimizer 8.00 s (40%), data loading 2.00 s (10%, num_workers=0)",
        ),
    ],
)
def test_the_phase_of_training_that_takes_most(vit, change, phase):
    data = replace(vit, root=untimed(vit.root), latency=None)
    assert conclusion(replace(data, **change)) == (f"{phase}; forward: 63% of FLOPs in 4 Mlp (blocks.*.mlp); {SECOND}")


def test_a_block_that_waits_for_its_data(vit):
    steps = {"step 1": StepTime(10, 1, 3, 0, 0, 6, 7)}
    said = conclusion(replace(vit, backward_flops=1, steps=steps))
    parts = "outside model and optimizer (loss, Python) 6.00 s (60%), backward 3.00 s (30%), forward 1.00 s (10%)"
    assert said.startswith(f"{parts}; forward: 63%")


@pytest.mark.parametrize(("called", "of"), [(True, "forward and outside"), (False, "work outside")])
def test_work_outside_the_model_is_not_its_forward_and_keeps_the_numbers_of_its_calls(vit, called, of):
    name = "(outside: matmul x3, add x3)"
    other = TreeRow(name, "", OUTSIDE, 1, 0, 0, 3 * vit.root.flops)
    children = (*untimed(vit.root).children, other) if called else (other,)
    root = untimed(vit.root)._replace(children=children, flops=4 * vit.root.flops, calls=int(called))
    said = conclusion(replace(vit, root=root, latency=None, backward_flops=12 * vit.root.flops))
    assert said == f"75% of FLOPs in the backward; {of}: 75% of FLOPs in {name}"


def test_a_loss_that_shows_in_no_figure_is_not_named_beside_the_forward(vit):
    loss = TreeRow("(outside: cross_entropy)", "", OUTSIDE, 1, 0, 0, vit.root.flops // 10_000)
    root = untimed(vit.root)._replace(children=(*untimed(vit.root).children, loss))
    said = conclusion(replace(vit, root=root, latency=None, backward_flops=2 * vit.root.flops))
    assert said.startswith("67% of FLOPs in the backward; forward: 63% of FLOPs in 4 Mlp")


def test_a_model_without_modules_has_its_operators(vit):
    assert conclusion(replace(vit, root=vit.root._replace(children=()))) == "87% of FLOPs in linear"
    assert conclusion(replace(vit, root=vit.root._replace(children=()), operators=())) == ""

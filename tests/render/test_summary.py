from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

from fxflops.counting.steps import StepTime
from fxflops.counting.uncounted import Missing
from fxflops.meters.timing import Timing
from fxflops.records import OUTSIDE
from fxflops.render.data import TreeRow
from fxflops.render.summary import flow, summary
from fxflops.render.text import ANSI, cells

SCAN = Missing("mylib::scan", 12, "blocks.*.ssm", "f32[1,197,768]", "model.py:88")
PASTE = "@fxflops.formula(torch.ops.mylib.scan)\ndef scan(x, *, out): return out.numel()\n"


def lines(text: str) -> str:
    return dedent(text).strip("\n")


def test_one_screen(vit):
    assert summary(vit) == lines("""
        ViT   input f32[1,3,224,224]   cpu (2 cores) · eval · no_grad · symbolic trace
        63% of FLOPs and 48% of time in 4 Mlp (blocks.*.mlp); 35% of FLOPs and 24% of time in 4 Attention (blocks.*.attn); slowest: blocks.3.mlp, 9.00 ms
        FLOPs    11.43 G     11,433,937,000 · convention fxflops, attention dense · complete: 41 of 41 calls
        MACs     5.72 G      5,715,768,000
        params   25.51 M     25,511,000 · all trainable · 97.32 MiB
        latency  60.00 ms    median of 10, 58.00-66.00 · operations add up to 62.50 ms (1.04x) · 190.6 GFLOP/s
        memory   103.0 MiB   peak = params 97.00 MiB + activations 6.00 MiB; at blocks.3.mlp.act
        where the cost is    module                           FLOPs     %       time     %  0%   of time    100%
                             blocks.*.mlp  Mlp (x4)          7.20 G  63.0   30.00 ms  48.0  █████████▋
                             blocks.*  (own: add x2)         1.20 M   0.0   15.00 ms  24.0  ████▊
                             blocks.*.attn  Attention (x4)   4.00 G  35.0   15.00 ms  24.0  ████▊
                             embed  Conv2d                  231.0 M   2.0    2.00 ms   3.2  ▋
                             (own: add, cat)                200.0 k   0.0   400.0 us   0.6  ▏
                             other                           1.54 M   0.0  100.00 us   0.2  ▏
        by operator          linear 87.5% · attention (scaled dot product) 10.5% · conv 2.0%
        by operator, time    linear 72.0% · attention (scaled dot product) 19.2% · layer_norm 4.8% · conv 3.2% · other 0.8%
        measured             fxflops 0.1.0 · torch 2.9.0 · 2026-01-02 03:04:05 UTC · cpu (2 cores) · 2 threads
    """)


def test_unsteady_times_are_said_to_be(vit):
    text = summary(
        replace(vit, unsteady="the runs differ by 60%; the operations took 1.6x the time of the model"), width=80
    )
    assert (
        lines("""
        unsteady             the runs differ by 60%
                             the operations took 1.6x the time of the model
                             measure again on an idle machine
    """)
        in text
    )


def test_why_it_is_missing_is_said_where_it_is_not_for_a_formula(vit):
    text = summary(replace(vit, counted_calls=29, missing=(SCAN, Missing("numpy", 1, why="its data leaves torch"))))
    first, second, why = text.splitlines()[-3:]
    assert first.startswith("not counted: mylib::scan x12")
    assert (second, why) == ("not counted: numpy x1", "    its data leaves torch")


def test_what_the_backward_lacks_makes_the_training_a_bound_and_not_the_forward(vit):
    text = summary(replace(vit, missing=(SCAN,), counted_calls=29, backward_flops=2_000_000_000))
    counts, _, training = text.splitlines()[2:5]
    assert counts.startswith("FLOPs    11.43 G     11,433,937,000 of the forward")
    assert counts.endswith("INCOMPLETE: 29 of 41 calls")
    assert training.startswith("training >= 13.43 G")


def test_incomplete_and_not_measured(vit):
    counted = replace(
        vit,
        counted_calls=29,
        latency=None,
        nodes_seconds=None,
        bytes_peak=None,
        root=vit.root._replace(seconds=None, children=(), missing=12),
        operators=(),
        missing=(SCAN,),
        paste=PASTE,
        int_ops=1_200_000_000,
    )
    assert summary(counted) == lines("""
        ViT   input f32[1,3,224,224]   cpu (2 cores) · eval · no_grad · symbolic trace
        FLOPs    >= 11.43 G  >= 11,433,937,000 · convention fxflops, attention dense · 1.20 G operations on integers · INCOMPLETE: 29 of 41 calls
        MACs     >= 5.72 G   >= 5,715,768,000
        params   25.51 M     25,511,000 · all trainable · 97.32 MiB
        not counted: mylib::scan x12 in blocks.*.ssm  f32[1,197,768]  (model.py:88)
        to count it, paste where the model is made:
            @fxflops.formula(torch.ops.mylib.scan)
            def scan(x, *, out): return out.numel()
    """)


def test_long_lines_are_continued_between_parts(vit):
    text = summary(vit, width=80)
    assert text.startswith(
        lines("""
        ViT   input f32[1,3,224,224]   cpu (2 cores) · eval · no_grad · symbolic trace
        63% of FLOPs and 48% of time in 4 Mlp (blocks.*.mlp)
            35% of FLOPs and 24% of time in 4 Attention (blocks.*.attn)
            slowest: blocks.3.mlp, 9.00 ms
        FLOPs    11.43 G     11,433,937,000 · convention fxflops, attention dense
                             complete: 41 of 41 calls
        MACs     5.72 G      5,715,768,000
        params   25.51 M     25,511,000 · all trainable · 97.32 MiB
        latency  60.00 ms    median of 10, 58.00-66.00
                             operations add up to 62.50 ms (1.04x) · 190.6 GFLOP/s
    """)
    )
    assert max(map(cells, text.splitlines())) <= 80


def test_a_part_longer_than_the_line_is_kept_whole():
    assert flow("a".ljust(4), ["bbbbbbbb", "cc"], " · ", 8, 4) == ["a   bbbbbbbb", "    cc"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"latency": None}, "latency  -           operations add up to 62.50 ms"),
        ({"latency": Timing(0.06, 0.06, 0.06, 1), "nodes_seconds": None}, "latency  60.00 ms    1 run · 190.6 GFLOP/s"),
        (
            {"memory": {"params": 1024, "buffers": 0}},
            "memory   103.0 MiB   peak = params 1.00 KiB; at blocks.3.mlp.act",
        ),
        ({"memory": {}, "peak_at": ""}, "memory   103.0 MiB   peak"),
        (
            {"memory": {"gradients": 1024}, "peak_phase": "backward", "peak_at": "0"},
            "memory   103.0 MiB   peak = gradients so far 1.00 KiB; at module 0 in the backward",
        ),
        (
            {"convention": "thop", "unit": "MACs"},
            "counted  11.43 G     11,433,937,000 · thop MACs · convention thop, attention dense · complete: 41 of 41 calls",
        ),
        (
            {"int_ops": 11_433_937},  # a thousandth of the FLOPs
            "FLOPs    11.43 G     11,433,937,000 · convention fxflops, attention dense · complete: 41 of 41 calls",
        ),
        (
            {"backward_flops": 22_000_000_000, "recompute_flops": 1_000_000_000},
            "training 33.43 G     FLOPs of forward 11.43 G · backward 22.00 G · plus recompute 1.00 G",
        ),
        ({"optimizer_flops": 300_000_000}, "opt step 300.0 M     FLOPs of the optimizer"),
        ({"backward_flops": 0}, "training 11.43 G     FLOPs of forward 11.43 G · backward 0"),
    ],
)
def test_lines_of_what_was_measured(vit, change, line):
    assert line in summary(replace(vit, **change)).splitlines()


def test_the_work_outside_the_model_is_shown_beside_its_forward(vit):
    other = TreeRow("(outside: cross_entropy)", "", OUTSIDE, 1, 0, 0, 1_433_937_000)  # of 11_433_937_000 in total
    root = vit.root._replace(children=(*vit.root.children, other))
    text = summary(replace(vit, root=root, backward_flops=22_000_000_000))
    line = "training 33.43 G     FLOPs of forward 10.00 G · outside the model 1.43 G · backward 22.00 G"
    assert line in text.splitlines()
    assert "forward and outside  module" in text
    assert "cost of forward " not in text


def test_many_kinds_of_missing_calls_are_summed(vit):
    missing = [Missing(f"lib::op{i}", 2) for i in range(11)]
    text = summary(replace(vit, missing=missing))
    assert text.splitlines()[-2:] == ["not counted: lib::op7 x2", "not counted: 3 more kinds, 6 calls"]


def test_color_changes_nothing_but_color(vit):
    incomplete = replace(vit, missing=(SCAN,), paste=PASTE)
    assert ANSI.sub("", summary(incomplete, width=90, color=True)) == summary(incomplete, width=90)
    assert "\x1b[1;31mINCOMPLETE" in summary(incomplete, color=True)


def test_names_cannot_break_a_line(vit):
    nasty = replace(vit, title="A\nB", missing=(Missing("x\x1b[2J", 1, "a\nb"),), peak_at="c\nd")
    assert "A\\nB" in summary(nasty)
    assert "\x1b" not in summary(nasty)


@pytest.mark.parametrize(
    ("number", "start"),
    [
        (99, "99 steps 50.00 us    median"),
        (100, "100 steps 50.00 us   median"),
        (12_000, "12,000 steps 50.00 us median"),
        (1_200_000, "1,200,000 steps 50.00 us median"),
    ],
)
def test_many_steps_leave_a_blank_between_the_columns(vit, number, start):
    steps = dict.fromkeys(map("step {}".format, range(number)), StepTime(5e-5, 5e-5, 0.0, 0.0, 0.0, 0.0, 0))
    assert any(line.startswith(start) for line in summary(replace(vit, steps=steps), width=90).splitlines())


def test_the_steps_of_several_models_are_their_calls(vit):
    steps = {
        f"{name} step {i}": StepTime(1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0) for i in (1, 2) for name in ("gan.g", "gan.d")
    }
    text = " ".join(summary(replace(vit, steps=steps)).split())
    assert "2 steps 1.00 s each a call of gan.g · median, 1.00-1.00" in text
    assert "2 steps 1.00 s each a call of gan.d" in text
    of_one = {f"step {i}": StepTime(1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0) for i in (1, 2)}
    assert "each a call of" not in summary(replace(vit, steps=of_one))


def test_a_block_that_was_observed_for_long_is_said_to_be_too_long(vit):
    steps = {"step 1": StepTime(10.0, 10.0, 0.0, 0.0, 0.0, 0.0, 0)}
    texts = [summary(replace(vit, steps=steps, instruments=seconds)) for seconds in (15.0, 25.0)]
    assert ["times may be too long or too short" in text for text in texts] == [False, True]


@pytest.mark.parametrize(
    ("loading", "workers", "advice"),
    [
        # 8 s of loading and 2 s of other work: 4 loaders return a batch as often as the loop takes one.
        (8.0, 0, "about 4 workers (num_workers=4)"),
        # Three workers load during all 10 s: the batches took 30 s of loading, and there are 5 s of other work.
        (5.0, 3, "about 6 workers (num_workers=6)"),
        (1.0, 0, "about 1 worker (num_workers=1)"),
        (9.9, 0, "loading takes about 99 times as long as the rest of the loop"),
        (0.5, 0, None),
    ],
)
def test_how_many_workers_would_do(vit, loading: float, workers: int, advice: str | None):
    step = StepTime(10.0, 10.0 - loading, 0.0, 0.0, loading, 0.0, 0)
    text = " ".join(summary(replace(vit, steps={"step 1": step}, workers=(workers,))).split())
    if advice is None:
        assert "as the loop" not in text
    else:
        assert advice in text

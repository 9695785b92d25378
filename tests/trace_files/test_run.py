"""Reports of traces, compared with published tables, with ``analyze``, and with events written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from benchmarks.traces import compared
from fxflops.errors import InputError, MissingFormulaError
from fxflops.report.report import Report

from .traces import Event, event, kernel, launch, mm, module, node, written

H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf8"))
"""Rows of the tables that TraceLens (https://github.com/AMD-AGI/TraceLens, tests/traces/h100) publishes for its traces. The
arguments, the kernels of each call and their microseconds come from the same traces.
"""


def replayed(row: dict[str, Any]) -> list[Event]:
    """Return the events of the calls in a published row."""
    events, number = [], 0
    for i, kernels in enumerate(row["kernels"]):
        events.append(event(row["name"], 1000 * i, 500, **row["args"]))
        for j, (name, microseconds) in enumerate(kernels):
            number += 1
            category = "gpu_memset" if name.startswith("Memset") else "kernel"
            events += [launch(number, 1000 * i + j + 1)]
            events += [kernel(number, 1000 * i + 200 * (j + 1), microseconds, name, category)]
    return events


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["name"])
def test_published_rows(tmp_path: Path, row: dict[str, Any]) -> None:
    report = fxflops.read_trace(written(tmp_path, replayed(row), deviceProperties=H100))
    rows = report.roofline().rows
    bias = report.calls[0].out.numel() if row["name"] == "aten::addmm" else 0
    flops = 2 * report.counted[0].macs + bias  # TraceLens adds a bias to the first product too
    assert flops == round(row["gflop"] * 1e9)
    speeds = [flops / each.seconds / 1e12 for each in rows if each.seconds]
    assert len(speeds) == len(row["kernels"])
    assert sum(speeds) / len(speeds) == pytest.approx(row["tflops"], rel=1e-3)


def test_the_row_of_the_issue(tmp_path: Path) -> None:
    report = fxflops.read_trace(written(tmp_path, replayed(PUBLISHED[0]), deviceProperties=H100))
    row = report.roofline().rows[0]
    assert (row.flops, row.dtype, row.binds) == (51_581_550_592, "bf16", "compute")
    assert report.environment.device == "cuda:0 (NVIDIA H100 80GB HBM3)"
    mean = sum(each.flops_per_second or 0 for each in report.roofline().rows) / len(report.calls)
    assert mean / 1e12 == pytest.approx(610.67, abs=0.1)
    ((operator, name, calls, _, flops, speed), (_, fill, _, _, no_flops, _)) = report.kernels.rows
    assert (operator, calls, flops) == ("aten::mm", 48, report.total_flops)
    assert name.startswith("sm90_xmma_gemm")
    assert speed > 610e12  # without the fill that runs before it
    assert (fill, no_flops) == ("Memset (Device)", None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("encoder", "reentrant"), ("bert", "forward"), ("gpt2", "training"), ("llama", "checkpoint"), ("resnet18", "checkpoint"),
     ("mobilenet_v2", "training"), ("convnext_atto", "forward")],
)  # fmt: skip
def test_contractions_are_those_of_analyze(name: str, kind: str) -> None:
    pytest.importorskip({"r": "torchvision", "m": "torchvision", "c": "timm"}.get(name[0], "transformers"))
    traced, analyzed, report = compared(name, kind)
    assert traced == analyzed
    assert report.complete
    assert bool(traced["recompute"]) is (kind in ("checkpoint", "reentrant"))


def step(start: float, number: int) -> list[Event]:
    """Return the events of a training step on a CPU: 30 MACs forward, 60 backward, and 30 in the optimizer."""
    mark = event(f"ProfilerStep#{number}", start, 900, "user_annotation")
    backward = [node("MmBackward0", start + 100, 200, number), mm(start + 110), mm(start + 150)]
    optimizer = [event("Optimizer.step#SGD.step", start + 400, 100, "user_annotation"), mm(start + 410)]
    forward = [module("Net_0", start + 10, 80), module("Linear_0", start + 15, 60), mm(start + 20, sequence=number)]
    return [mark, *forward, *backward, *optimizer]


def test_phases_modules_and_steps(tmp_path: Path) -> None:
    report = fxflops.read_trace(written(tmp_path, [*step(0, 3), *step(1000, 4)]))
    assert [report.by_module(phase)[""].total.macs for phase in ("forward", "backward", "optimizer")] == [60, 120, 60]
    assert report["Net_0.Linear_0"].total.macs == 60
    assert report.by_module("backward")["Net_0.Linear_0"].total.macs == 120
    assert report["Net_0"].calls == 2
    times = report.step_times()
    assert list(times) == ["ProfilerStep 3", "ProfilerStep 4"]
    # Each product takes 10 us. A step lasts from its first product to the first product of the next step.
    assert times["ProfilerStep 3"].seconds == pytest.approx(1e-3)
    assert times["ProfilerStep 3"].backward == pytest.approx(20e-6)
    assert report.by_step()["ProfilerStep 4 backward"].total.macs == 60


def test_what_a_trace_does_not_tell_is_none(tmp_path: Path) -> None:
    report = fxflops.read_trace(written(tmp_path, step(0, 3)))
    assert (report.total_params, report.params, report.max_memory, dict(report.memory)) == (None, None, None, {})
    assert report["Net_0"].params is None
    assert "params" not in str(report)
    assert "memory" not in str(report)
    assert "? params" in repr(report)
    assert report.to_html() is not None
    assert report.diff(report).totals["params"].difference is None


def test_a_trace_is_saved_and_recounted(tmp_path: Path) -> None:
    report = fxflops.read_trace(
        written(tmp_path, [*step(0, 3), launch(1, 25), kernel(1, 30, 7), launch(2, 600), kernel(2, 700, 1)])
    )
    report.save(tmp_path / "saved.json")
    assert Report.load(tmp_path / "saved.json") == report
    assert report.recount("torch").total_flops == 2 * report.total_macs


def test_a_convention_that_counts_no_operators_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [mm(0)])
    assert fxflops.read_trace(path, convention="torch").total_flops == 60
    with pytest.raises(InputError, match="'thop' counts calls of functions and modules"):
        fxflops.read_trace(path, convention="thop")


def test_a_kernel_that_no_operator_launched_makes_a_report_incomplete(tmp_path: Path) -> None:
    path = written(
        tmp_path, [mm(0), launch(1, 2), kernel(1, 30, 7), launch(2, 50), kernel(2, 60, 3, "triton_poi_fused")]
    )
    report = fxflops.read_trace(path)
    assert [(each.op, each.calls) for each in report.missing] == [("triton_poi_fused", 1)]
    assert report.by_operator()["triton_poi_fused"].total.seconds == pytest.approx(3e-6)
    with pytest.raises(MissingFormulaError, match="triton_poi_fused"):
        fxflops.read_trace(path, strict=True)


def test_an_operator_of_nobody_can_be_given_a_formula(tmp_path: Path) -> None:
    path = written(tmp_path, [event("nobodys::scan", 0, 5, **{"Input type": ["float"], "Input Dims": [[8, 10]]})])
    assert [each.op for each in fxflops.read_trace(path).missing] == ["nobodys::scan"]
    counted = fxflops.read_trace(path, formulas={"nobodys::scan": lambda input, *, out: input.numel()})
    assert (counted.total_flops, counted.complete) == (80, True)


def test_an_operator_that_checkpoint_stopped_is_not_counted(tmp_path: Path) -> None:
    """Checkpoint ends its recomputation with an exception once the last needed tensor is saved, before the kernel runs."""
    worked = [mm(0, 20, sequence=1), event("aten::resolve_conj", 2, 1)]
    stopped = [node("MulBackward0", 100, 100, 1), mm(110, 5, sequence=2), event("aten::detach", 111, 1), mm(150, 20)]
    report = fxflops.read_trace(written(tmp_path, [*worked, *stopped, event("aten::resolve_conj", 152, 1)]))
    assert [call.phase for call in report.calls] == ["forward", "backward"]


def test_the_device_may_be_given(tmp_path: Path) -> None:
    path = written(tmp_path, [mm(0), launch(1, 2), kernel(1, 30, 7)])
    with pytest.raises(InputError, match="cannot be measured here"):
        fxflops.read_trace(path).roofline()
    found = fxflops.read_trace(path, device="MI300X").roofline()
    assert (found.device.name, found.rows[0].seconds) == ("MI300X", pytest.approx(7e-6))


def test_a_device_that_a_trace_has_nothing_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a trace of a CPU run: it has no kernels"):
        fxflops.read_trace(written(tmp_path, [mm(0)]), device="H100")


def test_a_compiled_graph_on_a_cpu_hides_its_fused_kernels(tmp_path: Path) -> None:
    graph = event("## Call CompiledFxGraph abc ##", 0, 100, "user_annotation")
    report = fxflops.read_trace(written(tmp_path, [graph, mm(10)]))
    assert (report.total_macs, report.complete) == (30, False)
    assert [(each.op, each.calls) for each in report.missing] == [("## Call CompiledFxGraph abc ##", 1)]
    assert fxflops.read_trace(written(tmp_path, [graph])).total_flops == 0, "one without other operators"
    on_device = [graph, mm(10), launch(1, 11), kernel(1, 20, 5)]
    assert fxflops.read_trace(written(tmp_path, on_device)).complete, "there the kernels are seen"


def test_conventions_that_count_no_operators_are_refused_later_too(tmp_path: Path) -> None:
    report = fxflops.read_trace(written(tmp_path, [mm(0)]))
    with pytest.raises(
        InputError, match="'fvcore' counts calls of functions and modules, but a trace shows only operators"
    ):
        report.recount("fvcore")
    with pytest.raises(InputError, match="'thop' counts calls"):
        report.explain("torch", "thop")


def test_integer_products_have_no_flops(tmp_path: Path) -> None:
    arguments = {"Input type": ["long int", "long int"], "Input Dims": [[2, 3], [3, 5]], "Concrete Inputs": ["", ""]}
    report = fxflops.read_trace(written(tmp_path, [event("aten::mm", 0, 10, **arguments)]))
    assert (report.total_macs, report.total_flops) == (30, 0)
    assert report.total_int_ops > 0


def test_a_number_that_is_not_shown_is_one_that_need_not_be_given(tmp_path: Path) -> None:
    """``std(dim, unbiased)`` has as many arguments as ``std(dim, correction, keepdim)``, and calls it."""
    arguments = {"Input type": ["float", "", "", "Scalar"], "Input Dims": [[4, 16], [], [], []]}
    shown = event("aten::std", 0, 10, **arguments, **{"Concrete Inputs": ["", "", "", "False"]})
    report = fxflops.read_trace(written(tmp_path, [shown]))
    assert [call.op for call in report.calls] == ["std"]


@pytest.mark.parametrize(
    ("optimizer", "given", "per_element", "counters"),
    [
        (torch.optim.SGD, {}, 2, 0),  # p - lr g
        (torch.optim.Adam, {}, 3 + 4 + 3 + 3, 1),  # both moments, the root of the second, and p - step * m / root
        (torch.optim.AdamW, {"weight_decay": 0.1}, 13 + 1, 1),
        (torch.optim.AdamW, {"amsgrad": True, "weight_decay": 0.0}, 13 + 1, 1),
        (torch.optim.Adagrad, {}, 2 + 2 + 3, 1),
    ],
)
def test_fused_optimizers_are_counted_with_lists_that_are_empty(
    tmp_path: Path, optimizer: Any, given: dict[str, Any], per_element: int, counters: int
) -> None:
    """For example, the list of momentum buffers without momentum. A counter adds 1 for each of the two parameters, which have 20
    elements together.
    """
    model = nn.Linear(4, 4)
    made = optimizer(model.parameters(), fused=True, **given)
    model(torch.ones(2, 4)).sum().backward()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        made.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    with fxflops.profile(model, optimizer=made) as p:
        made.step()
    report = fxflops.read_trace(tmp_path / "trace.json")
    assert report.complete
    assert report.total_optimizer_flops == p.report.total_optimizer_flops == 20 * per_element + 2 * counters


def test_a_list_whose_shape_is_not_shown_is_not_empty(tmp_path: Path) -> None:
    """Older versions of torch show no shapes for lists."""
    shown = {"Input type": ["TensorList"], "Input Dims": [[]], "Concrete Inputs": [""]}
    report = fxflops.read_trace(written(tmp_path, [mm(0), event("aten::_foreach_exp_", 20, 5, **shown)]))
    assert [each.op for each in report.missing] == ["aten::_foreach_exp_"]

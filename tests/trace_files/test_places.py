"""The phase, the module and the kernels of each operator of a trace."""

from __future__ import annotations

from pathlib import Path

from fxflops.trace_files.places import TraceOperator, TraceWalk
from fxflops.trace_files.reading import read_file

from .traces import Event, event, kernel, launch, mm, module, node, written


def walked(folder: Path, *events: Event) -> TraceWalk:
    return TraceWalk(read_file(written(folder, events)), lambda each: each.name != "aten::linear")


def phases(operators: list[TraceOperator]) -> list[str]:
    return [each.phase for each in operators]


def test_what_is_nested_in_an_operator_belongs_to_it(tmp_path: Path) -> None:
    linear = event("aten::linear", 0, 30)
    found = walked(tmp_path, linear, mm(5, 20), event("aten::resolve_conj", 6, 1), event("aten::detach", 8, 1))
    assert [(each.event.name, each.inner) for each in found.operators] == [("aten::mm", 1)]


def test_an_operator_that_calls_none_is_counted_itself(tmp_path: Path) -> None:
    linear, other = event("aten::linear", 0, 30), event("aten::linear", 40, 10)
    trace = read_file(written(tmp_path, [linear, mm(5, 20), other]))
    seen = TraceWalk(trace, lambda each: None if each.name == "aten::linear" else True).operators
    assert [(each.event.name, each.event.start) for each in seen] == [("aten::mm", 5000), ("aten::linear", 40000)]


def test_what_autograd_runs_is_backward_on_any_thread(tmp_path: Path) -> None:
    events = [mm(0, sequence=7), node("MmBackward0", 20, 40, 7, thread=2), mm(22, thread=2), mm(40, thread=2), mm(70)]
    assert phases(walked(tmp_path, *events).operators) == ["forward", "backward", "backward", "forward"]


def test_what_autograd_records_in_the_backward_is_recomputed(tmp_path: Path) -> None:
    """Checkpoint recomputes in the first node that needs a saved tensor. The node's own operators follow."""
    events = [mm(0, sequence=7), node("MmBackward0", 20, 60, 7), mm(22, sequence=8), mm(40), mm(60)]
    assert phases(walked(tmp_path, *events).operators) == ["forward", "recompute", "backward", "backward"]


def test_a_gradient_to_be_differentiated_is_not_recomputed(tmp_path: Path) -> None:
    events = [mm(0, sequence=7), node("MmBackward0", 20, 60, 7), mm(22, sequence=8), mm(40, sequence=9)]
    assert phases(walked(tmp_path, *events).operators) == ["forward", "backward", "backward"]


def test_the_older_checkpoint_recomputes_under_a_node_of_its_own(tmp_path: Path) -> None:
    outer, apply = node("CheckpointFunctionBackward", 20, 100, 7), event("CheckpointFunctionBackward", 21, 98)
    events = [outer, apply, mm(22, sequence=8), node("MmBackward0", 60, 30, 8), mm(62), mm(0, sequence=7)]
    assert phases(walked(tmp_path, *events).operators) == ["forward", "recompute", "backward"]


def test_frames_of_checkpoint_tell_that_it_recomputes(tmp_path: Path) -> None:
    frame = event("torch/utils/checkpoint.py(1351): unpack_hook", 21, 15, "python_function")
    events = [mm(0, sequence=7), node("MmBackward0", 20, 60, 7), frame, mm(22), mm(40)]
    assert phases(walked(tmp_path, *events).operators) == ["forward", "recompute", "backward"]


def test_an_optimizer_and_its_closure(tmp_path: Path) -> None:
    step = event("Optimizer.step#LBFGS.step", 0, 200, "user_annotation")
    events = [step, mm(10), mm(30, sequence=3), node("MmBackward0", 60, 20, 3), mm(62), mm(100)]
    assert phases(walked(tmp_path, *events).operators) == ["optimizer", "forward", "backward", "optimizer"]


def test_modules_are_known_by_their_frames(tmp_path: Path) -> None:
    inside = [
        module("Net_0", 0, 100),
        module("Linear_0", 10, 30),
        mm(12, sequence=1),
        module("Linear_1", 50, 30),
        mm(52),
    ]
    again = [node("MmBackward0", 200, 50, 1, thread=2), module("Linear_1", 205, 20, thread=2), mm(208, thread=2)]
    found = walked(tmp_path, *inside, *again, mm(230, thread=2))
    paths = ["Net_0.Linear_0", "Net_0.Linear_1", "Net_0.Linear_1", "Net_0.Linear_0"]
    assert [each.path for each in found.operators] == paths
    assert found.modules == {"Net_0": "Net", "Net_0.Linear_0": "Linear", "Net_0.Linear_1": "Linear"}
    assert found.entered.count("Net_0.Linear_1") == 2


def test_kernels_go_to_the_operator_that_launched_them(tmp_path: Path) -> None:
    inner = event("aten::resolve_conj", 2, 5)
    events = [mm(0, 20), inner, launch(11, 3), launch(12, 10), kernel(11, 50, 5, "fill"), kernel(12, 60, 9)]
    (found,) = walked(tmp_path, *events).operators
    assert [each.name for each in found.kernels] == ["fill", "gemm"]


def test_an_operator_that_is_looked_into_and_launches_is_counted(tmp_path: Path) -> None:
    """For example aten::_fused_rms_norm, which calls other operators if its device has no kernel for it."""
    events = [event("aten::linear", 0, 20), event("aten::empty", 1, 2), launch(11, 5), kernel(11, 50, 5)]
    found = walked(tmp_path, *events, event("aten::empty", 8, 2), mm(100)).operators
    assert [(each.event.name, len(each.kernels)) for each in found] == [
        ("aten::linear", 1),
        ("aten::empty", 0),
        ("aten::mm", 0),
    ]


def test_a_kernel_that_no_operator_launched_is_named(tmp_path: Path) -> None:
    events = [mm(0), launch(10, 2), kernel(10, 40, 5), launch(11, 20), kernel(11, 50, 5, "triton_poi_fused_add")]
    copy, earlier = kernel(12, 70, 1, "Memcpy HtoD", "gpu_memcpy"), kernel(9, 1, 1, "softmax")
    found = walked(tmp_path, *events, launch(12, 25), copy, earlier)
    assert [each.event.name for each in found.operators] == ["aten::mm", "triton_poi_fused_add"]
    assert [each.name for each in found.copies] == ["Memcpy HtoD"]
    assert [each.name for each in found.earlier] == ["softmax"]  # launched before the trace began

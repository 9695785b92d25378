"""The Chrome trace: events that a viewer can nest, with the report's times and bytes."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import Report, analyze, count, profile
from fxflops.meters.history import CATEGORIES


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


MODEL = nn.Sequential(Block(), Block(), nn.Linear(8, 2))


def trace_of(report: Report) -> dict[str, Any]:
    trace = json.loads(str(report.to_chrome_trace()))
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    return trace  # type: ignore[no-any-return]


def slices(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == category]


def training() -> Report:
    model = nn.Sequential(Block(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(model, optimizer=optimizer) as p:
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    return p.report


REPORTS = {
    "timed": lambda: analyze(MODEL, torch.randn(4, 8), repeats=2),
    "backward": lambda: analyze(MODEL, torch.randn(4, 8), repeats=2, backward=True),
    "counted": lambda: count(MODEL, torch.randn(4, 8)),
    "training": training,
}


@pytest.mark.parametrize("kind", REPORTS)
def test_every_event_is_well_formed_and_slices_nest(kind: str) -> None:
    trace = trace_of(REPORTS[kind]())
    lanes = defaultdict(list)
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert event["pid"] == 1
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
        elif event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int) for value in event["args"].values())
            assert event["ts"] >= 0
        else:
            assert event["ph"] == "X"
            assert event["dur"] >= 0
            assert (1000 * event["ts"]).is_integer()
            assert (1000 * event["dur"]).is_integer()
            lanes[event["tid"]].append(event)
    for events in lanes.values():
        assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
        stack: list[dict[str, Any]] = []
        for event in events:
            while (
                stack
                and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]
                and (stack[-1]["dur"] or not is_inside(event, stack[-1]))
            ):
                stack.pop()
            while stack and stack[-1]["cat"] == "operation":
                stack.pop()
            if stack:
                assert event["ts"] + event["dur"] <= stack[-1]["ts"] + stack[-1]["dur"]
            stack.append(event)


def is_inside(event: dict[str, Any], module: dict[str, Any]) -> bool:
    """Return whether an event belongs to a module's subtree. Times cannot tell when the clock shows none between two events."""
    path, above = event["args"].get("module", ""), module["args"].get("module", "")
    deeper = path != above and (not above or path.startswith(f"{above}."))
    return deeper or (event["cat"] == "operation" and path == above)


def test_times_are_the_reports() -> None:
    report = REPORTS["timed"]()
    trace = trace_of(report)
    assert trace["otherData"]["durations"] == "measured"
    [root] = [
        event for event in slices(trace, "module") if event["name"] == "Sequential" and not event["args"]["module"]
    ]
    assert report.total_time is not None
    assert root["dur"] == pytest.approx(1e6 * report.total_time, abs=0.13)
    for path in ("0", "0.inner", "1"):
        seconds = report[path].total.seconds
        assert seconds is not None
        lasted = sum(e["dur"] for e in slices(trace, "module") if e["args"]["module"] == path)
        assert lasted == pytest.approx(1e6 * seconds, abs=0.26)
    ops = slices(trace, "operation")
    assert sum(event["args"]["flops"] for event in ops) == report.total_flops
    assert [e["name"] for e in ops if e["args"].get("module", "").startswith("0")] == ["linear", "relu", "add"]


def test_an_operation_lies_within_its_modules() -> None:
    trace = trace_of(REPORTS["timed"]())
    modules = {event["args"]["module"]: event for event in slices(trace, "module")}
    for op in slices(trace, "operation"):
        path = op["args"].get("module", "")
        while path:
            around = modules[path]
            assert around["ts"] <= op["ts"]
            assert op["ts"] + op["dur"] <= around["ts"] + around["dur"]
            path = path.rpartition(".")[0]


def test_memory_is_the_reports() -> None:
    report = REPORTS["timed"]()
    counters = [event for event in trace_of(report)["traceEvents"] if event["ph"] == "C"]
    peaks = [event["args"]["peak"] for event in counters if "peak" in event["args"]]
    assert max(peaks) == max(node.bytes_peak or 0 for node in report.nodes)
    assert {event["args"].get("allocated") for event in counters} >= {node.bytes_after for node in report.nodes}


def test_memory_without_a_graph_is_the_timeline() -> None:
    report = REPORTS["training"]()
    counters = [event for event in trace_of(report)["traceEvents"] if event["ph"] == "C"]
    assert [tuple(event["args"][name] for name in CATEGORIES) for event in counters] == [
        tuple(m.live.values()) for m in report.timeline
    ]


def test_phases_follow_each_other_in_lanes() -> None:
    report = REPORTS["backward"]()
    trace = trace_of(report)
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert names == {0: "forward", 1: "backward"}
    ops = slices(trace, "operation")
    assert max(e["ts"] + e["dur"] for e in ops if e["tid"] == 0) <= min(e["ts"] for e in ops if e["tid"] == 1)
    assert sum(e["args"]["flops"] for e in ops if e["tid"] == 1) == report.total_backward_flops


def test_without_times_flops_are_the_lengths_and_it_says_so() -> None:
    report = count(nn.Linear(1000, 1000).to("meta"), torch.empty(1000, 1000, device="meta"))
    trace = trace_of(report)
    [op] = slices(trace, "operation")
    assert op["dur"] == report.total_flops / 1e6 == 2000.0
    assert "nothing was timed" in trace["otherData"]["durations"]
    assert any("1 us represents 1 MFLOP" in e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M")
    assert "seconds" not in op["args"]


def test_what_computes_nothing_takes_no_time() -> None:
    trace = trace_of(count(nn.Identity(), torch.ones(2)))
    assert [event["dur"] for event in trace["traceEvents"] if event["ph"] == "X"] == [0.0, 0.0]

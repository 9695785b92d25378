"""The memory snapshot: torch's own reader, and the viewer's rules, find the report's bytes in it."""

from __future__ import annotations

import copy
import pickle
import pickletools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz

from fxflops import InputError, Report, count, profile
from fxflops.prediction import CachingAllocator

READ_BY_THE_VIEWER = set(
    "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT EMPTY_LIST EMPTY_TUPLE FRAME LIST "
    "LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE NEWTRUE NONE PROTO SETITEM SETITEMS SHORT_BINUNICODE STOP TUPLE "
    "TUPLE1 TUPLE2 TUPLE3".split()
)
"""The opcodes of the unpickler in torch/utils/viz/MemoryViz.js. Below are the keys that it reads."""
OF_AN_EVENT = {"action", "addr", "size", "stream", "frames", "category"}
OF_A_SEGMENT = {"device", "address", "total_size", "stream", "frames", "blocks", "allocated_size"}
OF_A_BLOCK = {"size", "requested_size", "state", "frames"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(x)


def step() -> Report:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(model, optimizer=optimizer) as p:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
    return p.report


REPORTS = {
    "forward": lambda: count(Net(), torch.ones(8, 64)),
    "training": lambda: count(Net(), torch.ones(8, 64), backward=True, optimizer=torch.optim.AdamW),
    "profiled": step,
}


@pytest.fixture(scope="module", params=REPORTS)
def report(request: pytest.FixtureRequest) -> Report:
    return REPORTS[request.param]()


def snapshot_of(report: Report) -> dict[str, Any]:
    snapshot = report.to_memory_snapshot()
    assert snapshot is not None
    return snapshot


def live_by_category(snapshot: dict[str, Any]) -> Iterator[Counter[str]]:
    """Yield the bytes alive after each event, by the viewer's rule: free_completed frees an address."""
    [trace] = snapshot["device_traces"]
    held: dict[int, tuple[str, int]] = {}
    for event in trace:
        if event["action"] == "alloc":
            assert event["addr"] not in held
            held[event["addr"]] = event["category"], event["size"]
        elif event["action"] == "free_completed":
            assert held.pop(event["addr"])[1] == event["size"]
        found = Counter[str]()
        for category, size in held.values():
            found[category] += size
        yield found


def test_the_highest_point_is_the_reports_peak(report: Report) -> None:
    most = max(live_by_category(snapshot_of(report)), key=lambda live: live.total())
    assert most.total() == report.max_memory
    assert most == {category: nbytes for category, nbytes in report.memory.items() if nbytes}


def test_what_is_alive_at_the_end_are_the_segments(report: Report) -> None:
    snapshot = snapshot_of(report)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert sum(block["requested_size"] for block in blocks) == [*live_by_category(snapshot)][-1].total()
    assert all(block["size"] >= block["requested_size"] for block in blocks)
    for segment in snapshot["segments"]:
        ends = [block["address"] + block["size"] for block in segment["blocks"]]
        assert [block["address"] for block in segment["blocks"]] == [segment["address"], *ends[:-1]]
        assert ends[-1] == segment["address"] + segment["total_size"]
    assert all(set(segment) >= OF_A_SEGMENT for segment in snapshot["segments"])
    assert all(set(block) >= OF_A_BLOCK for block in blocks)


def test_it_tells_its_provenance_in_a_key_that_readers_leave_out(report: Report) -> None:
    assert snapshot_of(report)["provenance"] == report.provenance


def test_addresses_of_what_is_alive_never_overlap(report: Report) -> None:
    [trace] = snapshot_of(report)["device_traces"]
    assert all(set(event) == OF_AN_EVENT for event in trace)
    segments, alive = dict[int, int](), dict[int, int]()
    for event in trace:
        if event["action"] == "segment_alloc":
            segments[event["addr"]] = event["addr"] + event["size"]
        elif event["action"] == "free_completed":
            del alive[event["addr"]]
        elif event["action"] == "alloc":
            start, end = event["addr"], event["addr"] + event["size"]
            assert all(end <= other or upto <= start for other, upto in alive.items())
            assert any(begin <= start and end <= last for begin, last in segments.items())
            alive[start] = end


def test_the_simulated_allocator_reads_it_back(report: Report) -> None:
    """It starts from the empty device before the first event, and returns the same addresses."""
    snapshot = snapshot_of(report)
    allocator, addresses = CachingAllocator.from_snapshot(snapshot), dict[int, int]()
    assert allocator.reserved == 0
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            addresses[event["addr"]] = allocator.allocate(event["size"])
            assert addresses[event["addr"]] == event["addr"]
        elif event["action"] == "free_completed":
            allocator.free(addresses[event["addr"]])
    assert allocator.reserved == sum(segment["total_size"] for segment in snapshot["segments"])


def test_torchs_own_reader_reads_it(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    report.save(path)
    snapshot = pickle.loads(path.read_bytes())
    assert snapshot == report.to_memory_snapshot()
    end = [*live_by_category(snapshot)][-1].total()
    # A line of a flame graph has its frames, outermost first, and its bytes.
    lines = _memory_viz.memory(copy.deepcopy(snapshot), format_flamegraph=str).splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == sum(s["total_size"] for s in snapshot["segments"])
    assert any("Net:0:Net;mlp:0:Sequential;mlp.0:0:Linear;params:0:mlp.0.weight f32[256,64] 65536" in x for x in lines)
    assert f"segments: {len(snapshot['segments'])}" in _memory_viz.segsum(copy.deepcopy(snapshot))
    assert " = cudaMalloc(17592186044416, 2.0MiB)" in _memory_viz.trace(copy.deepcopy(snapshot))
    assert "Active Memory Timeline" in _memory_viz.trace_plot(copy.deepcopy(snapshot))
    kept = _memory_viz.filter_alloc_free_pairs(copy.deepcopy(snapshot))["device_traces"][0]
    assert sum(event["size"] for event in kept if event["action"] == "alloc") == end


def test_the_viewer_can_unpickle_it(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    report.to_memory_snapshot(path)
    assert {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())} <= READ_BY_THE_VIEWER


def test_an_allocation_has_the_frames_of_its_operation() -> None:
    [trace] = snapshot_of(count(Net(), torch.ones(8, 64)))["device_traces"]
    gelu = next(each for each in trace if each["action"] == "alloc" and "gelu" in each["frames"][0]["name"])
    assert gelu["size"] == 8 * 256 * 4
    assert [f"{frame['filename']}:{frame['name']}" for frame in gelu["frames"]] == [
        "activations:gelu f32[8,256]", "mlp.1:GELU", "mlp:Sequential", "Net:Net",
    ]  # fmt: skip


def test_optimizer_state_has_its_name_and_outlives_the_step() -> None:
    snapshot = snapshot_of(REPORTS["training"]())
    names = Counter(
        block["frames"][0]["name"] for segment in snapshot["segments"] for block in segment["blocks"] if block["frames"]
    )
    assert (names["exp_avg f32[256,64]"], names["exp_avg_sq f32[64]"], names["step f32[]"]) == (1, 1, 4)
    assert [*live_by_category(snapshot)][-1]["optimizer"] == sum(2 * 4 * n + 4 for n in (64 * 256, 256, 256 * 64, 64))


def test_a_saved_report_says_that_it_lacks_single_allocations() -> None:
    saved = Report.from_dict(count(Net(), torch.ones(8, 64)).to_dict())
    with pytest.raises(InputError, match="because it was read from a file"):
        saved.to_memory_snapshot()

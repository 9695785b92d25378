"""Trace files: the errors for files that cannot be read, and the times and threads of events."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fxflops.errors import InputError
from fxflops.trace_files.reading import read_file

from .traces import event, kernel, mm, written


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not JSON", "is not JSON"),
        ("{}", "has no traceEvents"),
        ('{"traceEvents": []}', "contains no operators"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1}]}',
            "record_shapes=True",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_what_is_wrong(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        read_file(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json") as raised:
        read_file(tmp_path / "nowhere.json")
    assert isinstance(raised.value, FileNotFoundError)


def test_a_damaged_archive_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"{}")[:8])
    with pytest.raises(InputError, match="not JSON"):
        read_file(path)


def test_packed_and_plain_files_are_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path, [mm(1.5, 0.25)])
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_file(packed).threads == read_file(plain).threads
    (found,) = read_file(plain).threads[1, 1]
    assert (found.start, found.end, found.seconds) == (1500, 1750, 2.5e-7)


def test_events_of_a_thread_are_in_order_and_the_device_is_apart(tmp_path: Path) -> None:
    inner, outer, other = mm(5, 2), event("outer", 5, 10), mm(1, 1, thread=2)
    found = read_file(written(tmp_path, [inner, outer, other, kernel(1, 20, 3)]))
    assert [each.name for each in found.threads[1, 1]] == ["outer", "aten::mm"]
    assert list(found.threads) == [(1, 2), (1, 1)]
    assert [each.name for each in found.on_device] == ["gemm"]


@pytest.mark.parametrize(
    ("described", "said"),
    [([{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "cuda:0 (NVIDIA H100 80GB HBM3)"), ([], "cuda:0")],
)
def test_the_device_is_that_of_the_kernels(tmp_path: Path, described: list[dict[str, object]], said: str) -> None:
    events = [mm(0), kernel(1, 2, 3)]
    assert read_file(written(tmp_path, events, deviceProperties=described)).hardware == said
    assert read_file(written(tmp_path, [mm(0)], deviceProperties=described)).hardware == "cpu"


@pytest.mark.parametrize(
    ("name", "is_operator"),
    [("aten::mm", True), ("torchvision::nms", True), ("torch::autograd::AccumulateGrad", False), ("MmBackward0", False),
     ("torch.distributed.ddp.reducer::copy_bucket_to_grad", False), ("nccl:all_reduce", False)],
)  # fmt: skip
def test_ranges_with_a_name_are_no_operators(tmp_path: Path, name: str, is_operator: bool) -> None:
    found = read_file(written(tmp_path, [mm(0), event(name, 20, 1)])).threads[1, 1]
    assert found[1].is_operator is is_operator

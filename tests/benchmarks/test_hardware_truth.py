"""The table from Nsight Compute: the kernels between two markers belong to one case, even if the file was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import hardware_truth
from benchmarks.hardware_truth import GPU_CASES, MARKER, gpu_table, rows_of

FFMA, TENSOR = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
PRODUCT = 2 * 1024**3


def written(folder: Path, *kernels: str, cut: bool = False) -> Path:
    """Write the counters of kernels in ncu's format; a product runs in the tensor cores."""
    lines = ["==PROF== Connected to process 1", '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"']
    for i, kernel in enumerate(kernels):
        work = f"{PRODUCT:,}" if kernel == "gemm" else "0"
        lines += [f'"{i}","{kernel}","{FFMA}","inst","0"', f'"{i}","{kernel}","{TENSOR}","","{work}"']
    file = folder / "ncu.csv"
    file.write_text("\n".join(lines) + ('\n"9","ge' if cut else "\n"), encoding="utf8")
    return file


def test_the_cases_before_it_was_cut_off(tmp_path: Path) -> None:
    (row,) = rows_of(written(tmp_path, MARKER, "gemm", MARKER, MARKER, "gemm", cut=True), "cpu")
    assert (row["case"], row["kernels"], row["tensor"]) == (GPU_CASES[0].name, ["gemm"], PRODUCT)
    assert row["per multiply-add"] == 2  # the hand count of 1024 x 1024 matrices has 1024**3 of them
    assert row["ratio"] == pytest.approx(1, abs=1e-3)  # a sum of k products has k - 1 adds
    assert gpu_table([row], "ncu took more than 30 s")[-1] == f"1 of {len(GPU_CASES)} cases: ncu took more than 30 s."


def test_no_table(tmp_path: Path) -> None:
    assert rows_of(tmp_path / "ncu.csv") == []
    assert rows_of(written(tmp_path, MARKER, "gemm"), "cpu") == []
    with pytest.raises(ValueError, match="markers of"):
        rows_of(written(tmp_path, *[MARKER] * (2 * len(GPU_CASES) + 1)), "cpu")


def test_all_that_is_asked_for_is_summed() -> None:
    assert all(map(hardware_truth.TENSOR.fullmatch, hardware_truth.TENSOR_COUNTERS))

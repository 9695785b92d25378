"""report.roofline and report.mfu: numbers by hand on a device of round numbers, and verdicts on real devices."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import fxflops
from fxflops.errors import InputError
from fxflops.meters.timing import Timing
from fxflops.roofline import measured_peaks
from fxflops.roofline import utilization as roofline_module
from fxflops.roofline.devices import DEVICES, Device
from fxflops.roofline.measured_peaks import TF32, Peak, measured
from fxflops.roofline.result import Roofline, Row
from fxflops.roofline.utilization import warn_if_busy

ROUND = {"f32": 1e9, "bf16": 4e9, "i8": 8e9}
MADE_UP = Device("made up", peaks=ROUND, bandwidth=1e8, launch=1e-6)
HERE = Device("cpu", peaks=ROUND, bandwidth=1e8, launch=1e-6)
FAST = Device("cpu", peaks={"f32": 1e15}, bandwidth=1e15)


def meta(module: nn.Module, *shape: int) -> fxflops.Report:
    return fxflops.count(module.to("meta"), torch.empty(*shape, device="meta"))


def test_by_hand() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.LayerNorm(100), nn.Flatten(), nn.Linear(100, 1), nn.Flatten())
    found = meta(model, 200, 100).roofline(MADE_UP)
    gemm, norm, view, tall, _ = found.rows
    assert gemm.flops == 2 * 200 * 100 * 100
    assert (gemm.bytes_read, gemm.bytes_written) == (4 * (20_000 + 10_000 + 100), 4 * 20_000)
    assert gemm.compute_seconds == pytest.approx(4e-3)  # 4e6 FLOPs at 1e9 FLOP/s
    assert gemm.memory_seconds == pytest.approx(2.004e-3)  # 200,400 bytes at 1e8 bytes/s
    assert gemm.launch_seconds == 1e-6
    assert (gemm.binds, gemm.bound_seconds) == ("compute", gemm.compute_seconds)
    assert gemm.intensity == pytest.approx(4e6 / 200_400)
    assert norm.flops == 4 * 20_000  # minus the mean, over the deviation, times the weight, plus the bias
    assert norm.bytes == 4 * (20_000 + 200 + 20_000)
    assert (norm.binds, norm.bound_seconds) == ("memory", pytest.approx(1.608e-3))
    assert (view.binds, view.bound_seconds, view.bytes, view.intensity) == ("nothing", 0.0, 0, None)
    assert (tall.flops, tall.bytes, tall.binds) == (2 * 200 * 100, 4 * (20_000 + 101 + 200), "memory")
    assert found.bound_seconds == pytest.approx(4e-3 + 1.608e-3 + 0.81204e-3)


def test_launch_bound() -> None:
    row = meta(nn.ReLU(), 3).roofline(MADE_UP).rows[0]
    assert (row.flops, row.bytes) == (3, 24)
    assert (row.binds, row.bound_seconds) == ("launch", 1e-6)


def test_sums() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.Sequential(nn.ReLU(), nn.Linear(100, 100)))
    found = meta(model, 200, 100).roofline(MADE_UP)
    modules, operators, kinds = found.by_module(), found.by_operator(), found.by_bound()
    assert list(operators) == ["linear", "relu"]
    assert operators["linear"].calls == 2
    assert operators["linear"].bound_seconds == pytest.approx(8e-3)
    assert modules[""].bound_seconds == found.bound_seconds == sum(row.bound_seconds for row in found.rows)
    assert modules["1"].bound_seconds == pytest.approx(4e-3 + 1.6e-3)
    assert modules["1"].binds == "compute"
    assert {kind: row.calls for kind, row in kinds.items()} == {"compute": 2, "memory": 1}


def test_dtypes_have_their_own_peaks() -> None:
    def row(dtype: torch.dtype) -> Row:
        layer = nn.Linear(512, 512, device="meta", dtype=dtype)
        return fxflops.count(layer, torch.empty(512, 512, device="meta", dtype=dtype)).roofline(MADE_UP).rows[0]

    full, half = row(torch.float32), row(torch.bfloat16)
    assert (full.dtype, half.dtype) == ("f32", "bf16")
    assert full.flops == half.flops
    assert full.compute_seconds == pytest.approx(4 * half.compute_seconds)
    assert full.bytes == 2 * half.bytes


def test_narrow_elementwise_may_be_computed_as_f32() -> None:
    slow = Device("slow in bf16", peaks={"f32": 1e9, "bf16": 1e7}, bandwidth=1e8, launch=0.0)
    report = fxflops.count(nn.ReLU(), torch.empty(1000, device="meta", dtype=torch.bfloat16))
    assert report.roofline(slow).rows[0].compute_seconds == pytest.approx(1000 / 1e9)


def test_tf32_where_torch_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("made up", peaks={"f32": 1e9, "tf32": 8e9}, bandwidth=1e12)
    report = meta(nn.Sequential(nn.Conv1d(64, 64, 3), nn.Linear(62, 62), nn.LayerNorm(62)), 8, 64, 64)
    for allowed, dtypes in (
        (TF32(matmul=False, cudnn=True), ["tf32", "f32", "f32"]),
        (TF32(matmul=True, cudnn=False), ["f32", "tf32", "f32"]),
    ):
        monkeypatch.setattr(roofline_module, "tf32_allowed", lambda allowed=allowed: allowed)
        found = report.roofline(device)
        assert [row.dtype for row in found.rows] == dtypes
        assert [row.flops / row.compute_seconds for row in found.rows] == pytest.approx(
            [device.peak(dtype) for dtype in dtypes]
        )


def test_integer_operations_are_no_flops() -> None:
    class Ints(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + x) @ x

    report = fxflops.count(Ints(), torch.ones(8, 8, dtype=torch.int8))
    add, product = report.roofline(MADE_UP).rows
    assert (add.flops, add.bytes, add.compute_seconds) == (0, 3 * 64, 0.0)
    assert (product.flops, product.dtype) == (0, "i8")
    assert product.compute_seconds == pytest.approx(2 * 8**3 / 8e9)  # its multiply-accumulates take time nevertheless
    assert report.roofline(MADE_UP).total.flops == 0


def test_what_a_mask_leaves_is_the_least() -> None:
    class Causal(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    report = fxflops.analyze(Causal(), torch.randn(1, 1, 100, 16))
    row = report.roofline(HERE).rows[0]
    pairs = 100 * 101 // 2
    assert 2 * 2 * 16 * pairs <= row.flops < report.total_flops
    assert report.mfu(FAST) == pytest.approx(2 * report.total_macs / (report.latency * 1e15))  # the model's work: dense


class Attends(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, k, **self.options)


MASKED: dict[str, Callable[[], dict[str, Any]]] = {
    "causal": lambda: {"is_causal": True},
    "grouped": lambda: {"is_causal": True, "enable_gqa": True},
    "lower right": lambda: {"attn_mask": causal_lower_right(16, 24)},
    "upper left": lambda: {"attn_mask": causal_upper_left(16, 24)},
    "without a kernel": lambda: {"is_causal": True, "dropout_p": 0.5},  # on a CPU its backward is plain products
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MASKED)
def test_what_the_arguments_mask_is_known_without_reading_it(name: str) -> None:
    """A dense count has the same bounds as an exact one, because a device need not compute masked pairs."""
    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    k = torch.randn(2, 4 if name != "grouped" else 2, 24, 8, requires_grad=True)
    dense, exact = (
        fxflops.count(Attends(**MASKED[name]()), (q, k), backward=True, attention=how) for how in ("dense", "exact")
    )
    assert exact.total_macs < dense.total_macs == 2 * 4 * 16 * 24 * 2 * 8
    for phase in ("forward", "backward"):
        assert dense.roofline(MADE_UP, phase).rows == exact.roofline(MADE_UP, phase).rows


def test_a_mask_on_meta_is_not_known() -> None:
    """Its values decide which pairs are kept. That may be none, and then a device need not compute any."""
    q, mask = torch.empty(1, 1, 8, 4, device="meta"), torch.empty(8, 8, device="meta", dtype=torch.bool)
    masked, plain = (fxflops.count(Attends(attn_mask=given), (q, q)).roofline(MADE_UP) for given in (mask, None))
    assert (masked.total.flops, masked.unread, plain.unread) == (0, 1, 0)
    assert plain.total.flops > 2 * 2 * 8 * 8 * 3
    assert masked.total.bytes == plain.total.bytes + 8 * 8


def test_gemm_and_layer_norm_on_every_device() -> None:
    gemm = meta(nn.Linear(8192, 8192, device="meta"), 8192, 8192)
    norm = meta(nn.LayerNorm(8192, device="meta"), 8192, 8192)
    binds, seconds = {}, {}
    for device in DEVICES:
        product, normalized = gemm.roofline(device).rows[0], norm.roofline(device.name).rows[0]
        binds[device.name], seconds[device.name] = (product.binds, normalized.binds), product.bound_seconds
    assert binds == dict.fromkeys(binds, ("compute", "memory"))
    assert seconds == pytest.approx({device.name: 2 * 8192**3 / device.peak("f32") for device in DEVICES})


def test_gemm_and_layer_norm_measured() -> None:
    report = fxflops.analyze(nn.Sequential(nn.Linear(768, 768), nn.LayerNorm(768)), torch.randn(512, 768))
    found = report.roofline()
    gemm, norm = found.rows
    assert found.device.measured
    assert (gemm.binds, norm.binds) == ("compute", "memory")
    assert not found.is_prediction
    assert 0.05 < gemm.efficiency < 1.2
    assert found.mfu == pytest.approx(2 * report.total_macs / (report.latency * found.device.peak("f32")))


def test_a_device_that_the_run_was_not_made_on_gives_a_bound() -> None:
    report = fxflops.analyze(nn.Linear(64, 64), torch.randn(64, 64), repeats=1)
    found = report.roofline("H100")
    assert found.is_prediction
    assert (found.latency, found.mfu, found.rows[0].seconds, found.rows[0].efficiency) == (None, None, None, None)
    assert str(found).startswith("forward on H100 SXM")
    assert "lower bound, not measured" in str(found)
    assert "time" not in str(found)
    with pytest.warns(UserWarning, match=r"timed on cpu \(.*\), not on H100 SXM; report\.roofline\(device\)") as told:
        assert report.mfu("H100") is report.hfu("H100") is None
    assert {warning.filename for warning in told} == {__file__}
    assert report.roofline(MADE_UP).is_prediction
    counted = fxflops.count(nn.Linear(64, 64), torch.randn(64, 64))
    assert counted.roofline(HERE).is_prediction
    with pytest.warns(UserWarning, match=r"the run was not timed; use fxflops\.analyze"):
        assert counted.mfu(HERE) is None


def test_mfu_includes_the_backward() -> None:
    report = fxflops.analyze(nn.Linear(64, 32), torch.randn(16, 64), backward=True, repeats=3)
    assert report.total_macs == report.total_backward_macs == 16 * 64 * 32
    assert report.backward_timing is not None
    seconds = report.latency + report.backward_timing.median
    assert report.mfu(FAST) == pytest.approx(2 * 2 * 16 * 64 * 32 / (seconds * 1e15))
    back = report.roofline(FAST, phase="backward")
    assert back.latency == report.backward_timing.median
    assert back.mfu == pytest.approx(2 * 16 * 64 * 32 / (back.latency * 1e15))
    assert [row.op for row in back.rows if row.flops] == ["matmul", "sum"]


def test_a_run_is_no_ceiling_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast its calls seem, the device's measured peak stays the same, and a share above it is unknown."""
    report = fxflops.analyze(nn.Linear(256, 256), torch.randn(256, 256), repeats=3)
    call = report.calls[0]._replace(seconds=1e-12)
    run = replace(report._run, calls=(call,), latency=Timing(1e-12, 1e-12, 1e-12, 1))
    lucky = fxflops.Report(run, report._convention, report._registry, report._model)
    peak = measured("cpu").peak("f32")
    monkeypatch.setattr(measured_peaks, "SECONDS_CAP", 0.0)  # on a busy machine each look may find a higher peak
    with pytest.warns(UserWarning, match="the utilization is unknown: the run was faster than the peak of cpu"):
        assert lucky.mfu() is None
    share = 2 * 256**3 / peak / 1e-12
    found = lucky.roofline()
    assert found.device.peak("f32") == peak
    assert found.rows[0].share_of_peak == pytest.approx(share)
    assert "MFU is above 100%: the ceiling of cpu" in str(found)


def test_a_peak_measured_beside_other_work_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "cpu", torch.get_num_threads(), "f32"
    monkeypatch.setattr(measured_peaks, "_PEAKS", {key: Peak(1e6, is_reproducible=True)})
    report = fxflops.analyze(nn.Linear(1024, 1024), torch.randn(256, 1024), repeats=5)
    share = report.mfu()
    monkeypatch.setattr(measured_peaks, "SECONDS_CAP", 0.0)  # on a busy machine each look may find a higher peak
    assert share == pytest.approx(2 * report.total_macs / report.latency / measured("cpu").peak("f32"))
    assert measured("cpu").peak("f32") > 1e8


def test_gradients_inside_the_forward_are_work_of_the_model() -> None:
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self.layer(x).sum(), x)[0]

    report = fxflops.analyze(Slope(), torch.randn(16, 64), repeats=2)
    assert report.mfu(FAST) == pytest.approx(2 * 2 * 16 * 64 * 32 / (report.latency * 1e15))
    assert report.roofline(FAST, "gradient").total.flops == 2 * 16 * 64 * 32


@pytest.fixture(scope="module")
def timed() -> Roofline:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    return fxflops.analyze(model, torch.randn(64, 64), repeats=3).roofline(HERE)


def test_text(timed: Roofline) -> None:
    lines = str(timed).splitlines()
    assert lines[0].startswith("forward on cpu   f32 1.00 GFLOP/s, 100.0 MB/s   (given)")
    assert lines[1].startswith(
        "lower bound 1.38 ms = compute 1.05 ms (76%) + memory 327.7 us (24%)   1.05 MFLOPs executed, 128.5 KiB"
    )
    assert "MFU" in lines[2]
    assert "linear" in str(timed)
    assert "GFLOP/s" in timed._repr_html_()


def test_calls_faster_than_their_bound_are_told() -> None:
    slow = Device("cpu", peaks={"f32": 1.0}, bandwidth=1.0)
    found = fxflops.analyze(nn.ReLU(), torch.randn(4), repeats=1).roofline(slow)
    assert found.rows[0].efficiency > 1
    assert "calls that took less time than their bound: 1" in str(found)


def test_a_call_faster_than_its_operations_need_says_that_the_peak_is_too_low() -> None:
    slow = Device("cpu", peaks={"f32": 1.0}, bandwidth=1e12)
    found = fxflops.analyze(nn.Linear(8, 8), torch.randn(4, 8), repeats=1).roofline(slow)
    assert "calls that took less time than their operations need: 1; the ceiling of cpu" in str(found)
    assert "cache" not in str(found)


def test_table(timed: Roofline) -> None:
    header = timed.table("operator", top=1).splitlines()[0].split()
    assert header == "op calls dtype flops bytes FLOP/B bound binds time GFLOP/s GB/s peak% efficiency%".split()
    last = timed.table("operator", sort_by="flops", top=1).splitlines()[-1]
    assert re.fullmatch(r"top 1 of 2 operators: [\d.]+% of time, [\d.]+% of bound", last), last
    assert timed.table("operator", top=1, units=None).splitlines()[-1].endswith("% of bound(ms)")
    assert timed.table("module", columns="where,flops", units=None).splitlines()[2].split() == ["(root)", "1,052,672"]
    assert "| op" in timed.table(tablefmt="github")


def test_calls_alike_in_modules_alike_are_one_row() -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)), nn.Linear(8, 4))
    found = fxflops.count(net, torch.randn(2, 8)).roofline(MADE_UP)
    rows = [line.split()[:3] for line in found.table("kind", columns="op, where, calls, flops").splitlines()[2:]]
    assert sorted(rows) == [["linear", "*.*", "3"], ["linear", "3", "1"], ["relu", "*.*", "3"]]
    assert found.table("kind") in str(found)


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(timed: Roofline, columns: Callable[[int], None], width: int) -> None:
    columns(width)
    assert max(map(len, str(timed).splitlines())) <= width
    assert "efficiency%" in str(timed)


def test_errors(timed: Roofline) -> None:
    report = fxflops.count(nn.Linear(2, 2), torch.randn(1, 2))
    with pytest.raises(InputError, match=r"no calls in its backward: pass backward=True to count\(\) or analyze\(\)"):
        report.roofline(MADE_UP, phase="backward")
    with pytest.raises(InputError, match="unknown phase 'back'"):
        report.roofline(MADE_UP, phase="back")
    with pytest.raises(InputError, match="no device 'H900'"):
        report.mfu("H900")
    with pytest.raises(InputError, match="cannot sum by 'op'; expected one of 'call', 'kind', 'operator', 'module'"):
        timed.table("op")
    with pytest.raises(InputError, match="the report is for cuda:0, which cannot be measured here"):
        fxflops.count(nn.Linear(2, 2), torch.randn(1, 2), device="cuda").roofline()


def test_missing_calls_are_told() -> None:
    class Escapes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.data_ptr()
            return x + 1

    found = fxflops.analyze(Escapes(), torch.randn(4), repeats=0).roofline(MADE_UP)
    assert found.missing == 1
    assert str(found).endswith("1 calls have no formula: only their bytes are in the bounds")


def test_any_convention_has_the_same_bounds() -> None:
    report = fxflops.count(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(4, 8))
    assert report.recount("torch").roofline(MADE_UP) == report.roofline(MADE_UP)


def test_a_utilization_of_a_peak_that_other_work_slowed_down_is_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    steady = Device("cpu", peaks={"f32": 1e12}, bandwidth=1e10, measured=True)
    warn_if_busy(steady)
    assert not recwarn
    with pytest.warns(UserWarning, match="utilizations too high, because the machine is busy"):
        warn_if_busy(replace(steady, reproducible=False))


def test_all_phases_of_a_step() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fxflops.profile(model) as p:
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
    phases = [p.report.roofline("H100", phase) for phase in ("forward", "backward", "optimizer")]
    together = p.report.roofline("H100", phase="all")
    assert together.bound_seconds == pytest.approx(sum(phase.bound_seconds for phase in phases))
    assert len(together.rows) == sum(len(phase.rows) for phase in phases)
    assert str(together).startswith("all phases (forward, backward, optimizer) on H100")
    assert "not shown" not in str(together)
    assert 'not shown: backward, optimizer; the phase "all" shows all phases' in str(phases[0])
    with pytest.raises(InputError, match=r"unknown phase 'every'; expected one of 'forward', .*, 'all'"):
        p.report.roofline("H100", phase="every")
    report = fxflops.analyze(model, torch.randn(32, 64), backward=True)
    forward, backward, both = (report.roofline(FAST, phase) for phase in ("forward", "backward", "all"))
    assert both.latency == pytest.approx(forward.latency + backward.latency)
    own = p.report.roofline(FAST, phase="all")
    time = p.report.step_times()["step 1"]
    assert own.latency == pytest.approx(time.forward + time.backward + time.optimizer)
    assert fxflops.count(model, torch.randn(32, 64), backward=True).roofline("H100", phase="all").latency is None


def test_a_bound_for_a_gpu_says_that_the_count_is_for_a_cpu() -> None:
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    said = "the bound for a GPU may be lower: counted for cpu, which runs other kernels than a GPU"
    assert said in " ".join(str(fxflops.count(model, x).roofline("H100")).split())
    assert "counted for" not in str(fxflops.count(model, x, device="cuda").roofline("H100"))
    assert "counted for" not in str(fxflops.count(model, x).roofline(FAST))

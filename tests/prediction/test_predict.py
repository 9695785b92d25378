"""Predictions against measurements that no fit used, and against the errors that they state."""

from __future__ import annotations

import csv
import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops import count, profile
from fxflops.errors import InputError
from fxflops.prediction import Calibration
from fxflops.prediction.borrowed import Borrowed, family_of
from fxflops.prediction.calibration import FORMULAS, shipped
from fxflops.prediction.calls import kernels_of
from fxflops.prediction.chips import CHIPS
from fxflops.prediction.result import Prediction, Row
from fxflops.roofline.devices import Device, find_device

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu" / "operations.csv"
"""Times of torch's own kernels on an H100, which the fits of products and attention did not use."""


def rows(family: str, dtype: str) -> list[tuple[str, float]]:
    """Return the shapes and seconds of a family's forward calls, with weights in their own layout."""
    with MEASURED.open() as file:
        return [
            (row["shapes"], float(row["seconds"]))
            for row in csv.DictReader(file)
            if (row["family"], row["dtype"], row["pass"]) == (family, dtype, "forward") and row["layout"] != "NN"
        ]


def numbers(shapes: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", shapes)}


def linear(m: int, n: int, k: int) -> Any:
    with torch.device("meta"):
        return count(nn.Linear(k, n, bias=False, dtype=torch.bfloat16), torch.empty(m, k, dtype=torch.bfloat16))


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=q.shape[1] != k.shape[1])


def test_products_of_another_lab_are_predicted() -> None:
    errors = []
    for shapes, seconds in rows("gemm", "bf16"):
        sizes = numbers(shapes)
        if sizes["m"] * sizes["n"] * sizes["k"] >= 2**24:
            errors.append(abs(linear(sizes["m"], sizes["n"], sizes["k"]).predict("H100 SXM").seconds / seconds - 1))
    assert len(errors) > 20
    assert sum(errors) / len(errors) < 0.15


def test_the_bound_is_further_off_than_the_prediction() -> None:
    predicted, bound = list[float](), list[float]()
    for shapes, seconds in rows("gemm", "bf16"):
        sizes = numbers(shapes)
        prediction = linear(sizes["m"], sizes["n"], sizes["k"]).predict("H100 SXM")
        predicted.append(abs(prediction.seconds / seconds - 1))
        bound.append(abs(prediction.bound_seconds / seconds - 1))
    assert sum(predicted) < sum(bound) / 2


@pytest.mark.parametrize("causal", [True, False])
def test_attention_grows_with_its_work(causal: bool) -> None:
    def seconds(length: int) -> float:
        q = torch.empty(4, 16, length, 128, dtype=torch.bfloat16, device="meta")
        return count(Attention(causal), (q, q, q)).predict("H100 SXM").seconds

    assert 3 < seconds(8192) / seconds(4096) < 5  # four times the pairs
    q = torch.empty(4, 16, 8192, 128, dtype=torch.bfloat16, device="meta")
    half = count(Attention(True), (q, q, q)).predict("H100 SXM").seconds
    assert 0.4 < half / count(Attention(False), (q, q, q)).predict("H100 SXM").seconds < 0.75


def test_attention_to_a_cache_takes_as_long_as_its_bytes() -> None:
    """The formula for prefills would be 2 to 5 times slower, because a kernel for one query splits the keys instead."""
    measured = [(numbers(shapes), seconds) for shapes, seconds in rows("attention", "bf16") if "q=1 " in shapes]
    assert len(measured) == 4
    for sizes, seconds in measured:
        q = torch.empty(sizes["b"], 32, 1, 128, dtype=torch.bfloat16, device="meta")
        k = torch.empty(sizes["b"], 8, sizes["k"], 128, dtype=torch.bfloat16, device="meta")
        predicted = count(Attention(False), (q, k, k)).predict("H100 SXM").seconds
        assert predicted < 1.1 * seconds
        if sizes["b"] > 1:  # smaller ones take the host's time
            assert predicted == pytest.approx(seconds, rel=0.2)


def block(dtype: torch.dtype = torch.bfloat16) -> Any:
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dtype=dtype)
        return count(layer, torch.empty(8, 512, 256, dtype=dtype), backward=True)


def test_parts_add_up_and_no_call_is_faster_than_its_bound() -> None:
    report = block()
    for device in ("H100 SXM", "A100", "B200", "L4", "MI300X"):
        prediction = report.predict(device)
        assert all(row.seconds >= row.bound_seconds for row in prediction.rows)
        assert len(prediction.rows) == len(report.calls)
        for sums in (prediction.by_operator(), prediction.by_phase()):
            assert sum(row.seconds for row in sums.values()) == pytest.approx(prediction.seconds)
        assert prediction.by_module()[""].seconds == pytest.approx(prediction.seconds)
        bounds = sum(report.roofline(device, phase).bound_seconds for phase in ("forward", "backward"))
        assert prediction.bound_seconds == pytest.approx(bounds)


def test_what_is_not_known_is_said() -> None:
    prediction = block().predict("MI300X")
    assert prediction.families == {}
    assert (prediction.error, prediction.share_of_bounds) == (None, 1.0)
    assert "bounds only" in str(prediction)
    # Nothing is predicted, so the headline does not say "predicted". The next line names the call that helps.
    headline, said, *_ = str(prediction).splitlines()
    assert headline.startswith("MI300X: at least ")
    assert "predicted" not in headline
    assert "fxflops.calibrate()" in said
    known = block().predict("H100 SXM")
    assert known.error is not None
    assert 0 < known.error < 0.2
    assert 0 <= known.share_of_bounds < 1
    assert all(family.note() in str(known).replace("\n    ", " ") for family in known.families.values())


def test_an_error_that_is_known_for_little_of_the_time_comes_last() -> None:
    name, family = next(item for item in block().predict("H100 SXM").families.items() if item[1].error is not None)
    known = Row("matmul", "", "forward", 1, 1e-3, 1e-3, basis=name)
    other = known._replace(basis="a family without an error")
    bound = known._replace(basis="bound", bound_only_seconds=1e-3)

    def error(*rows: Row) -> str:
        prediction = Prediction(find_device("H100 SXM"), rows, {name: family})
        return next(line for line in str(prediction).splitlines() if line.startswith("error: "))

    mean = f"{family.error:.1%} on average"
    assert error(known) == f"error: {mean} for operations like these"
    assert error(known, known, other) == f"error: {mean} for 67% of the time, unknown for 33%"
    assert error(known, other, other) == f"error: unknown for 67% of the time; {mean} for the rest"
    assert error(known, other, bound) == (
        f"error: unknown for 67% of the time, of which 50% is only a lower bound; {mean} for the rest"
    )
    assert error(known, *[other] * 999) == f"error: unknown for more than 99% of the time; {mean} for the rest"


@pytest.mark.parametrize("launch", ["graph", "eager"])
def test_a_report_without_work_does_not_blame_the_calibration(launch: str) -> None:
    text = str(count(nn.Identity(), torch.ones(4)).predict("H100 SXM", launch=launch))
    assert text.startswith("H100 SXM: nothing to predict: ")
    assert "calibrat" not in text


def test_an_incomplete_report_gives_a_lower_bound() -> None:
    @torch.library.custom_op("prediction_test::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @unknown.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.prediction_test.unknown(x)

    prediction = count(Net(), torch.ones(4)).predict("H100 SXM")
    assert prediction.missing == 1
    assert "at least" in str(prediction)


def test_a_calibration_is_saved_and_read(tmp_path: Path) -> None:
    for calibration in shipped():
        calibration.save(tmp_path / "card.json")
        assert Calibration.load(tmp_path / "card.json") == calibration
        assert find_device(calibration.device).name == calibration.device
        for name, family in calibration.families.items():
            assert family.numbers.keys() <= FORMULAS[name.split()[0]].NUMBERS.keys()
            assert 0 < family.held_out <= family.rows
    (tmp_path / "other.json").write_text('{"device": "H100"}')
    with pytest.raises(InputError, match="not a calibration: KeyError: 'families'"):
        Calibration.load(tmp_path / "other.json")


def test_a_calibration_may_be_of_any_card() -> None:
    """A card with half the multiprocessors, peaks and bandwidth takes twice as long, up to constants."""
    known = next(found for found in shipped() if found.device == "H100 SXM")
    whole = find_device("H100 SXM")
    half = Device("half", {dtype: peak / 2 for dtype, peak in whole.peaks.items()}, whole.bandwidth / 2)
    calibration = Calibration("half", known.multiprocessors // 2, known.l2_bytes, known.families)
    report = linear(8192, 8192, 8192)
    ratio = report.predict(half, calibration=calibration).seconds / report.predict(whole).seconds
    assert ratio == pytest.approx(2, rel=0.1)


def test_a_loop_is_predicted_by_step_and_says_what_it_waited_for() -> None:
    class Sleeping(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.01)
            return torch.ones(8)

    net = nn.Linear(8, 8)
    with profile(net) as p:
        for batch in torch.utils.data.DataLoader(Sleeping(), batch_size=2):
            net(batch)
    found = p.report.predict("H100")
    assert found.steps == 3
    assert found.loading_seconds >= 0.06
    assert " for 3 steps, " in str(found)
    assert 'launch="eager" adds it' in str(found)
    assert "launch=" not in str(p.report.predict("H100", launch="eager"))


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(InputError, match="no device 'abacus'"):
        linear(16, 16, 16).predict("abacus")


def test_eager_waits_for_the_host_where_it_is_slower() -> None:
    """Small kernels take the host's launch time. Large ones take as long as in a graph, except for the first launch."""
    with torch.device("meta"):
        small = count(nn.Sequential(*[nn.ReLU() for _ in range(100)]), torch.empty(8))
        large = count(nn.Sequential(*[nn.ReLU() for _ in range(100)]), torch.empty(2**28))
    eager = small.predict("H100 SXM", launch="eager")
    assert eager.seconds > 3 * small.predict("H100 SXM").seconds
    assert eager.seconds == pytest.approx(100 * 15e-6, rel=0.05)
    assert eager.share_of_waiting > 0.5
    assert "waiting for the host" in str(eager)
    assert sum(row.seconds for row in eager.by_operator().values()) == pytest.approx(eager.seconds)
    graph = large.predict("H100 SXM").seconds
    assert large.predict("H100 SXM", launch="eager").seconds == pytest.approx(graph, rel=1e-3)
    with pytest.raises(InputError, match="launch='lazy'; expected one of 'graph', 'eager'"):
        small.predict("H100 SXM", launch="lazy")


@pytest.mark.parametrize("device", ["H200", "GH200", "RTX 4090", "A6000", "GB300", "A30", "RTX 5080", "L20"])
def test_a_card_without_measurements_is_predicted_by_its_kin_with_a_larger_error(device: str) -> None:
    report = linear(4096, 4096, 4096)
    prediction = report.predict(device)
    assert prediction.share_of_bounds == 0
    kin = [name for name in CHIPS if name in str(prediction)]
    assert len(kin) > 1
    assert prediction.error is not None
    assert prediction.error > report.predict("H100 SXM").error
    assert "not measured on this card" in str(prediction).replace("\n    ", " ")


def test_leaving_a_card_out_uses_no_row_of_it() -> None:
    device = find_device("B200")
    family = family_of(device, "linear", "bf16", without={"B200"})
    assert isinstance(family, Borrowed)
    assert {*family.cards} == {"B300", "GB200"}


def test_attention_backward_on_an_h100_takes_about_three_forwards() -> None:
    """On the H100 of benchmarks/results/gpu, flash attention's backward pass took 2.9 to 4.3 times the forward pass."""
    q = torch.empty(8, 16, 2048, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)

    class Net(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    prediction = count(Net(), q, backward=True, device="cuda").predict("H100 SXM")
    sums = prediction.by_operator()
    assert sums["attention_backward"].basis == "attention_backward bf16"
    assert sums["attention_backward"].seconds == pytest.approx(0.0016116, rel=0.15)


def test_convolutions_that_cudnn_may_compute_in_tf32_are_not_predicted_as_f32() -> None:
    """By default torch lets cuDNN use tensor cores, eight times as fast as an A100's f32. A T4 has none for f32."""
    with torch.device("meta"):
        report = count(nn.Conv2d(64, 128, 3, padding=1), torch.empty(8, 64, 56, 56))

    def basis(card: str) -> str:
        return report.predict(card).rows[0].basis

    assert basis("A100") == "conv tf32"
    assert basis("T4") == "conv f32"
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert basis("A100") == "conv f32"


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(3, 64, 16, 16), (8, 3, 64, 64)),
        (nn.Conv2d(32, 48, 3, 2, 1, groups=4), (8, 32, 14, 14)),
        (nn.Conv1d(16, 16, 3, padding=1), (16, 20)),
        (nn.Conv3d(4, 4, 3, dilation=2), (2, 4, 9, 9, 9)),
        (nn.ConvTranspose2d(32, 16, 2, 2), (2, 32, 7, 7)),
        (nn.ConvTranspose2d(16, 32, 3, groups=2), (2, 16, 7, 7)),
    ],
)
def test_each_tensor_of_a_convolution_is_a_product_of_all_its_macs(layer: nn.Module, size: tuple[int, ...]) -> None:
    """The forward, the gradient of the input and the gradient of the weights are one kernel each, with as many MACs as the forward."""
    report = count(layer, torch.randn(size, requires_grad=True), backward=True)
    by_op = {each.call.op: (each, kernels_of(each)) for each in report.counted if each.macs}
    assert sorted(len(kernels) for _, kernels in by_op.values()) == [1, 2]
    macs = report.total_macs
    for each, kernels in by_op.values():
        assert [round(math.prod(kernel.features[:4])) for kernel in kernels] == [macs] * len(kernels)
        assert each.macs == macs * len(kernels)


def test_an_image_needs_no_gradient() -> None:
    """A patch embedding only has the weights' gradient: [1024, 25,088] @ [25,088, 768], for 128 images of 14 x 14 patches."""
    with torch.device("meta"):
        report = count(nn.Conv2d(3, 1024, 16, 16), torch.empty(128, 3, 224, 224), backward=True)
    [kernels] = [kernels_of(each) for each in report.counted if each.call.op == "conv_backward"]
    assert [kernel.features[:4] for kernel in kernels] == [(1, 1024, 768, 25088)]


@pytest.mark.parametrize(
    ("channels", "side", "kernel", "measured", "basis"),
    [
        (384, 14, 7, 84.0e-6, "depthwise f32"),
        (96, 56, 7, 312.3e-6, "depthwise f32"),
        (32, 112, 3, 124.7e-6, "depthwise f32"),
    ],
)
def test_depthwise_convolutions(channels: int, side: int, kernel: int, measured: float, basis: str) -> None:
    """Measured on an H100 (benchmarks/results/gpu/operations.csv). Predicted as products, they would take 4 to 14 times as long."""
    with torch.device("meta"):
        layer = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False)
        report = count(layer, torch.empty(32, channels, side, side), device="cuda")
    with torch.backends.cudnn.flags(allow_tf32=False):
        [row] = report.predict("H100 SXM").rows
    assert row.basis == basis
    assert row.seconds == pytest.approx(measured, rel=0.3)

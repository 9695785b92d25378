"""A model with Triton kernels is counted even if there is no device for them: each launch is listed, and the rest is counted.

The oracle is the same model without the kernels: everything except the launches must count the same.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxflops
from tests.fresh import Fresh

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
INTERFACE: Any = sys.modules["triton.runtime.jit"].KernelInterface
LAUNCH = INTERFACE.__getitem__


def _has_driver() -> bool:
    try:
        return triton.runtime.driver.active is not None
    except Exception:
        return False


pytestmark = pytest.mark.skipif(_has_driver(), reason="Triton has a device here")


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


tuned = triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])(double)
guessed = triton.heuristics({"BLOCK": lambda args: 64})(double)
Launch = Callable[[Tensor, Tensor], None]
LAUNCHES: dict[str, Launch] = {
    "plain": lambda x, y: double[(1,)](x, y, x.numel(), BLOCK=64),
    "by name": lambda x, y: double[(1,)](x=x, y=y, n=x.numel(), BLOCK=64),
    "grid of a function": lambda x, y: double[lambda meta: (meta["BLOCK"],)](x, y, x.numel(), BLOCK=64),
    "autotuned": lambda x, y: tuned[(1,)](x, y, x.numel()),
    "heuristics": lambda x, y: guessed[(1,)](x, y, x.numel()),
    "with options": lambda x, y: double[(1,)](x, y, x.numel(), BLOCK=64, num_warps=2),
}


class Launches(nn.Module):
    """Two linear layers, with a kernel between them that fills an empty tensor."""

    def __init__(self, launch: Launch | None) -> None:
        super().__init__()
        self.first, self.last, self.launch = nn.Linear(8, 16), nn.Linear(16, 4), launch

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = x.new_zeros(x.shape) if self.launch is None else torch.empty_like(x)
        if self.launch is not None:
            self.launch(x, y)
        return self.last(y)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_is_listed_and_the_rest_is_counted(name: str) -> None:
    x = torch.randn(2, 8)
    report, expected = fxflops.count(Launches(LAUNCHES[name]), x), fxflops.count(Launches(None), x)
    assert not report.complete
    assert [(missing.op, missing.calls) for missing in report.missing] == [("triton:double", 1)]
    tensors, grid = "f32[2,16], f32[2,16]", "(64,)" if "function" in name else "(1,)"
    assert report.missing[0].shapes == f"{tensors}, grid {grid}, 256 B"  # two tensors of 32 elements of 4 bytes
    assert report.total_macs == expected.total_macs == 2 * 8 * 16 + 2 * 16 * 4
    assert report.total_flops == expected.total_flops
    assert INTERFACE.__getitem__ is LAUNCH


def test_a_users_formula_counts_it() -> None:
    def cost(x: Any, y: Any, n: int, BLOCK: int, *, out: Any) -> int:
        return int(n)

    report = fxflops.count(Launches(LAUNCHES["plain"]), torch.randn(2, 8), formulas={double: cost})
    expected = fxflops.count(Launches(None), torch.randn(2, 8))
    assert report.complete
    assert report.total_flops == expected.total_flops + 2 * 16


def test_a_formula_by_its_name_counts_it_and_so_does_what_the_report_proposes() -> None:
    def cost(*, y: Any, n: int, grid: Any, out: Any) -> int:
        return int(n) + y.numel() + grid[0]

    x, expected = torch.randn(2, 8), fxflops.count(Launches(None), torch.randn(2, 8))
    report = fxflops.count(Launches(LAUNCHES["autotuned"]), x, formulas={"triton:double": cost})
    assert (report.complete, report.total_flops) == (True, expected.total_flops + 32 + 32 + 1)
    recipe = fxflops.count(Launches(LAUNCHES["plain"]), x).recipe()
    assert '@fxflops.formula("triton:double")' in recipe
    names: dict[str, Any] = {}
    exec(recipe.replace('@fxflops.formula("triton:double")', ""), names)
    report = fxflops.count(Launches(LAUNCHES["plain"]), x, formulas={"triton:double": names["flops_of_triton_double"]})
    assert (report.complete, report.total_flops) == (True, expected.total_flops + 32)


def test_a_launch_that_runs_is_one_call_and_computes(fresh: Fresh, tmp_path: Path) -> None:
    """This runs in Triton's interpreter, which must be selected before a kernel is defined."""
    script = tmp_path / "interpreted.py"
    script.write_text(INTERPRETED)
    ran = fresh.run(str(script), TRITON_INTERPRET="1")
    assert (ran.returncode, ran.stderr) == (0, "")


INTERPRETED = """
import torch, triton, triton.language as tl, fxflops
from torch import nn

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

class Doubled(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double[(1,)](x, y, x.numel(), BLOCK=64)
        return y

x = torch.randn(2, 8)
with fxflops.profile() as p:
    y = Doubled()(x)
assert torch.equal(y, 2 * x)
assert [missing.op for missing in p.report.missing] == ["triton:double"], p.report.missing
assert {each.call.op for each in p.report.counted} <= {"triton:double", "empty_like", "randn"}, p.report.counted
counted = p.report.recount(formulas={"triton:double": lambda *, n, out: n})
assert (counted.complete, counted.total_flops) == (True, 16), counted
"""


def test_other_threads_and_later_launches_raise_as_ever() -> None:
    errors: list[str] = []

    def elsewhere() -> None:
        try:
            double[(1,)](torch.randn(4), torch.randn(4), 4, BLOCK=64)
        except Exception as error:
            errors.append(str(error))

    def launch(x: Tensor, y: Tensor) -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        double[(1,)](x, y, x.numel(), BLOCK=64)

    fxflops.count(Launches(launch), torch.randn(2, 8))
    elsewhere()
    with pytest.raises(RuntimeError, match="active drivers"):
        fxflops.analyze(Launches(LAUNCHES["plain"]), torch.randn(2, 8))
    assert len(errors) >= 1
    assert all("active drivers" in error for error in errors)
    assert INTERFACE.__getitem__ is LAUNCH

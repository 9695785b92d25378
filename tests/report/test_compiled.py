"""The compiled model next to the eager one, from records written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fxflops.errors import InputError
from fxflops.meters.nodes import Timing
from fxflops.report.compiled import OUTSIDE, CompiledView
from fxflops.report.saved import _compiled_from, _plain
from fxflops.run.outcome import Break, Compiled, CompiledKernel, Recompilation

EAGER = Timing(0.010, 0.009, 0.011, 5)
RUN = Compiled(
    latency=Timing(0.008, 0.007, 0.009, 5),
    compiling=12.0,
    graphs=2,
    breaks=(Break("Data-dependent branching", "net.py:7"),),
    recompilations=(Recompilation("size mismatch", "net.py:5"),),
    kernels=(
        CompiledKernel("addmm", 0.003, ("block.fc",)),
        CompiledKernel("fused_0", 0.002, ("block.norm", "block.act")),
        CompiledKernel("fused_1", 0.001, ("head",)),
        CompiledKernel("fused_2", 0.001, ("block.norm",)),
    ),
    kernels_missing="",
)
OWN = {"": 0.0, "block": 0.0, "block.fc": 0.003, "block.norm": 0.004, "block.act": 0.002, "head": 0.0005}
VIEW = CompiledView(RUN, EAGER, OWN)


def test_two_latencies_one_speedup() -> None:
    assert (VIEW.latency, VIEW.backward_latency, VIEW.graphs) == (0.008, None, 2)
    assert VIEW.speedup == pytest.approx(1.25)
    assert CompiledView(Compiled(missing="why"), EAGER, {}).speedup is None


def test_a_fused_kernel_is_shared_out_by_eager_times() -> None:
    """Half of norm's 4 ms shares one kernel with the 2 ms of act; the other half has the other kernel to itself."""
    rows = VIEW.by_module()
    assert rows["block.norm"].own_compiled_seconds == pytest.approx(0.001 + 0.001)
    assert rows["block.act"].own_compiled_seconds == pytest.approx(0.001)
    assert rows["block"].compiled_seconds == pytest.approx(0.006)
    assert rows["block"].seconds == pytest.approx(0.009)
    assert rows["block"].gain == pytest.approx(1.5)
    assert rows[""].compiled_seconds == pytest.approx(0.007)
    assert rows[OUTSIDE].compiled_seconds == pytest.approx(0.001)
    assert rows[OUTSIDE].gain is None
    assert sum(row.own_compiled_seconds for row in rows.values()) == pytest.approx(0.008)
    assert "torch 9" in str(replace(VIEW, provenance="torch 9").by_module().to_csv())


def test_what_did_not_gain() -> None:
    assert VIEW.losers == ["block.fc", "head"]
    assert CompiledView(Compiled(latency=RUN.latency), EAGER, OWN).losers == []


def test_kernels_that_take_longer_than_the_run() -> None:
    view = CompiledView(replace(RUN, latency=Timing(0.005, 0.005, 0.005, 5)), EAGER, OWN)
    assert view.unsteady
    assert view.losers == []
    assert "no gain              kernels unsteady, as on a busy machine: measure again" in str(view)
    assert not VIEW.unsteady


def test_kernels_that_are_not_known() -> None:
    with pytest.raises(InputError, match=r"pass kernels=True to analyze\(\)"):
        CompiledView(Compiled(latency=RUN.latency), EAGER, OWN).by_module()


def test_it_prints() -> None:
    lines = str(VIEW).splitlines()
    assert lines[0] == (
        "compiled 8.00 ms     median of 5, 7.00-9.00 · 1.25x as fast as eager · 2 graphs · compiled in 12.00 s"
    )
    assert lines[1:] == [
        "breaks   1           net.py:7  Data-dependent branching",
        "rebuilt  1           net.py:5  size mismatch",
        "no gain  2           block.fc, head",
    ]
    assert str(CompiledView(Compiled(missing="it raised"), EAGER, {})) == "compiled no          not timed: it raised"


def test_it_is_read_back() -> None:
    assert _compiled_from(_plain(RUN)) == RUN
    assert _compiled_from(None) is None


def test_the_backward_pass_is_compared_with_the_eager_one() -> None:
    run = replace(RUN, backward_latency=Timing(0.02, 0.02, 0.02, 5))
    view = CompiledView(run, EAGER, OWN, eager_backward=Timing(0.05, 0.05, 0.05, 5))
    assert view.backward_speedup == pytest.approx(2.5)
    assert "its backward · median of 5, 20.00-20.00 · 2.50x as fast as eager" in str(view)
    assert VIEW.backward_speedup is None
    assert "backward" not in str(VIEW)

"""The Report itself: its answer to names that it does not have, and the steps of one call."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fxflops

REPORT = fxflops.count(nn.Linear(3, 4), torch.ones(2, 3))


@pytest.mark.parametrize(("name", "near"), [("flops", "total_flops"), ("macs", "total_macs"), ("tabel", "table")])
def test_a_name_that_it_lacks_is_told_with_those_near_it(name: str, near: str) -> None:
    with pytest.raises(AttributeError, match=rf"a Report has no '{name}' \(did you mean .*{near}"):
        getattr(REPORT, name)
    assert not hasattr(REPORT, name)


def test_a_name_of_torchinfos_is_told_what_shows_it() -> None:
    with pytest.raises(AttributeError, match=r"a Report has no 'summary'.*; print\(report\) shows a summary"):
        REPORT.summary()  # type: ignore[attr-defined]


@pytest.mark.parametrize("view", ["by_module", "tree", "roofline"])
@pytest.mark.parametrize(
    ("phase", "instead"),
    [("backward", r"pass backward=True to count"), ("optimizer", r"backward=True and optimizer="), ("gradient", "")],
)
def test_a_phase_without_calls_has_no_modules(view: str, phase: str, instead: str) -> None:
    asked = {"device": "A100"} if view == "roofline" else {}
    with pytest.raises(fxflops.FxflopsError, match=f"the run made no calls in its {phase}.*{instead}"):
        getattr(REPORT, view)(phase=phase, **asked)


def test_of_a_forward_without_calls_the_modules_are_shown() -> None:
    report = fxflops.count(nn.Identity(), torch.ones(2))
    assert report.by_module()[""].flops == report.tree().root.flops == 0
    assert report.by_operator("backward") == {}


def test_a_module_called_with_several_shapes_says_so() -> None:
    pool = nn.MaxPool2d(2)
    found = str(fxflops.summary(nn.Sequential(pool, pool, nn.ReLU()), input_size=(1, 16, 16)))
    assert "f32[1,16,16] and 1 more" in found
    assert "f32[1,8,8] and 1 more" in found


def test_the_columns_of_torchinfo_are_known_by_its_names() -> None:
    columns = "input_size", "output_size", "num_params", "mult_adds"
    found = fxflops.summary(nn.Linear(3, 4), input_size=(2, 3), columns=columns)
    assert str(found).split()[:5] == ["module", "inputs", "output", "params", "MACs"]


def test_an_error_within_a_property_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fxflops.Report, "latency", property(lambda self: self.nodes.nothing))
    with pytest.raises(AttributeError, match="'tuple' object has no attribute 'nothing'"):
        REPORT.latency  # noqa: B018


def test_it_is_copied_and_pickled() -> None:
    for other in (copy.copy(REPORT), copy.deepcopy(REPORT), pickle.loads(pickle.dumps(REPORT))):
        assert other == REPORT


def test_one_call_is_one_step() -> None:
    assert {name: row.total.macs for name, row in REPORT.by_step().items()} == {"step 1": 2 * 3 * 4}


def test_explained_with_one_convention() -> None:
    assert REPORT.explain("thop") == REPORT.explain("fxflops", "thop")
    assert REPORT.recount("fvcore").explain("thop") == REPORT.explain("fvcore", "thop")


@pytest.mark.parametrize(
    ("convention", "name"), [("torchinfo", "torchinfo mult-adds"), ("thop", "thop MACs"), ("fvcore", "FLOPs")]
)
def test_a_number_has_the_name_that_its_tool_gives_it(convention: str, name: str) -> None:
    report = fxflops.count(nn.Linear(64, 32, bias=False), torch.ones(8, 64), convention=convention)
    shown = str(report)  # 8 * 64 * 32
    label = "FLOPs    16.38 k     16,384" if name == "FLOPs" else f"counted  16.38 k     16,384 · {name}"
    assert f"{label} · convention {convention} · " in shown
    assert "MACs     16.38 k     16,384\n" in shown
    assert f"100% of {name.split()[-1]} in linear" in shown


def test_names_of_other_counters_say_what_a_report_has() -> None:
    report = fxflops.count(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(
        AttributeError, match=r"no 'unsupported_ops': report\.missing lists the ops that are not counted"
    ):
        report.unsupported_ops  # noqa: B018

"""Calls that people write out of habit from other tools get an error or answer that says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fxflops
from fxflops.cli.app import app
from fxflops.units import read_count, read_tokens

MODEL, X = nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (
            lambda: fxflops.serving(MODEL, prompt=1, new_tokens=2, tp=8),
            TypeError,
            "takes no tp: .*distributed.simulate",
        ),
        (
            lambda: fxflops.serving(MODEL, prompt=1, new_tokens=2, max_new_tokens=2),
            TypeError,
            "max_new_tokens: new_tokens is",
        ),
        (
            lambda: fxflops.profile(MODEL)(X),
            TypeError,
            r"(?s)is not a function to call: .*with fxflops.profile\(model\) as p",
        ),
        (lambda: fxflops.FlopCounterMode, AttributeError, "fxflops.adapters.flop_counter has it"),
        (lambda: fxflops.clever_format, AttributeError, "fxflops.adapters.thop has it"),
        (lambda: fxflops.training_run, AttributeError, r"a report, e\.g\. count\(model, args\)\.training_run$"),
        (lambda: fxflops.sumary, AttributeError, "did you mean summary"),
    ],
)
def test_python(wrong: Callable[[], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        wrong()


def test_a_training_run_takes_its_tokens_in_words_and_asks_for_a_card() -> None:
    report = fxflops.count(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4)), torch.zeros(2, 3).long(), backward=True)
    with pytest.raises(fxflops.InputError, match=r"needs the name of the card, e.g. training_run\('15T', 'H100'\)"):
        report.training_run("15T")
    assert report.training_run("15T", "H100") == report.training_run(15_000_000_000_000, "H100")
    with pytest.raises(fxflops.InputError, match="tokens 'many' is not a number"):
        report.training_run("many", "H100")


def test_the_tree_of_a_summary_takes_what_a_reports_does() -> None:
    summary = fxflops.summary(MODEL, input_size=(2, 4))
    assert " 0.03 k" in str(summary.tree(units="k", depth=0))  # 2 x 4 x 4 multiply-accumulates
    assert len(str(summary.tree(columns="params", depth=0)).splitlines()[1].split()) == 2


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("resnet50", "To count a model: fxflops run timm:resnet50"),
        ("timm:resnet50 --batch 2", "fxflops run timm:resnet50 --batch 2"),
        ("count timm:resnet18", "fxflops run MODEL"),
        ("check timm:resnet18 --max-flops 4 GFLOPs", "4G, or in quotes, '4 GFLOPs'"),
    ],
)
def test_the_command_line(command: str, said: str) -> None:
    pytest.importorskip("timm")
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(("text", "number"), [("4 GFLOPs", 4e9), ("4GMACs", 4e9), ("30Mparams", 3e7), ("12", 12)])
def test_a_count_may_name_what_it_counts(text: str, number: float) -> None:
    assert read_count(text) == number


def test_tokens_are_in_billions_and_trillions() -> None:
    assert (read_tokens("300B"), read_tokens("15T"), read_tokens("2.5M")) == (300 * 10**9, 15 * 10**12, 2_500_000)


def test_names_that_went_still_work_and_name_the_new_one() -> None:
    report = fxflops.count(MODEL, X)
    with pytest.warns(DeprecationWarning, match=r"named\(name\) is deprecated: use with_name") as warned:
        assert report.named("mine") == report.with_name("mine")
    assert warned[0].filename == __file__
    pytest.importorskip("pandas")
    for result in (report, report.by_module()):
        with pytest.warns(DeprecationWarning, match="use to_dataframe"):
            assert result.to_pandas().equals(result.to_dataframe())

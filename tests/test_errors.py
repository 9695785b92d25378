"""Suggestions for unknown names, and the causes and hints that errors give."""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from fxflops.errors import did_you_mean, not_installed, without_ours


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("thopp", " (did you mean thop?)"),
        ("attn", " (did you mean blocks.0.attn or blocks.1.attn?)"),  # a part of these names, though similar to neither
        ("zebra", ""),
        ("", ""),
    ],
)
def test_names_like_it(name: str, said: str) -> None:
    assert did_you_mean(name, ["", "thop", "blocks.0.attn", "blocks.1.attn"]) == said


def test_a_module_that_there_is_not() -> None:
    report = fxflops.count(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))), torch.ones(1, 4))
    with pytest.raises(
        fxflops.InputError, match=r"Sequential has no module '1\.1' \(did you mean 1\.0\?\); report\.by_module\(\)"
    ):
        report["1.1"]


class Tied(nn.Sequential):
    """Modules reachable by several paths: a block, a layer inside it, and a layer to which the block gives another name."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Sequential(nn.Sequential(nn.Linear(4, 4))))
        self[1].add_module("first", self[0])
        self[1].add_module("up", self)
        self.block = self[1]
        self.layer = self[1][0][0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[1][0](self[0](x))


@pytest.mark.parametrize("saved", [False, True])
def test_a_further_name_of_a_module_is_told_the_first(saved: bool, tmp_path: Path) -> None:
    report = fxflops.count(Tied(), torch.ones(1, 4))  # the model is gone by now
    if saved:
        report.save(tmp_path / "r.json")
        report = fxflops.Report.load(tmp_path / "r.json")
    paths = {"block": "1", "layer": "1.0.0", "block.0.0": "1.0.0", "block.first": "0", "1.up.block.up.layer": "1.0.0"}
    for path, first in paths.items():
        with pytest.raises(
            fxflops.InputError, match=rf"no module '{path}': use '{first}', another path of this module; report"
        ):
            report[path]
    with pytest.raises(fxflops.InputError, match=r"no module 'block\.none'; "):
        report["block.none"]


def test_a_list_and_a_model_on_meta_say_what_to_give() -> None:
    for ask in (fxflops.count, fxflops.analyze):
        with pytest.raises(fxflops.RunError, match=r"several inputs as a tuple, \(a, b\)"):
            ask(nn.Linear(4, 4), [torch.ones(1, 4)])
    with pytest.raises(fxflops.RunError, match=r"\n  to run a model on meta, use count\(model, args\)"):
        fxflops.analyze(nn.Linear(4, 4, device="meta"), torch.ones(1, 4))
    assert fxflops.count(nn.Linear(4, 4, device="meta"), torch.ones(1, 4)).total_macs == 16
    with pytest.raises(
        fxflops.InputError, match=r"^the input is on meta, but the model is on cpu: pass a real tensor, or use count"
    ):
        fxflops.analyze(nn.Linear(4, 4), torch.ones(1, 4, device="meta"))
    assert fxflops.analyze(nn.ReLU(), torch.ones(1, 4, device="meta"), repeats=0).complete


def test_strict_says_why_and_no_recipe_where_there_is_none() -> None:
    class Masked(nn.Module):
        def forward(self, q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, q, q, mask)

    with torch.device("meta"):  # a mask without values
        report = fxflops.count(Masked(), (torch.ones(1, 1, 4, 8), torch.ones(4, 4, dtype=torch.bool)))
    with pytest.raises(fxflops.MissingFormulaError) as error:
        report.recount(attention="exact").checked(strict=True)
    first, place, why = str(error.value).splitlines()
    assert first == "calls that are not counted: 1"
    assert place.startswith("  attention x1, first in the root  f32[1,1,4,8]")
    assert why.strip() == report.recount(attention="exact").missing[0].why


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def functions_in(traceback: TracebackType | None) -> list[str]:
    """The function names of a traceback; a star marks ours."""
    ours = str(Path(fxflops.__file__).parent)
    codes = [frame.f_code for frame, _ in walk_tb(traceback)]
    return ["*" * code.co_filename.startswith(ours) + code.co_name for code in codes]


def test_the_cause_of_an_error_keeps_the_frames_of_the_model_alone() -> None:
    with pytest.raises(fxflops.RunError) as error:
        fxflops.count(Narrow(), torch.ones(2, 5))
    assert error.value.__cause__ is not None
    causes = functions_in(error.value.__cause__.__traceback__)
    assert "forward" in causes
    assert not [name for name in causes if name.startswith("*")]
    assert [name for name in functions_in(error.tb) if name.startswith("*")] == [
        "*count",
        "*counted",
        "*rerun_if_own_backward",
        "*run_prepared",
        "*prepared_subject",
        "*errors_of_kind",
    ]


def test_an_error_of_our_own_keeps_its_frame() -> None:
    with pytest.raises(fxflops.InputError) as error:
        fxflops.count(nn.Linear)  # type: ignore[arg-type]
    *others, last = functions_in(without_ours(error.tb))
    assert last == "*as_model"
    assert not [name for name in others if name.startswith("*")]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda net, x: fxflops.count(net, input_size=(2, 4)),
            r"count\(\) takes no input_size: pass the model's inputs themselves",
        ),
        (
            lambda net, x: fxflops.analyze(net, input_size=(2, 4)),
            r"analyze\(\) takes no input_size: .*\n  analyze\(model, torch\.zeros.* kwargs=\{\.\.\.\}\n",
        ),
        (
            lambda net, x: fxflops.analyze(net, x, verbose=0, device="cpu"),
            r"takes no verbose, device: print the returned object .*; move the model",
        ),
        (
            lambda net, x: fxflops.count(net, input=x),
            r'count\(\) takes no input: pass inputs by name as count\(model, kwargs=\{"input": input\}\)$',
        ),
        (
            lambda net, x: fxflops.analyze(net, attention_mask=x, input=x),
            r'takes no attention_mask, input: .*analyze\(model, kwargs=\{"attention_mask": attention_mask, "input": input\}',
        ),
        (lambda net, x: fxflops.summary(net, input=x), r'summary\(model, kwargs=\{"input": input\}\)$'),
        (lambda net, x: fxflops.analyze(net, x, warm_up=3), r"takes no warm_up: warm-up runs .* repeats="),
        (lambda net, x: fxflops.count(net, x, module_depth=2), r"takes no module_depth: report\.tree\(depth=2\)"),
        (
            lambda net, x: fxflops.count(net, x, top_modules=3),
            r"report\.by_module\(\)\.select\(sort_by=\"flops\", top=5\)",
        ),
        (lambda net, x: fxflops.analyze(net, x, output_file="a.txt"), r"takes no output_file: report\.save\("),
        (
            lambda net, x: fxflops.count(net, x, ignore_modules=[nn.Linear]),
            r'ignore_modules: .*report\["path"\]\.total',
        ),
        (
            lambda net, x: fxflops.profile(net, module_depth=2),
            r"profile\(\) takes no module_depth: report\.tree\(depth=2\)",
        ),
        (
            lambda net, x: fxflops.profile(net, profile_step=3),
            r"takes no profile_step: .*schedule=torch\.profiler\.schedule",
        ),
        (lambda net, x: fxflops.profile(net, warm_up=3), r"takes no warm_up: .*schedule=torch\.profiler\.schedule\("),
        (lambda net, x: fxflops.count(net, x, world_size=8), r"takes no world_size: report\.gather\(\)"),
        (
            lambda net, x: fxflops.analyze(net, x, backwards=True),
            r"analyze\(\) takes no backwards \(did you mean backward",
        ),
        (lambda net, x: fxflops.count(net, x, strict="yes"), "strict must be True or False, not 'yes'"),
        (lambda net, x: fxflops.analyze(net, x, kernels="no"), "kernels must be True or False, not 'no'"),
        (lambda net, x: fxflops.profile(net, strict="no"), "strict must be True or False, not 'no'"),
        (
            lambda net, x: fxflops.count(net, x).table.select(top="3"),
            "top must be an int of at least 1, or None for all; got '3'",
        ),
        (
            lambda net, x: fxflops.count(net, x).tree(depth="2"),
            "depth must be an int of at least 0, or None for all; got '2'",
        ),
    ],
)
def test_arguments_of_the_wrong_kind(wrong: Any, said: str) -> None:
    with pytest.raises(fxflops.InputError, match=said) as error:
        wrong(nn.Linear(4, 4), torch.ones(2, 4))
    assert isinstance(error.value, TypeError)


def test_a_list_of_inputs_is_one_input() -> None:
    with pytest.raises(fxflops.RunError, match=r"a list counts as one input: .* several inputs as a tuple, \(a, b\)$"):
        fxflops.count(nn.Conv2d(3, 4, 3), [torch.ones(2, 3, 8, 8), torch.ones(2)])


def test_a_formula_of_no_operation_is_told_at_once() -> None:
    with pytest.raises(fxflops.FormulaError, match=r"no op or torch\.Tensor method is named 'nope'"):
        fxflops.formula("nope")


def test_an_extra_is_named_as_the_readme_does() -> None:
    said = str(not_installed("pandas", "report"))
    assert said == "pandas is not installed: pip install pandas, or in a clone of fxflops  pip install -e '.[report]'"


def test_arguments_that_a_method_does_not_take() -> None:
    report = fxflops.count(nn.Linear(4, 4), torch.ones(1, 4))
    with pytest.raises(
        fxflops.InputError, match=r"Report\.tree\(\) takes no module_depth: it takes depth, sort_by, fold"
    ):
        report.tree(module_depth=2)
    with pytest.raises(TypeError, match=r"by_module\(\) takes no depth: it takes phase; .*Report\.tree\(\) take depth"):
        report.by_module(depth=2)  # type: ignore[call-arg]
    with pytest.raises(fxflops.InputError, match=r"Table\.select\(\) takes no colums \(did you mean columns"):
        report.table.select(colums="op")
    with pytest.raises(TypeError, match=r"Report\.diff\(\) missing 1 required positional argument: 'other'"):
        report.diff()
    with pytest.raises(TypeError, match="is not iterable"):  # an error raised by the work, not by the call's arguments
        report.table.select(columns=3)

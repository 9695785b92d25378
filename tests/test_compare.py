"""compare.py reproduces torch_flops's own comparison, and runs every tool in its own process."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.forkserver
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

import compare
from tests.fresh import Fresh

COMPARE = Path(__file__).parents[1] / "compare.py"


def compared(fresh: Fresh, *options: str, **environment: str) -> str:
    """Run the script and return its output, with tables 100 columns wide."""
    run = fresh.run(str(COMPARE), *options, COLUMNS="100", **environment)
    assert run.returncode == 0, run.stderr
    assert answered(run.stderr) == options[options.index("--tools") + 1].split(",")
    return run.stdout


def invoked(*options: str) -> Result:
    """Run the script's command in this process. The tools' processes fork from a server that has imported their common modules."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.get_context("forkserver").set_forkserver_preload(["compare", "fxflops._public", "torchvision"])
        multiprocessing.forkserver.ensure_running()
    app = typer.Typer()
    app.command()(compare.main)
    return CliRunner().invoke(app, options, env={"COLUMNS": "200"})


def compared_here(*options: str) -> str:
    result = invoked(*options)
    assert result.exit_code == 0, result.output
    assert answered(result.stderr) == options[options.index("--tools") + 1].split(",")
    return result.stdout


def answered(stderr: str) -> list[str]:
    """The tools named on stderr, one line for each as it finishes."""
    return re.findall(r"^compare\.py: (\w+): \S", stderr, re.M)


def rows(file: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of the JSON file, by tool."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(file.read_text())["rows"]:
        found.setdefault(row["tool"], []).append(row)
    return found


def test_the_simple_model(tmp_path: Path, fresh: Fresh) -> None:
    markdown, file = tmp_path / "table.md", tmp_path / "table.json"
    text = compared(fresh, "--tools", "fxflops,torch_flops", "--markdown", str(markdown), "--json", str(file))
    assert "(layer): Linear(in_features=5, out_features=4, bias=True)" in text
    assert "layer        call_module  layer        Linear" in text
    assert "torch_flops: 40 FLOPs" in text
    (ours,), (theirs,) = rows(file).values()
    assert ours["number"] == theirs["number"] == theirs["fxflops"] == 40
    assert (ours["convention"], theirs["convention"]) == ("fxflops", "torch_flops")
    assert theirs["seconds"] > 0
    assert ours["changed"] == ours["not_counted"] == ""
    lines = markdown.read_text().splitlines()
    assert lines[0].startswith("| tool | number | unit | fxflops |")
    assert lines[3].startswith("| torch_flops | 40 | FLOPs | 40 | torch_flops |")
    assert max(map(len, text.partition("┏")[2].splitlines())) <= 100


def test_what_is_left_out_and_left_behind(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    text = compared_here("--add_one", "--linear_no_bias", "--tools", "FlopCounterMode,thop", "--json", str(file))
    assert "thop: 20 MACs" in text
    (counted,), (thop,) = rows(file).values()
    assert (counted["number"], counted["fxflops"], counted["changed"]) == (40, 40, "")
    assert counted["why"].startswith(("add -4", "linear +4"))
    assert thop["number"] == 20
    assert thop["not_counted"] == "SimpleModel"
    assert thop["changed"].startswith("state_dict: total_ops")


def test_a_missing_tool_and_one_that_raises(tmp_path: Path, fresh: Fresh) -> None:
    (tmp_path / "thop.py").write_text("raise ModuleNotFoundError('No module named thop', name='thop')")
    (tmp_path / "torchinfo.py").write_text("def summary(*_, **__): raise ValueError('no')")
    text = compared(
        fresh, "--tools", "fxflops,thop,torchinfo", "--json", str(tmp_path / "table.json"), PYTHONPATH=str(tmp_path)
    )
    assert "thop: not installed" in text
    assert text.endswith("not installed: thop (pip install thop)\n")
    _, (thop,), (torchinfo,) = rows(tmp_path / "table.json").values()
    assert (thop["number"], thop["why"]) == (None, "not installed")
    assert (torchinfo["number"], torchinfo["why"]) == (None, "ValueError: no")


def test_a_tool_with_two_numbers_is_explained_once(tmp_path: Path) -> None:
    """Without a bias each of 4 outputs is 5 products and 4 sums. The tool counts 2 x 5 FLOPs; its 5 MACs agree with ours."""
    pytest.importorskip("flops_profiler")
    file = tmp_path / "table.json"
    text = compared_here("--linear_no_bias", "--tools", "fxflops,flops_profiler", "--json", str(file))
    _, (flops, macs) = rows(file).values()
    assert (flops["unit"], macs["unit"]) == ("flops", "MACs")
    assert flops["why"].startswith("linear +4: ")
    assert "MACs" not in flops["why"]
    assert macs["why"] == ""
    assert text.count("│ flops_profiler │") == 3  # twice in the table of numbers, once in the table of reasons


def test_a_named_model(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    options = "--model", "torchvision:squeezenet1_1", "--input", "1,3,32,32", "--tools", "FlopCounterMode"
    text = compared_here(*options, "--json", str(file))
    assert "Model" not in text
    ((row,),) = rows(file).values()
    assert row["number"] == row["fxflops"] > 10**6


def test_an_input_that_does_not_fit() -> None:
    run = invoked("--model", "torchvision:squeezenet1_1", "--input", "1,4,64,64", "--tools", "fxflops")
    assert run.exit_code == 1
    assert "to have 3 channels, but got 4" in " ".join(re.sub("[│┃]", "", run.stdout).split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "resnet5000"), "resnet5000"),
        (("--tools", "flopth"), "flopth"),
        (("--input", "1,3,abc"), "is no shape such as"),
        (("--input", "1,0"), "is no shape such as"),
        (("--markdown", "nowhere/table.md"), "there is no folder 'nowhere'"),
        (("--add_one", "--model", "resnet18"), "are of the simple model"),
    ],
)
def test_wrong_options(options: tuple[str, ...], said: str) -> None:
    run = invoked(*options)
    assert run.exit_code == 2
    assert said in run.stderr


def test_the_number_of_ptflops_for_a_batch(tmp_path: Path) -> None:
    pytest.importorskip("ptflops")
    file = tmp_path / "table.json"
    run = invoked("--input", "4,5", "--add_one", "--tools", " ptflops, ptflops", "--json", str(file))
    assert run.exit_code == 0, run.output
    ((row,),) = rows(file).values()
    assert row["number"] == row["fxflops"]
    assert row["why"].startswith("modules with hooks divided by the batch of 4")


def test_a_model_that_is_misspelled() -> None:
    pytest.importorskip("torchvision")
    run = invoked("--model", "torchvision:resnet5")
    assert run.exit_code == 2
    assert "torchvision has no model 'resnet5' (did you mean resnet5" in run.stderr

"""What the command line counts in users' files, on which device, and what it says if it cannot."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fxflops.cli.app import app

SOURCE = """
import sys

import torch
from torch import nn


def large():
    return nn.Linear(300_000, 300_000)


def small():
    return nn.Conv2d(3, 8, 3)


def linear():
    return nn.Linear(8, 4)


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


class Read(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, int(torch.ones(3).sum()))

    def forward(self, x):
        return self.linear(x)


class Branch(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.square().sum() >= 0 else x


def branch():
    return Branch(8, 4)


class Guarded(nn.Linear):
    def forward(self, x):
        try:
            return super().forward(x * x.square().sum().item())
        except RuntimeError:
            return x


def guarded():
    return Guarded(8, 4)


class Attended(nn.Module):
    def forward(self, q, mask):
        return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def masked():
    return Attended(), (torch.ones(1, 1, 4, 8), torch.ones(4, 4, dtype=torch.bool).tril())


def broken():
    print("made", file=sys.stderr)
    raise ValueError("no such width")
"""
REGISTERS = """
import torch

torch.library.define("stumbles::once", "(Tensor x) -> Tensor")


class A(torch.nn.Module):
    def forward(self, x):
        return x * 2


class B(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Path(tmp_path, "own_nets.py").write_text(SOURCE)
    Path(tmp_path, "own_ops.py").write_text(REGISTERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("own_nets", "own_ops"):
        sys.modules.pop(name, None)


def invoke(command: str) -> Any:
    return CliRunner().invoke(app, shlex.split(command), catch_exceptions=False, prog_name="fxflops")


def report(command: str) -> tuple[dict[str, Any], str]:
    """Return the report that a command gives as JSON, and what it prints on stderr."""
    result = invoke(f"{command} --json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_weights_and_inputs_of_any_size_are_counted() -> None:
    found, said = report("run own_nets.py:large --input 1,300000 --counts-only")
    assert (found["totals"]["total_macs"], found["totals"]["total_flops"]) == (300_000**2, 2 * 300_000**2)
    assert (found["environment"]["device"], said) == ("cpu", "")
    found, said = report("run own_nets.py:small --input 1,3,60000,60000 --counts-only")
    assert (found["totals"]["total_macs"], said) == (59_998**2 * 8 * 27, "")
    found, _ = report("run own_nets.py:Doubled --input 60000,60000 --counts-only")
    assert (found["totals"]["total_flops"], found["environment"]["device"]) == (60_000**2, "cpu")


def test_a_step_of_an_optimizer_is_counted() -> None:
    step = "run own_nets.py:linear --input 2,8 --counts-only --backward --optimizer"
    params = 8 * 4 + 4
    for more in ("", " --device cpu"):
        assert report(f"{step} SGD{more}")[0]["totals"]["total_optimizer_flops"] == 2 * params  # w - lr * g
    assert report(f"{step} AdamW")[0]["memory"]["categories"]["optimizer"] >= 2 * 4 * params  # two moments of f32


@pytest.mark.parametrize(
    ("name", "macs", "how"),
    [
        ("Read", 2 * 8 * 3, "built with real weights and counted on the meta device"),  # its constructor needs a value
        ("branch", 2 * 8 * 4, "counted on real tensors"),  # its forward needs one
        ("guarded", 2 * 8 * 4, "counted on real tensors"),  # its forward has another path without one
    ],
)
def test_where_values_are_needed_there_are_some(name: str, macs: int, how: str) -> None:
    found, said = report(f"run own_nets.py:{name} --input 2,8 --counts-only")
    assert (found["totals"]["total_macs"], found["totals"]["complete"]) == (macs, True)
    assert found["environment"]["device"].startswith("cpu")
    assert said.startswith(f"fxflops: own_nets.py:{name} needs the values of tensors, so it was {how}: ")
    assert how.endswith(found["trace"])


def test_processes_that_are_not_brought_together_print_once(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "run own_nets.py:linear --input 2,8 --counts-only"
    alone = invoke(command)
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    first = invoke(command)
    assert (first.stdout, alone.stderr) == (alone.stdout, "")
    assert (
        "does not initialize torch.distributed: each of the 2 processes counted the whole model, and only rank 0 prints"
        in first.stderr
    )
    monkeypatch.setenv("RANK", "1")
    assert invoke(command).output == ""


def test_a_mask_that_the_file_makes_keeps_its_values() -> None:
    """10 of 16 pairs are left. Each takes 8 multiply-accumulates with the keys and 8 with the values."""
    found, _ = report("run own_nets.py:masked --counts-only --attention exact")
    assert (found["totals"]["total_macs"], found["totals"]["complete"]) == (2 * 10 * 8, True)
    found, said = report("run own_nets.py:masked --counts-only")
    assert (found["totals"]["total_macs"], said) == (2 * 16 * 8, "")


def test_what_is_no_matter_of_meta_is_tried_once() -> None:
    result = invoke("run own_nets.py:broken --counts-only")
    assert result.exit_code == 2
    assert result.stderr.startswith("made\nfxflops: own_nets.py:broken() raised ValueError: no such width\n  at ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--input 2,8 --dtype int8", "weights cannot have dtype 'int8'"),
        ("--input 2,8 --dtype bool", "weights cannot have dtype 'bool'"),
        ("--input 99999999999999999999,8", "cannot create an input f32[99999999999999999999,8]"),
        ("--input 2,8 --device xla", "own_nets.py:linear cannot be moved to its device and dtype: "),
    ],
)
@pytest.mark.parametrize("command", ["run", "check --max-flops 1G"])
def test_a_users_mistake_is_no_passed_budget(command: str, options: str, said: str) -> None:
    device = "" if "--device" in options else " --device cpu"
    result = invoke(f"{command} own_nets.py:linear {options}{device}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("fxflops: ")
    assert said in result.stderr


def test_inputs_of_any_size_are_counted_for_any_device() -> None:
    size = "own_nets.py:linear --input 33554432,33554432"
    result = invoke(f"run {size} --device cpu")
    assert "4.00 PiB, more than this machine's memory" in result.stderr
    for device in ("cpu", "cuda", "cuda:1", "meta"):
        found, _ = report(f"run own_nets.py:linear --input 33554432,8 --counts-only --device {device}")
        assert found["totals"]["total_macs"] == 33554432 * 8 * 4
        assert found["environment"]["device"] == {"cuda": "cuda:0", "meta": "cpu"}.get(device, device)


def test_a_complex_model_has_complex_inputs() -> None:
    found, said = report("run own_nets.py:linear --input 2,8 --dtype c64 --repeats 0")
    assert (found["inputs"], found["totals"]["total_macs"], said) == ("c64[2,8]", 4 * 2 * 8 * 4, "")


def test_two_models_of_a_file_that_registers_an_operator() -> None:
    result = invoke("diff own_ops.py:A own_ops.py:B --input 2,3 --json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["totals"]["FLOPs"] == {"a": 6, "b": 12}


def test_options_are_of_the_side_that_is_a_model() -> None:
    assert invoke("run own_nets.py:linear --input 2,8 --counts-only --save i.json").exit_code == 0
    for sides, macs in (("i.json own_nets.py:linear", (64, 128)), ("own_nets.py:linear i.json", (128, 64))):
        result = invoke(f"diff {sides} --input 4,8 --json")
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)["totals"]["MACs"]
        assert (found["a"], found["b"]) == macs
    result = invoke("diff i.json i.json --input 4,8")
    assert result.exit_code == 2
    assert "for which only the options --convention and --attention work" in result.stderr


def test_columns_of_two_views() -> None:
    shown = "run own_nets.py:linear --input 2,8 --counts-only --tree --table --columns"
    tree, table = invoke(f"{shown} op,calls,flops").stdout.split("\n\n")[1:]
    assert tree.splitlines()[0].split() == ["module", "calls", "FLOPs"]
    assert table.splitlines()[0].split() == ["op", "FLOPs"]
    tree, table = invoke(f"{shown} op").stdout.split("\n\n")[1:]
    assert tree.splitlines()[0].split() == ["module", "params", "MACs", "FLOPs", "%"]
    assert table.splitlines()[0].split() == ["op"]
    assert "--tree: no column 'cost'" in invoke(f"{shown} op,cost").stderr


def test_a_model_is_also_timed_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    (tmp_path / "net.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Linear(8, 8))\n"
    )
    asked = ["run", f"{tmp_path}/net.py:make", "--input", "4,8", "--compile", "--backward", "--repeats", "2"]
    text = CliRunner().invoke(app, asked).output
    assert "\ncompiled " in text
    assert "its backward · " in text
    refused = CliRunner().invoke(app, [*asked[:5], "--counts-only"])
    assert "--trace, --repeats and --compile only work when the model runs" in refused.output

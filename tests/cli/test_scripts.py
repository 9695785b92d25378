from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fxflops.cli import scripts
from fxflops.cli.app import app
from fxflops.report.report import Report

SCRIPT = """
import subprocess
import sys
import torch
import beside

layer = torch.nn.Linear(8, 4, bias=False)
for _ in range(int(sys.argv[sys.argv.index("--steps") + 1])):
    layer(torch.ones(2, 8))
sys.exit(beside.CODE)
"""


@pytest.mark.parametrize("code", ["None", "3", "'it went wrong'"])
def test_a_script_runs_as_python_runs_it(code: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text(f"CODE = {code}\n")
    saved = tmp_path / "report.json"
    asked = ["profile", "--save", str(saved), str(tmp_path / "train.py"), "--steps", "5"]
    try:
        result = CliRunner().invoke(app, asked)
    finally:
        sys.modules.pop("beside", None)
    assert result.exit_code == {"None": 0, "3": 3}.get(code, 1)
    assert "MACs" in result.stdout
    assert ("it went wrong" in result.output) == ("wrong" in code)
    assert Report.load(saved).total_macs == 5 * 2 * 8 * 4


def test_a_script_can_be_timed_without_observing_operations(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.nn.Sequential(torch.nn.Linear(4, 4))(torch.ones(2, 4))")
    asked = ["profile", "--detail", "modules", str(tmp_path / "train.py")]
    timed = CliRunner().invoke(app, asked)
    assert (timed.exit_code, "only times were measured" in timed.stdout, "Linear" in timed.stdout) == (0, True, True)
    unknown = CliRunner().invoke(app, ["profile", "--detail", "lines", str(tmp_path / "train.py")])
    assert (unknown.exit_code, "expected one of 'operations', 'modules', 'steps'" in unknown.output) == (2, True)


def test_a_name_that_is_no_file_says_what_counts_a_model() -> None:
    result = CliRunner().invoke(app, ["profile", "timm:resnet50"])
    assert (result.exit_code, "fxflops run MODEL" in result.output) == (2, True)


def test_options_of_fxflops_stand_before_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.exit(2 * ('--lines' in sys.argv))")
    result = CliRunner().invoke(app, ["profile", str(tmp_path / "train.py"), "--lines"])
    assert (result.exit_code, "--lines was passed to the script" in result.output) == (2, True)
    (tmp_path / "train.py").write_text("")
    ignored = CliRunner().invoke(app, ["profile", str(tmp_path / "train.py"), "--lines"])
    assert (ignored.exit_code, "--lines was passed to the script" in ignored.output) == (0, True)
    misplaced = CliRunner().invoke(app, ["profile", str(tmp_path / "train.py"), "--detail", "steps"])
    assert "--detail was passed to the script" in misplaced.output
    unknown = CliRunner().invoke(app, ["profile", "--tree", str(tmp_path / "train.py")])
    assert (unknown.exit_code, "no such option: --tree" in unknown.output) == (2, True)


def test_a_script_that_raises_is_reported_until_then(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "layer = torch.nn.Linear(8, 4, bias=False)\n"
        "for _ in range(3):\n"
        "    layer(torch.ones(2, 8))\n"
        "layer(torch.ones(2, 9))\n"
    )
    saved = tmp_path / "report.json"
    result = CliRunner().invoke(app, ["profile", "--save", str(saved), str(script)])
    assert result.exit_code == 1
    assert Report.load(saved).total_macs == 3 * 2 * 8 * 4
    first, *_, last = [line for line in result.stderr.splitlines() if line.startswith("  File")]
    assert f'"{script}", line 5' in first
    assert "torch" in last
    assert str(Path(scripts.__file__).parents[1]) not in result.stderr


def test_a_script_that_raises_before_it_calls_torch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise ValueError('no data: give --data')")
    result = CliRunner().invoke(app, ["profile", str(script)])
    assert result.exit_code == 1
    assert "nothing ran in the block before the error: ValueError: no data: give --data" in result.stdout
    assert "call the model inside the block" not in result.stdout


def test_ctrl_c_ends_a_script_with_a_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, torch\n"
        "torch.nn.Linear(8, 4)(torch.ones(2, 8))\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('not reached')\n"
    )
    command = [sys.executable, "-m", "fxflops", "profile", str(tmp_path / "train.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 130
    assert "MACs" in run.stdout
    assert "not reached" not in run.stdout
    assert run.stderr.endswith("KeyboardInterrupt\n")

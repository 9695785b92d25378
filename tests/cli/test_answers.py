"""Commands that ask one thing of a model print what the library's functions return. They accept traces like reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fxflops
from fxflops.cli.app import app

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "dtype": "bfloat16",
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return f"hf:{tmp_path / 'config.json'}"


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**CONFIG)).to(torch.bfloat16)


def out(*args: object) -> str:
    result = CliRunner().invoke(app, [*map(str, args)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_serving_is_the_functions(config: str) -> None:
    shown = out("serving", config, "--prompt", 10, "--new-tokens", 5, "--batch", 3, "--device", "H100")
    assert shown.strip() == str(fxflops.serving(llama(), prompt=10, new_tokens=5, batch=3, device="H100"))
    data = json.loads(out("serving", config, "--prompt", 10, "--new-tokens", 5, "--json"))
    assert data["prefill_flops"] == fxflops.serving(llama(), prompt=10, new_tokens=5).prefill_flops


def test_a_training_run_is_the_reports(config: str) -> None:
    shown = out("training-run", config, "--input-ids", "1,8", "--tokens", "15T", "--device", "H100", "--mfu", 0.5)
    ids = torch.zeros(1, 8, dtype=torch.long)
    report = fxflops.count(llama(), kwargs={"input_ids": ids, "labels": ids}, backward=True)
    run = report.training_run("15T", "H100", 0.5)
    assert shown.startswith(f"{run}\ncounted for a step of 8 tokens")
    asked = ["training-run", config, "--input-ids", "1,8", "--tokens", "15T", "--device", "H100", "--mfu", 0.5]
    on_gpus = out(*asked, "--gpus", "1,024")
    assert f"\n{run.hours / 1024 / 24:,.1f} days on 1,024 GPUs\n" in on_gpus
    assert json.loads(out(*asked, "--gpus", 1024, "--json"))["days"] == pytest.approx(run.hours / 1024 / 24)


def test_an_estimate_is_the_trainers(config: str) -> None:
    from fxflops import trainers

    assert out("estimate", "megatron", config, "--lengths", "8,16").strip() == str(
        trainers.estimate("megatron", CONFIG, [8, 16])
    )
    both = out("estimate", "megatron", config, "--lengths", 8, "--against", "6nd")
    assert both.strip() == str(trainers.explain("megatron", "6nd", CONFIG, [8]))


def test_a_roofline_is_the_reports(tmp_path: Path) -> None:
    report = fxflops.count(nn.Linear(64, 32), torch.ones(8, 64))
    report.save(tmp_path / "report.json")
    assert out("roofline", tmp_path / "report.json", "--device", "4090").strip() == str(report.roofline("4090"))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_of_torchs_profiler_is_shown_as_a_report_is(tmp_path: Path, name: str) -> None:
    model, x = nn.Linear(64, 32, bias=False), torch.ones(8, 64)
    with torch.profiler.profile(record_shapes=True) as profiler:
        model(x)
    profiler.export_chrome_trace(str(tmp_path / name))
    shown = json.loads(out("run", tmp_path / name, "--json"))
    assert shown["totals"]["total_macs"] == 8 * 64 * 32
    by_torch = json.loads(out("run", tmp_path / name, "--convention", "torch", "--json"))
    assert by_torch["totals"]["total_flops"] == 2 * 8 * 64 * 32


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("roofline model.py:make", "file not found"),
        ("training-run hf:LlamaForCausalLM --tokens many --device H100", "is not a number with one of the units"),
        ("training-run hf:LlamaForCausalLM --tokens 15T --device H100 --mfu 40", "40% is 0.4"),
        ("serving hf:LlamaForCausalLM --prompt 8k --new-tokens 10", "write all digits, e.g. 8192"),
        ("mesh hf:LlamaForCausalLM --gpus 8 --seq 8k", "write all digits, e.g. 8192"),
        ("training-run hf:LlamaForCausalLM --tokens 15T", "give --device CARD"),
        ("estimate megatrn hf:LlamaForCausalLM --lengths 8", "did you mean megatron"),
        ("estimate megatron hf:LlamaForCausalLM", "give --lengths"),
        ("run absent.json.gz", "file not found"),
    ],
)
def test_mistakes_are_messages(command: str, said: str) -> None:
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_config_is_named_by_its_path_or_folder_alone(config: str) -> None:
    path = Path(config.removeprefix("hf:"))
    spelled = [out("estimate", "megatron", name, "--lengths", 8) for name in (config, path, path.parent)]
    assert spelled[0] == spelled[1] == spelled[2]
    counted = [out("run", name, "--input-ids", "1,8", "--counts-only", "--json") for name in (config, path)]
    assert len({json.loads(text)["totals"]["total_flops"] for text in counted}) == 1

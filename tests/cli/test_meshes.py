"""``fxflops mesh`` prints the meshes that fit, and says what is wrong with its options."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist
from typer.testing import CliRunner

from fxflops.cli.app import app
from tests.distributed import simulates

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return f"hf:{tmp_path / 'config.json'}"


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, ["mesh", *args])


@simulates
def test_meshes_that_fit_and_those_that_do_not(model: str) -> None:
    found = invoke(model, "--gpus", "16", "--device", "H100", "--seq", "32", "--json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    assert "tensor parallel over at most 2 devices: larger sizes do not divide the model's heads" in found.stderr
    assert {row["mesh"] for row in data["meshes"]} == {"dp 16 x tp 1", "dp 8 x tp 2"}
    for row, dp in ((row, int(row["mesh"].split()[1])) for row in data["meshes"]):
        assert row["best"] == max(row["compute"], row["communication"])
        assert row["rate"] == pytest.approx(dp * 32 / row["predicted_best"])
    rates = [row["rate"] for row in data["meshes"]]
    assert rates == sorted(rates, reverse=True)


@simulates
def test_meshes_of_different_batches_say_so(model: str) -> None:
    args = [model, "--gpus", "16", "--device", "H100", "--seq", "32"]
    text = invoke(*args).stdout
    assert "tokens/step" in text
    assert "different global batches, of 256 to 512 tokens per step" in text  # 8 and 16 ranks of 32 tokens
    assert "tokens/step" not in invoke(*args, "--global-batch", "64").stdout


@simulates
def test_a_mesh_that_is_too_large_is_checkpointed_or_left_out(model: str) -> None:
    args = [model, "--gpus", "2", "--device", "H100", "--seq", "32"]
    memory = {row["mesh"]: row["memory"] for row in json.loads(invoke(*args, "--json").stdout)["meshes"]}
    least = min(memory.values())
    planned = invoke(*args, "--memory", f"{least}B").stdout
    assert "checkpointed" in planned  # the mesh that is too large if all activations are kept
    text = invoke(*args, "--memory", f"{least}B", "--no-checkpoint").stdout
    assert text.startswith("training step: batch ")
    assert " of 32 tokens per data-parallel rank" in text.splitlines()[0]
    assert text.splitlines()[1].startswith("predicted on H100 SXM, 450 GB/s within a node of 8")
    largest = max(memory, key=memory.__getitem__)
    assert f": {largest} (" in text.splitlines()[-1]
    assert text.splitlines()[-1].startswith("does not fit into ")


@simulates
def test_a_global_batch_is_shared_among_the_ranks_and_links_are_given(model: str) -> None:
    links = ["--within", "10GB", "--across", "1GB", "--node", "2"]
    args = [model, "--gpus", "2", "--seq", "8", "--global-batch", "8", "--no-checkpoint", "--device", "L4", *links]
    rows = json.loads(invoke(*args, "--json").stdout)["meshes"]
    assert {row["mesh"] for row in rows} == {"dp 2 x tp 1", "dp 1 x tp 2"}
    assert {row["tokens"] for row in rows} == {8 * 8}
    text = invoke(*args).stdout
    assert "8 sequences of 8 tokens on all ranks" in text
    assert "10 GB/s within a node of 2, 1 GB/s between nodes" in text
    assert "cannot be divided" in invoke(model, "--gpus", "4", "--global-batch", "1").stderr


@simulates
def test_csv(model: str) -> None:
    (row,) = csv.DictReader(invoke(model, "--gpus", "1", "--seq", "8", "--no-checkpoint", "--csv").stdout.splitlines())
    assert (row["mesh"], float(row["communication"]), row["binds"]) == ("dp 1 x tp 1", 0, "launch")


@simulates
def test_a_model_of_experts_is_data_parallel_alone(tmp_path: Path) -> None:
    experts = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 2}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **experts}))
    found = invoke(f"hf:{tmp_path}", "--gpus", "4", "--seq", "8", "--json")
    assert [row["mesh"] for row in json.loads(found.stdout)["meshes"]] == ["dp 4 x tp 1"]
    assert "only data parallel: the model has no tp_plan" in found.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["timm:resnet18", "--gpus", "2"], "mesh needs a transformers language model"),
        (["hf:bert", "--gpus", "2"], "such as BertLMHeadModel"),
        (["hf:LlamaForCausalLM", "--gpus", "2", "--device", "Abacus"], "unknown device 'Abacus'"),
        (["hf:LlamaForCausalLM", "--gpus", "2", "--device", "L4"], "the link speeds of L4 are unknown: give --within"),
        (["hf:LlamaForCausalLM", "--gpus", "2", "--json", "--csv"], "not both"),
        (["hf:LlamaForCausalLM", "--gpus", "0"], "--gpus"),
        (["hf:LlamaForCausalLM", "--gpus", "2", "--memory", "much"], "--memory"),
    ],
)
def test_wrong_options(args: list[str], message: str) -> None:
    found = invoke(*args)
    assert found.exit_code == 2
    assert message in found.stderr


@simulates
def test_gradients_are_accumulated_where_the_share_does_not_fit(model: str) -> None:
    args = [model, "--gpus", "2", "--seq", "32"]
    tokens = ["--global-tokens", str(16 * 32)]
    given = json.loads(invoke(*args, *tokens, "--batch", "2", "--no-checkpoint", "--json").stdout)["meshes"]
    assert {(row["batch"], row["passes"]) for row in given} == {(2, 4), (2, 8)}
    text = invoke(*args, *tokens, "--no-checkpoint", "--memory", f"{max(row['memory'] for row in given)}B").stdout
    rows = [line for line in text.splitlines() if line.startswith("dp ")]
    assert max(map(len, rows)) <= 120
    for row in rows:
        dp, batch, passes = map(int, re.match(r"dp (\d+) x tp \d+ +(\d+) x (\d+)", row).groups())
        assert batch * passes * dp == 16
        assert passes > 1


@simulates
def test_where_nothing_fits_it_is_said_what_to_do(model: str) -> None:
    found = invoke(model, "--gpus", "2", "--seq", "8", "--batch", "2", "--memory", "2KiB", "--no-checkpoint")
    assert "no mesh fits" in found.stdout
    assert (
        "ways to make it fit: leave out --no-checkpoint, a smaller --batch, with --global-batch to accumulate"
        in found.stdout
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--global-tokens", "4M", "--seq", "4096"], "--global-batch 1024 is 4,194,304 tokens"),
        (["--global-tokens", "4096", "--seq", "4096", "--global-batch", "1"], "not both"),
    ],
)
def test_wrong_numbers_of_tokens(model: str, args: list[str], message: str) -> None:
    found = invoke(model, "--gpus", "2", *args)
    assert found.exit_code == 2
    assert message in " ".join(found.stderr.split())

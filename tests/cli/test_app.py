"""The command line: each command's output, its exit codes, and that every example in its help runs."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import fxflops
from fxflops.advice import COMMAND, SUMMARY, WORDS
from fxflops.cli import libraries
from fxflops.cli.app import app
from tests.fresh import Fresh
from tests.test_readme import CONSOLE

# The sums below follow from this: a convolution from 3 to 8 channels, 3 x 3, on 64 x 64 pixels, and a linear layer 8 to 10.
SOURCE = """
import sys

import torch
from torch import nn

from widths import WIDTH

print("a word on stdout")


def make_model(width=WIDTH):
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


before = make_model
model = nn.Linear(4, 2)
number = 3


def after():
    return make_model(2 * WIDTH)


def with_args():
    return nn.Linear(4, 2), torch.ones(3, 4)


def with_kwargs():
    return nn.Linear(4, 2), (), {"input": torch.ones(5, 4)}


def exits():
    raise SystemExit(3)


def halved():
    return nn.Linear(4, 2).half()


def broken():
    raise ValueError("no such width")


def pair():
    return 1, 2


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)

    def forward(self, words, mask=None, scale=None):
        assert words.max() < 7 and (mask is None or bool(mask.all()))
        return self.table(words) if scale is None else self.table(words) * scale


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Unknown(nn.Module):
    def forward(self, x):
        return torch.ops.clitest.unknown(x * 2)
"""
CONV = 64 * 64 * 8 * 3 * 9  # MACs


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a folder with a model and a second file, and undo everything that loading changes."""
    (tmp_path / "model.py").write_text(SOURCE)
    (tmp_path / "widths.py").write_text("WIDTH = 8\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the libraries' own imports
        yield
    for name in ("model", "widths"):
        sys.modules.pop(name, None)


def invoke(command: str) -> Any:
    return CliRunner().invoke(app, shlex.split(command), catch_exceptions=False, prog_name="fxflops")


def out(command: str) -> str:
    """Return what a command prints; the command must succeed."""
    result = invoke(command)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def process(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Start a real process, as a user does."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    variables["PYTHONPATH"] = os.pathsep.join([str(Path(fxflops.__file__).parents[1]), variables.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=variables,
        check=False,
        encoding="utf8",
    )


# run


def test_a_function_in_a_file() -> None:
    text = out("run model.py:make_model --input 2,3,64,64 --counts-only")
    assert text.startswith("Sequential (model.py:make_model)   input f32[2,3,64,64]   cpu · eval")
    assert f"MACs     {fxflops.units.count(2 * (CONV + 80))}" in text
    assert "complete: 4 of 4 calls" in text
    assert "a word on stdout" not in text


@pytest.mark.parametrize(
    ("place", "shape"),
    [("model.py:with_args", "f32[3,4]"), ("model.py:with_kwargs", "f32[5,4]"), ("model:with_args", "f32[3,4]")],
)
def test_a_model_with_its_inputs(place: str, shape: str) -> None:
    assert f"input {shape}" in out(f"run {place} --counts-only")


def test_a_module_is_a_model_and_inputs_of_its_own_can_be_replaced() -> None:
    assert "input f32[9,4]" in out("run model.py:model --input 9,4 --counts-only")
    assert "input f32[9,4]" in out("run model.py:with_args --input 9,4 --counts-only")
    assert "input bf16[3,4]" in out("run model.py:with_args --dtype bf16 --counts-only")


def test_inputs_by_position_and_by_name() -> None:
    text = out("run model.py:Words --input 2,5:i64 --input scale=4:f64 --input mask=2,5:bool --counts-only")
    assert "input i64[2,5] f64[4] bool[2,5]" in text
    assert "input i64[2,5] i64[2,5]" in out("run model.py:Words --input-ids 2,5 --input mask=2,5:i64 --repeats 0")
    assert "input i64[6,5]" in out("run model.py:Words --input-ids 2,5 --batch 6 --repeats 1")


def test_a_run_is_timed_and_shown_as_tree_and_table() -> None:
    command = "run model.py:make_model --input 1,3,64,64 --repeats 1 --tree --depth 1 --table --sort-by flops"
    text = out(f"{command} --top 2 --units M")
    summary, tree, table = text.split("\n\n")
    assert "latency" in summary
    assert tree.splitlines()[2].startswith("├─ 0  Conv2d")
    assert [line.split()[:2] for line in table.splitlines()[2:4]] == [["conv", "0"], ["adaptive_avg_pool", "1"]]
    assert re.search(r"^top 2 of \d+ operations: .*% of FLOPs", table, re.M)
    assert "time" not in out("run model.py:with_args --counts-only --table").partition("\n\n")[2]


def test_columns_of_the_table() -> None:
    lines = out("run model.py:with_args --counts-only --table --columns op,flops").partition("\n\n")[2].splitlines()
    assert [line.split() for line in lines] == [["op", "FLOPs"], ["------", "-------"], ["linear", "48"]]


def test_summary() -> None:
    lines = out("summary model.py:make_model --input-size 1,3,64,64").splitlines()
    assert lines[0].split() == ["module", "inputs", "output", "params", "MACs"]
    assert re.split(" {2,}", lines[2])[-4:] == [
        "f32[1,3,64,64]",
        "f32[1,8,64,64]",
        "224",
        "884.7 k",
    ]  # 27 x 8 x 64 x 64
    assert lines[6] == ""
    assert lines[7].startswith("Sequential (model.py:make_model)   input f32[1,3,64,64]")
    cut = out("summary model.py:make_model --input 1,3,64,64 --depth 0 --columns params").splitlines()
    assert cut[:3] == ["module      params", "Sequential     314", "below depth 0: 4 more modules"]
    rows = json.loads(out("summary model.py:make_model --input-size 1,3,64,64 --json"))
    assert [row["params"] for row in rows] == [8 * 27 + 8 + 90, 8 * 27 + 8, 0, 0, 90]
    out("run model.py:make_model --input-size 1,3,64,64 --counts-only --save a.json")
    assert out("summary a.json").splitlines()[:6] == lines[:6]


def test_training() -> None:
    text = out("run model.py:with_args --train --backward --counts-only")
    assert "· train · grad ·" in text
    assert "backward" in text


def test_a_convention_and_attention() -> None:
    # The model has no attention, so the output does not say how attention is counted.
    assert "24          convention fvcore · complete" in out(
        "run model.py:with_args --convention fvcore --attention exact --counts-only"
    )


def test_json_alone_is_on_stdout_and_files_are_written(tmp_path: Path) -> None:
    result = invoke("run model.py:with_args --json --repeats 1 --save a.json --save a.csv --save a.md")
    assert json.loads(result.stdout)["totals"]["total_flops"] == 48
    assert fxflops.Report.load(tmp_path / "a.json").total_flops == 48
    assert (tmp_path / "a.csv").read_text().count("linear") > 0
    assert "fxflops: wrote a.md" in result.stderr


@pytest.mark.skipif(not hasattr(fxflops.Report, "to_html"), reason="there is no page of a report yet")
def test_a_page_is_written(tmp_path: Path) -> None:
    out("run model.py:with_args --counts-only --save a.html")
    assert "<" in (tmp_path / "a.html").read_text()


def unknown_op() -> None:
    if not hasattr(torch.ops.clitest, "unknown"):
        torch.library.define("clitest::unknown", "(Tensor x) -> Tensor")
        torch.library.impl("clitest::unknown", "default")(torch.clone)


def test_strict_shows_what_there_is_and_fails() -> None:
    unknown_op()
    result = invoke("run model.py:Unknown --input 2,3 --repeats 1 --strict")
    assert result.exit_code == 1
    assert "INCOMPLETE" in result.stdout
    assert "clitest.unknown" in result.stdout
    assert result.stderr.endswith("fxflops: calls that are not counted: 1\n")
    as_json = invoke("run model.py:Unknown --input 2,3 --repeats 1 --strict --json")
    assert "  clitest::unknown x1, first in the root" in as_json.stderr
    assert invoke("run model.py:Unknown --input 2,3 --repeats 1").exit_code == 0


def test_a_model_of_a_library_needs_no_weights_to_be_counted() -> None:
    pytest.importorskip("timm")
    text = out("run timm:resnet50 --counts-only --batch 2 --convention torch_flops --json")
    totals = json.loads(text)["totals"]
    assert totals["total_flops"] == 2 * 8_227_340_288
    assert json.loads(text)["inputs"] == "f32[2,3,224,224]"
    assert json.loads(text)["environment"]["device"] == "cpu"


def test_a_model_that_needs_values_is_counted_on_the_cpu() -> None:
    pytest.importorskip("torchvision")
    result = invoke("run torchvision:ssdlite320_mobilenet_v3_large --counts-only")
    assert "needs the values of tensors, so it was counted on real tensors" in result.stderr
    assert "input f32[1,3,320,320]   cpu" in result.stdout


def test_the_sizes_that_torchvision_says() -> None:
    pytest.importorskip("torchvision")
    from fxflops.cli.models import load

    names = ["inception_v3", "fcn_resnet50", "r3d_18", "ssd300_vgg16", "efficientnet_b1"]
    shapes = {name: load(f"torchvision:{name}", True).default[0].shape for name in names}
    assert shapes == {
        "inception_v3": (1, 3, 299, 299),
        "fcn_resnet50": (1, 3, 520, 520),
        "r3d_18": (1, 3, 16, 112, 112),
        "ssd300_vgg16": (1, 3, 300, 300),
        "efficientnet_b1": (1, 3, 240, 240),
    }


def test_transformers_by_type_class_and_config(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = {
        "model_type": "bert",
        "vocab_size": 50,
        "dtype": "bfloat16",
        "architectures": ["BertForMaskedLM"],
        **small,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = invoke("run hf:config.json --counts-only")
    assert result.stdout.startswith("BertForMaskedLM (hf:config.json)   input i64[1,128]   cpu · eval")
    assert "input_ids of 128 tokens, without a mask" in result.stderr
    assert out("run hf:. --input-ids 2,16 --repeats 1").startswith("BertForMaskedLM (hf:.)   input i64[2,16]   cpu")
    assert out("run hf:GPT2LMHeadModel --input-ids 1,4 --counts-only").startswith(
        "GPT2LMHeadModel (hf:GPT2LMHeadModel)   input i64[1,4]"
    )
    assert out("run hf:vit --counts-only").startswith("ViTModel (hf:vit)   input f32[1,3,224,224]")
    assert "input i64[1,128] i64[1,128]" in out("run hf:t5 --counts-only")


def test_models_of_transformers_train_on_their_loss_without_a_cache(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "architectures": ["GPT2LMHeadModel"],
                "n_layer": 2,
                "n_embd": 16,
                "n_head": 2,
                "vocab_size": 50,
                "bos_token_id": 1,
                "eos_token_id": 2,
            }
        )
    )
    result = invoke("run hf:config.json --input-ids 2,16 --backward --counts-only --json")
    assert "added labels of shape 2x16 to compute the loss" in result.stderr
    model = transformers.GPT2LMHeadModel(transformers.AutoConfig.from_pretrained(tmp_path))
    model.config.use_cache = False
    ids = torch.zeros(2, 16, dtype=torch.long)
    by_hand = fxflops.count(model, kwargs={"input_ids": ids, "labels": ids.clone()}, backward=True)
    theirs = json.loads(result.stdout)
    assert theirs["totals"]["total_training_flops"] == by_hand.total_training_flops
    assert theirs["totals"]["max_memory"] == by_hand.max_memory
    assert "cross_entropy" in {each.call.op for each in by_hand.counted}
    given = invoke("run hf:config.json --input input_ids=2,16:i64 --input labels=2,16:i64 --backward --counts-only")
    assert "to compute the loss" not in given.stderr


def test_no_model_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refused)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refused)
    out("run torchvision:lraspp_mobilenet_v3_large --counts-only")


def test_masks_and_positions_keep_their_values_where_weights_have_none() -> None:
    assert "counted on the meta device" in out(
        "run model.py:Words --input words=2,5:i64 --input mask=2,5:bool --counts-only"
    )
    pytest.importorskip("transformers")
    Path("llama.json").write_text(
        json.dumps({"model_type": "llama", "hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2})
    )
    mask = "--input input_ids=1,16:i64 --input attention_mask=1,16:i64"
    result = invoke(f"run hf:llama.json {mask} --counts-only")
    assert result.exit_code == 0
    assert "architectures name no transformers model, so this is LlamaModel, without a head" in result.stderr
    assert "cpu · eval" in result.stdout


def test_a_backward_pass_that_raises_is_a_mistake_of_the_question() -> None:
    Path("own.py").write_text(
        "import torch\n"
        "@torch.library.custom_op('clitest::forward_only', mutates_args=())\n"
        "def forward_only(x: torch.Tensor) -> torch.Tensor:\n    return x.clone()\n"
        "forward_only.register_fake(torch.empty_like)\n"
        "class Net(torch.nn.Linear):\n    def forward(self, x):\n        return forward_only(super().forward(x))\n"
        "def make():\n    return Net(3, 3), (torch.ones(1, 3),)\n"
    )
    for how in ("--counts-only", "--repeats 1", "--repeats 0 --trace record"):
        result = invoke(f"run own.py:make --backward {how}")
        assert result.exit_code == 2
        assert result.stderr.startswith("fxflops: the backward pass raised\n  RuntimeError: ")
        assert "clitest.forward_only" in result.stderr


def test_the_phases_of_a_training_step_are_told_apart() -> None:
    text = out("run model.py:with_args --counts-only --backward --tree --table")
    assert text.count("\nmodule ") == 2
    assert text.index("\nforward\n") < text.index("\nbackward\n")
    assert re.search(r"^backward +matmul ", text, re.M)
    assert " · train · grad · " in text
    assert " · eval · grad · " in out("run model.py:with_args --counts-only --backward --eval")
    assert " · train · grad · " in out("run model.py:with_args --counts-only --backward --train")
    assert "phase" not in out("run model.py:with_args --counts-only --table")


@pytest.mark.parametrize("command", ["run --counts-only --tree --table", "summary"])
def test_a_terminal_of_ascii_has_letters_that_it_can_show(command: str) -> None:
    arguments = shlex.split(f"{command} model.py:make_model --input 1,3,64,64")
    result = CliRunner(charset="ascii").invoke(app, arguments, catch_exceptions=False)
    assert result.stdout.isascii()
    assert " | eval | no_grad | " in result.stdout
    assert "`- " in result.stdout


# explain, diff, check, ops, conventions


def test_the_convention_of_a_published_number() -> None:
    lines = [line.split() for line in out("explain model.py:with_args 24").splitlines()]
    nearest = {line[0]: line[1] for line in lines[2:] if line[-1] == "0.0"}
    assert nearest["fvcore"] == "24"
    assert "torch_flops" not in nearest
    every = {line.split()[0] for line in out("explain model.py:with_args").splitlines()[2:]}
    assert every == {"fxflops", *fxflops.list_conventions()}


def test_explain() -> None:
    text = out("explain model.py:with_args torch_flops fvcore")
    assert text.splitlines()[0] == "torch_flops 48   fvcore 24   -24   fvcore counts MACs, the other counts FLOPs"


def test_a_model_is_checked_against_a_saved_report() -> None:
    out("run model.py:before --input 1,3,64,64 --counts-only --save main.json")
    assert "ok    FLOPs" in out("check model.py:before --input 1,3,64,64 --baseline main.json")
    larger = invoke("check model.py:after --input 1,3,64,64 --baseline main.json --tolerance 1%")
    assert (larger.exit_code, "OVER  params  618" in larger.output) == (1, True)
    assert out("check model.py:after --input 1,3,64,64 --baseline main.json --tolerance 900%")
    for wrong, said in (
        ("--tolerance 1% --max-flops 1G", "needs a --baseline"),
        ("--baseline model.py", "not a saved report"),
        ("--batch 2 --baseline main.json", "give the same inputs"),
        ("--baseline main.json --tolerance much", "could not convert"),
    ):
        assert said in invoke(f"check model.py:before --input 1,3,64,64 {wrong}").output


def test_a_diff_is_saved_as_a_page_and_a_table(tmp_path: Path) -> None:
    out(f"diff model.py:before model.py:after --input 1,3,64,64 --save {tmp_path}/d.html --save {tmp_path}/d.csv")
    assert (tmp_path / "d.html").read_text().startswith("<!doctype html>")
    assert "module" in (tmp_path / "d.csv").read_text().splitlines()[0]
    assert "can be saved as one of .html" in invoke("diff model.py:before model.py:after --save d.png").output


def test_a_prediction_may_wait_for_the_host() -> None:
    asked = "predict model.py:before --input 1,3,64,64 --device H100"
    assert "waiting for the host" in out(f"{asked} --launch eager")
    assert "one of 'graph', 'eager'" in invoke(f"{asked} --launch now").output


def test_diff_of_two_models_and_of_saved_reports() -> None:
    text = out("diff model.py:before model.py:after --input 1,3,64,64")
    assert re.search(r"^params +314 +618 +\+304 ", text, re.M)
    for name in ("before", "after"):
        out(f"run model.py:{name} --input 1,3,64,64 --counts-only --save {name}.json")
    saved = out("diff before.json after.json")
    assert saved.replace("before.json   ", "").replace("after.json   ", "") == text
    told = json.loads(out("diff before.json after.json --json"))
    assert told["totals"]["params"] == {"a": 314, "b": 618}
    assert told["a"].startswith("before.json")
    assert {row["module"] for row in told["modules"]} == {"", "0", "1", "2", "3"}


def test_the_rows_of_several_models_have_the_names_given_or_those_of_their_files(tmp_path: Path) -> None:
    for width in (8, 16):
        fxflops.count(torch.nn.Linear(8, width), torch.ones(2, 8)).save(tmp_path / f"net{width}.json")
    files = f"{tmp_path}/net8.json {tmp_path}/net16.json"
    assert {"net8", "net16"} <= {*out(f"run {files}").split()}
    assert {"narrow", "wide"} <= {*out(f"run {files} --names narrow,wide").split()}
    for names, said in (("narrow", "1 names for 2 models"), ("a,a", "two rows have the name a")):
        assert said in invoke(f"run {files} --names {names}").output
    assert "needs several models" in invoke(f"run {tmp_path}/net8.json --names a").output


def test_several_models_are_the_rows_of_one_table(tmp_path: Path) -> None:
    models = "model.py:before model.py:after"
    text = out(f"run {models} --input 1,3,64,64 --counts-only --sort-by params")
    assert [line.split()[:2] for line in text.splitlines()[2:4]] == [
        ["model.py:after", "618"],
        ["model.py:before", "314"],
    ]
    out(f"run model.py:before --input 1,3,64,64 --counts-only --save {tmp_path}/before.json")
    rows = json.loads(out(f"run {tmp_path}/before.json model.py:after --input 1,3,64,64 --counts-only --json"))
    assert [row["params"] for row in rows] == [314, 618]
    out(f"run {models} --input 1,3,64,64 --counts-only --columns model,macs --save {tmp_path}/table.tex")
    assert "model & MACs" in (tmp_path / "table.tex").read_text()


def test_one_model_has_the_columns_of_a_comparison(tmp_path: Path) -> None:
    asked = "run model.py:before --input 1,3,64,64 --counts-only --columns params,flops,fvcore"
    assert out(f"{asked} --units k --save {tmp_path}/table.md").split()[:4] == ["params", "FLOPs", "fvcore", "MACs"]
    [row] = json.loads(out(f"{asked} --json"))
    assert [*row][:3] == ["params", "flops", "fvcore"]
    assert "FLOPs (k)" in (tmp_path / "table.md").read_text()


def test_a_model_without_inputs_is_refused_before_the_others_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran.txt"
    (tmp_path / "net.py").write_text(
        f"""
import torch
class Net(torch.nn.Linear):
    def forward(self, x):
        open({str(ran)!r}, "a").write("x")
        return super().forward(x)
def with_inputs():
    return Net(2, 2), torch.ones(1, 2)
def without():
    return Net(2, 2)
"""
    )
    for wrong, said in (("without", "has no default inputs"), ("withot", "has no 'withot'")):
        result = invoke(f"run {tmp_path}/net.py:with_inputs {tmp_path}/net.py:{wrong}")
        assert result.exit_code == 2
        assert said in result.stderr
    assert not ran.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--tree", "--tree needs a single model"),
        ("--columns parms", "did you mean params"),
        ("--sort-by parms", "did you mean params"),
        ("--save table.pickle", "saved as one of"),
        ("model.py:before", "two rows have the name"),
    ],
)
def test_options_that_do_not_fit_several_models_are_refused(options: str, said: str) -> None:
    result = invoke(f"run model.py:before model.py:after --input 1,3,64,64 --counts-only {options}")
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_saved_report_is_explained_and_recounted() -> None:
    shown = out("run model.py:with_args --counts-only --convention fvcore --save a.json")
    assert out("run a.json") == shown
    assert out("run a.json --convention torch_flops").splitlines()[2].split()[1] == "48"
    assert "a.json is a saved report" in invoke("run a.json --repeats 3").stderr
    assert out("explain a.json torch_flops fvcore").startswith("torch_flops 48   fvcore 24")
    assert out("check a.json --max-flops 24").startswith("ok    FLOPs")
    assert invoke("check a.json --max-flops 24 --convention torch_flops").exit_code == 1
    assert (
        "for which only the options --convention and --attention work"
        in invoke("check a.json --max-flops 24 --batch 2").stderr
    )


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        ("--max-flops 48", True),
        ("--max-flops 47", False),
        ("--max-macs 24", True),
        ("--max-macs 0.023K", False),
        ("--max-params 10", True),
        ("--max-params 9", False),
        ("--max-memory 1KiB", True),
        ("--max-memory 50B", False),
        ("--max-time 100s", True),
        ("--max-time 1ns", False),
    ],
)
def test_a_budget_both_ways(budget: str, kept: bool) -> None:
    result = invoke(f"check model.py:with_args {budget}")
    assert result.exit_code == (0 if kept else 1)
    assert result.stdout.startswith("ok    " if kept else "OVER  ")
    assert result.stdout.count("\n") == 1
    told = invoke(f"check model.py:with_args {budget} --json")
    assert told.exit_code == result.exit_code
    data = json.loads(told.stdout)
    assert data["complete"]
    assert [b["kept"] for b in data["budgets"]] == [kept]


def test_the_published_total_is_the_limit() -> None:
    pytest.importorskip("timm")
    check = "check timm:resnet50 --convention torch_flops --max-params 25.6M --max-flops"
    within = invoke(f"{check} 8227340288")
    assert within.exit_code == 0
    assert "FLOPs   8,227,340,288 (8.23 G) of " in within.stdout
    assert invoke(f"{check} 8227340287").exit_code == 1


def test_what_is_incomplete_fails_unless_allowed() -> None:
    unknown_op()
    result = invoke("check model.py:Unknown --input 2,3 --max-flops 1G --max-time 100s")
    assert result.exit_code == 1
    assert "INCOMPLETE" in result.stdout
    assert "clitest::unknown x1" in result.stdout
    assert invoke("check model.py:Unknown --input 2,3 --max-flops 1G --max-time 100s --allow-incomplete").exit_code == 0


def test_ops() -> None:
    text = out("ops log_softmax")
    assert text.startswith("log_softmax\n    input[*, k] -> out[*, k]: k exps, k-1 adds, 1 log and k subtractions")
    assert "nn.LogSoftmax" in text
    assert out("ops conv2d").startswith("conv\n")
    assert "nothing (view)" in out("ops flatten")
    everything = out("ops").splitlines()
    assert len(everything) > 500
    assert any(line.split()[0] == "linear" for line in everything)


def test_conventions() -> None:
    text = out("conventions")
    assert text.startswith("fxflops ")
    assert [name for name in fxflops.list_conventions() if f"{name} " not in text] == []


@pytest.mark.parametrize(
    "command",
    [
        "conventions",
        "ops",
        "ops lstm",
        "explain model.py:with_args torch_flops flowflops_graph",
        "run model.py:make_model --input 1,3,64,64 --repeats 1 --backward --tree --table",
    ],
)
def test_a_terminal_of_80_columns_is_wide_enough(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = out(command)
    for module in ("cli.shown", "report.explain", "render.summary", "render.table", "render.tree"):
        monkeypatch.setattr(f"fxflops.{module}.terminal_width", lambda: 80)
    narrow = out(command)
    assert max(map(len, whole.splitlines())) > 80 >= max(map(len, narrow.splitlines()))


# Errors


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run resnet50", "unknown model 'resnet50' (did you mean timm:resnet50?)"),
        ("check --max-flops 4 GFLOPs timm:resnet18", "write a number and its unit as one word, e.g. 4GFLOPs"),
        ("run timm:resnet5", "timm has no model 'resnet5' (did you mean resnet5"),
        ("run timm:vit_b", "timm has no model 'vit_b' (did you mean vit_base_"),
        ("run timm:", "expected the name of a model after 'timm:'. A model is one of"),
        (
            "run .",
            ". is a directory without a config.json: pass a model's folder, which has a config.json, or your own model as FILE.py:NAME",
        ),
        ("run model.pt2", "unknown model 'model.pt2': file not found"),
        ("run ../data.json", "file not found: '../data.json'"),
        ("run torchvision:swin", "torchvision has no model 'swin' (did you mean swin_"),
        ("run hf:bret", "did you mean bert"),
        ("run hf:LlamaForCausal", "did you mean LlamaForCausalLM"),
        ("run hf:no/config.json", "fxflops downloads nothing"),
        ("run hf:bert-base-uncased", "'bert-base-uncased'; fxflops downloads nothing: hf:bert uses the default config"),
        ("run hf:clip --counts-only", "CLIPModel.forward takes (input_ids, pixel_values"),
        ("run none.py:model", "file not found: 'none.py'"),
        ("run model.py", "model.py is not the name of a model: give one of model.py:"),
        ("run nowhere.at_all:model", "there is no module 'nowhere.at_all'"),
        ("run model.py:make_modle", "did you mean make_model"),
        ("run model.py:number", "is or returns int"),
        ("run model.py:pair", "is or returns (int, int)"),
        ("run model.py:exits", "model.py:exits() raised SystemExit: 3\n  at "),
        (
            "run model.py:halved --input 1,4:f32 --counts-only",
            "\n  --dtype sets the dtype of the weights, --input SHAPE:DTYPE",
        ),
        ("summary model.py:make_model --input-size 3,64,a", "write a shape, such as 1,3,224,224"),
        (
            "summary timm:resnet18 --input-size 3,64,64",
            "\n  the model runs with a batch dimension: pass f32[1,3,64,64]\n",
        ),
        ("run model.py:broken", "model.py:broken() raised ValueError: no such width\n  at "),
        ("run model.py:make_model", "Sequential.forward takes (input)"),
        ("run model.py:make_model --input 1,4,64,64", "to have 3 channels, but got 4"),
        ("run model.py:make_model --input 1,3,64,64 --input 3,3", "the inputs do not fit Sequential.forward"),
        (
            "run model.py:make_model --input x=1,3,64,64",
            "\n  --input SHAPE is the next positional argument, --input NAME",
        ),
        ("summary model.py:make_model --input-size 1,3,64,64 --columns cost", "no column 'cost'"),
        ("run model.py:Branch --input 2,3 --trace symbolic", "\n--trace record records a run of the model instead"),
        ("run model.py:Branch --input 2,3 --backward", "fxflops: cannot run a backward pass: no output depends on"),
        ("run model.py:make_model --input 1,3,a", "write a shape, such as 1,3,224,224"),
        ("run model.py:make_model --input 1,3,64,64:f31", "unknown dtype 'f31' (did you mean f32"),
        ("run model.py:make_model --input-ids x=1", "write only a shape"),
        (
            "run hf:bert --input 1,128 --counts-only",
            "the model takes token ids: give integers, with --input-ids 1,128 or",
        ),
        ("run model.py:make_model --input 1,3 --device gpu", "unknown device 'gpu'"),
        ("run model.py:make_model --input 1,3 --device cuda:99", "device 'cuda:99' does not exist"),
        ("run model.py:make_model --input 1,3 --dtype f33", "unknown dtype"),
        (
            "run model.py:make_model --input 1,3 --convention fvcor",
            "unknown convention 'fvcor' (did you mean fvcore?); expected one of",
        ),
        ("run model.py:make_model --input 1,3 --attention some", "unknown attention 'some'"),
        ("run model.py:make_model --input 1,3 --trace jit", "jit"),
        ("run model.py:make_model --input 1,3 --repeats some", "--repeats 'some'"),
        ("run model.py:make_model --input 1,3 --repeats 3 --counts-only", "--counts-only does not run the model"),
        ("run model.py:make_model --input 1,3 --counts-only --optimizer SGD", "give --backward --counts-only"),
        ("run model.py:make_model --input 1,3 --backward --optimizer SGD", "give --backward --counts-only"),
        (
            "run model.py:make_model --input 1,3 --counts-only --backward --optimizer Adamm",
            "torch.optim has no optimizer 'Adamm' (did you mean Adam",
        ),
        (
            "run model.py:make_model --input 1,3,64,64 --counts-only --backward --optimizer SparseAdam",
            "fxflops: SparseAdam.step() raised an error\n  RuntimeError: SparseAdam does not support dense gradients",
        ),
        ("run model.py:make_model --input 1,3 --tree --columns cost", "--tree: no column 'cost'"),
        ("run model.py:make_model --input 1,3 --tree --table --sort-by target", "--tree: no column 'target'"),
        ("run model.py:make_model --input 1,3 --table --sort-by cost", "--table: no column 'cost'"),
        ("run model.py:make_model --input 1,3 --tree --units Q", "unknown units 'Q'"),
        ("run model.py:make_model --input 1,3 --depth 2", "--depth 2 needs --tree"),
        ("run model.py:make_model --input 1,3 --units G", "--units G needs --tree or --table"),
        ("run model.py:make_model --input 1,3 --json --tree", "leave out --tree and --table"),
        ("run model.py:make_model --input 1,3 --save a.xyz", "expected a file name that ends in one of"),
        ("run model.py:make_model --input 1,3 --save no/a.json", "there is no folder 'no'"),
        ("run model.py:with_args --batch 2", "has its own inputs"),
        ("run model.py:with_args --batch 0", "--batch"),
        ("explain model.py:with_args fvcor thop", "unknown convention 'fvcor'"),
        ("explain model.py:with_args 4.5X", "'4.5X' is not a number with one of the units"),
        ("explain model.py:with_args 4.5", "write the unit, such as 4.5G or 4.5M"),
        ("diff model.py:with_args", "Missing argument 'OTHER'"),
        ("diff none.json model.py:with_args", "file not found: 'none.json'"),
        ("check model.py:with_args", "no budget to check: give a limit (--max-flops"),
        ("check model.py:with_args --max-flops 4Q", "'4Q' is not a number with one of the units k, M, G"),
        ("check model.py:with_args --max-memory 2G", "2GiB, 500MB"),
        ("check model.py:with_args --max-time 1s --device meta", "cannot check the limit for time"),
        ("ops sofmax", "did you mean softmax"),
        ("frobnicate", "No such command 'frobnicate'"),
        ("run", "Missing argument 'MODEL'"),
    ],
)
def test_a_users_mistake_is_a_message(command: str, said: str) -> None:
    result = invoke(command)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_options_are_in_small_letters() -> None:
    """Where an option and its metavar differ only in case, typer 0.27 takes the metavar as the name: --DEVICE."""
    commands = typer.main.get_command(app).commands.values()
    options = [name for command in commands for each in command.params for name in each.opts if name.startswith("-")]
    assert "--device" in options
    assert [name for name in options if name != name.lower()] == []


def test_an_error_gives_each_piece_of_advice_that_has_words() -> None:
    sources = [path.read_text("utf8") for path in Path(fxflops.__file__).parent.rglob("*.py") if path.stem != "advice"]
    given = {key for key in WORDS if any(f'"{key}"' in source for source in sources)}
    assert given == {*WORDS} == {*SUMMARY} == {*COMMAND}


def test_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    result = invoke("run timm:resnet50")
    assert (result.exit_code, result.stderr) == (2, "fxflops: timm is not installed: pip install timm\n")
    assert "unknown model 'resnet50'. A model is one of" in invoke("run resnet50").stderr
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    for command in ("run timm:resnet50", "diff model.py:make_model timm:resnet50"):
        result = invoke(command)
        assert (result.exit_code, result.stderr) == (2, "fxflops: timm is not installed: pip install timm\n")


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (None, "a.json", "'a.json' is a directory"),
        (b"\x80\x02", "a.json", "a.json is not JSON: 'utf-8' codec can't decode"),
        (b"", "a.json", "to save a report, use fxflops run ... --save report.json"),
        (
            b'{"model_type": "vit"}',
            "a.json",
            "looks like a transformers config; to count a model with this config, use hf:path/to/config.json",
        ),
        (b'{"model_type": ', "hf:a.json", "a.json is not a transformers config: Expecting value"),
        (b"[1, 2]", "hf:a.json", "it has no model_type, such as"),
        (b'{"model_type": "llamma"}', "hf:a.json", "transformers has no model_type 'llamma' (did you mean llama"),
        (b'{"model_type": "llama", "hidden_size": "big"}', "hf:a.json", "fxflops: hf:a.json cannot be built: "),
        (b"weights", "a.pt", "a.pt is a text file, not a model: pass a .pt2 file written by torch.export.save"),
    ],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes | None, name: str, said: str) -> None:
    path = tmp_path / name.removeprefix("hf:")
    path.mkdir() if content is None else path.write_bytes(content)
    result = invoke(f"run {name} --counts-only")
    assert (result.exit_code, result.stdout, "Traceback" in result.stderr) == (2, "", False)
    assert said in result.stderr
    assert len(re.findall("^fxflops: ", result.stderr, re.M)) == 1


def test_a_json_file_that_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("{")
    fxflops.compare([fxflops.count(torch.nn.Linear(8, 4), torch.ones(2, 8))]).save(tmp_path / "table.json")
    assert "is a table that fxflops exported" in invoke("run table.json").stderr
    assert "is not an fxflops report" in invoke("check a.json --max-flops 1").stderr
    assert invoke("check b.json --max-flops 1").exit_code == 2


# Help, completion, processes

COMMANDS = ("run", "explain", "diff", "check", "summary", "closed-form", "mesh", "ops", "conventions")

# Commands from the README and docs, and more. tests/test_readme.py runs those that are shown with all of their output.
DOCUMENTED = """
fxflops run timm:resnet50 --counts-only --json > resnet50.json
fxflops ops softmax
fxflops conventions
""".strip().splitlines()
PRINTED = set[str]()
ROOT = Path(__file__).parents[2]
for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
    text = page.read_text("utf8")
    for kind, block in re.findall(r"^```(bash|console)\n(.*?)^```", text, re.S | re.M):
        prompt = r"\$ " if kind == "console" else ""
        DOCUMENTED += re.findall(rf"^{prompt}(fxflops \S.*)", block, re.M)
    PRINTED |= {f"fxflops {block['command']}" for block in CONSOLE.finditer(text)}


class Image(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)  # type: ignore[no-any-return]


SMALLER = {
    "timm:resnet50": "timm:resnet10t",
    "timm:resnet101": "timm:resnet18",
    "torchvision:swin_t": "torchvision:squeezenet1_1",
    "--gpus 2048": "--gpus 1",
    "--gpus 64": "--gpus 1",
}
"""Models and clusters of the same kind, for which the same options take a fraction of the time. The shown models are only looked up."""


def shown_in_help() -> list[str]:
    """Return every example in the help of every command."""
    texts = [out("--help"), *(out(f"{command} --help") for command in COMMANDS)]
    return [line.strip() for text in texts for line in text.splitlines() if line.startswith("    fxflops ")]


def test_every_command_shows_examples() -> None:
    for command in COMMANDS:
        assert f"    fxflops {command}" in out(f"{command} --help")
    assert len(shown_in_help()) > 15


def test_every_example_runs(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torchvision = pytest.importorskip("torchvision")
    pytest.importorskip("transformers")
    for name in ("main", "branch", "report"):
        out(f"run model.py:make_model --input 1,3,64,64 --counts-only --save {name}.json")
    (tmp_path / "path/to").mkdir(parents=True)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 50}
    (tmp_path / "path/to/config.json").write_text(json.dumps({**llama, **small}))
    (tmp_path / "llama-folder").mkdir()
    (tmp_path / "llama-folder/config.json").write_text((tmp_path / "path/to/config.json").read_text())
    net, image = torch.nn.Conv2d(3, 4, 3).eval(), torch.randn(2, 3, 224, 224)
    torch.export.save(
        torch.export.export(Image(), (image,), dynamic_shapes=({0: torch.export.Dim("batch")},)), "model.pt2"
    )
    torch.save(net, "pickled.pt")
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(2, 2) @ torch.ones(2, 2)\n")
    examples = [*shown_in_help(), *DOCUMENTED]
    there = {f"timm:{name}" for name in timm.list_models("resnet*")}
    there |= {f"torchvision:{name}" for name in torchvision.models.list_models()}
    assert {name for name in SMALLER if ":" in name} <= there
    assert len(PRINTED & {*examples}) > 3
    for line in dict.fromkeys(line for line in examples if line not in PRINTED):
        command = line.removeprefix("fxflops ").partition(" > ")[0]
        if not torch.cuda.is_available():
            command = command.replace("--device cuda", "--repeats 1")
        for large, small in SMALLER.items():
            command = command.replace(large, small)
        if not hasattr(fxflops.Report, "to_html"):
            command = re.sub(r"--save \S+\.html", "", command)
        result = invoke(command)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        assert result.stdout


def test_shared_options_are_those_of_each_command() -> None:
    assert invoke("explain model.py:make_model thop torch --backward").exit_code == 2
    assert [command for command in COMMANDS if "--backward" in out(f"{command} --help")] == [
        "run",
        "check",
        "closed-form",
    ]
    assert [command for command in COMMANDS if "--optimizer" in out(f"{command} --help")] == ["run", "check"]
    assert [command for command in COMMANDS if "--attention" in out(f"{command} --help")] == [*COMMANDS[:6]]


def test_version() -> None:
    assert out("--version") == f"fxflops {fxflops.__version__} (torch {torch.__version__.partition('+')[0]})\n"


WITHOUT_TORCH = """
import shlex, sys
from fxflops.cli.app import app
for line in sys.stdin.read().splitlines():
    try:
        app(shlex.split(line), prog_name="fxflops")
    except SystemExit as ended:
        print("ENDED", ended.code, {"torch", "numpy", "timm", "torchvision", "transformers"} & set(sys.modules), flush=True)
"""


def test_torch_is_loaded_only_to_make_a_report_of_a_model() -> None:
    """All in one process, because most of the time is its start. The last line shows that an import of torch would be noticed."""
    out("run model.py:with_args --repeats 1 --backward --save a.json")
    timed = json.loads(Path("a.json").read_text("utf8"))
    timed["environment"]["device"], timed["totals"]["mfu"] = "cuda:0 (NVIDIA H100 80GB HBM3)", 0.41
    Path("gpu.json").write_text(json.dumps(timed), "utf8")
    answers = {
        "--help": 0,
        "--version": 0,
        **{f"{command} --help": 0 for command in COMMANDS},
        "conventions": 0,
        "ops": 0,
        "ops softmax": 0,
        "ops sofmax": 2,
        "run a.json --tree --table --save b.json --save b.csv --save b.md": 0,
        "run a.json --json": 0,
        "run gpu.json": 0,
        "summary gpu.json": 0,
        "summary a.json --columns flop": 2,
        "diff a.json b.json": 0,
        "check a.json --max-flops 1": 1,
        "run nothing.json": 2,
        "run a.json --convention fvcor": 2,
        "explain a.json fvcor thop": 2,
        "run resnet50": 2,
        "run timm:resnet5": 2,
        "run timm:resnet": 2,  # a family, whose name is in the library's sources
        "run torchvision:resnet5": 2,
        "run hf:bret": 2,
        "run hf:LlamaForCausal": 2,
        "run none.py:model": 2,
        "run model.py:model --input 1,3,a": 2,
        "run model.py:model --attention some": 2,
        "run model.py:model --trace jit": 2,
        "run model.py:model --colums op": 2,
        "runn": 2,
        "run model.py:with_args --counts-only": 0,
    }
    run = process("-c", WITHOUT_TORCH, stdin="\n".join(answers))
    ended = re.findall(r"^ENDED (\d) (.*)$", run.stdout, re.M)
    assert [int(code) for code, _ in ended] == [*answers.values()]
    assert {loaded for _, loaded in ended[:-1]} == {"set()"}
    assert run.stdout.count("41% of the device's peak") == 2
    assert "torch" in ended[-1][1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell(shell: str) -> None:
    run = process("-m", "fxflops", _FXFLOPS_COMPLETE=f"source_{shell}")
    assert run.returncode == 0
    assert "_FXFLOPS_COMPLETE" in run.stdout


def test_completion_of_words() -> None:
    def completed(words: str, number: int) -> str:
        found = process("-m", "fxflops", _FXFLOPS_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(number))
        return found.stdout

    assert completed("fxflops ex", 1).split() == ["explain"]
    assert "--counts-only" in completed("fxflops run --c", 2)
    assert completed("fxflops run --convention fv", 3).split() == ["fvcore"]


def test_a_process_keeps_stdout_for_the_result(fresh: Fresh) -> None:
    run = fresh.run("-m", "fxflops", "run", "model.py:with_args", "--json", "--repeats", "1")
    assert run.returncode == 0
    assert json.loads(run.stdout)["schema"] == "fxflops.report"
    assert "a word on stdout" in run.stderr
    failed = fresh.run("-m", "fxflops", "run", "model.py:make_model", "--input", "1,4,8,8")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "Traceback" not in failed.stderr


def test_a_pipe_that_closes_is_no_error() -> None:
    root = Path(fxflops.__file__).parents[1]
    line = f"{shlex.quote(sys.executable)} -m fxflops ops | head -n 1"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    run = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.count("\n") == 1
    assert run.stderr == ""


@pytest.mark.parametrize(("no_color", "colours"), [("", True), ("1", False)])
def test_colours_are_for_terminals_that_want_them(no_color: str, colours: bool, fresh: Fresh) -> None:
    ours, theirs = pty.openpty()
    arguments = ["-m", "fxflops", "run", "model.py:with_args", "--counts-only", "--tree"]
    run = fresh.run(*arguments, stdout=os.ttyname(theirs), NO_COLOR=no_color, TERM="xterm")
    assert run.returncode == 0, run.stderr
    os.close(theirs)
    text = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "Linear" in text
    assert ("\x1b[1m" in text) is colours


@pytest.mark.parametrize("counts_only", ["", " --counts-only"])
def test_a_card_is_counted_for_and_says_whether_it_fits(counts_only: str) -> None:
    text = out(
        f"run model.py:make_model --input 4,3,64,64 --train --backward --optimizer SGD --device A6000{counts_only}"
    )
    assert "counted on the meta device" in text
    assert re.search(r"\nRTX A6000: fits: 0\.\d of 47\.5 GiB \(0\.\d reserved, 0\.7 CUDA context\)\n", text)


def test_a_card_that_is_too_small() -> None:
    text = out("run model.py:make_model --input 100000,3,64,64 --device T4")
    assert re.search(r"\nT4: does not fit: \d+\.\d of 14\.7 GiB \(\d+\.\d reserved, 0\.7 CUDA context\)\n", text)


def test_the_devices_of_torch_say_nothing_about_cards() -> None:
    for device in ("cpu", "meta", "cuda"):
        assert "fits" not in out(f"run model.py:make_model --input 4,3,64,64 --counts-only --device {device}")


def test_json_of_a_card_is_the_report_alone() -> None:
    result = invoke("run model.py:make_model --input 4,3,64,64 --device h100-pcie --json")
    assert json.loads(result.stdout)
    assert "H100 PCIe: fits" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "explain model.py:make_model fvcore thop --input 1,3,64,64 --device 4090",
        "diff model.py:before model.py:after --input 1,3,64,64 --device 4090",
        "check model.py:make_model --input 1,3,64,64 --max-flops 9G --device 4090",
        "summary model.py:make_model --input-size 1,3,64,64 --device 4090",
        "closed-form model.py:make_model --dynamic batch:8 --input 2,3,64,64 --device 4090",
    ],
)
def test_every_command_takes_a_card(command: str) -> None:
    assert invoke(command).exit_code == 0


def test_predict() -> None:
    text = out("predict model.py:make_model --input 4,3,64,64 --device H100")
    subject, empty, answer, *_ = text.splitlines()
    assert subject == "Sequential (model.py:make_model) · 314 parameters in f32 · input f32[4,3,64,64] · forward"
    assert not empty
    assert answer.startswith("H100 SXM: ")
    assert "predicted on the device" in answer
    assert "\nH100 SXM: fits: 0.7 of 79.2 GiB (0.0 reserved, 0.7 CUDA context)\n" in text
    data = json.loads(out("predict model.py:make_model --input 4,3,64,64 --device H100 --by module --json"))
    assert data["seconds"] >= data["bound_seconds"] > 0
    assert data["memory"]["fits"] is True
    assert data["memory"]["total"] == sum(data["memory"][key] for key in ("reserved", "context", "nccl"))
    assert {row["path"] for row in data["module"]} >= {"", "0", "3"}


def test_what_fits_is_found_where_training_does_not_fit() -> None:
    """The batch that is found fits, and the next larger one does not. The text says whether checkpoints make the given batch fit."""
    asked = "--train --backward --optimizer adamw --device T4"
    found = out(f"predict model.py:make_model --input 60000,3,64,64 {asked} --what-fits")
    batch = int(
        re.search(r"\nlargest batch that fits on T4: ([\d,]+), which takes [\d.]+ m?s", found)[1].replace(",", "")
    )  # type: ignore[index]
    assert 0 < batch < 60000
    assert re.search(r"Sequential (fits with|does not fit into)", found)
    for size, code in ((batch, 0), (batch + 1, 1)):
        checked = invoke(f"check model.py:make_model --input {size},3,64,64 {asked}")
        assert checked.exit_code == code
        assert ("--what-fits" in checked.stdout) == (code == 1)
    data = json.loads(out(f"predict model.py:make_model --input 60000,3,64,64 {asked} --what-fits --json"))
    assert data["largest_batch"] == batch


def test_autocast_of_a_card() -> None:
    """Products are in bf16, as in a count under autocast in Python. Weights stay in f32."""
    given = "model.py:make_model --input 4,3,64,64 --device H100"
    rows = json.loads(out(f"predict {given} --autocast bf16 --json"))["operator"]
    products = [row for row in rows if row["op"] in ("conv2d", "linear")]
    assert {row["basis"].split()[-1] for row in products if row["basis"] != "bound"} == {"bf16"}
    plain = json.loads(out(f"predict {given} --json"))
    asked = json.loads(out(f"predict {given} --autocast bf16 --json"))
    assert asked["memory"]["reserved"] != plain["memory"]["reserved"] or asked["seconds"] != plain["seconds"]
    assert "--autocast" in out("check --help")
    step = f"check {given} --train --backward --autocast f16"
    assert out(step).startswith("ok ")


def test_what_fits_on_several_cards_leaves_room_for_nccl() -> None:
    asked = "predict model.py:make_model --input 60000,3,64,64 --train --backward --optimizer adamw --device T4"
    batches = []
    for gpus in (1, 8):
        found = out(f"{asked} --what-fits --gpus {gpus}")
        batches.append(
            int(re.search(r"\nlargest batch that fits on [^:]*T4[^:]*: ([\d,]+)", found)[1].replace(",", ""))
        )  # type: ignore[index]
        text = out(
            f"predict model.py:make_model --input {batches[-1]},3,64,64 --train --backward --optimizer adamw --device T4 --gpus {gpus}"
        )
        assert "does not fit" not in text
    assert 0 < batches[1] < batches[0]


def test_a_card_is_told_before_torch_is_imported() -> None:
    """torch's import takes seconds, so a misspelled or missing card is reported before it."""
    for given, said in (("--device 'RTX 4O90'", "did you mean RTX 4090"), ("", "give --device CARD")):
        code = f"""
import shlex, sys
from fxflops.cli.app import app
try:
    app(shlex.split({f"predict timm:resnet50 {given}"!r}))
except SystemExit:
    print("torch" in sys.modules)
"""
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert said in run.stderr
        assert run.stdout == "False\n"


def test_predict_of_a_saved_report_knows_no_allocations(tmp_path: Path) -> None:
    out(f"run model.py:make_model --input 4,3,64,64 --counts-only --save {tmp_path / 'a.json'}")
    text = out(f"predict {tmp_path / 'a.json'} --device A100")
    assert "\nA100 80GB SXM: " in text
    assert "reserved" not in text
    assert json.loads(out(f"predict {tmp_path / 'a.json'} --device A100 --json"))["memory"] is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("predict model.py:make_model --input 1,3,64,64", "give --device CARD"),
        ("predict model.py:make_model --input 1,3,64,64 --device cpu", "--device cpu is not a card"),
        ("predict model.py:make_model --input 1,3,64,64 --device H900", "unknown device 'H900' (did you mean "),
        (
            "predict model.py:make_model --input 1,3,64,64 --device H100 --by cost",
            "--by 'cost': expected one of operator",
        ),
        ("predict model.py:make_model --input 1,3 --device H100 --optimizer SGD", "give --backward"),
        ("predict a.json --device H100 --what-fits", "--what-fits counts the model with other batch sizes"),
        (
            "predict model.py:make_model --input 1,3,64,64 --device H100 --autocast f32",
            "--autocast f32: expected bf16 or f16",
        ),
        (
            "run model.py:make_model --input 1,3,64,64 --autocast bf16",
            "--autocast bf16 only works if the model is counted",
        ),
        (
            "check model.py:make_model --input 1,3,64,64 --max-time 9s --autocast bf16",
            "--autocast bf16 only works if the model is counted",
        ),
        ("run model.py:make_model --input 1,3,64,64 --device H100 --repeats 3", "--device H100 does not run the model"),
        ("check model.py:make_model --input 1,3,64,64 --device H100 --max-time 1s", "--max-time runs the model"),
    ],
)
def test_what_is_no_question_about_a_card(command: str, said: str) -> None:
    result = invoke(command)
    assert result.exit_code == 2
    assert said in result.stderr


# Models in files


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with one model in several file formats."""
    model, x = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "fixed.pt2")
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: batch},)), tmp_path / "batch.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(model), tmp_path / "script.pt")
    torch.save(model, tmp_path / "pickled.pt")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "batch"),
    [
        ("fixed.pt2", 2),
        ("fixed.pt2 --input 2,3,8,8 --dtype bf16", 2),
        ("batch.pt2 --batch 5", 5),
        ("batch.pt2 --input input=7,3,8,8", 7),
        ("script.pt --input 3,3,8,8", 3),
        ("pickled.pt --unsafe --input 3,3,8,8", 3),
    ],
)
def test_a_model_in_a_file(files: Path, command: str, batch: int) -> None:
    result = invoke(f"run {files}/{command} --counts-only --json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["totals"]["total_macs"] == batch * 4 * 6 * 6 * 27


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("batch.pt2", "choose sizes for the program's inputs: input float32["),
        ("fixed.pt2 --batch 3", "torch.export.export fixed size 0 as 2"),
        ("script.pt", "has no default inputs: give --input 1,3,224,224"),
        ("pickled.pt --input 1,3,8,8", "to load a file that you trust, add --unsafe"),
    ],
)
def test_a_file_that_needs_more(files: Path, command: str, said: str) -> None:
    result = invoke(f"run {files}/{command} --counts-only")
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_command_that_asks_for_sizes_works(files: Path) -> None:
    said = invoke(f"run {files}/batch.pt2 --counts-only").stderr
    command = said.partition("e.g. fxflops ")[2].strip()
    assert invoke(f"{command} --counts-only").exit_code == 0


@pytest.mark.parametrize(("name", "module"), [("figure.pdf", "cairosvg"), ("figure.png", "resvg_py")])
def test_a_missing_converter_is_noticed_before_the_model_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = invoke(f"run timm:resnet18 --save {tmp_path / name}")
    assert (result.exit_code, "which is not installed:\n  pip install" in result.stderr) == (2, True)

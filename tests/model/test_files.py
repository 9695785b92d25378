"""The contents of a file or folder decide how it is loaded, not its name. Loading must run no code."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxflops

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
X = torch.randn(2, 8)
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


MACS = 2 * (8 * 16 + 16 * 4)


def exported(path: Path) -> None:
    torch.export.save(torch.export.export(model(), (X,)), path.with_suffix(".pt2"))
    path.with_suffix(".pt2").rename(path)


SAFE: dict[str, Callable[[Path], Any]] = {
    "program": exported,
    "scripted": lambda path: torch.jit.save(torch.jit.script(model()), path),
    "traced": lambda path: torch.jit.save(torch.jit.trace(model(), X), path),
}


@pytest.mark.parametrize("suffix", [".pt2", ".pt", ".bin", ""])
@pytest.mark.parametrize("kind", SAFE)
def test_a_model_is_loaded_whatever_its_name(kind: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    SAFE[kind](path)
    assert fxflops.count(path, X).total_macs == MACS
    assert fxflops.count(str(path), X).params[0] == 8 * 16 + 16 + 16 * 4 + 4
    assert fxflops.count(fxflops.load_model(path), X).total_macs == MACS


class Trap:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("old_format", [False, True])
def test_a_pickled_module_is_loaded_on_demand_alone(old_format: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(model(), path, _use_new_zipfile_serialization=not old_format)
    with pytest.raises(
        fxflops.InputError, match=r"a pickle of torch.nn.modules.container.Sequential.*runs the code"
    ) as raised:
        fxflops.count(path, X)
    assert "unsafe=True" in str(raised.value)
    assert "torch.export.save" in str(raised.value)
    assert fxflops.count(fxflops.load_model(path, unsafe=True), X).total_macs == MACS
    torch.save({"epoch": 3, "model": model()}, path)
    assert fxflops.count(fxflops.load_model(path, unsafe=True), X).total_macs == MACS


def test_no_code_of_a_file_runs(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    torch.save({"model": Trap(sprung)}, tmp_path / "saved.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Trap(sprung), protocol=2))
    # torch.export.load unpickles whatever an archive says it should: sample inputs, weights of unusual classes.
    exported(tmp_path / "program.pt2")
    with zipfile.ZipFile(tmp_path / "program.pt2") as archive, zipfile.ZipFile(tmp_path / "trap.pt2", "w") as other:
        for name in archive.namelist():
            content = archive.read(name)
            if "sample_inputs" in name:
                torch.save((Trap(sprung),), tmp_path / "inputs.pt")
                content = (tmp_path / "inputs.pt").read_bytes()
            other.writestr(name, content)
    for name in ("saved.pt", "plain.pkl", "trap.pt2"):
        with pytest.raises(fxflops.InputError, match="runs the code"):
            fxflops.count(tmp_path / name, X)
    assert not sprung.exists()


def cut(path: Path, make: Callable[[Path], Any]) -> None:
    make(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zipped(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")


def safetensors(path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


def folder(path: Path, **files: Any) -> None:
    path.mkdir()
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))


def pipeline(path: Path) -> None:
    folder(
        path, model_index={"_class_name": "FluxPipeline", "vae": ["diffusers", "AutoencoderKL"], "none": [None, None]}
    )
    folder(path / "vae", config={"_class_name": "AutoencoderKL"})


NOT_MODELS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a state dict": (lambda path: torch.save(model().state_dict(), path), r"a state dict \(4 tensors, 212 numbers, .*: it has weights, but no code"),
    "an old state dict": (
        lambda path: torch.save(model().state_dict(), path, _use_new_zipfile_serialization=False),
        "a state dict",
    ),
    "a checkpoint": (
        lambda path: torch.save({"epoch": 1, "state_dict": model().state_dict(), "optimizer": {}}, path),
        r"a checkpoint \(epoch, state_dict, optimizer\)",
    ),
    "a tensor": (lambda path: torch.save(X, path), "a tensor of shape"),
    "nothing": (lambda path: path.write_bytes(b""), "an empty file"),
    "noise": (lambda path: path.write_bytes(bytes(range(255, 0, -1)) * 9), "of unknown type"),
    "safetensors": (safetensors, "a safetensors file: it has weights, but no code"),
    "GGUF": (lambda path: path.write_bytes(b"GGUF\x03" + bytes(99)), "a llama.cpp GGUF file"),
    "ONNX": (lambda path: path.write_bytes(b"\x08\x08\x12\x07pytorch\x1a\x032.1:" + bytes(99)), "an ONNX model"),
    "a library": (lambda path: path.write_bytes(b"\x7fELF" + bytes(99)), "a compiled library"),
    "git-lfs": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "a page": (lambda path: path.write_text("<!DOCTYPE html><html>"), "a text file that begins"),
    "a text": (lambda path: path.write_text("hello"), "a text file"),
    "an archive": (lambda path: zipped(path, "a.txt"), "a zip archive that torch did not write"),
    "compiled": (lambda path: zipped(path, "m/archive_format", "m/data/aotinductor/model/a.so"), "compiled by AOTInductor"),
    "half a program": (lambda path: cut(path, exported), "a damaged zip archive"),
    "half a script": (lambda path: cut(path, SAFE["scripted"]), "a damaged zip archive"),
    "a broken program": (lambda path: zipped(path, "m/archive_format", "m/models/model.json"), "this torch.export program cannot be loaded"),
    "a broken script": (lambda path: zipped(path, "m/constants.pkl", "m/data.pkl", "m/version"), "this TorchScript model cannot be loaded"),
    "a folder": (folder, "a directory without a config.json"),
    "an adapter": (
        lambda path: folder(path, adapter_config={"base_model_name_or_path": "gpt2"}),
        "a PEFT adapter for gpt2",
    ),
    "a pipeline": (pipeline, r"a diffusers pipeline, FluxPipeline: count one of its models, \w+/vae \(AutoencoderKL\)"),
    "custom code": (
        lambda path: folder(path, config={"model_type": "mine", "architectures": ["Mine"], "auto_map": {"AutoModel": "m.Mine"}}),
        r"names custom code \(auto_map\): transformers has no model_type 'mine'; fxflops does not run custom code",
    ),
    "a custom class": (
        lambda path: folder(path, config={**LLAMA, "architectures": ["Mine"], "auto_map": {"AutoModel": "m.Mine"}}),
        r"names custom code \(auto_map\): transformers has no class 'Mine'",
    ),
    "timm's": (
        lambda path: folder(path, config={"architecture": "resnet18", "pretrained_cfg": {}}),
        "is a timm config: use timm:resnet18",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_MODELS)
def test_what_is_no_model_is_said_in_a_line(name: str, tmp_path: Path) -> None:
    make, said = NOT_MODELS[name]
    path = tmp_path / "it"
    make(path)
    with pytest.raises(fxflops.InputError, match=said) as raised:
        fxflops.count(path, X)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(TypeError, match="and no file has this path"):
        fxflops.count("resnet50", X)


def test_a_folder_of_transformers_is_made_without_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "llama"
    folder(path, config=LLAMA)
    (path / "model.safetensors").write_bytes(b"not read")
    ids = torch.zeros(1, 16, dtype=torch.long)
    report = fxflops.count(path, kwargs={"input_ids": ids})
    own = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(LLAMA)).to(torch.bfloat16)
    assert report.total_flops == fxflops.count(own, kwargs={"input_ids": ids}).total_flops
    assert report.params == fxflops.count(own, kwargs={"input_ids": ids}).params
    assert all(parameter.is_meta for parameter in fxflops.load_model(path).parameters())

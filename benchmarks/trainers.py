"""Compare fxflops's versions of trainers' FLOP formulas with the originals, for each model type.

    python -m benchmarks.trainers --verl FOLDER --torchtitan FOLDER[:FOLDER]

The folders are the unpacked wheels of verl 0.9.1 (``verl.utils.device`` is stubbed) and torchtitan 0.3.0. Folders with the packages
that torchtitan imports follow after a colon. Without its folder, a trainer's part is skipped. Writes
``benchmarks/results/trainers.md``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import transformers

import fxflops
from benchmarks.models.published import PUBLISHED
from fxflops import trainers

RESULTS = Path(__file__).parent / "results" / "trainers.md"
LENGTHS, IMAGES, SEQUENCE = (512, 1024, 2048), (256, 1024), 4096
STANDING_FOR = {"minicpmv": "Qwen2.5-7B", "minicpmo": "Qwen2.5-7B", "mimo": "Qwen2.5-7B", "glm4v": "Qwen2.5-7B"}
"""Model types whose config transformers lacks, or has in a form that verl cannot read. They get the sizes of the named model."""
TITAN = {
    ("llama3", "8B"): "Llama-3.1-8B", ("llama3", "70B"): "Llama-3.1-70B", ("llama3", "1B"): "Llama-3.2-1B",
    ("qwen3", "0.6B"): "Qwen3-0.6B", ("qwen3", "8B"): "Qwen3-8B", ("qwen3", "30B-A3B"): "Qwen3-30B-A3B",
    ("deepseek_v3", "16B"): "DeepSeek-V2-Lite", ("deepseek_v3", "671B"): "DeepSeek-V3",
    ("gpt_oss", "20b"): "gpt-oss-20b", ("gpt_oss", "120b"): "gpt-oss-120b",
}  # fmt: skip
PUBLISHERS = {
    "Mixtral-8x7B": 12.9, "DeepSeek-V3": 37, "DeepSeek-V2-Lite": 2.4, "gpt-oss-20b": 3.6, "Qwen3-30B-A3B": 3.3,
}  # fmt: skip
"""Active parameters in billions, as stated by the publishers."""


def counter_of(folder: str) -> ModuleType:
    """Return verl's flops_counter module, loaded from its file without importing verl."""
    device = ModuleType("verl.utils.device")
    device.get_torch_device = lambda: torch.cpu  # type: ignore[attr-defined]
    for name in ("verl", "verl.utils"):
        sys.modules[name] = ModuleType(name)
    sys.modules["verl.utils.device"] = device
    spec = importlib.util.spec_from_file_location("flops_counter", Path(folder) / "verl/utils/flops_counter.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def config_of(kind: str) -> tuple[str, Any]:
    """Return a name and a config for a model type: a published config, a stand-in, or transformers's default."""
    for name, published in PUBLISHED.items():
        if published["model_type"] == kind:
            return name, namespace(published)
    if kind in STANDING_FOR:
        name = STANDING_FOR[kind]
        return f"as {name}", namespace({**PUBLISHED[name], "model_type": kind})
    return "default of transformers", transformers.AutoConfig.for_model(kind)


def namespace(given: dict[str, Any]) -> Any:
    return SimpleNamespace(**{k: namespace(v) if isinstance(v, dict) else v for k, v in given.items()})


def of_verl(folder: str) -> Iterator[str]:
    theirs = counter_of(folder)
    yield f"## verl 0.9.1\n\nForward and backward of a batch of lengths {[*LENGTHS]}, with images of {[*IMAGES]} patches where it counts"
    yield "a vision encoder.\n\n| model type | config | verl | fxflops | equal |\n|---|---|---:|---:|---|"
    for kind in theirs.ESTIMATE_FUNC:
        name, config = config_of(kind)
        images = (
            IMAGES if hasattr(config, "vision_config") and hasattr(config.vision_config, "intermediate_size") else ()
        )
        given = {"images_seqlens": [*images]} if images else {}
        tera = theirs.FlopsCounter(config).estimate_flops([*LENGTHS], 1.0, **given)[0]
        ours = trainers.estimate("verl", config, LENGTHS, images=images).total
        equal = abs(tera * 1e12 - ours) < 1e-12 * ours
        yield f"| {kind} | {name} | {tera * 1e12:,.0f} | {ours:,} | {'yes' if equal else '**no**'} |"


def of_torchtitan(folders: str) -> Iterator[str]:
    sys.path[:0] = folders.split(":")
    logging.disable()
    yield f"\n## torchtitan 0.3.0\n\nFLOPs a token at a sequence length of {SEQUENCE}, of torchtitan's own model on meta, and of transformers' by its config.\n"
    yield "| model | config | parameters | torchtitan | fxflops | equal |\n|---|---|---:|---:|---:|---|"
    for (family, flavor), name in TITAN.items():
        config = importlib.import_module(f"torchtitan.models.{family}").model_registry(flavor).model
        with torch.device("meta"):
            model = config.build()
        parameters, theirs = config.get_nparams_and_flops(model, SEQUENCE)
        ours = trainers.estimate("torchtitan", PUBLISHED[name], [SEQUENCE]).per_token
        equal = "yes" if ours == theirs else f"{ours / theirs - 1:+.2%}"
        yield f"| {family} {flavor} | {name} | {parameters:,} | {theirs:,} | {ours:,.0f} | {equal} |"


def of_trainers() -> Iterator[str]:
    name = "Llama-3.1-8B"
    yield f"\n## All of them\n\nFLOPs a token of {name} at a sequence length of 8,192, forward and backward, with attention dense in the true count.\n"
    yield "| | FLOPs a token | of the true count |\n|---|---:|---:|"
    known = {each: trainers.estimate(each, PUBLISHED[name], [8192]).per_token for each in trainers.list_trainers()}
    for each, flops in known.items():
        yield f"| {each} | {flops:,.0f} | {flops / known['fxflops']:.1%} |"


def of_active() -> Iterator[str]:
    yield "\n## Parameters active per token\n\nBillions, by the routing of a run on meta.\n"
    yield "| model | with router and both tables | without the input table | its publisher's figure | which fits |\n|---|---:|---:|---:|---|"
    for name, stated in PUBLISHERS.items():
        config = transformers.AutoConfig.for_model(**PUBLISHED[name])
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        tokens = {"input_ids": torch.zeros(1, 16, dtype=torch.long), "use_cache": False}
        found = trainers.active_parameters(fxflops.count(model, kwargs=tokens))
        both, without = found.with_tables / 1e9, found.without_input_table / 1e9
        fits = "with both" if abs(both - stated) < abs(without - stated) else "without the input table"
        yield f"| {name} | {both:.2f} | {without:.2f} | {stated} | {fits} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", help="the folder of verl's wheel")
    parser.add_argument("--torchtitan", help="the folders of torchtitan's wheel and of what it imports")
    given = parser.parse_args()
    lines = ["# The arithmetic of trainers\n"]
    lines += of_verl(given.verl) if given.verl else []
    lines += of_torchtitan(given.torchtitan) if given.torchtitan else []
    lines += [*of_trainers(), *of_active()]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf8")
    print(RESULTS.read_text(encoding="utf8"))


if __name__ == "__main__":
    main()

"""verl's numbers: from verl 0.9.1 itself, in ``benchmarks/results/trainers.md``, and from its users' logs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.models.published import PUBLISHED
from benchmarks.trainers import IMAGES, LENGTHS, namespace
from fxflops import InputError, trainers
from fxflops.trainers.verl import TYPES

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "trainers.md"
STATED = {
    "Llama-2-7B": 149226491215872,
    "Qwen3-30B-A3B": 78593069678592,
    "DeepSeek-V3": 848766538088448,
    "Gemma3-12B": 279084659638272,
    "gpt-oss-20b": 91780464771072,
}
ROW = re.compile(r"^\| (\w+) \| (?:as )?([\w.-]+) \| ([\d,]+) \| [\d,]+ \| yes \|$", re.MULTILINE)
RAN = {
    kind: (name, int(flops.replace(",", ""))) for kind, name, flops in ROW.findall(RESULTS.read_text(encoding="utf8"))
}


@pytest.mark.parametrize("name", STATED)
def test_stated_numbers(name: str) -> None:
    assert trainers.estimate("verl", PUBLISHED[name], [512, 1024, 2048]).total == STATED[name]


@pytest.mark.parametrize("kind", RAN)
def test_numbers_of_the_wheel(kind: str) -> None:
    name, flops = RAN[kind]
    config = namespace({**PUBLISHED[name], "model_type": kind})
    images = IMAGES if hasattr(config, "vision_config") else ()
    assert trainers.estimate("verl", config, LENGTHS, images=images).total == flops


def test_every_type_was_compared() -> None:
    compared = RESULTS.read_text(encoding="utf8")
    assert all(f"| {kind} |" in compared for kind in TYPES)
    assert "**no**" not in compared


def test_a_window_by_hand() -> None:
    """One layer with a window of 4 and one without, on two sequences of 3 and 10 tokens."""
    kinds = ["sliding_attention", "full_attention"]
    config = SimpleNamespace(
        model_type="gpt_oss", num_hidden_layers=2, hidden_size=8, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=5, vocab_size=7, head_dim=4, num_local_experts=3, num_experts_per_tok=2, sliding_window=4,
        layer_types=kinds,
    )  # fmt: skip
    found = {term.name: term.flops for term in trainers.estimate("verl", config, [3, 10]).terms}
    assert found["attention scores"] == 6 * (2 * 4) * ((3 * 3 + 10 * 4) + (3 * 3 + 10 * 10))
    assert found["experts"] == 6 * 13 * 2 * (2 * 3 * 8 * 5)
    assert found["router"] == 6 * 13 * 2 * (8 * 3)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InputError, match="verl has no formula for mixtral, and prints 0"):
        trainers.estimate("verl", PUBLISHED["Mixtral-8x7B"], [8])

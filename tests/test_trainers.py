"""Trainers' own FLOP formulas, compared with the true count, and the terms in which they differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fxflops
from benchmarks.models.published import PUBLISHED
from fxflops import InputError, trainers

transformers = pytest.importorskip("transformers")
SMALL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 50,
}  # fmt: skip
MIXED = {**SMALL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
TABLE, NORMS = 50 * 32, 5 * 32
ATTENTION, MLP, EXPERT = 2 * (32 * 32 * 2 + 32 * 16 * 2), 2 * 3 * 32 * 48, 2 * 3 * 32 * 48
LENGTHS = (16, 16, 40)
TOKENS, SQUARES = 72, 16**2 * 2 + 40**2


def built(config: dict[str, Any], **more: Any) -> nn.Module:
    found = transformers.AutoConfig.for_model(**config, **more)
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(found, dtype=torch.bfloat16)
    return model


def report_of(
    model: nn.Module, rows: int = 2, length: int = 16, backward: bool = True, **options: Any
) -> fxflops.Report:
    tokens = torch.zeros(rows, length, dtype=torch.long)
    return fxflops.count(model, kwargs={"input_ids": tokens, "use_cache": False}, backward=backward, **options)


def by_term(trainer: str, source: Any, lengths: Any = LENGTHS) -> dict[str, int]:
    return {term.name: term.flops for term in trainers.estimate(trainer, source, lengths).terms}


def test_parameters_times_tokens() -> None:
    found = by_term("6nd", SMALL)
    assert found == {
        "input table": 6 * TABLE * TOKENS, "output layer": 6 * TABLE * TOKENS, "mlp": 6 * MLP * TOKENS,
        "attention projections": 6 * ATTENTION * TOKENS, "norms": 6 * NORMS * TOKENS,
    }  # fmt: skip
    assert by_term("6nd", MIXED)["experts"] == 6 * 2 * EXPERT * TOKENS


def test_palm_adds_the_scores() -> None:
    found = trainers.explain("6nd", "palm", SMALL, LENGTHS)
    assert [(row.term, row.difference) for row in found.rows] == [("attention scores", 12 * 2 * 4 * 8 * SQUARES)]


def test_llama_at_8k_by_torchtitan() -> None:
    """torchtitan's published tokens/s on an H100 give the MFU range that it publishes."""
    found = trainers.estimate("torchtitan", PUBLISHED["Llama-3.1-8B"], [8192])
    assert found.per_token == 57_914_449_920
    assert f"{found.mfu(5762, 'H100'):.1%} {found.mfu(6667, 'H100'):.1%}" == "33.7% 39.0%"


@pytest.mark.parametrize(
    ("name", "flops"),
    [("Qwen3-0.6B", 6_394_871_808), ("gpt-oss-20b", 26_481_681_792), ("DeepSeek-V2-Lite", 18_105_996_288)],
)
def test_torchtitans_own_models(name: str, flops: int) -> None:
    """FLOPs per token at 4,096 that torchtitan 0.3.0 computes for its own model (benchmarks/results/trainers.md)."""
    assert trainers.estimate("torchtitan", PUBLISHED[name], [4096]).per_token == flops


@pytest.mark.parametrize(("name", "flops"), [("gpt-oss-20b", 24_141_260_160), ("gpt-oss-120b", 34_534_221_696)])
def test_torchtitan_with_windows(name: str, flops: int) -> None:
    """FLOPs per token at 4,096 from https://github.com/pytorch/torchtitan/pull/4300, which states them before and after."""
    assert trainers.estimate("torchtitan_2026_08", PUBLISHED[name], [4096]).per_token == flops


def test_torchtitans_versions_differ_in_windows_alone() -> None:
    titan = "torchtitan", "torchtitan_2026_08"
    assert not trainers.explain(*titan, SMALL, LENGTHS).rows
    # No sequence is longer than the window.
    assert not trainers.explain(*titan, PUBLISHED["gpt-oss-20b"], [128, 16]).rows
    mistral = {**SMALL, "model_type": "mistral", "sliding_window": 16}  # a window in every layer
    (row,) = trainers.explain(*titan, mistral, LENGTHS).rows
    assert (row.term, row.difference) == ("attention scores", 12 * 2 * 4 * 8 * (40 * 16 - 40**2))


def test_torchtitan_counts_the_state_of_a_delta_rule() -> None:
    linear = {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 6,
    }
    config = {
        **SMALL, **linear, "model_type": "qwen3_next", "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        "layer_types": ["linear_attention", "full_attention"],
    }  # fmt: skip
    (row,) = trainers.explain("torchtitan", "torchtitan_2026_08", config, LENGTHS).rows
    assert (row.term, row.difference) == ("linear attention", 6 * 3 * 4 * 8 * 6 * TOKENS)


@pytest.mark.filterwarnings("ignore")  # the Trainer warns about the machine
@pytest.mark.parametrize("config", [SMALL, MIXED, {**SMALL, "tie_word_embeddings": True}])
def test_total_flos_is_what_the_trainer_adds_up(config: dict[str, Any]) -> None:
    model = built(config)
    batch = {"input_ids": torch.zeros(3, 24, dtype=torch.long)}
    theirs = transformers.Trainer.floating_point_ops(type("Trainer", (), {"model": model})(), batch)
    assert trainers.estimate("total_flos", config, [24] * 3).total == theirs


def test_the_true_count_is_the_reports() -> None:
    report = report_of(built(SMALL))
    found = by_term("fxflops", report, None)
    assert sum(found.values()) == report.total_training_flops
    tokens, squares = 2 * 16, 2 * 16**2
    # The input table's gradient has no multiplications. The first layer's inputs need a gradient all the same.
    assert found["mlp"] == 6 * MLP * tokens
    assert found["attention projections"] == 6 * ATTENTION * tokens
    assert found["output layer"] == 6 * TABLE * tokens
    assert found["attention scores"] == 12 * 2 * 4 * 8 * squares
    assert "input table" not in found


def test_the_true_count_of_other_lengths() -> None:
    """A model is counted once for each length. With lengths, a report uses its own model."""
    model = built(MIXED)
    found = by_term("fxflops", model)
    assert found["attention scores"] == 12 * 2 * 4 * 8 * SQUARES
    assert found["experts"] == 6 * 2 * EXPERT * TOKENS
    assert by_term("fxflops", report_of(model), LENGTHS) == found


def test_a_closed_form_stands_for_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(SMALL)
    given = {"input_ids": torch.zeros(1, 16, dtype=torch.long), "use_cache": False}
    shapes = {"input_ids": {1: torch.export.Dim("seq", max=64)}, "use_cache": None}
    form = fxflops.closed_form(model, kwargs=given, dynamic_shapes=shapes, backward=True)
    counted = by_term("fxflops", model)
    monkeypatch.setattr("fxflops.trainers._source.count", None)
    found = trainers.estimate("fxflops", model, LENGTHS, closed_form=form)
    assert {term.name: term.flops for term in found.terms} == counted


def test_frozen_parts_are_no_trainers_concern() -> None:
    model = built(SMALL)
    model.get_submodule("model").requires_grad_(False)
    report = report_of(model)
    row = next(row for row in trainers.explain("6nd", "fxflops", report).rows if row.term == "mlp")
    assert (row.flops_a, row.flops_b) == (6 * MLP * 32, 2 * MLP * 32)


def test_the_differences_add_up() -> None:
    found = trainers.explain("verl", "fxflops", SMALL, LENGTHS)
    assert sum(row.difference for row in found.rows) == found.b.total - found.a.total
    tables = next(row for row in found.rows if row.term == "input table")
    assert tables.difference == -6 * TABLE * TOKENS
    assert "a lookup does no multiplications" in tables.how_a
    assert "attention scores" in str(found)
    assert found.to_dicts()[0]["term"] == found.rows[0].term
    assert "no term differs" in str(trainers.explain("verl", "verl", SMALL, LENGTHS))
    assert f"{found.a.total:,} FLOPs for 72 tokens" in str(found.a)


def test_active_parameters_by_the_routing_that_ran() -> None:
    dense = 2 * TABLE + ATTENTION + NORMS + 2 * 32 * 4
    found = trainers.active_parameters(report_of(built(MIXED), backward=False))
    assert found == (dense + 2 * EXPERT, dense + 2 * EXPERT - TABLE, dense + 4 * EXPERT)


ACTIVE = {
    "Mixtral-8x7B": (12.88, 12.75),
    "DeepSeek-V3": (37.55, 36.62),
    "DeepSeek-V2-Lite": (2.66, 2.45),
    "gpt-oss-20b": (4.19, 3.61),
    "Qwen3-30B-A3B": (3.35, 3.04),
}


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_of_published_models(name: str) -> None:
    found = trainers.active_parameters(report_of(built(PUBLISHED[name]), 1, 16, backward=False))
    both, without = ACTIVE[name]
    assert abs(found.with_tables / 1e9 - both) < 0.01
    assert abs(found.without_input_table / 1e9 - without) < 0.01


def test_what_is_missing_is_said() -> None:
    report = fxflops.count(nn.Linear(4, 4), torch.ones(1, 4), backward=True)
    for source, lengths, message in (
        (report, [8], "the megatron formula needs the model's config"),
        (report, None, "the lengths of the batch's sequences are unknown"),
        (SMALL, [], "lengths must list the length of each sequence"),
        (report_of(built(SMALL), backward=False), None, "count forward and backward"),
        (7, [8], "expected a report, a model or a transformers config, got int"),
        ({"model_type": "odd", "n_embd": 8}, [8], "has no num_hidden_layers or n_layer"),
    ):
        with pytest.raises(InputError, match=message):
            trainers.estimate("fxflops" if lengths is None else "megatron", source, lengths)
    with pytest.raises(InputError, match="transformers cannot build a language model from this config"):
        trainers.estimate("6nd", {"model_type": "vit"}, [8])
    bert = {**SMALL, "model_type": "bert"}
    with pytest.raises(
        InputError, match=r"megatron's formula does not fit the architecture bert: by the config, .* has 9,216"
    ):
        trainers.estimate("megatron", bert, [8])
    with pytest.raises(InputError, match=r"verl.s formula reads a field that the config lacks.*num_hidden_layers"):
        trainers.estimate("verl", SimpleNamespace(model_type="llama", hidden_size=8), [8])
    with pytest.raises(InputError, match=r"intermediate_size is .4, 8., but the formulas need one number"):
        trainers.estimate("megatron", SimpleNamespace(**{**SMALL, "intermediate_size": [4, 8]}), [8])
    with pytest.raises(InputError, match=r"unknown trainer 'megatrn' \(did you mean megatron"):
        trainers.estimate("megatrn", SMALL, [8])
    assert "verl" in trainers.list_trainers()


@pytest.mark.parametrize("source", [transformers.ViTConfig(), {"model_type": "vit"}, {"model_type": "vitt"}])
def test_a_config_of_another_kind_of_model(source: Any) -> None:
    with pytest.raises(
        InputError, match=r"model_type 'vitt?', because it does not know this type: give the model"
    ) as error:
        trainers.estimate("6nd", source, 128)
    assert "\n" not in str(error.value)


def test_the_feed_forward_layers_of_bert_are_a_term() -> None:
    bert = {"model_type": "bert", "num_hidden_layers": 2, "vocab_size": 50, "is_decoder": True}
    found = {term.name: term.flops for term in trainers.estimate("6nd", bert, 128).terms}
    assert found["mlp"] == 6 * 128 * 2 * (2 * 768 * 3072 + 3072 + 768)


def test_a_report_of_another_convention_is_read_by_fxflops_own() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes))
    given = {"input_ids": torch.zeros(1, 8, dtype=torch.long), "use_cache": False}
    ours, theirs = (
        fxflops.count(model, kwargs=given, backward=True, convention=name) for name in ("fxflops", "deepspeed")
    )
    assert trainers.estimate("fxflops", theirs).total == trainers.estimate("fxflops", ours).total

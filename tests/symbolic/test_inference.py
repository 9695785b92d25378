"""Serving costs what ``generate()`` does under ``profile()``. Caches and bounds are worked out by hand."""

from __future__ import annotations

import gc
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fxflops import InputError, count, profile, serving
from fxflops.roofline.devices import Device

hf = pytest.importorskip("transformers", reason="serving is for its models")
SMALL: dict[str, Any] = {"vocab_size": 100, "eos_token_id": None, "pad_token_id": 0}
LLAMA = {**SMALL, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}


def gpt2() -> Any:
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=2, n_embd=64, n_head=4, bos_token_id=0, **SMALL)).eval()


def llama(**settings: Any) -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**{**LLAMA, "num_key_value_heads": 2, **settings})).eval()


def mamba2() -> Any:
    """A model whose cache is a recurrent state, with flags that say whether there is one."""
    config = hf.Mamba2Config(
        **SMALL, hidden_size=16, num_hidden_layers=2, state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=16
    )
    return hf.Mamba2ForCausalLM(config).eval()


def lfm2() -> Any:
    """A model with one layer that has a recurrent state, and one that has keys and values."""
    layers = ["conv", "full_attention"]
    return hf.Lfm2ForCausalLM(hf.Lfm2Config(**LLAMA, num_key_value_heads=2, layer_types=layers)).eval()


@pytest.mark.parametrize("make", [gpt2, llama, mamba2, lfm2])
def test_generate_costs_as_much_prompt_and_each_step(make: Any) -> None:
    model = make()
    with warnings.catch_warnings(), profile(model) as profiled:
        warnings.simplefilter("ignore")
        prompt = torch.arange(1, 22).reshape(3, 7)  # without the padding token, which generate() would mask
        model.generate(prompt, max_new_tokens=5, do_sample=False)
    steps = profiled.report.by_step()
    found = serving(model, prompt=7, new_tokens=5, batch=3)
    assert found.prefill_flops == steps["prefill"].total.flops
    assert found.step_flops == tuple(steps[f"decode {i}"].total.flops for i in range(1, 5))
    assert found.decode_flops == sum(found.step_flops)
    assert found.first_token_seconds is found.per_token_seconds is None
    assert next(model.parameters()).device.type == "cpu"


def test_the_cache_of_qwen3_30b_a3b_takes_96_kib_a_token() -> None:
    layers, heads, width, keys_and_values, bytes_of_bf16 = 3, 4, 128, 2, 2  # of its 48 layers
    with torch.device("meta"):
        config = hf.Qwen3MoeConfig(
            **{**LLAMA, "num_hidden_layers": layers, "num_key_value_heads": heads, "head_dim": width},
            num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8,
        )  # fmt: skip
        model = hf.Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    found = serving(model, prompt=2, new_tokens=1, batch=2)
    assert (
        found.cache_bytes_per_token
        == layers * heads * width * keys_and_values * bytes_of_bf16
        == 96 * 1024 * layers // 48
    )
    assert found.cache_bytes == 2 * found.cache_bytes_per_token * 2


def test_the_latent_cache_of_deepseek_v3() -> None:
    layers, latent, rope, bytes_of_bf16 = 5, 512, 64, 2  # of its 61 layers, the first three without experts
    small = {"q_lora_rank": 16, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
    with torch.device("meta"):
        config = hf.DeepseekV3Config(
            **{**LLAMA, "num_hidden_layers": layers, "num_key_value_heads": 8}, **small,
            kv_lora_rank=latent, qk_rope_head_dim=rope, moe_intermediate_size=8,
        )  # fmt: skip
        model = hf.DeepseekV3ForCausalLM(config).to(torch.bfloat16)
    found = serving(model, prompt=2, new_tokens=1)
    assert found.cache_bytes_per_token == layers * (latent + rope) * bytes_of_bf16 == 70272 * layers // 61


def test_a_sliding_window_stops_the_cache() -> None:
    config = hf.MistralConfig(**{**LLAMA, "num_key_value_heads": 2}, sliding_window=8)
    found = serving(hf.MistralForCausalLM(config), prompt=20, new_tokens=4)
    assert found.cache_bytes_per_token == 0
    assert found.cache_bytes == 2 * 2 * 7 * 2 * 8 * 4  # layers, keys and values, window - 1, heads, width, f32
    assert len(set(found.step_bytes)) == 1


def test_bounds_are_the_larger_of_two_times() -> None:
    model = llama()
    slow_memory = Device("slow memory", {"f32": 1e30}, bandwidth=1e9)
    found = serving(model, prompt=16, new_tokens=3, device=slow_memory)
    read = sum(p.numel() for p in model.parameters()) - 100 * 64 + 64  # of the table's 100 rows, one is read
    assert found.weight_bytes == 4 * read
    of_a_token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, f32
    assert found.step_bytes == tuple(4 * read + n * of_a_token for n in (16, 17))
    assert found.per_token_seconds == pytest.approx(sum(found.step_bytes) / 2 / 1e9)
    slow_compute = Device("slow compute", {"f32": 1e9}, bandwidth=1e30)
    products = 2 * (64 * 64 * 2 + 64 * 16 * 2 + 64 * 96 * 3)  # the weights of two layers
    attention = 2 * 2 * 64 * (16 * 17 // 2)  # layers, scores and values, the pairs of a causal mask
    first = serving(model, prompt=16, new_tokens=1, device=slow_compute).first_token_seconds
    assert first == pytest.approx(2 * (16 * products + attention + 64 * 100 + 16 * 4) / 1e9, rel=1e-3)


def test_of_experts_those_of_one_token_are_read() -> None:
    experts, width, hidden = 4, 8, 64
    config = {**LLAMA, "num_key_value_heads": 2, "head_dim": 8}
    sizes = []
    for taken in (1, 2):
        with torch.device("meta"):
            model = hf.Qwen3MoeForCausalLM(
                hf.Qwen3MoeConfig(**config, num_experts=experts, num_experts_per_tok=taken, moe_intermediate_size=width)
            ).to(torch.bfloat16)
        sizes.append(serving(model, prompt=2, new_tokens=1).weight_bytes)
    assert sizes[1] - sizes[0] == 2 * 3 * width * hidden * 2  # layers, matrices of an expert, bytes of bf16


def gemma3() -> Any:
    """A model with an embedding class of its own, whose head uses the same table."""
    return hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**LLAMA, num_key_value_heads=2, head_dim=8, sliding_window=8))


def same_weights() -> Any:
    """A model of two layers with the same weights, but separate modules."""
    model = llama(tie_word_embeddings=True)
    for path, _ in [*model.model.layers[1].named_parameters()]:
        module, _, name = path.rpartition(".")
        setattr(model.model.layers[1].get_submodule(module), name, model.model.layers[0].get_parameter(path))
    return model


def same_module() -> Any:
    """A model of two layers that call one module."""
    model = llama(tie_word_embeddings=True)
    model.model.layers[1].mlp = model.model.layers[0].mlp
    return model


@pytest.mark.parametrize("make", [gemma3, same_weights, same_module])
def test_weights_that_are_read_several_times_count_once(make: Any) -> None:
    model = make()
    assert serving(model, prompt=4, new_tokens=2).weight_bytes == sum(each.nbytes for each in model.parameters())


def test_speculative_decoding() -> None:
    device = Device("any", {"f32": 1e12}, bandwidth=1e11)
    model, draft = llama(), llama(num_hidden_layers=1)
    plain = serving(model, prompt=8, new_tokens=2, device=device)
    found = serving(
        model, prompt=8, new_tokens=2, device=device, draft=draft, draft_tokens=3, acceptance=0.5
    ).speculative
    assert found is not None
    assert found.tokens == 1 + 0.5 + 0.25 + 0.125
    assert found.flops > 3 * serving(draft, prompt=8, new_tokens=2).step_flops[0] + 3 * plain.step_flops[0]
    assert found.per_token_seconds is not None
    assert plain.per_token_seconds is not None
    assert found.per_token_seconds > plain.per_token_seconds / found.tokens
    assert "LlamaForCausalLM proposes 3 tokens a round, 50% accepted: 1.88 output tokens and " in str(found)


def test_text() -> None:
    text = str(serving(llama(), prompt=8, new_tokens=1, device="H100")).splitlines()
    assert text[0] == "LlamaForCausalLM   f32, batch 1, prompt 8, new tokens 1"
    assert text[1].startswith("prefill ")
    assert "FLOPs (attention dense)" in text[1]
    weights = sum(4 * p.numel() for p in llama().parameters())
    assert text[4].startswith("memory ")
    assert "fit into the 79.18 GiB of H100 SXM and leave 79.18 GiB for activations" in text[4]
    assert serving(llama(), prompt=8, new_tokens=1).model_bytes == weights
    assert text[5] == "lower bounds on H100 SXM: max(2 x MACs / peak, bytes / bandwidth), attention exact"


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(InputError, match="takes a transformers causal language model, not Linear"):
        serving(nn.Linear(2, 2), prompt=1, new_tokens=1)
    with pytest.raises(
        InputError, match="not LlamaModel; LlamaForCausalLM, which has the same config, is one: pass a model"
    ):
        serving(llama().model, prompt=1, new_tokens=1)
    small = hf.OpenAIGPTConfig(vocab_size=100, n_embd=16, n_layer=1, n_head=2)
    with pytest.raises(InputError, match="needs a model that keeps a cache between tokens, but OpenAIGPT"):
        serving(hf.OpenAIGPTLMHeadModel(small), prompt=1, new_tokens=1)
    encoder = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=100, d_model=16, d_ff=16, num_layers=1, num_heads=2))
    with pytest.raises(InputError, match="takes models without an encoder, and T5ForConditionalGeneration has one"):
        serving(encoder, prompt=1, new_tokens=1)
    with pytest.raises(InputError, match="must be 1 or more"):
        serving(llama(), prompt=0, new_tokens=1)


def test_predicted_times_stand_beside_the_bounds() -> None:
    with torch.device("meta"):
        settings = {**LLAMA, "hidden_size": 1024, "intermediate_size": 4096, "num_key_value_heads": 2}
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**settings)).to(torch.bfloat16)
        prompts = torch.zeros(4, 512, dtype=torch.long)
    found = serving(model, prompt=512, new_tokens=9, batch=4, device="H100")
    assert found.first_token_seconds is not None
    assert found.per_token_seconds is not None
    assert found.predicted_first_token_seconds is not None
    assert found.predicted_per_token_seconds is not None
    assert found.predicted_first_token_seconds >= found.first_token_seconds
    assert found.predicted_per_token_seconds >= found.per_token_seconds
    prefill = count(model, kwargs={"input_ids": prompts, "logits_to_keep": 1, "use_cache": True}, mode="eval")
    assert found.predicted_first_token_seconds == pytest.approx(prefill.predict("H100").seconds, rel=0.02)
    assert "predicted, if run as a CUDA graph" in str(found)
    assert f"{4 / found.predicted_per_token_seconds:,.0f} tokens/s" in str(found)
    assert found.predicted_error is not None
    assert "% on average for single kernels" in str(found)
    assert found.prefill_binds == "compute"
    assert found.decode_binds == "memory"
    assert 0 < found.predicted_copy_seconds < found.predicted_per_token_seconds
    assert "in a server" not in str(found)  # the copies take little of the time
    copying = replace(found, predicted_copy_seconds=0.5 * found.predicted_per_token_seconds)
    assert f"{8 / found.predicted_per_token_seconds:,.0f} tokens/s in a server" in str(copying)
    small = Device("small", {"bf16": 1e12}, bandwidth=1e12, memory=found.memory_bytes - 1)
    assert "do NOT fit into" in str(serving(model, prompt=512, new_tokens=9, batch=4, device=small))
    unknown = serving(model, prompt=512, new_tokens=1, device="MI300X")
    assert unknown.predicted_first_token_seconds is unknown.predicted_per_token_seconds is None
    assert "not predicted: no kernels of MI300X" in str(unknown)
    alone = serving(model, prompt=512, new_tokens=1, device="H100")
    assert alone.predicted_first_token_seconds is not None
    assert alone.predicted_per_token_seconds is None


NEW_TOKENS = 24
"""All these steps are counted from a few lengths, some without the layers that repeat others."""


def several_windows() -> Any:
    """Five layers with windows that fill up during the steps, and one without."""
    layers = {**LLAMA, "num_hidden_layers": 6, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16}
    return hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**layers)).eval()


def many_layers() -> Any:
    return llama(num_hidden_layers=7)


def recurrent_layers() -> Any:
    """Layers with keys and values among layers that update their states in place."""
    layers = ["conv", "conv", "full_attention"] * 2
    return hf.Lfm2ForCausalLM(
        hf.Lfm2Config(**{**LLAMA, "num_hidden_layers": 6}, num_key_value_heads=2, layer_types=layers)
    ).eval()


def one_layer_of_its_own() -> Any:
    """The middle one of seven layers does more at a single length, a multiple of what many models pad to."""
    model = llama(num_hidden_layers=7)
    layer = model.model.layers[3]

    class Longer(type(layer)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, **given: Any) -> Any:
            if int(given["position_ids"].reshape(-1)[0]) == 24:
                x = x + x @ torch.zeros(64, 64, dtype=x.dtype)
            return super().forward(x, **given)

    layer.__class__ = Longer
    return model


@pytest.mark.parametrize("make", [several_windows, many_layers, recurrent_layers])
@pytest.mark.parametrize("prompt", [1, 7])
def test_all_of_many_steps_cost_what_generate_does(make: Any, prompt: int) -> None:
    model = make()
    with warnings.catch_warnings(), profile(model) as profiled:
        warnings.simplefilter("ignore")
        model.generate(torch.arange(1, 1 + 2 * prompt).reshape(2, prompt), max_new_tokens=NEW_TOKENS, do_sample=False)
    steps = profiled.report.by_step()
    found = serving(model, prompt=prompt, new_tokens=NEW_TOKENS, batch=2)
    assert found.step_flops == tuple(steps[f"decode {i}"].total.flops for i in range(1, NEW_TOKENS))


def test_a_layer_that_is_not_like_the_others_always_runs() -> None:
    plain, other = (serving(make(), prompt=7, new_tokens=NEW_TOKENS) for make in (many_layers, one_layer_of_its_own))
    more = [b - a for a, b in zip(plain.step_flops, other.step_flops, strict=True)]
    assert [past for past, extra in enumerate(more, 7) if extra] == [24]


def test_layers_that_repeat_run_at_few_lengths() -> None:
    ran = []
    model = llama(num_hidden_layers=12)
    cls = type(model.model.layers[0])
    forward = cls.forward

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append(self)
        return forward(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, "forward", counting)
        serving(model, prompt=100, new_tokens=60)
    whole, without = (
        3,
        24,
    )  # the prompt and the steps at both ends; these and others with only the first and the last layer
    assert len(ran) <= 12 * whole + 2 * without


def test_the_garbage_collector_is_as_it_was() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    serving(llama(), prompt=4, new_tokens=2)
    assert 0 < gc.get_freeze_count() <= before
    gc.unfreeze()
    try:
        serving(llama(), prompt=4, new_tokens=2)
        with pytest.raises(InputError):
            serving(nn.Linear(2, 2), prompt=4, new_tokens=2)
        assert gc.get_freeze_count() == 0
        assert gc.isenabled()
    finally:
        gc.freeze()

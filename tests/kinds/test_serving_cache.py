"""At each step, ``serving`` reads the cache that ``generate()`` has at that step, and only the experts that a token uses.

The cache is measured in the model's own run, from its tensors. Weights and pairs are computed by hand from the config.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from fxflops import serving
from fxflops.roofline.devices import Device
from fxflops.symbolic import inference

hf = pytest.importorskip("transformers", reason="serving is for its models")


@pytest.fixture(autouse=True)
def _objects_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not let ``serving`` freeze objects. In these tests the objects are frozen already, and counting them takes longer than
    ``serving`` itself.
    """
    monkeypatch.setattr(inference, "earlier_objects_frozen", nullcontext)


WINDOW, PROMPT, NEW, BATCH = 8, 5, 12, 3
TEXT: dict[str, Any] = {"vocab_size": 100, "eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
SMALL: dict[str, Any] = {
    **TEXT, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
HEADS = {**SMALL, "head_dim": 16}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
CHUNKED = {
    "attention_chunk_size": WINDOW, "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0],
    "moe_layers": [], "intermediate_size_mlp": 32,
}  # fmt: skip


def gpt_neo() -> Any:
    layers = {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": WINDOW}
    return hf.GPTNeoForCausalLM(hf.GPTNeoConfig(**TEXT, hidden_size=64, max_position_embeddings=64, **layers))


def gpt_oss() -> Any:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return hf.GptOssForCausalLM(hf.GptOssConfig(**HEADS, **MIXED, **experts)).to(torch.bfloat16)


def minimax() -> Any:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 4}
    layers = ["linear_attention", "full_attention"]
    return hf.MiniMaxForCausalLM(hf.MiniMaxConfig(**HEADS, **experts, layer_types=layers)).to(torch.bfloat16)


def mamba2() -> Any:
    state = {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4}
    return hf.Mamba2ForCausalLM(hf.Mamba2Config(**TEXT, hidden_size=16, num_hidden_layers=2, **state))


def recurrent_gemma() -> Any:
    layers = {**SMALL, "num_hidden_layers": 3, "num_key_value_heads": 1}
    return hf.RecurrentGemmaForCausalLM(hf.RecurrentGemmaConfig(**layers, attention_window_size=WINDOW, lru_width=64))


def rwkv() -> Any:
    return hf.RwkvForCausalLM(hf.RwkvConfig(**TEXT, hidden_size=32, num_hidden_layers=3))


def llama4() -> Any:
    return hf.Llama4ForCausalLM(hf.Llama4TextConfig(**HEADS, **CHUNKED))


MODELS: dict[str, Callable[[], Any]] = {
    "full": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL)),
    "all sliding": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SMALL, sliding_window=WINDOW)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SMALL, sliding_window=WINDOW)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**HEADS, **MIXED)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**HEADS, **MIXED)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL, **MIXED, use_sliding_window=True)),
    "cohere2": lambda: hf.Cohere2ForCausalLM(hf.Cohere2Config(**HEADS, **MIXED)),
    "olmo3": lambda: hf.Olmo3ForCausalLM(hf.Olmo3Config(**SMALL, **MIXED)),
    "llama4": llama4,
    "gpt-neo": gpt_neo,
    "gpt-oss": gpt_oss,
    "minimax": minimax,
    "mamba2": mamba2,
    "recurrent gemma": recurrent_gemma,
    "rwkv": rwkv,
}


def floats_in(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    inner = vars(value).values() if not inner and hasattr(value, "layers") else inner
    inner = vars(value).values() if type(value).__name__.endswith("Layer") else inner
    return [tensor for each in inner for tensor in floats_in(each)]


def caches_of_generate(model: Any) -> list[int]:
    """Return the bytes of the cache before each call that ``generate()`` makes, starting with the prompt."""
    found: list[int] = []

    def measure(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        names = ("cache", "past_key_values", "cache_params", "state")
        held = next((kwargs[name] for name in names if kwargs.get(name) is not None), None)
        found.append(sum(each.numel() * each.element_size() for each in floats_in(held)))

    hook = model.register_forward_pre_hook(measure, with_kwargs=True)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        prompt = torch.arange(1, 1 + BATCH * PROMPT).reshape(BATCH, PROMPT)
        model.generate(prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    hook.remove()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_each_step_reads_the_cache_of_the_models_own_run(name: str) -> None:
    model = MODELS[name]().eval()
    _, *steps = caches_of_generate(model)
    assert len(steps) == NEW - 1
    assert steps[0] > 0
    found = serving(model, prompt=PROMPT, new_tokens=NEW, batch=BATCH)
    assert [moved - found.weight_bytes for moved in found.step_bytes] == steps


def test_layers_of_gpt_oss_20b_by_hand() -> None:
    """Half of the 24 layers keep only the last 127 tokens. Each layer has keys and values of 8 heads of 64, in two bytes. The test
    has two layers.
    """
    heads = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    size = {
        **TEXT,
        **heads,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    }
    with torch.device("meta"):
        config = hf.GptOssConfig(**size, sliding_window=128, layer_types=["sliding_attention", "full_attention"])
        model = hf.GptOssForCausalLM(config).to(torch.bfloat16)
    found = serving(model, prompt=100, new_tokens=60, batch=64)
    of_a_token = 64 * 2 * 8 * 64 * 2  # batch, keys and values, heads, width, bytes
    by_hand = [of_a_token * (past + min(past, 127)) for past in range(100, 100 + 59)]
    assert [moved - found.weight_bytes for moved in found.step_bytes] == by_hand
    assert (found.cache_bytes_per_token, found.last_cache_bytes_per_token) == (2 * of_a_token // 64, of_a_token // 64)


def tokens_of_experts(kind: str, taken: int, experts: int) -> Any:
    """Return a model in which each token uses ``taken`` of ``experts`` experts, under the names of its own config."""
    size = {**HEADS, "moe_intermediate_size": 32}
    deep = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    makers: dict[str, Callable[[], Any]] = {
        "gpt-oss": lambda: hf.GptOssForCausalLM(
            hf.GptOssConfig(**HEADS, num_local_experts=experts, num_experts_per_tok=taken)
        ),
        "mixtral": lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**HEADS, num_local_experts=experts, num_experts_per_tok=taken)
        ),
        "aria": lambda: hf.AriaTextForCausalLM(
            hf.AriaTextConfig(**SMALL, moe_num_experts=experts, moe_topk=taken, moe_num_shared_experts=1)
        ),
        "ernie": lambda: hf.Ernie4_5_MoeForCausalLM(
            hf.Ernie4_5_MoeConfig(**size, moe_num_experts=experts, moe_k=taken, moe_layer_start_index=0)
        ),
        "qwen3": lambda: hf.Qwen3MoeForCausalLM(
            hf.Qwen3MoeConfig(**size, num_experts=experts, num_experts_per_tok=taken)
        ),
        "deepseek": lambda: hf.DeepseekV3ForCausalLM(
            hf.DeepseekV3Config(
                **{**SMALL, "num_key_value_heads": 4}, **deep, moe_intermediate_size=32, n_routed_experts=experts,
                num_experts_per_tok=taken, n_group=2, topk_group=1, first_k_dense_replace=1,
            )
        ),
        "phimoe": lambda: hf.PhimoeForCausalLM(
            hf.PhimoeConfig(**SMALL, num_local_experts=experts, num_experts_per_tok=taken)
        ),
        "llama4": lambda: hf.Llama4ForCausalLM(
            hf.Llama4TextConfig(**{**HEADS, **CHUNKED, "moe_layers": [0, 1]}, num_local_experts=experts, num_experts_per_tok=taken)
        ),
    }  # fmt: skip
    with torch.device("meta"):
        return makers[kind]().to(torch.bfloat16)


@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("kind", ["gpt-oss", "mixtral", "aria", "ernie", "qwen3", "deepseek", "phimoe", "llama4"])
def test_of_experts_the_weights_and_biases_of_one_token_are_read(kind: str, batch: int) -> None:
    experts, taken = 8, 2
    model = tokens_of_experts(kind, taken, experts)
    table = model.get_input_embeddings().weight
    is_tied = model.get_output_embeddings().weight is table  # so the whole table is read
    unread = 0 if is_tied else (table.shape[0] - batch) * table.shape[1] * 2
    routed = {name: each for name, each in model.named_parameters() if ".experts." in name}
    assert len(routed) >= 2
    assert {each.shape[0] for each in routed.values()} == {experts}
    unread += sum(each.nbytes for each in routed.values()) * (experts - taken) // experts
    total = sum(each.nbytes for each in model.parameters())
    assert serving(model, prompt=2, new_tokens=2, batch=batch).weight_bytes == total - unread


def test_times_take_the_pairs_that_windows_and_chunks_leave_and_the_screen_says_so() -> None:
    """On a slow computer the times show the MACs: for products with weights, and for each pair of query and key."""
    slow = Device("slow compute", {"f32": 1e9}, bandwidth=1e30)
    new = 20
    products = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 96 * 3) + 64 * 100
    of_a_pair = 2 * 64  # scores and values, over all heads
    model = hf.MistralForCausalLM(hf.MistralConfig(**SMALL, sliding_window=WINDOW))
    prompt, least = 30, WINDOW * (WINDOW + 1) // 2 + (30 - WINDOW) * WINDOW
    found = serving(model, prompt=prompt, new_tokens=new, device=slow)
    first = prompt * (products - 64 * 100) + 64 * 100 + 2 * least * of_a_pair
    assert found.first_token_seconds == pytest.approx(2 * first / 1e9, rel=2e-3)
    assert found.per_token_seconds == pytest.approx(2 * (products + 2 * WINDOW * of_a_pair) / 1e9, rel=2e-3)
    lines = str(found).splitlines()
    assert all("(attention dense)" in line for line in lines[1:3])
    assert lines[5].endswith("attention exact")

    dense, chunked = (
        serving(llama4(), prompt=PROMPT, new_tokens=new, device=slow, attention=kind) for kind in ("dense", "exact")
    )
    assert dense.per_token_seconds == chunked.per_token_seconds
    pasts = range(PROMPT, PROMPT + new - 1)
    kept = sum(min(past, WINDOW - 1) + 1 for past in pasts)
    left = sum(past % WINDOW + 1 for past in pasts)
    # A pair costs the multiplies and adds of scores and values, plus a few operations of the softmax per head.
    of_flops = (sum(dense.step_flops) - sum(chunked.step_flops)) / (kept - left) / of_a_pair
    assert 2 <= of_flops < 2.5

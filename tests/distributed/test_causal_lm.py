"""The training step of a transformers language model on a mesh, worked out by hand."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import pytest
import torch

import fxflops
from fxflops.distributed import simulate, step_bound
from fxflops.distributed.simulation import simulated
from fxflops.errors import InputError
from tests.distributed import simulates

transformers = pytest.importorskip("transformers")
pytestmark = simulates

LAYERS, WIDTH, HIDDEN, HEADS, VOCABULARY, TOKENS = 2, 64, 128, 8, 256, 32


def model_of(kind: str, layers: int = LAYERS, **settings: Any) -> Any:
    sizes = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_attention_heads": HEADS, "vocab_size": VOCABULARY}
    config = getattr(transformers, f"{kind}Config")(
        num_hidden_layers=layers, num_key_value_heads=HEADS, **sizes, **settings
    )
    with torch.device("meta"):
        return getattr(transformers, f"{kind}ForCausalLM")(config)


def step_of_passes(model: Any, passes: int, **settings: Any) -> Any:
    """A training step that runs all its passes, except in the first step: that one only creates the optimizer's state, so it runs
    one pass.
    """
    from fxflops.distributed.causal_lm import training_step

    build = training_step(model, tokens=TOKENS, **settings)

    def build_with_passes(mesh: Any) -> Any:
        model, step = build(mesh)
        numbers = chain([1], repeat(passes))
        return model, lambda: step(next(numbers))  # type: ignore[call-arg]

    return build_with_passes


def test_sizes_of_tensor_parallel_divide_the_heads_and_fit_in_a_node() -> None:
    from fxflops.distributed.causal_lm import candidates

    llama = model_of("Llama")
    assert candidates(llama, 48, node=8) == [{"dp": 48 // tp, "tp": tp} for tp in (1, 2, 4, 8)]
    assert candidates(llama, 48, node=4) == [{"dp": 48 // tp, "tp": tp} for tp in (1, 2, 4)]
    assert candidates(llama, 7) == [{"dp": 7, "tp": 1}]
    experts = model_of("Mixtral", num_local_experts=4)  # its plan shards tensors that no torch style covers
    assert candidates(experts, 16) == [{"dp": 16, "tp": 1}]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module.*returned a view")
def test_a_llama_on_four_by_four() -> None:
    from fxflops.distributed.causal_lm import training_step

    tp, rows = 4, TOKENS
    (kind,) = simulate(training_step(model_of("Llama"), tokens=rows), {"dp": 4, "tp": tp}, differs=()).kinds
    layer = 4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN  # query, key, value, output; gate, up, down
    attention, head = 2 * rows * rows * WIDTH, WIDTH * VOCABULARY * rows
    forward = LAYERS * (layer * rows + attention) + head
    # A checkpointed layer runs again up to its last product: the backward pass needs only the input of that product.
    again = LAYERS * ((layer - WIDTH * HIDDEN) * rows + attention)
    assert sum(each.macs for each in kind.report.counted) == (3 * forward + again) // tp
    assert kind.report.complete

    sums = next(row for row in kind.collectives if (row.op, row.group) == ("all_reduce", "tp"))
    # Per layer: two outputs, one of them once more, and the gradients of five inputs. Plus the embedding's output, the head's
    # input.
    calls, hidden = LAYERS * (2 + 1 + 5) + 2, rows * WIDTH * 2  # bf16
    assert (sums.calls, sums.sent) == (calls, calls * hidden * 2 * (tp - 1) // tp)

    # f32. Embedding, head and layers are sharded over both dimensions, norms over dp alone. AdamW adds two values per parameter.
    sharded = (2 * VOCABULARY * WIDTH + LAYERS * layer) // 16
    norms = (2 * LAYERS + 1) * WIDTH // 4
    assert kind.report.total_params == sharded + norms
    assert kind.report.memory["params"] == 4 * (sharded + norms)
    assert kind.report.memory["optimizer"] == pytest.approx(8 * (sharded + norms), rel=0.01)  # plus step counts


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module.*returned a view")
def test_a_model_by_its_layers() -> None:
    from fxflops.distributed.causal_lm import layers_of, training_step

    model = model_of("Qwen3", layers=7, layer_types=["full_attention"] * 7)
    step = training_step(model, tokens=TOKENS)
    found, whole = (
        simulate(step, {"dp": 4, "tp": 2}, differs=(), layers=layers).kinds[0] for layers in (layers_of(model), None)
    )
    assert found.more is not None
    assert (found.macs, found.flops, found.params) == (whole.macs, whole.flops, whole.params)
    assert (found.max_memory, found.collectives) == (whole.max_memory, whole.collectives)
    assert len(model.config.layer_types) == 7


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module.*returned a view")
@pytest.mark.parametrize(("passes", "layers"), [(4, None), (3, 7)])
def test_passes_by_one_and_two(passes: int, layers: int | None) -> None:
    """The figures extrapolated from one and two passes are the figures of a step that runs all its passes and has all its layers."""
    from fxflops.distributed.causal_lm import training_step

    model, mesh = model_of("Llama", layers=layers or LAYERS), {"dp": 4, "tp": 2}
    whole = simulate(step_of_passes(model, passes), mesh, differs=())
    found = simulated(training_step(model, tokens=TOKENS), mesh, differs=(), layers=layers, passes=passes)
    assert found.layers == layers
    assert found.figures == whole.figures
    assert found.table.rows == whole.table.rows
    bounds, of_all = step_bound(found), step_bound(whole)
    assert (bounds[:2], bounds.binds) == (pytest.approx(of_all[:2]), of_all.binds)


def test_one_rank_without_checkpointing_computes_what_the_model_does() -> None:
    from fxflops.distributed.causal_lm import training_step

    model = model_of("Qwen3", tie_word_embeddings=True)
    step = training_step(model, tokens=TOKENS, batch=2, checkpointing=False)
    (kind,) = simulate(step, {"dp": 1, "tp": 1}, differs=()).kinds
    ids = torch.zeros(2, TOKENS, dtype=torch.long)
    alone = fxflops.count(model, kwargs={"input_ids": ids, "use_cache": False}, mode="train", backward=True)
    assert sum(each.macs for each in kind.report.counted) == alone.total_macs + alone.total_backward_macs
    assert kind.report.total_params == alone.total_params


def test_a_model_without_a_language_head() -> None:
    from fxflops.distributed.causal_lm import training_step

    with pytest.raises(InputError, match="LlamaModel is not a causal language model"):
        training_step(model_of("Llama").model, tokens=TOKENS)

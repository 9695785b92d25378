"""A training step of a transformers language model on a mesh, with the tensor parallelism of the model's ``tp_plan``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import InputError
from ..model.configs import causal_lm_class
from .simulation import Build

CAUSAL = "causal_sdpa"


def candidates(model: Any, gpus: int, node: int = 8) -> list[dict[str, int]]:
    """Return the meshes of ``gpus`` devices. A mesh is tensor parallel ("tp") within a node and data parallel ("dp") otherwise.

    Sizes of "tp" must divide the numbers of heads. Without a tensor-parallel plan in the model, "tp" is 1.
    """
    config = model.config.get_text_config()
    heads = [getattr(config, name, None) or 0 for name in ("num_attention_heads", "num_key_value_heads")]
    most = min(node, gpus) if plan_of(model) else 1
    sizes = [tp for tp in range(1, most + 1) if not any(each % tp for each in (gpus, *heads))]
    return [{"dp": gpus // tp, "tp": tp} for tp in sizes]


def plan_of(model: Any) -> dict[str, Any]:
    """Return the model's ``tp_plan`` as a plan for ``parallelize_module``.

    The result is empty if the model has no ``tp_plan``. The result is also empty if torch does not support a style in the plan, e.g. a
    style for experts.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    styles: dict[str, Callable[[], Any]] = {
        "colwise": ColwiseParallel,
        "rowwise": RowwiseParallel,
        **dict.fromkeys(("colwise_gather_output", "colwise_rep"), lambda: ColwiseParallel(output_layouts=Replicate())),
        **dict.fromkeys(
            ("rowwise_split_input", "rowwise_rep", "embedding_rowwise"),
            lambda: RowwiseParallel(input_layouts=Replicate()),
        ),
    }
    plan = dict(getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {})
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        plan = {name: style for name, style in plan.items() if not name.endswith(("lm_head", "embed_tokens"))}
    plan = {name: style for name, style in plan.items() if style != "replicated_with_grad_allreduce"}
    return {name: styles[style]() for name, style in plan.items()} if styles.keys() >= {*plan.values()} else {}


def training_step(
    model: Any,
    *,
    tokens: int,
    batch: int = 1,
    global_batch: int | None = None,
    accumulate: int = 1,
    checkpointing: bool = True,
) -> Build:
    """Return a ``build`` function for :func:`simulate`: a transformers causal language model on a mesh of "dp" and "tp".

    A step consists of ``accumulate`` passes, forward and backward, and then the optimizer's step. ``step(8)`` runs 8 passes instead of
    ``accumulate``. In each pass, every data-parallel rank processes ``batch`` sequences of ``tokens`` tokens, or an equal share of
    ``global_batch`` sequences.

    ``fully_shard`` shards weights, gradients and AdamW's state over "dp", layer by layer. All of these are stored in f32;
    weights are gathered in bf16. As in torchtitan, every pass gathers the weights, and reduces and scatters the gradients: the step does
    not call ``set_requires_gradient_sync(False)``. "tp" follows the model's ``tp_plan``. With ``checkpointing`` each layer keeps only its
    input. Attention is ``scaled_dot_product_attention`` with ``is_causal`` and without a mask.

    ``model`` may be on the meta device, because only its class and config are used. Raises InputError if ``model`` is not a causal
    language model.
    """
    if not type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        raise InputError(
            f"{type(model).__name__} is not a causal language model; use a config whose architectures field names a causal "
            f"language model, such as {causal_lm_class(getattr(model, 'config', None)) or 'LlamaForCausalLM'}"
        )
    cls, config = type(model), copy.deepcopy(model.config)
    _without_mask(config)

    def build(mesh: Any, layers: int | None = None) -> tuple[nn.Module, Callable[..., None]]:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.distributed.tensor.parallel import parallelize_module

        made = cls(_shortened(config, layers)).train()
        if mesh["tp"].size() > 1:
            parallelize_module(made, mesh["tp"], plan_of(made))
        if checkpointing:
            enable = getattr(
                made, "activation_checkpointing_enable", made.gradient_checkpointing_enable
            )  # transformers 4's
            enable({"use_reentrant": False})
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        classes = {*(getattr(made, "_no_split_modules", None) or ())}  # the layers' class names
        for part in [*(each for each in made.modules() if type(each).__name__ in classes), made]:
            fully_shard(part, mesh=mesh["dp"], mp_policy=policy)
        optimizer = torch.optim.AdamW(made.parameters())
        sequences = batch if global_batch is None else global_batch // mesh["dp"].size()
        ids = torch.zeros(sequences, tokens, dtype=torch.long)

        def step(passes: int = accumulate) -> None:
            for _ in range(passes):
                made(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return made, step

    return build


def layers_of(model: Any) -> int | None:
    """Return the number of layers in the model's config; None if the config has no top-level ``num_hidden_layers``."""
    found = getattr(model.config, "num_hidden_layers", None)
    return found if isinstance(found, int) and found > 0 else None


def _shortened(config: Any, layers: int | None) -> Any:
    """Return a copy of a config with only the first ``layers`` layers. If ``layers`` is None, the copy has all layers."""
    made = copy.deepcopy(config)
    if layers is not None:
        for name, value in vars(config).items():
            if isinstance(value, list) and len(value) == config.num_hidden_layers:
                setattr(made, name, value[:layers])
        made.num_hidden_layers = layers
    return made


def _without_mask(config: Any) -> None:
    """Register SDPA under another name, because transformers makes no mask for an unknown attention.

    If SDPA were registered as "sdpa", transformers would make a mask. A mask is not needed, since each row is a single sequence, but
    transformers cannot see this from fake tensors.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(CAUSAL, sdpa_attention_forward)
    config._attn_implementation = CAUSAL

"""The data that trainers' formulas read from a model. The data are the sizes in the model's config, the model's parameters by term, and its
true count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from ..api import count
from ..errors import InputError
from ..model.inputs import checked_model
from ..model.inventory import Inventory
from ..model.modules import parameters_of
from ..records import PARTS, Module, specs_in
from ..report.per_token import EXPERTS_PATH
from ..report.report import Report
from ..run.environment import environment_of
from ..symbolic.costs import PHASES
from ..symbolic.forms import ClosedForm
from ..symbolic.polynomials import value

PLACES = (
    ("vision", r"visual|vision|image"),
    ("output layer", r"(^|\.)(lm_head|embed_out|output_projection)$"),
    ("shared experts", r"shared_expert"),
    ("router", r"(^|\.)router(\.|$)|(mlp|moe|ffn|feed_forward)\.gate$"),
    ("experts", EXPERTS_PATH.pattern),
    ("linear attention", r"linear_attn|mixer"),
    ("attention projections", r"attn|attention|\.[qkv]_proj|\.attn"),
    ("mlp", r"mlp|ffn|feed_forward|\.fc|\.intermediate\.|\d\.output\.dense"),
)
"""For each term of a formula, a pattern for the paths of the term's modules. The first pattern that matches decides."""


class Training(NamedTuple):
    """A count of forward and backward that stands for ``times`` equal runs.

    ``products`` has the path, op and MACs of each matrix product. ``flops`` are the FLOPs of all operations.
    """

    times: int
    products: list[tuple[str, str, int]]
    flops: int


class Source:
    """A report, a model or a transformers config, with the data that trainers' formulas read from it.

    ``images`` has the number of patches of each image in the batch. ``form`` is a closed form. If a length is not in the report, the closed
    form is evaluated for this length instead of counting it. Raises InputError for a source of any other type.
    """

    def __init__(self, given: Any, images: Iterable[int] = (), form: ClosedForm | None = None) -> None:
        self._given = given
        self._form = form
        self.images = tuple(images)
        self.config: Any = None
        """The config of the model; None for a model without a config."""
        if isinstance(given, Report):
            model = None if given._model is None else given._model()
            self.config = getattr(model, "config", None)
        elif isinstance(given, nn.Module):
            self.config = getattr(checked_model(given), "config", None)
        elif isinstance(given, Mapping):
            self.config = _config_of(given)
        elif hasattr(given, "model_type"):
            self.config = given
        else:
            wrong = f"expected a report, a model or a transformers config, got {type(given).__name__} ({given!r:.60})"
            raise InputError(f"{wrong}; pass a config.json as a dict: json.load(file)")

    @property
    def provenance(self) -> str:
        """Where the numbers come from. The source is the provenance of the report or, if the numbers are computed now, a description of
        this environment."""
        if isinstance(self._given, Report):
            return self._given.provenance
        return environment_of(torch.device("meta"), "", False).provenance

    def needed_config(self, what: str) -> Any:
        """Return the config. Raises InputError for a model without a config."""
        if self.config is None:
            raise InputError(
                f"the {what} formula needs the model's config: pass the transformers config, or the config as a dict"
            )
        return self.config

    @property
    def text(self) -> Any:
        """The config of the language model. It is nested in the whole config if the model also takes images."""
        return getattr(self.config, "text_config", None) or self.config

    @cached_property
    def model(self) -> nn.Module | None:
        """The model. If the source is a config, the model is built on the meta device. None for a report whose model no longer exists."""
        if isinstance(self._given, nn.Module):
            return checked_model(self._given)
        if isinstance(self._given, Report):
            return None if self._given._model is None else self._given._model()
        try:
            from transformers import AutoConfig, AutoModelForCausalLM
        except ImportError as error:
            raise InputError("building a model from its config needs transformers: pip install transformers") from error
        given = self.text
        try:
            config = AutoConfig.for_model(**vars(given)) if isinstance(given, SimpleNamespace) else given
            with torch.device("meta"):
                made: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        except Exception as error:  # architectures raise different errors for missing config fields
            wrong = f"transformers cannot build a language model from this config, model_type {given.model_type!r}"
            if str(error).startswith("Unrecognized "):  # the rest of the message is a list of all known types
                instead = "give the model, or the report of fxflops.count(model, args, backward=True)"
                raise InputError(f"{wrong}, because it does not know this type: {instead}") from None
            raise InputError(f"{wrong}: {str(error).splitlines()[0]:.200}") from error
        return made

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        if isinstance(self._given, Report):
            return self._given._run.modules
        assert self.model is not None
        return Inventory(self.model).contents[0]

    @cached_property
    def is_tied(self) -> bool:
        """Whether the output layer shares its weight with the input table (the token embedding)."""
        outputs = [module for module in self.modules if module_term(module) == "output layer"]
        return bool(outputs) and not any(module.params for module in outputs)

    @cached_property
    def parameters(self) -> Mapping[str, int]:
        """The number of parameters by term. If the input and the output layer share one table, the table is listed under the output layer."""
        found: Counter[str] = Counter()
        for module in self.modules:
            found[module_term(module)] += module.params or 0
        tables = [m.params or 0 for m in self.modules if module_term(m) == "input table"]
        if self.is_tied:  # the first table is the token embedding
            found["output layer"] += tables[0]
            found["input table"] -= tables[0]
        return found

    @property
    def active_parameters(self) -> Mapping[str, Fraction]:
        """The number of parameters that a token uses, by term. The term "experts" includes only the experts that the token is sent to."""
        found = {name: Fraction(n) for name, n in self.parameters.items()}
        if found.get("experts"):
            self.needed_config("mixture-of-experts")
            found["experts"] *= Fraction(read(self.text, *TOP_K), read(self.text, *EXPERTS))
        return found

    def width_of_scores(self, trainer: str) -> int:
        """For each layer with attention, compute heads x (query size per head + value size per head); return the sum over these layers."""
        config = self.needed_config(trainer) and self.text
        layers = len([kind for kind in layer_kinds(config) if kind != "linear_attention"])
        self.check(trainer, {"attention projections": projections(config) * layers})
        return layers * read(config, *HEADS) * sum(head_sizes(config))

    def check(self, trainer: str, sizes: Mapping[str, int]) -> None:
        """Raise InputError if the model has another number of parameters than its config says. Biases and norms may be missing."""
        for term, elements in {**sizes, "other": 0}.items():
            there = self.parameters.get(term, 0)
            most = max(there, elements) if elements else sum(self.parameters.values())
            if abs(there - elements) > BIASES * most:
                raise InputError(
                    f"{trainer}'s formula does not fit the architecture {self.text.model_type}: by the config, {term!r} has {elements:,} "
                    f"parameters, but the model has {there:,}; use the trainer '6nd' or 'fxflops' (the true count) instead"
                )

    def training_of(self, lengths: tuple[int, ...]) -> Iterator[Training]:
        """Yield counts of forward and backward for the batch's sequences.

        A report with these lengths gives the count of the whole batch. Otherwise each length is counted or evaluated by the closed form.
        """
        if isinstance(self._given, Report):
            given = self._given.recount("fxflops")
            if given.total_backward_flops is None:
                raise InputError(
                    "trainers count forward and backward, but this report has no backward pass",
                    advice="counted backward",
                )
            if sorted(self.lengths) == sorted(lengths):
                yield _training_in(given, 1)
                return
        for length, times in Counter(lengths).items():
            if self._form is not None:
                yield _training_by(self._form, length, times)
            elif self.model is None:
                wrong = "other lengths cannot be counted, because the report's model no longer exists"
                raise InputError(f"{wrong}: give the model or its config")
            else:
                yield _training_in(self._counted(self.model, length), times)

    def _counted(self, model: nn.Module, length: int) -> Report:
        place = next((p.device for p in parameters_of(model) if not p.is_meta), None)
        tokens = torch.zeros(1, length, dtype=torch.long, device=place)
        return count(model, kwargs={"input_ids": tokens, "use_cache": False}, mode="train", backward=True)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the sequences in the report's batch. Raises InputError if the report's inputs do not show the lengths."""
        if isinstance(self._given, Report):
            for scope in self._given.scopes:
                for spec in () if scope.path else specs_in((scope.args, dict(scope.kwargs))):
                    if len(spec) == 2 and spec.is_integral:
                        return (spec[1],) * spec[0]
        raise InputError("the lengths of the batch's sequences are unknown: give lengths=[512, 1024]")


def _training_in(report: Report, times: int) -> Training:
    phases = {phase for name in ("forward", "backward") for phase in PARTS[name]}
    products = [(c.call.path, c.call.op, c.macs) for c in report.counted if c.macs and c.call.phase in phases]
    return Training(times, products, report.total_training_flops or 0)


def _training_by(form: ClosedForm, length: int, times: int) -> Training:
    """Evaluate a closed form for one sequence. The last size of the closed form is the sequence length. If there is a size before it, that
    size is the batch."""
    point = [1, length][-len(form.sizes) :]
    cell = form.cell_at(point, "macs")
    wanted = PHASES["training"]
    products = [(path, op, int(value(p, point))) for (phase, path, op), p in cell.costs.items() if phase in wanted]
    sizes: dict[str, Any] = dict(zip(form.sizes, point, strict=True))
    return Training(times, products, form.evaluate("flops", phase="training", **sizes))


def _config_of(given: Mapping[str, Any]) -> Any:
    """Make a config from the dict in a config.json. If transformers knows the architecture, missing fields have their default values."""
    try:
        from transformers import AutoConfig

        return AutoConfig.for_model(**given)
    # The installed transformers does not know the architecture, so missing fields have no defaults.
    except (
        ImportError,
        TypeError,
        ValueError,
    ):
        nested = {k: _config_of(v) if isinstance(v, Mapping) and "config" in k else v for k, v in given.items()}
        return SimpleNamespace(**nested)


def module_term(module: Module) -> str:
    """Return the term to which a module belongs, according to the module's path and class."""
    path = module.path.lower()
    for term, pattern in PLACES[:2]:
        if re.search(pattern, path):
            return term
    if "Embedding" in module.cls and "Rotary" not in module.cls:
        return "input table"
    if re.search(r"[nN]orm", module.cls):
        return "norms"
    return next((term for term, pattern in PLACES[2:] if re.search(pattern, path)), "other")


# Architectures have different names for the same field of a config.

HIDDEN = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
HEADS = ("num_attention_heads", "n_head")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
BIASES = 0.05
"""The largest share of a layer's parameters that may be biases and norms. Formulas do not count them."""
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k")
SHARED = ("n_shared_experts", "num_shared_experts")


def read(config: Any, *names: str, default: int | None = None) -> int:
    """Return the value of the first of these fields that the config has. If the config has none of these fields, return the default. Raises
    InputError if there is no default."""
    for name in names:
        found = getattr(config, name, None)
        if isinstance(found, int):
            return found
        if found is not None:
            raise InputError(f"the config's {name} is {found!r:.60}, but the formulas need one number for all layers")
    if default is None:
        raise InputError(
            f"the config of {getattr(config, 'model_type', type(config).__name__)} has no {' or '.join(names)}"
        )
    return default


def head_sizes(config: Any) -> tuple[int, int]:
    """Return the sizes of a query and of a value per head. The two sizes differ in latent attention (MLA)."""
    if getattr(config, "kv_lora_rank", None):
        return config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    size = read(config, "head_dim", default=read(config, *HIDDEN) // read(config, *HEADS))
    return size, size


def layer_kinds(config: Any) -> list[str]:
    """Return the kind of attention in each layer, as transformers names it: "full_attention", "sliding_attention" ..."""
    layers = read(config, *LAYERS)
    return [*(getattr(config, "layer_types", None) or ["full_attention"] * layers)]


def windows(config: Any) -> list[int | None]:
    """Return the window of each layer with attention, in tokens; None for a layer that attends to all tokens.

    If the config does not list the kinds of its layers, the config's window applies to all layers, as in Mistral.
    """
    kinds, window = layer_kinds(config), getattr(config, "sliding_window", None)
    everywhere = not getattr(config, "layer_types", None) and getattr(config, "use_sliding_window", True)
    return [
        window if everywhere or kind == "sliding_attention" else None for kind in kinds if kind != "linear_attention"
    ]


GATED_QUERIES = {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}
"""Architectures whose attention layers have an output gate. The gate is as wide as the queries."""


def projections(config: Any) -> int:
    """Return the number of elements in the matrices of one layer with attention or latent attention (MLA)."""
    hidden, heads, (query, value) = read(config, *HIDDEN), read(config, *HEADS), head_sizes(config)
    if not getattr(config, "kv_lora_rank", None):
        queries, keys = query * heads, query * read(config, "num_key_value_heads", default=heads)
        return hidden * ((3 if config.model_type in GATED_QUERIES else 2) * queries + 2 * keys)
    rank, cached = getattr(config, "q_lora_rank", None), config.kv_lora_rank
    found = rank * (hidden + heads * query) if rank else hidden * heads * query
    found += hidden * (cached + config.qk_rope_head_dim) + cached * heads * (config.qk_nope_head_dim + value)
    return int(found + heads * value * hidden)


class FeedForward(NamedTuple):
    """The sizes of the feed-forward layers. ``expert_width`` is the width of one expert, and ``shared_width`` is the total width
    of all shared experts."""

    matrices: int
    width: int
    dense_layers: int
    expert_width: int = 0
    shared_width: int = 0
    experts: int = 0
    top_k: int = 0
    sparse_layers: int = 0

    def elements(self, hidden: int) -> dict[str, int]:
        """Return the number of elements in the matrices of all feed-forward layers, by term."""
        sparse = self.matrices * hidden * self.sparse_layers
        return {
            "mlp": self.matrices * hidden * self.width * self.dense_layers,
            "experts": sparse * self.expert_width * self.experts,
            "shared experts": sparse * self.shared_width,
        }


PLAIN = {
    "gpt2", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "phi", "codegen", "mpt",
    "starcoder2", "nemotron", "apertus", "arcee", "biogpt", "fuyu", "jais2", "nanochat", "openai-gpt", "persimmon", "xglm",
}  # fmt: skip
"""Architectures whose feed-forward layers have two matrices. The layers of other architectures have a gate, and so three matrices."""


def feed_forward(config: Any) -> FeedForward:
    """Read the sizes of the feed-forward layers from a config."""
    layers, matrices = read(config, *LAYERS), 2 if config.model_type in PLAIN else 3
    width = read(config, "intermediate_size", "n_inner", "ffn_dim", default=4 * read(config, *HIDDEN))
    if not any(getattr(config, name, None) for name in EXPERTS):
        return FeedForward(matrices, width, layers)
    expert_width = read(config, "moe_intermediate_size", default=width)
    shared = getattr(config, "shared_expert_intermediate_size", None) or expert_width * read(config, *SHARED, default=0)
    every, plain = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None) or []
    first = getattr(config, "first_k_dense_replace", 0)
    sparse = [i for i in range(layers) if i >= first and i not in plain and (i + 1) % every == 0]
    return FeedForward(
        matrices,
        width,
        layers - len(sparse),
        expert_width,
        shared,
        read(config, *EXPERTS),
        read(config, *TOP_K),
        len(sparse),
    )

"""Some fifty small models of all kinds, on which every tool's own number is compared with ours under its convention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import timm
import torch
import torchvision
import transformers
from timm.layers import GatedMlp
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock, SpatialGatingBlock
from torch import nn

from fxflops import Report, count

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A model with its positional and keyword inputs."""


class Runs(nn.Module):
    """A function of modules as a model."""

    def __init__(self, run: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Any) -> Any:
        return self.run(x, **dict(self.named_children()))


def image(size: int = 64, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def of_timm(name: str, size: int = 64, **settings: Any) -> Callable[[], Case]:
    return lambda: (shallow(timm.create_model(name, num_classes=10, **settings)), (image(size),), {})


def shallow(model: nn.Module) -> nn.Module:
    """Keep two of several equal modules in a row in an nn.Sequential, such as the blocks of a stage.

    A module that equals the one before it gets the same shape of input and, without a stride, returns the same shape of output. Tools
    count both the same.
    """
    for module in model.modules():
        if type(module) is nn.Sequential:
            texts = {name: repr(child) for name, child in module.named_children()}
            for first, second, name in zip(texts, [*texts][1:], [*texts][2:], strict=False):
                if texts[first] == texts[second] == texts[name] and "stride=(2" not in texts[name]:
                    delattr(module, name)
    return model


def of_torchvision(name: str, size: int = 64, **settings: Any) -> Callable[[], Case]:
    return lambda: (torchvision.models.get_model(name, weights=None, **settings), (image(size),), {})


def zeros_of_torchvision(name: str) -> Callable[[], Case]:
    """The same with weights of zero: drawing 100 million weights at random takes longer than running the model."""

    def build() -> Case:
        with torch.device("meta"):
            model = torchvision.models.get_model(name, weights=None)
        for tensor in model.to_empty(device="cpu").state_dict().values():
            tensor.zero_()
        return model, (image(),), {}

    return build


def of_transformers(cls: str, config: str, inputs: Callable[[], dict[str, Any]], **settings: Any) -> Callable[[], Case]:
    def build() -> Case:
        found = getattr(transformers, config)(**settings)
        return getattr(transformers, cls)(found), (), inputs()

    return build


def mixer(**settings: Any) -> Callable[[], Case]:
    return lambda: (MlpMixer(10, 64, num_blocks=2, embed_dim=64, **settings), (image(),), {})


def ids(length: int = 16, batch: int = 1) -> dict[str, Any]:
    return {"input_ids": torch.randint(5, 90, (batch, length))}


def both_ids() -> dict[str, Any]:
    return {**ids(12), "decoder_input_ids": torch.randint(5, 90, (1, 7))}


SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
EAGER = {"attn_implementation": "eager"}


class Recurrent(nn.Module):
    def __init__(self, cls: type[nn.Module], **settings: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.rnn = cls(16, 24, batch_first=True, **settings)
        self.head = nn.Linear(24 * (2 if settings.get("bidirectional") else 1), 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(tokens))[0][:, -1])


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(8, 12), nn.GRUCell(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = g = x.new_zeros(x.shape[1], 12)
        for step in x:
            h, c = self.first(step, (h, c))
            g = self.second(h, g)
        return g


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(2))
        self.middle = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU())
        self.up = nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.ConvTranspose2d(16, 8, 3, padding=1))
        self.head = nn.Sequential(nn.ConvTranspose2d(11, 4, 4, stride=2, padding=1), nn.Sigmoid(), nn.AvgPool2d(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.up(self.middle(self.down(x))), x], dim=1))


class Products(nn.Module):
    """Contractions as functions, methods and operators."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(12, 12))
        self.norm, self.act = nn.LayerNorm(12), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.matmul(x, self.w) + x
        y = torch.bmm(y, y.transpose(1, 2)).softmax(-1) @ y
        y = torch.einsum("bij,jk->bik", y, self.w)
        y = self.act(self.norm(y)).mul(2.0)
        return torch.add(y, nn.functional.linear(y, self.w)).mean()


POOL: dict[str, Callable[[], Case]] = {
    # Convolutional
    "resnet18": of_timm("resnet18", layers=(1, 1, 1, 1)),
    "resnet50": of_timm("resnet50", layers=(2, 1, 1, 1)),
    "seresnet": of_timm("legacy_seresnet18", layers=(1, 1, 1, 1)),
    "mobilenetv2": of_timm("mobilenetv2_050"),
    "mobilenetv3": of_timm("mobilenetv3_small_050"),
    "efficientnet_b0": of_timm("efficientnet_b0"),
    "densenet121": of_timm("densenet121", block_config=(2, 2, 2, 2)),
    "vgg11_bn": zeros_of_torchvision("vgg11_bn"),
    "alexnet": zeros_of_torchvision("alexnet"),
    "squeezenet": of_torchvision("squeezenet1_1"),
    "shufflenet": of_torchvision("shufflenet_v2_x0_5"),
    "mnasnet": of_torchvision("mnasnet0_5"),
    "googlenet": of_torchvision("googlenet", aux_logits=False, init_weights=False),
    "regnetx": of_timm("regnetx_002"),
    "convnext": of_timm("convnext_atto", depths=(1, 1, 2, 1)),
    "ghostnet": of_timm("ghostnet_050"),
    "repvgg": of_timm("repvgg_a0"),
    "dla": of_timm("dla46_c"),
    "hrnet": of_timm("hrnet_w18_small"),
    "rexnet": of_timm("rexnet_100", depth_mult=0.5),
    "nfnet": of_timm("nf_regnet_b0"),
    "video r3d": lambda: (torchvision.models.video.r3d_18(weights=None), (torch.randn(1, 3, 4, 32, 32),), {}),
    # Vision transformers, mixers
    "vit": of_timm("vit_tiny_patch16_224", img_size=64, depth=2),
    "vit unfused": lambda: unfused(*of_timm("vit_tiny_patch16_224", img_size=64, depth=2)()),
    "deit distilled": of_timm("deit_tiny_distilled_patch16_224", img_size=64, depth=2),
    "swin": of_timm("swin_tiny_patch4_window7_224", 56, img_size=56, window_size=7, depths=(2, 2, 2, 2)),
    "swin torchvision": of_torchvision("swin_t", 64),
    "vit torchvision": lambda: (torchvision.models.VisionTransformer(64, 32, 2, 4, 64, 128), (image(),), {}),
    "mlp-mixer": mixer(patch_size=32),
    "gmlp": mixer(mlp_ratio=6, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp),
    "resmlp": mixer(mlp_ratio=4, block_layer=ResBlock, norm_layer=Affine),
    "poolformer": of_timm("poolformer_s12"),
    "mobilevit": of_timm("mobilevit_xxs", 64),
    "pvt": of_timm("pvt_v2_b0", depths=(1, 1, 1, 1)),
    "cait": of_timm("cait_xxs24_224", img_size=64, depth=2, depth_token_only=1),
    # Recurrent
    "lstm": lambda: (Recurrent(nn.LSTM), (torch.randint(0, 50, (1, 9)),), {}),
    "bidirectional lstm": lambda: (Recurrent(nn.LSTM, num_layers=2, bidirectional=True), (ids(9)["input_ids"] % 50,), {}),
    "gru": lambda: (Recurrent(nn.GRU, num_layers=2), (torch.randint(0, 50, (1, 9)),), {}),
    "rnn": lambda: (Recurrent(nn.RNN), (torch.randint(0, 50, (1, 9)),), {}),
    "cells": lambda: (Cells(), (torch.randn(5, 1, 8),), {}),
    # Language, sound, multimodal
    "bert": of_transformers("BertModel", "BertConfig", ids, **SMALL, **EAGER),
    "bert sdpa": of_transformers("BertModel", "BertConfig", ids, **SMALL, attn_implementation="sdpa"),
    "distilbert": of_transformers(
        "DistilBertModel", "DistilBertConfig", ids, vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64, **EAGER
    ),
    "albert": of_transformers("AlbertModel", "AlbertConfig", ids, **SMALL, embedding_size=16, **EAGER),
    "gpt2": of_transformers(
        "GPT2LMHeadModel", "GPT2Config", ids, vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=32,
        bos_token_id=0, eos_token_id=0, **EAGER,
    ),
    "llama": of_transformers("LlamaForCausalLM", "LlamaConfig", ids, **SMALL, num_key_value_heads=2, **EAGER),
    "opt": of_transformers(
        "OPTModel", "OPTConfig", ids, vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=32, **EAGER,
    ),
    "t5": of_transformers(
        "T5ForConditionalGeneration", "T5Config", both_ids, vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2,
        num_heads=4, decoder_start_token_id=0,
    ),
    "bart": of_transformers(
        "BartModel", "BartConfig", both_ids, vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_position_embeddings=32, **EAGER,
    ),
    "vit transformers": of_transformers(
        "ViTModel", "ViTConfig", lambda: {"pixel_values": image(32)}, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8, **EAGER,
    ),
    "wav2vec2": of_transformers(
        "Wav2Vec2Model", "Wav2Vec2Config", lambda: {"input_values": torch.randn(1, 1600)}, vocab_size=32, hidden_size=32,
        num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16), conv_stride=(5, 2),
        conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        **EAGER,
    ),
    "nn.Transformer": lambda: (
        nn.Transformer(16, 2, 1, 1, 32, batch_first=True), (torch.randn(1, 6, 16), torch.randn(1, 4, 16)), {},
    ),
    # Segmentation, generation, detection
    "unet": lambda: (UNet(), (image(32),), {}),
    "products": lambda: (Products(), (torch.randn(1, 6, 12),), {}),
    "lraspp": of_torchvision("lraspp_mobilenet_v3_large", weights_backbone=None),
    "fcn": lambda: (
        shallow(torchvision.models.get_model("fcn_resnet50", weights=None, weights_backbone=None)), (image(),), {}
    ),
    "ssdlite": lambda: (
        torchvision.models.detection.ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=3
        ),
        ([torch.rand(3, 320, 320)],), {},
    ),
    "faster r-cnn": lambda: (
        torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None),
        ([torch.rand(3, 128, 128)],), {},
    ),
}  # fmt: skip


def unfused(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Case:
    """Write attention out, as torch_flops needs it."""
    for block in model.blocks:
        block.attn.fused_attn = False
    return model, args, kwargs


def built(name: str) -> Case:
    """A fresh copy of a pool model in eval mode, for tools that leave things on models. It is the same each time."""
    return copied(*lent(name))


@cache
def counted(name: str) -> Report:
    """The report of a pool model under our own convention, to be recounted under others."""
    return count(*lent(name))


def copied(model: nn.Module, *inputs: Any) -> Any:
    """A copy of a model and its inputs, with new parameters that share the model's memory.

    Copying hundreds of megabytes of numbers that nobody changes would take longer than counting.
    """
    parameters = [each for each in model.parameters() if type(each) is nn.Parameter]
    return copy.deepcopy(
        (model, *inputs), {id(each): nn.Parameter(each.detach(), each.requires_grad) for each in parameters}
    )


@cache
def lent(name: str) -> Case:
    """The shared pool model. Use it with fxflops, which leaves nothing on it; copy it before a tool runs."""
    torch.manual_seed(0)
    model, args, kwargs = POOL[name]()
    return model.eval(), args, kwargs

"""Small models of many kinds for ``benchmarks/memory_truth.py``, from timm, torchvision, transformers and torch's own layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

TIMM = """
resnet10t resnet18 resnext26ts regnetx_002 regnety_002 efficientnet_b0 efficientnet_lite0 mobilenetv2_050 mobilenetv3_small_100
mixnet_s ghostnet_100 densenet121 convnext_atto convnextv2_atto dla46_c repvgg_a0 tinynet_e lcnet_050 nf_regnet_b0 fastvit_t8
vit_tiny_patch16_224 eva02_tiny_patch14_224 mobilevit_xxs edgenext_xx_small xcit_nano_12_p16_224 pvt_v2_b0 gmlp_ti16_224
levit_128s cait_xxs24_224 maxvit_rmlp_pico_rw_256
""".split()
TORCHVISION = (
    "shufflenet_v2_x0_5 squeezenet1_1 mobilenet_v2 mnasnet0_5 regnet_y_400mf lraspp_mobilenet_v3_large".split()
)
TRANSFORMERS = "bert distilbert albert roberta electra gpt2 opt llama mistral gemma deepseek_v3 t5".split()
FIXED = ("vit", "eva", "xcit", "gmlp", "levit", "cait", "maxvit")
WIDTH, HEADS, LENGTH = 64, 4, 256


class Attention(nn.Module):
    """Multi-head attention whose values have a separate width, as in multi-head latent attention."""

    def __init__(self, width: int, values: int, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, HEADS * width), nn.Linear(WIDTH, HEADS * width)
        self.value, self.out = nn.Linear(WIDTH, HEADS * values), nn.Linear(HEADS * values, WIDTH)
        self.dropout, self.causal = dropout, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        return self.out(out.transpose(1, 2).flatten(2))


class SelfAttention(nn.MultiheadAttention):
    """torch's multi-head attention, with one input as query, key and value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


def encoder(**settings: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, **settings)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


LAYERS: dict[str, Any] = {
    "nn.LSTM": lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
    "nn.LSTM twice both ways": lambda: nn.LSTM(WIDTH, WIDTH, num_layers=2, bidirectional=True, dropout=0.1),
    "nn.LSTM projected": lambda: nn.LSTM(WIDTH, WIDTH, proj_size=WIDTH // 2),
    "nn.GRU": lambda: nn.GRU(WIDTH, WIDTH, num_layers=2),
    "nn.RNN": lambda: nn.RNN(WIDTH, WIDTH),
    "nn.MultiheadAttention": lambda: SelfAttention(WIDTH, HEADS, batch_first=True),
    "nn.TransformerEncoder": lambda: encoder(batch_first=True),
    "nn.TransformerEncoder sequence first": encoder,
    "attention": lambda: Attention(16, 16),
    "causal attention": lambda: Attention(16, 16, causal=True),
    "attention with dropout": lambda: Attention(16, 16, dropout=0.1),
    "latent attention": lambda: Attention(24, 16),
}
NAMES = [*LAYERS, *TRANSFORMERS, *(f"torchvision:{name}" for name in TORCHVISION), *TIMM]
PROFILED = {
    "nn.LSTM", "nn.TransformerEncoder", "latent attention", "bert", "llama", "t5", "torchvision:mobilenet_v2", "resnet18",
    "vit_tiny_patch16_224", "convnext_atto",
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return the model, with the args and kwargs of its forward."""
    if name in LAYERS:
        sizes = (
            (LENGTH // 4, 8, WIDTH)
            if name.endswith("first") or name.startswith(("nn.GRU", "nn.RNN"))
            else (8, LENGTH, WIDTH)
        )
        return LAYERS[name](), (torch.randn(sizes),), {}
    if name in TRANSFORMERS:
        from benchmarks.models import transformers_zoo  # needs transformers 5; the layers above do not

        model, _, kwargs = transformers_zoo.build(name)
        tokens = {key: torch.randint(5, 50, (4, 64)) for key in kwargs if key.endswith("input_ids")}
        return model, (), {**tokens, "use_cache": False} if hasattr(model.config, "use_cache") else tokens
    if name.startswith("torchvision:"):
        import torchvision

        settings = {"weights_backbone": None} if "raspp" in name else {}
        found = torchvision.models.get_model(name.partition(":")[2], weights=None, **settings)
        return found, (torch.randn(2, 3, 96, 96),), {}
    import timm

    model = timm.create_model(name)
    fixed = name.startswith(FIXED)
    return model, (torch.randn(2, *(model.default_cfg["input_size"] if fixed else (3, 96, 96))),), {}

"""FLOPs, time and memory of ViT-B/16 and ResNet-50, or of any timm model, with random weights.

python example1.py [--model vitb16|resnet50|<any timm name>] [--device cpu|cuda|...] [--table]
"""

from __future__ import annotations

import argparse
import sys

import torch

from fxflops import FxflopsError, TorchFLOPsByFX

try:
    import timm
except ImportError:
    sys.exit("this example needs timm: python -m pip install timm")

MODELS = {"vitb16": ("vit_base16", "vit_base_patch16_224"), "resnet50": ("resnet50", "resnet50")}


def show(title: str, name: str, device: str, with_table: bool) -> None:
    """Print the totals of one timm model run on one image."""
    model = timm.create_model(name).to(device)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # so that each step of attention gets its own row
    settings = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    x = torch.randn(1, *settings.get("input_size", (3, 224, 224)), device=device)

    print("=" * 10, title, "=" * 10)
    counter = TorchFLOPsByFX(model)
    counter.propagate(x)
    if with_table:
        counter.print_result_table()
    counter.print_total_flops()
    counter.print_total_time()
    counter.print_max_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="vitb16, resnet50 or any timm name; default: these two")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, meta ...")
    parser.add_argument("--table", action="store_true", help="print every operation")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here")
    for model in [options.model] if options.model else MODELS:
        title, name = MODELS.get(model, (model, model))
        if not timm.is_model(name):
            parser.error(f"timm has no model {name!r}; timm.list_models() lists those it has")
        try:
            show(title, name, options.device, options.table)
        except FxflopsError as error:
            sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

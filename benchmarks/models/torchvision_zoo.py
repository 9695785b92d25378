"""Every torchvision model, at its real size with random weights, and inputs for its forward.

    python -m benchmarks.models.torchvision_zoo [--only resnet18,raft_small] [--out FILE.jsonl]

This command runs each model once on the CPU, eagerly, and prints one JSON line per model.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models  # type: ignore[import-untyped]

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

CANNOT: dict[str, str] = {}

# With random weights, class scores are about 1 / 91, below the default threshold, so the mask and keypoint heads would get no boxes.
EVERY_BOX = {"box_score_thresh": 0.0, "box_detections_per_img": 20}

# Keyword arguments of the builder, by a prefix of the model's name. All quantized models run in int8 on the CPU.
SETTINGS: dict[str, dict[str, Any]] = {
    "fasterrcnn": {"min_size": 320, "max_size": 320, **EVERY_BOX},
    "fcos": {"min_size": 320, "max_size": 320},
    "googlenet": {"init_weights": True},
    "inception_v3": {"init_weights": True},
    "keypointrcnn": {"min_size": 320, "max_size": 320, **EVERY_BOX},
    "maskrcnn": {"min_size": 320, "max_size": 320, **EVERY_BOX},
    "quantized_": {"quantize": True},
    "retinanet": {"min_size": 320, "max_size": 320},
}

# [batch, channels, frames, height, width]. The two models in FIXED_CLIPS need a fixed size, because they pool over or embed a fixed grid.
CLIP = (1, 3, 16, 112, 112)
FIXED_CLIPS = {"mvit": (1, 3, 16, 224, 224), "s3d": (1, 3, 16, 224, 224)}


def names() -> list[str]:
    return sorted(models.list_models())


def build(name: str) -> Built:
    """Return the model in eval mode, and the args and kwargs of its forward."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = models.get_model(name, weights=None, **backbone(name), **by_prefix(SETTINGS, name, {})).eval()
    return model, inputs(name), {}


def backbone(name: str) -> dict[str, None]:
    """Return arguments that keep detection and segmentation models from downloading weights for their backbone."""
    return {"weights_backbone": None} if family(name) in {"detection", "segmentation"} else {}


def inputs(name: str) -> tuple[Any, ...]:
    match family(name):
        case "detection":
            return ([torch.rand(3, 320, 320)],)
        case "segmentation":
            return (torch.rand(1, 3, 224, 224),)
        case "video":
            return (torch.rand(by_prefix(FIXED_CLIPS, name, CLIP)),)
        case "optical_flow":
            return frame(128), frame(128)
        case _:
            return (frame(trained_size(name)),)


def frame(size: int) -> Tensor:
    return torch.rand(1, 3, size, size)


def family(name: str) -> str:
    """Return the name of the torchvision.models subpackage that registers the model: detection, video, ..., or "models" itself."""
    families = ("detection", "segmentation", "video", "optical_flow")
    return next((f for f in families if name in models.list_models(module=getattr(models, f))), "models")


def trained_size(name: str) -> int:
    """Return the image size that the model's plain ImageNet weights expect; 224 if it has only other weights."""
    for weights in models.get_model_weights(name):
        if weights.name in {"IMAGENET1K_V1", "IMAGENET1K_FBGEMM_V1", "IMAGENET1K_QNNPACK_V1"}:
            return int(weights.transforms().crop_size[0])
    return 224


def by_prefix(table: dict[str, Any], name: str, default: Any) -> Any:
    return next((value for prefix, value in table.items() if name.startswith(prefix)), default)


def run_each(names: list[str], build: Callable[[str], Built], cannot: dict[str, str]) -> None:
    """Run the command line of a zoo: build each model, run its forward once, and print a JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--out", type=Path, help="write the lines to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = []
    for name in options.only.split(",") if options.only else names:
        lines.append(json.dumps({"model": name, **run_one(name, build, cannot)}))
        print(lines[-1], flush=True)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")


def run_one(name: str, build: Callable[[str], Built], cannot: dict[str, str]) -> dict[str, Any]:
    if name in cannot:
        return {"runs": False, "why": cannot[name]}
    try:
        model, args, kwargs = build(name)
        start = time.perf_counter()
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        return {"runs": False, "why": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {"runs": True, "seconds": round(time.perf_counter() - start, 3)}


if __name__ == "__main__":
    run_each(names(), build, CANNOT)

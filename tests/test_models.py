"""Whole timm models: published totals, complete reports, equal counts from every entry point, and FlopCounterMode's MACs.

benchmarks/zoo.py sweeps the whole zoo.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fxflops
from tests.conventions.pool import shallow
from tests.fresh import Fresh

MODELS: dict[str, dict[str, Any]] = {
    "convnext_atto": {"depths": (1, 1, 3, 1)},
    "deit_tiny_patch16_224": {"depth": 3},
    "densenet121": {"block_config": (3, 3, 3, 3)},
    "efficientnet_b0": {},
    "gmlp_s16_224": {},
    "mixer_s32_224": {},
    "mobilenetv3_small_100": {},
    "nfnet_l0": {"depths": (1, 1, 3, 1)},
    "pvt_v2_b0": {"depths": (1, 1, 1, 1)},
    "regnety_002": {},
    "res2net50_48w_2s": {"layers": (1, 2, 1, 1)},
    "coat_tiny": {"serial_depths": (1, 1, 1, 1), "parallel_depth": 1},
}
"""Model names, with settings that leave fewer of their repeated blocks."""
PUBLISHED = {"resnet50": 8_227_340_288, "vit_base_patch16_224": 35_164_979_282}


def on_meta(name: str, **settings: Any) -> tuple[nn.Module, torch.Tensor]:
    with torch.device("meta"):
        model = timm.create_model(name, **settings).eval()
        if name not in PUBLISHED:
            shallow(model)
        x = torch.empty(1, *model.pretrained_cfg["input_size"])
    for module in model.modules():
        if name in PUBLISHED and hasattr(module, "fused_attn"):
            module.fused_attn = False
    return model, x


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_totals_that_torch_flops_publishes(name: str) -> None:
    model, x = on_meta(name)
    counter = fxflops.TorchFLOPsByFX(model)
    counter.propagate(x)
    assert counter.print_total_flops(show=False) == PUBLISHED[name]
    assert fxflops.count(model, x, convention="torch_flops").total_flops == PUBLISHED[name]


@pytest.mark.parametrize("name", MODELS)
def test_complete_and_the_same_from_every_side(name: str) -> None:
    model, x = on_meta(name, **MODELS[name])
    graph, plain = fxflops.analyze(model, x, strict=True), fxflops.count(model, x, strict=True)
    assert graph.total_flops == plain.total_flops
    rows = [{path: row.total for path, row in report.by_module().items()} for report in (graph, plain)]
    assert rows[0] == rows[1]
    assert sum(row.own.flops for row in graph.by_module().values()) == graph.total_flops
    assert sum(row.total.flops for row in graph.by_operator().values()) == graph.total_flops
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    assert 2 * graph.total_macs == counter.get_total_flops()


def test_real_tensors_count_as_meta_does(device: str) -> None:
    model = timm.create_model("mobilenetv3_small_100").to(device)
    x = torch.randn(2, 3, 64, 64, device=device)
    real = fxflops.analyze(model, x, repeats=1)
    meta = fxflops.count(model, x)
    seen = [[(c.op, list(c.inputs()), c.out, c.path) for c in report.calls] for report in (real, meta)]
    assert seen[0] == seen[1]
    assert device != "cpu" or real.max_memory == meta.max_memory  # other devices have workspaces


def test_the_example_prints_both(fresh: Fresh) -> None:
    example = Path(__file__).parents[1] / "example1.py"
    done = fresh.run(str(example), "--device", "meta", cwd=example.parent)
    assert done.returncode == 0, done.stderr
    assert "total_flops = 35,164,979,282\n" in done.stdout
    assert "total_flops = 8,227,340,288\n" in done.stdout

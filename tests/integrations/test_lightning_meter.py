"""The meter in a real run of Lightning's Trainer."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

import fxflops
from tests.integrations.small_gpt import DEVICE, collated, model, rows

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning and transformers warn about their own deprecations


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = model()
        self.losses: list[float] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(**batch).loss
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.net(**batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad])


def fit(module: Module, folder: Path, *callbacks: Any, validate: bool = False) -> Module:
    trainer = lightning.Trainer(
        max_epochs=2, accumulate_grad_batches=2, log_every_n_steps=2, callbacks=[*callbacks], accelerator="cpu",
        logger=lightning.loggers.CSVLogger(folder), enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=1, limit_val_batches=1 if validate else 0,
    )  # fmt: skip
    data = torch.utils.data.DataLoader(rows(), batch_size=1, collate_fn=collated)
    trainer.fit(module, data, torch.utils.data.DataLoader(rows((40,)), batch_size=1, collate_fn=collated))
    return module


def test_a_real_run(tmp_path: Path) -> None:
    from fxflops.integrations import LightningMeter

    meter = LightningMeter(device=DEVICE)
    metered = fit(Module(), tmp_path / "metered", meter, validate=True)
    plain, profiled = fit(Module(), tmp_path, validate=True), Module()
    with fxflops.profile(profiled) as p:
        fit(profiled, tmp_path)
    assert metered.losses == plain.losses
    log = next((tmp_path / "metered").rglob("metrics.csv"))
    with open(log) as file:
        figures = [row for row in csv.DictReader(file) if row["mfu"]]
    assert [int(row["step"]) for row in figures] == [1, 3, 5, 7]  # every second step of the optimizer
    ran = 2 * (p.report.total_macs + p.report.total_backward_macs)
    assert float(figures[-1]["flops_so_far"]) == pytest.approx(ran, rel=1e-6)  # Lightning logs f32
    assert meter.meter is not None
    assert meter.meter._total[1] == ran
    assert all(not module._forward_pre_hooks for module in metered.modules())

"""Measure the cost of the live meter in real training: its own CPU time per step, and steps with and without it, in pairs.

    OMP_NUM_THREADS=1 python -m benchmarks.meter

Writes ``benchmarks/results/meter.md``. Needs transformers, accelerate, peft and lightning.
"""

from __future__ import annotations

import functools
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch
import peft
import torch
import transformers
from torch import nn

from benchmarks.machine import processor
from fxflops.integrations import LightningMeter, Meter, MeterCallback
from fxflops.roofline.devices import Device

PAIRS, WARM_UP = 20, 1
STEPS = WARM_UP + 2 * PAIRS
RESULTS = Path(__file__).parent / "results" / "meter.md"
DEVICE = Device("any", {"f32": 1e12}, 1e11)
OWN = ("watch", "unwatch", "add_tokens", "_before", "_after")
"""The methods of a Meter that run during a step."""


class Spent:
    """Records the CPU seconds of each step, and of the meter's own code in it. Every second step runs without the meter."""

    def __init__(self) -> None:
        self.own: list[float] = []
        self.steps: list[float] = []
        self._depth = 0
        for name in OWN:
            setattr(Meter, name, self._timed(getattr(Meter, name)))

    @property
    def is_metered(self) -> bool:
        """Whether the next step runs with the meter."""
        return len(self.steps) < WARM_UP or len(self.steps) % 2 == 0

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        method = getattr(method, "__wrapped__", method)

        @functools.wraps(method)
        def timed(meter: Meter, *args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            start = time.thread_time()
            try:
                return method(meter, *args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.own[-1] += time.thread_time() - start

        return timed

    def begin(self) -> None:
        self.own.append(0.0)
        self._start = time.process_time()

    def end(self) -> None:
        self.steps.append(time.process_time() - self._start)

    def row(self, where: str, batch: str, meter: Meter | None) -> str:
        steps, own = self.steps[WARM_UP:], self.own[WARM_UP:]
        odd = WARM_UP % 2  # the first step after the warm-up has an odd number, so it runs without the meter
        without, with_it, of_meter = steps[1 - odd :: 2], steps[odd::2], own[odd::2]
        step, mine = statistics.median(without), statistics.median(of_meter)
        difference = statistics.median(a - b for a, b in zip(with_it, without, strict=True))
        counting = 0.0 if meter is None else meter.counting_seconds
        return (
            f"| {where} | {batch} | {step * 1e3:.1f} | {mine * 1e6:.0f} | {mine / step:.2%} | {difference / step:+.2%} | "
            f"{counting * 1e3:.0f} |"
        )


def model() -> nn.Module:
    """GPT-2 of 4 layers, 256 wide, with LoRA."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=5000, loss_type="ForCausalLM")
    lora = peft.LoraConfig(r=8, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    made: nn.Module = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    return made


def in_a_loop(rows: int, length: int) -> str:
    net, spent = model(), Spent()
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])
    tokens = torch.randint(0, 5000, (rows, length))
    batch = {"input_ids": tokens, "labels": tokens}
    meter = Meter(net, device=DEVICE)

    def step() -> None:
        net(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(STEPS):
        is_metered = spent.is_metered
        spent.begin()
        if is_metered:
            with meter.step(batch):
                step()
        else:
            step()
        spent.end()
    return spent.row("a loop", f"{rows} x {length}", meter)


def in_trainer(rows: int, length: int) -> str:
    spent = Spent()

    class Alternating(MeterCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.is_metered = spent.is_metered
            spent.begin()
            if self.is_metered:
                super().on_step_begin(*args, **kwargs)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if self.is_metered:
                super().on_step_end(*args, **kwargs)
            spent.end()

    callback = Alternating(device=DEVICE)
    tokens = torch.randint(0, 5000, (length,))
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=rows, gradient_accumulation_steps=2, max_steps=STEPS,
        logging_steps=10**6, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    data = [{"input_ids": tokens, "labels": tokens}] * (2 * rows * STEPS)
    transformers.Trainer(model(), arguments, train_dataset=data, callbacks=[callback]).train()
    return spent.row("transformers' Trainer", f"2 x {rows} x {length}", callback.meter)


def in_lightning(rows: int, length: int) -> str:
    spent = Spent()

    class Module(lightning.pytorch.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(input_ids=batch, labels=batch).loss
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad])

    class Alternating(LightningMeter):
        def on_train_batch_start(self, *args: Any) -> None:
            self.is_metered = spent.is_metered
            spent.begin()
            if self.is_metered:
                super().on_train_batch_start(*args)

        def on_train_batch_end(self, *args: Any) -> None:
            if self.is_metered:
                super().on_train_batch_end(*args)
            spent.end()

    callback = Alternating(device=DEVICE)
    data = torch.utils.data.DataLoader([torch.randint(0, 5000, (rows, length))] * STEPS, batch_size=None)
    lightning.pytorch.Trainer(
        max_epochs=1, callbacks=[callback], accelerator="cpu", logger=False, log_every_n_steps=10**6,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    ).fit(Module(), data)  # fmt: skip
    return spent.row("Lightning's Trainer", f"{rows} x {length}", callback.meter)


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable()
    rows = []
    for run, batch, length in (
        (in_a_loop, 1, 128), (in_a_loop, 4, 128), (in_a_loop, 8, 256), (in_trainer, 4, 128), (in_lightning, 4, 128)
    ):  # fmt: skip
        rows.append(run(batch, length))
        print(rows[-1], flush=True)
    RESULTS.write_text(
        "# What the live meter costs\n\n"
        "GPT-2 of 4 layers, 256 wide, with LoRA: forward, backward and AdamW; in CPU time, the median from the second step of a\n"
        f"shape on. Every second step is without the meter: {PAIRS} interleaved pairs. The meter's own time is that of its methods. Its\n"
        "count of a new shape lies in no step's time.\n\n"
        f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s).\n\n"
        "| in | batch | a step, ms | the meter's own, us | of a step | difference of the pairs | the count of the shape, ms |\n"
        "|---|---|---:|---:|---:|---:|---:|\n" + "\n".join(rows) + "\n",
        encoding="utf8",
    )


if __name__ == "__main__":
    main()

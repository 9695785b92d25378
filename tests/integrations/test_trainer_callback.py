"""The meter in a real run of transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fxflops

pytest.importorskip("accelerate", reason="accelerate is not installed, which transformers' Trainer needs")
from tests.integrations.small_gpt import DEVICE, LENGTHS, collated, model, rows, transformers

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers, peft and accelerate warn about their own deprecations


class Reporter(transformers.TrainerCallback):
    """A reporting callback like TensorBoard's: it records what it is given, at that moment."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.seen.append(dict(logs))


def trainer(folder: Path, *callbacks: Any, evaluate: str = "no") -> Any:
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=1, gradient_accumulation_steps=2, num_train_epochs=2, logging_steps=2,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", eval_strategy=evaluate, eval_steps=2,
    )  # fmt: skip
    return transformers.Trainer(
        model(), arguments, train_dataset=rows(), eval_dataset=rows((40,)), data_collator=collated,
        callbacks=[Reporter(), *callbacks],
    )  # fmt: skip


def test_a_real_run(tmp_path: Path) -> None:
    from fxflops.integrations import MeterCallback

    callback = MeterCallback(device=DEVICE, target_tokens=10_000)
    metered = trainer(tmp_path, callback, evaluate="steps")
    hooks = [len(module._forward_pre_hooks) for module in metered.model.modules()]
    metered.train()
    plain = trainer(tmp_path, evaluate="steps")
    plain.train()
    profiled = trainer(tmp_path)
    with fxflops.profile(profiled.model) as p:
        profiled.train()

    logged = [log for log in metered.state.log_history if "loss" in log]
    assert [log["loss"] for log in logged] == [log["loss"] for log in plain.state.log_history if "loss" in log]
    assert logged[-1]["flops_so_far"] == 2 * (p.report.total_macs + p.report.total_backward_macs)
    assert logged[-1]["seconds_left"] == pytest.approx((10_000 - 2 * sum(LENGTHS)) / logged[-1]["tokens_per_second"])
    assert 0 < logged[-1]["mfu"] == logged[-1]["hfu"]
    assert [len(module._forward_pre_hooks) for module in metered.model.modules()] == hooks
    reported = next(each for each in metered.callback_handler.callbacks if isinstance(each, Reporter))
    assert [log["mfu"] for log in reported.seen if "mfu" in log] == [log["mfu"] for log in logged]

"""The cost of the live meter: the CPU time of a training step with it and without, in interleaved pairs.

    python -m benchmarks.meter

Writes ``benchmarks/results/meter.md``. Needs transformers and peft.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import peft
import torch
import transformers

from benchmarks.machine import processor
from fxflops.integrations import Meter
from fxflops.roofline.devices import Device

PAIRS, WARM_UP = 20, 3
RESULTS = Path(__file__).parent / "results" / "meter.md"
DEVICE = Device("any", {"f32": 1e12}, 1e11)


def training(rows: int, length: int) -> tuple[Meter, Callable[[bool], float]]:
    """A step of GPT-2, 4 layers and 256 wide with LoRA; it returns its CPU seconds."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=5000, loss_type="ForCausalLM")
    lora = peft.LoraConfig(r=8, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    tokens = torch.randint(0, 5000, (rows, length))
    batch = {"input_ids": tokens, "labels": tokens}
    meter = Meter(model, device=DEVICE)

    def step() -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed(metered: bool) -> float:
        start = time.process_time()
        if metered:
            with meter.step(batch):
                step()
        else:
            step()
        return time.process_time() - start

    return meter, timed


def own_seconds(meter: Meter, rows: int, length: int) -> float:
    """The CPU seconds of the meter's own code in a step: a step with it in which the model does nothing, less one without."""
    model = meter._model
    tokens = torch.zeros(rows, length, dtype=torch.long)
    batch = {"input_ids": tokens, "labels": tokens}
    model.forward = lambda **given: None

    def seconds(metered: bool, times: int = 200) -> float:
        start = time.process_time()
        for _ in range(times):
            if metered:
                with meter.step(batch):
                    model(**batch)
            else:
                model(**batch)
        return (time.process_time() - start) / times

    with_it = seconds(True)
    return with_it - seconds(False)


def main() -> None:
    rows = []
    for batch, length in ((1, 128), (4, 128), (8, 256)):
        meter, timed = training(batch, length)
        for _ in range(WARM_UP):
            timed(True), timed(False)
        pairs = [(timed(True), timed(False)) for _ in range(PAIRS)]
        step = statistics.median(without for _, without in pairs)
        difference = statistics.median(with_it - without for with_it, without in pairs)
        own = own_seconds(meter, batch, length)
        rows.append(
            f"| {batch} x {length} | {step * 1e3:.1f} | {own * 1e6:.0f} | {own / step:.2%} | {difference / step:+.2%} | "
            f"{meter.counting_seconds * 1e3:.0f} |"
        )
        print(rows[-1])
    RESULTS.write_text(
        "# What the live meter costs\n\n"
        f"GPT-2 of 4 layers, 256 wide, with LoRA, forward, backward and AdamW, in CPU time; the median of {PAIRS} interleaved\n"
        "pairs, from the second step of a shape on. The meter's own time is measured in steps in which the model does\n"
        "nothing. The count of a new shape is made once, and lies in no step's time.\n\n"
        f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads.\n\n"
        "| batch | a step, ms | the meter's own, us | of a step | difference of the pairs | a new shape's count, ms |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main()

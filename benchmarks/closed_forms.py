"""Compare closed forms with counts: at random sizes that were not used to find the form, every total must be equal.

    python benchmarks/closed_forms.py [--models gpt2,...] [--points 20]

Each model runs in a fresh process, on meta. FLOPs, MACs and activations of the forward pass are compared in eval mode and in
training mode. In training mode, the FLOPs of the backward pass and of both passes together are compared too. The table
``benchmarks/results/closed_forms.md`` shows all rows of ``closed_forms.json``. A run updates the rows of its own models.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops

RESULTS = Path(__file__).parent / "results"


class Case(NamedTuple):
    """A model to check: a function that makes it, and a function that makes its inputs at given sizes.

    ``dims`` names the inputs' dimensions that vary. ``lengths`` are the lengths to draw for each name, and ``example`` the lengths of
    the inputs from which the form is found.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[..., dict[str, Any]]
    dims: dict[str, dict[int, str]]
    lengths: dict[str, Sequence[int]]
    example: Sequence[int]


def hf(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        cls = getattr(transformers, name)
        model: nn.Module = cls(cls.config_class(**settings))
        return model.to(torch.bfloat16) if name.startswith("Mixtral") else model  # the only dtype that grouped_mm takes

    return make


def swin() -> nn.Module:
    import torchvision

    return torchvision.models.swin_t()


def resnet() -> nn.Module:
    import torchvision

    return torchvision.models.resnet50()


def vit() -> nn.Module:
    import timm

    return timm.create_model("vit_base_patch16_224", dynamic_img_size=True)


def unet() -> nn.Module:
    """Return the UNet of Stable Diffusion 1.5."""
    import diffusers

    return diffusers.UNet2DConditionModel(cross_attention_dim=768, sample_size=64)


def tokens(batch: int, seq: int) -> dict[str, Any]:
    return {"input_ids": torch.zeros(batch, seq, dtype=torch.long, device="cpu")}


def two_texts(batch: int, source: int, target: int) -> dict[str, Any]:
    decoder = torch.zeros(batch, target, dtype=torch.long, device="cpu")
    return {**tokens(batch, source), "decoder_input_ids": decoder}


def image(batch: int, height: int, width: int, name: str = "x") -> dict[str, Any]:
    return {name: torch.empty(batch, 3, height, width, device="meta")}


def latent(batch: int, height: int, width: int, text: int) -> dict[str, Any]:
    states = torch.empty(batch, text, 768, device="meta")
    return {
        "sample": torch.empty(batch, 4, height, width, device="meta"),
        "timestep": 10,
        "encoder_hidden_states": states,
    }


def sequence(time: int, batch: int) -> dict[str, Any]:
    return {"input": torch.empty(time, batch, 64, device="meta")}


TEXT = {"input_ids": {0: "batch", 1: "seq"}}
IMAGE = {"x": {0: "batch", 2: "height", 3: "width"}}
LLAMA = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
SHORT, LONG, FEW = range(1, 513), range(1, 8193), range(1, 17)

CASES = {
    "gpt2": Case(hf("GPT2LMHeadModel"), tokens, TEXT, {"batch": FEW, "seq": range(1, 1025)}, (2, 128)),
    "llama-3.1-8b": Case(hf("LlamaForCausalLM", **LLAMA), tokens, TEXT, {"batch": FEW, "seq": LONG}, (2, 128)),
    "mixtral-8x7b of 4 layers": Case(hf("MixtralForCausalLM", num_hidden_layers=4), tokens, TEXT, {"batch": FEW, "seq": LONG}, (2, 128)),
    "bert": Case(hf("BertForMaskedLM"), tokens, TEXT, {"batch": FEW, "seq": SHORT}, (2, 128)),
    "t5-small": Case(
        hf("T5ForConditionalGeneration"), two_texts,
        {"input_ids": {0: "batch", 1: "source"}, "decoder_input_ids": {0: "batch", 1: "target"}},
        {"batch": FEW, "source": SHORT, "target": SHORT}, (2, 64, 32),
    ),
    "vit-b/16": Case(vit, image, IMAGE, {"batch": FEW, "height": range(224, 513, 16), "width": range(224, 513, 16)}, (2, 224, 256)),
    "resnet-50": Case(resnet, image, IMAGE, {"batch": FEW, "height": range(32, 1025, 32), "width": range(32, 1025, 32)}, (2, 224, 256)),
    "swin-t": Case(swin, image, IMAGE, {"batch": FEW, "height": range(224, 1345, 224), "width": range(224, 1345, 224)}, (2, 448, 672)),
    "unet-sd-1.5": Case(
        unet, latent, {"sample": {0: "batch", 2: "height", 3: "width"}, "encoder_hidden_states": {0: "batch", 1: "text"}},
        {"batch": range(1, 9), "height": range(8, 129, 8), "width": range(8, 129, 8), "text": range(1, 129)}, (2, 64, 32, 77),
    ),
    "mamba-130m": Case(hf("MambaForCausalLM"), tokens, TEXT, {"batch": FEW, "seq": range(1, 33)}, (2, 8)),
    "lstm": Case(lambda: nn.LSTM(64, 128, num_layers=3, bidirectional=True), sequence, {"input": {0: "time", 1: "batch"}},
                 {"time": range(1, 65), "batch": range(1, 65)}, (8, 2)),
}  # fmt: skip


def numbers_of(report: fxflops.Report) -> dict[str, int | None]:
    return {
        "flops": report.total_flops, "macs": report.total_macs, "activations": report.total_activations,
        "backward": report.total_backward_flops, "training": report.total_training_flops,
    }  # fmt: skip


def measure(name: str, points: int) -> dict[str, Any]:
    """Find the forms of a model, compare them with counts, and return a row of the table."""
    case = CASES[name]
    with torch.device("meta"):
        model = case.make().train()
    dims = {
        inp: {dim: torch.export.Dim(size, min=min(case.lengths[size]), max=max(case.lengths[size])) for dim, size in named.items()}
        for inp, named in case.dims.items()
    }  # fmt: skip
    sizes = dict(zip(case.lengths, case.example, strict=True))
    row: dict[str, Any] = {"name": name, "wrong": []}
    rng = random.Random(name)
    drawn = [{size: rng.choice(lengths) for size, lengths in case.lengths.items()} for _ in range(points)]
    for backward in (False, True):
        started = time.perf_counter()
        form = fxflops.closed_form(model, kwargs=case.inputs(**sizes), dynamic_shapes=dims, backward=backward)
        row |= {
            f"seconds {backward}": time.perf_counter() - started,
            "domain": form.domain(),
            "pieces": len(form.pieces()),
        }
        for at in drawn:
            counted = numbers_of(fxflops.count(model, kwargs=case.inputs(**at), backward=backward))
            phases = {"backward": "backward", "training": "training"} if backward else {}
            found = {what: form.evaluate(what, **at) for what in ("flops", "macs", "activations")}
            found |= {what: form.evaluate("flops", phase=phase, **at) for what, phase in phases.items()}
            row["wrong"] += [(backward, at, what) for what, value in found.items() if value != counted[what]]
    row |= {
        "points": len(drawn),
        "flops": str(form.flops) if row["pieces"] == 1 else str(form).splitlines()[4][8:].strip(),
    }
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    import diffusers
    import timm
    import torchvision
    import transformers

    versions = [f"{each.__name__} {each.__version__}" for each in (torch, torchvision, timm, transformers, diffusers)]
    lines = [
        "# Closed forms against counts", "",
        "`python benchmarks/closed_forms.py`: the closed form of each model, at random points of its domain that were not used to find it,",
        "against `count()`: FLOPs, MACs and activations of the forward in eval mode; and in training mode those, the FLOPs of the backward,",
        "and of both. An agreement is to the last digit in all of them. Seconds to find the form, on a CPU that was shared with other work.",
        "", ", ".join(versions), "",
        "| model | points, forward | points, training | pieces | form (s) | with backward (s) | domain | FLOPs of the forward, in training mode, in the largest piece |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in rows:
        equal = [
            row["points"] - len({str(at) for back, at, _ in row["wrong"] if back == asked}) for asked in (False, True)
        ]
        cells = [row["name"], *(f"{n} of {row['points']} equal" for n in equal), row["pieces"]]
        cells += [
            f"{row['seconds False']:.1f}",
            f"{row['seconds True']:.1f}",
            row["domain"],
            f"`{row['flops'].replace('**', '^')}`",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--one")
    options = parser.parse_args()
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(options.one, options.points)))
        return
    kept = RESULTS / "closed_forms.json"
    for name in options.models.split(","):
        command = [sys.executable, __file__, "--one", name, "--points", str(options.points)]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows = json.loads(kept.read_text("utf8")) if kept.exists() else {}
        rows[name] = json.loads(run.stdout.splitlines()[-1])
        kept.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf8")
        (RESULTS / "closed_forms.md").write_text(table([rows[each] for each in CASES if each in rows]), encoding="utf8")


if __name__ == "__main__":
    main()

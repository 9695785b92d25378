"""Simulate published training runs of Llama 3, and compare one rank's memory with the memory that the authors report.

    python benchmarks/published.py

Each run is simulated with its published settings: mesh, batch, sequences of 8,192, activation checkpointing, bf16 with f32
weights, gradients reduced in f32, AdamW, the loss on sharded logits, the pipeline's schedule. Some runs are simulated again
without checkpointing, and without sharding over data-parallel ranks. Each simulation runs in its own process. The table is
``benchmarks/results/published.md``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor
from benchmarks.models.llama_ranks import SHAPES, TOKENS, Layout, build
from fxflops.distributed import simulate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "published.md"
MODELS = {"8b": "Llama-3.1 8B", "70b": "Llama-3.1 70B", "405b": "Llama-3.1 405B"}
TITAN_8B = Layout("8b", {"dp": 8}, 2, "selective")
TITAN_70B = Layout("70b", {"dp": 32, "tp": 8}, 16, "full")
TITAN_405B = Layout("405b", {"pp": 8, "dp": 8, "tp": 8}, 32, "full", microbatch=4)
PAPER = Layout("405b", {"dp": 128, "pp": 16, "tp": 8}, 16, "full", microbatch=1)
RUNS = [
    (TITAN_8B, "77.0 compiled, 82.4 not"),
    (Layout("8b", {"dp": 128}, 2, "selective"), "62.0 compiled, 67.0 not"),
    (TITAN_70B, "71.9; 67.6 with AsyncTP"),
    (TITAN_405B, "82.5"),
    (TITAN_405B._replace(stages=2), "72.7"),
    (PAPER, "trained on 80 GB"),
]
VARIANTS = [each._replace(checkpointing="none") for each in (TITAN_8B, TITAN_70B, TITAN_405B, PAPER)]
VARIANTS += [
    each._replace(mesh={"replicate": each.mesh["dp"], **each.mesh, "dp": 1})
    for each in (TITAN_8B, TITAN_70B, TITAN_405B)
]
ABOUT = """
# Published runs of Llama 3, simulated

{machine}

One rank of each run, by [published.py](../published.py): the rank of the pipeline that holds the most. Sequences of 8,192 tokens, f32 weights and
AdamW, bf16 in between, gradients reduced in f32. GiB at the peak; 80 GB are {limit:.1f} GiB. "By hand" is the least: 16 bytes of
weights, gradients and AdamW's state for each parameter of the rank, and without checkpointing what the layers save, in bf16.

Sources: torchtitan's [benchmarks/llama3_h100_202412_torchtitan.md](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md),
tables 1, 3, 4 and 5, at its commit 9dec370 (activation checkpointing, split of the pipeline, as many microbatches as stages: parallelisms/ and train_configs/ there);
[The Llama 3 Herd of Models](https://arxiv.org/abs/2407.21783), table 4 (16,384 GPUs: TP 8, CP 1, PP 16, DP 128, 16 sequences for each rank along DP).
"""
WHY = """
## Why the published figures are higher

- torchtitan prints what CUDA's allocator reserved at most (`reserved_bytes.all.peak`); ours are the tensors that live at the peak. What is reserved includes
  the gaps between tensors, and what was needed at other times: from 128 to 8 ranks the 8B run gains 15.0 GiB compiled and 15.4 not, where weights, gradients and
  AdamW's state of 16 bytes are 14.0 GiB, and ours 10.5 GiB, since no gradients live at the peak, in the loss.
- Not in ours: the copies of rotary embeddings in f32, norms of gradients (`clip_grad_norm_`), buffers of NCCL and of AsyncTP.
- Nor is torch.compile in ours, with which the 8B run has 5 GiB less, and for the 70B and 405B runs float8, which gathers weights in one byte.
- Microbatches of the 405B runs are not published: torchtitan's default is as many as stages of one rank each, 8. Interleaved 1F1B holds less in both: 11.2 GiB here, 9.8 GiB there.
- The H100s of torchtitan's tables have 96 GB, so that 82.5 GiB fit there. The paper states no memory.
- Without checkpointing the paper's layout is above 80 GB here, where its authors trained so (section 3.3.2): by an interleaved schedule of their own with balanced
  stages, which frees tensors early. Here it is torch's 1F1B, with 16 microbatches on the first rank; and DTensor keeps gathered the inputs of products, half of what a
  layer saves, which could be gathered again.
"""
HEAD = """
| run | GPUs | mesh | sequences | checkpointing | by hand | params | optimizer | gathered | activations | gradients, temporaries | peak | in 80 GB | published | CPU s |
|---|---:|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|
"""
LIMIT = 80e9


def by_hand(layout: Layout) -> float:
    """Return the fewest bytes the first rank can need: 16 for each of its parameters and, without checkpointing, what its layers save."""
    shape, mesh = SHAPES[layout.model], layout.mesh
    tp, pp = mesh.get("tp", 1), mesh.get("pp", 1)
    keys = shape.key_heads * shape.width // shape.heads
    layer = shape.width * (2 * shape.width + 2 * keys + 3 * shape.hidden)
    layers = shape.layers // pp
    held = 16 * (layers * layer + (1 if pp > 1 else 2) * shape.vocabulary * shape.width) / tp / mesh["dp"]
    # Saved in bf16 for each token: the inputs of the norms, query, key and value, attention's result, gate, up, silu and their
    # product. The outputs of the two norms are saved whole, because tensor parallelism gathers them.
    saved = 2 * ((4 * shape.width + 2 * keys + 4 * shape.hidden) / tp + 2 * shape.width)
    tokens = TOKENS * (
        min(pp, layout.sequences // layout.microbatch) * layout.microbatch if pp > 1 else layout.sequences
    )
    return held + (saved * tokens * layers if layout.checkpointing == "none" else 0)


def measured(layout: Layout, published: str) -> str:
    """Return the row of a layout: the peak memory of the rank that holds the most. Variants simulate only the pipeline's first rank."""
    began = time.process_time()
    differs = [name for name in layout.mesh if name == "pp" and published]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulation = simulate(partial(build, layout, SHAPES[layout.model]), layout.mesh, differs=differs)
    worst = max(simulation.kinds, key=lambda kind: kind.report.max_memory or 0)
    memory, peak = dict(worst.report.memory), simulation.max_memory
    shown = [memory.pop(name, 0) for name in ("params", "optimizer", "gathered", "activations")]
    cells = [by_hand(layout), *shown, sum(memory.values()), peak]
    of_stage = f", pp {worst.at['pp']}" if "pp" in layout.mesh else ""
    sizes = " x ".join(f"{name} {count}" for name, count in layout.mesh.items())
    micro = f" in {layout.sequences // layout.microbatch} microbatches" if layout.microbatch else ""
    schedule = "" if "pp" not in layout.mesh else ", interleaved 1F1B" if layout.stages > 1 else ", 1F1B"
    row = [
        MODELS[layout.model] + schedule,
        simulation.ranks,
        sizes + of_stage,
        f"{layout.sequences}{micro}",
        layout.checkpointing,
    ]
    row += [*(f"{each / 2**30:.1f}" for each in cells), "yes" if peak <= LIMIT else "no", published]
    return f"| {' | '.join(map(str, [*row, round(time.process_time() - began)]))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked, layouts = parser.parse_args(), [*RUNS, *((each, "") for each in VARIANTS)]
    if asked.one is not None:
        print(measured(*layouts[asked.one]))
        return
    rows = []
    for i in range(len(layouts)):
        command = [sys.executable, __file__, "--one", str(i)]
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(made.stdout.strip().splitlines()[-1])
    versions = f"{os.cpu_count()} cores ({processor()}), torch {torch.__version__}, fxflops {fxflops.__version__}."
    about = ABOUT.strip().format(machine=versions, limit=LIMIT / 2**30)
    runs, variants = rows[: len(RUNS)], rows[len(RUNS) :]
    parts = [
        about,
        HEAD.strip(),
        *runs,
        "",
        "## Without checkpointing, and without sharding",
        "",
        HEAD.strip(),
        *variants,
    ]
    RESULTS.write_text("\n".join([parts[0], "", *parts[1:], WHY]), encoding="utf8")


if __name__ == "__main__":
    main()

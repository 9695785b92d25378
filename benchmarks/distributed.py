"""Compare simulated ranks with real ranks, and simulate Llama-3 on meshes that this machine does not have.

    python benchmarks/distributed.py            # writes benchmarks/results/distributed.md
    python benchmarks/distributed.py --layers 4 # prints the page instead, for Llamas with 4 layers

Four Gloo processes run a training step on a 2 x 2 mesh. The blocks are sharded (FSDP2) along one dimension, and tensor and
sequence parallel along the other. Then the same ranks are simulated. For each Llama, a training step of every rank of a mesh is
extrapolated from a few layers. Then the meshes of 256 GPUs are searched. Ranks and meshes are divided among as many processes as
there are cores. Each job runs in a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxflops
from benchmarks.machine import processor
from benchmarks.models.llama_ranks import SHAPES, TOKENS, Layout, build
from fxflops.distributed import rank_meshes, simulate, step_bound
from fxflops.units import count, seconds, size

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "distributed.md"
CORES = os.cpu_count() or 1
LLAMAS = [
    Layout("8b", {"dp": 8}, 1, "full"),
    Layout("8b", {"dp": 64}, 1, "full"),
    Layout("70b", {"dp": 32, "tp": 8}, 1, "full"),
    Layout("405b", {"pp": 4, "dp": 64, "tp": 8}, 4, "full", microbatch=1),
]
GPUS, SEARCHED, MEMORY = 256, "70b", 80 * 10**9
T = TypeVar("T")


def meshes() -> list[dict[str, int]]:
    """Return the meshes to search: tensor parallel within a node, sharded along dp, replicated along replicate. Sizes are powers of two."""
    found = []
    for tp in (1, 2, 4, 8):
        for power in range((GPUS // tp).bit_length()):
            sizes = {"replicate": 2**power, "dp": GPUS // tp // 2**power, "tp": tp}
            found.append({name: n for name, n in sizes.items() if n > 1 or name == "dp"})
    return found


def named(mesh: dict[str, int]) -> str:
    return " x ".join(f"{name} {n}" for name, n in mesh.items())


def timed(run: Callable[[], T]) -> tuple[T, float, float]:
    """Return the result, the wall-clock seconds, and the CPU seconds of this process and its children."""
    began, before = time.perf_counter(), os.times()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run()
    after = os.times()
    return found, time.perf_counter() - began, sum(after[:4]) - sum(before[:4])


def llama(layout: Layout, layers: int | None) -> list[str]:
    """Return a row for each kind of rank.

    Sequences have 8,192 tokens, all layers are checkpointed, weights are f32 and the computation is bf16.
    """
    shape = SHAPES[layout.model]
    differs = [name for name in layout.mesh if name == "pp"]

    def step(mesh: Any, depth: int) -> Any:
        return build(layout, shape._replace(layers=depth), mesh)

    simulation, wall, cpu = timed(
        lambda: simulate(step, layout.mesh, differs=differs, layers=layers or shape.layers, processes=CORES)
    )
    bound = step_bound(simulation, "H100")
    rows = []
    for kind in simulation.kinds:
        memory = kind.memory
        place = f", pp {kind.at['pp']}" if differs else ""
        cells = [layout.model, f"{named(layout.mesh)}{place}", kind.ranks]
        cells += [count(kind.macs), count(kind.flops)]
        cells += [count(kind.params), *(size(memory.get(each, 0)) for each in ("params", "optimizer"))]
        cells += [size(memory.get(each, 0)) for each in ("activations", "gathered")]
        cells += [size(kind.max_memory), size(sum(row.sent or 0 for row in kind.collectives))]
        whole = [f"{seconds(bound.best)} to {seconds(bound.worst)}", f"{wall:.0f}", f"{cpu:.0f}"]
        cells += whole if kind is simulation.kinds[0] else [""] * len(whole)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return rows


def search(layers: int | None) -> list[str]:
    """Return the meshes of 256 GPUs, ordered by the lower bound on the time per token, and the seconds that the search took."""
    shape = SHAPES[SEARCHED]

    def step(mesh: Any, depth: int) -> Any:
        sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
        return build(Layout(SEARCHED, sizes, 1, "full"), shape._replace(layers=depth), mesh)

    found, wall, cpu = timed(
        lambda: rank_meshes(
            step,
            meshes(),
            device="H100",
            memory=MEMORY,
            differs=(),
            tokens=lambda mesh: mesh.get("replicate", 1) * mesh["dp"] * TOKENS,
            layers=layers or shape.layers,
            processes=CORES,
        )
    )
    told = len(found.found) + len(found.too_large) + len(found.failed)
    return [f"{told} meshes in {wall:.0f} s, {cpu:.0f} CPU s by {CORES} processes.", "", "```text", str(found), "```"]


def real_and_simulated() -> list[str]:
    """Return the rows of four real ranks, each followed by the row of the same rank in the simulation."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        script, cases = str(ROOT / "tests" / "ranks.py"), ("fsdp_tp", "simulate_fsdp_tp")
        command = [sys.executable, "-W", "ignore", script, folder, "4", *cases]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        simulated = json.loads((Path(folder) / "simulated.json").read_text())["fsdp_tp"]
        for rank, found in enumerate(simulated):
            real = json.loads((Path(folder) / f"{rank}.json").read_text())["fsdp_tp"]
            same_step = real.pop("same")
            del real["left"]  # a simulation does not have this fact
            for name, each in (("real", real), ("simulated", found)):
                sent = sum(row[6] for row in each["collectives"])
                cells = [rank, name, each["forward"], each["backward"], each["flops"], *each["params"][:1]]
                cells += [len(each["collectives"]), sent, sum(each["memory"].values())]
                equal = ("as without fxflops" if same_step else "differs") if name == "real" else str(each == real)
                rows.append(f"| {' | '.join(map(str, [*cells, equal]))} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, help="the layers of each Llama, to try it; prints what it would write")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        rows = llama(LLAMAS[asked.one], asked.layers) if asked.one < len(LLAMAS) else search(asked.layers)
        print(json.dumps(rows))
        return

    def fresh(number: int) -> list[str]:
        command = [sys.executable, __file__, "--one", str(number)]
        command += ["--layers", str(asked.layers)] if asked.layers else []
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return list(json.loads(made.stdout.splitlines()[-1]))

    about = f"{CORES} cores ({processor()}), torch {torch.__version__}, fxflops {fxflops.__version__}."
    lines = [
        *("# Many processes", "", about, ""),
        "A training step of a sharded and tensor parallel model on dp 2 x tp 2, on four Gloo processes and simulated.",
        "",
        "| rank | | forward MACs | backward MACs | FLOPs | params | collectives | bytes sent | peak bytes | equal |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---|",
        *real_and_simulated(),
        "",
        "Each kind of ranks of Llama-3 on a mesh: a sequence of 8,192 tokens for each rank along dp, of 405B four by 1F1B; every layer checkpointed, f32 weights",
        "and AdamW, bf16 in between. The bound of the step is that of H100s, all communication overlapped and none; seconds are of the whole simulation, by the",
        "clock and the processor. Four, five and six layers are run (of 405B 18, 22 and 26), and the rest are what each adds.",
        "",
        "| model | mesh | ranks | MACs | FLOPs | params | params bytes | optimizer | activations | gathered | peak | sent | bound | s | CPU s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|",
        *(row for i in range(len(LLAMAS)) for row in fresh(i)),
        "",
        f"The meshes of {GPUS} H100s for Llama-3 {SEARCHED.upper()}, a sequence of 8,192 tokens for each rank along replicate and dp:",
        *fresh(len(LLAMAS)),
    ]
    text = "\n".join([*lines, ""])
    print(text) if asked.layers else RESULTS.write_text(text, encoding="utf8")


if __name__ == "__main__":
    main()

"""Read the measurements that predictions are fitted to: public ones from a folder (see ``__main__``), and this project's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fxflops.prediction.calls import Kernel, convolution
from fxflops.prediction.chips import card_of
from fxflops.prediction.hardware import Card
from fxflops.records import Spec
from fxflops.roofline.devices import find_device

from .fit import Measured, is_held_out

AICONFIGURATOR = "ai-dynamo/aiconfigurator 095f58a51c4c, Apache-2.0"
NEUSIGHT = "sitar-lab/NeuSight 6945927d9afc, MIT"
OWN = "benchmarks/results/gpu"

OPERATIONS = Path(__file__).parents[1] / "results" / "gpu" / "operations.csv"

SYSTEMS = {  # the table's name: our name
    "a100_sxm": "A100 80GB SXM",
    "h100_sxm": "H100 SXM",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX PRO 6000 Blackwell Server Edition",
}
LINKED = {"h200_sxm": "H200", "gb300": "GB300"}
"""Systems for which only collectives were measured."""
GPUS = {  # NeuSight's name: our name
    "NVIDIA A100 80GB PCIe": "A100 80GB PCIe",
    "NVIDIA A100-PCIE-40GB": "A100 40GB",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA L4": "L4",
    "Tesla P100-PCIE-16GB": "P100 PCIe",
    "Tesla P4": "P4",
    "Tesla T4": "T4",
    "Tesla V100-PCIE-32GB": "V100 PCIe",
}
TENSORS = {"addu": 2, "mulu": 2, "divu": 2, "powu": 2, "relu": 2, "gelu": 2, "tanh": 2, "ln": 2, "softmax": 2}
"""The number of tensors that a vector operation moves: two for these unary operations. Any other operation is binary and moves three."""
CONVOLUTIONS = (("conv", "bf16"), ("conv", "tf32"), ("conv", "f32"), ("depthwise", "bf16"), ("depthwise", "f32"))
"""The families and dtypes of convolutions that this project measured."""
PREFILL = {"h100_sxm": "vllm_flash_attn_fa3", "b200_sxm": "vllm_flashinfer_trtllmprefill"}
"""The prefill kernels to use for systems that have several in the attention table. Other systems use their most frequent kernel."""


def products_bf16(folder: Path) -> Iterator[tuple[str, Measured]]:
    """Yield each system's bf16 matrix products. A third of the pairs (n, k) is held out."""
    table = pd.read_csv(folder / "aiconfigurator_gemm_bf16_sample.csv.gz")
    for system, rows in table.groupby("system"):
        features = [(1, row.m, row.n, row.k, 2) for row in rows.itertuples()]
        held = [is_held_out(row.n, row.k) for row in rows.itertuples()]
        yield str(system), _measured(features, rows.latency, held, _kernels(rows), AICONFIGURATOR)


def attention_bf16(folder: Path) -> Iterator[tuple[str, Measured]]:
    """Yield each system's causal prefills without a window."""
    table = pd.read_csv(folder / "aiconfigurator_context_attention_bf16_sample.csv.gz")
    for system, rows in table[table.window_size == 0].groupby("system"):
        rows = rows[rows.kernel_source == PREFILL.get(system, rows.kernel_source.mode()[0])]
        shapes = [
            (row.batch_size, row.isl, row.num_heads, row.num_key_value_heads, row.head_dim) for row in rows.itertuples()
        ]
        features = [(b, length, length, heads, keys, size, 1, 2) for b, length, heads, keys, size in shapes]
        held = [is_held_out(*shape) for shape in shapes]
        yield str(system), _measured(features, rows.latency, held, _kernels(rows), AICONFIGURATOR)


def products_f32(folder: Path) -> Iterator[tuple[str, str, Measured]]:
    """Yield each GPU's f32 matrix products: "linear" and "batched"."""
    table = pd.read_csv(folder / "neusight_test_matmul.csv.gz")
    for (gpu, op), rows in table.groupby(["Device", "OPName"]):
        features = [(row.B, row.M, row.N, row.K, 4) for row in rows.itertuples()]
        held = [is_held_out(op, *row[:4]) for row in features]
        family = {"linear": "linear", "bmm": "batched"}[str(op)]
        yield str(gpu), family, _measured(features, rows.Latency, held, f"torch {op}", NEUSIGHT, eager=True)


def vectors_f32(folder: Path) -> Iterator[tuple[str, str, Measured]]:
    """Yield each GPU's f32 vector operations: "elementwise", "norm" and "softmax"."""
    table = pd.read_csv(folder / "neusight_test_vector.csv.gz")
    table["family"] = [{"ln": "norm", "softmax": "softmax"}.get(op, "elementwise") for op in table.OPName]
    for (gpu, family), rows in table.groupby(["Device", "family"]):
        features = [
            (TENSORS.get(row.OPName, 3) * 4 * row.B * row.H, 1 if family == "elementwise" else row.H)
            for row in rows.itertuples()
        ]
        held = [is_held_out(row.OPName, row.B, row.H) for row in rows.itertuples()]
        yield str(gpu), str(family), _measured(features, rows.Latency, held, "torch", NEUSIGHT, eager=True)


def elementwise_h100() -> Measured:
    """Return this project's H100 measurements of elementwise kernels, copies and lookups, in bf16 and f32 together.

    Norms and softmax have too few rows for a fit.
    """
    table = pd.read_csv(OPERATIONS)
    table = table[(table["pass"] == "forward") & (table.bytes > 0) & table.dtype.isin(["bf16", "f32"])]
    rows = table[table.family.isin(["elementwise", "lookup"]) | table.shapes.str.startswith("clone")]
    held = [is_held_out(row.shapes, row.dtype, row.layout) for row in rows.itertuples()]
    features = [(moved, 1) for moved in rows.bytes]
    return _measured(features, 1e3 * rows.seconds, held, "torch 2.11", OWN)


def channel_norms_h100() -> Measured:
    """Return this project's H100 measurements of bf16 batch norms (in training) and group norms. There are too few rows to hold any out."""
    table = pd.read_csv(OPERATIONS)
    table = table[(table["pass"] == "forward") & (table.dtype == "bf16")]
    rows = table[table.shapes.str.contains("batch_norm|group_norm")]
    features = [(row.bytes, sizes_in(row.shapes)["hw"]) for row in rows.itertuples()]
    return _measured(features, 1e3 * rows.seconds, [False] * len(rows), "torch 2.11", OWN)


def convolutions_h100(family: str, dtype: str) -> Measured:
    """Return this project's H100 measurements of forward convolutions, "conv" or "depthwise". There are too few rows to hold any out.

    Half-precision rows are channels_last, the layout that cuDNN's kernels are made for. f32 rows are contiguous, torch's default.
    """
    table = pd.read_csv(OPERATIONS)
    layout = "channels_last" if dtype == "bf16" else "NCHW"
    table = table[(table.family == "conv") & (table["pass"] == "forward") & (table.layout == layout)]
    table = table[table.dtype.isin(["bf16", "f16"] if dtype == "bf16" else [dtype])]
    rows = table[[is_depthwise(shapes) == (family == "depthwise") for shapes in table.shapes]]
    features = [
        kernel.features for row in rows.itertuples() for kernel in measured_convolution(row.shapes, dtype, ("output",))
    ]
    kernels = f"torch 2.11's cuDNN, {'channels_last' if dtype == 'bf16' else 'contiguous'}"
    return _measured(features, 1e3 * rows.seconds, [False] * len(rows), kernels, OWN)


def is_depthwise(shapes: str) -> bool:
    return sizes_in(shapes)["g"] == sizes_in(shapes)["c"]


def measured_convolution(shapes: str, dtype: str, computed: Sequence[str]) -> tuple[Kernel, ...]:
    """Return the kernels of a convolution in this project's own table. ``computed`` names the tensors that they compute."""
    sizes = sizes_in(shapes)
    place = {"f32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}[dtype]
    side, kernel = sizes["hw"] // sizes["s"], (sizes["k"], sizes["k"])
    input = Spec((sizes["b"], sizes["c"], sizes["hw"], sizes["hw"]), place)
    weight = Spec((sizes["out"], sizes["c"] // sizes["g"], *kernel), place)
    output = Spec((sizes["b"], sizes["out"], side, side), place)
    return convolution(input, weight, output, dtype, computed)


def sizes_in(shapes: str) -> dict[str, int]:
    """Return the sizes in a shapes cell of this project's own table, e.g. "b=8 heads=16"."""
    return {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", shapes)}


def attention_backward_h100() -> Measured:
    """Return this project's H100 measurements of flash attention's backward pass in torch. There are too few rows to hold any out."""
    table = pd.read_csv(OPERATIONS)
    rows = table[(table.family == "attention") & (table["pass"] == "backward") & table.layout.str.startswith("flash")]
    features = []
    for row in rows.itertuples():
        sizes = sizes_in(row.shapes)
        heads = sizes["heads"]
        features.append((sizes["b"], sizes["q"], sizes["k"], heads, heads, sizes["d"], "causal" in row.layout, 2))
    return _measured(features, 1e3 * rows.seconds, [False] * len(rows), "torch 2.11's flash attention", OWN)


def collectives(folder: Path) -> Iterator[tuple[str, str, Measured]]:
    """Yield each system's collectives within a node, measured with the newest NCCL version in the table."""
    table = pd.read_csv(folder / "aiconfigurator_comm.csv.gz", low_memory=False)
    table = table[table.kernel_source == "NCCL"].assign(system=lambda rows: rows.file.str.split("/").str[0])
    table = table[table.system.isin(SYSTEMS | LINKED)]
    for (system, op), rows in table.groupby(["system", "op_name"]):
        version = max(rows.version.dropna().unique(), key=lambda version: [*map(int, str(version).split("."))])
        rows = rows[rows.version == version]
        rows = rows.groupby(["nccl_dtype", "num_gpus", "message_size"], as_index=False).latency.median()
        turns = 2 if op == "all_reduce" else 1
        features = []
        for row in rows.itertuples():
            nbytes = row.message_size * {"half": 2, "int8": 1}[row.nccl_dtype]  # the size is in elements
            features.append((row.num_gpus, turns * (row.num_gpus - 1) / row.num_gpus * nbytes))
        held = [is_held_out(op, row.nccl_dtype, row.num_gpus, row.message_size) for row in rows.itertuples()]
        kind = {"alltoall": "all_to_all"}.get(str(op), str(op))
        yield str(system), kind, _measured(features, rows.latency, held, f"NCCL {version}", AICONFIGURATOR)


def card_of_system(system: str) -> Card:
    """Return the card of a system in aiconfigurator's tables."""
    card = card_of(find_device((SYSTEMS | LINKED)[system]))
    assert card is not None
    return card


def card_of_gpu(folder: Path, gpu: str) -> Card:
    """Return the card of a GPU in NeuSight's tables, with the sizes that NeuSight states."""
    for file in (folder / "neusight_device_configs").glob("*.json"):
        said: dict[str, Any] = json.loads(file.read_text())
        if said["Device"] == gpu and not file.stem.endswith("_TP"):
            device = find_device(GPUS[gpu])
            return Card(device, said["Num_Sm"], int(said["L2Cache"] * 2**20))
    raise FileNotFoundError(f"no description of {gpu} in {folder}")


def _kernels(rows: pd.DataFrame) -> str:
    version = f" {rows.version.mode()[0]}" if "version" in rows else f", {rows.source.mode()[0]}"
    return f"{rows.kernel_source.mode()[0]}{version}"


def _measured(
    features: Any, milliseconds: Any, held: list[bool], kernels: str, source: str, eager: bool = False
) -> Measured:
    seconds = torch.tensor(milliseconds.to_numpy() * 1e-3, dtype=torch.float64)
    return Measured(torch.tensor(features, dtype=torch.float64), seconds, torch.tensor(held), kernels, source, eager)

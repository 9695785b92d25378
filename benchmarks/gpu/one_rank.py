"""A one-process distributed job on the device, for ``benchmarks/gpu/failures.py``. It prints a line of JSON for each case.

    python -m benchmarks.gpu.one_rank nccl|gloo FOLDER

An ``all_reduce``, a step under DistributedDataParallel and a step of an FSDP2 model run inside ``fxflops.profile``. Their counts are
printed together with the counts of the plain model.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import fxflops


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))


def step(model: nn.Module, x: torch.Tensor) -> fxflops.Report:
    """Profile a forward and a backward pass."""
    with fxflops.profile(model) as p:
        model(x).square().mean().backward()
    return p.report


def sent(report: fxflops.Report) -> dict[str, int]:
    """Return the number of calls of each communication operation."""
    calls: dict[str, int] = {}
    for each in report.counted:
        if each.how == "communication":
            calls[each.call.op] = calls.get(each.call.op, 0) + 1
    return calls


def main() -> None:
    backend, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    device = torch.device("cuda:0" if backend == "nccl" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, store=dist.FileStore(str(Path(folder) / "store"), 1), rank=0, world_size=1)
    mesh = init_device_mesh(device.type, (1,))
    torch.manual_seed(0)
    plain, x = net().to(device), torch.randn(64, 128, device=device)
    alone = step(plain, x)

    def reduced() -> dict[str, Any]:
        tensor = torch.ones(1000, device=device)
        with fxflops.profile() as p:
            dist.all_reduce(tensor)
        return {"sent": sent(p.report), "complete": p.report.complete}

    def replicated() -> dict[str, Any]:
        model = nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
        return compared(step(model, x), fxflops.count(model, x, backward=True))

    def sharded() -> dict[str, Any]:
        model = copy.deepcopy(plain)
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return compared(step(model, x), fxflops.count(model, x, backward=True))

    def compared(profiled: fxflops.Report, counted: fxflops.Report) -> dict[str, Any]:
        macs = {
            "alone": [alone.total_macs, alone.total_backward_macs],
            "profiled": [profiled.total_macs, profiled.total_backward_macs],
            "counted": [counted.total_macs, counted.total_backward_macs],
        }
        return {"macs": macs, "sent": sent(profiled), "complete": profiled.complete, "seconds": profiled.block_time}

    cases: dict[str, Callable[[], dict[str, Any]]] = {"all_reduce": reduced, "DDP": replicated, "FSDP2": sharded}
    for name, run in cases.items():
        # Print each line at once, so that it is not lost if a later case hangs.
        print(json.dumps({"case": name, **run()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

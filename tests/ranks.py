"""Training steps on several Gloo processes, each run once plainly and once under fxflops; the cases of test_distributed.py.

``python tests/ranks.py FOLDER PROCESSES [CASE ...]`` forks the processes, runs the cases in each, and writes
``FOLDER/RANK.json``: the facts of that rank's report, by case. A case ``simulate_NAME`` is not run. Instead, once the processes
have left their group, the first one simulates all ranks of the case NAME and writes their facts to ``FOLDER/simulated.json``.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # loaded by DistributedDataParallel
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import fxflops
from fxflops.cli.app import app
from fxflops.distributed import simulate

ROWS, WIDTH, HIDDEN = 4, 8, 16
BATCH, TOKENS, HEADS = 2, 4, 2
STEPS = 5


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Causal attention over the heads that this process has."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A Llama block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.norm2 = nn.RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


def rows() -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))


def ddp(mesh: DeviceMesh) -> Any:
    model, x = nn.parallel.DistributedDataParallel(Mlp()), rows()
    return model, lambda: model(x).sum()


def fsdp(mesh: DeviceMesh) -> Any:
    model, x = Mlp(), rows()
    for part in (model.up, model.down, model):
        fully_shard(part, mesh=mesh)
    return model, lambda: model(x).sum()


def fsdp_columns(mesh: DeviceMesh) -> Any:
    """Weights sharded along their second dimension: FSDP gathers them into one tensor and copies it to another."""
    model, x = Mlp(), rows()
    for part in (model.up, model.down, model):
        fully_shard(part, mesh=mesh, shard_placement_fn=lambda weight: Shard(weight.ndim - 1))
    return model, lambda: model(x).sum()


def fsdp1(mesh: DeviceMesh) -> Any:
    """FSDP1, which resizes memory that existed before the observed steps."""
    model, x, cpu = Mlp(), rows(), torch.device("cpu")
    model.up, model.down = (FullyShardedDataParallel(part, device_id=cpu) for part in (model.up, model.down))  # type: ignore[assignment]
    return model, lambda: model(x).sum()


def tp(mesh: DeviceMesh) -> Any:
    model = parallelize_module(Mlp(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    x = torch.ones(ROWS, WIDTH, requires_grad=True)
    return model, lambda: model(x).sum()


def sequence_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    """Make a block tensor and sequence parallel, with the same plan as torchtitan's parallelize_llama."""
    plan = {
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "gate": ColwiseParallel(input_layouts=Shard(1)),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(model, mesh, plan)


def tp_sp(mesh: DeviceMesh) -> Any:
    model = sequence_parallel(Block(), mesh)
    x = torch.ones(BATCH, TOKENS, WIDTH).chunk(mesh.size(), dim=1)[mesh.get_local_rank()].requires_grad_()
    return model, lambda: model(x).sum()


def pp(mesh: DeviceMesh) -> Any:
    """Two stages and four microbatches, scheduled as 1F1B."""
    rank, narrow, wide = dist.get_rank(), torch.ones(1, WIDTH), torch.ones(1, HIDDEN, requires_grad=True)
    model, given, out = (nn.Linear(HIDDEN, WIDTH), wide, narrow) if rank else (nn.Linear(WIDTH, HIDDEN), narrow, wide)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"), input_args=given, output_args=out)
    schedule = Schedule1F1B(stage, n_microbatches=ROWS, loss_fn=lambda y, target: (y - target).square().sum())
    x, target = torch.ones(ROWS, WIDTH), torch.ones(ROWS, WIDTH)

    def step() -> Tensor:
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)
        return torch.stack(losses).sum().detach() if losses else torch.zeros(())

    return model, step


class Experts(nn.Module):
    """A mixture of two experts, one per process. A quarter of the tokens goes to the first, the rest to the second."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        sent = [len(x) // 4, len(x) - len(x) // 4]
        received = [sent[dist.get_rank()]] * 2
        tokens = functional.all_to_all_single_autograd(x, received, sent, dist.group.WORLD)
        y = self.expert(tokens)
        return functional.all_to_all_single_autograd(y, sent, received, dist.group.WORLD)


def ep(mesh: DeviceMesh) -> Any:
    model, x = Experts(), torch.ones(ROWS, WIDTH, requires_grad=True)
    return model, lambda: model(x).sum()


class Shift(torch.autograd.Function):
    """Send a tensor to the next process and receive the previous one's; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _passed(x, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return _passed(grad, -1)


def _passed(x: Tensor, by: int) -> Tensor:
    x, rank, size = x.contiguous(), dist.get_rank(), dist.get_world_size()
    out = torch.empty_like(x)
    sent = dist.P2POp(dist.isend, x, (rank + by) % size)
    taken = dist.P2POp(dist.irecv, out, (rank - by) % size)
    for work in dist.batch_isend_irecv([sent, taken]):
        work.wait()
    return out


class Ring(nn.Module):
    """Attention over a sequence split across the processes: keys and values go around the ring."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores, values = [], []
        for turn in range(dist.get_world_size()):
            if turn:
                k, v = Shift.apply(k), Shift.apply(v)
            scores.append(q @ k.mT)
            values.append(v)
        parts = torch.cat(scores, -1).softmax(-1).chunk(len(values), -1)
        y = parts[0] @ values[0]
        for part, value in zip(parts[1:], values[1:], strict=True):
            y = y + part @ value
        return y


def ring(mesh: DeviceMesh) -> Any:
    model = Ring()
    q, k, v = (torch.ones(BATCH, TOKENS // 2, WIDTH, requires_grad=True) for _ in range(3))
    model.held = [q, k, v]
    return model, lambda: model(q, k, v).sum()


def fsdp_tp(mesh: DeviceMesh) -> Any:
    """Blocks that are tensor parallel along one mesh dimension and sharded along the other."""
    model = nn.Sequential(Block(), Block())
    for block in model:
        fully_shard(sequence_parallel(block, mesh["tp"]), mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    x = torch.ones(BATCH, TOKENS, WIDTH).chunk(mesh["tp"].size(), dim=1)[mesh.get_local_rank("tp")].requires_grad_()
    return model, lambda: model(x).sum()


CASES = {f.__name__: f for f in (ddp, fsdp, fsdp_columns, fsdp1, tp, tp_sp, pp, ep, ring, fsdp_tp)}
MESHES = {"fsdp_tp": {"dp": 2, "tp": 2}, "tp": {"tp": 2}, "tp_sp": {"tp": 2}, "pp": {"pp": 2}}
"""The meshes of the cases; the default is {"dp": 2}."""


def mesh_of(case: str) -> DeviceMesh:
    """Return the mesh of a case, over the running processes."""
    sizes = MESHES.get(case, {"dp": 2})
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def prepared(case: str, mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]:
    """Return a new model, its optimizer, and a function that does a training step."""
    torch.manual_seed(0)
    model, run = CASES[case](mesh)
    optimizer = torch.optim.AdamW([*model.parameters()] or [nn.Parameter(torch.ones(()))], lr=0.1)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = run()
        if loss.requires_grad:
            loss.backward()
        if dist.get_backend() == "gloo":
            time.sleep(0.02)  # Gloo's threads release the tensors of a collective shortly after it has ended
        optimizer.step()
        return loss

    return model, optimizer, step


def alive() -> dict[int, torch.UntypedStorage]:
    """Return the storages of all tensors the garbage collector finds, by address."""
    gc.collect()
    plain = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]
    return {storage._cdata: storage for each in plain for storage in [each.untyped_storage()]}


def trained(case: str, watch: Callable[..., AbstractContextManager[Any]]) -> tuple[list[Any], list[int], list[Tensor]]:
    """Train a new model for several steps, watching all but the first.

    Return the watchers, the bytes alive after each step, and the loss, weights and gradients.
    """
    # Kept alive, so that no storage of the steps gets the address of one of these.
    before = alive()
    model, optimizer, step = prepared(case, mesh_of(case))
    step()
    seen, left = [], []
    for _ in range(STEPS):
        gc.collect()
        with watch(model, optimizer=optimizer) as each:
            loss = step()
        seen.append(each)
        left.append(sum(storage.nbytes() for address, storage in alive().items() if address not in before))
    tensors = [loss, *(p for p in model.parameters()), *(p.grad for p in model.parameters() if p.grad is not None)]
    tensors += [x.grad for x in getattr(model, "held", ())]
    return (
        seen,
        left,
        [getattr(tensor, "to_local", lambda tensor=tensor: tensor)().detach().clone() for tensor in tensors],
    )


def told(case: str) -> dict[str, Any]:
    """Return the facts of a training step's report, and whether the steps had the same results without it.

    In some steps Gloo's threads hold tensors a while longer, which can add to the peak, so the lowest peak of all steps is taken.
    """
    *_, plain = trained(case, lambda *args, **kwargs: nullcontext())
    seen, left, watched = trained(case, fxflops.profile)
    same = len(plain) == len(watched) and all(map(torch.equal, plain, watched))
    found = [facts(each.report) for each in seen]
    lowest = min((each["memory"] for each in found[::-1]), key=lambda memory: sum(memory.values()))
    return found[-1] | {
        "memory": lowest,
        "uncopied": min(each["uncopied"] for each in found),
        "same": same,
        "left": left,
    }


def facts(report: fxflops.Report) -> dict[str, Any]:
    assert report.params is not None
    return {
        "complete": report.complete,
        "forward": report.total_macs,
        "backward": report.total_backward_macs,
        "flops": sum(each.flops for each in report.counted),
        "params": [report.params.total, report.params.sharded],
        "collectives": [list(row)[:-1] for row in report.collectives],
        "memory": dict(report.memory),
        "last": report.timeline[-1].total,
        # Without the copy that Gloo's reduce_scatter sums into: it is only alive during a split.
        "uncopied": max(moment.total for moment in report.timeline if moment.op != "split"),
    }


def simulated(case: str) -> list[dict[str, Any]]:
    """Return the same facts for each rank, from a simulation instead of processes."""

    def build(mesh: DeviceMesh) -> Any:
        model, _, step = prepared(case, mesh)
        return model, step

    sizes = MESHES.get(case, {"dp": 2})
    kinds = simulate(build, sizes, differs=[*sizes]).kinds
    return [facts(kind.report) for kind in kinds for _ in range(kind.ranks)]


def gathered(_: str) -> list[Any]:
    """Return the result of ``gather`` on this rank.

    The cases: reports of different inputs; rank 1 is late; one rank calls it alone; one rank has a count, the other a profile.
    """
    mlp, rank = Mlp(), dist.get_rank()
    reports = [fxflops.count(mlp, torch.ones(rows, WIDTH)) for rows in (ROWS, 3 * ROWS)]
    found = reports[rank].gather(whole=reports[0])
    late = ""
    if rank == 1:
        dist.barrier()
    try:
        reports[rank].gather(timeout=0.3)
    except fxflops.DistributedError as error:
        late = str(error)
    if rank == 0:
        dist.barrier()
    again = reports[rank].gather(timeout=60)  # the late rank does not spoil the next gather
    work = {path: list(row) for path, row in (found.modules or {}).items()}
    alone = ""
    for caller in (1, 0):  # data that rank 1 left behind is not mistaken for its next report
        if rank == caller:
            try:
                reports[rank].gather(timeout=0.1)
            except fxflops.DistributedError as error:
                alone = str(error)
        dist.barrier()
    mixed = ""
    with fxflops.profile(mlp) as p:
        mlp(torch.ones(ROWS, WIDTH))
    try:
        (p.report if rank else reports[0]).gather(timeout=60)
    except fxflops.InputError as error:
        mixed = str(error)
    last = reports[rank].gather(timeout=60)
    equal = [each.ranks == found.ranks for each in (again, last)]
    return [found.sum.macs, found.max.macs, found.imbalance["macs"], work, late, alone, mixed, equal]


def replicated(_: str) -> list[Any]:
    """Return a DistributedDataParallel step's work by module, compared with one process, and the last line of the printed report."""

    def step(model: nn.Module, x: Tensor) -> fxflops.Report:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fxflops.profile(model, optimizer=optimizer) as p:
            model(x).sum().backward()
            optimizer.step()
        return p.report

    whole = step(Mlp(), torch.ones(2 * ROWS, WIDTH))
    found = step(nn.parallel.DistributedDataParallel(Mlp()), rows()).gather(whole=whole)
    return [{path: list(row) for path, row in (found.modules or {}).items()}, str(found).splitlines()[-1]]


def printed(_: str) -> str:
    """Return what ``fxflops run`` prints on this rank. It also ends the process group."""
    file, out = Path(sys.argv[1]) / f"model{dist.get_rank()}.py", io.StringIO()
    file.write_text("import ranks\ndef make(): return ranks.tp(ranks.mesh_of('tp'))[0]\n")
    with redirect_stdout(out):
        app(["run", f"{file}:make", "--input", f"{ROWS},{WIDTH}"], standalone_mode=False)
    return out.getvalue()


def analyzed(case: str) -> list[Any]:
    """Return the MACs that a timed ``analyze`` and ``count`` report for a tensor parallel or sharded model."""
    model, _ = CASES[case](mesh_of(case))
    before = [parameter.to_local().clone() for parameter in model.parameters()]
    report = fxflops.analyze(model, torch.ones(ROWS, WIDTH), backward=True, progress=False)
    after = [parameter.to_local() for parameter in model.parameters()]
    timed = report.latency is not None and report.latency > 0
    same = all(map(torch.equal, before, after))
    counted = fxflops.count(model, torch.ones(ROWS, WIDTH), backward=True)
    macs = [[each.total_macs, each.total_backward_macs, each.complete] for each in (report, counted)]
    return [*macs, timed, same]


def between(_: str) -> dict[str, list[bool]]:
    """Count a sharded model at different points of its life. Return two checks for each order of calls.

    Its parameters are as they were before the count, and its next step has the gradients of a model that was not counted.
    """

    def step(model: nn.Module) -> list[Tensor]:
        model.zero_grad()
        model(rows()).sum().backward()
        return [parameter.grad.to_local() for parameter in model.parameters()]  # type: ignore[union-attr]

    def evaluated(model: nn.Module) -> None:
        with torch.no_grad():
            model.eval()(rows())
            model.train()

    found = {}
    for first in (id, step, evaluated):
        for counted in (fxflops.count, fxflops.analyze):
            for backward in (False, True):
                model = Mlp()
                other = deepcopy(model)
                for each in (model, other):
                    fully_shard(each.up, mesh=mesh_of("fsdp"))
                    fully_shard(each, mesh=mesh_of("fsdp"))
                    first(each)
                before = [(id(parameter), parameter.untyped_storage().nbytes()) for parameter in model.parameters()]
                counted(model, rows(), backward=backward)
                after = [(id(parameter), parameter.untyped_storage().nbytes()) for parameter in model.parameters()]
                same = [before == after, all(map(torch.equal, step(model), step(other)))]
                found[f"{first.__name__} {counted.__name__} {backward}"] = same
    return found


def ranks_of(folder: Path, size: int) -> Iterator[tuple[int, list[int]]]:
    """Fork; yield this process's rank, and rank 0's children."""
    children: list[int] = []
    for rank in range(1, size):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # see one_thread_after_fork in tests/fresh.py
            yield rank, []
            return
        children.append(child)
    yield 0, children


if __name__ == "__main__":
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    # A garbage collection over all imported modules takes a third of a second each time.
    gc.freeze()
    cases = [name for name in sys.argv[3:] if not name.startswith("simulate_")]
    to_simulate = [name.removeprefix("simulate_") for name in sys.argv[3:] if name not in cases]
    for rank, children in ranks_of(folder, size):
        # A rank waits half an hour for a rank that has died. Dump where it waits before that.
        faulthandler.dump_traceback_later(600, exit=True)
        dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=size)
        told_by: dict[str, Any] = {}
        for name in cases:
            kind, _, case = (
                name.rpartition("_")
                if name.startswith(("analyze", "between", "gather", "print", "replicate"))
                else ("", "", name)
            )
            try:
                told_by[name] = {
                    "analyze": analyzed,
                    "between": between,
                    "gather": gathered,
                    "print": printed,
                    "replicate": replicated,
                }.get(kind, told)(case)
            except Exception:
                told_by[name] = traceback.format_exc()[-3000:]
        (folder / f"{rank}.json").write_text(json.dumps(told_by))
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(ended):
            sys.exit(f"the other ranks ended with {ended}")
        if dist.is_initialized():
            dist.destroy_process_group()
        if rank == 0 and to_simulate:
            found: dict[str, Any] = {}
            for name in to_simulate:
                try:
                    found[name] = simulated(name)
                except Exception:
                    found[name] = [traceback.format_exc()[-3000:]]
            (folder / "simulated.json").write_text(json.dumps(found))

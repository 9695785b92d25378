"""Simulated ranks: the requirements on ``build`` and on the mesh, which ranks represent others, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

from fxflops.distributed import simulate
from fxflops.errors import InputError, RunError
from fxflops.records import specs_in
from fxflops.trace import fake_results
from tests.distributed import simulates

pytestmark = [
    simulates,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # from torch.distributed itself
]
ROWS, WIDTH = 4, 8
F32 = 4
HERE = os.getpid()


def linear(mesh: Any) -> Any:
    layer, x = nn.Linear(WIDTH, WIDTH, bias=False), torch.ones(ROWS, WIDTH)
    return layer, lambda: layer(x).sum().backward()


def stages(mesh: Any) -> Any:
    """A pipeline whose last stage has one layer more, and which sends nothing."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(1 + (mesh.get_local_rank("pp") == 2))))
    return model, lambda: model(torch.ones(ROWS, WIDTH))


def test_alike_ranks_stand_for_each_other() -> None:
    found = simulate(stages, {"dp": 4, "pp": 3})
    assert (found.ranks, found.differs, found.complete) == (12, ("pp",), True)
    assert [(kind.at["pp"], kind.ranks) for kind in found.kinds] == [(0, 8), (2, 4)]
    assert [kind.report.total_macs for kind in found.kinds] == [256, 512]  # ROWS * WIDTH * WIDTH per layer
    assert [row[:3] for row in found.table] == [("pp 0", 8, 256), ("pp 2", 4, 512)]
    given = simulate(stages, {"dp": 4, "pp": 3}, differs=["pp"])
    assert [kind.report.total_macs for kind in given.kinds] == [256, 512]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="autograd has threads for it, and no copy can go backward")
@pytest.mark.usefixtures("_forks")
def test_ranks_in_copies_of_this_process() -> None:
    alone, several = (simulate(stages, {"dp": 2, "pp": 3}, processes=processes) for processes in (1, 2))
    assert several.kinds == alone.kinds

    def build(mesh: Any) -> Any:
        if mesh.get_local_rank("pp") == 1:
            raise ValueError("no such stage")
        return stages(mesh)

    with pytest.raises(ValueError, match="no such stage") as error:
        simulate(build, {"dp": 2, "pp": 3}, differs=["pp"], processes=2)
    assert isinstance(error.value, RunError)
    assert str(error.value).startswith("rank 1 (dp 0, pp 1) raised\n")

    def killed(mesh: Any) -> Any:
        if mesh.get_local_rank("pp") == 2 and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return stages(mesh)

    with pytest.raises(RunError, match=r"rank 2 \(dp 0, pp 2\): the process that ran this simulation ended early"):
        simulate(killed, {"dp": 2, "pp": 3}, differs=["pp"], processes=2)
    assert not dist.is_initialized()


def test_a_simulation_shows_and_exports_its_ranks() -> None:
    found = simulate(stages, {"dp": 4, "pp": 3}, differs=["pp"])
    assert repr(found) == str(found)
    assert f"torch {torch.__version__}" in found.provenance
    first, last = found.to_dicts()
    layer = WIDTH * WIDTH
    assert (first["params"], first["bytes_params"]) == (layer, F32 * layer)
    assert (last["params"], last["bytes_params"]) == (2 * layer, F32 * 2 * layer)
    assert found.provenance in str(found.to_csv())
    page = str(found.to_html())
    assert "most work: pp 2, " in page
    assert "pp 0 <small>x8</small>" in page
    assert "<p>Sequential on dp 4 x pp 3 = 12 ranks, a training step</p>" in found._repr_html_()


def test_a_step_of_2048_ranks() -> None:
    found = simulate(linear, {"dp": 64, "tp": 8, "pp": 4})
    assert [(kind.ranks, kind.report.total_macs) for kind in found.kinds] == [(2048, ROWS * WIDTH * WIDTH)]
    weight = F32 * WIDTH * WIDTH
    assert found.kinds[0].report.memory["params"] == found.kinds[0].report.memory["gradients"] == weight
    assert found.max_memory >= 2 * weight
    assert "dp 64 x tp 8 x pp 4 = 2048 ranks" in str(found)


def test_collectives_have_their_mesh_dimension() -> None:
    def build(mesh: Any) -> Any:
        x = torch.ones(6)

        def step() -> None:
            for name in ("dp", "tp"):
                dist.all_reduce(x, group=mesh.get_group(name))

        return nn.Identity(), step

    found = simulate(build, {"dp": 3, "tp": 2})
    # 24 bytes: 2 (n-1)/n of them are 32 for n = 3, and 24 for n = 2.
    assert [row[1:] for row in found.collectives] == [
        ("all_reduce", "dp", 3, 1, 32, 32),
        ("all_reduce", "tp", 2, 1, 24, 24),
    ]


def test_a_loss_on_sharded_logits_has_the_shard_alone() -> None:
    """A vocabulary of 512, sharded over four ranks. DTensor runs on tensors of the full shape to find shapes; these must not count."""
    rows, classes, tp = 16, 512, 4

    def build(mesh: Any) -> Any:
        head = nn.Linear(WIDTH, classes, bias=False)
        parallelize_module(head, mesh, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
        x, target = torch.ones(rows, WIDTH), torch.zeros(rows, dtype=torch.long)

        def step() -> None:
            with loss_parallel():
                F.cross_entropy(head(x), target).backward()

        return head, step

    (kind,) = simulate(build, {"tp": tp}, differs=()).kinds
    largest = max(spec.numel() for each in kind.report.counted for spec in specs_in(each.call.out))
    assert kind.report.complete
    assert largest == rows * classes // tp
    # At the peak: the weight and its gradient, or five tensors of log-softmax and its backward. With the whole vocabulary it would
    # be four times as much.
    assert kind.report.max_memory < F32 * classes * (2 * WIDTH + 5 * rows) // tp


def test_a_mask_has_no_values() -> None:
    def build(mesh: Any) -> Any:
        q, mask = torch.ones(1, 2, ROWS, WIDTH), torch.ones(ROWS, ROWS, dtype=torch.bool)
        return nn.Identity(), lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    (kind,) = simulate(build, {"dp": 2}, differs=()).kinds
    assert kind.report.total_macs == 2 * 2 * ROWS * ROWS * WIDTH  # all pairs of two heads, in two products


@pytest.mark.parametrize("mesh", [{}, {"dp": 0}, {"dp": "2"}, 8, [("dp", 8)], {0: 2}])
def test_a_mesh_has_sizes(mesh: Any) -> None:
    with pytest.raises(InputError, match="mesh must map names of dimensions to sizes"):
        simulate(linear, mesh)


def test_what_differs_is_in_the_mesh() -> None:
    with pytest.raises(InputError, match="differs: unknown dimensions 'pp'; the mesh has dp"):
        simulate(linear, {"dp": 2}, differs=["pp"])
    with pytest.raises(InputError, match=r"differs must be a list of dimensions, such as \['dp'\], not 'dp'"):
        simulate(linear, {"dp": 2}, differs="dp")


def test_build_returns_a_model_and_a_step() -> None:
    model = nn.Linear(1, 1)
    for made, said in (
        (model, "Linear"),
        ((model.forward, model), "method, Linear"),
        ((model, model.forward, 1), "int"),
    ):
        with pytest.raises(
            InputError, match=rf"the model and a function that runs a step, in this order, not \(.*{said}\)"
        ):
            simulate(lambda mesh, made=made: made, {"dp": 2})  # type: ignore[misc]
    with pytest.raises(
        InputError, match="build must be a function that takes the mesh and returns a model and its step, not L"
    ):
        simulate(model, {"dp": 2})
    with pytest.raises(
        InputError,
        match=r"with layers=, build must take two arguments, the mesh and the number of layers: build\(mesh, la",
    ):
        simulate(linear, {"dp": 2}, layers=8)


def test_a_step_that_reads_a_value_is_told() -> None:
    def build(mesh: Any) -> Any:
        model = nn.Linear(1, 1)
        return model, lambda: model(torch.ones(1)).int().item()

    with pytest.raises(RunError, match=r"local_scalar_dense.*: the step reads the value of a tensor \(item\(\), bool"):
        simulate(build, {"dp": 2})


def test_dtypes_that_no_device_takes_together() -> None:
    def build(mesh: Any) -> Any:
        model, x = nn.Linear(8, 8).bfloat16(), torch.ones(4, 8)
        return model, lambda: model(x)

    told = r"tensors of addmm do not have the same dtype \(bfloat16, float32\).*\n  at .*test_simulation\.py:\d+ in <lambda>"
    with pytest.raises(RunError, match=told):
        simulate(build, {"dp": 2})


class Partly(nn.Module):
    """A batch norm with running statistics, and a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.unused = nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("used", "options", "hook", "gradients"),
    [
        # Plus an int32 for each of four parameters, which says whether it was used.
        (False, {"find_unused_parameters": True}, None, F32 * (16 + 72) + 4 * 4),
        (True, {}, None, F32 * 16),
        (True, {"static_graph": True}, None, F32 * 16),
        (True, {"gradient_as_bucket_view": True}, None, F32 * 16),
        (True, {}, default_hooks.fp16_compress_hook, F32 * 16 // 2),
    ],
    ids=["unused", "plain", "static", "view", "fp16"],
)
def test_distributed_data_parallel(used: bool, options: dict[str, bool], hook: Any, gradients: int) -> None:
    def build(mesh: Any) -> Any:
        model = nn.BatchNorm1d(8) if used else Partly()
        replica = nn.parallel.DistributedDataParallel(model, device_mesh=mesh["dp"], **options)
        if hook is not None:
            replica.register_comm_hook(mesh["dp"].get_group(), hook)
        return replica, lambda: replica(torch.ones(4, 8)).sum().backward()

    first, other = simulate(build, {"dp": 4, "tp": 2}).kinds
    assert (first.at, first.ranks, other.ranks) == ({"dp": 0, "tp": 0}, 2, 6)
    # The norm's statistics, and the number of batches. The first rank sends them to the others.
    statistics = F32 * 2 * 8 + 8
    path = "module" if used else "module.norm"
    for kind, sent, received in ((first, statistics, 0), (other, 0, statistics)):
        by_op = {row.op: (row.path, row.group, row.ranks, row.sent, row.received) for row in kind.report.collectives}
        summed = 2 * 3 * gradients // 4
        assert kind.report.complete
        assert by_op == {"broadcast": ("", "dp", 4, sent, received), "all_reduce": (path, "dp", 4, summed, summed)}


def test_a_model_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(mesh: Any) -> Any:
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).to(torch.bfloat16)
        return model, lambda: model(torch.ones(2, 8, dtype=torch.bfloat16)).sum().backward()

    monkeypatch.setattr(fake_results, "_REMEMBERED", {})  # as in the first simulation of a process
    report = simulate(build, {"dp": 2}, differs=[]).kinds[0].report
    assert report.memory["params"] == 2 * (8 * 8 + 3 * 8)


def test_layers_with_buckets_are_all_run() -> None:
    made = set()

    def build(mesh: Any, layers: int) -> Any:
        made.add(layers)
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
        replica = nn.parallel.DistributedDataParallel(model)
        return replica, lambda: replica(torch.ones(2, 8)).sum().backward()

    found = simulate(build, {"dp": 2}, layers=12)
    assert found.layers is None
    assert made == {4, 12}  # the first shallow model showed that there are buckets
    assert found.kinds[0].report.total_macs == 12 * 2 * 8 * 8


def test_an_error_names_the_rank_and_leaves_no_process_group() -> None:
    def build(mesh: Any) -> Any:
        if mesh.get_local_rank("tp") == 1:
            raise ValueError("no such layer")
        return linear(mesh)

    with pytest.raises(RunError, match=r"rank 1 \(dp 0, tp 1\) raised\n  ValueError: no such layer"):
        simulate(build, {"dp": 2, "tp": 2})
    assert not dist.is_initialized()


def test_a_step_that_catches_the_error_of_reading_a_value_is_not_complete() -> None:
    def build(mesh: Any) -> Any:
        model = nn.Linear(8, 8)

        def step() -> torch.Tensor:
            y = model(torch.ones(4, 8))
            try:
                return y * y.sum().item()
            except Exception:  # not raised on a real rank
                return y.exp()

        return model, step

    (kind,) = simulate(build, {"dp": 2}, differs=()).kinds
    assert [missing.op for missing in kind.report.missing] == ["read of a value"]


def test_it_needs_a_process_without_a_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(InputError, match=r"call simulate\(\) before torch\.distributed is initialized"):
            simulate(linear, {"dp": 2})
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("dim", [0, 1])
def test_memory_is_that_of_torchs_own_tracker(dim: int) -> None:
    tracking = pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker", reason="no tracker in this torch")
    from torch.distributed.fsdp import fully_shard

    told: dict[str, int] = {}

    def build(mesh: Any) -> Any:
        blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(3)]
        model = nn.Sequential(*blocks)
        for part in (*model, model):
            fully_shard(part, mesh=mesh, shard_placement_fn=lambda weight: Shard(min(dim, weight.ndim - 1)))
        optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(ROWS, WIDTH)

        def train() -> None:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        def step() -> None:
            train()
            if not told:
                gc.collect()
                tracker = tracking.FSDPMemTracker(model, optimizer)
                with tracker:
                    train()
                (peak,) = tracker.get_tracker_snapshot("peak").values()
                told.update({str(kind).rpartition(".")[2]: nbytes for kind, nbytes in peak.items()})

        return model, step

    (kind,) = simulate(build, {"dp": 4}, differs=()).kinds
    memory = kind.report.memory
    assert kind.report.max_memory == told["Total"] + memory["inputs"]  # which the tracker does not know about
    assert (memory["params"], memory["optimizer"]) == (told["SHARDED_PARAM"], told["OPT"])


def test_torchs_own_context_parallel() -> None:
    """Context parallel's attention has no CPU kernel, but its operators run on fake tensors. A sequence is cut into eight pieces; the
    first rank has the first piece and the last.
    """
    cp, heads, width, tokens = 4, 2, 8, 64
    mine = tokens // cp

    def build(mesh: Any) -> Any:
        layer, x = nn.Linear(WIDTH, 3 * heads * width, bias=False), torch.ones(1, tokens, WIDTH)

        def step() -> None:
            y = x.clone()
            with context_parallel(mesh["cp"], buffers=[y], buffer_seq_dims=[1]):
                q, k, v = (
                    DTensor.from_local(t.unflatten(-1, (heads, width)).transpose(1, 2), mesh["cp"], [Shard(2)])
                    for t in layer(y).chunk(3, -1)
                )
                out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
                out.to_local().sum().backward()

        return layer, step

    (kind,) = simulate(build, {"dp": 2, "cp": cp}, differs=()).kinds
    assert kind.report.complete
    # A rank counts all pairs with its own keys, and half of the pairs with each other rank's keys: its later piece with both of
    # theirs, or both of its pieces with their earlier one.
    pairs = mine * mine + (cp - 1) * mine * mine // 2
    attention = [each.macs for each in kind.report.counted if each.call.op == "attention"]
    assert sum(attention) == 2 * heads * width * pairs
    keys_and_values = 2 * heads * mine * width * F32
    # Keys and values are gathered in forward and again in backward, where their gradients go around the ring: one shift per rank.
    moved = {(row.op, row.group): (row.calls, row.sent) for row in kind.collectives}
    assert moved[("all_gather", "cp")] == (2, 2 * (cp - 1) * keys_and_values)
    assert moved[("all_to_all", "cp")] == (cp, cp * keys_and_values)

"""Models on several processes: collectives move bytes and compute nothing; sharded layers cost what their shards compute."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import distributed as dist
from torch import nn

import fxflops
from benchmarks.allocator import allocated
from fxflops.roofline.traffic import Traffic, traffic_of
from tests.distributed import CAN_SIMULATE, simulates
from tests.fresh import Fresh

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed"),
    pytest.mark.filterwarnings("ignore"),  # torch.distributed warns of its backends
]
ROWS, INPUTS, HIDDEN, OUTPUTS = 3, 8, 16, 4
X = torch.randn(ROWS, INPUTS)
FORWARD = ROWS * (INPUTS * HIDDEN + HIDDEN * OUTPUTS)
BACKWARD = ROWS * (INPUTS * HIDDEN + 2 * HIDDEN * OUTPUTS)
WEIGHTS = INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def trained(model: nn.Module) -> fxflops.Report:
    """Profile a training step, the second one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with fxflops.profile(model) as p:
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return p.report


def test_a_replicated_model_sends_its_gradients(mesh: Any) -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(OUTPUTS))
    report = trained(nn.parallel.DistributedDataParallel(model))
    assert report.complete
    assert (report.total_macs, report.total_backward_macs) == (FORWARD, BACKWARD)
    sent = {each.call.op: traffic_of(each) for each in report.counted if each.how == "communication"}
    parameters = 4 * (WEIGHTS + 2 * OUTPUTS)
    assert sent["allreduce"] == Traffic(parameters, parameters)
    assert sent["broadcast"].read > 0
    assert report.roofline("H100", "backward").by_operator()["allreduce"].bytes == 2 * parameters


class Averages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, HIDDEN)

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(3):
            dist.all_reduce(x)
        return self.layer(x)


def test_the_time_of_collectives_counts_once(mesh: Any) -> None:
    model, x = Averages(), torch.randn(50_000, INPUTS)
    with torch.no_grad(), fxflops.profile(model) as p:
        model(x)
    rows = p.report.by_operator()
    assert rows["allreduce"].calls == 3
    assert sum(row.seconds or 0.0 for row in rows.values()) == pytest.approx(p.report.step_times()["step 1"].forward)


def test_weights_copied_on_one_rank_have_the_peak_of_the_allocator(mesh: Any) -> None:
    """On one rank, FSDP allocates the bfloat16 weights by resizing a storage, and frees them so after the forward."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    wide = nn.Sequential(nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False))
    model = fully_shard(wide, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    x, optimizer = torch.randn(ROWS, 64), torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    peak = allocated(step).peak + 4 * (x.numel() + 2 * 64 * 256)
    with fxflops.profile(model, optimizer=optimizer) as p:
        step()
    assert sum(p.report.memory.values()) == pytest.approx(peak, abs=64)


def test_buckets_of_gradients_are_held_all_along(mesh: Any) -> None:
    model = nn.parallel.DistributedDataParallel(net())
    for _ in range(2):  # the buckets are rebuilt before the second step
        model(X).sum().backward()
    model.zero_grad()
    with fxflops.profile(model) as p:
        loss = model(X).sum()
        loss.backward()
    first, last = p.report.timeline[0], p.report.timeline[-1]
    assert (first.phase, first.live["gradients"]) == ("forward", 4 * WEIGHTS)
    assert last.live["gradients"] == 2 * 4 * WEIGHTS  # the buckets', and the parameters' own


def sharded(mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def split(mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


@pytest.mark.parametrize("make", [sharded, split])
def test_sharded_layers(mesh: Any, make: Callable[[Any], nn.Module]) -> None:
    report = trained(make(mesh))
    assert report.complete
    assert (report.total_macs, report.total_backward_macs) == (FORWARD, BACKWARD)
    model = make(mesh)
    before = [parameter.detach().to_local().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]
    assert fxflops.count(model, X).total_macs == FORWARD
    assert fxflops.count(model, X, backward=True).total_backward_macs == BACKWARD
    assert fxflops.analyze(model, X, repeats=1, progress=False).total_macs == FORWARD
    analyzed = fxflops.analyze(model, X, backward=True, repeats=1, progress=False)
    assert (analyzed.total_macs, analyzed.total_backward_macs, analyzed.complete) == (FORWARD, BACKWARD, True)
    after = [parameter.to_local() for parameter in model.parameters()]  # type: ignore[attr-defined]
    assert all(map(torch.equal, before, after))


def test_sharded_layers_made_ready_for_replicas(mesh: Any) -> None:
    """After this transform the parameters are views. autograd refuses to give their node once an optimizer has written to them."""
    from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

    model = split(mesh)
    _pre_dp_module_transform(model)
    report = trained(model)
    assert (report.total_macs, report.total_backward_macs, report.complete) == (FORWARD, BACKWARD, True)


COLLECTIVES: dict[str, tuple[Callable[[], Any], Traffic]] = {
    "all_reduce": (lambda: dist.all_reduce(torch.ones(10)), Traffic(40, 40)),
    "broadcast": (lambda: dist.broadcast(torch.ones(10), 0), Traffic(40, 40)),
    "all_gather": (lambda: dist.all_gather([torch.ones(10)], torch.ones(10)), Traffic(40, 40)),
    "all_gather_into_tensor": (lambda: dist.all_gather_into_tensor(torch.ones(10), torch.ones(10)), Traffic(40, 40)),
    "reduce_scatter_tensor": (lambda: dist.reduce_scatter_tensor(torch.ones(10), torch.ones(10)), Traffic(40, 40)),
    "all_to_all": (lambda: dist.all_to_all_single(torch.ones(10), torch.ones(10)), Traffic(40, 40)),
    "barrier": (dist.barrier, Traffic(0, 0)),
}


@pytest.mark.parametrize(("run", "moved"), COLLECTIVES.values(), ids=COLLECTIVES)
def test_collectives_are_free_with_bytes(mesh: Any, run: Callable[[], Any], moved: Traffic) -> None:
    with fxflops.profile() as p:
        run()
    assert p.report.complete
    assert p.report.total_flops == 0
    sent = [traffic_of(each) for each in p.report.counted if str(each.call.target).startswith("c10d")]
    assert sent == ([] if moved == Traffic() else [moved])


# Several processes: tests/ranks.py runs each case with and without fxflops and writes down the facts of each rank's report.

F32 = 4
R, W, H, BATCH, TOKENS = 4, 8, 16, 2, 4  # the sizes of ranks.py: rows, width, hidden width; sequences and their tokens
UP, DOWN = H * W + H, W * H + W  # elements of the Mlp's layers, with biases
PART = F32 * BATCH * (TOKENS // 2) * W  # half of the tokens
MLP = R * W * H * 2
MLP_BACK = MLP + R * H * W  # both weights' gradients, and the gradient of the activation between them
BLOCK = BATCH * TOKENS * (4 * W * W + 3 * W * H + 2 * TOKENS * W)  # projections; scores and values
ADAM = 3 * 2  # each norm's weight gradient is a sum over the ranks, and AdamW needs it three times

Row = tuple[Any, ...]  # module, phase, collective, group, ranks, calls, bytes sent, bytes received


class Expected(NamedTuple):
    """Expected facts: MACs of the forward and the backward, summed over both ranks; each rank's parameters and collectives."""

    forward: int
    backward: int
    params: list[list[int]]
    rows: list[list[Row]]


def both(*rows: Row) -> list[list[Row]]:
    return [[*rows], [*rows]]


def fsdp_row(path: str, phase: str, op: str, elements: int) -> Row:
    """Half of the layer's elements come from the other rank, or go to it."""
    return (path, phase, op, "dp", 2, 1, F32 * elements // 2, F32 * elements // 2)


def tp_row(path: str, phase: str, op: str, nbytes: int, calls: int = 1) -> Row:
    return (path, phase, op, "tp", 2, calls, nbytes, nbytes)


EXPECTED = {
    # Two batches, one per rank. All gradients are summed in one bucket. Each rank sends 2 (n-1)/n of it, i.e. all of it for n = 2.
    "ddp": Expected(
        2 * MLP,
        2 * MLP_BACK,
        [[UP + DOWN, 0]] * 2,
        both(("module.up", "backward", "all_reduce", "world", 2, 1, F32 * (UP + DOWN), F32 * (UP + DOWN))),
    ),
    # Each layer's weights are gathered for the forward and again for the backward; its gradients are scattered.
    "fsdp": Expected(
        2 * MLP,
        2 * MLP_BACK,
        [[(UP + DOWN) // 2] * 2] * 2,
        both(
            fsdp_row("up", "forward", "all_gather", UP),
            fsdp_row("down", "forward", "all_gather", DOWN),
            fsdp_row("down", "backward", "all_gather", DOWN),
            fsdp_row("up", "backward", "all_gather", UP),  # prefetched while down runs
            fsdp_row("down", "backward", "reduce_scatter", DOWN),
            fsdp_row("up", "backward", "reduce_scatter", UP),
        ),
    ),
    "fsdp_columns": Expected(
        2 * MLP,
        2 * MLP_BACK,
        [[(UP + DOWN) // 2] * 2] * 2,
        both(
            fsdp_row("up", "forward", "all_gather", UP),
            fsdp_row("down", "forward", "all_gather", DOWN),
            fsdp_row("down", "backward", "all_gather", DOWN),
            fsdp_row("up", "backward", "all_gather", UP),
            fsdp_row("down", "backward", "reduce_scatter", DOWN),
            fsdp_row("up", "backward", "reduce_scatter", UP),
        ),
    ),
    # Both ranks share one batch. The output is summed in the forward, the input's gradient in the backward. down's bias is not split.
    "tp": Expected(
        MLP,
        2 * MLP,
        [[(UP + W * H) // 2 + W, (UP + W * H) // 2]] * 2,
        both(tp_row("down", "forward", "all_reduce", F32 * R * W), tp_row("up", "backward", "all_reduce", F32 * R * W)),
    ),
    # Between the parallel layers each rank has half of the tokens: they are gathered before those layers, summed and scattered after.
    "tp_sp": Expected(
        BLOCK,
        2 * BLOCK,
        [[2 * W + (4 * W * W + 3 * W * H) // 2, (4 * W * W + 3 * W * H) // 2]] * 2,
        both(
            tp_row("attention", "forward", "all_gather", PART),
            tp_row("attention.o", "forward", "reduce_scatter", PART),
            tp_row("gate", "forward", "all_gather", PART),
            tp_row("up", "forward", "all_gather", PART),
            tp_row("down", "forward", "reduce_scatter", PART),
            tp_row("down", "backward", "all_gather", PART),
            tp_row("up", "backward", "reduce_scatter", PART),
            tp_row("gate", "backward", "reduce_scatter", PART),
            tp_row("attention.o", "backward", "all_gather", PART),
            tp_row("attention.q", "backward", "reduce_scatter", PART),
            tp_row("", "optimizer", "all_reduce", ADAM * F32 * W, ADAM),
        ),
    ),
    # One layer per rank. The hidden rows go to the second rank in four parts, and their gradients come back.
    "pp": Expected(
        MLP,
        MLP_BACK,
        [[UP, 0], [DOWN, 0]],
        [
            [
                ("", "forward", "send", "world", 2, 4, F32 * R * H, 0),
                ("", "forward", "recv", "world", 2, 4, 0, F32 * R * H),
            ],
            [
                ("", "forward", "recv", "world", 2, 4, 0, F32 * R * H),
                ("", "forward", "send", "world", 2, 4, F32 * R * H, 0),
            ],
        ],
    ),
    # Of each rank's four tokens, one is for the first expert, three for the second. Tokens for the other rank's expert go and return.
    "ep": Expected(
        2 * R * W * W,
        2 * 2 * R * W * W,
        [[W * W, 0]] * 2,
        [
            [
                ("", "forward", "all_to_all", "world", 2, 2, F32 * W * (there + back), F32 * W * (back + there)),
                ("", "backward", "all_to_all", "world", 2, 2, F32 * W * (there + back), F32 * W * (back + there)),
            ]
            for there, back in ((3, 1), (1, 3))
        ],
    ),
    # Scores and values of all tokens. Keys and values go around the ring once, and so do their gradients.
    "ring": Expected(
        2 * BATCH * TOKENS**2 * W,
        4 * BATCH * TOKENS**2 * W,
        [[0, 0]] * 2,
        both(
            ("", "forward", "send", "world", 2, 2, 2 * PART, 0),
            ("", "forward", "recv", "world", 2, 2, 0, 2 * PART),
            ("", "backward", "send", "world", 2, 2, 2 * PART, 0),
            ("", "backward", "recv", "world", 2, 2, 0, 2 * PART),
        ),
    ),
}


HANGS = torch.__version__ < (2, 8)
"""Whether torch's pipelines hang on Gloo, which https://github.com/pytorch/pytorch/pull/152938 fixed."""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, fresh: Fresh) -> list[dict[str, Any]]:
    """The facts of all cases on both ranks, followed by the facts from simulation."""
    cases = [case for case in EXPECTED if case != "pp" or not HANGS]
    cases += ["fsdp1", "analyze_tp", "analyze_fsdp", "between_steps", "gather_all", "replicate_all", "print_all"]
    return ran(fresh, tmp_path_factory.mktemp("ranks"), 2, cases, [*EXPECTED] if CAN_SIMULATE else [])


@pytest.fixture(scope="module")
def told(two_ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The facts of all cases on both ranks."""
    return two_ranks[:2]


def ran(fresh: Fresh, folder: Path, processes: int, cases: list[str], simulated: list[str]) -> list[dict[str, Any]]:
    """Run ``ranks.py``. Return the facts it writes for each rank, followed by the facts of the simulated ranks."""
    script = str(Path(__file__).with_name("ranks.py"))
    done = fresh.run(script, str(folder), str(processes), *cases, *(f"simulate_{case}" for case in simulated))
    assert done.returncode == 0, done.stderr
    names = [*range(processes), *(["simulated"] if simulated else [])]
    return [json.loads((folder / f"{name}.json").read_text()) for name in names]


@pytest.mark.parametrize("case", EXPECTED)
def test_what_two_ranks_compute_hold_and_send(told: list[dict[str, Any]], case: str) -> None:
    found, expected = [rank[case] for rank in told], EXPECTED[case]
    assert all(isinstance(rank, dict) for rank in found), found
    assert [(rank["complete"], rank["same"]) for rank in found] == [(True, True)] * 2
    assert sum(rank["forward"] for rank in found) == expected.forward
    assert sum(rank["backward"] for rank in found) == expected.backward
    assert [rank["params"] for rank in found] == expected.params
    # Ignore the bookkeeping that DistributedDataParallel broadcasts from rank 0.
    rows = [[tuple(row) for row in rank["collectives"] if row[2] != "broadcast"] for rank in found]
    assert [sorted(of_rank) for of_rank in rows] == [sorted(of_rank) for of_rank in expected.rows]


@pytest.mark.parametrize("case", ["fsdp", "fsdp_columns", "fsdp1"])
def test_gathered_weights_are_freed(told: list[dict[str, Any]], case: str) -> None:
    """FSDP frees gathered weights by resizing them to 0. The report must agree with the garbage collector from the first step on."""
    for rank in told:
        # AdamW's last scalars are still alive at its last call.
        assert rank[case]["left"] == [pytest.approx(rank[case]["last"], abs=2 * F32)] * len(rank[case]["left"])


@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [("tp", MLP // 2, MLP // 2 + R * H * W // 2), ("fsdp", MLP, MLP_BACK)],  # no gradient of the input
    ids=["tp", "fsdp"],
)
def test_analyzed_and_counted_on_two_ranks(told: list[dict[str, Any]], case: str, forward: int, backward: int) -> None:
    macs = [forward, backward, True]
    assert [rank[f"analyze_{case}"] for rank in told] == [[macs, macs, True, True]] * 2


def test_one_report_of_two_ranks(told: list[dict[str, Any]]) -> None:
    # For the rank with R rows, with the bias; the other rank has three times as many rows.
    layer, relu = 2 * R * W * H, R * H
    for rank in told:
        total, most, imbalance, work, late, _, mixed, again = rank["gather_all"]
        assert (total, most, imbalance) == (4 * MLP, 3 * MLP, 1.5)
        ones = {"up": layer, "": relu, "down": layer}
        assert work == {path: [4 * flops, flops, 3 * flops] for path, flops in ones.items()}
        assert late.startswith("rank 1 of 2 did not make call 2 of gather() within 0.3 s of rank 0:")
        assert again == [True, True]
        assert mixed == "cannot gather reports from different functions: count() on rank 0, profile() on rank 1"
    first, second = (rank["gather_all"][5] for rank in told)
    assert first.startswith("rank 1 of 2 did not make call 4 of gather() within 0.1 s of rank 0:")
    assert second.startswith("rank 0 of 2 did not make call 4 of gather() within 0.2 s of rank 1:")


def test_a_sharded_model_is_counted_between_its_steps(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert len(rank["between_steps"]) == 12
        assert rank["between_steps"] == {order: [True, True] for order in rank["between_steps"]}


def test_a_replicated_model_repeats_its_optimizer_alone(told: list[dict[str, Any]]) -> None:
    update = 2 * (W * H + H + H * W + W)  # a multiply and an add for each parameter
    for rank in told:
        work, said = rank["replicate_all"]
        assert work["(optimizer)"] == [2 * update, update, update]
        # Each of the two processes divides its gradients by two; the add that combines them belongs to the collective. One loss
        # over all 8 rows has one add more than two losses over 4 rows each.
        joined = {"up": W * H + H, "down": H * W + W, "": -1}
        assert {path: row[2] for path, row in work.items()} == {**joined, "(optimizer)": update}
        assert said == f"repeated work: {update} in (optimizer)"


def test_the_command_line_prints_one_report(told: list[dict[str, Any]]) -> None:
    first, second = (rank["print_all"] for rank in told)
    assert second == ""
    assert f"MACs     {MLP // 2}" in first
    assert "Mlp on 2 processes" in first
    assert [line.split()[:3] for line in first.splitlines() if line.startswith("sum")] == [["sum", "1.02", "k"]]  # MLP


@simulates
def test_simulated_ranks_are_as_the_real_ones(two_ranks: list[dict[str, Any]]) -> None:
    *told, simulated = copy.deepcopy(two_ranks)
    for case in EXPECTED:
        for real, found in zip((rank[case] for rank in told), simulated[case], strict=True):
            del real["same"], real["left"]
            held, peaks = real.pop("memory"), (real.pop("uncopied"), found.pop("uncopied"))
            needed = found.pop("memory")
            assert found == real
            if not case.startswith("fsdp"):
                assert needed == held
                continue
            # Gloo's reduce_scatter sums into a copy, which is not simulated. down's copy is alive at the peak, with the tensors below.
            assert peaks[0] == peaks[1] == sum(needed.values())
            if case == "fsdp_columns":
                # More than when sharded by rows: up's gathered weight as it arrives, with one rank's columns after the other's.
                assert peaks[0] == two_ranks[0]["fsdp"]["uncopied"] + F32 * W * H
                continue
            parts = (UP + DOWN) // 2
            # The weights, AdamW's moments of them and four step counts, and down's gradients.
            live = 3 * parts + 4 + DOWN // 2
            live += R * H + 2 + R * H  # relu's result, the loss and its gradient, the gradient of relu's result
            live += R * W  # the input
            live += UP + DOWN  # up's weights, which are arriving, and down's gradients, which are leaving
            # Before torch 2.15 FSDP holds the gradient of down's bias a while longer.
            live += W * (torch.__version__ < (2, 15))
            assert sum(held.values()) == F32 * (live + DOWN)


def rows_of_block(block: str) -> list[Row]:
    """A block's collectives on dp 2 x tp 2: its half of the weights is gathered along dp, its tokens along tp."""
    # Half of a half of the weights; both norms are whole.
    weights, norms = F32 * ((4 * W * W + 3 * W * H) // 2 + 2 * W) // 2, F32 * 2 * W
    along_tp = [
        ("attention", "forward", "all_gather"),
        ("attention.o", "forward", "reduce_scatter"),
        ("gate", "forward", "all_gather"),
        ("up", "forward", "all_gather"),
        ("down", "forward", "reduce_scatter"),
        ("down", "backward", "all_gather"),
        ("up", "backward", "reduce_scatter"),
        ("gate", "backward", "reduce_scatter"),
        ("attention.o", "backward", "all_gather"),
        ("attention.q", "backward", "reduce_scatter"),
    ]
    return [
        *((block, phase, "all_gather", "dp", 2, 1, weights, weights) for phase in ("forward", "backward")),
        (block, "backward", "reduce_scatter", "dp", 2, 1, weights, weights),
        tp_row(block, "backward", "all_reduce", norms, 2),
        *(tp_row(f"{block}.{path}", phase, op, PART) for path, phase, op in along_tp),
    ]


@simulates
def test_blocks_of_a_llama_on_four_ranks(tmp_path: Path, fresh: Fresh) -> None:
    *told, [simulated, *_] = (each["fsdp_tp"] for each in ran(fresh, tmp_path, 4, ["fsdp_tp"], ["fsdp_tp"]))
    assert sum(rank["forward"] for rank in told) == 2 * 2 * BLOCK  # two blocks, two batches
    assert sum(rank["backward"] for rank in told) == 2 * sum(rank["forward"] for rank in told)
    for rank in told:
        assert rank.pop("same")
        del rank["left"]
        assert rank["complete"]
        assert rank["params"] == [2 * (2 * W + (4 * W * W + 3 * W * H) // 2) // 2] * 2
        assert sorted(map(tuple, rank["collectives"])) == sorted([*rows_of_block("0"), *rows_of_block("1")])
        assert rank == simulated  # including the bytes at the peak

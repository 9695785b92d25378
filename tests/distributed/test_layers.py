"""Deep models extrapolated from a few layers: the figures must equal a run with all layers. If they cannot, all layers are run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from fxflops.distributed import Links, rank_meshes, simulate, step_bound
from fxflops.errors import InputError
from tests.distributed import simulates

pytestmark = [simulates, pytest.mark.filterwarnings("ignore::FutureWarning")]
LAYERS, WIDTH, TOKENS = 7, 16, 32
LINKS = Links(within=1e6, across=1e4, node=4)


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """An embedding, blocks, and logits over a vocabulary. ``hidden`` gives the size of each block by its number."""

    def __init__(self, layers: int, hidden: Callable[[int], int], vocabulary: int, checkpoints: bool) -> None:
        super().__init__()
        self.embedding, self.checkpoints = nn.Embedding(vocabulary, WIDTH), checkpoints
        self.blocks = nn.ModuleList(Block(hidden(i)) for i in range(layers))
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            torch.empty(0)  # a call between layers that allocates nothing; torch 2.11's checkpoint makes two
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return F.cross_entropy(self.head(x), ids)


class Step:
    """A training step of a model with ``layers`` layers: sharded over "dp" and parallel over "tp", if the mesh has these
    dimensions.
    """

    def __init__(
        self, hidden: Callable[[int], int] = lambda i: 32, vocabulary: int = 8, checkpoints: bool = False
    ) -> None:
        self.model, self.ran = (hidden, vocabulary, checkpoints), list[int]()

    def __call__(self, mesh: Any, layers: int = LAYERS) -> Any:
        self.ran.append(layers)
        model = Model(layers, *self.model)
        for block in model.blocks:
            if "tp" in mesh.mesh_dim_names:
                parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            if "dp" in mesh.mesh_dim_names:
                fully_shard(block, mesh=mesh["dp"])
        if "dp" in mesh.mesh_dim_names:
            fully_shard(model, mesh=mesh["dp"])
        optimizer, ids = torch.optim.SGD(model.parameters(), momentum=0.9), torch.zeros(TOKENS, dtype=torch.long)

        def step() -> None:
            model(ids).backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, step


@pytest.mark.parametrize(
    ("mesh", "checkpoints", "vocabulary"),
    [({"dp": 4}, False, 300), ({"dp": 2, "tp": 2}, True, 8), ({"tp": 4}, False, 8), ({"one": 1}, True, 300)],
    ids=str,
)
def test_all_layers_by_a_few(mesh: dict[str, int], checkpoints: bool, vocabulary: int) -> None:
    step = Step(vocabulary=vocabulary, checkpoints=checkpoints)
    found = simulate(step, mesh, differs=(), layers=LAYERS)
    assert (found.layers, step.ran) == (LAYERS, [4, 5, 6])
    whole = simulate(step, mesh, differs=())
    assert found.figures == whole.figures
    assert found.table.rows[0][:6] == whole.table.rows[0][:6]
    assert found.collectives == whole.collectives
    (*bounds, binds), (*of_all, binds_all) = step_bound(found, "H100"), step_bound(whole, "H100")
    assert (bounds, binds) == (pytest.approx(of_all), binds_all)
    assert f"a training step of {LAYERS} layers, extrapolated from fewer layers" in str(found)


@pytest.mark.parametrize(
    "hidden", [lambda i: 32 + 16 * (i % 2), lambda i: 32 + 16 * (i == 3)], ids=["in turn", "one of them"]
)
def test_layers_that_add_unlike_figures_are_all_run(hidden: Callable[[int], int]) -> None:
    step = Step(hidden)
    found = simulate(step, {"dp": 2}, differs=(), layers=LAYERS)
    assert (found.layers, step.ran) == (None, [4, 5, 6, LAYERS])
    assert found.figures == simulate(step, {"dp": 2}, differs=()).figures


def test_a_model_of_few_layers_is_run_whole() -> None:
    step = Step()
    assert simulate(step, {"dp": 2}, differs=(), layers=6).layers is None
    assert step.ran == [6]
    with pytest.raises(InputError, match="layers must be the number of layers in the model, got 0"):
        simulate(step, {"dp": 2}, layers=0)


def test_the_layers_of_a_pipeline() -> None:
    ran = list[int]()

    def stage(mesh: Any, layers: int = 14) -> Any:
        ran.append(layers)
        rank = mesh.get_local_rank("pp")
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers // 2 + (rank == 1))))
        return model, lambda: model(torch.ones(TOKENS, WIDTH)).sum().backward()

    found = simulate(stage, {"dp": 2, "pp": 2}, differs=["pp"], layers=14)
    assert ran == 2 * [8, 10, 12]
    assert found.figures == simulate(stage, {"dp": 2, "pp": 2}, differs=["pp"]).figures


@pytest.mark.parametrize("odd", [None, 6], ids=["alike", "one that six do not show"])
def test_meshes_by_layers_are_checked_by_a_whole_model(odd: int | None) -> None:
    meshes = [{"dp": 2}, {"tp": 2}]
    step = Step(lambda i: 32 if i != odd else 48)
    found = rank_meshes(step, meshes, links=LINKS, differs=(), layers=LAYERS)
    assert step.ran == [LAYERS, 4, 5, 4, 5, *([] if odd is None else [LAYERS])]
    assert found.layers == (LAYERS if odd is None else None)
    assert (f"extrapolated to {LAYERS} layers from 5" in str(found)) == (odd is None)
    whole = rank_meshes(step, meshes, links=LINKS, differs=())
    assert [each.figures for each, _ in found.found] == [each.figures for each, _ in whole.found]
    assert [bound[:2] for _, bound in found.found] == [pytest.approx(bound[:2]) for _, bound in whole.found]


def test_meshes_of_a_model_of_few_layers_are_run_whole() -> None:
    step = Step()
    found = rank_meshes(step, [{"dp": 2}, {"tp": 2}], links=LINKS, differs=(), layers=5)
    assert found.layers is None
    assert [each.layers for each, _ in found.found] == [None, None]
    assert step.ran[-1] == 5


def test_a_build_that_makes_no_shallow_model_is_run_whole() -> None:
    whole = Step()

    def build(mesh: Any, layers: int) -> Any:
        return whole(mesh, [LAYERS][LAYERS - layers])

    found = rank_meshes(build, [{"dp": 2}, {"tp": 2}], links=LINKS, differs=(), layers=LAYERS)
    assert (found.layers, whole.ran) == (None, [LAYERS, LAYERS])
    assert not found.failed

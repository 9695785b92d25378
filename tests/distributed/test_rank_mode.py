"""Operators under a simulated rank: shapes, strides, dtypes and memory equal those of real tensors, however often an operator is
called.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops.distributed import simulate
from fxflops.distributed.rank_mode import Rank
from fxflops.errors import RunError
from fxflops.torch_internals import fake_group, fake_tensors
from tests.distributed import simulates

CALLS: dict[str, Callable[..., Any]] = {
    "new": lambda x, n: x + x,
    "a plain number": lambda x, n: n + 1,
    "a float, not an int": lambda x, n: n + 1.0,
    "a boolean, not an int": lambda x, n: torch.full((2,), True),
    "another dtype": lambda x, n: x.to(torch.bfloat16),
    "an argument by name": lambda x, n: x.sum(dim=1, keepdim=True),
    "another argument by name": lambda x, n: x.sum(dim=1, dtype=torch.float64),
    "a view": lambda x, n: x.view(8, 4).t(),
    "a view with an offset": lambda x, n: x[1:, 2:],
    "a view of other strides": lambda x, n: x.t()[1:].contiguous(),
    "a view of another dtype": lambda x, n: x.view(torch.int32),
    "several views": lambda x, n: x.split([1, 3]),
    "several results": lambda x, n: x.sort(dim=0),
    "a list given": lambda x, n: torch.cat([x, x, x.t().reshape(4, 8)]),
    "the tensor itself": lambda x, n: x.mul_(2),
    "several tensors themselves": lambda x, n: torch._foreach_mul(x.split(2), 2),
    "without a tensor": lambda x, n: torch.empty(3, 5),
    "a layout": lambda x, n: torch.empty(2, 3, 4, 5, memory_format=torch.channels_last),
    "complex": lambda x, n: torch.view_as_complex(x.view(4, 4, 2)).conj() * 2,
    "sparse": lambda x, n: x.to_sparse().shape,
    "another shape of its own": lambda x, n: x.unsqueeze_(0),
    "attention": lambda x, n: F.scaled_dot_product_attention(*(x.view(1, 2, 4, 4),) * 3),
}


def told(given: tuple[torch.Tensor, ...], out: Any) -> list[Any]:
    """Return the facts of each result, and which of the given tensors it shares memory with."""
    results = out if isinstance(out, (tuple, list)) else [out]
    storages = [x.untyped_storage()._cdata for x in given]
    facts = []
    for each in results:
        if not isinstance(each, torch.Tensor):
            facts.append(each)
            continue
        storage = each.untyped_storage()
        where = [known == storage._cdata for known in storages], [each is x for x in given]
        layout = each.shape, each.stride(), each.storage_offset(), each.is_conj()
        facts.append((*layout, each.dtype, each.device, each.requires_grad, storage.nbytes(), where))
    return facts


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_real_tensors(name: str) -> None:
    def made() -> tuple[torch.Tensor, ...]:
        return torch.empty(4, 8), torch.empty(3, dtype=torch.int64)

    given = made()
    expected = told(given, CALLS[name](*given))
    mode = fake_tensors()[1](allow_non_fake_inputs=True)
    with mode, Rank(mode):
        for call in (*CALLS.values(), CALLS[name], CALLS[name]):
            given = made()
            out = call(*given)
        assert told(given, out) == expected


def test_a_result_has_memory_of_its_own() -> None:
    mode = fake_tensors()[1]()
    with mode, Rank(mode):
        x = torch.empty(4)
        storages = [x.untyped_storage(), *((x + 1).untyped_storage() for _ in range(3))]
        assert len({storage._cdata for storage in storages}) == 4


def test_gradients_are_computed() -> None:
    mode = fake_tensors()[1]()
    with mode, Rank(mode):
        for _ in range(2):
            x = torch.empty(4, 8, requires_grad=True)
            ((x * 2).relu() @ torch.empty(8, 2)).sum().backward()
            assert x.grad is not None
            assert x.grad.shape == (4, 8)


def test_what_depends_on_values_is_asked_each_time() -> None:
    mode = fake_tensors()[1]()
    with mode, Rank(mode):
        for _ in range(2):
            with pytest.raises(Exception, match="nonzero"):
                torch.empty(4).nonzero()


@simulates
def test_a_module_may_be_copied() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def build(mesh: Any) -> Any:
        encoder = nn.TransformerEncoder(copy.deepcopy(layer), 3, enable_nested_tensor=False)
        slow, x = copy.deepcopy(encoder), torch.ones(2, 4, 8)

        def step() -> None:
            encoder(x).sum().backward()
            for old, new in zip(slow.parameters(), encoder.parameters(), strict=True):
                old.data.lerp_(new.data, 0.1)

        return nn.ModuleList([encoder, slow]), step

    (kind,) = simulate(build, {"dp": 2}).kinds
    # Per layer: q, k, v, o of 8 x 8 and two linear layers of 8 x 16, for 8 tokens. Scores and sums: 8 MACs each, for 8 * 4 pairs.
    forward = 3 * (8 * (4 * 64 + 2 * 128) + 2 * 8 * 4 * 8)
    assert kind.report.total_macs == forward
    assert kind.params == 2 * 3 * (4 * 64 + 4 * 8 + 2 * 128 + 16 + 8 + 4 * 8)


@simulates
def test_fsdp_that_reshards_to_fewer() -> None:
    from torch.distributed.fsdp import fully_shard

    def build(mesh: Any) -> Any:
        model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.ones(4, 8)
        fully_shard(model[0], mesh=mesh, reshard_after_forward=2)
        fully_shard(model, mesh=mesh)
        return model, lambda: model(x).sum().backward()

    (kind,) = simulate(build, {"dp": 4}).kinds
    size = 4 * (64 + 8)  # bytes of a layer
    gathered = {row.ranks: row.sent for row in kind.collectives if row.op == "all_gather"}
    assert gathered == {4: 2 * size * 3 // 4, 2: size // 2}  # the second gather is over two halves


@simulates
@pytest.mark.filterwarnings("ignore::FutureWarning")  # from torch itself
def test_fully_sharded_data_parallel() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    def build(mesh: Any) -> Any:
        model, x = FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device("cpu")), torch.ones(4, 8)
        optimizer = torch.optim.SGD(model.parameters())

        def step() -> None:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, step

    (kind,) = simulate(build, {"dp": 4}).kinds
    size = 4 * (64 + 8) * 3 // 4  # the part of a layer that the other ranks have
    assert [(row.op, row.ranks, row.sent) for row in kind.collectives] == [
        ("all_gather", 4, size),
        ("reduce_scatter", 4, size),
    ]
    assert (kind.params, kind.macs) == (18, 2 * 4 * 64)


@pytest.mark.parametrize("computed", [torch.bfloat16, torch.float32], ids=str)
@simulates
def test_the_dtype_that_a_sharded_tensor_states_may_be_an_older_one(computed: torch.dtype) -> None:
    """FSDP of torch up to 2.12 casts a gathered tensor but states its old dtype. The dtype that the tensor really has decides."""
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    def build(mesh: Any) -> Any:
        stated = DTensorSpec(mesh, (Replicate(),), TensorMeta(torch.Size([8, 8]), (8, 1), torch.float32))
        weight = DTensor(torch.ones(8, 8, dtype=computed), stated, requires_grad=False)
        x = DTensor.from_local(torch.ones(4, 8, dtype=torch.bfloat16), mesh, [Replicate()])
        return nn.Module(), lambda: x @ weight

    if computed is torch.float32:
        with pytest.raises(RunError, match="tensors of matmul do not have the same dtype"):
            simulate(build, {"tp": 2})
    else:
        (kind,) = simulate(build, {"tp": 2}).kinds
        assert sum(each.macs for each in kind.report.counted) == 4 * 8 * 8


@simulates
def test_a_dimension_is_named_in_groups_of_its_own() -> None:
    """With a GPU, each mesh over all processes has its own Gloo group, and torch uses the group of an equal mesh. Both groups
    belong to the same mesh dimension.
    """
    from torch import distributed as dist
    from torch.distributed.tensor import Replicate, distribute_tensor

    from fxflops.trace.processes import Collectives

    with fake_group(0, 2):
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        layer = nn.Linear(2, 2)
        layer.weight = nn.Parameter(distribute_tensor(torch.ones(2, 2), mesh, [Replicate()]))
        others = [dist.new_group([0, 1], group_desc=told) for told in ("mesh_default", "of_mine", "undefined")]
        func = torch.ops._c10d_functional.all_reduce.default
        groups = [
            Collectives({layer: ""}).group_of(func, (None, "sum", group.group_name), {})["group"]
            for group in (mesh.get_group(), *others)
        ]
    assert groups == ["dp", "dp", "of_mine", "world"]

"""Operators under a simulated rank: shapes, strides, dtypes and memory are those of real tensors, however often one is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fxflops.distributed.rank_mode import Rank
from fxflops.torch_internals import fake_tensors

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
    """What is known of results, and which of the given tensors' memory they are in."""
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

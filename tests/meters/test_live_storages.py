"""Live storages: resizes that go unseen."""

from __future__ import annotations

import pytest
import torch

from fxflops.meters.live_storages import LiveStorages

TENSORS = 10


def storages_of(*tensors: torch.Tensor, is_held: bool) -> LiveStorages:
    if is_held:
        return LiveStorages({"params": [(str(i), tensor) for i, tensor in enumerate(tensors)]})
    storages = LiveStorages()
    storages.add_all(tensors)
    return storages


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_storage_is_resized_after_it_was_handed_out(device: str, is_held: bool) -> None:
    tensor = torch.empty(100, device=device)
    storages = storages_of(tensor, is_held=is_held)
    for nbytes in (0, 800, 0, 400):
        storages.may_resize(tensor)
        tensor.untyped_storage().resize_(nbytes)
        new = torch.empty(1)
        storages.add(new)
        assert storages.live == nbytes + 4
        del new
    assert storages.peak == 804


@pytest.mark.parametrize("is_held", [False, True])
def test_each_of_many_storages_is_resized_long_after(is_held: bool) -> None:
    tensors = [torch.empty(100) for _ in range(TENSORS)]
    storages = storages_of(*tensors, is_held=is_held)
    for tensor in tensors:
        storages.may_resize(tensor)
    new = [torch.empty(0) for _ in range(3 * TENSORS)]
    storages.add_all(new[:TENSORS])
    for tensor in tensors[1:]:
        tensor.untyped_storage().resize_(0)
    storages.add_all(new[TENSORS:])
    assert storages.live == 400
    tensors[0].untyped_storage().resize_(0)
    assert sum(tensor.bytes for tensor in storages.history([]).at_end) == 0  # even if others were tracked since


def test_what_was_handed_out_is_not_kept() -> None:
    tensor = torch.empty(100)
    storages = storages_of(tensor, is_held=False)
    storages.may_resize(tensor)
    tensor.untyped_storage().resize_(200)
    del tensor
    assert storages.live == 0
    storages.add(new := torch.empty(100))  # often at the same address
    assert storages.live == new.nbytes


def test_memory_of_others_cannot_be_resized() -> None:
    tensor = torch.frombuffer(bytearray(400), dtype=torch.float32)
    storages = storages_of(tensor, is_held=False)
    storages.may_resize(tensor)
    storages.add(torch.empty(0))
    assert storages.live == 400

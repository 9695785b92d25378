"""A trait holds ops that are registered, by name and by target."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxflops.ops import BASE, _traits

TRAITS = {name: value for name, value in vars(_traits).items() if isinstance(value, set)}


@pytest.mark.parametrize("trait", TRAITS)
def test_its_members_are_ops_and_their_targets(trait: str) -> None:
    names = {entry.op for _, entry in BASE.items()}
    members: set[Any] = TRAITS[trait]
    assert members & names
    assert all(BASE.get(member) is not None for member in members - names)


def test_an_op_is_in_it_by_its_name_and_by_its_targets() -> None:
    assert {"empty", torch.empty, "new_empty", torch.Tensor.new_empty, "aten::empty"} <= _traits.EMPTY
    assert not {"zeros", torch.zeros} & _traits.EMPTY

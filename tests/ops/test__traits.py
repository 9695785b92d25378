"""A trait holds registered ops, by name and by target."""

from __future__ import annotations

from typing import Any

import torch

from fxflops.ops import BASE, _traits

TRAITS: dict[str, set[Any]] = {name: value for name, value in vars(_traits).items() if isinstance(value, set)}


def test_its_members_are_ops_and_their_targets() -> None:
    names = {entry.op for _, entry in BASE.items()}
    assert len(TRAITS) > 10
    assert [trait for trait, members in TRAITS.items() if not members & names] == []
    strangers = {
        trait: strangers
        for trait, members in TRAITS.items()
        if (strangers := [member for member in members - names if BASE.get(member) is None])
    }
    assert strangers == {}


def test_an_op_is_in_it_by_its_name_and_by_its_targets() -> None:
    assert {"empty", torch.empty, "new_empty", torch.Tensor.new_empty, "aten::empty"} <= _traits.UNINITIALIZED
    assert not {"zeros", torch.zeros} & _traits.UNINITIALIZED

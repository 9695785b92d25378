"""The aten level: every operator has a formula, a rule or an entry in the list of unknowns, and a rule costs what its operator does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import fxflops
from fxflops.ops import BASE, apply
from fxflops.ops.aten import ASKED, CHECKED, CREATE, MOVE, VIEW, aten_rule
from fxflops.records import Cost, Operation
from fxflops.records.tensors import spec_of
from tests.oracle import numbers, tallying

aten = torch.ops.aten
UNKNOWN = {
    "sparse tensors, which take formulas of their own": """
        _cslt_sparse_mm _cslt_sparse_mm_search _sparse_addmm _sparse_csr_prod _sparse_csr_sum _sparse_log_softmax
        _sparse_log_softmax_backward_data _sparse_mask_projection _sparse_mm _sparse_mm_reduce_impl
        _sparse_mm_reduce_impl_backward _sparse_semi_structured_addmm _sparse_semi_structured_linear
        _sparse_semi_structured_mm _sparse_semi_structured_tile _sparse_softmax _sparse_softmax_backward_data
        _sparse_sparse_matmul _spsolve hspmm smm sparse_sampled_addmm sspaddmm""",
    "nested tensors": "_nested_tensor_softmax_with_shape",
    "derivatives in forward mode": "glu_backward_jvp glu_jvp",
    "a search whose length the values decide": "choose_qparams_optimized",
}
TESTS = re.compile("_foobar|_test_.*")


def overloads() -> Iterator[torch._ops.OpOverload]:
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        name, _, form = name.partition(".")
        if space == "aten":
            yield getattr(getattr(aten, name), form or "default")


def rule(overload: Any) -> Any:
    return BASE.find(overload) or aten_rule(overload)


def is_taken_apart(overload: torch._ops.OpOverload) -> bool:
    """Whether a dispatch mode sees the operator's parts and never the operator itself."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd")


def test_every_operator_is_counted_free_or_known_to_be_unknown() -> None:
    listed = {name for names in UNKNOWN.values() for name in names.split()}
    unknown = {
        name
        for overload in overloads()
        if rule(overload) is None
        and not TESTS.fullmatch(name := overload._schema.name.removeprefix("aten::").rstrip("_"))
        and not ("backward" in name and is_taken_apart(overload))
    }
    assert unknown - listed == set()


def test_the_lists_are_short_and_sorted() -> None:
    lists = [names.split() for names in UNKNOWN.values()]
    assert all(names == sorted(names) for names in lists)
    assert sum(map(len, lists)) < 30
    for names in (VIEW, MOVE, CREATE, ASKED, CHECKED):
        assert len(names) == len(set(names))


def test_what_is_free_says_why() -> None:
    for overload in overloads():
        entry = rule(overload)
        assert entry is None or entry.function is not None or entry.reason, overload


def by_rule(overload: Any, *args: Any, **kwargs: Any) -> Cost:
    """The cost by the rule alone, for specs of the arguments and of a real call's result."""
    entry = aten_rule(overload)
    assert entry is not None
    specs = spec_of(args), spec_of(kwargs)
    return apply(entry, Operation(entry.op, overload, *specs, spec_of(overload(*args, **kwargs))))


X = torch.rand(3, 4)


def test_free_by_schema_or_tag() -> None:
    reasons = {
        aten.mH.default: "view",
        aten._neg_view.default: "view",
        aten.t_.default: "view",
        aten.contiguous.default: "view",
        aten.split.Tensor: "view",
        aten._neg_view_copy.default: "move",
        aten._neg_view_copy.out: "move",
        aten.unfold_copy.default: "move",
        aten._reshape_copy.default: "move",
        aten.slice_scatter.default: "move",
        aten._to_copy.default: "move",
        aten._foreach_copy_.default: "move",
        aten._foreach_zero_.default: "create",
        aten.rand.default: "create",
        aten.randint.low_out: "create",
    }
    entries = {overload: aten_rule(overload) for overload in reasons}
    assert {overload: entry and entry.reason for overload, entry in entries.items()} == reasons
    assert [overload for overload, entry in entries.items() if entry and entry.function is not None] == []


def test_what_computes_is_not_free_by_rule() -> None:
    computing = aten.relu_, aten.mm, aten.dropout, aten.multinomial, aten.gelu_backward
    entries = {packet: aten_rule(packet.default) for packet in computing}
    assert [packet for packet, entry in entries.items() if entry and entry.function is None] == []


def test_operators_of_prims_are_aten_ones() -> None:
    """Decompositions are made of prims, e.g. those that forward derivatives use."""
    x, table = torch.randn(3, 4), torch.ops.prims
    for overload, reason in (
        (table.convert_element_type, "move"),
        (table.broadcast_in_dim, "view"),
        (table.rev, "move"),
    ):
        found = BASE.find(overload.default)
        assert found is not None
        assert found.reason == reason
    for overload, aten in (
        (table.add, torch.ops.aten.add),
        (table.sum, torch.ops.aten.sum),
        (table.tanh, torch.ops.aten.tanh),
    ):
        assert BASE.find(overload.default) is BASE.find(aten)
    add = fxflops.count(Plain(lambda x: table.add(x, x)), x)
    assert (add.total_flops, add.complete) == (12, True)


class Plain(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def test_pointwise_operators_are_one_per_output() -> None:
    with tallying() as tally:
        _ = np.exp(numbers(3, 4))
    assert tally == by_rule(aten.exp.default, X)
    assert tally == by_rule(aten.exp.out, X, out=torch.empty(3, 4))
    assert tally == by_rule(aten.exp_.default, X.clone())
    assert tally == by_rule(aten.maximum.default, X, torch.rand(4))


def test_an_operator_of_another_library_is_not_pointwise_by_its_tag() -> None:
    library = torch.library.Library("fxflops_test", "DEF")
    library.define("gelu_of_sum(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
    assert aten_rule(torch.ops.fxflops_test.gelu_of_sum.default) is None
    library._destroy()


LISTS = [torch.rand(3, 4), torch.rand(5)], [torch.rand(3, 4), torch.rand(5)]


def elements() -> Any:
    return numbers(3, 4), numbers(5)


@pytest.mark.parametrize(
    ("name", "args", "textbook"),
    [
        ("add", (LISTS[1],), lambda x: x + x),
        ("add", (2.0,), lambda x: x + x),
        ("mul", (2.0,), lambda x: x * 2),
        ("mul", ([2.0, 3.0],), lambda x: x * 2),
        ("sqrt", (), np.exp),
        ("maximum", (LISTS[1],), np.exp),
        ("pow", (3.0,), lambda x: x**3),
        ("addcdiv", (*LISTS, 0.5), lambda x: x + 0.5 * (x / x)),
        ("addcmul", (*LISTS, [1.0, 1.0]), lambda x: x + x * x),
        ("lerp", (LISTS[1], 0.5), lambda x: x + 0.5 * (x - x)),
    ],
)
def test_lists_cost_what_each_tensor_costs(name: str, args: tuple[Any, ...], textbook: Any) -> None:
    form = next(overload for overload in forms(f"_foreach_{name}") if takes(overload, [LISTS[0], *args]))
    with tallying() as tally:
        for x in elements():
            textbook(x)
    assert tally == by_rule(form, LISTS[0], *args)
    in_place = getattr(getattr(aten, f"_foreach_{name}_"), form._overloadname)
    copies = [x.clone() for x in LISTS[0]]
    assert tally == by_rule(in_place, copies, *args)


def forms(name: str) -> Iterator[Any]:
    packet = getattr(aten, name)
    return (getattr(packet, form) for form in packet.overloads() if "out" not in form)


def takes(overload: Any, args: list[Any]) -> bool:
    try:
        overload(*args)
    except (RuntimeError, TypeError):
        return False
    return True


def test_lists_that_become_numbers() -> None:
    """The norm of each tensor: squares, their sum, a root."""
    with tallying() as tally:
        for x in elements():
            flat = x.ravel()
            np.exp((flat * flat).sum())
    assert tally == by_rule(aten._foreach_norm.Scalar, LISTS[0])
    outs = [torch.empty(()), torch.empty(())]
    assert tally == by_rule(aten._foreach_norm.Scalar_out, LISTS[0], out=outs)
    assert Cost(others=11 + 4) == by_rule(aten._foreach_max.default, LISTS[0])
    assert Cost() == by_rule(aten._foreach_max.default, [torch.rand(1)])


def test_an_operand_that_is_no_list_goes_with_each() -> None:
    assert Cost(others=12 + 5) == by_rule(aten._foreach_pow.ScalarAndTensor, 2.0, LISTS[0])


def test_keywords_go_with_each() -> None:
    with tallying() as tally:
        for x in elements():
            _ = x + 2.0 * x
    assert tally == by_rule(aten._foreach_add.List, *LISTS, alpha=2.0)


def test_in_place_forms_of_what_only_a_rule_knows() -> None:
    assert aten_rule(aten._foreach_neg_.default) is not None
    assert aten_rule(aten._sparse_softmax_backward_data.out) is None

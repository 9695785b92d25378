"""Counting calls that were never made: operations written by hand, without a model, by formulas and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxflops import InputError
from fxflops.conventions import Convention, check_attention, find_convention
from fxflops.counting.counts import count_calls, unused_formula_warnings
from fxflops.ops import BASE, FormulaRegistry
from fxflops.records import Call, Cost, Counted, Operation, Spec

X, W, OUT = Spec((2, 8), torch.float32), Spec((4, 8), torch.float32), Spec((2, 4), torch.float32)
LINEAR = Call(Operation("linear", F.linear, (X, W), {}, OUT))
MACS = 2 * 4 * 8
BASE_RULES = find_convention("fxflops")


class Renamed(nn.ReLU):
    """Has the forward of nn.ReLU."""


RELU = Call(Operation("relu", Renamed, (X,), {}, X), "act")


def no_module(path: str) -> nn.Module:
    raise AssertionError(f"no formula reads the module at {path!r}")


def counts(
    *calls: Call,
    convention: Convention = BASE_RULES,
    table: FormulaRegistry = BASE,
    at: Callable[[str], nn.Module] = no_module,
    attention: str = "dense",
) -> tuple[Counted, ...]:
    return count_calls(calls, convention, table, at, attention)


def seven(*args: Any, out: Spec, **kwargs: Any) -> int:
    return 7


def test_a_users_formula_reads_the_module_of_each_path() -> None:
    modules = {"thin": nn.Linear(8, 4), "wide": nn.Linear(8, 400)}
    ran = Operation("linear", nn.Linear, (X,), {}, OUT)
    table = BASE.derive({nn.Linear: lambda module, input, *, out: module.out_features})
    counted = counts(Call(ran, "thin"), Call(ran, "wide"), table=table, at=modules.__getitem__)
    assert [each.flops for each in counted] == [4, 400]


@pytest.mark.parametrize(
    ("key", "call"),
    [("linear", LINEAR), (F.linear, LINEAR), ("relu", RELU), (nn.ReLU, RELU), (Renamed, RELU)],
    ids=["op", "function", "op of a class", "class of the forward", "class"],
)
def test_a_row_counts_what_its_key_names(key: Any, call: Call) -> None:
    (base,) = counts(call)
    (counted,) = counts(call, convention=Convention("own", "", {key: seven}), at=lambda path: nn.ReLU())
    assert (counted.flops, counted.macs, counted.rule) == (7, base.macs, seven)
    assert not unused_formula_warnings([counted], BASE, Convention("own", "", {key: seven}))


def test_what_a_tools_users_told_it_keeps_our_macs() -> None:
    told = Convention("told", "", registered=lambda ran: seven if ran.op == "linear" else None)
    linear, relu = counts(LINEAR, RELU, convention=told)
    assert (linear.flops, linear.macs, relu.flops) == (7, MACS, 2 * 8)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("lineer", "the row for 'lineer' counts nothing: the op 'lineer' is unknown (did you mean linear"),
        (
            torch.relu,
            "the formula for torch.relu counted nothing: the code calls relu as tests.counting.test_counts.Renamed x1",
        ),
        (nn.Linear, "the code calls linear as torch.nn.functional.linear x1; register the formula for this name"),
        ("gelu", None),
        (nn.GELU, None),
    ],
)
def test_a_row_is_overlooked_where_its_op_is_spelled_otherwise(key: Any, said: str | None) -> None:
    sentences = unused_formula_warnings(counts(LINEAR, RELU), BASE, Convention("own", "", {key: seven}))
    assert len(sentences) == (said is not None)
    assert said is None or said in sentences[0]


def attention(facts: dict[str, Any], **given: Any) -> Call:
    """Attention of 4 queries to 6 keys and values, with 8 elements each."""
    q, k = Spec((1, 4, 8), torch.float32), Spec((1, 6, 8), torch.float32)
    out = Spec(q, q.dtype, q.layout, facts)
    return Call(Operation("attention", F.scaled_dot_product_attention, (q, k, k), given, out))


def test_exact_attention_is_of_the_pairs_left_and_dense_of_all() -> None:
    read, unread, full = attention({"pairs": 5}), attention({}, attn_mask=Spec((4, 6))), attention({})
    causal = attention({}, is_causal=True)  # its pairs follow from the shapes
    calls = read, unread, full, causal
    dense, exact = (counts(*calls, attention=how) for how in map(check_attention, ("dense", "exact")))
    assert [each.macs for each in dense] == [4 * 6 * 8 * 2] * 4
    assert [each.macs for each in exact] == [5 * 8 * 2, 0, 4 * 6 * 8 * 2, (1 + 2 + 3 + 4) * 8 * 2]
    assert [each.missing != "" for each in exact] == [False, True, False, False]
    with pytest.raises(InputError, match="unknown attention 'EXACT'; expected one of 'dense', 'exact'"):
        check_attention("EXACT")


def test_a_nested_tensor_costs_what_its_parts_do() -> None:
    parts = Spec((3, 8), torch.float32), Spec((1, 8), torch.float32)
    nested = Spec((2, 3, 8), torch.float32, torch.jagged, {"parts": parts})
    table = Spec(W, W.dtype, W.layout, {"nnz": 9})  # a fact of another kind
    out = Spec((2, 3, 4), torch.float32, torch.jagged, {"parts": (Spec((3, 4)), Spec((1, 4)))})
    (counted,) = counts(Call(Operation("linear", F.linear, (nested, table), {}, out)))
    assert counted.macs == (3 + 1) * 4 * 8


def test_complex_numbers_cost_what_their_parts_do() -> None:
    """(a+bi)(c+di): 4 multiplies, 2 adds; a sum: 2 adds."""
    ran = [
        Operation("linear", F.linear, tuple(Spec(s, dtype) for s in (X, W)), {}, Spec(OUT, dtype))
        for dtype in (torch.float32, torch.complex64)
    ]
    (real, of_parts) = counts(*map(Call, ran))
    assert real.cost == Cost(MACS, MACS, 2 * 4 * 7, 0)
    assert (of_parts.macs, of_parts.flops) == (4 * MACS, (4 + 2) * MACS + 2 * 2 * 4 * 7)

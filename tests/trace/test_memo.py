"""The memo of calls: keys that hold everything a result depends on, and keys that ignore strides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxflops.records import Operation
from fxflops.trace.forms import META, OWN, REAL, Form
from fxflops.trace.memo import NEW, VIEWS, Recipe, Unknown, call_key, forms_in, without_strides

X, Y = torch.empty(2, 3, device="meta"), torch.empty(3, 2, device="meta")
FORMS = {id(t): Form(t.shape, t.stride(), t.dtype, META) for t in (X, Y)}


def form_of(tensor: torch.Tensor) -> Form | None:
    return FORMS.get(id(tensor))


def key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return call_key((torch.cat,), args, kwargs, form_of)


def test_a_key_holds_the_forms_of_all_tensors_in_order() -> None:
    assert forms_in(key([X, (Y, X)], 1, out=Y)) == [FORMS[id(t)] for t in (X, Y, X, Y)]
    assert key([X, Y], dim=0) == key([X, Y], dim=0)


@pytest.mark.parametrize(
    "other",
    [key([Y, X], dim=0), key((X, Y), dim=0), key([X, Y], dim=1), key([X, Y], dim=False), key([X, Y], 0), key([X, Y]), key([X, Y], axis=0)],
)  # fmt: skip
def test_calls_that_differ_have_other_keys(other: Any) -> None:
    assert key([X, Y], dim=0) != other


@pytest.mark.parametrize("value", [torch.empty(4), [torch.empty(4)], object(), {"x": X}, slice(torch.tensor(1))])
def test_what_is_more_than_metadata_has_no_key(value: Any) -> None:
    with pytest.raises(Unknown):
        key(value)
    with pytest.raises(Unknown):
        key(X, other=value)


def test_keys_are_alike_where_shapes_and_dtypes_are() -> None:
    across = Form(X.shape, (1, 2), X.dtype, META)
    wider = Form(X.shape, X.stride(), torch.float64, META)
    mine, lying, wide = ((torch.cat, (list, form, FORMS[id(Y)]), 1) for form in (FORMS[id(X)], across, wider))
    assert without_strides(mine) == without_strides(lying) != without_strides(wide)
    assert mine != lying


@pytest.mark.parametrize(
    ("kind", "given", "needs_stand_ins"),
    [(NEW, [META, OWN], False), (NEW, [META, REAL], True), (VIEWS, [META], False), (VIEWS, [OWN], True)],
)
def test_tensors_with_values_have_mirrors_made_where_they_are_looked_at(
    kind: str, given: Any, needs_stand_ins: bool
) -> None:
    forms = [Form(X.shape, X.stride(), X.dtype, each) for each in given]
    assert (
        Recipe(Operation("cat", torch.cat, (), {}, None), kind, argument_forms=forms).needs_stand_ins is needs_stand_ins
    )

"""Ops that compute nothing. Every common expression must be known and free for the declared reason. Gradients of moved values go
back to where the values came from, and add up where they meet.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from fxflops.ops import BASE, ESCAPE
from fxflops.ops.free import CREATE, MOVE, QUERY, VIEW, stack_shape
from fxflops.records import Cost, Spec
from tests.ops.draws import DTYPES, Draw, Made, dims, draws, tensor
from tests.ops.textbook import Sums, agrees
from tests.oracle import cost_of, numbers, tallying

X = torch.rand(2, 3, 4, 4)
FLAT = torch.rand(4, 6)
INDEX = torch.tensor([1, 0])

VIEWS: dict[str, Any] = {
    "view": lambda: X.view(2, -1), "reshape": lambda: X.reshape(6, 16), "transpose": lambda: X.transpose(1, 2),
    "permute": lambda: X.permute(0, 2, 3, 1), "torch.permute": lambda: torch.permute(X, (0, 2, 3, 1)),
    "T": lambda: FLAT.T, "mT": lambda: X.mT, "t": lambda: FLAT.t(), "expand": lambda: X[:, :1].expand(2, 3, 4, 4),
    "squeeze": lambda: X[:1].squeeze(0), "unsqueeze": lambda: X.unsqueeze(0), "flatten": lambda: X.flatten(1),
    "torch.flatten": lambda: torch.flatten(X, 1), "unflatten": lambda: FLAT.unflatten(1, (2, 3)),
    "unbind": lambda: X.unbind(0), "split": lambda: X.split(1, 1), "torch.split": lambda: torch.split(X, 1, 1),
    "chunk": lambda: X.chunk(2), "narrow": lambda: X.narrow(1, 0, 2), "select": lambda: X.select(0, 1),
    "int index": lambda: X[0], "slice": lambda: X[:, 1:, ::2], "ellipsis": lambda: X[..., None],
    "diagonal": lambda: FLAT.diagonal(), "unfold": lambda: FLAT.unfold(1, 2, 1), "detach": lambda: X.detach(),
    "movedim": lambda: X.movedim(0, 1), "swapaxes": lambda: X.swapaxes(0, 1), "view_as": lambda: X.view_as(X),
    "expand_as": lambda: X[:1].expand_as(X), "iterate": lambda: list(X), "nn.Flatten": lambda: nn.Flatten()(X),
    "broadcast_to": lambda: torch.broadcast_to(FLAT, (2, 4, 6)), "as_strided": lambda: FLAT.as_strided((2, 2), (1, 1)),
    "aten.view": lambda: torch.ops.aten.view.default(X, [6, 16]), "positive": lambda: +X,
}  # fmt: skip
MOVES: dict[str, Any] = {
    "cat": lambda: torch.cat([X, X]), "concat": lambda: torch.concat([X, X]), "stack": lambda: torch.stack([X, X]),
    "hstack": lambda: torch.hstack([X, X]), "contiguous": lambda: X.mT.contiguous(), "clone": lambda: X.clone(),
    "to": lambda: X.to(torch.float64), "float": lambda: INDEX.float(), "half": lambda: X.half(), "long": lambda: X.long(),
    "type": lambda: X.type(torch.float16), "type_as": lambda: X.type_as(INDEX), "cpu": lambda: X.cpu(),
    "repeat": lambda: X.repeat(2, 1, 1, 1), "repeat_interleave": lambda: X.repeat_interleave(2, 0),
    "tile": lambda: X.tile(2), "gather": lambda: FLAT.gather(0, torch.zeros(1, 6, dtype=torch.long)),
    "index_select": lambda: X.index_select(0, INDEX), "tensor index": lambda: X[INDEX], "mask": lambda: X[X > 0.5],
    "setitem": lambda: X.clone().__setitem__(0, 0.0), "copy_": lambda: X.clone().copy_(X),
    "index_copy": lambda: FLAT.index_copy(0, INDEX, FLAT[:2]), "roll": lambda: X.roll(1, 2),
    "torch.roll": lambda: torch.roll(X, (1, 1), (2, 3)), "flip": lambda: X.flip(0), "rot90": lambda: FLAT.rot90(),
    "F.pad": lambda: F.pad(X, (1, 1)), "reflect": lambda: F.pad(X, (1, 1, 1, 1), mode="reflect"),
    "nn.ZeroPad2d": lambda: nn.ZeroPad2d(1)(X), "tril": lambda: FLAT.tril(), "triu": lambda: torch.triu(FLAT),
    "masked_select": lambda: FLAT.masked_select(FLAT > 0), "F.unfold": lambda: F.unfold(X, 2),
    "pixel_shuffle": lambda: F.pixel_shuffle(torch.rand(1, 4, 2, 2), 2), "meshgrid": lambda: torch.meshgrid(INDEX, INDEX, indexing="ij"),
    "one_hot": lambda: F.one_hot(INDEX, 3), "nonzero": lambda: X.nonzero(), "embedding": lambda: torch.embedding(FLAT, INDEX),
    "where": lambda: X.nonzero(as_tuple=True), "deepcopy": lambda: copy.deepcopy(X), "cdouble": lambda: X.cdouble(),
    "view_copy": lambda: torch.view_copy(X, (6, 16)), "expand_copy": lambda: torch.expand_copy(X, (2, 2, 3, 4, 4)),
    "channels_last": lambda: X.contiguous(memory_format=torch.channels_last), "take": lambda: FLAT.take(INDEX),
}  # fmt: skip
CREATED: dict[str, Any] = {
    "zeros": lambda: torch.zeros(3), "ones": lambda: torch.ones(3), "empty": lambda: torch.empty(3),
    "full": lambda: torch.full((3,), 1.0), "arange": lambda: torch.arange(3), "linspace": lambda: torch.linspace(0, 1, 3),
    "eye": lambda: torch.eye(3), "rand": lambda: torch.rand(3), "randn": lambda: torch.randn(3),
    "randint": lambda: torch.randint(3, (3,)), "randperm": lambda: torch.randperm(3), "tensor": lambda: torch.tensor(1.0),
    "as_tensor": lambda: torch.as_tensor([1]), "zeros_like": lambda: torch.zeros_like(X), "rand_like": lambda: torch.rand_like(X),
    "new_zeros": lambda: X.new_zeros(3), "new_full": lambda: X.new_full((3,), 1.0), "normal_": lambda: X.clone().normal_(),
    "uniform_": lambda: X.clone().uniform_(), "fill_": lambda: X.clone().fill_(1), "zero_": lambda: X.clone().zero_(),
    "bernoulli_": lambda: X.clone().bernoulli_(0.5), "exponential_": lambda: X.clone().exponential_(), "empty_like": lambda: torch.empty_like(X),
}  # fmt: skip
QUERIES: dict[str, Any] = {
    "size": lambda: X.size(), "size(0)": lambda: X.size(0), "dim": lambda: X.dim(), "numel": lambda: X.numel(),
    "item": lambda: X.flatten()[0].item(), "tolist": lambda: INDEX.tolist(), "stride": lambda: X.stride(), "len": lambda: len(X),
    "bool": lambda: bool(INDEX[0]), "int": lambda: int(INDEX[0]), "float": lambda: float(INDEX[0]),
    "is_contiguous": lambda: X.is_contiguous(), "get_device": lambda: X.get_device(),
    "is_floating_point": lambda: X.is_floating_point(), "element_size": lambda: X.element_size(),
    "torch.is_tensor": lambda: torch.is_tensor(X), "range": lambda: range(INDEX[0]),
    "complex": lambda: complex(INDEX[0]), "sym_max": lambda: torch.sym_max(X.size(0), INDEX.size(0)),
}  # fmt: skip


def functions_of(expression: Any) -> list[Any]:
    """Every function that a function mode sees in an expression, without property reads."""
    seen: list[Any] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") != "__get__":
                seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        expression()
    return seen


EXPRESSIONS = {**VIEWS, **MOVES, **CREATED, **QUERIES}


def test_common_expressions_are_known() -> None:
    functions = {name: functions_of(expression) for name, expression in EXPRESSIONS.items()}
    assert [(name, f) for name, called in functions.items() for f in called if BASE.find(f) is None] == []


def test_they_cost_nothing() -> None:
    wrong = []
    for name in (*VIEWS, *MOVES, *CREATED):
        for function in functions_of(EXPRESSIONS[name]):
            entry = BASE.find(function)
            # gt makes the masks.
            if entry is None or (entry.function is not None and entry.op not in ("gt", "dropout")):
                wrong.append((name, function, entry))
    assert wrong == []


def test_questions_are_told_apart() -> None:
    reasons = {}
    for name, question in QUERIES.items():
        entry = BASE.find(functions_of(question)[-1] if name != "torch.is_tensor" else torch.is_tensor)
        reasons[name] = entry and entry.reason
    assert reasons == dict.fromkeys(QUERIES, "query")


@pytest.mark.parametrize("name", ["numpy", "__array__", "data_ptr"])
def test_data_that_leaves_torch_is_told(name: str) -> None:
    entry = BASE.find(functions_of(lambda: getattr(X, name)())[0])
    assert entry is not None
    assert entry.reason == ESCAPE


def test_views_share_their_storage() -> None:
    for name in set(VIEWS) - {"nn.Flatten", "iterate", "unbind", "split", "torch.split", "chunk"}:
        out = VIEWS[name]()
        assert out.untyped_storage().data_ptr() in (X.untyped_storage().data_ptr(), FLAT.untyped_storage().data_ptr())


def test_modules_that_compute_nothing() -> None:
    for module in (nn.Identity(), nn.Flatten(), nn.PixelUnshuffle(2), nn.ReflectionPad2d(1), nn.Unfold(2)):
        assert cost_of(module, X) == Cost()


def test_fold_adds_up_where_blocks_overlap() -> None:
    blocks = torch.rand(1, 4, 9)
    with tallying() as tally:
        for _ in range(4 * 9 - 16):
            _ = numbers(1)[0] + numbers(1)[0]
    assert tally == cost_of(F.fold, blocks, (4, 4), 2)
    assert tally == cost_of(nn.Fold((4, 4), 2), blocks)
    assert tally == cost_of(torch.ops.aten.col2im.default, blocks, [4, 4], [2, 2], [1, 1], [0, 0], [1, 1])


def test_no_name_stands_in_two_lists() -> None:
    names = [*VIEW, *MOVE, *CREATE, *QUERY]
    assert len(names) == len(set(names))


IMAGE = Spec((1, 2, 4, 4), torch.float32)
MATRIX = Spec((3, 4), torch.float32)


@pytest.mark.parametrize(
    ("rule", "args", "sizes"),
    [
        (stack_shape, ((MATRIX, MATRIX), 1), (3, 2, 4)),
        (stack_shape, ((MATRIX, MATRIX), -3), (2, 3, 4)),
        (stack_shape, ((MATRIX, IMAGE),), None),
    ],
)
def test_the_shape_rules_answer(rule: Any, args: Any, sizes: Any) -> None:
    told = rule(*args)
    assert (told if told is None else tuple(told)) == sizes


aten = torch.ops.aten


def moved_back(places: Callable[[Any], Any]) -> Callable[..., Any]:
    """Add each element of the gradient to the place it was copied from; ``places`` makes the same copies of the elements' numbers."""

    def textbook(g, size, *settings):
        size = size if isinstance(size, list) else list(size.shape)
        numbers = torch.arange(float(np.prod(size))).reshape(size)
        out = Sums(int(np.prod(size)))
        for place, value in zip(places(numbers).reshape(-1).long().tolist(), g.reshape(-1), strict=True):
            out.add(place, value)
        return out.result().reshape(size)

    return textbook


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_what_was_padded_goes_back(mode: str) -> None:
    name = {"reflect": "reflection", "replicate": "replication"}[mode]
    for rank in (1, 2, 3):
        x, padding = torch.randn(2, *[4] * (rank + 1), dtype=torch.double), [1, 2] * rank
        textbook = moved_back(lambda numbers, padding=padding: F.pad(numbers, padding, mode))
        g = torch.randn_like(F.pad(x, padding, mode))
        agrees(getattr(aten, f"{name}_pad{rank}d_backward").default, textbook, g, x, padding)


def test_unfolded_windows_add_up() -> None:
    g = torch.randn(2, 3, 4, dtype=torch.double)
    textbook = moved_back(lambda numbers: numbers.unfold(1, 4, 2))
    agrees(aten.unfold_backward.default, textbook, g, [2, 8], 1, 4, 2)


@pytest.mark.parametrize("name", ["select_backward", "slice_backward", "diagonal_backward", "masked_scatter_backward"])
def test_what_was_moved_goes_back(name: str) -> None:
    entry = BASE.find(getattr(aten, name).default)
    assert entry is not None
    assert (entry.function, entry.reason) == (None, "move")


def test_special_functions_of_samples() -> None:
    x = torch.rand(3, 4) + 1
    assert cost_of(aten._standard_gamma_grad.default, x, x) == Cost(others=12)
    assert cost_of(aten._dirichlet_grad.default, x / 10, x, x) == Cost(others=12)


@draws("cat", "stack")
def joined(draw: Draw, target: Any) -> Made:
    sizes, dim = dims(draw, 1, 4), draw(st.integers(-2, 2))
    tensors, dtype = [], draw(st.sampled_from(DTYPES))
    for _ in range(draw(st.integers(1, 3))):
        each = list(sizes)
        if target is not torch.stack and dim < len(each):
            each[dim % len(each)] = draw(st.integers(1, 4))
        tensors.append(tensor(draw, each, dtype if draw(st.integers(0, 9)) else torch.float64))
    return (tensors,) if not draw(st.integers(0, 7)) else (tensors, dim), {}


@draws("roll")
def rolled(draw: Draw, target: Any) -> Made:
    x = tensor(draw, dims(draw, 1, 4), draw(st.sampled_from(DTYPES)))
    return (x, *draw(st.sampled_from([(1, 0), ((1, 2), (0, 1)), (3,), ((-1,), (-1,)), (1, -x.ndim)]))), {}
